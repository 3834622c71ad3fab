"""Reading without a group: a look at what is there, and following what comes.

    GET /v1/topics/TOPIC/peek?from=earliest&count=10        nothing is taken
    GET /v1/topics/TOPIC/follow?from=latest                 server-sent events, one per message

An event's id says how far it was read in every queue; a browser that connects again sends the last
one it got, and goes on there.
"""

from collections.abc import AsyncIterator

import msgspec
from starlette.requests import Request
from starlette.responses import Response, StreamingResponse
from starlette.routing import BaseRoute, Route

from onelog.core.access import Principal
from onelog.core.cursors.fetch import Cursor, Limits
from onelog.errors import InvalidRequestError, OnelogError
from onelog.gateways import GatewayContext
from onelog.gateways.http.messages import messages_in, number, shown
from onelog.gateways.http.requests import answer, called, principal_of

COUNT_MAX = 256
BYTES_MAX = 1 << 20
KEEP_ALIVE_MS = 15_000
FOLLOWERS_MAX = 1_000
_encode = msgspec.json.Encoder().encode


class _FollowingReader:
    """Who waits for messages; the core knows a request by it."""


def routes(context: GatewayContext) -> list[BaseRoute]:
    """Where messages are read without taking them."""
    followers: set[_FollowingReader] = set()

    async def peek(request: Request) -> Response:
        principal, topic, parameters = (
            principal_of(request),
            request.path_params["topic"],
            request.query_params,
        )
        count = number(parameters, "count", 10, 1, COUNT_MAX)
        positions = _positions(context, principal, topic, parameters.get("from", "earliest"), count)
        if "queue" in parameters:
            only = number(parameters, "queue", 0, 0, 65_535)
            if only not in positions:
                raise InvalidRequestError(f"topic {topic} has no queue {only}")
            positions = {only: positions[only]}
        found = await _read(context, principal, topic, positions, count, 0, _FollowingReader())
        return answer({"messages": found[:count]})

    async def follow(request: Request) -> Response:
        principal, topic = principal_of(request), request.path_params["topic"]
        start = request.headers.get("last-event-id") or request.query_params.get("from", "latest")
        positions = _positions(context, principal, topic, start, 0)
        if len(followers) >= FOLLOWERS_MAX:
            raise InvalidRequestError(f"{FOLLOWERS_MAX} follow already: try again later")
        headers = {"x-accel-buffering": "no"}
        events = _events(context, principal, topic, positions, followers)
        return StreamingResponse(events, 200, headers, "text/event-stream")

    return [
        Route("/v1/topics/{topic}/peek", peek),
        Route("/v1/topics/{topic}/follow", follow),
    ]


async def _events(
    context: GatewayContext,
    principal: Principal,
    topic: str,
    positions: dict[int, int],
    followers: set[_FollowingReader],
) -> AsyncIterator[bytes]:
    reader = _FollowingReader()
    followers.add(reader)
    try:
        yield b": following\n\n"
        while True:
            try:
                found = await _read(
                    context, principal, topic, positions, COUNT_MAX, KEEP_ALIVE_MS, reader
                )
                # It may have waited for long.
                context.broker.users.check(principal, "consume", ("topic", topic))
            except OnelogError as error:
                yield b"event: error\ndata: %b\n\n" % _encode({"error": str(error)})
                return
            event_id = ",".join(f"{queue}:{offset}" for queue, offset in positions.items()).encode()
            for message in found[:-1]:
                yield b"data: %b\n\n" % _encode(message)
            for message in found[-1:]:
                yield b"id: %b\ndata: %b\n\n" % (event_id, _encode(message))
            if not found:
                yield b": still there\n\n"
    finally:
        followers.discard(reader)
        context.broker.groups.channel_closed(reader)


async def _read(
    context: GatewayContext,
    principal: Principal,
    topic: str,
    positions: dict[int, int],
    count: int,
    wait_ms: int,
    reader: _FollowingReader,
) -> list[dict[str, object]]:
    """The next messages; `positions` are behind them then."""
    cursors = [Cursor(None, topic, queue_id, offset) for queue_id, offset in positions.items()]
    limits = Limits(count, BYTES_MAX, BYTES_MAX)
    _, results = await called(
        lambda done: context.broker.cursors.fetch(principal, cursors, limits, wait_ms, done, reader)
    )
    found: list[dict[str, object]] = []
    for cursor, result in zip(cursors, results, strict=True):
        for offset, message in messages_in(result):
            found.append(shown(topic, cursor.queue_id, offset, message))
        assert not isinstance(result, OnelogError)
        positions[cursor.queue_id] = result.next_offset
    return found


def _positions(
    context: GatewayContext, principal: Principal, topic: str, start: str, back: int
) -> dict[int, int]:
    """Where to begin in each queue; `back`: so many before the end is the latest, too."""
    broker = context.broker
    queues = range(broker.topics.require(principal, topic).read_queues)
    least = {queue: broker.topics.min_offset(principal, topic, queue) for queue in queues}
    if start == "earliest":
        return least
    most = {queue: broker.topics.max_offset(principal, topic, queue) for queue in queues}
    if start == "latest":
        return {queue: max(least[queue], most[queue] - back) for queue in queues}
    given: dict[int, int] = {}
    for part in start[:10_000].split(","):
        queue_text, colon, offset_text = part.partition(":")
        if not colon:
            queue_text, offset_text = "0", part
        if not (queue_text.isdecimal() and offset_text.isdecimal()):
            raise InvalidRequestError(
                f"from={start[:80]} is neither earliest, latest, nor queue:offset with commas"
            )
        given[int(queue_text[:9])] = int(offset_text[:18])
    return {
        queue: min(max(given.get(queue, least[queue]), least[queue]), most[queue])
        for queue in queues
    }
