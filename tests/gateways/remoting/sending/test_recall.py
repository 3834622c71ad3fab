"""Timed messages and their recall, as a producer sees them."""

import asyncio
import time
from pathlib import Path

import pytest

from onelog.message import decode_properties, encode_properties
from onelog.names import TIMER_TOPIC
from onelog.record.inner_batch import encode_batch
from onelog.wire.remoting.codes import RequestCode, ResponseCode
from onelog.wire.remoting.command import Command
from onelog.wire.remoting.recall_handle import RecallHandle
from tests.gateways.remoting.live import (
    Client,
    bodies,
    broker,
    client,
    messages,
    pass_time,
)
from tests.waiting import eventually

EARLY_MS = 0
LATE_MS = 20_000
"""The machine may be busy; how precise timers are is measured elsewhere."""


def now_ms() -> int:
    return time.time_ns() // 1_000_000


async def recall(producer: Client, handle: str, topic: str = "t") -> Command:
    return await producer.ask(
        RequestCode.RECALL_MESSAGE, topic=topic, recallHandle=handle, producerGroup="g"
    )


async def test_a_timed_message_is_delivered_in_time(tmp_path: Path) -> None:
    async with broker(tmp_path) as server, client(server) as producer:
        due_ms = now_ms() + 1_000
        properties = {"UNIQ_KEY": "U1", "TAGS": "a", "TIMER_DELIVER_MS": str(due_ms)}
        answer = await producer.send("t", b"timed", properties)
        assert answer.code == ResponseCode.SUCCESS
        assert (answer.ext["queueId"], answer.ext["transactionId"]) == ("0", "U1")
        assert (answer.ext["MSG_REGION"], answer.ext["TRACE_ON"]) == ("DefaultRegion", "true")
        assert RecallHandle.decode(answer.ext["recallHandle"]) == RecallHandle(
            "t", "broker-a", due_ms + 1, "U1"
        )
        held = await producer.pull("t", 0, sysFlag=6, suspendTimeoutMillis=30_000)
        (delivered,) = messages(held)
        assert EARLY_MS <= delivered.store_ms - due_ms <= LATE_MS
        assert (bytes(delivered.body), delivered.tags, delivered.flag) == (b"timed", "a", 7)
        own = decode_properties(delivered.properties)
        assert own["TIMER_OUT_MS"] == str(due_ms)
        assert not {"REAL_TOPIC", "REAL_QID"} & own.keys()
        waiting = messages(await producer.pull(TIMER_TOPIC, 0))
        assert [each.message_id for each in waiting] == [answer.ext["msgId"]]


async def test_only_messages_that_wait_get_a_handle(tmp_path: Path) -> None:
    async with broker(tmp_path) as server, client(server) as producer:
        for properties in ({"TIMER_DELAY_MS": "0"}, {"DELAY": "3", "TIMER_DELAY_MS": "9"}, {}):
            answer = await producer.send("t", b"x", properties)
            assert (answer.code, answer.ext.get("recallHandle")) == (0, None)
        delayed = await producer.send("t", b"x", {"TIMER_DELAY_SEC": "5"})
        assert delayed.ext["recallHandle"]


async def test_a_message_that_came_without_an_id_can_be_recalled_too(tmp_path: Path) -> None:
    async with broker(tmp_path) as server, client(server) as producer:
        sent = await producer.send("t", b"x", {"TIMER_DELAY_MS": "60000"})
        answer = await recall(producer, sent.ext["recallHandle"])
        assert (answer.code, answer.ext["msgId"]) == (0, sent.ext["transactionId"])
        assert answer.ext["MSG_REGION"] == "DefaultRegion"


