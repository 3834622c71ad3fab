"""Pulling, as a consumer sees it."""

import asyncio
import os
import time
from pathlib import Path

import pytest

from onelog.gateways.remoting.consuming.fetching import SLICES_MAX
from onelog.message import NewMessage
from onelog.wire.remoting.codes import RequestCode, ResponseCode
from onelog.wire.remoting.fields import AS_STORED, BULK_BYTES
from tests import disk
from tests.gateways.remoting.live import bodies, broker, client, messages, remoting
from tests.record.forms.samples import kafka_batch, neutrals
from tests.waiting import eventually

SUSPEND = 4 | 2


async def test_pulls_answer_with_the_records_as_they_are_stored(tmp_path: Path) -> None:
    async with broker(tmp_path) as server, client(server) as both:
        for n in range(10):
            await both.send("t", b"%d" % n)
        answer = await both.pull("t", 3, maxMsgNums=4)
        assert answer.code == ResponseCode.SUCCESS
        assert bodies(answer) == [b"3", b"4", b"5", b"6"]
        assert {k: answer.ext[k] for k in ("nextBeginOffset", "minOffset", "maxOffset")} == {
            "nextBeginOffset": "7",
            "minOffset": "0",
            "maxOffset": "10",
        }
        assert answer.ext["suggestWhichBrokerId"] == "0"


@pytest.mark.parametrize(
    ("topic", "offset", "code", "following"),
    [
        ("t", 2, ResponseCode.PULL_NOT_FOUND, "2"),
        ("t", 3, ResponseCode.PULL_OFFSET_MOVED, "2"),
        ("t", -7, ResponseCode.PULL_OFFSET_MOVED, "0"),
        ("empty", 0, ResponseCode.PULL_NOT_FOUND, "0"),
        ("empty", 5, ResponseCode.PULL_OFFSET_MOVED, "0"),
    ],
)
async def test_pulls_outside_the_queue_say_where_to_go_on(
    tmp_path: Path, topic: str, offset: int, code: int, following: str
) -> None:
    async with broker(tmp_path) as server, client(server) as both:
        await both.send("t", b"0")
        await both.send("t", b"1")
        await both.send("empty", b"in another queue", e=1)
        answer = await both.pull(topic, offset)
        assert (answer.code, answer.ext["nextBeginOffset"]) == (code, following)


async def test_a_held_pull_is_answered_the_moment_a_message_arrives(tmp_path: Path) -> None:
    async with broker(tmp_path) as server, client(server) as consumer, client(server) as producer:
        await producer.send("t", b"before")
        # Far longer than a test may take: what answers it is the message.
        held = asyncio.create_task(
            consumer.pull("t", 1, sysFlag=SUSPEND, suspendTimeoutMillis=600_000)
        )
        await eventually(lambda: len(server.core.waiting) == 1)
        assert not held.done()
        await producer.send("t", b"now")
        assert bodies(await held) == [b"now"]
        assert len(server.core.waiting) == 0


async def test_a_held_pull_ends_when_its_time_is_up(tmp_path: Path) -> None:
    async with broker(tmp_path) as server, client(server) as both:
        await both.send("t", b"x")
        began = time.monotonic()
        answer = await both.pull("t", 1, sysFlag=SUSPEND, suspendTimeoutMillis=300)
        assert answer.code == ResponseCode.PULL_NOT_FOUND
        assert time.monotonic() - began >= 0.3


async def test_a_held_pull_is_not_woken_by_tags_it_does_not_want(tmp_path: Path) -> None:
    async with broker(tmp_path) as server, client(server) as consumer, client(server) as producer:
        await producer.send("t", b"first", {"TAGS": "a"})
        held = asyncio.create_task(
            consumer.pull("t", 1, sysFlag=SUSPEND, suspendTimeoutMillis=60_000, subscription="b")
        )
        await eventually(lambda: len(server.core.waiting) == 1)
        await producer.send("t", b"no", {"TAGS": "a"})
        await asyncio.sleep(0.1)
        assert not held.done()
        await producer.send("t", b"yes", {"TAGS": "b"})
        assert bodies(await held) == [b"yes"]


async def test_a_connection_that_closes_takes_its_held_pulls_along(tmp_path: Path) -> None:
    async with broker(tmp_path) as server, client(server) as producer:
        await producer.send("t", b"x")
        async with client(server) as consumer:
            held = asyncio.create_task(
                consumer.pull("t", 1, sysFlag=SUSPEND, suspendTimeoutMillis=60_000)
            )
            await eventually(lambda: len(server.core.waiting) == 1)
            held.cancel()
        await eventually(lambda: len(server.core.waiting) == 0)


