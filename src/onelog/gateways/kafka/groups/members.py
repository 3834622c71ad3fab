"""Requests of members: joining, sharing out, staying and leaving, in Kafka's two protocols."""

from collections.abc import Iterator
from functools import partial

from onelog.core.membership.classic import Joined, Joining, Synced
from onelog.core.membership.consumers import Beat, Beaten
from onelog.core.membership.coordinator import CommittingMember
from onelog.errors import InvalidRequestError, MemberIdRequiredError, OnelogError
from onelog.gateways.kafka.names import topic_id
from onelog.gateways.kafka.session import Handler, KafkaSession, Request, Steps, refusal, refusal_in
from onelog.wire.kafka.codes import ApiKey
from onelog.wire.kafka.schema import Fields

_KNOWN_ID_VERSION = 4
"""From here on a new member first learns its id (KIP-394)."""
_SKIP_VERSION = 9


def member_of(fields: Fields, generation: str = "generation_id") -> CommittingMember:
    return CommittingMember(
        fields["member_id"], fields[generation], fields.get("group_instance_id")
    )


# -- the classic protocol ----------------------------------------------------------------------


def join_group(session: KafkaSession, request: Request) -> Fields | None:
    """JOIN_GROUP: answered when all members are there."""
    fields = request.fields
    session_ms: int = fields["session_timeout_ms"]
    settings = session.gateway.context.loaded.config.kafka
    joining = Joining(
        fields["group_id"],
        fields["member_id"],
        fields.get("group_instance_id"),
        request.client_id,
        f"/{session.host}",
        session_ms,
        fields.get("rebalance_timeout_ms", session_ms),
        fields["protocol_type"],
        [(each["name"], each["metadata"]) for each in fields["protocols"]],
        request.version >= _KNOWN_ID_VERSION,
        request.version >= _SKIP_VERSION,
        settings.session_min_ms,
        settings.initial_rebalance_delay_ms,
    )
    try:
        session.broker.groups.coordinator.join(
            session.principal, joining, partial(_joined, session, request)
        )
    except MemberIdRequiredError as error:
        return {**_not_joined(request, error), "member_id": str(error)}
    except OnelogError as error:
        return _not_joined(request, error)
    return None


def _not_joined(request: Request, error: OnelogError) -> Fields:
    return {
        **refusal(error),
        "protocol_name": None if request.version >= 7 else "",
        "member_id": request.fields["member_id"],
    }


def _joined(
    session: KafkaSession, request: Request, joined: Joined | None, error: OnelogError | None
) -> None:
    if joined is None:
        assert error is not None
        session.answer(request, _not_joined(request, error))
        return
    session.answer(
        request,
        {
            "error_code": 0,
            "generation_id": joined.generation,
            "protocol_type": joined.protocol_type,
            "protocol_name": joined.protocol,
            "leader": joined.leader,
            "skip_assignment": joined.skip_assignment,
            "member_id": joined.member_id,
            "members": [
                {"member_id": member_id, "group_instance_id": instance_id, "metadata": metadata}
                for member_id, instance_id, metadata in joined.members
            ],
        },
    )


def sync_group(session: KafkaSession, request: Request) -> None:
    """SYNC_GROUP: answered when the leader has shared out."""
    fields = request.fields
    assignments = [(each["member_id"], each["assignment"]) for each in fields["assignments"]]
    session.broker.groups.coordinator.sync(
        session.principal,
        fields["group_id"],
        member_of(fields),
        fields.get("protocol_type"),
        fields.get("protocol_name"),
        assignments,
        partial(_synced, session, request),
    )


def _synced(
    session: KafkaSession, request: Request, synced: Synced | None, error: OnelogError | None
) -> None:
    if synced is None:
        assert error is not None
        session.refuse(request, error)
        return
    protocol_type, protocol, assignment = synced
    session.answer(
        request,
        {
            "error_code": 0,
            "protocol_type": protocol_type,
            "protocol_name": protocol,
            "assignment": assignment,
        },
    )


