"""RabbitMQ's management API about the broker itself: its node, its memory, its name."""

import socket
from typing import Any

from starlette.responses import Response

from onelog.errors import BrokerNotFoundError, InvalidRequestError, KeyNotFoundError
from onelog.gateways.http.management_call import Call
from onelog.gateways.http.requests import answer
from onelog.metrics import process_state

NODE = f"onelog@{socket.gethostname()}"
Body = dict[str, Any]
_NOT_HERE = (
    "connection_readers",
    "connection_writers",
    "connection_channels",
    "connection_other",
    "queue_slave_procs",
    "quorum_queue_procs",
    "quorum_queue_dlx_procs",
    "stream_queue_procs",
    "stream_queue_replica_reader_procs",
    "stream_queue_coordinator_procs",
    "plugins",
    "metrics",
    "mgmt_db",
    "mnesia",
    "quorum_ets",
    "other_ets",
    "binary",
    "msg_index",
    "code",
    "atom",
    "other_system",
    "allocated_unused",
    "reserved_unallocated",
)
"""Parts of RabbitMQ's memory that a process of Python does not tell apart."""


async def nodes(call: Call) -> list[Body]:
    log = call.broker.admin.log_state(call.principal)
    started = call.broker.admin.state(call.principal).started_ms
    process, config = process_state(), call.broker.admin.config
    return [
        {
            "name": NODE,
            "type": "disc",
            "running": True,
            "mem_used": process.memory_bytes,
            "mem_limit": config.memory_queue_bytes_max,
            "mem_alarm": call.broker.queues.declared.memory_is_high,
            "fd_used": process.open_files,
            "disk_free_alarm": bool(call.broker.admin.refusal(call.principal)),
            "disk_used_percent": log.disk_percent,
            "partitions": [],
            "rates_mode": "basic",
            "uptime": call.context.clock.now_ms() - started,
        }
    ]


async def get_node(call: Call) -> Body:
    """The node that the path names."""
    (found,) = await nodes(call)
    if call.path["node"] != NODE:
        raise BrokerNotFoundError(f"there is no node {call.path['node']!r:.80}")
    return found


async def memory(call: Call) -> Body:
    """What the process takes, in bytes: declared queues in memory, and all the rest."""
    total, parts = await _parts(call)
    totals = dict.fromkeys(("erlang", "rss", "allocated"), total)
    return {"memory": {**parts, "strategy": "rss", "total": totals}}


async def relative_memory(call: Call) -> Body:
    """The same in hundredths."""
    total, parts = await _parts(call)
    shares = {name: -(-part * 100 // max(1, total)) for name, part in parts.items()}
    return {"memory": {"total": 100, **shares}}


async def _parts(call: Call) -> tuple[int, dict[str, int]]:
    await get_node(call)
    total, queues = process_state().memory_bytes, call.broker.queues.declared.memory_bytes
    parts = dict.fromkeys(_NOT_HERE, 0)
    return total, {**parts, "queue_procs": queues, "other_proc": max(0, total - queues)}


async def cluster_name(call: Call) -> Body:
    return {"name": call.broker.admin.config.cluster or call.broker.admin.config.name}


async def global_parameters(call: Call) -> list[Body]:
    return [{"name": "cluster_name", "value": (await cluster_name(call))["name"]}]


async def global_parameter(call: Call) -> Body:
    """The one that the path names."""
    for each in await global_parameters(call):
        if each["name"] == call.path["name"]:
            return each
    raise KeyNotFoundError(f"there is no global parameter {call.path['name']!r:.80}")


def listeners(call: Call) -> dict[str, tuple[str, int]]:
    """Where clients connect, by RabbitMQ's name for the protocol."""
    config = call.context.loaded.config
    ports = {
        "amqp": config.amqp.port,
        "http": config.http.port,
        "mqtt": config.mqtt.port,
        "stomp": config.stomp.port,
    }
    return {name: (config.broker.host, port) for name, port in ports.items() if port}


async def alive(call: Call) -> Body | Response:
    """Whether messages are taken."""
    if "vhost" in call.path:
        _ = call.vhosts
    if refusal := call.broker.admin.refusal(call.principal):
        return _failed(refusal)
    return {"status": "ok"}


async def listens(call: Call) -> Body | Response:
    """Whether there is a port of a number, or of a protocol."""
    call.broker.admin.state(call.principal)
    found = listeners(call)
    if (name := call.path.get("protocol")) is not None:
        if name.removesuffix("091").removesuffix("0-9-1") in found:
            return {"status": "ok", "protocol": name}
        return _failed("No active listener", missing=name, protocols=[*found])
    port, ports = call.path["port"], [port for _, port in found.values()]
    if not port.isdecimal():
        raise InvalidRequestError("Invalid port: it is no number")
    if int(port) in ports:
        return {"status": "ok", "port": int(port)}
    return _failed("No active listener", missing=int(port), ports=ports)


def _failed(reason: str, **more: Any) -> Response:
    return answer({"status": "failed", "reason": reason, **more}, 503)


async def auth(call: Call) -> Body:
    """How people log in to the console: by name and password, not by another server."""
    return {
        "enable_uaa": False,
        "uaa_client_id": "",
        "uaa_location": "",
        "oauth_enabled": False,
    }