async def test_filters_by_tag_and_by_property(tmp_path: Path) -> None:
    async with broker(tmp_path) as server, client(server) as both:
        for n in range(10):
            await both.send("t", b"%d" % n, {"TAGS": "ab"[n % 2], "n": str(n)})
        assert bodies(await both.pull("t", 0, subscription="b")) == [b"1", b"3", b"5", b"7", b"9"]
        sql = await both.pull("t", 0, subscription="n > 6", expressionType="SQL92")
        assert bodies(sql) == [b"7", b"8", b"9"]
        nothing = await both.pull("t", 0, subscription="c")
        assert (nothing.code, nothing.ext["nextBeginOffset"]) == (
            ResponseCode.PULL_RETRY_IMMEDIATELY,
            "10",
        )
        bad = await both.pull("t", 0, subscription="n >", expressionType="SQL92")
        assert bad.code == ResponseCode.SUBSCRIPTION_PARSE_FAILED


async def test_a_crowd_of_slow_filters_takes_turns_and_others_are_served_between(
    tmp_path: Path,
) -> None:
    sql = " or ".join(f"n = {n}" for n in range(-500, 0))
    async with (
        broker(tmp_path, broker__filter_budget_ms=1) as server,
        client(server) as greedy,
        client(server) as other,
    ):
        for n in range(50):
            await other.send("t", b"%d" % n, {"n": str(n)})
        tasks = [
            asyncio.create_task(greedy.pull("t", 0, subscription=sql, expressionType="SQL92"))
            for _ in range(100)
        ]
        answered_before: list[int] = []
        for _ in range(3):
            assert (await other.send("t", b"x")).code == ResponseCode.SUCCESS
            answered_before.append(sum(task.done() for task in tasks))
        answers = await asyncio.gather(*tasks)
        assert answered_before[-1] < 100
        assert {answer.code for answer in answers} == {ResponseCode.PULL_RETRY_IMMEDIATELY}
        assert all(0 < int(answer.ext["nextBeginOffset"]) <= 53 for answer in answers)
        offset = 0
        while offset < 50:
            answer = await greedy.pull("t", offset, subscription=sql, expressionType="SQL92")
            assert int(answer.ext["nextBeginOffset"]) > offset
            offset = int(answer.ext["nextBeginOffset"])


async def test_push_consumers_pull_by_what_their_heartbeat_said(tmp_path: Path) -> None:
    async with broker(tmp_path) as server, client(server) as consumer:
        await consumer.send("t", b"a", {"TAGS": "a"})
        await consumer.send("t", b"b", {"TAGS": "b"})
        early = await consumer.pull("t", 0, sysFlag=0, consumerGroup="g")
        assert early.code == ResponseCode.SUBSCRIPTION_NOT_EXIST
        await consumer.heartbeat("c1", "g", "t", "b")
        assert bodies(await consumer.pull("t", 0, sysFlag=0, consumerGroup="g")) == [b"b"]
        newer = await consumer.pull("t", 0, sysFlag=0, consumerGroup="g", subVersion=99)
        assert newer.code == ResponseCode.SUBSCRIPTION_NOT_LATEST


async def test_a_pull_can_commit_a_position_on_the_way(tmp_path: Path) -> None:
    async with broker(tmp_path) as server, client(server) as both:
        for n in range(5):
            await both.send("t", b"%d" % n)
        await both.pull("t", 4, sysFlag=4 | 1, commitOffset=4)
        answer = await both.ask(
            RequestCode.QUERY_CONSUMER_OFFSET, consumerGroup="pullers", topic="t", queueId=0
        )
        assert answer.ext["offset"] == "4"


async def test_data_that_is_not_in_memory_is_read_elsewhere_and_arrives(tmp_path: Path) -> None:
    async with broker(tmp_path) as server, client(server) as both:
        for n in range(40):
            await both.send("t", b"%02d" % n + b"x" * 20_000)
    async with broker(tmp_path) as server, client(server) as both:
        for segment in server.store.log.segments:
            fd = os.open(segment.path, os.O_RDONLY)
            disk.fsync(fd)
            os.posix_fadvise(fd, 0, 0, os.POSIX_FADV_DONTNEED)
            os.close(fd)
        server.core.reader.cold_count_max = 8
        offset, seen = 0, []
        while offset < 40:
            answer = await both.pull("t", offset)
            assert answer.code == ResponseCode.SUCCESS
            seen += [each.queue_offset for each in messages(answer)]
            offset = int(answer.ext["nextBeginOffset"])
        assert seen == list(range(40))


@pytest.mark.parametrize("queues", [1, 3])
async def test_a_bulk_reader_gets_its_bytes_in_one_answer(tmp_path: Path, queues: int) -> None:
    async with broker(tmp_path) as server, client(server) as both:
        for n in range(3 * SLICES_MAX):
            for queue in range(queues):
                server.core.store.append([NewMessage("t", queue, b"%d" % n)])
        await both.send("t", b"last")
        answer = await both.pull("t", 0, **{BULK_BYTES: 1 << 20, "maxMsgNums": 9_999})
        assert bodies(answer) == [b"%d" % n for n in range(3 * SLICES_MAX)] + [b"last"]
        few = await both.pull("t", 0, **{BULK_BYTES: 1_000, "maxMsgNums": 9_999})
        assert 0 < len(few.body) <= 1_000


