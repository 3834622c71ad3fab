"""Exchanges, bindings and queues of AMQP's model; and where a message would go, and why."""

import asyncio
from random import Random
from typing import Any

from onelog.admin.broker.call import Call
from onelog.admin.operations import Done, Listing, fill, listed
from onelog.admin.routing import (
    BindingQuery,
    BindingSettings,
    ExchangeSettings,
    Hop,
    NewBinding,
    NewExchange,
    NewQueue,
    OneOfVhost,
    RouteQuery,
    RouteResult,
    VhostQuery,
    WorkQueueState,
)
from onelog.core.queues.queue import WorkQueue
from onelog.core.routing import arguments as argument_values
from onelog.core.routing.exchanges import Exchange, RoutingKeys, matcher_of
from onelog.errors import InvalidRequestError, QueueNotFoundError
from onelog.record.forms.amqp_fields import NO_PROPERTIES

EXPLAINED_MAX = 5_000
"""Bindings of an exchange that are looked at one by one."""


def _plain(arguments: Any) -> dict[str, Any]:
    return argument_values.to_json(dict(arguments or {}))


async def list_exchanges(call: Call, given: VhostQuery) -> Listing[ExchangeSettings]:
    """Exchanges of a vhost."""
    found = call.broker.publish.routing.exchanges(call.principal, given.vhost)
    return listed(found, given, _exchange)


def _exchange(each: Exchange) -> ExchangeSettings:
    return fill(
        ExchangeSettings,
        each,
        arguments=_plain(each.arguments),
        bindings=len(each.bindings),
    )


async def declare_exchange(call: Call, given: NewExchange) -> ExchangeSettings:
    """An exchange with these settings."""
    made = call.broker.publish.routing.declare_exchange(
        call.principal,
        given.vhost,
        given.name,
        given.kind,
        durable=given.durable,
        auto_delete=given.auto_delete,
        internal=given.internal,
        arguments=given.arguments,
    )
    return _exchange(made)


async def delete_exchange(call: Call, given: OneOfVhost) -> Done:
    """With its bindings."""
    routing = call.broker.publish.routing
    routing.exchange(call.principal, given.vhost, given.name)
    routing.delete_exchange(call.principal, given.vhost, given.name)
    return Done()


async def list_work_queues(call: Call, given: VhostQuery) -> Listing[WorkQueueState]:
    """Queues of a vhost."""
    found = call.broker.queues.declared.queues(call.principal, given.vhost)
    return listed(found, given, _queue)


def _queue(each: WorkQueue) -> WorkQueueState:
    return fill(
        WorkQueueState,
        each,
        arguments=_plain(each.arguments),
        consumers=len(each.consumers),
        topic=each.topic or None,
    )


async def declare_queue(call: Call, given: NewQueue) -> WorkQueueState:
    """A queue with these settings."""
    made = call.broker.queues.declared.declare(
        call.principal,
        given.vhost,
        given.name,
        durable=given.durable,
        auto_delete=given.auto_delete,
        arguments=given.arguments,
    )
    return _queue(made)


def _known(call: Call, given: OneOfVhost) -> str:
    queues = call.broker.queues.declared.queues(call.principal, given.vhost)
    if all(each.name != given.name for each in queues):
        raise QueueNotFoundError(f"no queue {given.name!r:.80} in vhost {given.vhost!r:.80}")
    return given.name


async def delete_queue(call: Call, given: OneOfVhost) -> Done:
    """With its messages."""
    call.broker.queues.declared.delete(call.principal, given.vhost, _known(call, given))
    return Done()


async def purge_queue(call: Call, given: OneOfVhost) -> Done:
    """Drop what waits in a queue."""
    call.broker.queues.declared.purge(call.principal, given.vhost, _known(call, given))
    return Done()


async def list_bindings(call: Call, given: BindingQuery) -> Listing[BindingSettings]:
    """Bindings of a vhost, or from one exchange."""
    found = call.broker.publish.routing.bindings(call.principal, given.vhost, given.source)
    items = [fill(BindingSettings, each, arguments=_plain(each.arguments)) for each in found]
    return Listing(items, len(items))


async def bind(call: Call, given: NewBinding) -> Done:
    """Lead messages from an exchange to a queue, an exchange or a topic; or no more."""
    routing = call.broker.publish.routing
    act = routing.unbind if given.remove else routing.bind
    act(
        call.principal,
        given.vhost,
        given.source,
        given.kind,
        given.destination,
        given.key,
        given.arguments,
    )
    return Done()


async def simulate_route(call: Call, given: RouteQuery) -> RouteResult:
    """Where would a message go, and why? Nothing is published."""
    routing = call.broker.publish.routing
    headers: dict[str, Any] = {}
    for part in filter(None, given.headers.split(",")):
        name, equals, value = part.partition("=")
        if not equals:
            raise InvalidRequestError("headers are written as name=value, between commas")
        headers[name.strip()] = int(value) if value.strip().lstrip("-").isdigit() else value.strip()
    targets = routing.route(call.principal, given.vhost, given.exchange, given.key, headers)
    hops: list[Hop] = []
    looked_up = RoutingKeys((given.key,), NO_PROPERTIES, lambda: headers)
    await _explain(
        call, routing.exchange(call.principal, given.vhost, given.exchange), looked_up, hops, set()
    )
    return RouteResult(sorted(each.name for each in targets), hops)


async def _explain(
    call: Call, exchange: Exchange, looked_up: RoutingKeys, hops: list[Hop], seen: set[str]
) -> None:
    if exchange.name in seen:
        return
    seen.add(exchange.name)
    routing = call.broker.publish.routing
    if not exchange.name:
        why = "the default exchange leads to the queue that the key names"
        hops.append(Hop("", "queue", looked_up.keys[0], why))
        return
    is_matched = False
    for number, binding in enumerate(list(exchange.bindings.values())[:EXPLAINED_MAX], 1):
        alone = matcher_of(exchange.kind, exchange.arguments, Random(0))
        alone.add(binding)
        if any(True for _ in alone.match(looked_up)):
            is_matched = True
            wanted = f"key {binding.key!r}" if binding.key else "any key"
            if binding.arguments:
                wanted += f", {_plain(binding.arguments)}"
            why = f"{exchange.kind} exchange, binding with {wanted}"
            hops.append(Hop(exchange.name, binding.kind, binding.destination, why))
            if binding.kind == "exchange":
                following = routing.exchange(call.principal, exchange.vhost, binding.destination)
                await _explain(call, following, looked_up, hops, seen)
        if number % 100 == 0:
            await asyncio.sleep(0)
    if not is_matched and exchange.alternate is not None:
        why = "no binding wants it: this is the alternate exchange"
        hops.append(Hop(exchange.name, "exchange", exchange.alternate, why))
        following = routing.exchange(call.principal, exchange.vhost, exchange.alternate)
        await _explain(call, following, looked_up, hops, seen)
