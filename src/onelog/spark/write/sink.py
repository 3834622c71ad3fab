"""Writing to topics from Spark: batch and streaming, exactly once.

Tasks stage their messages on the brokers, where nobody sees them; the driver's commit names what
the attempts that won have staged, and the brokers publish just that. A stream's batch is known by
the query's id and its number, so a batch that Spark runs again after a crash is published once; a
batch write is its own query, or with `txnAppId` and `txnVersion` a numbered batch of the job that
they name, as `foreachBatch` needs it. With `delivery=at-least-once`, which RocketMQ's brokers can
do too, tasks send at once, and a task that is run again sends again.

One broker decides for a query, always the same (see `client.producer.staged`). The brokers remember
which one, and so does the checkpoint of a stream (`deciders`).

Invariant: between `write` and `commit` nothing is visible; what `commit` has returned for is.
"""

import asyncio
import pickle
import time
import uuid
from collections import deque
from collections.abc import Callable, Coroutine, Iterator, Mapping
from concurrent.futures import Future
from dataclasses import dataclass
from tempfile import SpooledTemporaryFile
from typing import IO, Any, Literal, NamedTuple, TypeVar

import pyarrow as pa
from pyspark.sql.datasource import DataSourceArrowWriter, WriterCommitMessage
from pyspark.sql.types import StructType

from onelog.client.connection import background
from onelog.client.connection.instance import Instance
from onelog.client.message import Queue
from onelog.client.producer.staged import PART_BYTES, PreparedBatches, Staged
from onelog.errors import (
    BrokerNotFoundError,
    NameserversUnreachableError,
    OnelogError,
    PeerClosedError,
    PeerTimeoutError,
    TopicNotFoundError,
)
from onelog.rocketmq.names import DEFAULT_TOPIC
from onelog.spark.brokers import Patience, connect, patiently
from onelog.spark.link import Link
from onelog.spark.options import WriteOptions
from onelog.spark.workers import settle, task
from onelog.spark.write.deciders import DeciderFile
from onelog.spark.write.queues import Parts, QueueChoice
from onelog.spark.write.rows import RowEncoder, check_columns
from onelog.spark.write.stream_writers import Messages
from onelog.wire.remoting.codes import RequestCode
from onelog.wire.remoting.fields import EMPTY_BODIES

ON_THE_WAY_MAX = 8
"""Parts of a task that may wait for a broker's answer."""
_HELD_BYTES_MAX = 32 << 20
"""Parts that are held back: more of them are on disk."""
EXACTLY_ONCE = "exactly-once"
# A broker that is started again is away from the name servers, too, for a moment.
_AWAY = (
    PeerClosedError,
    PeerTimeoutError,
    NameserversUnreachableError,
    BrokerNotFoundError,
    TopicNotFoundError,
)

T = TypeVar("T")


@dataclass(frozen=True)
class TaskWritten(WriterCommitMessage):
    """What one attempt of a task has staged."""

    query: str
    staged: tuple[Staged, ...]
    rows: int


class QueryBatch(NamedTuple):
    """Which batch of which query is written."""

    query: str
    number: int
    kind: Literal["stream", "numbered", "one-off"]
    """A one-off is a batch write that nobody can repeat."""


class OnelogWriter(DataSourceArrowWriter):
    """`df.write.format("onelog")`."""

    def __init__(self, options: WriteOptions, schema: StructType) -> None:
        check_columns(schema.names)
        self._options = options
        if options.transaction is not None:
            self._batch = QueryBatch(*options.transaction, "numbered")
        else:
            self._batch = QueryBatch(f"spark-batch-{uuid.uuid4().hex}", 0, "one-off")

    def write(self, iterator: Iterator[pa.RecordBatch]) -> WriterCommitMessage:
        """In a task: stage the rows of a partition."""
        return write_rows(self._options, self._batch, iterator)

    def commit(self, messages: Messages) -> None:
        """On the driver: publish what the tasks staged."""
        commit_batch(self._options, self._batch, messages)

    def abort(self, messages: Messages) -> None:
        """On the driver: nothing to do, what is staged and not committed is never seen."""


