"""Writing to topics from Spark: batch and streaming, exactly once.

Tasks stage their messages on the brokers, where nobody sees them; the driver's commit names what
the attempts that won have staged, and the brokers publish just that. A stream's batch is known by
the query's id and its number, so a batch that Spark runs again after a crash is published once; a
batch write is its own query, or with `txnAppId` and `txnVersion` a numbered batch of the job that
they name, as `foreachBatch` needs it. With `delivery=at-least-once`, which RocketMQ's brokers can
do too, tasks send at once, and a task that is run again sends again.

Invariant: between `write` and `commit` nothing is visible; what `commit` has returned for is.
"""

import asyncio
import time
import uuid
from collections import deque
from collections.abc import Callable, Coroutine, Iterator, Mapping
from concurrent.futures import Future
from dataclasses import dataclass
from typing import Any, NamedTuple, TypeVar

import pyarrow as pa
from pyspark.sql.datasource import DataSourceArrowWriter, WriterCommitMessage
from pyspark.sql.types import StructType

from onelog.client import background
from onelog.client.instance import Instance
from onelog.client.message import Queue
from onelog.client.prepared import PART_BYTES, PreparedBatches, Staged
from onelog.errors import (
    BrokerNotFoundError,
    NameserversUnreachableError,
    OnelogError,
    PeerClosedError,
    PeerTimeoutError,
    TopicNotFoundError,
)
from onelog.spark.brokers import Patience
from onelog.spark.options import Link, WriteOptions
from onelog.spark.outgoing_queues import Parts, QueueChoice
from onelog.spark.outgoing_rows import RowEncoder, check_columns
from onelog.spark.stream_writers import Messages, task
from onelog.spark.worker_memory import settle
from onelog.wire.remoting.codes import RequestCode

ON_THE_WAY_MAX = 8
"""Parts of a task that may wait for a broker's answer."""
EXACTLY_ONCE = "exactly-once"
AT_LEAST_ONCE = "at-least-once"
# A broker that is started again is away from the name servers, too, for a moment.
_AWAY = (PeerClosedError, PeerTimeoutError, NameserversUnreachableError, BrokerNotFoundError)

T = TypeVar("T")


@dataclass(frozen=True)
class TaskWritten(WriterCommitMessage):
    """What one attempt of a task has staged."""

    query: str
    staged: tuple[Staged, ...]
    rows: int


class OnelogWriter(DataSourceArrowWriter):
    """`df.write.format("onelog")`."""

    def __init__(self, options: WriteOptions, schema: StructType) -> None:
        check_columns(schema.names)
        self._options = options
        self._query, self._batch = options.transaction or (f"spark-batch-{uuid.uuid4().hex}", 0)

    def write(self, iterator: Iterator[pa.RecordBatch]) -> WriterCommitMessage:
        """In a task: stage the rows of a partition."""
        return write_rows(self._options, self._query, self._batch, iterator)

    def commit(self, messages: Messages) -> None:
        """On the driver: publish what the tasks staged."""
        commit_batch(self._options, self._query, self._batch, messages)

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
        return write_rows(self._options, query, batch, batches)

    def commit(self, batch: int, messages: Messages) -> None:
        """On the driver: publish the batch, unless it was published before."""
        written = [each for each in messages if isinstance(each, TaskWritten)]
        if written:
            commit_batch(self._options, written[0].query, batch, messages)


# -- a task --------------------------------------------------------------------------------------


def write_rows(
    options: WriteOptions, query: str, batch: int, batches: Iterator[pa.RecordBatch]
) -> TaskWritten:
    """Stage, or send, the rows of one partition."""
    context = task()
    partition = context.partitionId() if context else 0
    attempt = str(context.taskAttemptId()) if context else "0"
    writing = _Task(options, query, batch, attempt, partition)
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


_instances: dict[Link, Instance] = {}


def _instance(link: Link) -> Instance:
    """A client for this cluster; workers are used again, and so are their connections."""
    found = _instances.get(link)
    if found is None or found.is_forked:
        found = _instances[link] = Instance(link.client_options())
        background.run(found.start())
    return found


