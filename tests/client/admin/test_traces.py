"""The story of a message, put together from copies, traces and positions."""

from pathlib import Path

import pytest

from onelog.client.admin.admin import AsyncAdmin
from onelog.client.admin.traces import Fate, MessageTrace, Step, StepKind
from onelog.clock import SystemClock
from onelog.core.access import SELF
from onelog.core.publish import Intent
from onelog.errors import MessageNotFoundError
from onelog.message import NewMessage, encode_properties
from onelog.record.compression import Compression, compress
from onelog.wire.remoting.codes import RequestCode
from onelog.wire.remoting.trace import (
    Consumed,
    Delivered,
    Published,
    Recalled,
    TraceRecord,
    TransactionEnded,
    encode_trace,
    trace_keys,
)
from tests.client.admin.test_groups import commit
from tests.client.letters import give_up
from tests.client.live_cluster import LiveCluster, live_cluster
from tests.gateways.remoting.live import messages

KEY = "7F00000100002A9F0000018BCFE56801"
BORN_MS = 1_700_000_000_000
"""When the test's client says that its messages are born."""


async def write_trace(
    cluster: LiveCluster, *records: TraceRecord, topic: str = "RMQ_SYS_TRACE_TOPIC", broker: int = 0
) -> None:
    await cluster.send(
        topic, encode_trace(records), broker=broker, KEYS=" ".join(trace_keys(records))
    )


def published(at_ms: int, success: bool = True) -> Published:
    return Published(
        at_ms,
        "DefaultRegion",
        "shop",
        "orders",
        KEY,
        "paid",
        "k1",
        "127.0.0.1:10911",
        4,
        3,
        0,
        "OFFSET-ID",
        success,
    )


def delivery(at_ms: int, retry: int, success: bool, group: str = "readers") -> list[TraceRecord]:
    request = f"REQ-{group}-{retry}"
    outcome = 0 if success else 4
    return [
        Delivered(at_ms, "DefaultRegion", group, request, KEY, retry, "k1"),
        Consumed(request, KEY, 20, success, "k1", outcome, at_ms + 20, group),
    ]


def kinds(trace: MessageTrace) -> list[StepKind]:
    return [step.kind for step in trace.steps]


def only(trace: MessageTrace, kind: StepKind) -> Step:
    (step,) = [step for step in trace.steps if step.kind is kind]
    return step


async def test_a_message_that_nobody_traced_still_has_a_story(
    admin: AsyncAdmin, cluster: LiveCluster
) -> None:
    await cluster.create_topic("orders", 1)
    sent = await cluster.send("orders", b"x", UNIQ_KEY=KEY, KEYS="k1")
    for trace in (
        await admin.traces.trace(sent),
        await admin.traces.trace(KEY, topic="orders"),
    ):
        assert (trace.unique_key, trace.topic, trace.traced) == (KEY, "orders", False)
        assert (trace.born_ms, trace.failures) == (BORN_MS, ())
        assert kinds(trace) == [StepKind.BORN, StepKind.STORED]
        stored = only(trace, StepKind.STORED)
        assert (stored.place, stored.message_id) == ("broker-a/0@0", sent)
        assert trace.first is not None
        assert trace.first.keys == ["k1"]
        assert trace.fates == ()


async def test_positions_tell_who_is_past_the_message(
    admin: AsyncAdmin, cluster: LiveCluster
) -> None:
    await cluster.create_topic("orders", 1)
    sent = await cluster.send("orders", b"x", UNIQ_KEY=KEY)
    for group, offset in (("fast", 1), ("slow", 0)):
        client = await cluster.client()
        await client.heartbeat(f"client of {group}", group, "orders")
        await commit(client, group, "orders", 0, offset)
    trace = await admin.traces.trace(sent)
    assert trace.fates == (
        Fate("fast", "is past it", 0, 0),
        Fate("slow", "has yet to come to it", 0, 0),
    )


async def test_traces_tell_of_sending_delivery_and_consumption(
    admin: AsyncAdmin, cluster: LiveCluster
) -> None:
    await cluster.create_topic("orders", 1)
    sent = await cluster.send("orders", b"x", UNIQ_KEY=KEY)
    now_ms = SystemClock().now_ms()
    await write_trace(cluster, published(BORN_MS))
    await write_trace(cluster, *delivery(now_ms + 100, 0, True))
    trace = await admin.traces.trace(KEY)
    assert trace == await admin.traces.trace(sent)
    assert trace.traced
    assert kinds(trace) == [
        StepKind.BORN,
        StepKind.SENT,
        StepKind.STORED,
        StepKind.DELIVERED,
        StepKind.CONSUMED,
    ]
    was_sent = only(trace, StepKind.SENT)
    assert (was_sent.group, was_sent.took_ms, was_sent.message_id) == ("shop", 3, "OFFSET-ID")
    assert was_sent.place.startswith("127.0.0.1:")
    consumed = only(trace, StepKind.CONSUMED)
    assert (consumed.at_ms, consumed.took_ms, consumed.retry) == (now_ms + 120, 20, 0)
    assert trace.fates == (Fate("readers", "consumed", now_ms + 120, 1),)


