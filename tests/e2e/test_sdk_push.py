"""The SDK's push consumers, on OneLog and on RocketMQ 5.5.0: the same behaviour on both.

The table of delay levels is shortened to a second each, so that retries take seconds.
"""

import asyncio
import contextlib
import signal
from collections import defaultdict
from collections.abc import AsyncIterator, Iterator
from pathlib import Path
from typing import Unpack

import pytest

from onelog.client import (
    AsyncProducer,
    AsyncPushConsumer,
    ConsumerOptions,
    Message,
    PushConsumer,
    Queue,
    ReceivedMessage,
    RetryLater,
)
from onelog.client.consumer.listening import AnyListener
from onelog.errors import FilterSyntaxError
from tests.e2e.conftest import Server
from tests.e2e.java_clients import mqadmin
from tests.e2e.onelog_peer import OnelogPeer
from tests.e2e.remoting_probe import create_topic
from tests.e2e.rocketmq_peer import RocketmqPeer
from tests.waiting import eventually

pytestmark = [pytest.mark.e2e_java, pytest.mark.timeout(300)]

LEVELS = " ".join(["1s"] * 18)
QUEUES = 4


@pytest.fixture(scope="module", params=[OnelogPeer, RocketmqPeer], ids=["onelog", "rocketmq"])
def server(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Server]:
    with request.param(tmp_path_factory.mktemp("push"), delay_levels=LEVELS) as running:
        yield running


@pytest.fixture
def topic(request: pytest.FixtureRequest, server: Server) -> str:
    name = "".join(letter if letter.isalnum() else "-" for letter in request.node.name)[:100]
    create_topic(server.broker_address, name, QUEUES)
    return name


async def send(server: Server, topic: str, start: int, stop: int, tags: str | None = None) -> None:
    """Numbers round the queues of a topic."""
    async with AsyncProducer("writers", nameserver=server.nameservers) as producer:
        for number in range(start, stop):
            queue = Queue(topic, server.broker_name, number % QUEUES)
            await producer.send(Message(topic, b"%d" % number, tags=tags), queue=queue)


class Heard:
    def __init__(self) -> None:
        self.messages: list[ReceivedMessage] = []

    def __call__(self, message: ReceivedMessage) -> None:
        self.messages.append(message)

    @property
    def numbers(self) -> list[int]:
        return sorted(int(message.body) for message in self.messages)


@contextlib.asynccontextmanager
async def consuming(
    server: Server,
    topic: str,
    listener: AnyListener,
    tags: str = "*",
    **options: Unpack[ConsumerOptions],
) -> AsyncIterator[AsyncPushConsumer]:
    options["nameserver"] = server.nameservers
    options.setdefault("start", "first")
    async with AsyncPushConsumer(f"{topic}-g", **options) as consumer:
        consumer.subscribe(topic, tags, listener=listener)
        await consumer.start()
        yield consumer


async def test_members_share_the_messages_and_lose_none(server: Server, topic: str) -> None:
    heard = Heard()
    sending = asyncio.ensure_future(send(server, topic, 0, 600))
    async with consuming(server, topic, heard) as first:
        async with consuming(server, topic, heard) as second:
            await eventually(lambda: len(first.assigned) == 2 == len(second.assigned))
        await eventually(lambda: len(first.assigned) == QUEUES)
        await sending
        await eventually(lambda: len(set(heard.numbers)) == 600)
    again = Heard()
    async with consuming(server, topic, again):
        await send(server, topic, 600, 610)
        await eventually(lambda: len(again.messages) >= 10)
    assert again.numbers == list(range(600, 610))


async def test_only_wanted_tags_are_heard(server: Server, topic: str) -> None:
    heard = Heard()
    async with consuming(server, topic, heard, tags="Aa || c"):
        # "Aa" and "BB" have the same hash, so brokers send both.
        for number, tag in enumerate(["Aa", "BB", "c", "d", "Aa"]):
            await send(server, topic, number, number + 1, tag)
        await eventually(lambda: len(heard.messages) >= 3)
    assert heard.numbers == [0, 2, 4]


async def test_conditions(server: Server, topic: str) -> None:
    prices: list[str] = []
    consumer = AsyncPushConsumer(f"{topic}-g", nameserver=server.nameservers, start="first")
    async with (
        consumer,
        AsyncProducer("writers", nameserver=server.nameservers) as producer,
    ):
        consumer.subscribe(
            topic, sql="price > 10", listener=lambda each: prices.append(each.properties["price"])
        )
        await consumer.start()
        for price in ("5", "15", "25"):
            await producer.send(Message(topic, b"x", properties={"price": price}))
        await eventually(lambda: len(prices) >= 2)
    assert sorted(prices) == ["15", "25"]
    wrong = AsyncPushConsumer(f"{topic}-g", nameserver=server.nameservers)
    wrong.subscribe(topic, sql="price >", listener=Heard())
    with pytest.raises(FilterSyntaxError):
        await wrong.start()


