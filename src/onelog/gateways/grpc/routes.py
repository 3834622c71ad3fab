"""Where messages are sent to and received from: this broker, and the others of its cluster."""

import ipaddress
from collections.abc import Sequence
from typing import Any

from onelog.core.catalog.topics import PERM_READ, PERM_WRITE, TopicConfig
from onelog.gateways import RefusedError
from onelog.gateways.grpc.answers import OK
from onelog.gateways.grpc.checks import group_name, topic_name
from onelog.gateways.grpc.endpoints import OtherBroker
from onelog.gateways.grpc.session import Call
from onelog.rocketmq import message_types
from onelog.wire.grpc import messages
from onelog.wire.grpc.codes import AddressScheme, Code, MessageType, Permission

_ANY_QUEUE = -1
_MIXED = (MessageType.NORMAL, MessageType.FIFO, MessageType.DELAY, MessageType.TRANSACTION)
_ALL = (*_MIXED, MessageType.PRIORITY, MessageType.LITE)


def scheme_of(host: str) -> AddressScheme:
    """What kind of host that is."""
    try:
        address = ipaddress.ip_address(host)
    except ValueError:
        return AddressScheme.DOMAIN_NAME
    return AddressScheme.IPv4 if address.version == 4 else AddressScheme.IPv6


def accepted_types(config: TopicConfig) -> tuple[MessageType, ...]:
    """The types of messages that a topic takes."""
    named = message_types.of_topic(config) or "NORMAL"
    return _MIXED if named == message_types.MIXED else (MessageType[named],)


def permission_of(perm: int) -> Permission:
    """What may be done with a topic's queues."""
    readable, writable = bool(perm & PERM_READ), bool(perm & PERM_WRITE)
    if readable and writable:
        return Permission.READ_WRITE
    if readable:
        return Permission.READ
    return Permission.WRITE if writable else Permission.NONE


def _permissions(perm: int, read_queues: int, write_queues: int) -> list[Permission]:
    """What may be done with each queue of a topic."""
    both = min(read_queues, write_queues)
    wanted = permission_of(perm)
    if wanted == Permission.READ_WRITE:
        found = [Permission.READ] * (read_queues - both)
        found += [Permission.WRITE] * (write_queues - both)
        return found + [Permission.READ_WRITE] * both
    if wanted == Permission.NONE:
        return [wanted] * max(1, read_queues, write_queues)
    return [wanted] * (read_queues if wanted == Permission.READ else write_queues)


def query_route(call: Call, request: Any) -> None:
    """QueryRoute: the queues of all brokers that gRPC clients can reach."""
    broker = call.gateway.broker
    topic = topic_name(broker, request.topic)
    config = broker.topics.find(call.principal, topic)

    def found(others: Sequence[OtherBroker]) -> Any:
        answer = messages.QueryRouteResponse(status=OK)
        types = _ALL if config is None else accepted_types(config)
        for server, *queues in _servers(call, request, topic, config, others):
            for number, permission in enumerate(_permissions(*queues)):
                queue = answer.message_queues.add(
                    topic=request.topic, id=number, permission=permission, broker=server
                )
                queue.accept_message_types.extend(types)
        return answer

    call.gateway.endpoints.find(topic, lambda others: call.guard(lambda: found(others)))


def _servers(
    call: Call,
    request: Any,
    topic: str,
    config: TopicConfig | None,
    others: Sequence[OtherBroker],
) -> list[tuple[Any, int, int, int]]:
    """The brokers that have a topic: each with its permissions, read queues and write queues."""
    here = _own_broker(call, request.endpoints)
    own = here.endpoints.addresses[0].host
    servers = []
    if config is not None:
        servers.append((here, config.perm, config.read_queues, config.write_queues))
    elif not others:
        call.gateway.broker.topics.require(call.principal, topic)  # Which says that there is none.
    for each in others:
        # One on this machine is reached as this one is.
        host = own if each.host in ("127.0.0.1", "localhost", own) else each.host
        queues = each.queues
        server = _broker(each.name, host, each.port)
        servers.append((server, queues.perm, queues.read_queue_nums, queues.write_queue_nums))
    return servers


def _own_broker(call: Call, endpoints: Any) -> Any:
    """This broker, at the address by which the client came, if that is one address."""
    own = call.gateway.broker.admin.config
    host = own.client_host
    if len(endpoints.addresses) == 1 and own.host in ("", "0.0.0.0", "::"):
        host = endpoints.addresses[0].host or host
    return _broker(own.name, host, call.session.connection.local[1] or call.gateway.settings.port)


def _broker(name: str, host: str, port: int) -> Any:
    found = messages.Broker(name=name, id=0)
    found.endpoints.scheme = scheme_of(host)
    found.endpoints.addresses.add(host=host, port=port)
    return found


def query_assignment(call: Call, request: Any) -> None:
    """QueryAssignment: every member of a group reads everywhere, by leases."""
    broker = call.gateway.broker
    topic, group = topic_name(broker, request.topic), group_name(request.group)
    config = broker.topics.find(call.principal, topic)
    known = broker.groups.find(call.principal, group)
    ordered = known is not None and known.consume_message_orderly

    def found(others: Sequence[OtherBroker]) -> Any:
        answer = messages.QueryAssignmentResponse(status=OK)
        for server, perm, count, _ in _servers(call, request, topic, config, others):
            numbers = range(count) if ordered else (_ANY_QUEUE,)
            for number in numbers if count and perm & PERM_READ else ():
                answer.assignments.add().message_queue.MergeFrom(
                    messages.MessageQueue(
                        topic=request.topic,
                        id=number,
                        permission=permission_of(perm),
                        broker=server,
                    )
                )
        if not answer.assignments:
            raise RefusedError(Code.FORBIDDEN, "no readable queue")
        return answer

    call.gateway.endpoints.find(topic, lambda others: call.guard(lambda: found(others)))
