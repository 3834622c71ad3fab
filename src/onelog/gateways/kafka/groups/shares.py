"""Share groups: heartbeats of their members, and what administrators ask and correct."""

from collections.abc import Mapping, Sequence

from onelog.core.membership.consumers import LEAVE_EPOCH, Beat, ConsumerGroup
from onelog.core.membership.shares import ASSIGNOR
from onelog.errors import (
    GroupNotEmptyError,
    GroupNotFoundError,
    InvalidRequestError,
    OnelogError,
    TopicNotFoundError,
)
from onelog.gateways.kafka.groups.describing import ALL_OPERATIONS
from onelog.gateways.kafka.groups.members import by_topic, check_topics
from onelog.gateways.kafka.names import NO_ID, require_topic, topic_id
from onelog.gateways.kafka.session import LEADER_EPOCH, Handler, KafkaSession, Request, refusal
from onelog.wire.kafka.codes import ApiKey
from onelog.wire.kafka.schema import Fields

_NOWHERE = -1


def share_group_heartbeat(session: KafkaSession, request: Request) -> Fields:
    """SHARE_GROUP_HEARTBEAT: all that a member says of itself, and hears of its part."""
    fields = request.fields
    epoch, topics = fields["member_epoch"], fields["subscribed_topic_names"]
    if not fields["group_id"].strip() or not fields["member_id"]:
        raise InvalidRequestError("a heartbeat needs the group and the id of its member")
    if epoch < LEAVE_EPOCH or fields["rack_id"] == "" or (epoch == 0 and not topics):
        raise InvalidRequestError("a member that joins says what it subscribes to")
    beat = Beat(
        fields["group_id"], fields["member_id"], epoch, rack=fields["rack_id"], rebalance_ms=0,
        topics=topics, owned=(), client_id=request.client_id, client_host=f"/{session.host}",
    )  # fmt: skip
    check_topics(session, topics)
    beaten = session.broker.coordinator.beat_share(session.principal, beat)
    answer: Fields = {
        "error_code": 0, "member_id": beaten.member_id, "member_epoch": beaten.epoch,
        "heartbeat_interval_ms": session.gateway.house.loaded.config.kafka.heartbeat_ms,
    }  # fmt: skip
    if beaten.assigned is not None:
        answer["assignment"] = {"topic_partitions": by_topic(session, beaten.assigned)}
    return answer


def share_group_describe(session: KafkaSession, request: Request) -> Fields:
    """SHARE_GROUP_DESCRIBE."""
    told = []
    for name in request.fields["group_ids"]:
        answer: Fields = {"error_code": 0, "group_id": name, "group_state": "Dead"}
        try:
            answer |= _described(session, _require(session, name))
        except OnelogError as error:
            answer |= refusal(error)
        if request.fields["include_authorized_operations"]:
            answer["authorized_operations"] = ALL_OPERATIONS
        told.append(answer)
    return {"groups": told}


def _require(session: KafkaSession, name: str) -> ConsumerGroup:
    group = session.broker.coordinator.share_group(session.principal, name)
    if group is None:
        raise GroupNotFoundError(f"there is no share group {name!r}")
    return group


def _described(session: KafkaSession, group: ConsumerGroup) -> Fields:
    return {
        "group_state": "Stable" if group.members else "Empty",
        "group_epoch": group.epoch,
        "assignment_epoch": group.assignment_epoch,
        "assignor_name": ASSIGNOR,
        "members": [
            {
                "member_id": each.member_id,
                "rack_id": each.rack,
                "member_epoch": each.epoch,
                "client_id": each.client_id,
                "client_host": each.client_host,
                "subscribed_topic_names": list(each.topics),
                "assignment": {"topic_partitions": by_topic(session, each.assigned)},
            }
            for each in group.members.values()
        ],
    }


# -- positions ---------------------------------------------------------------------------------