class TopicStream:
    """`df.writeStream.format("onelog")`; see `stream_writers.StreamWork`."""

    def __init__(self, options: WriteOptions, schema: StructType) -> None:
        check_columns(schema.names)
        self._options = options

    def write(
        self, query: str, batch: int, batches: Iterator[pa.RecordBatch]
    ) -> WriterCommitMessage:
        """In a task: stage the rows of a partition."""
        return write_rows(self._options, QueryBatch(query, batch, "stream"), batches)

    def commit(self, batch: int, messages: Messages) -> None:
        """On the driver: publish the batch, unless it was published before."""
        written = [each for each in messages if isinstance(each, TaskWritten)]
        if written:
            commit_batch(self._options, QueryBatch(written[0].query, batch, "stream"), messages)


# -- a task --------------------------------------------------------------------------------------


def write_rows(
    options: WriteOptions, batch: QueryBatch, batches: Iterator[pa.RecordBatch]
) -> TaskWritten:
    """Stage, or send, the rows of one partition."""
    context = task()
    partition = context.partitionId() if context else 0
    attempt = str(context.taskAttemptId()) if context else "0"
    writing = _Task(options, batch, attempt, partition)
    try:
        return writing.write(batches)
    finally:
        writing.close()
        settle()


class _OnTheWay(NamedTuple):
    """A part that a broker was asked to take."""

    queue: Queue
    part: bytes
    answer: "Future[Staged | None]"


_deciders: dict[str, str] = {}
"""Who decides, by query, as tasks of this process found out: one question less for the next."""
_DECIDERS_MAX = 1_000


class _Task:
    """The writing of one attempt of a task."""

    def __init__(
        self, options: WriteOptions, batch: QueryBatch, attempt: str, partition: int
    ) -> None:
        self._options = options
        self._batch = batch
        self._attempt = attempt
        self._partition = partition
        self._instance = connect(options.link).instance
        self._job = _job(options, batch, self._instance, _deciders.get(batch.query))
        self._choices: dict[str, QueueChoice] = {}
        limit = options.body_bytes_max
        self._parts = Parts(min(PART_BYTES, limit), bytes_max=min(2 * PART_BYTES, limit))
        self._held: IO[bytes] | None = None
        if options.delivery != EXACTLY_ONCE:
            # What is sent is seen: not before all rows of the task are known to be right.
            spool = SpooledTemporaryFile
            self._held = spool(max_size=_HELD_BYTES_MAX)
        self._on_the_way: deque[_OnTheWay] = deque()
        self._staged: list[Staged] = []

    def write(self, batches: Iterator[pa.RecordBatch]) -> TaskWritten:
        if self._is_committed():
            # The batch is out already: Spark runs it again because it did not hear of that.
            for _ in batches:
                pass
            return TaskWritten(self._batch.query, (), 0)
        encoder = RowEncoder(self._options.topic, self._options.body_bytes_max)
        rows = 0
        for batch in batches:
            rows += batch.num_rows
            for topic, messages in encoder.rows(batch):
                self._share_out(self._choices.get(topic) or self._choice(topic), messages)
        for queue, part in self._parts.rest():
            self._put(queue, part)
        for queue, part in self._let_go():
            self._put(queue, part)
        while self._on_the_way:
            self._take()
        return TaskWritten(self._batch.query, tuple(self._staged), rows)

    def _is_committed(self) -> bool:
        if self._options.delivery != EXACTLY_ONCE or self._batch.kind == "one-off":
            return False
        link, job = self._options.link, self._job
        decider = _patiently(link, job.find_decider)
        if decider is None:
            return False
        if len(_deciders) >= _DECIDERS_MAX:
            _deciders.clear()
        _deciders[self._batch.query] = decider
        return _patiently(link, lambda: job.is_committed(self._batch.number))

    def close(self) -> None:
        """Wait for nobody."""
        if self._held is not None:
            self._held.close()
        for each in self._on_the_way:
            each.answer.cancel()

    def _share_out(self, choice: QueueChoice, rows: pa.RecordBatch) -> None:
        """Collect the messages of a topic by queue, and put parts that are full."""
        for named, messages in choice.shares(rows):
            while len(messages):
                queue = named or choice.current
                messages, part = self._parts.add(queue, messages)
                if part is not None:
                    self._put(queue, part)
                    if named is None:
                        choice.next()

    def _choice(self, topic: str) -> QueueChoice:
        routes = self._instance.routes
        route = _patiently(self._options.link, lambda: routes.get_for_sending(topic))
        # Tasks begin at different queues, so that small ones do not all fill the first.
        self._choices[topic] = choice = QueueChoice(route.publish_queues, self._partition)
        return choice

    def _let_go(self) -> Iterator[tuple[Queue, bytes]]:
        """The parts that were held back."""
        held, self._held = self._held, None
        if held is None:
            return
        with held:
            end = held.tell()
            held.seek(0)
            while held.tell() < end:
                yield pickle.load(held)

    def _put(self, queue: Queue, part: bytes) -> None:
        if self._held is not None:
            pickle.dump((queue, part), self._held)
            return
        if len(self._on_the_way) >= ON_THE_WAY_MAX:
            self._take()
        self._on_the_way.append(_OnTheWay(queue, part, self._ask(queue, part)))

    def _ask(self, queue: Queue, part: bytes) -> "Future[Staged | None]":
        work: Coroutine[Any, Any, Staged | None] = (
            self._job.stage(queue, part, self._batch.number, self._attempt)
            if self._options.delivery == EXACTLY_ONCE
            else self._send(queue, part)
        )
        return asyncio.run_coroutine_threadsafe(work, background.loop())

    def _take(self) -> None:
        """Wait for the oldest answer; what was not heard of is asked again.

        Staged twice does no harm: the commit names only what was heard of. Sent twice is what
        `at-least-once` means.
        """
        queue, part, answer = self._on_the_way.popleft()
        patience = Patience(self._options.link)
        while True:
            try:
                staged = answer.result()
                break
            except _AWAY as error:
                patience.wait_or_raise(error)
            background.run(self._instance.routes.refresh_quietly(queue.topic))
            answer = self._ask(queue, part)
        if staged is not None:
            self._staged.append(staged)

    async def _send(self, queue: Queue, part: bytes) -> None:
        route = await self._instance.routes.get_for_sending(queue.topic)
        ext: Mapping[str, object] = {
            "a": "onelog_spark",
            "b": queue.topic,
            "c": DEFAULT_TOPIC,
            "d": 4,
            "e": queue.queue_id,
            "f": 0,
            "g": time.time_ns() // 1_000_000,
            "h": 0,
            "i": "",
            "j": 0,
            "k": "false",
            "m": "true",
            "n": queue.broker,
            EMPTY_BODIES: "true",
        }
        await self._instance.ask(
            route.address(queue.broker),
            RequestCode.SEND_BATCH_MESSAGE,
            {name: str(value) for name, value in ext.items()},
            part,
        )