def heartbeat(session: KafkaSession, request: Request) -> Fields:
    fields = request.fields
    session.broker.groups.coordinator.heartbeat(
        session.principal, fields["group_id"], member_of(fields)
    )
    return {"error_code": 0}


def leave_group(session: KafkaSession, request: Request) -> Steps:
    """LEAVE_GROUP, of one member or of several."""
    fields = request.fields
    group, coordinator = fields["group_id"], session.broker.groups.coordinator
    if request.version < 3:
        coordinator.leave(session.principal, group, CommittingMember(fields["member_id"]))
        return {"error_code": 0}
    results = []
    for each in fields["members"]:
        yield
        answer: Fields = {**each, "error_code": 0}
        with refusal_in(answer):
            member = CommittingMember(each["member_id"], -1, each["group_instance_id"])
            coordinator.leave(session.principal, group, member)
        results.append(answer)
    return {"error_code": 0, "members": results}


# -- the newer protocol ------------------------------------------------------------------------


def consumer_group_heartbeat(session: KafkaSession, request: Request) -> Steps:
    """CONSUMER_GROUP_HEARTBEAT: all that a member of the newer kind says, and hears."""
    fields = request.fields
    owned = fields["topic_partitions"]
    if not fields["member_id"] and (fields["member_epoch"] != 0 or request.version > 0):
        raise InvalidRequestError("a heartbeat needs the id of its member")
    yield from check_topics(session, fields["subscribed_topic_names"])
    beat = Beat(
        fields["group_id"],
        fields["member_id"],
        fields["member_epoch"],
        fields["instance_id"],
        fields["rack_id"],
        fields["rebalance_timeout_ms"] if fields["rebalance_timeout_ms"] != -1 else None,
        fields["subscribed_topic_names"],
        fields.get("subscribed_topic_regex"),
        fields["server_assignor"],
        None
        if owned is None
        else [
            (session.gateway.ids.name_of(topic["topic_id"]) or "", partition)
            for topic in owned
            for partition in topic["partitions"]
        ],
        request.client_id,
        f"/{session.host}",
    )
    return beaten_fields(session, session.broker.groups.coordinator.beat(session.principal, beat))


def beaten_fields(session: KafkaSession, beaten: Beaten) -> Fields:
    """The answer to a member's heartbeat."""
    answer: Fields = {
        "error_code": 0,
        "member_id": beaten.member_id,
        "member_epoch": beaten.epoch,
        "heartbeat_interval_ms": session.gateway.context.loaded.config.kafka.heartbeat_ms,
    }
    if beaten.assigned is not None:
        answer["assignment"] = {"topic_partitions": by_topic(session, beaten.assigned)}
    return answer


def check_topics(session: KafkaSession, topics: list[str] | None) -> Iterator[None]:
    """`NotPermittedError` if a member may not know of what it subscribes to, there or not."""
    for topic in topics or ():
        yield
        session.broker.users.check(session.principal, "describe", ("topic", topic))


def by_topic(session: KafkaSession, partitions: "frozenset[tuple[str, int]]") -> list[Fields]:
    """Partitions as Kafka lists them: by topic, with its id."""
    found: dict[str, list[int]] = {}
    for topic, partition in sorted(partitions):
        found.setdefault(topic, []).append(partition)
    results = []
    for topic, numbers in found.items():
        # A regular expression is about topics that they may know of.
        is_known = session.broker.users.may(session.principal, "describe", ("topic", topic))
        config = session.broker.topics.find(session.principal, topic) if is_known else None
        if config is not None:
            results.append(
                {"topic_id": topic_id(config), "topic_name": topic, "partitions": numbers}
            )
    return results


HANDLERS: dict[ApiKey, Handler] = {
    ApiKey.JOIN_GROUP: join_group,
    ApiKey.SYNC_GROUP: sync_group,
    ApiKey.HEARTBEAT: heartbeat,
    ApiKey.LEAVE_GROUP: leave_group,
    ApiKey.CONSUMER_GROUP_HEARTBEAT: consumer_group_heartbeat,
}
