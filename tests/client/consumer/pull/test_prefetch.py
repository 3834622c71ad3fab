"""Fetching ahead, with a broker between which and the consumer somebody stands."""

import itertools
from collections.abc import AsyncIterator, Callable
from pathlib import Path
from typing import Any

import msgspec
import pytest

from onelog.client.consumer import fetching as fetching_module
from onelog.client.consumer.pull.consumer import AsyncPullConsumer
from onelog.client.consumer.push import pulling
from onelog.client.message import Queue, ReceivedMessage
from onelog.errors import NotPermittedError
from onelog.message import Buffer
from onelog.message import Message as Record
from onelog.net.peer import Peer
from onelog.record.decode import decode_records
from onelog.wire.remoting.codes import RequestCode, ResponseCode
from onelog.wire.remoting.command import Command
from tests.client.live_cluster import LiveCluster, live_cluster
from tests.waiting import eventually

QUEUE = Queue("orders", "broker-a", 0)
Answered = Callable[[int, Command], Command]


@pytest.fixture
async def cluster(tmp_path: Path) -> AsyncIterator[LiveCluster]:
    async with live_cluster(tmp_path) as running:
        await running.create_topic("orders", queues=1)
        for number in range(10):
            await running.send("orders", b"%d" % number)
        yield running


class Between:
    """Stands between a consumer and the brokers, and may change what they answer to pulls."""

    def __init__(
        self, reading: AsyncPullConsumer, change: Answered, patch: pytest.MonkeyPatch
    ) -> None:
        self.pulls: list[dict[str, str]] = []
        passed_on = Peer.request

        def request(peer: Peer, code: RequestCode, ext: Any, *more: Any) -> None:
            if code == RequestCode.PULL_MESSAGE and peer in reading.instance.nodes._peers.values():
                self.pulls.append(ext)
                more = (*more[:-1], changed(len(self.pulls), more[-1]))
            passed_on(peer, code, ext, *more)

        def changed(number: int, answered: Callable[[Any], None]) -> Callable[[Any], None]:
            return lambda answer: answered(
                change(number, answer) if isinstance(answer, Command) else answer
            )

        patch.setattr(Peer, "request", request)


def reader(cluster: LiveCluster) -> AsyncPullConsumer:
    return AsyncPullConsumer("readers", nameserver=cluster.addresses, start="first")


def bodies(messages: list[ReceivedMessage]) -> list[bytes]:
    return [message.body for message in messages]


ALL = [b"%d" % number for number in range(10)]


async def test_a_broker_that_is_busy_is_asked_again(
    cluster: LiveCluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    def busy(pull: int, answer: Command) -> Command:
        return answer if pull > 3 else Command(ResponseCode.SYSTEM_BUSY)

    async with reader(cluster) as reading:
        between = Between(reading, busy, monkeypatch)
        reading.assign([QUEUE])
        assert bodies(await reading.poll(20)) == ALL
        assert [pull["queueOffset"] for pull in between.pulls[:4]] == ["0"] * 4


async def test_what_a_broker_refuses_is_told_once_and_tried_again(
    cluster: LiveCluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(pull: int, answer: Command) -> Command:
        return answer if pull > 1 else Command(ResponseCode.NO_PERMISSION, remark="not for you")

    async with reader(cluster) as reading:
        Between(reading, refuse, monkeypatch)
        reading.assign([QUEUE])
        with pytest.raises(NotPermittedError, match="refused PULL_MESSAGE: not for you"):
            await reading.poll(20)
        assert bodies(await reading.poll(20)) == ALL


async def test_fetching_goes_on_after_a_bug(
    cluster: LiveCluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(fetching_module, "RETRY_SECONDS", 0.001)
    calls = itertools.count(1)

    def fail(body: Buffer) -> list[Record]:
        if next(calls) < 3:
            raise OSError(24, "Too many open files")
        return decode_records(body)

    monkeypatch.setattr(pulling, "decode_records", fail)
    async with reader(cluster) as reading:
        reading.assign([QUEUE])
        assert bodies(await reading.poll(20)) == ALL


async def test_offsets_are_shifted_as_the_broker_says(
    cluster: LiveCluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Queues of RocketMQ's static topics count from elsewhere than their records."""

    def shift(pull: int, answer: Command) -> Command:
        if answer.code != ResponseCode.SUCCESS:
            return answer
        return msgspec.structs.replace(answer, ext={**answer.ext, "offsetDelta": "100"})

    async with reader(cluster) as reading:
        Between(reading, shift, monkeypatch)
        reading.assign([QUEUE])
        assert [each.offset for each in await reading.poll(20)] == list(range(100, 110))


async def test_messages_before_the_wanted_one_are_left_out(
    cluster: LiveCluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A batch that is one record comes whole, also if it is asked for from its middle on."""
    async with reader(cluster) as reading:
        whole: list[Command] = []

        def keep(pull: int, answer: Command) -> Command:
            whole.append(answer)
            return whole[0]

        Between(reading, keep, monkeypatch)
        reading.assign([QUEUE])
        await reading.poll(20)
        await reading.seek(QUEUE, 7)
        assert bodies(await reading.poll(20, count=3)) == ALL[7:]


async def test_a_slave_that_the_master_names_is_read_if_there_is_one(
    cluster: LiveCluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    def elsewhere(pull: int, answer: Command) -> Command:
        return msgspec.structs.replace(answer, ext={**answer.ext, "suggestWhichBrokerId": "1"})

    async with reader(cluster) as reading:
        between = Between(reading, elsewhere, monkeypatch)
        reading.assign([QUEUE])
        assert bodies(await reading.poll(20)) == ALL
        await cluster.send("orders", b"next")
        assert bodies(await reading.poll(20)) == [b"next"], "there is none, so the master is read"
        assert len(between.pulls) >= 2


async def test_how_a_queue_stands_is_told_to_the_tools(cluster: LiveCluster) -> None:
    async with reader(cluster) as reading:
        reading.assign([QUEUE])
        await reading.poll(20, count=4)

        def replica_status() -> tuple[int, int, int, int]:
            info = reading._queues.queue_table()[QUEUE]
            return (
                info.cached_msg_count,
                info.cached_msg_min_offset,
                info.cached_msg_max_offset,
                info.commit_offset,
            )

        await eventually(lambda: replica_status() == (6, 4, 9, 0), "six messages wait")
        await reading.poll(20, count=6)
        assert replica_status() == (0, 0, 0, 4)