async def test_a_bulk_reader_may_have_batches_as_they_are_stored(tmp_path: Path) -> None:
    async with broker(tmp_path) as server, client(server) as both:
        await both.send("t", b"first")
        server.core.marked.mark("t")
        batch = kafka_batch(neutrals(10), "t")
        server.core.store.append([batch])
        bulk = {BULK_BYTES: 1 << 20, AS_STORED: "true"}
        answer = await both.pull("t", 3, **bulk)
        assert (answer.ext[AS_STORED], answer.ext["nextBeginOffset"]) == ("true", "11")
        assert bodies(answer) == [batch.body]
        converted = (
            {AS_STORED: "true"},
            {BULK_BYTES: 1 << 20},
            {BULK_BYTES: 1 << 20, AS_STORED: "false"},
            {**bulk, "expressionType": "SQL92", "subscription": "TAGS = 'even'"},
        )
        for asked in converted:
            answer = await both.pull("t", 1, **asked)
            assert AS_STORED not in answer.ext
            assert all(each.inner_count == 1 for each in messages(answer))


@pytest.mark.parametrize(
    ("changed", "code"),
    [
        ({BULK_BYTES: "many"}, ResponseCode.SYSTEM_ERROR),
        ({"topic": "nowhere"}, ResponseCode.TOPIC_NOT_EXIST),
        ({"queueId": 77}, ResponseCode.INVALID_PARAMETER),
        ({"queueId": -1}, ResponseCode.INVALID_PARAMETER),
        ({"queueOffset": "x"}, ResponseCode.SYSTEM_ERROR),
        ({"maxMsgNums": ""}, ResponseCode.SYSTEM_ERROR),
    ],
)
async def test_bad_pulls_are_answered_with_their_code(
    tmp_path: Path, changed: dict[str, object], code: int
) -> None:
    async with broker(tmp_path) as server, client(server) as both:
        await both.send("t", b"x")
        asked = {"topic": "t", "offset": 0, **changed}
        assert (await both.pull(**asked)).code == code  # type: ignore[arg-type]
        assert bodies(await both.pull("t", 0)) == [b"x"]


async def test_members_that_subscribe_differently_each_get_what_they_asked_for(
    tmp_path: Path,
) -> None:
    async with broker(tmp_path) as server, client(server) as one, client(server) as other:
        for number, tag in enumerate("abab"):
            await one.send("t", b"%d" % number, {"TAGS": tag})
        await one.heartbeat("c1", "readers", "t", "a")
        await other.heartbeat("c2", "readers", "t", "b")
        for _ in range(2):
            # Without a subscription of its own, a pull is filtered as its member said it.
            how = {"consumerGroup": "readers", "sysFlag": 0}
            assert bodies(await one.pull("t", 0, **how)) == [b"0", b"2"]
            assert bodies(await other.pull("t", 0, **how)) == [b"1", b"3"]
            await one.heartbeat("c1", "readers", "t", "a")


async def test_who_is_far_behind_is_sent_to_a_slave_and_back_when_it_has_caught_up(
    tmp_path: Path,
) -> None:
    async with (
        broker(tmp_path, replication__slave_reads=True) as server,
        client(server) as both,
    ):
        gateway = remoting(server)
        memory = os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
        assert gateway.far_bytes == memory * 40 // 100
        gateway.far_bytes = 5_000
        for _ in range(3):
            await both.send("t", bytes(10_000))
        answer = await both.pull("t", 0, maxMsgNums=1)
        assert answer.ext["suggestWhichBrokerId"] == "1"
        answer = await both.pull("t", 2, maxMsgNums=1)
        assert answer.ext["suggestWhichBrokerId"] == "0"
        answer = await both.pull("t", 3)
        assert (answer.code, answer.ext["suggestWhichBrokerId"]) == (
            ResponseCode.PULL_NOT_FOUND,
            "0",
        )


@pytest.mark.parametrize(
    ("topic", "offset"), [("t", 3), ("t", 99), ("t", -7), ("empty", 5), ("empty", 0)]
)
async def test_a_slave_moves_nobody_because_of_what_it_lacks(
    tmp_path: Path, topic: str, offset: int
) -> None:
    async with broker(tmp_path) as server, client(server) as both:
        await both.send("t", b"0")
        await both.send("t", b"1")
        await both.send("empty", b"in another queue", e=1)
        server.core.fetches.follows = True
        answer = await both.pull(topic, offset)
        assert answer.code == ResponseCode.PULL_NOT_FOUND
        assert answer.ext["nextBeginOffset"] == str(offset)
