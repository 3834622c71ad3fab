"""Batches of other forms than RocketMQ's on their way into the log, and who sends them.

A batch may say which producer it is of, and which number in that producer's sequence it has; then a
batch that was sent twice is stored once (`in_place`). What queues know of producers is kept in a
table, every few seconds; after a crash, the batches behind that are read from the log again.

    table     "producers": {topic@queue: what `QueueProducers.kept` gives, "next_id": number}

Invariant: an id is given out once. A batch is in its queue at most once, for as long as its
producer's numbers are known.
"""

import logging
from collections.abc import Callable, Generator, Iterator
from functools import partial
from itertools import islice
from typing import Any

from onelog.core.catalog.topics import TopicConfig, Topics
from onelog.core.cursors.forms import MarkedTopics
from onelog.core.durable.durability import Acks
from onelog.core.durable.storage import Storage
from onelog.core.durable.tables import Change, exhausted, in_parts
from onelog.core.durable.writer import UNCONFIRMED, OnStored, WithOffsets
from onelog.core.publish import Publisher
from onelog.core.transactions.in_place import (
    UNKNOWN,
    AcceptedBatch,
    Producer,
    QueueProducers,
    Stamp,
)
from onelog.errors import OnelogError
from onelog.message import Appended, LogOffset, NewMessage, QueueOffset
from onelog.names import join_key, split_key
from onelog.store.outcomes import Aborted, batches_from

log = logging.getLogger(__name__)

EXPIRY_MS = 24 * 3_600_000
_IDS_AT_ONCE = 1_000
_QUEUES_AT_ONCE = 200
_BATCHES_AT_ONCE = 200
_NEXT_ID = "next_id"

Queue = tuple[str, int]
"""A topic and a queue id."""
_Taken = tuple[QueueProducers, Stamp, AcceptedBatch, OnStored, Any]
"""A batch that was taken, and whom to tell of it."""


