"""Fetching ahead, with a broker between which and the consumer somebody stands."""

from collections.abc import AsyncIterator, Callable
from pathlib import Path
from typing import Any

import msgspec
import pytest

from onelog.client.connection.address import Address
from onelog.client.consumer.pull.consumer import AsyncPullConsumer
from onelog.client.message import Queue, ReceivedMessage
from onelog.errors import NotPermittedError
from onelog.wire.remoting.codes import RequestCode, ResponseCode
from onelog.wire.remoting.command import Command
from tests.client.live_cluster import LiveCluster, live_cluster
from tests.client.watching import eventually

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

    def __init__(self, reading: AsyncPullConsumer, change: Answered) -> None:
        self.pulls: list[dict[str, str]] = []
        self._change = change
        self._ask = reading.instance.ask
        reading.instance.ask = self.ask  # type: ignore[assignment]

    async def ask(
        self,
        address: Address,
        code: RequestCode,
        ext: dict[str, str] | None = None,
        body: bytes = b"",
        **more: Any,
    ) -> Command:
        answer = await self._ask(address, code, ext, body, **more)
        if code == RequestCode.PULL_MESSAGE:
            self.pulls.append(ext or {})
            return self._change(len(self.pulls), answer)
        return answer


def reader(cluster: LiveCluster) -> AsyncPullConsumer:
    return AsyncPullConsumer("readers", nameserver=cluster.addresses, start="first")


def bodies(messages: list[ReceivedMessage]) -> list[bytes]:
    return [message.body for message in messages]


ALL = [b"%d" % number for number in range(10)]


async def test_a_broker_that_is_busy_is_asked_again(cluster: LiveCluster) -> None:
    def busy(pull: int, answer: Command) -> Command:
        return answer if pull > 3 else Command(ResponseCode.SYSTEM_BUSY)

    async with reader(cluster) as reading:
        between = Between(reading, busy)
        reading.assign([QUEUE])
        assert bodies(await reading.poll(20)) == ALL
        assert [pull["queueOffset"] for pull in between.pulls[:4]] == ["0"] * 4


async def test_what_a_broker_refuses_is_told_once_and_tried_again(cluster: LiveCluster) -> None:
    def refuse(pull: int, answer: Command) -> Command:
        return answer if pull > 1 else Command(ResponseCode.NO_PERMISSION, remark="not for you")

    async with reader(cluster) as reading:
        Between(reading, refuse)
        reading.assign([QUEUE])
        with pytest.raises(NotPermittedError, match="refused PULL_MESSAGE: not for you"):
            await reading.poll(20)
        assert bodies(await reading.poll(20)) == ALL


async def test_fetching_goes_on_after_a_bug(
    cluster: LiveCluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("onelog.client.consumer.pull.queues.AGAIN_SECONDS", 0.001)

    def fail(pull: int, answer: Command) -> Command:
        if pull < 3:
            raise OSError(24, "Too many open files")
        return answer

    async with reader(cluster) as reading:
        Between(reading, fail)
        reading.assign([QUEUE])
        assert bodies(await reading.poll(20)) == ALL


async def test_offsets_are_shifted_as_the_broker_says(cluster: LiveCluster) -> None:
    """Queues of RocketMQ's static topics count from elsewhere than their records."""

    def shift(pull: int, answer: Command) -> Command:
        if answer.code != ResponseCode.SUCCESS:
            return answer
        return msgspec.structs.replace(answer, ext={**answer.ext, "offsetDelta": "100"})

    async with reader(cluster) as reading:
        Between(reading, shift)
        reading.assign([QUEUE])
        assert [each.offset for each in await reading.poll(20)] == list(range(100, 110))


async def test_messages_before_the_wanted_one_are_left_out(cluster: LiveCluster) -> None:
    """A batch that is one record comes whole, also if it is asked for from its middle on."""
    async with reader(cluster) as reading:
        whole: list[Command] = []

        def keep(pull: int, answer: Command) -> Command:
            whole.append(answer)
            return whole[0]

        Between(reading, keep)
        reading.assign([QUEUE])
        await reading.poll(20)
        await reading.seek(QUEUE, 7)
        assert bodies(await reading.poll(20, count=3)) == ALL[7:]


async def test_a_slave_that_the_master_names_is_read_if_there_is_one(cluster: LiveCluster) -> None:
    def elsewhere(pull: int, answer: Command) -> Command:
        return msgspec.structs.replace(answer, ext={**answer.ext, "suggestWhichBrokerId": "1"})

    async with reader(cluster) as reading:
        between = Between(reading, elsewhere)
        reading.assign([QUEUE])
        assert bodies(await reading.poll(20)) == ALL
        await cluster.send("orders", b"next")
        assert bodies(await reading.poll(20)) == [b"next"], "there is none, so the master is read"
        assert len(between.pulls) >= 2


async def test_how_a_queue_stands_is_told_to_the_tools(cluster: LiveCluster) -> None:
    async with reader(cluster) as reading:
        reading.assign([QUEUE])
        await reading.poll(20, count=4)

        def standing() -> tuple[int, int, int, int]:
            info = reading._queues.queue_table()[QUEUE]
            return (
                info.cached_msg_count,
                info.cached_msg_min_offset,
                info.cached_msg_max_offset,
                info.commit_offset,
            )

        await eventually(lambda: standing() == (6, 4, 9, 0), "six messages wait")
        await reading.poll(20, count=6)
        assert standing() == (0, 0, 0, 4)
