"""Share groups: heartbeats of their members, and what administrators ask and correct.

In a cluster one broker looks after a group's members. Where the group is in a partition, and what
its members have of it, the partition's broker knows: the first one asks the others for that, and
puts their answers together with its own.
"""

from collections.abc import Callable, Generator, Mapping, Sequence

from onelog.core.membership.consumers import LEAVE_EPOCH, Beat, ConsumerGroup
from onelog.core.membership.shares import ASSIGNOR
from onelog.errors import (
    GroupNotEmptyError,
    GroupNotFoundError,
    InvalidRequestError,
)
from onelog.gateways.kafka.groups.describing import described_each
from onelog.gateways.kafka.groups.members import beaten_fields, by_topic, check_topics
from onelog.gateways.kafka.names import NO_ID, require_topic, topic_id
from onelog.gateways.kafka.session import Handler, KafkaSession, Request, Steps, refusal_in
from onelog.wire.kafka.codes import ApiKey, ErrorCode
from onelog.wire.kafka.schema import Fields

_NOWHERE = -1


def share_group_heartbeat(session: KafkaSession, request: Request) -> Steps:
    """SHARE_GROUP_HEARTBEAT: all that a member says of itself, and hears of its part."""
    fields = request.fields
    epoch, topics = fields["member_epoch"], fields["subscribed_topic_names"]
    if not fields["group_id"].strip() or not fields["member_id"]:
        raise InvalidRequestError("a heartbeat needs the group and the id of its member")
    if epoch < LEAVE_EPOCH or fields["rack_id"] == "" or (epoch == 0 and not topics):
        raise InvalidRequestError("a member that joins says what it subscribes to")
    beat = Beat(
        fields["group_id"],
        fields["member_id"],
        epoch,
        rack=fields["rack_id"],
        rebalance_ms=0,
        topics=topics,
        owned=(),
        client_id=request.client_id,
        client_host=f"/{session.host}",
    )
    yield from check_topics(session, topics)
    coordinator = session.broker.groups.coordinator
    return beaten_fields(session, coordinator.beat_share(session.principal, beat))


def share_group_describe(session: KafkaSession, request: Request) -> Steps:
    return described_each(
        session, request, lambda name: _described(session, _require(session, name))
    )


def _require(session: KafkaSession, name: str) -> ConsumerGroup:
    group = session.broker.groups.coordinator.share_group(session.principal, name)
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


def describe_share_group_offsets(session: KafkaSession, request: Request) -> Steps:
    """DESCRIBE_SHARE_GROUP_OFFSETS: where groups are, and how many messages they have to do."""
    results = []
    for requested in request.fields["groups"]:
        yield
        name, topics = requested["group_id"], requested["topics"]
        answer: Fields = {"group_id": name, "error_code": 0, "topics": []}
        with refusal_in(answer):
            if _is_here(session, name):
                _require(session, name)
            wanted: Mapping[str, Sequence[int]] = (
                _partitions_of(session, name)
                if topics is None
                else {each["topic_name"]: each["partitions"] for each in topics}
            )
            for topic, partitions in wanted.items():
                answer["topics"].append((yield from _positions(session, name, topic, partitions)))
        results.append(answer)
    return {"groups": results}


def _partitions_of(session: KafkaSession, group: str) -> dict[str, list[int]]:
    """The partitions of each topic in which a group has a position here."""
    cluster = session.gateway.cluster
    return {
        topic: [
            partition
            for queue_id in queue_ids
            if (partition := cluster.partition(topic, queue_id)) is not None
        ]
        for topic, queue_ids in session.broker.queues.sharing.topics_of(
            session.principal, group
        ).items()
    }


def _positions(
    session: KafkaSession, group: str, topic: str, wanted: Sequence[int]
) -> Generator[None, None, Fields]:
    sharing, principal = session.broker.queues.sharing, session.principal
    partitions = []
    for partition in wanted:
        yield
        answer: Fields = {
            "partition_index": partition,
            "start_offset": _NOWHERE,
            "lag": -1,
            "error_code": 0,
            "leader_epoch": session.gateway.cluster.leader_epoch,
        }
        with refusal_in(answer):
            found = sharing.position(principal, group, (topic, _queue(session, topic, partition)))
            if found is not None:
                answer["start_offset"], answer["lag"] = found
        partitions.append(answer)
    return {"topic_name": topic, "topic_id": _id(session, topic), "partitions": partitions}


def _id(session: KafkaSession, topic: str) -> bytes:
    config = session.broker.topics.find(session.principal, topic)
    return NO_ID if config is None else topic_id(config)


