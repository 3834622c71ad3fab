"""ActiveMQ's REST shape: one message in, one message out, of a queue or a topic.

    POST   /api/message/NAME?type=queue      the body, or the form field `body`, is sent
    GET    /api/message/NAME?type=queue      the next message, which is gone then; 204 if none comes
    DELETE /api/message/NAME?type=queue      the same

`type` is queue, unless it says topic. `readTimeout` is how long to wait, in milliseconds. Further
parameters of POST are headers of the message; JMSPriority, JMSTimeToLive, JMSCorrelationID, JMSType
and JMSReplyTo are what they are called. Who reads a topic with a `clientId` misses nothing between
two requests, for a minute.
"""

import asyncio
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any
from urllib.parse import parse_qsl, quote

from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import BaseRoute, Route

from onelog.core.access import Principal
from onelog.core.queues.consumers import Consumer
from onelog.core.queues.deliveries import Delivery, in_amqp_form
from onelog.errors import InvalidRequestError, QueueNotFoundError
from onelog.gateways import GatewayContext
from onelog.gateways.http.messages import PRINTABLE, number, raw
from onelog.gateways.http.requests import body_of, called, principal_of
from onelog.record.forms import amqp, amqp_fields
from onelog.record.forms.neutral import Neutral

if TYPE_CHECKING:
    from onelog.core.queues.queue import WorkQueue

VHOST = "/"
TOPIC_EXCHANGE = "amq.topic"
FIELDS_MAX = 1_000
WAIT_MS, WAIT_MAX_MS = 20_000, 50_000
KEPT_MS = 60_000
"""How long a topic is read on for a client that does not ask."""
_OWN = {"type", "body", "destination", "readTimeout", "clientId", "timeout", "selector", "sync"}
_PROPERTIES = {
    "JMSCorrelationID": "correlation_id",
    "JMSType": "type",
    "JMSReplyTo": "reply_to",
    "JMSMessageID": "message_id",
}


class _WaitingReader:
    """Who waits for a message; the core knows a request by it."""


def routes(context: GatewayContext) -> list[BaseRoute]:
    """ActiveMQ's paths."""

    async def message(request: Request) -> Response:
        if request.method == "POST":
            return await _send(context, request)
        return await _receive(context, request)

    methods = ["GET", "POST", "DELETE"]
    return [Route("/api/message/{name:path}", message, methods=methods)]


def _destination(request: Request, parameters: Mapping[str, str]) -> tuple[str, bool]:
    """The name, and whether it is a topic's."""
    kind = parameters.get("type", "queue")
    if kind not in ("queue", "topic"):
        raise InvalidRequestError(f"type={kind[:40]} is neither queue nor topic")
    return request.path_params["name"], kind == "topic"


async def _send(context: GatewayContext, request: Request) -> Response:
    principal, broker = principal_of(request), context.broker
    parameters = dict(request.query_params)
    body = await body_of(request)
    declared = request.headers.get("content-type", "").partition(";")[0].strip()
    if declared == "application/x-www-form-urlencoded":
        try:
            text = body.decode("utf-8", "replace")
            fields = parse_qsl(text, keep_blank_values=True, max_num_fields=FIELDS_MAX)
        except ValueError:
            raise InvalidRequestError(f"a form has {FIELDS_MAX} fields at most") from None
        form = dict(fields)
        if "body" in form:
            body = form.pop("body").encode()
            parameters = {**form, **parameters}
        declared = ""
    name, is_topic = _destination(request, parameters)
    properties = _properties(parameters, declared)
    if not is_topic:
        _queue(context, principal, name)
    exchange = TOPIC_EXCHANGE if is_topic else ""

    def publish(done: Any) -> None:
        if not broker.publish.routing.publish(
            principal, VHOST, exchange, name, properties, body, done
        ):
            done(None, None, None)

    *_, error = await called(publish)
    if error is not None:
        raise error
    return Response("Message sent", 200, media_type="text/plain")


def _properties(parameters: Mapping[str, str], content_type: str) -> bytes:
    found: dict[str, Any] = {"delivery_mode": 2}
    if content_type:
        found["content_type"] = content_type
    for name, known in _PROPERTIES.items():
        if name in parameters:
            found[known] = parameters[name]
    if "JMSPriority" in parameters:
        found["priority"] = number(parameters, "JMSPriority", 4, 0, 9)
    if "JMSTimeToLive" in parameters:
        found["expiration"] = str(number(parameters, "JMSTimeToLive", 0, 0, 1 << 40))
    headers = {
        name: value
        for name, value in parameters.items()
        if name not in _OWN and not name.startswith("JMS")
    }
    if headers:
        found["headers"] = headers
    return amqp_fields.encode_properties(found)


def _queue(context: GatewayContext, principal: Principal, name: str) -> "WorkQueue":
    workqueues = context.broker.queues.declared
    try:
        return workqueues.find(principal, VHOST, name)
    except QueueNotFoundError:
        return workqueues.declare(principal, VHOST, name, durable=True)


async def _receive(context: GatewayContext, request: Request) -> Response:
    principal, broker, parameters = principal_of(request), context.broker, request.query_params
    name, is_topic = _destination(request, parameters)
    wait_ms = number(parameters, "readTimeout", WAIT_MS, 0, WAIT_MAX_MS)
    reader = _WaitingReader()
    if not is_topic:
        queue = _queue(context, principal, name)
    else:
        client_id = parameters.get("clientId", "")
        queue = broker.queues.declared.declare(
            principal,
            VHOST,
            f"http-{client_id}-{name}" if client_id else "",
            exclusive=not client_id,
            owner=reader,
            arguments={"x-expires": KEPT_MS} if client_id else {},
        )
        key = f"{name.removesuffix('>')}#" if name.endswith(".>") or name == ">" else name
        broker.publish.routing.bind(principal, VHOST, TOPIC_EXCHANGE, "queue", queue.name, key)
    try:
        delivery = await _next(context, principal, queue, wait_ms, reader)
    finally:
        broker.groups.channel_closed(reader)
    if delivery is None:
        return Response(status_code=204)
    neutral = _neutral(delivery)
    media = dict(neutral.headers).get("amqp.content-type")
    return raw(neutral, media, "text/plain", {"destination": quote(name, safe=PRINTABLE)})


async def _next(
    context: GatewayContext,
    principal: Principal,
    queue: "WorkQueue",
    wait_ms: int,
    reader: _WaitingReader,
) -> Delivery | None:
    """The next message of a queue, acknowledged; None if none comes in time."""
    came: asyncio.Future[Delivery] = asyncio.get_running_loop().create_future()

    def deliver(consumer: Consumer, found: Sequence[Delivery]) -> None:
        if not came.done():
            came.set_result(found[0])

    def cancelled(consumer: Consumer, reason: str) -> None:
        if not came.done():
            came.set_exception(QueueNotFoundError(f"queue {queue.name} is gone: {reason}"))

    workqueues = context.broker.queues.declared
    consumer = workqueues.consume(
        principal, VHOST, queue.name, deliver, cancelled, prefetch=1, owner=reader
    )
    try:
        # Also who does not want to wait gets what is there.
        async with asyncio.timeout(max(wait_ms, 50) / 1000):
            delivery = await came
    except TimeoutError:
        return None
    finally:
        if consumer.is_open:
            consumer.pause()
        if came.done() and not came.cancelled() and came.exception() is None:
            queue.ack([came.result()[0]])
    return delivery


def _neutral(delivery: Delivery) -> Neutral:
    _, _, record, form, stored_ms, _ = delivery
    return amqp.to_neutral(in_amqp_form(record, form), stored_ms)