async def test_failures_and_retries_follow_each_other(tmp_path: Path) -> None:
    async with (
        live_cluster(tmp_path, store__delay_levels="1s 1s 1s 1s") as cluster,
        cluster.admin() as admin,
    ):
        await cluster.create_topic("orders", 1)
        sent = await cluster.send("orders", b"x", UNIQ_KEY=KEY)
        client = await cluster.client()
        answer = await client.ask(
            RequestCode.CONSUMER_SEND_MSG_BACK,
            offset=int(sent[16:], 16),
            group="readers",
            delayLevel=0,
            maxReconsumeTimes=16,
        )
        assert answer.code == 0
        await commit(client, "readers", "orders", 0, 1)
        trace = await admin.traces.trace(sent)
        assert kinds(trace) == [StepKind.BORN, StepKind.STORED, StepKind.SENT_BACK]
        back = only(trace, StepKind.SENT_BACK)
        assert (back.group, back.retry, back.note) == ("readers", 1, "delay level 3")
        assert [fate.state for fate in trace.fates] == ["waits to be retried"]
        pulled = await client.pull(
            "%RETRY%readers", 0, consumerGroup="readers", sysFlag=6, suspendTimeoutMillis=10_000
        )
        (again,) = messages(pulled)
        trace = await admin.traces.trace(sent)
        retried = only(trace, StepKind.RETRIED)
        assert (retried.message_id, retried.retry) == (again.message_id, 1)
        assert 900 <= retried.at_ms - back.at_ms < 3_000
        assert [fate.state for fate in trace.fates] == ["is to be retried"]
        await commit(client, "readers", "%RETRY%readers", 0, 1)
        trace = await admin.traces.trace(again.message_id)
        assert [fate.state for fate in trace.fates] == ["is past its last retry"]
        # The first delivery takes 20 ms, and the message is sent back as soon as it has failed.
        await write_trace(cluster, *delivery(back.at_ms - 20, 0, False))
        await write_trace(cluster, *delivery(retried.at_ms + 10, 1, True))
        trace = await admin.traces.trace(KEY, topic="orders")
        assert [kind for kind in kinds(trace) if kind is not StepKind.STORED] == [
            StepKind.BORN,
            StepKind.DELIVERED,
            StepKind.FAILED,
            StepKind.SENT_BACK,
            StepKind.RETRIED,
            StepKind.DELIVERED,
            StepKind.CONSUMED,
        ]
        assert only(trace, StepKind.FAILED).took_ms == 20
        assert trace.fates == (Fate("readers", "consumed", retried.at_ms + 30, 2),)


async def test_a_dead_letter_and_its_resending_are_steps(
    admin: AsyncAdmin, cluster: LiveCluster
) -> None:
    await cluster.create_topic("orders", 1)
    client = await cluster.client()
    await client.heartbeat("c1", "readers", "orders")
    await give_up(client, await cluster.send("orders", b"x", UNIQ_KEY=KEY))
    trace = await admin.traces.trace(KEY, topic="orders")
    dead = only(trace, StepKind.DEAD)
    assert (dead.group, dead.retry) == ("readers", 1)
    assert [fate.state for fate in trace.fates] == ["dead letter"]
    by_letter = await admin.traces.trace(dead.message_id)
    assert (by_letter.topic, by_letter.steps) == ("orders", trace.steps)
    await admin.dead_letters.resend_all("readers")
    trace = await admin.traces.trace(KEY, topic="orders")
    notes = [step.note for step in trace.steps if step.kind is StepKind.STORED]
    assert notes == ["", f"resent from the dead letter {dead.message_id}"]


