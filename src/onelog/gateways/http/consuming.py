"""Consuming by a group: messages are leased, and acknowledged by their receipts.

    POST /v1/topics/TOPIC/groups/GROUP/consume?count=10&wait_ms=10000&lease_ms=30000
    POST /v1/topics/TOPIC/groups/GROUP/ack?receipt=R        done; also {"receipts": [R, ...]}
    POST /v1/topics/TOPIC/groups/GROUP/nack?receipt=R       for somebody else, at once
    POST /v1/topics/TOPIC/groups/GROUP/extend?receipt=R&lease_ms=60000

With `raw=true` one message is the body of the answer; its key, headers and receipt are headers.
What nobody acknowledges in time is to be had again, by any member, also over RocketMQ's POP.
"""

import re
from typing import Any

import msgspec
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import BaseRoute, Route

from onelog.core.durable.waiting import ANY_QUEUE
from onelog.core.queues.lease_supply import LeaseRequest
from onelog.core.queues.lending import Leased
from onelog.errors import InvalidRequestError, LeaseNotFoundError, OnelogError
from onelog.gateways import GatewayContext
from onelog.gateways.http.messages import RECEIPT, neutral_of, number, raw, shown
from onelog.gateways.http.requests import answer, called, json_of, principal_of
from onelog.record.decode import decode_messages

COUNT_MAX = 256
WAIT_MAX_MS = 30_000
LEASE_MS, LEASE_MAX_MS = 30_000, 12 * 3_600_000
_RECEIPT = re.compile(r"([0-9]{1,5})-([0-9]{1,18})-([0-9]{1,19})")


class Receipts(msgspec.Struct, forbid_unknown_fields=True):
    """What is acknowledged, in a request of JSON."""

    receipts: list[str]


class _Waiter:
    """Who waits for messages; the core knows a request by it."""


def routes(context: GatewayContext) -> list[BaseRoute]:
    """Where groups get their messages."""
    base = "/v1/topics/{topic}/groups/{group}"

    async def consume(request: Request) -> Response:
        is_raw = request.query_params.get("raw", "").lower() in ("true", "1")
        messages = await _lease(context, request, is_raw)
        if not is_raw:
            return answer({"messages": [shown(*receipt, **more) for receipt, more in messages]})
        if not messages:
            return Response(status_code=204)
        receipt, more = messages[0]
        neutral = neutral_of(receipt[3])
        kind = next((v for n, v in neutral.headers if n == "content-type" and v), None)
        return raw(neutral, kind, "application/octet-stream", {RECEIPT: more["receipt"]})

    async def ack(request: Request) -> Response:
        return await _settled(context, request, context.broker.queues.acknowledge)

    async def nack(request: Request) -> Response:
        return await _settled(context, request, context.broker.queues.release)

    async def extend(request: Request) -> Response:
        lease_ms = number(request.query_params, "lease_ms", LEASE_MS, 1, LEASE_MAX_MS)
        group, topic = request.path_params["group"], request.path_params["topic"]
        receipts = []
        for receipt in await _receipts(request):
            handle = context.broker.queues.extend(
                principal_of(request), group, topic, *receipt, lease_ms
            )
            receipts.append(f"{receipt[0]}-{receipt[1]}-{handle}")
        await _recorded(context)
        return answer({"receipts": receipts})

    return [
        Route(f"{base}/consume", consume, methods=["POST"]),
        Route(f"{base}/ack", ack, methods=["POST"]),
        Route(f"{base}/nack", nack, methods=["POST"]),
        Route(f"{base}/extend", extend, methods=["POST"]),
    ]


async def _lease(
    context: GatewayContext, request: Request, is_raw: bool
) -> list[tuple[tuple[str, int, int, Any], dict[str, Any]]]:
    """Messages with their places, and what else is told of each."""
    principal, broker, parameters = principal_of(request), context.broker, request.query_params
    topic, group = request.path_params["topic"], request.path_params["group"]
    settings = broker.topics.require(principal, topic)
    broker.groups.require(principal, group)
    begin = context.random.randrange(max(1, settings.read_queues))
    queues = [
        (topic, (begin + each) % settings.read_queues) for each in range(settings.read_queues)
    ]
    start = parameters.get("from", "earliest")
    if start not in ("earliest", "latest"):
        raise InvalidRequestError(f"from={start[:40]} is neither earliest nor latest")
    lease = LeaseRequest(
        group,
        lambda: queues,
        ((topic, ANY_QUEUE),),
        1 if is_raw else number(parameters, "count", 10, 1, COUNT_MAX),
        number(parameters, "lease_ms", LEASE_MS, 1, LEASE_MAX_MS),
        from_last=start == "latest",
    )
    wait_ms = number(parameters, "wait_ms", 0, 0, WAIT_MAX_MS)
    waiter = _Waiter()
    try:
        _, leased = await called(
            lambda done: broker.queues.lease(principal, lease, wait_ms, done, waiter)
        )
    finally:
        broker.groups.channel_closed(waiter)
    if isinstance(leased, OnelogError):
        raise leased
    assert isinstance(leased, Leased)
    found = []
    for part in leased.parts:
        messages = [message for each in part.records for message in decode_messages(each)]
        for offset, times, message in zip(part.offsets, part.times, messages, strict=True):
            more = {"receipt": f"{part.queue_id}-{offset}-{leased.handle}", "times": times}
            found.append(((topic, part.queue_id, offset, message), more))
    return found


async def _settled(context: GatewayContext, request: Request, settle: Any) -> Response:
    """Say something of each message; what is not leased any more is told, and the others count."""
    principal = principal_of(request)
    group, topic = request.path_params["group"], request.path_params["topic"]
    receipts = await _receipts(request)
    lost = []
    for receipt in receipts:
        try:
            settle(principal, group, topic, *receipt)
        except LeaseNotFoundError as error:
            lost.append(error)
    if len(lost) == len(receipts):
        raise lost[0]
    await _recorded(context)
    return answer({"done": len(receipts) - len(lost), "not_leased": len(lost)})


async def _recorded(context: GatewayContext) -> None:
    (error,) = await called(context.broker.queues.when_leases_safe)
    if error is not None:
        raise error


async def _receipts(request: Request) -> list[tuple[int, int, int]]:
    """Queue, offset and handle of each receipt."""
    receipts = request.query_params.getlist("receipt")
    if not receipts:
        receipts = (await json_of(request, Receipts)).receipts
    if not 0 < len(receipts) <= COUNT_MAX:
        raise InvalidRequestError(f"name 1 to {COUNT_MAX} receipts")
    found = []
    for receipt in receipts:
        match = _RECEIPT.fullmatch(receipt)
        if match is None:
            raise InvalidRequestError(f"{receipt[:80]!r} is no receipt")
        found.append((int(match[1]), int(match[2]), int(match[3])))
    return found
