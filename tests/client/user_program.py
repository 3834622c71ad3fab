"""A program as users of the SDK write it, for type checkers: it is checked, and never run.

`assert_type` pins what an editor shows where a user points at a name.
"""

import sqlite3
import ssl
from collections.abc import Awaitable, Callable, Sequence
from concurrent.futures import Future
from datetime import UTC, datetime, timedelta
from typing import assert_type

import onelog
from onelog.client import (
    Admin,
    AllocationStrategy,
    AsyncAdmin,
    AsyncProducer,
    AsyncPullConsumer,
    AsyncPushConsumer,
    ByConfig,
    ByConsistentHash,
    ConsumeContext,
    Credentials,
    DbApiStore,
    Message,
    Producer,
    ProducerOptions,
    PullConsumer,
    PushConsumer,
    Queue,
    Receipt,
    ReceivedMessage,
    RetryLater,
    SendContext,
    SendStatus,
    SqliteStore,
    TraceHook,
    TransactionReceipt,
    TransactionState,
    idempotent,
)
from onelog.client.admin.messages import Found
from onelog.errors import OnelogError, SendFailedError

SHARED: ProducerOptions = {
    "nameserver": "10.0.0.1:9876;10.0.0.2:9876",
    "credentials": Credentials("user", "secret"),
    "tls": ssl.create_default_context(),
    "timeout": timedelta(seconds=5),
    "compression": "zstd",
}


class Timing:
    """A hook, without inheriting anything."""

    def before_send(self, context: SendContext) -> None:
        context.properties["sent-by"] = context.group

    def after_send(self, context: SendContext) -> None:
        assert_type(context.receipt, Receipt | None)


def send() -> None:
    """Everything that a producer does."""
    with Producer("orders-app", **SHARED) as producer:
        assert_type(producer, Producer)
        receipt = producer.send(Message("orders", b"...", tags="paid", keys=["42"]))
        assert_type(receipt, Receipt)
        assert_type(receipt.message_id, str)
        assert_type(receipt.queue, Queue)
        assert_type(receipt.offset, int)
        assert_type(receipt.status, SendStatus)
        producer.send(Message("orders", b"...", delay=timedelta(seconds=90)), order_key="42")
        producer.send(Message("orders", b"...", deliver_at=datetime.now(UTC)), timeout=2)
        assert_type(producer.send_async(Message("orders", b"...")), Future[Receipt])
        producer.send_oneway(Message("orders", b"..."))
        producer.send_batch([Message("orders", b"...") for _ in range(3)])
        assert_type(producer.queues("orders"), tuple[Queue, ...])
        answer = producer.request(Message("questions", b"?"), timeout=timedelta(seconds=1))
        assert_type(answer, ReceivedMessage)
        assert_type(producer.reply(answer, b"!"), Receipt)
        if receipt.recall_handle is not None:
            assert_type(producer.recall("orders", receipt.recall_handle), str)
        try:
            producer.send(Message("orders", b"..."))
        except SendFailedError as error:
            raise SystemExit(str(error)) from error


def check(message: ReceivedMessage) -> TransactionState:
    """How a transaction ended."""
    return TransactionState.COMMIT if message.transaction_id else TransactionState.UNKNOWN


def pay(message: Message, transaction_id: str) -> TransactionState:
    """A local transaction."""
    return TransactionState.COMMIT


def send_in_transactions() -> None:
    """Transactions."""
    with Producer("orders-app", checker=check) as producer:
        done = producer.send_transaction(Message("orders", b"..."), pay)
        assert_type(done, TransactionReceipt)
        assert_type(done.state, TransactionState)


def consume() -> None:
    """Push consumers."""
    with PushConsumer("billing", start="first", threads=4, orderly=True) as consumer:

        @consumer.subscribe("orders", tags="paid || refunded")
        def bill(message: ReceivedMessage) -> None:
            assert_type(message.topic, str)
            assert_type(message.body, bytes)
            assert_type(message.tags, str | None)
            assert_type(message.keys, list[str])
            assert_type(message.properties, dict[str, str])
            assert_type(message.born_time, datetime)
            assert_type(message.delivery_attempt, int)
            raise RetryLater("not yet", delay_level=3)

        heard: Callable[[ReceivedMessage], None] = bill  # A decorated listener is as it was.
        del heard

        @consumer.subscribe("invoices")
        @idempotent(store=SqliteStore("handled.sqlite"), key=lambda message: message.keys[0])
        def file_away(message: ReceivedMessage) -> None:
            assert_type(message.offset, int)

        assert_type(consumer.assigned, tuple[Queue, ...])
        assert_type(consumer.lag(), dict[Queue, int])
        consumer.run()


