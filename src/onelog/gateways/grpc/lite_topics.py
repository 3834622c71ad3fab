"""Consumers of lite topics: each says which of them it wants, and is served from their queues.

A client tells the whole set, or what to add and take away (SyncLiteSubscription). The set is
forgotten with the client, which tells it again when it comes back. A message that is not
acknowledged in time comes again from its place.
"""

from functools import partial
from typing import TYPE_CHECKING, Any

from onelog.core.durable.waiting import Key
from onelog.core.queues.lease_ledger import IN_PLACE
from onelog.core.queues.lease_supply import LeaseRequest
from onelog.gateways import RefusedError
from onelog.gateways.grpc.answers import OK
from onelog.gateways.grpc.checks import group_name, topic_name
from onelog.gateways.grpc.clients import LITE_NAME_MAX, LITE_SUBSCRIPTIONS_MAX, GrpcClient
from onelog.rocketmq import lite
from onelog.wire.grpc import messages
from onelog.wire.grpc.codes import Code, LiteSubscriptionAction

if TYPE_CHECKING:
    from onelog.gateways.grpc.session import Call, Gateway


def sync(call: "Call", request: Any) -> Any:
    gateway = call.gateway
    topic, group = topic_name(gateway.broker, request.topic), group_name(request.group)
    gateway.broker.topics.require(call.principal, topic)
    gateway.broker.groups.require(call.principal, group)
    client = gateway.clients.find(call)
    if client is None or not client.is_lite:
        raise RefusedError(
            Code.UNRECOGNIZED_CLIENT_TYPE, "only a lite consumer has lite subscriptions"
        )
    named = set(request.lite_topic_set)
    for name in named:
        if not lite.is_legal(name, LITE_NAME_MAX):
            raise RefusedError(Code.ILLEGAL_LITE_TOPIC, f"{name[:80]!r} is no name of a lite topic")
    before = client.lite_topics.get(topic, set())
    if request.action == LiteSubscriptionAction.PARTIAL_ADD:
        wanted = before | named
    elif request.action == LiteSubscriptionAction.PARTIAL_REMOVE:
        wanted = before - named
    elif request.action == LiteSubscriptionAction.COMPLETE_ADD:
        wanted = named
    else:
        wanted = set()
    if len(wanted) > LITE_SUBSCRIPTIONS_MAX:
        raise RefusedError(
            Code.LITE_SUBSCRIPTION_QUOTA_EXCEEDED,
            f"more than {LITE_SUBSCRIPTIONS_MAX} lite topics of one client",
        )
    client.lite_topics[topic] = wanted
    if wanted != before:
        # What is held waits for the others; who asks again, waits for these.
        for held in list(client.receiving):
            gateway.broker.groups.channel_closed(held)
            held.answer_status(
                messages.Status(code=Code.MESSAGE_NOT_FOUND, message="no new message")
            )
    return messages.SyncLiteSubscriptionResponse(status=OK)


def request(
    gateway: "Gateway",
    client: GrpcClient,
    group: str,
    topic: str,
    count: int,
    invisible_ms: int,
) -> LeaseRequest:
    """What a lite consumer asks for."""
    gateway.pop.admit(group, topic, -1)
    keys = tuple(
        (lite.queue_name(topic, each), 0) for each in sorted(client.lite_topics.get(topic, ()))
    )
    return LeaseRequest(
        group,
        partial(_queue_keys, gateway, client, topic),
        keys or ((lite.queue_name(topic, ""), 0),),
        count,
        invisible_ms,
        IN_PLACE,
        from_last=True,
        bytes_max=gateway.broker.admin.config.pull_bytes_max,
    )


def _queue_keys(gateway: "Gateway", client: GrpcClient, topic: str) -> list[Key]:
    wanted = sorted(client.lite_topics.get(topic, ()))
    if wanted:
        first = gateway.context.random.randrange(len(wanted))
        wanted = wanted[first:] + wanted[:first]
    return [(lite.queue_name(topic, each), 0) for each in wanted]
