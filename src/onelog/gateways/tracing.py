"""Spans of messages that are traced, for OpenTelemetry: from their birth until they are safe.

Whoever sends says whether a message is traced: by `traceparent` (W3C Trace Context) in a property
of RocketMQ, a header of Kafka, AMQP, STOMP or HTTP, a user property of MQTT, or gRPC's trace
context. If that says "sampled", the broker's span continues the trace; it is sent by OTLP over HTTP
to `telemetry.traces`. Needs the `opentelemetry` extra.

Invariant: while the setting is empty nothing of this is imported, and nothing is looked at.
"""

import asyncio
import re
import time
from collections.abc import Iterator, Sequence
from functools import partial
from typing import TYPE_CHECKING

from onelog import __version__
from onelog.config_sources import Loaded
from onelog.errors import ConfigError, OnelogError, WireError
from onelog.gateways import GatewayContext
from onelog.message import (
    Appended,
    AppendedRun,
    NewMessage,
    NewRun,
    message_id,
    property_bytes,
)
from onelog.record.forms import Form, amqp, form_of, kafka, mqtt
from onelog.record.forms.neutral import Neutral
from onelog.rocketmq.properties import TRACE_CONTEXT

if TYPE_CHECKING:
    from opentelemetry.sdk.trace.export import SpanExporter
    from opentelemetry.trace import Span

NAME = "traceparent"
EXPORT_SECONDS_MAX = 3
SPANS_PER_SECOND_MAX = 1_000
"""More are left out: who samples everything must not stop the broker."""
BORN_MS_MAX = 60_000
"""What is older was not born just now, or by another clock."""
_NEEDLE = NAME.encode()
_PROPERTIES = (_NEEDLE + b"\x01", TRACE_CONTEXT.encode() + b"\x01")
_BATCH_MAX, _BATCH_BYTES_MAX = 2_000, 1 << 20
"""Messages, and bytes unpacked, of batches that are looked into."""
_SAMPLED = re.compile(rb"[0-9a-f]{2}-([0-9a-f]{32})-([0-9a-f]{16})-[0-9a-f][13579bdf](?:-.*)?")
_SYSTEMS = {Form.KAFKA: "kafka", Form.AMQP: "rabbitmq", Form.MQTT: "mqtt"}
Found = Iterator[tuple[int, bytes]]
"""How far a message is behind the first, and what it says of its trace."""


class Tracing:
    """Makes spans of what is stored. A gateway without a port."""

    def __init__(self, context: GatewayContext, exporter: "SpanExporter | None" = None) -> None:
        try:
            from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter
            from opentelemetry.sdk.resources import Resource
            from opentelemetry.sdk.trace import TracerProvider
            from opentelemetry.sdk.trace.export import BatchSpanProcessor
        except ImportError:
            raise ConfigError(
                "telemetry.traces needs OpenTelemetry: pip install onelog[opentelemetry]"
            ) from None
        named = {
            "service.name": "onelog",
            "service.version": __version__,
            "service.instance.id": context.broker.admin.config.name,
        }
        self._provider = TracerProvider(resource=Resource.create(named))
        exporter = exporter or OTLPSpanExporter(
            context.loaded.config.telemetry.traces, timeout=EXPORT_SECONDS_MAX
        )
        self._provider.add_span_processor(BatchSpanProcessor(exporter))
        self._tracer = self._provider.get_tracer("onelog.broker", __version__)
        self._context = context
        self._second = self._made = 0
        context.broker.publish.on_stored.append(self._stored)

    async def listen(self) -> None:
        """It has no port."""

    def refresh(self, loaded: Loaded) -> None:
        """Its setting is read at the start."""

    async def close(self) -> None:
        """Send what is left; this may take some seconds."""
        await asyncio.to_thread(self._provider.shutdown)

    def _stored(
        self, messages: Sequence[NewMessage | NewRun], stored_at: Sequence[Appended | AppendedRun]
    ) -> None:
        for message, stored in zip(messages, stored_at, strict=True):
            for number, text in _traced(message):
                sampled = _SAMPLED.fullmatch(text)
                if sampled is not None and self._has_room():
                    self._begin(message, stored, number, *sampled.groups())

    def _has_room(self) -> bool:
        second = int(time.monotonic())
        if second != self._second:
            self._second, self._made = second, 0
        self._made += 1
        return self._made <= SPANS_PER_SECOND_MAX

    def _begin(
        self,
        message: NewMessage | NewRun,
        stored: Appended | AppendedRun,
        number: int,
        trace_id: bytes,
        span_id: bytes,
    ) -> None:
        from opentelemetry import trace

        parent = trace.SpanContext(
            int(trace_id, 16), int(span_id, 16), True, trace.TraceFlags(trace.TraceFlags.SAMPLED)
        )
        if not parent.is_valid:
            return
        now_ms = self._context.clock.now_ms()
        is_new = 0 <= now_ms - message.born_ms <= BORN_MS_MAX
        span = self._tracer.start_span(
            f"store {message.topic}",
            trace.set_span_in_context(trace.NonRecordingSpan(parent)),
            trace.SpanKind.SERVER,
            self._described(message, stored, number),
            start_time=(message.born_ms if is_new else now_ms) * 1_000_000,
        )
        self._context.broker.publish.when_durable(partial(_ended, span))

    def _described(
        self, message: NewMessage | NewRun, stored: Appended | AppendedRun, number: int
    ) -> dict[str, str | int]:
        return {
            "messaging.system": _SYSTEMS.get(Form(form_of(message.sys_flag)), "rocketmq"),
            "messaging.operation.name": "store",
            "messaging.destination.name": message.topic,
            "messaging.destination.partition.id": str(message.queue_id),
            "messaging.message.id": message_id(self._context.store_host, stored.log_offset),
            "messaging.onelog.queue_offset": stored.queue_offset + number,
        }


def _ended(span: "Span", error: OnelogError | None) -> None:
    from opentelemetry.trace import Status, StatusCode

    if error is not None:
        span.set_status(Status(StatusCode.ERROR, str(error)))
    span.end()


def _traced(message: NewMessage | NewRun) -> Found:
    """What the messages say that are stored as one."""
    if isinstance(message, NewRun):
        if any(each[:-1] in message.source for each in _PROPERTIES):
            for number, (_, _, properties) in enumerate(message.parts):
                yield from _of_properties(number, properties)
        return
    form = form_of(message.sys_flag)
    if form == Form.ROCKETMQ:
        yield from _of_properties(0, message.properties)
        return
    body = bytes(message.body)
    try:
        if form == Form.KAFKA:
            batch = kafka.read_head(body)
            is_packed = bool(batch.attributes & kafka.Attribute.CODEC)
            if batch.records <= _BATCH_MAX and (is_packed or _NEEDLE in body):
                for delta, neutral in kafka.records(body, bytes_max=_BATCH_BYTES_MAX):
                    yield from _of_headers(delta, neutral)
        elif _NEEDLE in body and form == Form.AMQP:
            yield from _of_headers(0, amqp.to_neutral(body, 0))
        elif _NEEDLE in body and form == Form.MQTT:
            yield from _of_headers(0, mqtt.to_neutral(body))
    except WireError:
        return


def _of_properties(number: int, properties: bytes) -> Found:
    for needle in _PROPERTIES:
        if needle in properties and (text := property_bytes(properties, needle)) is not None:
            yield number, text
            return


def _of_headers(number: int, neutral: Neutral) -> Found:
    for name, value in neutral.headers:
        if name == NAME and value is not None:
            yield number, value
            return
