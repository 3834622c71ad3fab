"""RabbitMQ's management API about clients of AMQP: their connections, and the channels of these."""

from typing import Any

from onelog.errors import QueueNotFoundError
from onelog.gateways import ChannelState, ClientState
from onelog.gateways.http.management_call import Call, pick
from onelog.gateways.http.management_nodes import NODE
from onelog.net.connection import Connection

Body = dict[str, Any]


def _connection(each: ClientState) -> Body:
    line = each.connection
    return {
        "name": connection_name(line),
        "peer_host": line.remote[0],
        "peer_port": line.remote[1],
        "host": line.local[0],
        "port": line.local[1],
        "protocol": "AMQP 0-9-1",
        "type": "network",
        "node": NODE,
        "channels": len(each.channels),
        "ssl": line.secure,
        **pick(each, "vhost user state channel_max frame_max timeout=heartbeat_seconds"),
        "connected_at": each.since_ms,
        "client_properties": dict(each.says),
    }


def connection_name(line: Connection) -> str:
    """What RabbitMQ calls a connection: both ends."""
    return f"{line.remote_address} -> {line.local[0]}:{line.local[1]}"


def _channel(call: Call, client: ClientState, each: ChannelState) -> Body:
    name = connection_name(client.connection)
    return {
        "name": f"{name} ({each.number})",
        "number": each.number,
        "vhost": client.vhost,
        "user": client.user,
        "node": NODE,
        "state": client.state,
        "consumer_count": len(each.consumers),
        **pick(each, "prefetch_count=prefetch global_prefetch_count=window"),
        **pick(each, "messages_unacknowledged=unacked messages_unconfirmed=unconfirmed"),
        "messages_uncommitted": 0,
        "confirm": each.mode == "confirm",
        "transactional": each.mode == "tx",
        "connection_details": {
            "name": name,
            "peer_host": client.connection.remote[0],
            "peer_port": client.connection.remote[1],
        },
        "message_stats": call.rates.of(
            each.channel,
            {
                "publish": each.published,
                "deliver_get": each.delivered,
                "ack": each.delivered - each.unacked,
            },
        ),
    }


async def connections(call: Call) -> list[Body]:
    """Those of AMQP."""
    found = [_connection(each) for each in call.clients()]
    return [
        each
        for each in found
        if call.path.get("name", each["name"]) == each["name"]
        and call.path.get("user", each["user"]) == each["user"]
    ]


async def get_connection(call: Call) -> Body:
    return _the_one(call, await connections(call))


async def channels(call: Call) -> list[Body]:
    """Those of all connections, or of one."""
    return [
        _channel(call, client, each)
        for client in call.clients()
        if call.path.get("of", connection_name(client.connection))
        == connection_name(client.connection)
        for each in client.channels
    ]


async def get_channel(call: Call) -> Body:
    return _the_one(call, await channels(call))


def _the_one(call: Call, found: list[Body]) -> Body:
    for each in found:
        if each["name"] == call.path["name"]:
            return each
    raise QueueNotFoundError(f"there is no {call.path['name']!r:.80}")


async def close_connection(call: Call) -> None:
    call.broker.users.check(call.principal, "alter", ("broker", "names"))
    for _, each in call.context.connections():
        if call.path["name"].startswith(f"{each.remote_address} "):
            each.close()
            return
    raise QueueNotFoundError(f"there is no connection {call.path['name']!r:.80}")
