"""Requests about places in partitions: where they begin, end and were at a time; and who to ask."""

from onelog.core.cursors.times import Dated
from onelog.errors import OnelogError, TopicNotFoundError
from onelog.gateways.kafka.error_codes import error_code
from onelog.gateways.kafka.fetch import epoch_error
from onelog.gateways.kafka.names import require_topic
from onelog.gateways.kafka.session import LEADER_EPOCH, NODE_ID, Handler, KafkaSession, Request
from onelog.wire.kafka.codes import ApiKey, ErrorCode
from onelog.wire.kafka.schema import Fields

LATEST, EARLIEST, MAX_TIMESTAMP, EARLIEST_LOCAL, LATEST_TIERED = -1, -2, -3, -4, -5
"""In the place of a time."""
_READ_COMMITTED = 1
_NOWHERE = Dated(-1, -1)


def list_offsets(session: KafkaSession, request: Request) -> Fields | None:
    """LIST_OFFSETS: begin and end are known; where a time is, a worker looks up."""
    fields = request.fields
    is_committed = fields.get("isolation_level") == _READ_COMMITTED
    times = [each["timestamp"] for topic in fields["topics"] for each in topic["partitions"]]

    def find() -> Fields:
        return {
            "topics": [
                {
                    "name": topic["name"],
                    "partitions": [
                        _listed(session, topic["name"], each, is_committed)
                        for each in topic["partitions"]
                    ],
                }
                for topic in fields["topics"]
            ]
        }

    if all(each < 0 and each != MAX_TIMESTAMP for each in times):
        return find()
    session.look_up(request, find)
    return None


def _listed(session: KafkaSession, topic: str, wanted: Fields, is_committed: bool) -> Fields:
    queue_id = wanted["partition_index"]
    answer: Fields = {"partition_index": queue_id, "error_code": 0}
    refused = epoch_error(wanted.get("current_leader_epoch", -1))
    if refused is not None:
        return answer | {"error_code": refused}
    try:
        offset, time_ms = _place(session, topic, queue_id, wanted["timestamp"], is_committed)
    except OnelogError as error:
        return answer | {"error_code": error_code(error)}
    epoch = LEADER_EPOCH if offset >= 0 else -1
    if "max_num_offsets" in wanted:
        return answer | {"old_style_offsets": [offset] if offset >= 0 else []}
    return answer | {"offset": offset, "timestamp": time_ms, "leader_epoch": epoch}


def _place(
    session: KafkaSession, topic: str, queue_id: int, time_ms: int, is_committed: bool
) -> Dated:
    broker, who = session.broker, session.principal
    _require_partition(session, topic, queue_id)
    if time_ms in (EARLIEST, EARLIEST_LOCAL):
        return Dated(broker.min_offset(who, topic, queue_id), -1)
    if time_ms == LATEST:
        if is_committed:
            return Dated(broker.settled(who, topic, queue_id, 0, 0)[0], -1)
        return Dated(broker.max_offset(who, topic, queue_id), -1)
    if time_ms == MAX_TIMESTAMP:
        return broker.latest_message(who, topic, queue_id) or _NOWHERE
    if time_ms < 0:
        return _NOWHERE
    return broker.first_message_since(who, topic, queue_id, time_ms) or _NOWHERE


def _require_partition(session: KafkaSession, topic: str, queue_id: int) -> None:
    config = require_topic(session.broker, session.principal, topic)
    if not 0 <= queue_id < config.queues:
        raise TopicNotFoundError(f"topic {topic} has no partition {queue_id}")


def offset_for_leader_epoch(session: KafkaSession, request: Request) -> Fields:
    """OFFSET_FOR_LEADER_EPOCH: the one epoch that there is ends where its partition ends."""
    told = []
    for topic in request.fields["topics"]:
        name = topic["topic"]
        partitions = []
        for each in topic["partitions"]:
            queue_id = each["partition"]
            answer: Fields = {"partition": queue_id, "error_code": 0}
            refused = epoch_error(each.get("current_leader_epoch", -1))
            try:
                _require_partition(session, name, queue_id)
                if refused is not None:
                    answer["error_code"] = refused
                elif each["leader_epoch"] == LEADER_EPOCH:
                    end = session.broker.max_offset(session.principal, name, queue_id)
                    answer |= {"leader_epoch": LEADER_EPOCH, "end_offset": end}
            except OnelogError as error:
                answer["error_code"] = error_code(error)
            partitions.append(answer)
        told.append({"topic": name, "partitions": partitions})
    return {"topics": told}


def find_coordinator(session: KafkaSession, request: Request) -> Fields:
    """FIND_COORDINATOR: this broker coordinates every group and every transaction."""
    host, port = session.gateway.address
    fields = request.fields
    found: Fields = {
        "error_code": 0, "error_message": None, "node_id": NODE_ID, "host": host, "port": port,
    }  # fmt: skip
    if fields.get("key_type", 0) not in (0, 1):
        found = {
            "error_code": ErrorCode.INVALID_REQUEST, "error_message": "there is no such key type",
            "node_id": -1, "host": "", "port": -1,
        }  # fmt: skip
    if request.version < 4:
        return found
    return {"coordinators": [{**found, "key": key} for key in fields["coordinator_keys"]]}


HANDLERS: dict[ApiKey, Handler] = {
    ApiKey.LIST_OFFSETS: list_offsets,
    ApiKey.OFFSET_FOR_LEADER_EPOCH: offset_for_leader_epoch,
    ApiKey.FIND_COORDINATOR: find_coordinator,
}