async def test_delays_and_transactions_are_steps(admin: AsyncAdmin, cluster: LiveCluster) -> None:
    await cluster.create_topic("orders", 1)
    await cluster.send("orders", b"x", UNIQ_KEY=KEY, DELAY="5")
    trace = await admin.traces.trace(KEY, topic="orders")
    assert kinds(trace) == [StepKind.BORN, StepKind.DELAYED]
    assert only(trace, StepKind.DELAYED).note == "delay level 5"
    assert trace.first is None
    due_ms = SystemClock().now_ms() + 3_600_000
    timed = "A" * 32
    properties = encode_properties({"UNIQ_KEY": timed, "TIMER_DELIVER_MS": str(due_ms)})
    cluster.brokers[0].broker.publish.send(
        SELF,
        NewMessage("orders", 0, b"x", properties),
        lambda token, appended, error: None,
        None,
        Intent(due_ms),
    )
    trace = await admin.traces.trace(timed, topic="orders")
    assert only(trace, StepKind.DELAYED).note == f"until {due_ms}"
    half = "B" * 32
    await cluster.send("orders", b"x", UNIQ_KEY=half, TRAN_MSG="true", PGROUP="shop")
    ended = TransactionEnded(
        BORN_MS + 5,
        "DefaultRegion",
        "shop",
        "orders",
        half,
        "",
        "",
        "127.0.0.1:10911",
        2,
        half,
        "COMMIT_MESSAGE",
        True,
    )
    await write_trace(cluster, ended, Recalled(BORN_MS + 9, "r", "shop", "orders", half, False))
    trace = await admin.traces.trace(half)
    assert kinds(trace) == [
        StepKind.BORN,
        StepKind.COMMITTED,
        StepKind.RECALLED,
        StepKind.PREPARED,
    ]
    assert only(trace, StepKind.COMMITTED).note == "COMMIT_MESSAGE, when asked"
    assert only(trace, StepKind.RECALLED).note == "failed"


async def test_older_clients_leave_out_when_and_for_whom(
    admin: AsyncAdmin, cluster: LiveCluster
) -> None:
    given = Delivered(BORN_MS + 50, "r", "readers", "REQ", KEY, 2, "")
    done = Consumed("REQ", KEY, 20, False, "", 1)
    orphan = Consumed("GONE", KEY, 5, True, "")
    await write_trace(cluster, published(BORN_MS, False), given, done)
    await write_trace(cluster, orphan)
    trace = await admin.traces.trace(KEY)
    assert only(trace, StepKind.SENT).note == "failed"
    failed = only(trace, StepKind.FAILED)
    assert (failed.at_ms, failed.group, failed.retry) == (BORN_MS + 70, "readers", 2)
    assert failed.note == "time out"
    assert only(trace, StepKind.CONSUMED).at_ms == BORN_MS
    assert (trace.born_ms, trace.first) == (BORN_MS, None)


async def test_records_of_other_messages_and_broken_ones_are_left_out(
    admin: AsyncAdmin, cluster: LiveCluster
) -> None:
    other = Recalled(BORN_MS, "r", "shop", "orders", "C" * 32, True)
    await write_trace(cluster, published(BORN_MS), other)
    await cluster.send("RMQ_SYS_TRACE_TOPIC", b"Recall\x01x\x02", KEYS=KEY)
    await cluster.send("RMQ_SYS_TRACE_TOPIC", b"\xff", KEYS=KEY)
    trace = await admin.traces.trace(KEY)
    assert kinds(trace) == [StepKind.SENT]
    assert ["no Recall record" in each.reason for each in trace.failures] == [True, False]


async def test_more_traces_than_one_answer_holds_on_two_brokers(tmp_path: Path) -> None:
    async with live_cluster(tmp_path, brokers=2) as cluster, cluster.admin() as admin:
        await write_trace(cluster, published(BORN_MS))
        for retry in range(50):
            await write_trace(
                cluster,
                *delivery(BORN_MS + 1_000 * retry + 1, retry, retry == 49),
                broker=retry % 2,
            )
        trace = await admin.traces.trace(KEY)
        assert len(trace.steps) == 101
        (fate,) = trace.fates
        assert (fate.state, fate.deliveries) == ("consumed", 50)


async def test_traces_may_be_in_another_topic(admin: AsyncAdmin, cluster: LiveCluster) -> None:
    await cluster.create_topic("my-traces", 1)
    await write_trace(cluster, published(BORN_MS), topic="my-traces")
    assert kinds(await admin.traces.trace(KEY, trace_topic="my-traces")) == [StepKind.SENT]
    with pytest.raises(MessageNotFoundError, match="say the topic"):
        await admin.traces.trace(KEY)


async def test_what_is_not_there_is_not_found(admin: AsyncAdmin, cluster: LiveCluster) -> None:
    await cluster.create_topic("orders", 1)
    with pytest.raises(MessageNotFoundError, match="no message of topic orders"):
        await admin.traces.trace(KEY, topic="orders")
    with pytest.raises(MessageNotFoundError):
        await admin.traces.trace("no id at all")
    with pytest.raises(MessageNotFoundError):
        await admin.traces.trace(KEY, topic="nowhere")


async def test_traces_that_were_compressed_are_read(
    admin: AsyncAdmin, cluster: LiveCluster
) -> None:
    client = await cluster.client()
    answer = await client.send(
        "RMQ_SYS_TRACE_TOPIC",
        compress(encode_trace([published(BORN_MS)]), Compression.ZLIB),
        {"KEYS": KEY},
        f=Compression.ZLIB.sys_flag,
    )
    assert answer.code == 0, answer.remark
    trace = await admin.traces.trace(KEY)
    assert (kinds(trace), trace.failures) == ([StepKind.SENT], ())