def _queue(session: KafkaSession, topic: str, partition: int) -> int:
    """The queue of a partition; `NotLeaderError` if another broker has it."""
    config = require_topic(session.broker, session.principal, topic)
    return session.gateway.cluster.queue(config, partition)


def _is_here(session: KafkaSession, group: str) -> bool:
    """Whether this broker knows the members of a group; others tell of their partitions only."""
    cluster = session.gateway.cluster
    return cluster.coordinator(group) == cluster.node_id


def _require_empty(session: KafkaSession, name: str) -> None:
    session.require_administrator()
    if _is_here(session, name) and _require(session, name).members:
        raise GroupNotEmptyError(f"group {name} has members: stop them")


def alter_share_group_offsets(session: KafkaSession, request: Request) -> Steps:
    """ALTER_SHARE_GROUP_OFFSETS: have a group without members go on elsewhere.

    A group that is not there is made, unless there is no partition for it.
    """
    name = request.fields["group_id"]
    session.require_administrator()
    coordinator, is_made = session.broker.groups.coordinator, not _is_here(session, name)
    if not is_made:
        coordinator.require_share_group(session.principal, name)
    results = []
    for topic in request.fields["topics"]:
        partitions = []
        positions: dict[int, int] = {}
        requested = topic["topic_name"]
        for each in topic["partitions"]:
            yield
            answer: Fields = {"partition_index": each["partition_index"], "error_code": 0}
            with refusal_in(answer):
                queue_id = _queue(session, requested, each["partition_index"])
                positions[queue_id] = each["start_offset"]
            partitions.append(answer)
        if positions:
            if not is_made:
                coordinator.make_share_group(session.principal, name)
                is_made = True
            session.broker.queues.sharing.move(session.principal, name, requested, positions)
        results.append(
            {"topic_name": requested, "topic_id": _id(session, requested), "partitions": partitions}
        )
    return {"error_code": 0, "responses": results}


def delete_share_group_offsets(session: KafkaSession, request: Request) -> Steps:
    """DELETE_SHARE_GROUP_OFFSETS: have a group without members forget topics."""
    name = request.fields["group_id"]
    _require_empty(session, name)
    results = []
    for topic in request.fields["topics"]:
        yield
        answer: Fields = {"topic_name": topic["topic_name"], "topic_id": NO_ID, "error_code": 0}
        with refusal_in(answer):
            config = require_topic(session.broker, session.principal, topic["topic_name"])
            answer["topic_id"] = topic_id(config)
            session.broker.queues.sharing.forget(session.principal, name, topic["topic_name"])
        results.append(answer)
    return {"error_code": 0, "responses": results}


# -- in a cluster ------------------------------------------------------------------------------


def _of_all(
    groups: Callable[[Fields], list[str]], handle: Callable[[KafkaSession, Request], Steps]
) -> Handler:
    """A handler that also asks the brokers that have other partitions."""

    def handler(session: KafkaSession, request: Request) -> Steps | None:
        agreement, fields = session.gateway.agreement, request.fields
        if agreement is None or not any(_is_here(session, each) for each in groups(fields)):
            return handle(session, request)

        async def ask() -> Fields:
            own, _ = await agreement.handled(lambda: handle(session, request))
            for results in await agreement.ask_others(ApiKey(request.key), request.version, fields):
                _merge(own, results)
            return own

        session.later(request, ask)
        return None

    return handler


def _merge(own: Fields, other: Fields) -> None:
    """Put what another broker tells of its partitions into an answer."""
    if own.get("error_code") == ErrorCode.NOT_LEADER_OR_FOLLOWER:
        own.update(other)
    for name, theirs in other.items():
        if isinstance(theirs, list):
            known = {_name_of(each): each for each in own[name]}
            for each in theirs:
                if _name_of(each) in known:
                    _merge(known[_name_of(each)], each)
                else:
                    own[name].append(each)


def _name_of(part: Fields) -> object:
    """What a part of an answer is about."""
    return part.get("group_id") or part.get("topic_name") or part.get("partition_index")


def _groups(fields: Fields) -> list[str]:
    return [each["group_id"] for each in fields["groups"]]


def _group(fields: Fields) -> list[str]:
    return [fields["group_id"]]


HANDLERS: dict[ApiKey, Handler] = {
    ApiKey.SHARE_GROUP_HEARTBEAT: share_group_heartbeat,
    ApiKey.SHARE_GROUP_DESCRIBE: share_group_describe,
    ApiKey.DESCRIBE_SHARE_GROUP_OFFSETS: _of_all(_groups, describe_share_group_offsets),
    ApiKey.ALTER_SHARE_GROUP_OFFSETS: _of_all(_group, alter_share_group_offsets),
    ApiKey.DELETE_SHARE_GROUP_OFFSETS: _of_all(_group, delete_share_group_offsets),
}
