import asyncio
from collections.abc import AsyncIterator
from typing import Any

import pytest

import onelog
from onelog.client.consumer.listening import RetryLater
from onelog.client.consumer.push.consumer import AsyncPushConsumer
from onelog.client.message import Message, SendStatus
from onelog.client.producer.delivery import finish_one
from onelog.embedded_broker import AsyncEmbeddedBroker
from onelog.gateways.direct import DirectLine
from tests.waiting import eventually


@pytest.fixture
async def mq() -> AsyncIterator[AsyncEmbeddedBroker]:
    async with onelog.embedded() as running:
        await running.create_topic("orders", 1)
        yield running


class Log:
    """What lines were asked, and whether they declined."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.sends: list[bool] = []
        self.follows: list[bool] = []
        send, follow = DirectLine.send, DirectLine.follow

        def logged_send(line: DirectLine, *given: Any) -> tuple[str, int] | None:
            self.sends.append((sent := send(line, *given)) is not None)
            return sent

        def logged_follow(line: DirectLine, *given: Any) -> object:
            self.follows.append((found := follow(line, *given)) is not None)
            return found

        monkeypatch.setattr(DirectLine, "send", logged_send)
        monkeypatch.setattr(DirectLine, "follow", logged_follow)


@pytest.fixture
def log(monkeypatch: pytest.MonkeyPatch) -> Log:
    return Log(monkeypatch)


async def test_the_receipt_is_the_same_by_both_ways(mq: AsyncEmbeddedBroker, log: Log) -> None:
    async with mq.producer("shop") as producer:
        framed = await producer.send(Message("orders", b"1"))
        lined = await producer.send(Message("orders", b"2", tags="t", keys=["k"]))
    assert log.sends == [True]
    assert (framed.offset, lined.offset) == (0, 1)
    assert framed.queue == lined.queue
    assert lined.status is SendStatus.OK
    async with mq.admin() as admin:
        for receipt, body in ((framed, b"1"), (lined, b"2")):
            found = await admin.messages.by_id(receipt.offset_id)
            assert bytes(found.message.body) == body


async def test_what_a_line_declines_is_sent_as_a_request(mq: AsyncEmbeddedBroker, log: Log) -> None:
    async with mq.producer("shop") as producer:
        await producer.send(Message("orders", b"1"))
        await producer.send(Message("orders", b"2", delay_level=1))
        await producer.send(Message("orders", b"3"))
    assert log.sends == [False, True]


async def test_a_sender_in_a_loop_lets_others_have_their_turn(mq: AsyncEmbeddedBroker) -> None:
    turns = 0

    async def count() -> None:
        nonlocal turns
        while True:
            await asyncio.sleep(0)
            turns += 1

    async with mq.producer("shop") as producer:
        await producer.send(Message("orders", b"first"))
        counting = asyncio.create_task(count())
        for _ in range(100):
            await producer.send(Message("orders", b"more"))
        counting.cancel()
    assert turns >= 100


async def test_a_send_that_is_given_up_is_no_error(mq: AsyncEmbeddedBroker) -> None:
    loop = asyncio.get_running_loop()
    said: list[object] = []
    loop.set_exception_handler(lambda _, context: said.append(context))
    async with mq.producer("shop") as producer:
        await producer.send(Message("orders", b"first"))
        sending = asyncio.create_task(producer.send(Message("orders", b"second")))
        await asyncio.sleep(0)
        sending.cancel()
        with pytest.raises(asyncio.CancelledError):
            await sending
        receipt = await producer.send(Message("orders", b"third"))
    assert (receipt.offset, said) == (2, [])


def test_nobody_need_be_there_to_be_told() -> None:
    def gone(result: int) -> None:
        raise asyncio.InvalidStateError

    finish_one(gone, 1)


# Consuming.


async def consumed(
    mq: AsyncEmbeddedBroker, *, slow: bool = False, **options: Any
) -> tuple[AsyncPushConsumer, list[bytes]]:
    """A started consumer of the topic, and the list that it fills."""
    got: list[bytes] = []
    consumer = mq.push_consumer("billing", **options)

    @consumer.subscribe("orders")
    async def bill(message: Any) -> None:
        if slow:
            await asyncio.sleep(0.001)
        got.append(message.body)

    await consumer.start()
    return consumer, got


async def test_a_consumer_that_is_up_to_date_gets_messages_by_line(
    mq: AsyncEmbeddedBroker, log: Log
) -> None:
    consumer, got = await consumed(mq)
    async with mq.producer("shop") as producer:
        await producer.send(Message("orders", b"0"))
        await eventually(lambda: got == [b"0"] and log.follows[-1:] == [True])
        follows = len(log.follows)
        for number in range(1, 20):
            await producer.send(Message("orders", b"%d" % number))
        await eventually(lambda: len(got) == 20)
    assert got == [b"%d" % number for number in range(20)]
    assert len(log.follows) == follows
    await consumer.close()
    async with mq.admin() as admin:
        status = await admin.groups.progress("billing")
        assert [each.lag for each in status.queues if each.topic == "orders"] == [0]


async def test_a_consumer_that_is_behind_pulls_and_then_follows_again(
    mq: AsyncEmbeddedBroker, log: Log
) -> None:
    consumer, got = await consumed(mq, slow=True, prefetch_count=10, concurrency=1)
    async with mq.producer("shop") as producer:
        for number in range(300):
            await producer.send(Message("orders", b"%d" % number))
        await eventually(lambda: len(got) == 300)
        assert got == [b"%d" % number for number in range(300)]
        assert False in log.follows
        await eventually(lambda: log.follows[-1])
        await producer.send(Message("orders", b"last"))
        await eventually(lambda: got[-1] == b"last")
    await consumer.close()


async def test_a_consumer_that_wants_some_tags_only_does_not_follow(
    mq: AsyncEmbeddedBroker, log: Log
) -> None:
    got: list[bytes] = []
    async with mq.push_consumer("billing") as consumer:

        @consumer.subscribe("orders", tags="paid")
        async def bill(message: Any) -> None:
            got.append(message.body)

        await consumer.start()
        async with mq.producer("shop") as producer:
            await producer.send(Message("orders", b"no", tags="open"))
            await producer.send(Message("orders", b"yes", tags="paid"))
            await eventually(lambda: got)
    assert got == [b"yes"]
    assert not any(log.follows[1:])


async def test_an_orderly_consumer_follows_too(mq: AsyncEmbeddedBroker, log: Log) -> None:
    consumer, got = await consumed(mq, slow=True, orderly=True)
    async with mq.producer("shop") as producer:
        for number in range(50):
            await producer.send(Message("orders", b"%d" % number))
        await eventually(lambda: len(got) == 50)
    assert got == [b"%d" % number for number in range(50)]
    await consumer.close()


async def test_a_message_that_failed_comes_again(mq: AsyncEmbeddedBroker) -> None:
    attempts: list[int] = []
    async with mq.push_consumer("billing") as consumer:

        @consumer.subscribe("orders")
        async def bill(message: Any) -> None:
            attempts.append(message.delivery_attempt)
            if message.delivery_attempt == 1:
                raise RetryLater(delay_level=1)

        await consumer.start()
        async with mq.producer("shop") as producer:
            await producer.send(Message("orders", b"0"))
            await eventually(lambda: attempts == [1, 2])


async def test_two_members_share_the_queues(mq: AsyncEmbeddedBroker) -> None:
    await mq.create_topic("shared", 4)
    got: list[tuple[int, bytes]] = []

    def member(number: int) -> AsyncPushConsumer:
        consumer = mq.push_consumer("sharing")

        @consumer.subscribe("shared")
        def take(message: Any) -> None:
            got.append((number, message.body))

        return consumer

    first, second = member(1), member(2)
    await first.start()
    await second.start()
    async with mq.producer("shop") as producer:
        await eventually(lambda: len(first.assigned) == len(second.assigned) == 2)
        for number in range(40):
            await producer.send(Message("shared", b"%d" % number))
        await eventually(lambda: len({body for _, body in got}) == 40)
        assert {number for number, _ in got} == {1, 2}
        await first.close()
        await eventually(lambda: len(second.assigned) == 4)
        got.clear()
        for number in range(8):
            await producer.send(Message("shared", b"%d" % number))
        await eventually(lambda: len({body for _, body in got}) == 8)
    assert {number for number, _ in got} == {2}
    await second.close()