class _Task:
    """The writing of one attempt of a task."""

    def __init__(
        self, options: WriteOptions, query: str, batch: int, attempt: str, partition: int
    ) -> None:
        self._options = options
        self._query = query
        self._batch = batch
        self._attempt = attempt
        self._partition = partition
        self._instance = _instance(options.link)
        self._job = PreparedBatches(self._instance, query)
        self._choices: dict[str, QueueChoice] = {}
        self._parts = Parts(PART_BYTES)
        self._on_the_way: deque[_OnTheWay] = deque()
        self._staged: list[Staged] = []

    def write(self, batches: Iterator[pa.RecordBatch]) -> TaskWritten:
        """Everything."""
        exactly = self._options.delivery == EXACTLY_ONCE
        is_committed = self._job.is_committed
        if exactly and _patiently(self._options.link, lambda: is_committed(self._batch)):
            # The batch is out already: Spark runs it again because it did not hear of that.
            for _ in batches:
                pass
            return TaskWritten(self._query, (), 0)
        encoder = RowEncoder(self._options.topic, self._options.body_bytes_max)
        rows = 0
        for batch in batches:
            rows += batch.num_rows
            for topic, messages in encoder.rows(batch):
                self._share_out(self._choices.get(topic) or self._choice(topic), messages)
        for queue, part in self._parts.rest():
            self._put(queue, part)
        while self._on_the_way:
            self._take()
        return TaskWritten(self._query, tuple(self._staged), rows)

    def close(self) -> None:
        """Wait for nobody."""
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
        route = background.run(self._instance.routes.get_for_sending(topic))
        # Tasks begin at different queues, so that small ones do not all fill the first.
        self._choices[topic] = choice = QueueChoice(route.publish_queues, self._partition)
        return choice

    def _put(self, queue: Queue, part: bytes) -> None:
        if len(self._on_the_way) >= ON_THE_WAY_MAX:
            self._take()
        self._on_the_way.append(_OnTheWay(queue, part, self._ask(queue, part)))

    def _ask(self, queue: Queue, part: bytes) -> "Future[Staged | None]":
        stage = self._options.delivery == EXACTLY_ONCE
        work = self._stage(queue, part) if stage else self._send(queue, part)
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
            except (*_AWAY, TopicNotFoundError) as error:
                patience.wait_or_raise(error)
            background.run(self._instance.routes.refresh_quietly(queue.topic))
            answer = self._ask(queue, part)
        if staged is not None:
            self._staged.append(staged)

    async def _stage(self, queue: Queue, part: bytes) -> Staged:
        return await self._job.stage(queue, part, self._batch, self._attempt)

    async def _send(self, queue: Queue, part: bytes) -> None:
        route = await self._instance.routes.get_for_sending(queue.topic)
        ext: Mapping[str, object] = {
            "a": "onelog_spark", "b": queue.topic, "c": "TBW102", "d": 4, "e": queue.queue_id,
            "f": 0, "g": time.time_ns() // 1_000_000, "h": 0, "i": "", "j": 0, "k": "false",
            "m": "true", "n": queue.broker,
        }  # fmt: skip
        await self._instance.ask(
            route.address(queue.broker),
            RequestCode.SEND_BATCH_MESSAGE,
            {name: str(value) for name, value in ext.items()},
            part,
        )


# -- the driver ----------------------------------------------------------------------------------


def commit_batch(options: WriteOptions, query: str, batch: int, messages: Messages) -> None:
    """Publish what the tasks that won have staged."""
    if options.delivery != EXACTLY_ONCE:
        return
    staged = [part for each in messages if isinstance(each, TaskWritten) for part in each.staged]
    job = PreparedBatches(_instance(options.link), query)
    try:
        _patiently(options.link, lambda: job.commit(batch, staged))
    except _AWAY as error:
        raise OnelogError(
            f"batch {batch} of query {query} may or may not be committed: {error}; run the query "
            "again, which settles it"
        ) from error


def _patiently(link: Link, ask: Callable[[], Coroutine[Any, Any, T]]) -> T:
    """Ask until somebody answers, or `retryTimeoutMs` is over."""
    patience = Patience(link)
    while True:
        try:
            return background.run(ask())
        except _AWAY as error:
            patience.wait_or_raise(error)
