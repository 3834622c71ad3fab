"""Requests about places in partitions: where they begin, end and were at a time; and who to ask."""

from collections.abc import Generator

from onelog.core.cursors.times import Dated
from onelog.errors import OnelogError
from onelog.gateways.kafka.error_codes import error_code
from onelog.gateways.kafka.fetch import epoch_error
from onelog.gateways.kafka.names import require_readable
from onelog.gateways.kafka.session import (
    Handler,
    KafkaSession,
    Request,
    Steps,
    agreed,
    refusal_in,
    whole,
)
from onelog.names import OFFSETS_TOPIC, VIEW_TOPICS
from onelog.wire.kafka.codes import ApiKey, ErrorCode
from onelog.wire.kafka.schema import Fields

LATEST, EARLIEST, MAX_TIMESTAMP, EARLIEST_LOCAL, LATEST_TIERED = -1, -2, -3, -4, -5
"""In the place of a time."""
_READ_COMMITTED = 1
_NOWHERE = Dated(-1, -1)


def list_offsets(session: KafkaSession, request: Request) -> Steps:
    """LIST_OFFSETS: begin and end are known; where a time is, a worker looks up."""
    fields = request.fields
    is_committed = fields.get("isolation_level") == _READ_COMMITTED
    times = [each["timestamp"] for topic in fields["topics"] for each in topic["partitions"]]

    def listed(are_views: bool) -> Generator[None, None, list[Fields]]:
        results: list[Fields] = []
        for topic in fields["topics"]:
            if (topic["name"] in VIEW_TOPICS) == are_views:
                partitions: list[Fields] = []
                results.append({"name": topic["name"], "partitions": partitions})
                for each in topic["partitions"]:
                    partitions.append(_listed(session, topic["name"], each, is_committed))
                    yield
        return results

    # What is a view changes in the loop, and is looked at there.
    views = yield from listed(True)

    def find() -> Steps:
        return {"topics": (yield from listed(False)) + views}

    if all(each < 0 and each != MAX_TIMESTAMP for each in times):
        return (yield from find())
    session.look_up(request, lambda: whole(find()))
    return None


def _listed(session: KafkaSession, topic: str, wanted: Fields, is_committed: bool) -> Fields:
    partition = wanted["partition_index"]
    answer: Fields = {"partition_index": partition, "error_code": 0}
    refused = epoch_error(session.gateway.cluster, wanted.get("current_leader_epoch", -1))
    if refused is not None:
        return answer | {"error_code": refused}
    try:
        offset, time_ms = _queue_id(session, topic, partition, wanted["timestamp"], is_committed)
    except OnelogError as error:
        return answer | {"error_code": error_code(error)}
    epoch = session.gateway.cluster.leader_epoch if offset >= 0 else -1
    if "max_num_offsets" in wanted:
        return answer | {"old_style_offsets": [offset] if offset >= 0 else []}
    return answer | {"offset": offset, "timestamp": time_ms, "leader_epoch": epoch}


def _queue_id(
    session: KafkaSession, topic: str, partition: int, time_ms: int, is_committed: bool
) -> Dated:
    broker, principal = session.broker, session.principal
    queue_id = queue_of(session, topic, partition)
    broker.topics.require_current()
    if topic in VIEW_TOPICS:
        return _found_in_view(session, topic, queue_id, time_ms)
    if time_ms in (EARLIEST, EARLIEST_LOCAL):
        return Dated(broker.topics.min_offset(principal, topic, queue_id), -1)
    if time_ms == LATEST:
        if is_committed:
            return Dated(broker.cursors.settled(principal, topic, queue_id, 0, 0)[0], -1)
        return Dated(broker.topics.max_offset(principal, topic, queue_id), -1)
    if time_ms == MAX_TIMESTAMP:
        return broker.topics.latest_message(principal, topic, queue_id) or _NOWHERE
    if time_ms < 0:
        return _NOWHERE
    return broker.topics.first_message_since(principal, topic, queue_id, time_ms) or _NOWHERE


