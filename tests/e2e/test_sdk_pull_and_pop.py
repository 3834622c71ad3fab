"""The SDK's pull consumers and POP consumers, on OneLog and on RocketMQ 5.5.0."""

import asyncio
import contextlib
import subprocess
import sys
from collections.abc import Sequence
from datetime import UTC, datetime, timedelta

import pytest

from onelog.client import (
    AsyncProducer,
    AsyncPullConsumer,
    Message,
    Producer,
    PullConsumer,
    Queue,
    ReceivedMessage,
)
from onelog.client.consumer.listening import RetryLater
from onelog.client.consumer.push.consumer import AsyncPushConsumer
from tests.e2e.conftest import Server
from tests.e2e.remoting_probe import create_topic
from tests.waiting import eventually

pytestmark = [pytest.mark.e2e_java, pytest.mark.timeout(300)]

QUEUES = 4


async def send(server: Server, topic: str, count: int, **options: str) -> list[bytes]:
    """Messages round the queues of a topic; their bodies."""
    sent = [b"%d" % number for number in range(count)]
    async with AsyncProducer("writers", nameserver=server.nameservers) as producer:
        for number, body in enumerate(sent):
            queue = Queue(topic, server.broker_name, number % QUEUES)
            await producer.send(Message(topic, body, **options), queue=queue)  # type: ignore[arg-type]
    return sent


async def polled(reading: AsyncPullConsumer, count: int) -> list[ReceivedMessage]:
    messages: list[ReceivedMessage] = []
    async with asyncio.timeout(60):
        while len(messages) < count:
            messages += await reading.poll(1.0)
    return messages


def bodies(messages: Sequence[ReceivedMessage]) -> list[bytes]:
    return sorted(message.body for message in messages)


# Pulling.


async def test_a_pull_consumer_reads_seeks_and_commits(server: Server, topic: str) -> None:
    create_topic(server.broker_address, topic, QUEUES)
    sent = await send(server, topic, 40)
    async with AsyncPullConsumer(
        f"{topic}-g", nameserver=server.nameservers, start="first", auto_commit=False
    ) as reading:
        queues = await reading.queues(topic)
        assert [queue.queue_id for queue in queues] == list(range(QUEUES))
        first = queues[0]
        assert await reading.committed(first) is None
        await reading.commit({first: 3})
        assert await reading.committed(first) == 3
        reading.assign(queues)
        assert await reading.position(first) == 3
        await reading.seek_to_begin()
        assert bodies(await polled(reading, 40)) == sorted(sent)
        assert await reading.lag() == dict.fromkeys(queues, 0)
        await reading.seek(first, 7)
        assert [each.offset for each in await polled(reading, 3)] == [7, 8, 9]
        now = datetime.now(UTC)
        assert await reading.offsets_for_time(now - timedelta(hours=1), first) == {first: 0}
        assert await reading.end_offsets() == dict.fromkeys(queues, 10)
        await reading.seek_to_end()
        assert await reading.poll(0.2) == []
        await send(server, topic, 1)
        (newest,) = await polled(reading, 1)
        assert (newest.queue, newest.offset) == (first, 10)
        await reading.commit()
        assert await reading.committed(first) == 11


async def test_two_pull_consumers_share_a_topic_and_filter_it(server: Server, topic: str) -> None:
    create_topic(server.broker_address, topic, QUEUES)
    await send(server, topic, 8, tags="unpaid")
    sent = await send(server, topic, 8, tags="paid")
    group = f"{topic}-g"
    async with contextlib.AsyncExitStack() as stack:
        members = [
            await stack.enter_async_context(
                AsyncPullConsumer(group, nameserver=server.nameservers, start="first")
            )
            for _ in range(2)
        ]
        for each in members:
            each.subscribe(topic, "paid || refunded")
        await eventually(lambda: [len(each.assigned) for each in members] == [2, 2])
        assert len({queue for each in members for queue in each.assigned}) == QUEUES
        found = [message for each in members for message in await polled(each, 4)]
        assert set(bodies(found)) == set(sent)


async def test_a_pull_consumer_takes_a_sql_condition(server: Server, topic: str) -> None:
    create_topic(server.broker_address, topic, 1)
    async with AsyncProducer("writers", nameserver=server.nameservers) as producer:
        for price in (3, 30):
            await producer.send(Message(topic, b"%d" % price, properties={"price": str(price)}))
    async with AsyncPullConsumer(
        f"{topic}-g", nameserver=server.nameservers, start="first"
    ) as reading:
        reading.subscribe(topic, sql="price > 10")
        assert bodies(await polled(reading, 1)) == [b"30"]


def test_the_synchronous_pull_consumer_goes_on_where_it_was(server: Server, topic: str) -> None:
    create_topic(server.broker_address, topic, 1)
    with Producer("writers", nameserver=server.nameservers) as producer:
        for number in range(6):
            producer.send(Message(topic, b"%d" % number))
    found: list[bytes] = []
    for count in (4, 2):
        with PullConsumer(f"{topic}-g", nameserver=server.nameservers, start="first") as reading:
            reading.assign(reading.queues(topic))
            got = 0
            while got < count:
                some = reading.poll(30, count=count - got)
                found += [message.body for message in some]
                got += len(some)
    assert found == [b"%d" % number for number in range(6)]


# Popping.


class Heard:
    """What a POP consumer's listener was called with."""

    def __init__(self) -> None:
        self.calls: list[tuple[bytes, int]] = []

    def __call__(self, message: ReceivedMessage) -> None:
        self.calls.append((message.body, message.delivery_attempt))

    @property
    def bodies(self) -> list[bytes]:
        return sorted(body for body, _ in self.calls)


