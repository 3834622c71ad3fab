"""OpenTelemetry: a span for every send and every call of a listener, linked across processes.

Needs the `opentelemetry` extra (`pip install onelog[opentelemetry]`); without a configured SDK the
spans go nowhere, at almost no cost.

    hook = OpenTelemetryHook()
    producer = Producer("orders-app", hooks=[hook])
    consumer = PushConsumer("billing", hooks=[hook])

The context travels in properties of the message, by default `traceparent` and `tracestate`, so that
the listener's span is a child of the send's; for a listener that gets several messages at once it
is linked to all of them instead. While a listener runs, its span is the current one.

Names and attributes are those of OpenTelemetry's semantic conventions for messaging and RocketMQ.
"""

from collections.abc import Sequence

from onelog.client.hooks import ConsumeContext, SendContext
from onelog.client.message import Message, ReceivedMessage
from onelog.wire.remoting.trace import MessageKind

try:
    from opentelemetry import context as contexts
    from opentelemetry import propagate, trace
    from opentelemetry.context import Context
    from opentelemetry.propagators.textmap import TextMapPropagator
    from opentelemetry.trace import Link, Span, SpanKind, Status, StatusCode, TracerProvider
except ImportError as error:
    raise ImportError(
        "opentelemetry-api is not installed: pip install onelog[opentelemetry]"
    ) from error

_KINDS = {
    MessageKind.NORMAL: "normal",
    MessageKind.ORDER: "fifo",
    MessageKind.DELAY: "delay",
    MessageKind.TRANSACTION_HALF: "transaction",
    MessageKind.TRANSACTION_COMMIT: "transaction",
}
_Attributes = dict[str, str | int | Sequence[str]]


class OpenTelemetryHook:
    """A `SendHook` and a `ConsumeHook`; one may serve many clients."""

    def __init__(
        self,
        *,
        tracer_provider: TracerProvider | None = None,
        propagator: TextMapPropagator | None = None,
    ) -> None:
        self._tracer = trace.get_tracer("onelog.client", tracer_provider=tracer_provider)
        self._propagator = propagator or propagate.get_global_textmap()

    def before_send(self, context: SendContext) -> None:
        """Begin a span, and give the message the context to travel with."""
        topic = context.messages[0].topic
        attributes = _described("send", context.messages)
        attributes["messaging.rocketmq.client_group"] = context.group
        attributes["messaging.message.body.size"] = sum(len(each.body) for each in context.messages)
        attributes["messaging.rocketmq.message.type"] = _KINDS[context.kind]
        span = self._tracer.start_span(
            f"send {topic}", kind=SpanKind.PRODUCER, attributes=attributes
        )
        context.notes[self] = span
        self._propagator.inject(context.properties, trace.set_span_in_context(span))

    def after_send(self, context: SendContext) -> None:
        """End the span."""
        span = context.notes.get(self)
        if not isinstance(span, Span):
            return
        if context.message_id:
            span.set_attribute("messaging.message.id", context.message_id)
        if context.address:
            host, _, port = context.address.rpartition(":")
            span.set_attribute("server.address", host)
            span.set_attribute("server.port", int(port))
        _end(span, context.error)

    def before_consume(self, context: ConsumeContext) -> None:
        """Begin a span, and make it the current one for the listener."""
        messages = context.messages
        topic = messages[0].topic
        attributes = _described("process", messages)
        attributes["messaging.consumer.group.name"] = context.group
        attributes["messaging.destination.partition.id"] = str(context.queue.queue_id)
        extract = self._propagator.extract
        origins = [extract(each.all_properties, Context()) for each in messages]
        parent: Context | None = None
        links: list[Link] = []
        if len(messages) == 1:
            attributes["messaging.message.id"] = messages[0].message_id
            attributes["messaging.message.body.size"] = len(messages[0].raw.body)
            parent = origins[0]
        else:
            spans = (trace.get_current_span(origin).get_span_context() for origin in origins)
            links = [Link(each) for each in spans if each.is_valid]
        span = self._tracer.start_span(
            f"process {topic}",
            context=parent,
            kind=SpanKind.CONSUMER,
            attributes=attributes,
            links=links,
        )
        token = contexts.attach(trace.set_span_in_context(span, parent))
        context.notes[self] = (span, token)

    def after_consume(self, context: ConsumeContext) -> None:
        """End the span; another one is the current one again."""
        noted = context.notes.get(self)
        if not isinstance(noted, tuple):
            return
        span, token = noted
        contexts.detach(token)
        if context.error is None and not context.is_success:
            span.set_status(Status(StatusCode.ERROR, context.outcome.name.lower()))
        _end(span, context.error)


def _described(operation: str, messages: Sequence[Message | ReceivedMessage]) -> _Attributes:
    attributes: _Attributes = {
        "messaging.system": "rocketmq",
        "messaging.destination.name": messages[0].topic,
        "messaging.operation.name": operation,
        "messaging.operation.type": operation,
    }
    if tags := list(dict.fromkeys(each.tags for each in messages if each.tags)):
        attributes["messaging.rocketmq.message.tag"] = " || ".join(tags)
    if keys := list(dict.fromkeys(key for each in messages for key in each.keys)):
        attributes["messaging.rocketmq.message.keys"] = keys
    if len(messages) > 1:
        attributes["messaging.batch.message_count"] = len(messages)
    return attributes


def _end(span: Span, error: BaseException | None) -> None:
    if error is not None:
        span.record_exception(error)
        span.set_attribute("error.type", type(error).__qualname__)
        span.set_status(Status(StatusCode.ERROR, str(error)))
    span.end()
