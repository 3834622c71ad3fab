"""Message traces: a hook that writes down what a client sends, consumes and ends.

The records go to RocketMQ's trace topic in batches, as the Java client's do: `onelog message trace`
reads them, and so do RocketMQ's console and mqadmin.

    producer = Producer("orders-app", hooks=[TraceHook()])
    consumer = PushConsumer("billing", hooks=[TraceHook()])

Invariants: tracing never makes a send or a listener wait or fail; what cannot be written is counted
in `dropped`; a hook belongs to one client, and when that is closed, nothing is left unwritten as
long as a broker answers.
"""

import asyncio
import logging
from collections import deque
from collections.abc import Iterable, Iterator
from datetime import timedelta
from itertools import zip_longest

from onelog.client.connection.instance import Instance
from onelog.client.connection.nodes import end_all
from onelog.client.connection.routes import QUEUES
from onelog.client.hooks import ConsumeContext, SendContext, TransactionContext, now_ms
from onelog.client.message import ReceivedMessage, SendStatus
from onelog.client.options import milliseconds
from onelog.client.producer.delivery import Delivery
from onelog.client.producer.outgoing import packed
from onelog.client.producer.pending_sends import Parcel
from onelog.client.producer.unique_id import unique_id
from onelog.errors import ConfigError, OnelogError
from onelog.jobs import Job
from onelog.message import KEYS, UNIQUE_KEY, encode_properties
from onelog.net.tasks import is_set
from onelog.record.compression import Compression
from onelog.rocketmq.names import TRACE_TOPIC
from onelog.wire.remoting.trace import (
    Consumed,
    Delivered,
    MessageKind,
    Published,
    TraceRecord,
    TransactionEnded,
    encode_trace,
    trace_keys,
)

GROUP = "_INNER_TRACE_PRODUCER"
REGION = "DefaultRegion"
BATCH_COUNT = 20
"""Records that are worth a message of their own before the interval is over."""
WAITING_MAX = 20_000
"""Records that may wait to be written; those that come when as many wait are dropped."""
BODY_BYTES_MAX = 128_000
KEYS_CHARACTERS_MAX = 16_000
"""The keys are a property, and all properties together may have 32,767 bytes."""
COMPRESS_OVER_BYTES = 4096
TRIES = 3
CLOSE_SECONDS_MAX = 5.0

log = logging.getLogger(__name__)


