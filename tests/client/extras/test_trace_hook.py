"""What the trace hook writes is what the tools read."""

import asyncio
from collections.abc import Sequence

import pytest

from onelog.client.admin.admin import AsyncAdmin
from onelog.client.admin.traces import MessageTrace, Step, StepKind
from onelog.client.connection.instance import Instance
from onelog.client.extras import trace_hook
from onelog.client.extras.trace_hook import TraceHook
from onelog.client.hooks import ConsumeContext, SendContext, TransactionContext
from onelog.client.message import Message, ReceivedMessage
from onelog.client.producer.producer import AsyncProducer
from onelog.client.producer.transactions import TransactionState
from onelog.errors import ConfigError, MessageNotFoundError, OnelogError
from onelog.record.compression import unpacked_body
from onelog.wire.remoting.trace import (
    Consumed,
    Delivered,
    MessageKind,
    Outcome,
    Published,
    TransactionEnded,
    decode_trace,
)
from tests.client.live_cluster import LiveCluster
from tests.client.watching import TOO_LARGE, stored
from tests.waiting import eventually

TRACES = "RMQ_SYS_TRACE_TOPIC"


def only(trace: MessageTrace, kind: StepKind) -> Step:
    (step,) = [step for step in trace.steps if step.kind is kind]
    return step


async def received(cluster: LiveCluster, topic: str) -> list[ReceivedMessage]:
    return [ReceivedMessage(raw, "broker-a") for raw in await stored(cluster, topic)]


async def consume(
    hook: TraceHook,
    messages: Sequence[ReceivedMessage],
    outcome: Outcome = Outcome.SUCCESS,
    late_ms: int = 0,
) -> None:
    """What a consumer does around a listener."""
    context = ConsumeContext("billing", messages[0].queue, messages)
    context.started_ms += late_ms
    hook.before_consume(context)
    context.outcome = outcome
    await asyncio.to_thread(hook.after_consume, context)


async def test_the_trace_of_a_message_tells_of_sending_delivery_and_consumption(
    cluster: LiveCluster, admin: AsyncAdmin
) -> None:
    await cluster.create_topic("orders", 1)
    async with AsyncProducer("shop", nameserver=cluster.addresses, hooks=[TraceHook()]) as producer:
        receipt = await producer.send(Message("orders", b"x", tags="paid", keys=["k1", "k2"]))
    reading = TraceHook()
    instance = Instance({"nameserver": cluster.addresses})
    await instance.start()
    await reading.start(instance)
    messages = await received(cluster, "orders")
    await consume(reading, messages, Outcome.FAILED)
    await consume(reading, messages, late_ms=5)
    await reading.close()
    await instance.close()
    trace = await admin.traces.trace(receipt.message_id)
    assert trace.traced
    assert (trace.topic, trace.failures) == ("orders", ())
    sent = only(trace, StepKind.SENT)
    assert (sent.group, sent.message_id, sent.note) == ("shop", receipt.offset_id, "")
    assert len([each for each in trace.steps if each.kind is StepKind.DELIVERED]) == 2
    assert only(trace, StepKind.FAILED).group == "billing"
    assert only(trace, StepKind.CONSUMED).group == "billing"
    (fate,) = trace.fates
    assert (fate.group, fate.deliveries) == ("billing", 2)
    # The records are found by the message's keys as well.
    found = await admin.messages.by_key(TRACES, "k2")
    (published,) = [
        record
        for each in found.messages
        for record in decode_trace(each.message.body)
        if isinstance(record, Published)
    ]
    assert (published.tags, published.keys, published.kind) == ("paid", "k1 k2", MessageKind.NORMAL)
    assert (published.success, published.body_bytes) == (True, 1)
    assert published.store_host == f"127.0.0.1:{cluster.brokers[0].config.broker.port}"