def consume_batches() -> None:
    """Lists of messages, and the other options."""
    strategy: AllocationStrategy = ByConfig((Queue("orders", "broker-a", 0),))
    consumer = PushConsumer("billing", batch_size=32, allocation=strategy, pop=True)

    def bill(messages: list[ReceivedMessage]) -> None:
        assert_type(messages[0].queue, Queue)

    consumer.subscribe("orders", listener=bill)
    consumer.close(timeout=timedelta(seconds=10))


def pull() -> None:
    """Pull consumers."""
    with PullConsumer("billing", auto_commit=False, allocation=ByConsistentHash()) as consumer:
        queues = consumer.queues("orders")
        consumer.assign(queues)
        consumer.seek(queues[0], 7)
        consumer.seek_to_time(datetime.now(UTC))
        for message in consumer.poll(timeout=1.5, count=10):
            assert_type(message, ReceivedMessage)
        assert_type(consumer.committed(queues[0]), int | None)
        assert_type(consumer.offsets_for_time(datetime.now(UTC)), dict[Queue, int])
        consumer.commit()


class Counting:
    """A hook of consumers."""

    def before_consume(self, context: ConsumeContext) -> None:
        assert_type(context.messages, Sequence[ReceivedMessage])

    def after_consume(self, context: ConsumeContext) -> None:
        assert_type(context.error, BaseException | None)


async def with_asyncio() -> None:
    """The same with asyncio."""
    async with AsyncProducer("orders-app") as producer:
        assert_type(await producer.send(Message("orders", b"...")), Receipt)

    async with AsyncPushConsumer("billing", concurrency=100) as consumer:

        @consumer.subscribe("orders", sql="amount > 3")
        async def bill(message: ReceivedMessage) -> None:
            assert_type(message.message_id, str)

        heard: Callable[[ReceivedMessage], Awaitable[None]] = bill
        del heard
        await consumer.run()

    async with AsyncPullConsumer("billing") as reader:
        reader.subscribe("orders")
        async for message in reader:
            assert_type(message, ReceivedMessage)

    async with AsyncAdmin.connect("127.0.0.1:9876") as admin:
        for queue in (await admin.topics.status("orders")).queues:
            assert_type(queue.max_offset, int)


def inside_this_process() -> None:
    """The broker as a part of the program."""
    with onelog.embedded() as mq:
        with mq.producer("orders-app", retries=0) as producer:
            assert_type(producer, Producer)
        with mq.pull_consumer("billing") as consumer:
            assert_type(consumer, PullConsumer)


def administration() -> None:
    """An administrator without asyncio, with a proof of who it is."""
    with Admin.connect(tls=True, credentials=Credentials("ops", "secret")) as admin:
        for queue in admin.topics.status("orders").queues:
            assert_type(queue.max_offset, int)
        assert_type(admin.groups.delete("billing", keep_positions=True), tuple[str, ...])
        for found in admin.messages.by_time("orders", 0, broker="broker-a"):
            assert_type(found, Found)


async def inside_this_loop() -> None:
    """The same with asyncio."""
    async with onelog.embedded(broker__auto_create_topics=False) as mq:
        async with mq.producer("orders-app") as producer:
            assert_type(producer, AsyncProducer)


def with_a_database() -> None:
    """Drivers of databases fit, and errors have one parent."""
    store = DbApiStore(lambda: sqlite3.connect("handled.sqlite"), group="billing")
    try:
        idempotent(store, lease=timedelta(minutes=1))
    except OnelogError as error:
        assert_type(str(error), str)


def with_hooks() -> None:
    """Hooks need not inherit anything."""
    Producer("orders-app", hooks=[Timing(), TraceHook()])
    PushConsumer("billing", hooks=[Counting()])