class TraceHook:
    """Traces of one producer or consumer."""

    def __init__(self, *, topic: str = TRACE_TOPIC, interval: timedelta | float = 1.0) -> None:
        self.dropped = 0
        """Records that could not be written."""
        self._topic = topic
        self._interval_ms = milliseconds("interval", interval)
        self._waiting: deque[TraceRecord] = deque()
        self._instance: Instance | None = None
        self._delivery: Delivery | None = None
        self._task: asyncio.Task[None] | None = None
        self._due = asyncio.Event()

    # Life, with the client.

    async def start(self, instance: Instance) -> None:
        """The client starts."""
        if self._instance is not None:
            raise ConfigError("a TraceHook belongs to one client: make one for each")
        self._instance = instance
        self._delivery = Delivery(
            instance, GROUP, retries=TRIES - 1, queues=QUEUES, avoid_faults=False
        )
        self._delivery.start()
        self._task = instance.spawn(self._run(self._delivery))

    async def close(self) -> None:
        """The client ends: write what waits."""
        if self._task is None or self._delivery is None:
            return
        await end_all([self._task])
        try:
            async with asyncio.timeout(CLOSE_SECONDS_MAX):
                await self._write_all(self._delivery)
        except TimeoutError:
            self.dropped += len(self._waiting)
            log.warning("%d trace records were not written in time", len(self._waiting))

    # What is traced.

    def before_send(self, context: SendContext) -> None:
        """Nothing is known yet."""

    def after_send(self, context: SendContext) -> None:
        """A message was sent, or not. One-way ones are not traced: nobody knows."""
        receipt = context.receipt
        if receipt is None and context.error is None:
            return
        is_stored = receipt is not None and receipt.status is SendStatus.OK
        offset_ids = receipt.offset_id.split(",") if receipt is not None else []
        cost_ms = now_ms() - context.started_ms
        ids = context.message_id.split(",")
        for message, message_id, offset_id in zip_longest(
            context.messages, ids, offset_ids[: len(ids)], fillvalue=None
        ):
            if message is None or message.topic == self._topic:
                continue
            self._add(
                Published(
                    context.started_ms,
                    REGION,
                    context.group,
                    message.topic,
                    message_id or "",
                    message.tags or "",
                    " ".join(message.keys),
                    context.address,
                    len(message.body),
                    cost_ms,
                    context.kind,
                    offset_id or "",
                    is_stored,
                )
            )

    def before_consume(self, context: ConsumeContext) -> None:
        """A listener is about to be called."""
        request_id = context.notes[self] = unique_id()
        group = self._plain(context.group)
        for message, region in _traced(context.messages):
            self._add(
                Delivered(
                    context.started_ms,
                    region,
                    group,
                    request_id,
                    message.message_id,
                    message.delivery_attempt - 1,
                    " ".join(message.keys),
                )
            )

    def after_consume(self, context: ConsumeContext) -> None:
        """It is done."""
        request_id = str(context.notes.get(self, ""))
        group = self._plain(context.group)
        ended_ms = now_ms()
        cost_ms = (ended_ms - context.started_ms) // len(context.messages)
        for message, _ in _traced(context.messages):
            self._add(
                Consumed(
                    request_id,
                    message.message_id,
                    cost_ms,
                    context.is_success,
                    " ".join(message.keys),
                    context.outcome,
                    ended_ms,
                    group,
                )
            )

    def transaction_ended(self, context: TransactionContext) -> None:
        """A producer said how a transaction ended."""
        self._add(
            TransactionEnded(
                now_ms(),
                REGION,
                context.group,
                context.topic,
                context.message_id,
                context.tags,
                context.keys,
                context.address,
                MessageKind.TRANSACTION_COMMIT,
                context.transaction_id,
                context.state,
                context.from_check,
            )
        )

    def _plain(self, group: str) -> str:
        """A consumer group as its users know it; traces are the same in every namespace."""
        return group if self._instance is None else self._instance.unwrap(group)

    def _add(self, record: TraceRecord) -> None:
        """From any thread."""
        if len(self._waiting) >= WAITING_MAX:
            self.dropped += 1
            return
        self._waiting.append(record)
        instance = self._instance
        if len(self._waiting) == BATCH_COUNT and instance is not None and instance.loop is not None:
            instance.loop.call_soon_threadsafe(self._due.set)

    # Writing.

    async def _run(self, delivery: Delivery) -> None:
        job = Job("writing traces")
        while True:
            await is_set(self._due, self._interval_ms / 1000)
            self._due.clear()
            with job:
                await self._write_all(delivery)

    async def _write_all(self, delivery: Delivery) -> None:
        while self._waiting:
            records = self._take()
            try:
                await self._write(delivery, records)
            except OnelogError as error:
                self.dropped += len(records)
                log.warning("%d trace records are lost: %s", len(records), error)

    def _take(self) -> list[TraceRecord]:
        """As many of the waiting records as fit into one message, and at least one."""
        records: list[TraceRecord] = []
        size = keys = 0
        while self._waiting:
            record = self._waiting[0]
            size += len(encode_trace([record]))
            keys += sum(len(key) + 1 for key in trace_keys([record]))
            if records and (size > BODY_BYTES_MAX or keys > KEYS_CHARACTERS_MAX):
                break
            records.append(self._waiting.popleft())
        return records

    async def _write(self, delivery: Delivery, records: list[TraceRecord]) -> None:
        properties = {KEYS: " ".join(trace_keys(records)), UNIQUE_KEY: unique_id(), "WAIT": "true"}
        body, sys_flag = encode_trace(records), 0
        if len(body) > COMPRESS_OVER_BYTES:
            body, sys_flag = packed(body, Compression.ZLIB)
        text = encode_properties(properties).decode()
        await delivery.deliver(
            Parcel(
                self._topic,
                properties[UNIQUE_KEY],
                text,
                body,
                sys_flag=sys_flag,
                timeout_ms=delivery.instance.timeout_ms,
            )
        )


def _traced(messages: Iterable[ReceivedMessage]) -> Iterator[tuple[ReceivedMessage, str]]:
    """The messages that may be traced, and the region of each."""
    for message in messages:
        properties = message.all_properties
        if properties.get("TRACE_ON") != "false":
            yield message, properties.get("MSG_REGION", REGION)