async def test_a_recalled_message_does_not_come(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with broker(tmp_path) as server, client(server) as producer:
        sent = [
            await producer.send("t", b"%d" % number, {"TIMER_DELAY_MS": "60000"})
            for number in range(3)
        ]
        assert (await recall(producer, sent[1].ext["recallHandle"])).code == 0
        pass_time(server, 61_000, monkeypatch)
        await eventually(lambda: server.store.max_offset("t", 0) > 1)
        assert bodies(await producer.pull("t", 0)) == [b"0", b"2"]


async def test_recalls_that_cannot_be_are_refused(tmp_path: Path) -> None:
    async with broker(tmp_path) as server, client(server) as producer:
        sent = await producer.send("t", b"x", {"UNIQ_KEY": "U1", "TIMER_DELAY_MS": "100000"})
        await producer.send("other", b"x")
        handle = sent.ext["recallHandle"]
        good = RecallHandle.decode(handle)
        end = server.store.log_end
        refused = {
            "not match": await recall(producer, handle, "other"),
            "invalid": await recall(producer, "nonsense"),
            "on broker elsewhere": await recall(
                producer, good._replace(broker="elsewhere").encode()
            ),
            "timestamp": await recall(producer, good._replace(time_ms=1).encode()),
            "too far": await recall(producer, good._replace(time_ms=10**15).encode()),
        }
        for says, answer in refused.items():
            assert answer.code == ResponseCode.ILLEGAL_OPERATION
            assert says in (answer.remark or "")
        assert (await recall(producer, handle, "none")).code == ResponseCode.TOPIC_NOT_EXIST
        missing = await producer.ask(RequestCode.RECALL_MESSAGE, topic="t")
        assert missing.code == ResponseCode.SYSTEM_ERROR
        assert server.store.log_end == end
        assert (await recall(producer, handle)).code == 0


async def test_what_is_not_scheduled_can_be_recalled_and_nothing_else_is(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Also if a message of another topic has the same id (`appendTopicForTimerDeleteKey`)."""
    async with broker(tmp_path) as server, client(server) as producer:
        await producer.send("other", b"x")
        sent = await producer.send("t", b"x", {"UNIQ_KEY": "U1", "TIMER_DELAY_MS": "60000"})
        gone = await producer.send("t", b"y", {"UNIQ_KEY": "U2", "TIMER_DELAY_MS": "60000"})
        good = RecallHandle.decode(sent.ext["recallHandle"])
        end = server.store.log_end
        answer = await recall(producer, good._replace(topic="other").encode(), "other")
        assert (answer.code, answer.ext["msgId"]) == (0, "U1")
        assert (await recall(producer, good._replace(unique_key="U9").encode())).code == 0
        assert server.store.log_end == end
        for _ in range(2):
            assert (await recall(producer, gone.ext["recallHandle"])).code == 0
        pass_time(server, 61_000, monkeypatch)
        await eventually(lambda: server.store.max_offset("t", 0) > 0)
        assert bodies(await producer.pull("t", 0)) == [b"x"]


async def test_one_way_sends_and_recalls_are_not_answered(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with broker(tmp_path) as server, client(server) as producer:
        due_ms = now_ms() + 60_000
        own = encode_properties({"UNIQ_KEY": "U1", "TIMER_DELIVER_MS": str(due_ms)}).decode()
        await producer.send("t", b"first")
        ext = {"a": "g", "b": "t", "c": "TBW102", "d": "4", "e": "0", "f": "0", "g": "1", "h": "0"}
        producer.peer.oneway(RequestCode.SEND_MESSAGE_V2, {**ext, "i": own}, b"recalled")
        handle = RecallHandle("t", "broker-a", due_ms + 1, "U1").encode()
        await producer.send("t", b"second")
        producer.peer.oneway(RequestCode.RECALL_MESSAGE, {"topic": "t", "recallHandle": handle})
        # The message, and what takes it back.
        await eventually(lambda: server.store.max_offset(TIMER_TOPIC, 0) == 2)
        await producer.send("t", b"later", {"TIMER_DELIVER_MS": str(due_ms + 1_000)})
        pass_time(server, 62_000, monkeypatch)
        await eventually(lambda: server.store.max_offset("t", 0) > 2)
        assert bodies(await producer.pull("t", 0)) == [b"first", b"second", b"later"]


async def test_with_sync_flush_timed_messages_are_as_safe_as_others(tmp_path: Path) -> None:
    async with broker(tmp_path, store__flush="sync") as server, client(server) as producer:
        answer = await producer.send("t", b"x", {"TIMER_DELAY_MS": "60000"})
        assert answer.code == 0
        at = int(answer.ext["msgId"][16:], 16)
        assert server.store.log.flushed > at
        assert (await recall(producer, answer.ext["recallHandle"])).code == 0


async def test_a_message_of_a_batch_cannot_be_timed(tmp_path: Path) -> None:
    async with broker(tmp_path) as server, client(server) as producer:
        batch = encode_batch(
            [(0, b"TIMER_DELAY_MS", b""), (0, b"x", encode_properties({"TIMER_DELAY_MS": "5"}))]
        )
        ext = {
            "a": "g",
            "b": "t",
            "c": "TBW102",
            "d": 4,
            "e": 1,
            "f": 0,
            "g": 1,
            "h": 0,
            "m": "true",
        }
        answer = await producer.ask(RequestCode.SEND_BATCH_MESSAGE, batch, **ext)
        assert answer.code == ResponseCode.MESSAGE_ILLEGAL
        assert "by itself" in (answer.remark or "")
        plain = encode_batch([(0, b"TIMER_DELAY_MS", b"")])
        assert (await producer.ask(RequestCode.SEND_BATCH_MESSAGE, plain, **ext)).code == 0


@pytest.mark.parametrize("seconds", [0.0, 0.3])
async def test_a_restarted_broker_delivers_what_fell_due_meanwhile(
    tmp_path: Path, seconds: float
) -> None:
    async with broker(tmp_path) as server, client(server) as producer:
        await producer.send("t", b"1", {"TIMER_DELAY_MS": "200"})
        kept = await producer.send("t", b"2", {"TIMER_DELAY_MS": "60000"})
    await asyncio.sleep(seconds)
    async with broker(tmp_path) as server, client(server) as producer:
        held = await producer.pull("t", 0, sysFlag=6, suspendTimeoutMillis=30_000)
        assert bodies(held) == [b"1"]
        assert (await recall(producer, kept.ext["recallHandle"])).code == 0