class BatchProducers:
    """Takes batches in, and knows their producers."""

    name = "producers"

    def __init__(
        self,
        storage: Storage,
        topics: Topics,
        marked: MarkedTopics,
    ) -> None:
        self._store, self._writer, self._tables = storage.store, storage.writer, storage.tables
        self._durability, self._clock = storage.durability, storage.runtime.clock
        self._marked = marked
        self._publisher: Publisher
        self.queues: dict[Queue, QueueProducers] = {}
        self.changed: set[Queue] = set()
        """Queues that got batches since they were kept."""
        self._next_id = self._ids_end = 0
        self.first_id = 0
        """Ids begin here: those of brokers that share producers must differ."""
        self.covers: Callable[[Stamp, Queue], None]
        """Raises what is wrong with a batch of a transaction, if it is in none."""
        topics.on_change.append(self._topic_changed)

    def use(self, publisher: Publisher) -> None:
        """What batches go through; to be called once."""
        self._publisher = publisher

    # -- the table -----------------------------------------------------------------------------

    def apply(self, key: str, value: Any) -> None:
        """Make one change."""
        if key == _NEXT_ID:
            self._ids_end = value
            return
        topic, queue_id = split_key(key)
        queue = topic, int(queue_id)
        if value is None:
            self.queues.pop(queue, None)
        elif queue not in self.queues or value["covered"] > self.queues[queue].covered:
            self.queues[queue] = QueueProducers.restored(value)

    def parts(self) -> Iterator[dict[str, Any]]:
        """Everything, some at a time; of a queue with batches on the way nothing."""
        if self._ids_end:
            yield {_NEXT_ID: self._ids_end}
        for part in in_parts(self.queues):
            yield {
                _key(queue): producers.kept()
                for queue, producers in part
                if not producers.on_the_way
            }

    def opening(self) -> Generator[None, None, None]:
        """Read again what came to marked topics after their queues were kept last, in steps."""
        self._next_id = self._ids_end
        for topic in self._marked.batched:
            for queue_id in list(self._store.queue_table.by_topic.get(topic, ())):
                yield from self._replay((topic, queue_id))

    def follow(self, touched: set[Queue] | None) -> None:
        """More of a follower's log is confirmed, in these queues, or in many."""
        by_topic = self._store.queue_table.by_topic
        for topic in self._marked.batched:
            for queue_id in list(by_topic.get(topic, ())):
                if touched is None or (topic, queue_id) in touched:
                    exhausted(self._replay((topic, queue_id)))

    def _replay(self, queue: Queue) -> Generator[None, None, None]:
        topic, queue_id = queue
        store = self._store
        producers = self.queues.setdefault(queue, QueueProducers())
        end = store.max_offset(topic, queue_id)
        if producers.covered > end:
            # The end of the log was lost: what was kept may tell of batches that are not there.
            producers = self.queues[queue] = QueueProducers()
        batches = batches_from(store, topic, queue_id, producers.covered)
        while some := list(islice(batches, _BATCHES_AT_ONCE)):
            for message in some:
                self._replay_batch(producers, message.body, message.queue_offset)
            yield
        producers.covered = end

    def _replay_batch(self, queue: QueueProducers, body: memoryview, offset: int) -> None:
        # Only who has such records needs what reads them.
        from onelog.record.forms import kafka

        batch = kafka.Batch(*kafka.HEAD.unpack_from(body))
        if batch.producer_id < 0:
            return
        now_ms = self._clock.now_ms()
        if batch.is_control:
            kept = kafka.is_commit(body)
            queue.ended(batch.producer_id, batch.producer_epoch, offset, now_ms, kept=kept)
        else:
            transactional = bool(batch.attributes & kafka.Attribute.TRANSACTIONAL)
            stamp = Stamp(
                batch.producer_id,
                batch.producer_epoch,
                batch.base_sequence,
                batch.records,
                transactional,
            )
            queue.replay(stamp, offset, now_ms)

    def keep(self) -> bool:
        """Record what changed since the last time, some of it; whether there is more.

        Queues with batches on the way have to wait for the next time.
        """
        if any(self.queues[queue].on_the_way for queue in self.changed):
            # Under load a timer always comes between what was taken in a tick and its end.
            self._writer.end_of_tick()
        changes: list[Change] = []
        silent_ms = self._clock.now_ms() - EXPIRY_MS
        settled = (queue for queue in self.changed if not self.queues[queue].on_the_way)
        some = list(islice(settled, _QUEUES_AT_ONCE))
        for queue in some:
            producers = self.queues[queue]
            producers.covered = self._store.next_offset(*queue)
            _, compacted = self._store.carried.get(queue, (0, 0))
            producers.forget(max(self._store.min_offset(*queue), compacted), silent_ms)
            changes.append((self.name, _key(queue), producers.kept()))
        self._tables.write(changes)
        self.changed.difference_update(some)
        return len(some) == _QUEUES_AT_ONCE

    def close(self) -> None:
        """Record all that can be."""
        while self.keep():
            pass

    def _topic_changed(self, name: str, config: TopicConfig | None) -> None:
        if config is None:
            gone = [queue for queue in self.queues if queue[0] == name]
            self.changed.difference_update(gone)
            self._tables.write([(self.name, _key(queue), None) for queue in gone])

    # -- batches -------------------------------------------------------------------------------

    def new_id(self) -> int:
        """An id for a producer that numbers its messages."""
        if self._next_id >= self._ids_end:
            self._tables.write([(self.name, _NEXT_ID, self._next_id + _IDS_AT_ONCE)])
        self._next_id += 1
        return self.first_id + self._next_id - 1

    def publish(
        self,
        message: NewMessage,
        stamp: Stamp,
        on_stored: OnStored,
        token: Any,
        acks: Acks,
    ) -> None:
        """Store a batch with this tick's others, unless it is there: then tell where."""
        queue = message.topic, message.queue_id
        producers = self.queues.get(queue)
        if producers is None:
            self._publisher.admitted(message)  # Nothing is marked for what is refused.
            self._marked.mark(message.topic)
            producers = self.queues[queue] = QueueProducers()
        if stamp.producer_id < 0:
            self._publisher.take(message, on_stored, token, acks)
            self.changed.add(queue)
            return
        if stamp.transactional:
            self.covers(stamp, queue)
        end = self._store.next_offset(*queue)
        sent = producers.take(stamp, end, self._clock.now_ms())
        if sent is None:
            before = producers.repeated(stamp)
            assert before is not None
            on_durable = partial(
                on_stored, token, Appended(LogOffset(0), QueueOffset(before.offset), 0)
            )
            # The first time, that may not have been told, because it is not safe yet.
            self._durability.when_safe(on_durable, acks=acks)
            return
        # Where it is counts from when it is written: under load some batch always waits to be safe.
        self._writer.reports_offsets = True
        stored = WithOffsets(self._stored, _on_offset)
        try:
            self._publisher.take(message, stored, (producers, stamp, sent, on_stored, token), acks)
        except BaseException:
            producers.failed(stamp, sent)
            raise
        self.changed.add(queue)

    def _stored(
        self,
        taken: _Taken,
        appended: Appended | None,
        error: OnelogError | None,
    ) -> None:
        producers, stamp, sent, on_stored, token = taken
        if appended is None:
            producers.failed(stamp, sent)
        else:
            assert error is None or isinstance(error, UNCONFIRMED)
            _on_offset(taken, appended)
        on_stored(token, appended, error)

    def mark(self, topic: str) -> None:
        """To be called before a marker is written into a topic that may have no batch."""
        self._marked.mark(topic)

    def ended(self, queue: Queue, producer_id: int, epoch: int, offset: int, *, kept: bool) -> None:
        """A marker was written: a producer's transaction has ended in a queue."""
        producers = self.queues.setdefault(queue, QueueProducers())
        producers.ended(producer_id, epoch, offset, self._clock.now_ms(), kept=kept)
        self.changed.add(queue)

    # -- reading -------------------------------------------------------------------------------

    def of(self, topic: str, queue_id: int) -> list[tuple[int, Producer, int]]:
        """The producers of a queue: id, what is known, and where a transaction begins or -1."""
        found = self.queues.get((topic, queue_id))
        if found is None:
            return []
        return [(id_, each, found.open.get(id_, -1)) for id_, each in found.producers.items()]

    def stable_end(self, topic: str, queue_id: int, end: int) -> int:
        """Where readers of committed messages stop, in a queue that ends at `end`."""
        producers = self.queues.get((topic, queue_id))
        return end if producers is None else producers.stable_end(end)

    def aborted_between(self, topic: str, queue_id: int, begin: int, end: int) -> list[Aborted]:
        """The failed transactions with batches in these offsets of a queue."""
        producers = self.queues.get((topic, queue_id))
        return [] if producers is None else producers.aborted_between(begin, end)


def _on_offset(taken: _Taken, appended: Appended) -> None:
    producers, stamp, sent, _, _ = taken
    if sent.offset == UNKNOWN:
        producers.stored(stamp, sent, appended.queue_offset)


def _key(queue: Queue) -> str:
    return join_key(queue[0], str(queue[1]))