def _found_in_view(session: KafkaSession, topic: str, queue_id: int, time_ms: int) -> Dated:
    view = session.gateway.offsets_topic
    begin, end = view.bounds(queue_id) if topic == OFFSETS_TOPIC else (0, 0)
    if time_ms in (EARLIEST, EARLIEST_LOCAL, LATEST):
        return Dated(end if time_ms == LATEST else begin, -1)
    if topic != OFFSETS_TOPIC or time_ms < MAX_TIMESTAMP:
        return _NOWHERE
    return view.dated(queue_id, None if time_ms == MAX_TIMESTAMP else time_ms) or _NOWHERE


def queue_of(session: KafkaSession, topic: str, partition: int) -> int:
    """The queue of a partition that this broker has."""
    config = require_readable(session.broker, session.principal, topic)
    return session.gateway.cluster.queue(config, partition)


def offset_for_leader_epoch(session: KafkaSession, request: Request) -> Steps:
    """OFFSET_FOR_LEADER_EPOCH: where in a partition the part of a master ends."""
    results = []
    for topic in request.fields["topics"]:
        name = topic["topic"]
        partitions = []
        for each in topic["partitions"]:
            yield
            answer: Fields = {"partition": each["partition"], "error_code": 0}
            refused = epoch_error(session.gateway.cluster, each.get("current_leader_epoch", -1))
            with refusal_in(answer):
                queue_of(session, name, each["partition"])
                if refused is not None:
                    answer["error_code"] = refused
                else:
                    answer |= _end_of_epoch(session, name, each["partition"], each["leader_epoch"])
            partitions.append(answer)
        results.append({"topic": name, "partitions": partitions})
    return {"topics": results}


def _end_of_epoch(session: KafkaSession, topic: str, partition: int, epoch: int) -> Fields:
    """The last epoch up to this one, and where it ends; nothing for one that nobody knows.

    0 is also what was told before masters were counted: that part ends where the partition does.
    """
    cluster = session.gateway.cluster
    if not 0 <= epoch <= cluster.leader_epoch:
        return {}
    known = cluster.replica_status.epochs() if cluster.is_alone and epoch else ()
    later = [start for number, start in known if number > epoch]
    if later and topic not in VIEW_TOPICS:
        broker, principal = session.broker, session.principal
        end = broker.topics.first_offset_behind(principal, topic, partition, min(later))
        return {
            "leader_epoch": max((number for number, _ in known if number <= epoch), default=epoch),
            "end_offset": end,
        }
    latest = {"partition_index": partition, "timestamp": LATEST}
    return {"leader_epoch": epoch, "end_offset": _listed(session, topic, latest, False)["offset"]}


def find_coordinator(session: KafkaSession, request: Request) -> Steps:
    """FIND_COORDINATOR: of a broker that is alone, itself for every group and transaction."""
    fields = request.fields
    kind = fields.get("key_type", 0)
    if request.version < 4:
        return _coordinator(session, kind, fields["key"])
    found: list[Fields] = []
    for key in fields["coordinator_keys"]:
        found.append({**_coordinator(session, kind, key), "key": key})
        yield
    return {"coordinators": found}


def _coordinator(session: KafkaSession, kind: int, key: str) -> Fields:
    cluster = session.gateway.cluster
    nobody: Fields = {"node_id": -1, "host": "", "port": -1}
    if kind not in (0, 1):
        reason = "there is no such key type"
        return {"error_code": ErrorCode.INVALID_REQUEST, "error_message": reason, **nobody}
    node_id = cluster.coordinator(key)
    if node_id is None:
        cluster.propose_coordinator(key, {})
    for each in cluster.brokers():
        if each.node_id == node_id:
            queue_id = {"node_id": node_id, "host": each.host, "port": each.port}
            return {"error_code": 0, "error_message": None, **queue_id}
    reason = f"broker {node_id}, which looks after it, is away"
    code = ErrorCode.COORDINATOR_NOT_AVAILABLE
    return {"error_code": code, "error_message": reason, **nobody}


HANDLERS: dict[ApiKey, Handler] = {
    ApiKey.LIST_OFFSETS: list_offsets,
    ApiKey.OFFSET_FOR_LEADER_EPOCH: offset_for_leader_epoch,
    ApiKey.FIND_COORDINATOR: agreed(find_coordinator, again=True),
}
