"""One queue is pulled as far as there is room, and committed as far as it is consumed."""

import asyncio
from collections.abc import AsyncIterator, Callable
from pathlib import Path

import pytest

from onelog.client.consumer import fetching as fetching_module
from onelog.client.consumer.listening import RetryLater
from onelog.client.consumer.push import pulling as module
from onelog.client.message import Queue
from onelog.message import NewMessage, SysFlag
from onelog.record.inner_batch import encode_batch
from onelog.wire.remoting.codes import RequestCode, ResponseCode
from onelog.wire.remoting.command import Command
from tests.client.live_cluster import LiveCluster, live_cluster
from tests.client.pull_member import GROUP, Member, pulling
from tests.client.watching import bodies
from tests.waiting import eventually

QUEUE = Queue("orders", "broker-a", 0)


@pytest.fixture
async def cluster(tmp_path: Path) -> AsyncIterator[LiveCluster]:
    async with live_cluster(tmp_path) as running:
        await running.create_topic("orders", 1)
        yield running


async def send(cluster: LiveCluster, count: int, size: int = 10) -> None:
    for number in range(count):
        await cluster.send("orders", f"{number}".encode().ljust(size))


async def settled(member: Member) -> int:
    """How many messages were handed over when nothing more comes for a while."""
    count = -1
    while count != len(member.taken):
        count = len(member.taken)
        await asyncio.sleep(0.1)
    return count


async def test_pulling_stops_at_so_many_messages_and_goes_on_when_some_are_done(
    cluster: LiveCluster,
) -> None:
    await send(cluster, 100)
    async with pulling(cluster, prefetch_count=20) as member:
        await eventually(lambda: len(member.taken) >= 20, "as much as fits is here")
        assert await settled(member) == 20
        member.finish(5)
        await eventually(lambda: len(member.taken) == 20, "there is room for five more")
        assert await settled(member) == 20
        assert member.numbers == list(range(5, 25))


async def test_pulling_stops_at_so_many_bytes(cluster: LiveCluster) -> None:
    await send(cluster, 80, size=1000)
    async with pulling(cluster, prefetch_bytes=20_000) as member:
        # What one pull brings may go over the limit; then none follows.
        await eventually(lambda: bool(member.taken), "something is here")
        count = await settled(member)
        assert 20 <= count <= 52
        member.finish()
        await eventually(lambda: bool(member.taken), "and goes on")


async def test_one_message_larger_than_the_limit_is_no_end(cluster: LiveCluster) -> None:
    await send(cluster, 3, size=5000)
    async with pulling(cluster, prefetch_bytes=1, prefetch_count=1) as member:
        for number in range(3):
            await eventually(lambda: len(member.taken) == 1, "one at a time")
            assert member.numbers == [number]
            member.finish()


async def test_pulling_stops_when_one_message_stays_behind_for_too_long(
    cluster: LiveCluster,
) -> None:
    await send(cluster, 200)
    async with pulling(cluster, prefetch_span=50) as member:
        await eventually(lambda: bool(member.taken), "something is here")
        slow = member.taken.pop(0)
        while await settled(member):
            member.finish()
        last = member.queue().process_queue.next_offset
        assert 50 <= last <= 82
        assert member.queue().process_queue.committable == 0
        source, message = slow
        source.done([message])
        await eventually(lambda: bool(member.taken), "it goes on")


async def test_each_pull_tells_how_far_the_queue_is(cluster: LiveCluster) -> None:
    await send(cluster, 60)
    async with pulling(cluster, prefetch_count=30) as member:
        await eventually(lambda: len(member.taken) == 30, "as much as fits is here")
        member.finish(10)
        await eventually(
            lambda: cluster.brokers[0].core.offsets.get(GROUP, "orders", 0) == 10,
            "the broker knows of ten",
        )
        assert member.queue().info().commit_offset == 10
        assert member.queue().info().cached_msg_count == 30
        member.taken[-1][0].done([member.taken[-1][1]])
        assert member.queue().process_queue.committable == 10


async def test_a_message_that_failed_goes_back_and_is_not_in_hand_then(
    cluster: LiveCluster,
) -> None:
    async with pulling(cluster) as member:
        await send(cluster, 2)
        await eventually(lambda: len(member.taken) == 2, "both are here")
        source, message = member.taken[0]
        source.failed([message], RetryLater(delay_level=1))
        await eventually(lambda: member.queue().process_queue.committable == 1, "it is given back")
        await eventually(lambda: len(member.taken) == 3, "it comes again")
        again = member.taken[2][1]
        assert (again.topic, again.body, again.delivery_attempt) == ("orders", message.body, 2)
        assert again.queue.topic == f"%RETRY%{GROUP}"