def popping(server: Server, topic: str, **options: float) -> AsyncPushConsumer:
    return AsyncPushConsumer(
        f"{topic}-g",
        nameserver=server.nameservers,
        pop=True,
        start="first",
        **options,  # type: ignore[arg-type]
    )


async def test_popped_messages_come_once_to_one_of_the_members(server: Server, topic: str) -> None:
    create_topic(server.broker_address, topic, QUEUES)
    sent = await send(server, topic, 200)
    heard = Heard()
    async with popping(server, topic) as one, popping(server, topic) as two:
        for each in (one, two):
            each.subscribe(topic, listener=heard)
            await each.start()
        await eventually(lambda: len(heard.calls) >= 200)
        sent += await send(server, topic, 20)
        await eventually(lambda: len(heard.calls) >= 220)
        await one.commit()
        await two.commit()
        assert sum((await one.lag()).values()) == 0
    await asyncio.sleep(3)
    assert heard.bodies == sorted(sent)
    assert {attempt for _, attempt in heard.calls} == {1}


async def test_a_popped_message_that_failed_comes_again(server: Server, topic: str) -> None:
    create_topic(server.broker_address, topic, QUEUES)
    sent = await send(server, topic, 8)
    heard = Heard()

    async def listen(message: ReceivedMessage) -> None:
        heard(message)
        if message.delivery_attempt < 3 and message.body in (b"2", b"3"):
            raise RetryLater(delay_level=1)

    async with popping(server, topic) as consumer:
        consumer.subscribe(topic, listener=listen)
        await consumer.start()
        await eventually(lambda: len(heard.calls) >= 12)
        await consumer.commit()
    assert sorted(heard.calls) == sorted(
        [*((body, 1) for body in sent), (b"2", 2), (b"2", 3), (b"3", 2), (b"3", 3)]
    )


async def test_a_popped_message_that_fails_too_often_becomes_a_dead_letter(
    server: Server, topic: str
) -> None:
    create_topic(server.broker_address, topic, QUEUES)
    await send(server, topic, 1)
    heard = Heard()

    async def listen(message: ReceivedMessage) -> None:
        heard(message)
        raise RetryLater(delay_level=1)

    async with popping(server, topic, retries_max=1) as consumer:
        consumer.subscribe(topic, listener=listen)
        await consumer.start()
        await eventually(lambda: len(heard.calls) >= 2)
        await consumer.commit()
    async with AsyncPullConsumer("undertaker", nameserver=server.nameservers) as reading:
        letters = await reading.queues(f"%DLQ%{topic}-g")
        reading.assign(letters)
        await reading.seek_to_begin()
        (letter,) = await polled(reading, 1)
    assert letter.body == b"0"
    assert heard.calls == [(b"0", 1), (b"0", 2)]


async def test_a_popped_message_stays_with_a_listener_that_takes_long(
    server: Server, topic: str
) -> None:
    create_topic(server.broker_address, topic, QUEUES)
    await send(server, topic, 1)
    heard = Heard()

    async def listen(message: ReceivedMessage) -> None:
        heard(message)
        await asyncio.sleep(12)

    async with popping(server, topic, invisible_time=4.0) as one:
        one.subscribe(topic, listener=listen)
        await one.start()
        await eventually(lambda: heard.calls)
        async with popping(server, topic) as two:
            two.subscribe(topic, listener=listen)
            await two.start()
            await asyncio.sleep(13)
            await one.commit()
    await asyncio.sleep(3)
    assert heard.calls == [(b"0", 1)]


DYING = """
import sys, time
from onelog.client.consumer.push.consumer import PushConsumer
nameserver, topic = sys.argv[1:]
with PushConsumer(
    topic + "-g", nameserver=nameserver, pop=True, start="first", invisible_time=3.0
) as consumer:
    @consumer.subscribe(topic)
    def listen(message):
        print(message.body.decode(), flush=True)
        time.sleep(100)
    consumer.run()
"""


async def test_a_message_of_a_popping_member_that_dies_comes_to_another_one(
    server: Server, topic: str
) -> None:
    create_topic(server.broker_address, topic, QUEUES)
    await send(server, topic, 1)
    dying = await asyncio.create_subprocess_exec(
        sys.executable, "-c", DYING, server.nameservers, topic, stdout=subprocess.PIPE
    )
    assert dying.stdout is not None
    async with asyncio.timeout(60):
        assert await dying.stdout.readline() == b"0\n"
    dying.kill()
    await dying.wait()
    heir = Heard()
    async with popping(server, topic) as living:
        living.subscribe(topic, listener=heir)
        await living.start()
        await eventually(lambda: heir.calls)
        await living.commit()
    assert heir.calls == [(b"0", 2)]


async def test_popped_messages_of_a_queue_come_in_order_past_failures(
    server: Server, topic: str
) -> None:
    create_topic(server.broker_address, topic, QUEUES)
    sent = await send(server, topic, 40)
    heard: list[ReceivedMessage] = []
    failed: set[bytes] = set()

    async def listen(message: ReceivedMessage) -> None:
        if message.body in (b"9", b"22") and message.body not in failed:
            failed.add(message.body)
            raise RetryLater
        heard.append(message)

    async with popping(server, topic, orderly=True) as consumer:
        consumer.subscribe(topic, listener=listen)
        await consumer.start()
        await eventually(lambda: len({each.body for each in heard}) == 40)
        await consumer.commit()
    for number in range(QUEUES):
        mine = [int(each.body) for each in heard if each.raw.queue_id == number]
        assert mine == sorted(mine)
    assert bodies(heard) == sorted(sent)