async def test_retries_and_dead_letters(server: Server, topic: str) -> None:
    tries: list[tuple[bytes, int, str]] = []

    def listener(message: ReceivedMessage) -> None:
        tries.append((message.body, message.delivery_attempt, message.topic))
        if message.body == b"1":
            raise ValueError("no")
        if message.body == b"2":
            raise RetryLater(delay_level=-1)

    dead = Heard()
    async with consuming(server, topic, listener, retries_max=2):
        await send(server, topic, 0, 4)
        await eventually(lambda: len(tries) >= 6)
        graves = AsyncPushConsumer(f"{topic}-d", nameserver=server.nameservers, start="first")
        async with graves:
            graves.subscribe(f"%DLQ%{topic}-g", listener=dead)
            await graves.start()
            await eventually(lambda: dead.numbers == [1, 2])
    assert [attempt for body, attempt, _ in tries if body == b"1"] == [1, 2, 3]
    assert {name for _, _, name in tries} == {topic}


async def test_a_message_that_takes_too_long_comes_again(server: Server, topic: str) -> None:
    attempts: list[int] = []
    hold = asyncio.Event()

    async def listener(message: ReceivedMessage) -> None:
        attempts.append(message.delivery_attempt)
        if message.delivery_attempt == 1:
            await hold.wait()

    async with consuming(server, topic, listener, consume_timeout=0.3):
        await send(server, topic, 0, 1)
        await eventually(lambda: attempts == [1, 2])
        hold.set()


async def test_in_order_with_retries_and_a_dead_letter(server: Server, topic: str) -> None:
    heard: dict[int, list[int]] = defaultdict(list)
    failing = {5: 2, 6: 1000}
    dead = Heard()

    async def listener(message: ReceivedMessage) -> None:
        number = int(message.body)
        if failing.get(number, 0) > 0:
            failing[number] -= 1
            raise ValueError("later")
        heard[message.queue.queue_id].append(number)

    await send(server, topic, 0, 60)
    async with consuming(server, topic, listener, orderly=True, retries_max=2) as first:
        async with consuming(server, topic, listener, orderly=True, retries_max=2):
            await eventually(lambda: sum(map(len, heard.values())) == 59)
        await eventually(lambda: len(first.assigned) == QUEUES)
        graves = AsyncPushConsumer(f"{topic}-d", nameserver=server.nameservers, start="first")
        async with graves:
            graves.subscribe(f"%DLQ%{topic}-g", listener=dead)
            await graves.start()
            await eventually(lambda: dead.numbers == [6])
    assert heard == {
        queue: [number for number in range(queue, 60, QUEUES) if number != 6]
        for queue in range(QUEUES)
    }


async def test_broadcasting(server: Server, topic: str, tmp_path: Path) -> None:
    one, two, again = Heard(), Heard(), Heard()
    async with (
        consuming(server, topic, one, model="broadcasting", offsets_path=tmp_path / "1"),
        consuming(server, topic, two, model="broadcasting", offsets_path=tmp_path / "2"),
    ):
        await send(server, topic, 0, 20)
        await eventually(lambda: one.numbers == two.numbers == list(range(20)))
    await send(server, topic, 20, 25)
    async with consuming(server, topic, again, model="broadcasting", offsets_path=tmp_path / "1"):
        await eventually(lambda: len(again.messages) >= 5)
    assert again.numbers == list(range(20, 25))


async def test_rocketmqs_own_tool_sees_and_moves_the_consumer(
    server: Server, topic: str, tmp_path: Path
) -> None:
    heard = Heard()
    group = f"{topic}-g"

    async def tool(*command: str) -> str:
        return await asyncio.to_thread(mqadmin, tmp_path, server.nameservers, *command)

    await send(server, topic, 0, 20)
    async with consuming(server, topic, heard) as consumer:
        await eventually(lambda: len(heard.messages) == 20)
        await consumer.commit()
        status = await tool("consumerStatus", "-g", group, "-i", consumer.client_id, "-s")
        assert "Consumer MQ Detail" in status, status
        assert "MainThread" in status
        assert topic in status
        progress = await tool("consumerProgress", "-g", group)
        assert "Consume Diff Total: 0" in progress, progress
        direct = await tool(
            "queryMsgById",
            "-t",
            topic,
            "-i",
            heard.messages[0].offset_id,
            "-g",
            group,
            "-d",
            consumer.client_id,
        )
        assert "CR_SUCCESS" in direct, direct
        await eventually(lambda: len(heard.messages) == 21)
        await tool("resetOffsetByTime", "-g", group, "-t", topic, "-s", "0")
        await eventually(lambda: len(heard.messages) == 41)


async def test_threads(server: Server, topic: str) -> None:
    heard = Heard()
    consumer = PushConsumer(f"{topic}-g", nameserver=server.nameservers, start="first")
    consumer.subscribe(topic, listener=heard)
    await asyncio.to_thread(consumer.start)
    await send(server, topic, 0, 200)
    await eventually(lambda: len(heard.messages) >= 200)
    await asyncio.to_thread(consumer.close)
    assert heard.numbers == list(range(200))


async def test_a_broker_that_is_killed_and_comes_back(own_server: Server) -> None:
    topic = "Killed"
    create_topic(own_server.broker_address, topic, QUEUES)
    heard = Heard()
    await send(own_server, topic, 0, 50)
    async with consuming(own_server, topic, heard):
        await eventually(lambda: len(heard.messages) >= 50)
        await asyncio.to_thread(own_server.restart, signal.SIGKILL)
        await asyncio.to_thread(own_server.wait_until_ready)
        await send(own_server, topic, 50, 100)
        await eventually(lambda: set(heard.numbers) == set(range(100)))