# -- the driver ----------------------------------------------------------------------------------


def commit_batch(options: WriteOptions, batch: QueryBatch, messages: Messages) -> None:
    """Publish what the tasks that won have staged."""
    if options.delivery != EXACTLY_ONCE:
        return
    staged = [part for each in messages if isinstance(each, TaskWritten) for part in each.staged]
    job = _job(options, batch, connect(options.link).instance)
    _choose_decider(job, options, batch)
    try:
        _patiently(options.link, lambda: job.commit(batch.number, staged))
    except _AWAY as error:
        raise OnelogError(
            f"batch {batch.number} of query {batch.query} may or may not be committed: {error}; "
            "run the query again, which settles it"
        ) from error


def _job(
    options: WriteOptions, batch: QueryBatch, instance: Instance, decider: str | None = None
) -> PreparedBatches:
    known = options.decider or DeciderFile(options.checkpoint, batch.query).read() or decider
    return PreparedBatches(instance, batch.query, decider=known, one_off=batch.kind == "one-off")


def _choose_decider(job: PreparedBatches, options: WriteOptions, batch: QueryBatch) -> None:
    """Have it written down who decides, before anything is decided."""
    if batch.kind == "one-off":
        return
    found = _patiently(options.link, job.find_decider)
    if found is None and batch.kind == "stream" and batch.number > 0:
        raise BrokerNotFoundError(
            f"no broker knows query {batch.query}, which is at batch {batch.number} already: the "
            "one that decides for it is away, or did not hear of it for 90 days. Start it; or, if "
            "it is gone for good, name another one (option decidingBroker), and this batch may "
            "come twice"
        )
    decider = found or _patiently(options.link, job.choose_decider)
    DeciderFile(options.checkpoint, batch.query).write(decider)


def _patiently(link: Link, ask: Callable[[], Coroutine[Any, Any, T]]) -> T:
    return patiently(link, ask, _AWAY)
