"""Exchanges, bindings and queues of AMQP's model; and where a message would go, and why."""

import asyncio
from random import Random
from typing import Annotated, Any, Literal

from msgspec import Meta, Struct

from onelog.admin.operations import Ask, Done, Limit, Listing, Name, Operation, paged
from onelog.core.queues.queue import WorkQueue
from onelog.core.routing import arguments as argument_values
from onelog.core.routing.exchanges import Exchange, RoutingKeys, matcher_of
from onelog.errors import InvalidRequestError, QueueNotFoundError
from onelog.record.forms.amqp_fields import NO_PROPERTIES

Vhost = Annotated[str, Meta(min_length=1, max_length=255)]
EXPLAINED_MAX = 5_000
"""Bindings of an exchange that are looked at one by one."""
_Text = Annotated[str, Meta(max_length=255)]


class VhostQuery(Struct, forbid_unknown_fields=True):
    """Of which vhost, and which of them."""

    vhost: Vhost = "/"
    q: Annotated[str, Meta(max_length=255, description="Only names that have this in them.")] = ""
    limit: Limit = 100
    after: Annotated[str, Meta(max_length=255, description="The `next` of the last page.")] = ""


class ExchangeSettings(Struct):
    """An exchange."""

    name: str
    vhost: str
    kind: str
    durable: bool
    auto_delete: bool
    internal: bool
    arguments: dict[str, Any]
    bindings: int


class NewExchange(Struct, forbid_unknown_fields=True):
    """An exchange to declare."""

    name: Name
    kind: Annotated[str, Meta(max_length=255)] = "direct"
    vhost: Vhost = "/"
    durable: bool = True
    auto_delete: bool = False
    internal: bool = False
    arguments: dict[str, Any] = {}


class WorkQueueState(Struct):
    """A queue, and what waits in it."""

    name: str
    vhost: str
    kind: str
    durable: bool
    exclusive: bool
    auto_delete: bool
    arguments: dict[str, Any]
    ready: int
    unacked: int
    ready_bytes: int
    consumers: int
    topic: str | None
    """The topic that has its messages, if they are in the log."""


class NewQueue(Struct, forbid_unknown_fields=True):
    """A queue to declare."""

    name: Name
    vhost: Vhost = "/"
    durable: bool = True
    auto_delete: bool = False
    arguments: dict[str, Any] = {}


class BindingQuery(Struct, forbid_unknown_fields=True):
    """Of which vhost, and from which exchange."""

    vhost: Vhost = "/"
    source: _Text | None = None


class BindingSettings(Struct):
    """What leads from an exchange to a queue, an exchange or a topic."""

    source: str
    kind: str
    destination: str
    key: str
    arguments: dict[str, Any]


class NewBinding(Struct, forbid_unknown_fields=True):
    """A binding to make, or to undo."""

    source: Name
    destination: Name
    kind: Literal["queue", "exchange", "topic"] = "queue"
    key: _Text = ""
    vhost: Vhost = "/"
    arguments: dict[str, Any] = {}
    remove: bool = False


class RouteQuery(Struct, forbid_unknown_fields=True):
    """A message that could be published."""

    exchange: _Text = ""
    key: _Text = ""
    vhost: Vhost = "/"
    headers: Annotated[str, Meta(max_length=2_000, description="name=value, between commas")] = ""


class Hop(Struct):
    """One step on the way: which binding leads on, or why another one does."""

    source: str
    kind: str
    destination: str
    why: str


class RouteResult(Struct):
    """Where it would go, and why."""

    queues: list[str]
    hops: list[Hop]


def _plain(arguments: Any) -> dict[str, Any]:
    return argument_values.to_json(dict(arguments or {}))


async def list_exchanges(ask: Ask) -> Listing[ExchangeSettings]:
    """Exchanges of a vhost."""
    query: VhostQuery = ask.query
    found = ask.context.broker.routing.exchanges(ask.principal, query.vhost)
    known = {each.name: each for each in found if query.q.lower() in each.name.lower()}
    page, following = paged(sorted(known), query.limit, query.after)
    return Listing([_exchange(known[name]) for name in page], len(known), following)


def _exchange(each: Exchange) -> ExchangeSettings:
    return ExchangeSettings(
        each.name,
        each.vhost,
        each.kind,
        each.durable,
        each.auto_delete,
        each.internal,
        _plain(each.arguments),
        len(each.bindings),
    )


async def declare_exchange(ask: Ask) -> ExchangeSettings:
    """An exchange with these settings."""
    body: NewExchange = ask.body
    made = ask.context.broker.routing.declare_exchange(
        ask.principal,
        body.vhost,
        body.name,
        body.kind,
        durable=body.durable,
        auto_delete=body.auto_delete,
        internal=body.internal,
        arguments=body.arguments,
    )
    return _exchange(made)


async def delete_exchange(ask: Ask) -> Done:
    """With its bindings."""
    routing = ask.context.broker.routing
    routing.exchange(ask.principal, ask.query.vhost, ask.path["name"])
    routing.delete_exchange(ask.principal, ask.query.vhost, ask.path["name"])
    return Done()


async def list_work_queues(ask: Ask) -> Listing[WorkQueueState]:
    """Queues of a vhost."""
    query: VhostQuery = ask.query
    found = ask.context.broker.workqueues.queues(ask.principal, query.vhost)
    known = {each.name: each for each in found if query.q.lower() in each.name.lower()}
    page, following = paged(sorted(known), query.limit, query.after)
    return Listing([_queue(known[name]) for name in page], len(known), following)


