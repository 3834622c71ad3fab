"""Requests get their own replies, in time or not at all."""

import asyncio
import contextlib
from collections.abc import AsyncIterator, Awaitable, Callable
from datetime import timedelta

import pytest

from onelog.client.message import Message, ReceivedMessage
from onelog.client.producer.producer import AsyncProducer, Producer
from onelog.errors import (
    ClientClosedError,
    MessageError,
    OnelogError,
    ReplyFailedError,
    RequestTimeoutError,
)
from tests.client.live_cluster import LiveCluster
from tests.client.watching import bodies
from tests.gateways.remoting.live import messages
from tests.waiting import eventually

Answer = Callable[[AsyncProducer, ReceivedMessage], Awaitable[object]]


@pytest.fixture
async def topic(cluster: LiveCluster) -> str:
    await cluster.create_topic("questions", 4)
    return "questions"


@contextlib.asynccontextmanager
async def replier(
    cluster: LiveCluster, topic: str, answer: Answer
) -> AsyncIterator[list[ReceivedMessage]]:
    """Somebody who answers every request to a topic in the given way."""
    seen: list[ReceivedMessage] = []
    client = await cluster.client()

    async def work(producer: AsyncProducer) -> None:
        offsets = [0] * 4
        while True:
            for queue, offset in enumerate(offsets):
                for raw in messages(await client.pull(topic, offset, queueId=queue)):
                    offsets[queue] = raw.queue_offset + 1
                    seen.append(ReceivedMessage(raw, "broker-a"))
                    await answer(producer, seen[-1])
            await asyncio.sleep(0.01)

    async with AsyncProducer("repliers", nameserver=cluster.addresses) as producer:
        working = asyncio.ensure_future(work(producer))
        try:
            yield seen
        finally:
            working.cancel()
            await asyncio.gather(working, return_exceptions=True)


async def echo(producer: AsyncProducer, request: ReceivedMessage) -> None:
    await producer.reply(request, b"re: " + request.body)


async def test_a_request_gets_its_reply(cluster: LiveCluster, topic: str) -> None:
    async def answer(producer: AsyncProducer, request: ReceivedMessage) -> None:
        await producer.reply(
            request, b"42", tags="answer", keys=["k"], properties={"found": "in the end"}
        )

    async with replier(cluster, topic, answer) as seen:
        async with AsyncProducer("askers", nameserver=cluster.addresses) as producer:
            sent = Message(topic, b"what?", tags="question", properties={"from": "me"})
            reply = await producer.request(sent, timeout=timedelta(seconds=20))
    assert (reply.body, reply.tags, reply.keys) == (b"42", "answer", ["k"])
    assert reply.properties == {"found": "in the end"}
    assert reply.born_ms <= reply.store_ms
    (request,) = seen
    assert (request.body, request.tags, request.properties) == (
        b"what?",
        "question",
        sent.properties,
    )
    own = {"CORRELATION_ID", "REPLY_TO_CLIENT", "TTL"}
    assert {each: reply.all_properties[each] for each in own} == {
        each: request.all_properties[each] for each in own
    }
    assert request.all_properties["TTL"] == "20000"
    assert reply.all_properties["MSG_TYPE"] == "reply"


async def test_each_of_four_tasks_gets_the_replies_to_its_own_requests(
    cluster: LiveCluster, topic: str
) -> None:
    async def ask(producer: AsyncProducer, name: str) -> list[bytes]:
        return [
            (await producer.request(Message(topic, f"{name}-{n}".encode()), timeout=30)).body
            for n in range(10)
        ]

    async with replier(cluster, topic, echo):
        async with AsyncProducer("askers", nameserver=cluster.addresses) as producer:
            answers = await asyncio.gather(*(ask(producer, name) for name in "abcd"))
    assert answers == [[f"re: {name}-{n}".encode() for n in range(10)] for name in "abcd"]


async def test_a_request_that_nobody_answers_times_out(cluster: LiveCluster, topic: str) -> None:
    async with AsyncProducer("askers", nameserver=cluster.addresses) as producer:
        with pytest.raises(RequestTimeoutError, match="'questions' within 600 ms"):
            await producer.request(Message(topic, b"anybody?"), timeout=0.6)
    assert await bodies(cluster, topic) == [b"anybody?"]