def describe_share_group_offsets(session: KafkaSession, request: Request) -> Fields:
    """DESCRIBE_SHARE_GROUP_OFFSETS: where groups are, and how many messages they have to do."""
    told = []
    for asked in request.fields["groups"]:
        name, topics = asked["group_id"], asked["topics"]
        answer: Fields = {"group_id": name, "error_code": 0, "topics": []}
        try:
            _require(session, name)
            wanted: Mapping[str, Sequence[int]] = (
                session.broker.sharing.topics_of(session.principal, name)
                if topics is None
                else {each["topic_name"]: each["partitions"] for each in topics}
            )
            answer["topics"] = [
                _positions(session, name, topic, queues) for topic, queues in wanted.items()
            ]
        except OnelogError as error:
            answer |= refusal(error)
        told.append(answer)
    return {"groups": told}


def _positions(session: KafkaSession, group: str, topic: str, queues: Sequence[int]) -> Fields:
    sharing, who = session.broker.sharing, session.principal
    partitions = []
    id_ = NO_ID
    for queue_id in queues:
        answer: Fields = {
            "partition_index": queue_id, "start_offset": _NOWHERE, "leader_epoch": LEADER_EPOCH,
            "lag": -1, "error_code": 0,
        }  # fmt: skip
        try:
            id_ = _topic(session, topic, queue_id)
            found = sharing.position(who, group, (topic, queue_id))
            if found is not None:
                answer["start_offset"], answer["lag"] = found
        except OnelogError as error:
            answer |= refusal(error)
        partitions.append(answer)
    return {"topic_name": topic, "topic_id": id_, "partitions": partitions}


def _topic(session: KafkaSession, topic: str, queue_id: int = 0) -> bytes:
    """The id of a topic that has this partition."""
    config = require_topic(session.broker, session.principal, topic)
    if not 0 <= queue_id < config.queues:
        raise TopicNotFoundError(f"topic {topic} has no partition {queue_id}")
    return topic_id(config)


def _require_empty(session: KafkaSession, name: str) -> None:
    session.require_administrator()
    if _require(session, name).members:
        raise GroupNotEmptyError(f"group {name} has members: stop them")


def alter_share_group_offsets(session: KafkaSession, request: Request) -> Fields:
    """ALTER_SHARE_GROUP_OFFSETS: have a group without members go on elsewhere."""
    name = request.fields["group_id"]
    _require_empty(session, name)
    told = []
    for topic in request.fields["topics"]:
        partitions = []
        positions: dict[int, int] = {}
        id_ = NO_ID
        for each in topic["partitions"]:
            answer: Fields = {"partition_index": each["partition_index"], "error_code": 0}
            try:
                id_ = _topic(session, topic["topic_name"], each["partition_index"])
                positions[each["partition_index"]] = each["start_offset"]
            except OnelogError as error:
                answer |= refusal(error)
            partitions.append(answer)
        if positions:
            session.broker.sharing.move(session.principal, name, topic["topic_name"], positions)
        told.append({"topic_name": topic["topic_name"], "topic_id": id_, "partitions": partitions})
    return {"error_code": 0, "responses": told}


def delete_share_group_offsets(session: KafkaSession, request: Request) -> Fields:
    """DELETE_SHARE_GROUP_OFFSETS: have a group without members forget topics."""
    name = request.fields["group_id"]
    _require_empty(session, name)
    told = []
    for topic in request.fields["topics"]:
        answer: Fields = {"topic_name": topic["topic_name"], "topic_id": NO_ID, "error_code": 0}
        try:
            answer["topic_id"] = _topic(session, topic["topic_name"])
            session.broker.sharing.forget(session.principal, name, topic["topic_name"])
        except OnelogError as error:
            answer |= refusal(error)
        told.append(answer)
    return {"error_code": 0, "responses": told}


HANDLERS: dict[ApiKey, Handler] = {
    ApiKey.SHARE_GROUP_HEARTBEAT: share_group_heartbeat,
    ApiKey.SHARE_GROUP_DESCRIBE: share_group_describe,
    ApiKey.DESCRIBE_SHARE_GROUP_OFFSETS: describe_share_group_offsets,
    ApiKey.ALTER_SHARE_GROUP_OFFSETS: alter_share_group_offsets,
    ApiKey.DELETE_SHARE_GROUP_OFFSETS: delete_share_group_offsets,
}
