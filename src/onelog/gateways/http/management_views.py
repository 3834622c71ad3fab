"""What exchanges, queues, bindings and consumers look like in RabbitMQ's management API.

Definitions are all of them that were declared, as one document, which can be loaded again.
"""

from functools import partial

from onelog import __version__
from onelog.core.queues.consumers import Consumer
from onelog.core.queues.policies import Policies
from onelog.core.queues.queue import WorkQueue
from onelog.core.routing.exchanges import Binding, Exchange
from onelog.errors import InvalidRequestError
from onelog.gateways import RABBITMQ_VERSION
from onelog.gateways.http.management_call import Body, Call, pick
from onelog.gateways.http.management_clients import connection_name
from onelog.gateways.http.management_nodes import NODE
from onelog.gateways.http.policies import put, shown
from onelog.gateways.http.requests import in_turns

_QUEUE = "name vhost durable type=kind auto_delete exclusive arguments"
_CONSUMER = "consumer_tag=tag exclusive priority prefetch_count=prefetch active=is_active"
_STATS = "publish=published deliver_get=delivered deliver=delivered ack=acked redeliver=redelivered"


def exchange(each: Exchange, policies: Policies) -> Body:
    policy = policies.of_exchange(each)
    return {
        **({"policy": policy.name} if policy else {}),
        **pick(each, "name vhost type=kind durable auto_delete internal arguments"),
        "user_who_performed_action": "",
    }


def queue_stats(each: WorkQueue) -> dict[str, int]:
    return pick(each, _STATS)


def queue(call: Call, each: WorkQueue) -> Body:
    policies = call.broker.queues.declared.policies
    policy, limits = policies.of_queue("policy", each), policies.of_queue("operator", each)
    return {
        "policy": policy and policy.name,
        "operator_policy": limits and limits.name,
        "effective_policy_definition": policies.effective(each) if policy or limits else {},
        "message_stats": call.rates.of(each, queue_stats(each)),
        **pick(each, _QUEUE),
        "node": NODE,
        "state": "running",
        "consumers": len(each.consumers),
        "messages": each.ready + each.unacked,
        "message_bytes": each.ready_bytes + each.unacked_bytes,
        **pick(each, "messages_ready=ready messages_unacknowledged=unacked"),
        **pick(each, "message_bytes_ready=ready_bytes message_bytes_unacknowledged=unacked_bytes"),
    }


def binding(vhost: str, each: Binding) -> Body:
    names = "source destination destination_type=kind routing_key=key arguments properties_key"
    return {"vhost": vhost, **pick(each, names)}


def consumer(of: WorkQueue, each: Consumer, where: dict[object, Body]) -> Body:
    return {
        **pick(each, _CONSUMER),
        "ack_required": not each.no_ack,
        "queue": pick(of, "name vhost"),
        "activity_status": "up" if each.is_active else "waiting",
        "arguments": dict(each.arguments),
        "channel_details": where.get(each, {}),
    }


def channels_of(call: Call) -> dict[object, Body]:
    """The channel of every consumer."""
    return {
        consumer: {
            "name": f"{connection_name(client.connection)} ({channel.number})",
            "number": channel.number,
            "connection_name": connection_name(client.connection),
            "peer_host": client.connection.remote[0],
            "peer_port": client.connection.remote[1],
            "user": client.user,
            "node": NODE,
        }
        for client in call.clients()
        for channel in client.channels
        for consumer in channel.consumers
    }


_KEPT = ("name", "vhost", "durable", "auto_delete", "arguments")
"""Of a queue."""


async def export(call: Call) -> Body:
    """All that was declared and outlives a restart."""
    routing, queues = call.broker.publish.routing, call.broker.queues.declared
    made: Body = {
        "rabbit_version": RABBITMQ_VERSION,
        "rabbitmq_version": RABBITMQ_VERSION,
        "product_name": "OneLog",
        "product_version": __version__,
        "users": [],
        "permissions": [],
        "topic_permissions": [],
        "parameters": [],
        "global_parameters": [],
        "policies": [],
        "vhosts": [{"name": each} for each in call.vhosts],
        "queues": [],
        "exchanges": [],
        "bindings": [],
    }
    listed = call.broker.queues.declared.policies.listed
    made["policies"] = [shown(each) for each in listed(call.principal, "policy", call.vhosts)]
    for vhost in call.vhosts:
        declared = queues.queues(call.principal, vhost)
        made["queues"] += await in_turns(
            (each for each in declared if each.durable and not each.exclusive),
            lambda each: {
                name: value for name, value in queue(call, each).items() if name in _KEPT
            },
        )
        exchanges = routing.exchanges(call.principal, vhost)
        found = await in_turns(
            (each for each in exchanges if each.durable and not each.is_predeclared),
            lambda each: exchange(each, queues.policies),
        )
        for described in found:
            described.pop("policy", None)
        made["exchanges"] += found
        bindings = routing.bindings(call.principal, vhost)
        made["bindings"] += await in_turns(
            (each for each in bindings if each.source and each.durable), partial(binding, vhost)
        )
    return made


async def load(call: Call) -> bool:
    """Declare all that definitions name, which may be RabbitMQ's own."""
    if "vhost" in call.path:
        _ = call.vhosts
    routing = call.broker.publish.routing
    try:
        for each in _listed(call, "vhosts"):
            if not routing.is_open_to(call.principal, each["name"]):
                routing.declare_vhost(call.principal, each["name"])
        await in_turns(_listed(call, "exchanges"), partial(_load_exchange, call))
        await in_turns(_listed(call, "queues"), partial(_load_queue, call))
        await in_turns(_listed(call, "bindings"), partial(_load_binding, call))
        for each in _listed(call, "policies"):
            put(call, "policy", _vhost_of(call, each), each["name"], each)
    except (KeyError, TypeError, AttributeError) as error:
        raise InvalidRequestError(f"these are no definitions: {error!r}") from None
    return False


def _load_exchange(call: Call, each: Body) -> None:
    call.broker.publish.routing.declare_exchange(
        call.principal,
        _vhost_of(call, each),
        each["name"],
        each["type"],
        durable=each.get("durable", True),
        auto_delete=each.get("auto_delete", False),
        internal=each.get("internal", False),
        arguments=each.get("arguments") or {},
    )


def _load_queue(call: Call, each: Body) -> None:
    call.broker.queues.declared.declare(
        call.principal,
        _vhost_of(call, each),
        each["name"],
        durable=each.get("durable", True),
        auto_delete=each.get("auto_delete", False),
        arguments=each.get("arguments") or {},
    )


def _load_binding(call: Call, each: Body) -> None:
    call.broker.publish.routing.bind(
        call.principal,
        _vhost_of(call, each),
        each["source"],
        each["destination_type"],
        each["destination"],
        each.get("routing_key", ""),
        each.get("arguments") or {},
    )


def _vhost_of(call: Call, each: Body) -> str:
    """Exports of one vhost do not name it."""
    return str(each.get("vhost") or call.vhost)


def _listed(call: Call, name: str) -> list[Body]:
    found = call.body.get(name) or []
    if not isinstance(found, list) or not all(isinstance(each, dict) for each in found):
        raise InvalidRequestError(f"{name} must be a list of objects")
    return found
