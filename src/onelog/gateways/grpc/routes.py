"""Where messages are sent to and received from: this broker, and the others of its cluster."""

import ipaddress
from typing import Any

from onelog.core.catalog.topics import TopicConfig
from onelog.gateways.grpc.answers import OK, RefusedError
from onelog.gateways.grpc.checks import group_name, topic_name
from onelog.gateways.grpc.session import Call
from onelog.rocketmq import message_types
from onelog.wire.grpc import messages
from onelog.wire.grpc.codes import AddressScheme, Code, MessageType, Permission

_ANY_QUEUE = -1
_MIXED = (MessageType.NORMAL, MessageType.FIFO, MessageType.DELAY, MessageType.TRANSACTION)


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


def permission_of(config: TopicConfig) -> Permission:
    """What may be done with a topic's queues."""
    if config.readable and config.writable:
        return Permission.READ_WRITE
    if config.readable:
        return Permission.READ
    return Permission.WRITE if config.writable else Permission.NONE


def query_route(call: Call, request: Any) -> Any:
    """QueryRoute."""
    broker = call.gateway.broker
    config = broker.topic(call.who, topic_name(broker, request.topic))
    answer = messages.QueryRouteResponse(status=OK)
    types = accepted_types(config)
    both = min(config.read_queues, config.write_queues)
    wanted = permission_of(config)
    if wanted == Permission.READ_WRITE:
        permissions = [Permission.READ] * (config.read_queues - both)
        permissions += [Permission.WRITE] * (config.write_queues - both)
        permissions += [Permission.READ_WRITE] * both
    elif wanted == Permission.NONE:
        permissions = [wanted] * max(1, config.queues)
    else:
        is_read = wanted == Permission.READ
        permissions = [wanted] * (config.read_queues if is_read else config.write_queues)
    here = _here(call, request.endpoints)
    for number, permission in enumerate(permissions):
        queue = answer.message_queues.add(
            topic=request.topic, id=number, permission=permission, broker=here
        )
        queue.accept_message_types.extend(types)
    return answer


def _here(call: Call, asked: Any) -> Any:
    """This broker, at the address by which the client came, if that is one address."""
    own = call.gateway.broker.config
    host = own.client_host
    found = messages.Broker(name=own.name, id=0)
    if len(asked.addresses) == 1 and own.host in ("", "0.0.0.0", "::"):
        host = asked.addresses[0].host or host
    port = call.session.connection.local[1] or call.gateway.settings.port
    found.endpoints.scheme = scheme_of(host)
    found.endpoints.addresses.add(host=host, port=port)
    return found


def query_assignment(call: Call, request: Any) -> Any:
    """QueryAssignment: every member of a group reads everywhere, by leases."""
    broker = call.gateway.broker
    topic, group = topic_name(broker, request.topic), group_name(request.group)
    config = broker.topic(call.who, topic)
    if not config.readable or not config.read_queues:
        raise RefusedError(Code.FORBIDDEN, "no readable queue")
    known = broker.find_group(call.who, group)
    ordered = known is not None and known.consume_message_orderly
    answer = messages.QueryAssignmentResponse(status=OK)
    here = _here(call, request.endpoints)
    for number in range(config.read_queues) if ordered else (_ANY_QUEUE,):
        answer.assignments.add().message_queue.MergeFrom(
            messages.MessageQueue(
                topic=request.topic, id=number, permission=permission_of(config), broker=here
            )
        )
    return answer
