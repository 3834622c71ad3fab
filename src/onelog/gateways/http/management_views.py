"""What exchanges, queues, bindings and consumers look like in RabbitMQ's management API."""

from onelog.core.queues.consumers import Consumer
from onelog.core.queues.policies import Policies
from onelog.core.queues.queue import WorkQueue
from onelog.core.routing.exchanges import Binding, Exchange
from onelog.gateways.http.management_call import Body, Call, pick
from onelog.gateways.http.management_clients import connection_name
from onelog.gateways.http.management_nodes import NODE

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