def _queue(each: WorkQueue) -> WorkQueueState:
    return WorkQueueState(
        each.name,
        each.vhost,
        each.kind,
        each.durable,
        each.exclusive,
        each.auto_delete,
        _plain(each.arguments),
        each.ready,
        each.unacked,
        each.ready_bytes,
        len(each.consumers),
        each.topic or None,
    )


async def declare_queue(ask: Ask) -> WorkQueueState:
    """A queue with these settings."""
    body: NewQueue = ask.body
    made = ask.context.broker.workqueues.declare(
        ask.principal,
        body.vhost,
        body.name,
        durable=body.durable,
        auto_delete=body.auto_delete,
        arguments=body.arguments,
    )
    return _queue(made)


def _require(ask: Ask) -> str:
    name, vhost = ask.path["name"], ask.query.vhost
    if name not in {
        each.name for each in ask.context.broker.workqueues.queues(ask.principal, vhost)
    }:
        raise QueueNotFoundError(f"no queue {name!r:.80} in vhost {vhost!r:.80}")
    return name


async def delete_queue(ask: Ask) -> Done:
    """With its messages."""
    ask.context.broker.workqueues.delete(ask.principal, ask.query.vhost, _require(ask))
    return Done()


async def purge_queue(ask: Ask) -> Done:
    """Drop what waits in a queue."""
    ask.context.broker.workqueues.purge(ask.principal, ask.query.vhost, _require(ask))
    return Done()


async def list_bindings(ask: Ask) -> Listing[BindingSettings]:
    """Bindings of a vhost, or from one exchange."""
    query: BindingQuery = ask.query
    found = ask.context.broker.routing.bindings(ask.principal, query.vhost, query.source)
    items = [
        BindingSettings(each.source, each.kind, each.destination, each.key, _plain(each.arguments))
        for each in found
    ]
    return Listing(items, len(items))


async def bind(ask: Ask) -> Done:
    """Lead messages from an exchange to a queue, an exchange or a topic; or no more."""
    body: NewBinding = ask.body
    routing = ask.context.broker.routing
    act = routing.unbind if body.remove else routing.bind
    act(
        ask.principal,
        body.vhost,
        body.source,
        body.kind,
        body.destination,
        body.key,
        body.arguments,
    )
    return Done()


async def simulate_route(ask: Ask) -> RouteResult:
    """Where would a message go, and why? Nothing is published."""
    query: RouteQuery = ask.query
    routing = ask.context.broker.routing
    headers: dict[str, Any] = {}
    for part in filter(None, query.headers.split(",")):
        name, equals, value = part.partition("=")
        if not equals:
            raise InvalidRequestError("headers are written as name=value, between commas")
        headers[name.strip()] = int(value) if value.strip().lstrip("-").isdigit() else value.strip()
    targets = routing.route(ask.principal, query.vhost, query.exchange, query.key, headers)
    hops: list[Hop] = []
    looked_up = RoutingKeys((query.key,), NO_PROPERTIES, lambda: headers)
    await _explain(
        ask, routing.exchange(ask.principal, query.vhost, query.exchange), looked_up, hops, set()
    )
    return RouteResult(sorted(each.name for each in targets), hops)


async def _explain(
    ask: Ask, exchange: Exchange, looked_up: RoutingKeys, hops: list[Hop], seen: set[str]
) -> None:
    if exchange.name in seen:
        return
    seen.add(exchange.name)
    routing = ask.context.broker.routing
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
                following = routing.exchange(ask.principal, exchange.vhost, binding.destination)
                await _explain(ask, following, looked_up, hops, seen)
        if number % 100 == 0:
            await asyncio.sleep(0)
    if not is_matched and exchange.alternate is not None:
        why = "no binding wants it: this is the alternate exchange"
        hops.append(Hop(exchange.name, "exchange", exchange.alternate, why))
        following = routing.exchange(ask.principal, exchange.vhost, exchange.alternate)
        await _explain(ask, following, looked_up, hops, seen)


OPERATIONS = [
    Operation(
        "GET",
        "/v1/exchanges",
        "List exchanges",
        list_exchanges,
        Listing[ExchangeSettings],
        VhostQuery,
    ),
    Operation(
        "POST",
        "/v1/exchanges",
        "Declare an exchange",
        declare_exchange,
        ExchangeSettings,
        body=NewExchange,
        status=201,
        example={"name": "shop", "kind": "topic"},
    ),
    Operation(
        "DELETE", "/v1/exchanges/{name}", "Delete an exchange", delete_exchange, Done, VhostQuery
    ),
    Operation(
        "GET",
        "/v1/queues",
        "List declared queues",
        list_work_queues,
        Listing[WorkQueueState],
        VhostQuery,
    ),
    Operation(
        "POST",
        "/v1/queues",
        "Declare a queue",
        declare_queue,
        WorkQueueState,
        body=NewQueue,
        status=201,
        example={"name": "jobs", "arguments": {"x-max-length": 1000}},
    ),
    Operation("DELETE", "/v1/queues/{name}", "Delete a queue", delete_queue, Done, VhostQuery),
    Operation(
        "DELETE", "/v1/queues/{name}/messages", "Empty a queue", purge_queue, Done, VhostQuery
    ),
    Operation(
        "GET",
        "/v1/bindings",
        "List bindings",
        list_bindings,
        Listing[BindingSettings],
        BindingQuery,
    ),
    Operation(
        "POST",
        "/v1/bindings",
        "Bind, or unbind",
        bind,
        Done,
        body=NewBinding,
        example={"source": "shop", "destination": "jobs", "key": "order.*"},
    ),
    Operation(
        "GET",
        "/v1/route",
        "Where a message would go, and why",
        simulate_route,
        RouteResult,
        RouteQuery,
    ),
]
