"""What administrators ask about groups: which there are, who is in them; and deleting them."""

from collections.abc import Callable, Generator

from onelog.core.membership.classic import ClassicGroup
from onelog.core.membership.consumers import ConsumerGroup, ConsumerMember
from onelog.core.membership.coordinator import CLASSIC
from onelog.errors import GroupNotFoundError, OnelogError
from onelog.gateways.kafka.error_codes import error_code
from onelog.gateways.kafka.groups.members import by_topic
from onelog.gateways.kafka.session import Handler, KafkaSession, Request, Steps, refusal_in
from onelog.wire.kafka.codes import ApiKey, ErrorCode
from onelog.wire.kafka.schema import Fields

ALL_OPERATIONS = 0x148
"""Of a group: read, delete, describe."""
_CLASSIC_TYPE, _CONSUMER_TYPE = 0, 1


def list_groups(session: KafkaSession, request: Request) -> Steps:
    """LIST_GROUPS, of some states or types if the request says so."""
    states = {each.lower() for each in request.fields.get("states_filter", ())}
    kinds = {each.lower() for each in request.fields.get("types_filter", ())}
    groups: list[Fields] = []
    for each in session.broker.groups.coordinator.listed(session.principal):
        yield
        if (
            session.gateway.cluster.is_listed(each.name)
            and (not states or each.state.lower() in states)
            and (not kinds or each.kind in kinds)
        ):
            state = {"group_state": each.state, "group_type": each.kind}
            groups.append({"group_id": each.name, "protocol_type": each.protocol_type, **state})
    return {"error_code": 0, "groups": groups}


def describe_groups(session: KafkaSession, request: Request) -> Steps:
    """DESCRIBE_GROUPS: those of the classic kind."""
    coordinator, principal = session.broker.groups.coordinator, session.principal
    results = []
    for name in request.fields["groups"]:
        yield
        answer: Fields = {"error_code": 0, "group_id": name, "group_state": "Dead"}
        try:
            group = coordinator.classic_group(principal, name)
            if group is not None:
                answer |= _classic(group)
            elif (
                coordinator.consumer_group(principal, name) is None
                and coordinator.share_group(principal, name) is None
                and coordinator.has_positions(principal, name)
            ):
                answer["group_state"] = "Empty"
            elif request.version >= 6:
                reason = f"there is no {CLASSIC} group {name!r}"
                answer |= {"error_code": ErrorCode.GROUP_ID_NOT_FOUND, "error_message": reason}
        except OnelogError as error:
            answer["error_code"] = error_code(error)
        if request.fields.get("include_authorized_operations"):
            answer["authorized_operations"] = session.operations("group", name, ALL_OPERATIONS)
        results.append(answer)
    return {"groups": results}


def _classic(group: ClassicGroup) -> Fields:
    return {
        "group_state": group.state.value,
        "protocol_type": group.protocol_type,
        "protocol_data": group.protocol,
        "members": [
            {
                "member_id": each.member_id,
                "group_instance_id": each.instance_id,
                "client_id": each.client_id,
                "client_host": each.client_host,
                "member_metadata": each.metadata(group.protocol),
                "member_assignment": each.assignment,
            }
            for each in group.members.values()
        ],
    }


def consumer_group_describe(session: KafkaSession, request: Request) -> Steps:
    """CONSUMER_GROUP_DESCRIBE: those of the newer kind."""

    def describe(name: str) -> Fields:
        group = session.broker.groups.coordinator.consumer_group(session.principal, name)
        if group is None:
            raise GroupNotFoundError(f"there is no group {name!r} of the newer protocol")
        return _newer(session, group)

    return (yield from described_each(session, request, describe))


def described_each(
    session: KafkaSession, request: Request, describe: Callable[[str], Fields]
) -> Generator[None, None, Fields]:
    """What is to be said of each group that a request names."""
    results = []
    for name in request.fields["group_ids"]:
        yield
        answer: Fields = {"error_code": 0, "group_id": name, "group_state": "Dead"}
        with refusal_in(answer):
            answer |= describe(name)
        if request.fields["include_authorized_operations"]:
            answer["authorized_operations"] = session.operations("group", name, ALL_OPERATIONS)
        results.append(answer)
    return {"groups": results}


def _newer(session: KafkaSession, group: ConsumerGroup) -> Fields:
    return {
        "group_state": group.state,
        "group_epoch": group.epoch,
        "assignment_epoch": group.assignment_epoch,
        "assignor_name": group.assignor,
        "members": [_newer_member(session, group, each) for each in group.members.values()],
    }


def _newer_member(session: KafkaSession, group: ConsumerGroup, member: ConsumerMember) -> Fields:
    target = group.target.get(member.member_id, frozenset())
    return {
        "member_id": member.member_id,
        "instance_id": member.instance_id,
        "rack_id": member.rack,
        "member_epoch": member.epoch,
        "client_id": member.client_id,
        "client_host": member.client_host,
        "subscribed_topic_names": list(member.topics),
        "subscribed_topic_regex": member.regex or None,
        "assignment": {"topic_partitions": by_topic(session, member.assigned)},
        "target_assignment": {"topic_partitions": by_topic(session, target)},
        "member_type": _CLASSIC_TYPE if member.protocols else _CONSUMER_TYPE,
    }


def delete_groups(session: KafkaSession, request: Request) -> Steps:
    """DELETE_GROUPS: those without members."""
    results = []
    for name in request.fields["groups_names"]:
        yield
        answer: Fields = {"group_id": name, "error_code": 0}
        with refusal_in(answer):
            session.require_administrator()
            coordinator = session.broker.groups.coordinator
            is_shared = coordinator.share_group(session.principal, name) is not None
            coordinator.delete(session.principal, name)
            if is_shared and session.gateway.agreement is not None:
                session.gateway.agreement.forget_group(name)
        results.append(answer)
    return {"results": results}


HANDLERS: dict[ApiKey, Handler] = {
    ApiKey.LIST_GROUPS: list_groups,
    ApiKey.DESCRIBE_GROUPS: describe_groups,
    ApiKey.CONSUMER_GROUP_DESCRIBE: consumer_group_describe,
    ApiKey.DELETE_GROUPS: delete_groups,
}