async def test_each_message_of_a_batch_has_a_trace_of_its_own(
    cluster: LiveCluster, admin: AsyncAdmin
) -> None:
    await cluster.create_topic("orders", 1)
    async with AsyncProducer("shop", nameserver=cluster.addresses, hooks=[TraceHook()]) as producer:
        receipt = await producer.send_batch([Message("orders", b"1"), Message("orders", b"2")])
    for message_id, offset_id in zip(
        receipt.message_id.split(","), receipt.offset_id.split(","), strict=True
    ):
        trace = await admin.traces.trace(message_id)
        assert only(trace, StepKind.SENT).message_id == offset_id


async def test_the_end_of_a_transaction_is_traced(cluster: LiveCluster, admin: AsyncAdmin) -> None:
    await cluster.create_topic("orders", 1)
    async with AsyncProducer(
        "shop",
        nameserver=cluster.addresses,
        hooks=[TraceHook()],
        checker=lambda message: TransactionState.UNKNOWN,
    ) as producer:
        paid = await producer.send_transaction(
            Message("orders", b"x", keys=["k"]), lambda *_: TransactionState.COMMIT
        )
    trace = await admin.traces.trace(paid.message_id)
    assert only(trace, StepKind.COMMITTED).note.startswith("COMMIT_MESSAGE")
    records = [
        record for message in await stored(cluster, TRACES) for record in decode_trace(message.body)
    ]
    half, ended = sorted(records, key=lambda record: isinstance(record, TransactionEnded))
    assert isinstance(half, Published)
    assert half.kind == MessageKind.TRANSACTION_HALF
    assert isinstance(ended, TransactionEnded)
    assert (ended.transaction_id, ended.from_check) == (paid.transaction_id, False)


async def test_a_send_that_failed_is_traced_as_a_failure(cluster: LiveCluster) -> None:
    await cluster.create_topic("orders", 1)
    async with AsyncProducer("shop", nameserver=cluster.addresses, hooks=[TraceHook()]) as producer:
        with pytest.raises(OnelogError):
            await producer.send(Message("orders", TOO_LARGE))
    (written,) = await stored(cluster, TRACES)
    (failed,) = decode_trace(written.body)
    assert isinstance(failed, Published)
    assert not failed.success


def context_of(group: str, body: bytes = b"x", **more: str) -> SendContext:
    context = SendContext(group, [Message("orders", body, **more)])  # type: ignore[arg-type]
    context.message_id, context.error = "ID" * 16, LookupError()
    return context