async def test_a_reply_that_comes_too_late_disturbs_nobody(
    cluster: LiveCluster, topic: str
) -> None:
    late: list[ReceivedMessage] = []

    async def answer(producer: AsyncProducer, request: ReceivedMessage) -> None:
        if request.body == b"slow":
            late.append(request)
        else:
            await producer.reply(late[0], b"too late")  # The requester takes it all the same.
            await echo(producer, request)

    async with replier(cluster, topic, answer):
        async with AsyncProducer("askers", nameserver=cluster.addresses) as producer:
            with pytest.raises(RequestTimeoutError):
                await producer.request(Message(topic, b"slow"), timeout=0.6)
            await eventually(lambda: bool(late), "the slow request at the replier")
            reply = await producer.request(Message(topic, b"quick"), timeout=20)
    assert reply.body == b"re: quick"


async def test_a_reply_to_a_client_that_is_gone_fails(cluster: LiveCluster, topic: str) -> None:
    async def wait(producer: AsyncProducer, request: ReceivedMessage) -> None:
        return None

    async with replier(cluster, topic, wait) as seen:
        asker = AsyncProducer("askers", nameserver=cluster.addresses)
        async with asker:
            with pytest.raises(RequestTimeoutError):
                await asker.request(Message(topic, b"bye"), timeout=0.6)
            await eventually(lambda: bool(seen), "the request")
    async with AsyncProducer("repliers", nameserver=cluster.addresses) as producer:
        with pytest.raises(ReplyFailedError, match="did not arrive") as failure:
            await producer.reply(seen[0], b"hello?")
    assert asker.instance.client_id in str(failure.value)


async def test_a_client_that_is_closed_waits_for_no_reply(cluster: LiveCluster, topic: str) -> None:
    async with AsyncProducer("askers", nameserver=cluster.addresses) as producer:
        waiting = asyncio.ensure_future(producer.request(Message(topic, b"?"), timeout=60))

        async def is_sent() -> bool:
            return bool(await bodies(cluster, topic))

        await eventually(is_sent, "the request")
    with pytest.raises(ClientClosedError, match="before the reply"):
        await waiting


async def test_a_message_that_is_no_request_cannot_be_replied_to(
    cluster: LiveCluster, topic: str
) -> None:
    async def answer(producer: AsyncProducer, request: ReceivedMessage) -> None:
        return None

    async with replier(cluster, topic, answer) as seen:
        async with AsyncProducer("askers", nameserver=cluster.addresses) as producer:
            await producer.send(Message(topic, b"just so"))
            await eventually(lambda: bool(seen), "the message")
            with pytest.raises(MessageError, match="no property CORRELATION_ID"):
                await producer.reply(seen[0], b"?")


async def test_a_request_that_cannot_be_sent_says_so(cluster: LiveCluster) -> None:
    async with AsyncProducer("askers", nameserver="127.0.0.1:1") as producer:
        with pytest.raises(OnelogError, match=r"127\.0\.0\.1:1"):
            await producer.request(Message("questions", b"?"), timeout=5)


async def test_the_synchronous_producer_asks_and_replies(cluster: LiveCluster, topic: str) -> None:
    with Producer("askers", nameserver=cluster.addresses) as producer:

        async def answer(_: AsyncProducer, request: ReceivedMessage) -> None:
            await asyncio.to_thread(producer.reply, request, b"re: " + request.body)

        async with replier(cluster, topic, answer):
            reply = await asyncio.to_thread(producer.request, Message(topic, b"?"), timeout=20)
        await asyncio.to_thread(producer.close)
    assert reply.body == b"re: ?"


async def test_requests_in_a_namespace_get_their_replies(cluster: LiveCluster) -> None:
    await cluster.create_topic("tenant%questions", 4)
    async with replier(cluster, "tenant%questions", echo):
        async with AsyncProducer(
            "askers", nameserver=cluster.addresses, namespace="tenant"
        ) as producer:
            reply = await producer.request(Message("questions", b"?"), timeout=20)
    assert reply.body == b"re: ?"
