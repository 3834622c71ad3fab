"""The SDK's producer with OneLog and with the real RocketMQ: the same behaviour from both."""

import asyncio
import random
import signal
import time
from datetime import timedelta

import pytest

from onelog.client import AsyncProducer, Message, Producer, Receipt, SendStatus
from onelog.client.admin.admin import AsyncAdmin
from onelog.errors import (
    MessageError,
    NotPermittedError,
    OnelogError,
    TopicNotFoundError,
)
from onelog.message import Message as Record
from onelog.message import java_hash
from tests.e2e.conftest import Server
from tests.e2e.remoting_probe import create_topic

pytestmark = [pytest.mark.e2e_java, pytest.mark.timeout(300)]

QUEUES = 4


async def stored(server: Server, topic: str, count: int, seconds: float = 60) -> list[Record]:
    """What is in a topic, queue by queue, when there is as much as expected."""
    deadline = time.monotonic() + seconds
    async with AsyncAdmin.connect(server.nameservers) as admin:
        while True:
            found: list[Record] = []
            try:
                queues = (await admin.topics.status(topic)).queues
            except TopicNotFoundError:  # A broker that was just restarted is about to register.
                queues = ()
            for queue in queues:
                size = queue.max_offset - queue.min_offset
                if size:
                    each = await admin.messages.by_offset(
                        topic, queue.queue_id, queue.min_offset, count=size
                    )
                    found += [one.message for one in each]
            if len(found) >= count:
                return found
            assert time.monotonic() < deadline, f"{len(found)} of {count} messages"
            await asyncio.sleep(0.2)


async def test_a_new_topic_is_sent_to_by_many_at_a_time(server: Server, topic: str) -> None:
    async with AsyncProducer(f"{topic}-g", nameserver=server.nameservers) as producer:
        receipts = await asyncio.gather(
            *(
                producer.send(Message(topic, b"%d" % n, tags=f"t{n}", keys=[f"k{n}"], flag=n))
                for n in range(200)
            )
        )
    assert {receipt.status for receipt in receipts} == {SendStatus.OK}
    found = {record.unique_key: record for record in await stored(server, topic, 200)}
    for number, receipt in enumerate(receipts):
        record = found[receipt.message_id]
        assert (bytes(record.body), record.flag) == (b"%d" % number, number)
        assert (record.tags, record.keys) == (f"t{number}", [f"k{number}"])
        assert (record.queue_id, record.queue_offset) == (receipt.queue.queue_id, receipt.offset)
        assert record.message_id == receipt.offset_id


async def test_one_key_is_one_queue_in_order(server: Server, topic: str) -> None:
    create_topic(server.broker_address, topic, QUEUES)
    async with AsyncProducer(f"{topic}-g", nameserver=server.nameservers) as producer:
        for number in range(20):
            for key in ("42", "order-1"):
                body = f"{key}:{number}".encode()
                receipt = await producer.send(Message(topic, body), order_key=key)
                assert receipt.queue.queue_id == abs(java_hash(key)) % QUEUES
    bodies = [bytes(record.body).decode() for record in await stored(server, topic, 40)]
    for key in ("42", "order-1"):
        mine = [body for body in bodies if body.startswith(f"{key}:")]
        assert mine == [f"{key}:{number}" for number in range(20)]


async def test_batches_are_stored_one_message_after_the_other(server: Server, topic: str) -> None:
    create_topic(server.broker_address, topic, QUEUES)
    async with AsyncProducer(f"{topic}-g", nameserver=server.nameservers) as producer:
        queue = (await producer.queues(topic))[2]
        batch = [Message(topic, b"%d" % n, tags=f"t{n}", flag=n) for n in range(10)]
        receipt = await producer.send_batch(batch, queue=queue)
    records = await stored(server, topic, 10)
    assert [bytes(record.body) for record in records] == [b"%d" % n for n in range(10)]
    assert [record.tags for record in records] == [f"t{n}" for n in range(10)]
    assert {record.queue_id for record in records} == {2}
    assert ",".join(record.unique_key or "" for record in records) == receipt.message_id
    assert receipt.offset_id.split(",")[0] == records[0].message_id


async def test_messages_come_later_at_their_level_or_their_time(server: Server, topic: str) -> None:
    create_topic(server.broker_address, topic, 1)
    async with AsyncProducer(f"{topic}-g", nameserver=server.nameservers) as producer:
        level = await producer.send(Message(topic, b"level", delay_level=1))
        timed = await producer.send(Message(topic, b"timed", delay=timedelta(seconds=3)))
        taken = await producer.send(Message(topic, b"taken back", delay=timedelta(minutes=1)))
        assert taken.recall_handle is not None
        if server.name == "rocketmq":  # It can, but by default it may not.
            with pytest.raises(NotPermittedError, match="operation is forbidden"):
                await producer.recall(topic, taken.recall_handle)
        else:
            assert await producer.recall(topic, taken.recall_handle) == taken.message_id
    records = {record.unique_key: record for record in await stored(server, topic, 2)}
    assert set(records) == {level.message_id, timed.message_id}
    for receipt, least_ms in ((level, 900), (timed, 2_000)):  # RocketMQ rounds to seconds.
        record = records[receipt.message_id]
        assert record.store_ms - record.born_ms >= least_ms


async def test_one_way_messages_arrive(server: Server, topic: str) -> None:
    create_topic(server.broker_address, topic, 1)
    async with AsyncProducer(f"{topic}-g", nameserver=server.nameservers) as producer:
        for number in range(50):
            await producer.send_oneway(Message(topic, b"%d" % number))
    assert len(await stored(server, topic, 50)) == 50


async def test_what_the_broker_refuses_is_said_in_its_words(server: Server, topic: str) -> None:
    create_topic(server.broker_address, topic, 1)
    async with AsyncProducer(
        f"{topic}-g", nameserver=server.nameservers, body_bytes_max=8 << 20
    ) as producer:
        with pytest.raises(MessageError, match=f"{server.broker_address} refused SEND_MESSAGE_V2"):
            await producer.send(Message(topic, random.Random(1).randbytes(5 << 20)))
        with pytest.raises(OnelogError, match=server.broker_address):
            await producer.send(Message("SCHEDULE_TOPIC_XXXX", b"x"), timeout=10)
        assert (await producer.send(Message(topic, b"x" * (3 << 20)))).status is SendStatus.OK


def test_a_broker_that_is_killed_and_comes_back_loses_nothing_that_was_acknowledged(
    own_server: Server, topic: str
) -> None:
    create_topic(own_server.broker_address, topic, 1)
    acknowledged: list[Receipt] = []
    errors: list[str] = []
    with Producer(f"{topic}-g", nameserver=own_server.nameservers, timeout=2) as producer:
        acknowledged += [producer.send(Message(topic, b"%d" % number)) for number in range(20)]
        own_server.restart(signal.SIGKILL)
        deadline = time.monotonic() + 120
        while len(acknowledged) < 40:
            assert time.monotonic() < deadline, "the producer did not find the broker again"
            try:
                acknowledged.append(producer.send(Message(topic, b"%d" % len(acknowledged))))
            except OnelogError as error:
                errors.append(str(error))
                time.sleep(0.2)
    assert errors
    assert all(own_server.broker_address in error for error in errors)
    records = asyncio.run(stored(own_server, topic, 40))
    ids = {record.unique_key for record in records}
    assert {receipt.message_id for receipt in acknowledged} <= ids
