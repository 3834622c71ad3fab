"""What the log owes to declared queues: a message that is not done stays, however old it is.

The log is one for all, and its files are deleted from the oldest on. So a queue that nobody empties
would keep everything that came after its first message. Two things are done about that: it is told
who holds the log back (`holds`), and where little is left in files that should go, that little is
moved: written again at the end of the log, in one append with the record that the old ones are
done. All of a queue is moved at once, so that its messages stay in their order.

A queue stays where it is while a consumer has one of its messages, if it has more than may be
written at once, if its messages expire (they would get a new time), or if one of MQTT with QoS 2
came back: its client knows it by its place. Who reads the queue's topic by offset finds messages
that were moved a second time.

Invariant: `needed_from` is not behind any message that is not done.
"""

import logging
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import NamedTuple

from onelog.core.durable.storage import Storage
from onelog.core.queues.declared import DeclaredQueues
from onelog.core.queues.deliveries import (
    BODY,
    FORM,
    MQTT_FLAG,
    POSITION,
    STORED_MS,
    TIMES,
    Delivery,
    facts_of,
)
from onelog.core.queues.ledger import Ledger
from onelog.core.queues.queue import WorkQueue
from onelog.core.queues.recording import LedgerRecords
from onelog.core.routing.names import queue_of
from onelog.errors import OnelogError
from onelog.message import NewMessage
from onelog.names import join_key
from onelog.record.forms.mqtt import EXACTLY_ONCE, QOS
from onelog.store.reader import StoreReader

log = logging.getLogger(__name__)

MOVED_COUNT_MAX = 2_000
MOVED_BYTES_MAX = 4 << 20
"""Of a queue that is moved: while that is done, the broker does nothing else."""
LIVE_PERCENT_MAX = 25
"""Of files that should go: more than that is left where it is."""
PINS_MAX = 10


class RetentionHold(NamedTuple):
    """A queue that holds the log back."""

    vhost: str
    queue: str
    log_offset: int
    """Where in the log its first message is that is not done."""
    messages: int
    """How many there are, those included that a consumer has."""


