"""Spans of sends and listeners hang together, also across processes."""

import subprocess
import sys
import threading
from collections.abc import Sequence

import pytest
from opentelemetry import trace
from opentelemetry.sdk.trace import ReadableSpan, TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter
from opentelemetry.trace import SpanKind, StatusCode

from onelog.client.hooks import ConsumeContext, SendContext
from onelog.client.message import Message, ReceivedMessage
from onelog.client.opentelemetry import OpenTelemetryHook
from onelog.client.producer.producer import AsyncProducer
from onelog.errors import OnelogError
from onelog.wire.remoting.trace import MessageKind, Outcome
from tests.client.live_cluster import LiveCluster
from tests.client.watching import TOO_LARGE, stored


class Telemetry:
    """A hook, and the spans that it ended."""

    def __init__(self) -> None:
        self.exporter = InMemorySpanExporter()
        self.provider = TracerProvider()
        self.provider.add_span_processor(SimpleSpanProcessor(self.exporter))
        self.hook = OpenTelemetryHook(tracer_provider=self.provider)

    @property
    def spans(self) -> Sequence[ReadableSpan]:
        return self.exporter.get_finished_spans()


@pytest.fixture
def telemetry() -> Telemetry:
    return Telemetry()


async def received(cluster: LiveCluster) -> list[ReceivedMessage]:
    return [ReceivedMessage(raw, "broker-a") for raw in await stored(cluster, "orders", 1)]


def span_id(span: ReadableSpan) -> tuple[int, int]:
    assert span.context is not None
    return span.context.trace_id, span.context.span_id


async def test_the_span_of_a_listener_is_a_child_of_the_span_of_the_send(
    cluster: LiveCluster, telemetry: Telemetry
) -> None:
    await cluster.create_topic("orders", 1)
    tracer = telemetry.provider.get_tracer("test")
    async with AsyncProducer(
        "shop", nameserver=cluster.addresses, hooks=[telemetry.hook]
    ) as producer:
        with tracer.start_as_current_span("checkout") as outer:
            receipt = await producer.send(Message("orders", b"abc", tags="paid", keys=["k"]))
    (message,) = await received(cluster)
    context = ConsumeContext("billing", message.queue, [message])
    telemetry.hook.before_consume(context)
    with tracer.start_as_current_span("invoice"):
        pass
    telemetry.hook.after_consume(context)
    sent, checkout, invoice, processed = telemetry.spans
    assert (sent.name, sent.kind) == ("send orders", SpanKind.PRODUCER)
    assert (processed.name, processed.kind) == ("process orders", SpanKind.CONSUMER)
    for child, parent in ((sent, checkout), (processed, sent), (invoice, processed)):
        assert child.parent is not None
        assert (child.parent.trace_id, child.parent.span_id) == span_id(parent)
    assert outer.get_span_context().trace_id == span_id(processed)[0]
    assert sent.attributes == {
        "messaging.system": "rocketmq",
        "messaging.destination.name": "orders",
        "messaging.operation.name": "send",
        "messaging.operation.type": "send",
        "messaging.rocketmq.client_group": "shop",
        "messaging.rocketmq.message.type": "normal",
        "messaging.rocketmq.message.tag": "paid",
        "messaging.rocketmq.message.keys": ("k",),
        "messaging.message.body.size": 3,
        "messaging.message.id": receipt.message_id,
        "server.address": "127.0.0.1",
        "server.port": cluster.brokers[0].config.broker.port,
    }
    assert processed.attributes is not None
    assert processed.attributes["messaging.message.id"] == receipt.message_id
    assert processed.attributes["messaging.consumer.group.name"] == "billing"
    assert processed.attributes["messaging.destination.partition.id"] == "0"
    assert message.properties.keys() >= {"traceparent"}
    assert trace.get_current_span() is trace.INVALID_SPAN


async def test_a_listener_of_many_messages_is_linked_to_their_sends(
    cluster: LiveCluster, telemetry: Telemetry
) -> None:
    await cluster.create_topic("orders", 1)
    async with AsyncProducer(
        "shop", nameserver=cluster.addresses, hooks=[telemetry.hook]
    ) as producer:
        await producer.send(Message("orders", b"1"))
        await producer.send(Message("orders", b"2"))
    await cluster.send("orders", b"from somebody without spans")
    messages = await received(cluster)
    context = ConsumeContext("billing", messages[0].queue, messages)
    telemetry.hook.before_consume(context)
    telemetry.hook.after_consume(context)
    first, second, processed = telemetry.spans
    assert processed.parent is None
    assert [(link.context.trace_id, link.context.span_id) for link in processed.links] == [
        span_id(first),
        span_id(second),
    ]
    assert processed.attributes is not None
    assert processed.attributes["messaging.batch.message_count"] == 3


async def test_a_send_that_fails_is_an_error(cluster: LiveCluster, telemetry: Telemetry) -> None:
    await cluster.create_topic("orders", 1)
    async with AsyncProducer(
        "shop", nameserver=cluster.addresses, hooks=[telemetry.hook]
    ) as producer:
        with pytest.raises(OnelogError) as failure:
            await producer.send(Message("orders", TOO_LARGE))
    (span,) = telemetry.spans
    assert (span.status.status_code, span.status.description) == (
        StatusCode.ERROR,
        str(failure.value),
    )
    assert span.attributes is not None
    assert span.attributes["error.type"] == type(failure.value).__name__
    assert span.events[0].name == "exception"


def test_the_kinds_of_messages_have_the_names_of_the_conventions(telemetry: Telemetry) -> None:
    for kind in MessageKind:
        context = SendContext("shop", [Message("orders", b"x")], kind)
        telemetry.hook.before_send(context)
        telemetry.hook.after_send(context)
    kinds = [(span.attributes or {})["messaging.rocketmq.message.type"] for span in telemetry.spans]
    assert kinds == ["normal", "transaction", "transaction", "delay", "fifo"]


@pytest.mark.parametrize(
    ("outcome", "error", "described"),
    [
        (Outcome.EXCEPTION, LookupError("no such order"), "no such order"),
        (Outcome.TIME_OUT, None, "time_out"),
    ],
)
async def test_a_listener_that_fails_is_an_error(
    cluster: LiveCluster,
    telemetry: Telemetry,
    outcome: Outcome,
    error: Exception | None,
    described: str,
) -> None:
    await cluster.create_topic("orders", 1)
    await cluster.send("orders", b"x")
    (message,) = await received(cluster)
    context = ConsumeContext("billing", message.queue, [message])

    def listen() -> None:
        telemetry.hook.before_consume(context)
        context.outcome, context.error = outcome, error
        telemetry.hook.after_consume(context)

    thread = threading.Thread(target=listen)
    thread.start()
    thread.join()
    (span,) = telemetry.spans
    assert (span.status.status_code, span.status.description) == (StatusCode.ERROR, described)


def test_without_the_package_the_import_says_what_to_install() -> None:
    program = (
        "import sys; sys.modules['opentelemetry'] = None\n"
        "import onelog.client\n"
        "try:\n    import onelog.client.opentelemetry\n"
        "except ImportError as error: print(error)\n"
    )
    ended = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True)
    assert "pip install onelog[opentelemetry]" in ended.stdout
