"""Sending: a body as it is, or many messages as JSON.

    POST /v1/topics/TOPIC/produce?key=K&delay_ms=D  the body is the message
    POST /v1/topics/TOPIC/produce-json              {"messages": [{"key", "body", "headers"}, ...]}

The answer says where each message is, when it is as safe as the broker is configured to have it.
"""

import base64
import binascii
import zlib
from typing import Any

import msgspec
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import BaseRoute, Route

from onelog.core.access import Principal
from onelog.core.publish import Intent
from onelog.errors import InvalidRequestError
from onelog.gateways import GatewayContext
from onelog.gateways.http.messages import HEADER, KEY, number
from onelog.gateways.http.requests import (
    answer,
    body_of,
    called,
    json_of,
    principal_of,
    traced_by,
)
from onelog.message import NewMessage, message_id
from onelog.record.forms import rocketmq
from onelog.record.forms.neutral import Header, Neutral
from onelog.rocketmq.names import DEFAULT_TOPIC, check_topic

MESSAGES_MAX = 1_000
"""Messages in one request."""
_DELAY_MAX_MS = 1 << 41


class ProducedMessage(msgspec.Struct, forbid_unknown_fields=True):
    """A message in a request of JSON."""

    body: str | None = None
    body_base64: str | None = None
    json: Any = msgspec.UNSET
    key: str | None = None
    key_base64: str | None = None
    headers: dict[str, str | None] = {}
    queue: int | None = None
    delay_ms: int = 0


class SentList(msgspec.Struct, forbid_unknown_fields=True):
    """All of them."""

    messages: list[ProducedMessage]


def routes(context: GatewayContext) -> list[BaseRoute]:
    """Where messages are sent to."""

    async def produce(request: Request) -> Response:
        principal, topic = principal_of(request), request.path_params["topic"]
        parameters = request.query_params
        key = parameters.get("key", request.headers.get(KEY))
        headers: list[Header] = [
            (name.removeprefix(HEADER), value.encode("latin-1"))
            for name, value in request.headers.items()
            if name.startswith(HEADER)
        ]
        headers += [(name, value.encode("latin-1")) for name, value in traced_by(request).items()]
        if (kind := request.headers.get("content-type")) and not _is_curls(kind):
            headers.append(("content-type", kind.encode("latin-1")))
        delay_ms = number(parameters, "delay_ms", 0, 0, _DELAY_MAX_MS)
        queue = number(parameters, "queue", -1, 0, 65_535)
        body = await body_of(request)
        neutral = Neutral(None if key is None else key.encode(), body, tuple(headers))
        return answer(await _store(context, principal, topic, neutral, queue, delay_ms))

    async def produce_json(request: Request) -> Response:
        principal, topic = principal_of(request), request.path_params["topic"]
        sent = (await json_of(request, SentList)).messages
        if not 0 < len(sent) <= MESSAGES_MAX:
            raise InvalidRequestError(f"a request has 1 to {MESSAGES_MAX} messages")
        made = [(_neutral(each), each) for each in sent]
        stored = [
            await _store(
                context,
                principal,
                topic,
                neutral,
                -1 if each.queue is None else each.queue,
                each.delay_ms,
            )
            for neutral, each in made
        ]
        return answer({"messages": stored})

    return [
        Route("/v1/topics/{topic}/produce", produce, methods=["POST"]),
        Route("/v1/topics/{topic}/produce-json", produce_json, methods=["POST"]),
    ]


def _is_curls(kind: str) -> bool:
    """Whether that is what curl says of any body."""
    return kind.partition(";")[0].strip() == "application/x-www-form-urlencoded"


def _neutral(sent: ProducedMessage) -> Neutral:
    try:
        if sent.json is not msgspec.UNSET:
            body: bytes | None = msgspec.json.encode(sent.json)
        elif sent.body_base64 is not None:
            body = base64.b64decode(sent.body_base64, validate=True)
        else:
            body = None if sent.body is None else sent.body.encode()
        key = None if sent.key is None else sent.key.encode()
        if sent.key_base64 is not None:
            key = base64.b64decode(sent.key_base64, validate=True)
    except (binascii.Error, UnicodeEncodeError) as error:
        raise InvalidRequestError(f"a body or key is not as it should be: {error}") from None
    headers = tuple(
        (name, None if value is None else value.encode()) for name, value in sent.headers.items()
    )
    return Neutral(key, body, headers)


async def _store(
    context: GatewayContext,
    principal: Principal,
    topic: str,
    neutral: Neutral,
    queue_id: int,
    delay_ms: int,
) -> dict[str, Any]:
    broker, now_ms = context.broker, context.clock.now_ms()
    settings = broker.topics.find(principal, topic)
    if settings is None:
        check_topic(topic)
        settings = broker.topics.create_for_send(principal, topic, DEFAULT_TOPIC, 4)
    queues = max(1, settings.write_queues)
    if queue_id < 0:
        # Messages of one key stay in order.
        by_key = neutral.key is not None
        queue_id = (
            zlib.crc32(neutral.key or b"") % queues if by_key else context.random.randrange(queues)
        )
    body, properties = rocketmq.from_neutral(neutral)
    message = NewMessage(
        topic, queue_id, body, properties, born_ms=now_ms, store_host=context.store_host
    )
    intent = Intent(deliver_at_ms=now_ms + delay_ms) if delay_ms else None
    _, appended, error = await called(
        lambda done: broker.publish.send(principal, message, done, None, intent)
    )
    if error is not None:
        raise error
    found: dict[str, Any] = {"topic": topic, "queue": queue_id}
    if delay_ms:
        return {**found, "deliver_at_ms": now_ms + delay_ms}
    found["offset"] = appended.queue_offset
    return {**found, "id": message_id(context.store_host, appended.log_offset)}