class RetentionHolds:
    """Says what the log has to keep for declared queues, and moves what is little."""

    def __init__(
        self,
        storage: Storage,
        ledgers: LedgerRecords,
        declared: DeclaredQueues,
        queue_of_topic: Callable[[str], WorkQueue | None],
    ) -> None:
        self._store, self._writer = storage.store, storage.writer
        self._cold_reads = storage.cold_reads
        self._host = storage.runtime.host
        self._ledgers = ledgers
        self._declared = declared
        self._queue_of_topic = queue_of_topic

    def needed_from(self) -> int:
        """Where in the log the first message of a queue is that is not done, or its end."""
        ledgers = all_ledgers(self._store, self._ledgers.known, self._declared)
        log_offsets = (first_log_offset(self._store, ledger) for ledger in ledgers)
        return min(log_offsets, default=int(self._store.confirmed))

    def holds(self) -> list[RetentionHold]:
        """The queues that keep most of the log, the first of them first."""
        ledgers = all_ledgers(self._store, self._ledgers.known, self._declared)
        return holds_of(self._store, ledgers)

    def prepare_retention(self, reach: int) -> None:
        """Before log files up to this offset are deleted: move what little is left in them."""
        start = int(self._store.log_min)
        late = [
            each
            for each in self._ledgers.known.values()
            if first_log_offset(self._store, each) < reach
        ]
        if not late:
            return
        live = sum(ledger.ready_bytes + ledger.unacked_bytes for ledger in late)
        if live * 100 > (reach - start) * LIVE_PERCENT_MAX:
            return
        for ledger in late:
            self._try_to_move(ledger)

    def _try_to_move(self, ledger: Ledger) -> None:
        try:
            self._move(ledger)
        except OnelogError as error:
            log.warning("messages of %s stay where they are: %s", ledger.topic, error)

    def _move(self, ledger: Ledger) -> None:
        queue = self._queue_of_topic(ledger.topic)
        if queue is None or queue.limits.message_ttl_ms is not None:
            return
        self._writer.write_now(())  # What came in this tick is in the queue from here on.
        store = self._store
        end = store.max_offset(ledger.topic, ledger.queue_id)
        count = ledger.ready
        if (
            ledger.out
            or not 0 < count <= MOVED_COUNT_MAX
            or ledger.ready_bytes > MOVED_BYTES_MAX
            or store.next_offset(ledger.topic, ledger.queue_id) != end
        ):
            return
        offsets = [*sorted(ledger.returned), *range(ledger.next, end)]
        log_offsets = [
            store.log_offset_of(ledger.topic, ledger.queue_id, offset) for offset in offsets
        ]
        if not self._cold_reads.is_ready(log_offsets, lambda: self._try_to_move(ledger)):
            return
        shown = ledger.browse(0, count)
        if any(facts_of(each[BODY], each[FORM])[1] for each in shown):
            return
        if any(map(_is_bound, shown[: len(ledger.returned)])):
            return
        found = []
        while some := ledger.take(count, MOVED_BYTES_MAX, cold_ok=True):
            found += some
        done = [each[POSITION] for each in found]
        copies = [
            NewMessage(
                ledger.topic,
                ledger.queue_id,
                each[BODY],
                sys_flag=each[FORM],
                born_ms=each[STORED_MS],
                born_host=self._host,
                store_host=self._host,
            )
            for each in found
        ]
        try:
            with self._writer.head_room():
                self._writer.write_now(copies, self._ledgers.records({ledger: done}))
        except BaseException:
            ledger.give_back(found, counted=False)
            raise
        ledger.finish(found)
        ledger.recorded()
        ledger.moved(end, [each for each in found if each[TIMES]])
        self._ledgers.record_soon(ledger)
        log.info("%d messages of %s were moved to the end of the log", len(found), ledger.topic)


def _is_bound(sent: Delivery) -> bool:
    """Whether a message that was sent has to keep its place."""
    return sent[FORM] == MQTT_FLAG and sent[BODY][0] & QOS == EXACTLY_ONCE


def all_ledgers(
    store: StoreReader, known: Mapping[str, Ledger], declared: DeclaredQueues
) -> Iterator[Ledger]:
    """The ledgers of all queues, also where nothing was recorded of a queue yet.

    That is so in the log of a master: its queue was never consumed.
    """
    yield from list(known.values())
    for topic, is_stream in declared.topics():
        for queue_id in list(store.queue_table.by_topic.get(topic, ())):
            if join_key(topic, str(queue_id)) not in known and not is_stream():
                yield Ledger(topic, queue_id)


def first_of(ledger: Ledger) -> int:
    """The first offset of a ledger that is not done; also of one that is only replayed."""
    return min(min(ledger.out, default=ledger.next), min(ledger.returned, default=ledger.next))


def first_log_offset(store: StoreReader, ledger: Ledger) -> int:
    """Where in the log the first message of a ledger is that is not done."""
    return store.log_offset_of(ledger.topic, ledger.queue_id, first_of(ledger))


def holds_of(store: StoreReader, ledgers: Iterable[Ledger]) -> list[RetentionHold]:
    """Queues with messages that are not done, the one that begins first in the log first."""
    found: dict[tuple[str, str], RetentionHold] = {}
    for ledger in ledgers:
        end = int(store.max_offset(ledger.topic, ledger.queue_id))
        count = max(0, end - ledger.next) + len(ledger.out) + len(ledger.returned)
        if count:
            name = queue_of(ledger.topic)
            at, before = first_log_offset(store, ledger), found.get(name)
            if before is not None:
                at, count = min(at, before.log_offset), count + before.messages
            found[name] = RetentionHold(*name, at, count)
    return sorted(found.values(), key=lambda hold: hold.log_offset)[:PINS_MAX]