async def test_many_records_share_messages_that_are_not_too_large(
    cluster: LiveCluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(trace_hook, "KEYS_CHARACTERS_MAX", 2_000)
    hook = TraceHook(interval=3600)
    instance = Instance({"nameserver": cluster.addresses})
    await instance.start()
    for number in range(100):
        context = context_of("shop", keys=f"key-{number}")
        context.message_id = f"{number:032}"
        hook.after_send(context)
    await hook.start(instance)
    await hook.close()
    await instance.close()
    written = await stored(cluster, TRACES)
    assert 2 <= len(written) <= 4
    assert any(message.sys_flag & 1 for message in written) or all(
        len(message.body) <= trace_hook.COMPRESS_OVER_BYTES for message in written
    )
    records = [record for message in written for record in decode_trace(unpacked_body(message))]
    assert sorted(record.message_id for record in records) == [f"{n:032}" for n in range(100)]
    assert all(len(" ".join(message.keys)) <= 2_000 for message in written)
    assert hook.dropped == 0


async def test_twenty_records_do_not_wait_for_the_interval(cluster: LiveCluster) -> None:
    hook = TraceHook(interval=3600)
    instance = Instance({"nameserver": cluster.addresses})
    await instance.start()
    await hook.start(instance)
    for _ in range(trace_hook.BATCH_COUNT):
        await asyncio.to_thread(hook.after_send, context_of("shop"))

    async def is_written() -> bool:
        return bool(await stored(cluster, TRACES))

    await eventually(is_written, "the traces")
    await hook.close()
    await instance.close()


async def test_records_that_cannot_be_written_are_counted(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(trace_hook, "WAITING_MAX", 5)
    hook = TraceHook(interval=3600)
    instance = Instance({"nameserver": "127.0.0.1:1"})
    await instance.start()
    await hook.start(instance)
    for _ in range(8):
        hook.after_send(context_of("shop"))
    assert hook.dropped == 3
    await hook.close()
    await instance.close()
    assert hook.dropped == 8
    assert "127.0.0.1:1" in caplog.text


async def test_what_is_switched_off_or_not_known_is_not_traced(
    cluster: LiveCluster, admin: AsyncAdmin
) -> None:
    await cluster.create_topic("orders", 1)
    hook = TraceHook()
    instance = Instance({"nameserver": cluster.addresses})
    await instance.start()
    await hook.start(instance)
    hook.after_send(SendContext("shop", [Message("orders", b"one-way")]))
    about_traces = context_of("shop")
    about_traces.messages = [Message(TRACES, b"x")]
    hook.after_send(about_traces)
    (raw,) = [each.raw for each in await sent_without_trace(cluster)]
    await consume(hook, [ReceivedMessage(raw, "broker-a")])
    await hook.close()
    await instance.close()
    with pytest.raises(MessageNotFoundError):
        await admin.messages.by_key(TRACES, "quiet")
    assert await stored(cluster, TRACES) == []


async def sent_without_trace(cluster: LiveCluster) -> list[ReceivedMessage]:
    await cluster.send("orders", b"x", UNIQ_KEY="quiet")
    (found,) = await received(cluster, "orders")
    switched_off = found.raw.properties.replace(b"TRACE_ON\x01true", b"TRACE_ON\x01false")
    assert b"TRACE_ON\x01false" in switched_off
    return [ReceivedMessage(found.raw._replace(properties=switched_off), "broker-a")]


async def test_a_transaction_that_was_asked_about_is_traced_as_that(
    cluster: LiveCluster,
) -> None:
    hook = TraceHook()
    instance = Instance({"nameserver": cluster.addresses})
    await instance.start()
    await hook.start(instance)
    hook.transaction_ended(
        TransactionContext("g", "orders", "", "k", "id", "id", "ROLLBACK_MESSAGE", "h:1", True)
    )
    await hook.close()
    await instance.close()
    (written,) = await stored(cluster, TRACES)
    (ended,) = decode_trace(written.body)
    assert isinstance(ended, TransactionEnded)
    assert (ended.state, ended.from_check, ended.keys) == ("ROLLBACK_MESSAGE", True, "k")


async def test_a_delivery_and_its_consumption_know_of_each_other(cluster: LiveCluster) -> None:
    await cluster.create_topic("orders", 1)
    await cluster.send("orders", b"x", UNIQ_KEY="A")
    await cluster.send("orders", b"y", UNIQ_KEY="B")
    hook = TraceHook()
    instance = Instance({"nameserver": cluster.addresses})
    await instance.start()
    await hook.start(instance)
    await consume(hook, await received(cluster, "orders"), Outcome.EXCEPTION)
    await hook.close()
    await instance.close()
    (written,) = await stored(cluster, TRACES)
    first, second, third, fourth = decode_trace(written.body)
    assert isinstance(first, Delivered)
    assert isinstance(second, Delivered)
    assert isinstance(third, Consumed)
    assert isinstance(fourth, Consumed)
    assert [first.message_id, second.message_id] == ["A", "B"]
    assert [third.message_id, fourth.message_id] == ["A", "B"]
    assert len({each.request_id for each in (first, second, third, fourth)}) == 1
    assert (third.success, third.outcome) == (False, Outcome.EXCEPTION)


async def test_a_trace_hook_belongs_to_one_client() -> None:
    hook = TraceHook()
    instance = Instance({})
    await instance.start()
    await hook.start(instance)
    with pytest.raises(ConfigError, match="belongs to one client"):
        await hook.start(instance)
    await hook.close()
    await instance.close()