async def test_giving_back_is_tried_until_a_broker_takes_the_message(
    cluster: LiveCluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "GIVE_BACK_SECONDS", (0.01,))
    async with pulling(cluster, patch=monkeypatch) as member:
        await send(cluster, 1)
        await eventually(lambda: len(member.taken) == 1, "it is here")
        busy = Command(ResponseCode.SYSTEM_BUSY, remark="busy", flag=1)
        member.answers[RequestCode.CONSUMER_SEND_MSG_BACK] = lambda: busy
        member.answers[RequestCode.SEND_MESSAGE_V2] = lambda: busy
        source, message = member.taken[0]
        source.failed([message], ValueError())
        await eventually(
            lambda: len(member.asked[RequestCode.CONSUMER_SEND_MSG_BACK]) >= 3, "three tries"
        )
        assert member.queue().process_queue.committable == 0
        member.answers.clear()
        await eventually(lambda: member.queue().process_queue.committable == 1, "it is given back")
        sent = member.asked[RequestCode.CONSUMER_SEND_MSG_BACK][0]
        assert sent["group"] == GROUP
        assert sent["originMsgId"] == message.offset_id
        assert (sent["originTopic"], sent["offset"]) == ("orders", str(message.raw.log_offset))
        assert (sent["delayLevel"], sent["unitMode"]) == ("0", "false")


Answers = dict[int, Callable[[], Command]]


@pytest.mark.parametrize(
    "code", [ResponseCode.SYSTEM_BUSY, ResponseCode.FLOW_CONTROL, ResponseCode.SYSTEM_ERROR]
)
async def test_a_broker_that_refuses_is_asked_again(
    cluster: LiveCluster, monkeypatch: pytest.MonkeyPatch, code: int
) -> None:
    monkeypatch.setattr(fetching_module, "RETRY_SECONDS", 0.02)
    refusals = [Command(code, remark="not now", flag=1) for _ in range(3)]
    answers: Answers = {}

    def refuse() -> Command:
        refusal = refusals.pop()
        if not refusals:
            answers.clear()
        return refusal

    answers[RequestCode.PULL_MESSAGE] = refuse
    await send(cluster, 1)
    async with pulling(cluster, patch=monkeypatch, answers=answers) as member:
        await eventually(lambda: bool(member.taken), "it is here at last")
        assert refusals == []


async def test_an_answer_that_cannot_be_read_is_asked_for_again(
    cluster: LiveCluster, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(fetching_module, "RETRY_SECONDS", 0.02)
    answers: Answers = {}

    def garbage() -> Command:
        answers.clear()
        ext = {"nextBeginOffset": "1", "minOffset": "0", "maxOffset": "1"}
        return Command(ResponseCode.SUCCESS, ext=ext, body=b"no record", flag=1)

    answers[RequestCode.PULL_MESSAGE] = garbage
    await send(cluster, 2)
    async with pulling(cluster, patch=monkeypatch, answers=answers) as member:
        await eventually(lambda: len(member.taken) == 2, "nothing was passed over")
        assert "cannot be read now" in caplog.text


async def test_a_broker_may_suggest_to_read_elsewhere(
    cluster: LiveCluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    answers: Answers = {}

    def elsewhere() -> Command:
        answers.clear()
        ext = {"nextBeginOffset": "0", "suggestWhichBrokerId": "1"}
        return Command(ResponseCode.PULL_NOT_FOUND, ext=ext, flag=1)

    answers[RequestCode.PULL_MESSAGE] = elsewhere
    await send(cluster, 1)
    async with pulling(cluster, patch=monkeypatch, answers=answers) as member:
        await eventually(lambda: bool(member.taken), "the master serves where no slave is known")
        asked = [
            each for each in member.asked[RequestCode.PULL_MESSAGE] if each["topic"] == "orders"
        ]
        assert [int(each["sysFlag"]) & 1 for each in asked][:3] == [1, 1, 1]


async def test_batches_in_one_record_are_taken_apart_from_the_middle_on(
    cluster: LiveCluster,
) -> None:
    parts = [(0, b"%d" % number, b"TAGS\x01a\x02") for number in range(5)]
    both = SysFlag.INNER_BATCH | SysFlag.NEED_UNWRAP
    batch = NewMessage(
        "orders", 0, encode_batch(parts), b"INNER_NUM\x015\x02", sys_flag=both, inner_count=5
    )
    cluster.brokers[0].core.store.append([batch])
    cluster.brokers[0].core.groups.require(GROUP)
    cluster.brokers[0].core.offsets.commit(GROUP, "orders", 0, 2)
    async with pulling(cluster) as member:
        await eventually(lambda: len(member.taken) == 3, "the rest of the batch is here")
        assert [message.offset for _, message in member.taken] == [2, 3, 4]
        assert [message.body for _, message in member.taken] == [b"2", b"3", b"4"]
        source, message = member.taken[0]
        source.failed([message], RetryLater(delay_level=-1))
        await eventually(
            lambda: member.queue().process_queue.committable == 3, "it is given back alone"
        )

        async def is_dead() -> bool:
            return await bodies(cluster, f"%DLQ%{GROUP}", 1) == [b"2"]

        await eventually(is_dead, "one message is a dead letter, and not the batch")
