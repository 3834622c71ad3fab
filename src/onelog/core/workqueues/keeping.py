"""What the log owes to declared queues: a message that is not done stays, however old it is.

The log is one for all, and its files are deleted from the oldest on. So a queue that nobody empties
would keep everything that came after its first message. Two things are done about that: it is told
who holds the log back (`pins`), and where little is left in files that should go, that little is
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

from onelog.core.cursors.warming import Warming
from onelog.core.durable.writer import Writer
from onelog.core.routing.names import queue_of
from onelog.core.workqueues.declared import DeclaredQueues
from onelog.core.workqueues.deliveries import (
    BODY,
    FORM,
    MQTT_FLAG,
    PLACE,
    SIZE,
    STORED_MS,
    TIMES,
    Delivery,
    facts_of,
)
from onelog.core.workqueues.log_shelf import LogShelf
from onelog.core.workqueues.queue import WorkQueue
from onelog.core.workqueues.recording import Shelves
from onelog.errors import OnelogError
from onelog.message import NewMessage
from onelog.names import join_key
from onelog.record.forms.mqtt import EXACTLY_ONCE, QOS
from onelog.store.message_store import MessageStore
from onelog.store.reader import StoreReader

log = logging.getLogger(__name__)

MOVED_COUNT_MAX = 2_000
MOVED_BYTES_MAX = 4 << 20
"""Of a queue that is moved: while that is done, the broker does nothing else."""
LIVE_PERCENT_MAX = 25
"""Of files that should go: more than that is left where it is."""
PINS_MAX = 10


class Pin(NamedTuple):
    """A queue that holds the log back."""

    vhost: str
    queue: str
    log_offset: int
    """Where in the log its first message is that is not done."""
    messages: int
    """How many there are, those included that a consumer has."""


class Keeping:
    """Says what the log has to keep for declared queues, and moves what is little."""

    def __init__(
        self,
        store: MessageStore,
        shelves: Shelves,
        declared: DeclaredQueues,
        queue_of_topic: Callable[[str], WorkQueue | None],
        writer: Writer,
        warming: Warming,
        host: bytes,
    ) -> None:
        self._store = store
        self._shelves = shelves
        self._declared = declared
        self._queue_of_topic = queue_of_topic
        self._writer = writer
        self._warming = warming
        self._host = host

    def needed_from(self) -> int:
        """Where in the log the first message of a queue is that is not done, or its end."""
        shelves = all_shelves(self._store, self._shelves.known, self._declared)
        places = (place_of(self._store, shelf) for shelf in shelves)
        return min(places, default=int(self._store.confirmed))

    def pins(self) -> list[Pin]:
        """The queues that keep most of the log, the first of them first."""
        shelves = all_shelves(self._store, self._shelves.known, self._declared)
        return pins_of(self._store, shelves)

    def prepare_retention(self, reach: int) -> None:
        """Before log files up to this offset are deleted: move what little is left in them."""
        start = int(self._store.log_min)
        late = [
            each for each in self._shelves.known.values() if place_of(self._store, each) < reach
        ]
        if not late:
            return
        live = sum(shelf.ready_bytes + shelf.unacked_bytes for shelf in late)
        if live * 100 > (reach - start) * LIVE_PERCENT_MAX:
            return
        for shelf in late:
            self._try_to_move(shelf)

    def _try_to_move(self, shelf: LogShelf) -> None:
        try:
            self._move(shelf)
        except OnelogError as error:
            log.warning("messages of %s stay where they are: %s", shelf.topic, error)

    def _move(self, shelf: LogShelf) -> None:
        queue = self._queue_of_topic(shelf.topic)
        if queue is None or shelf.supply is None or queue.terms.message_ttl_ms is not None:
            return
        self._writer.write_now(())  # What came in this tick is in the queue from here on.
        store = self._store
        end = store.max_offset(shelf.topic, shelf.queue_id)
        count = shelf.ready
        if (
            shelf.out
            or not 0 < count <= MOVED_COUNT_MAX
            or shelf.ready_bytes > MOVED_BYTES_MAX
            or store.next_offset(shelf.topic, shelf.queue_id) != end
        ):
            return
        offsets = [*sorted(shelf.returned), *range(shelf.next, end)]
        places = [store.place_of(shelf.topic, shelf.queue_id, offset) for offset in offsets]
        if not self._warming.is_ready(places, lambda: self._try_to_move(shelf)):
            return
        shown = shelf.browse(0, count)
        if any(facts_of(each[BODY], each[FORM])[1] for each in shown):
            return
        if any(map(_is_bound, shown[: len(shelf.returned)])):
            return
        found = []
        while some := shelf.take(count, MOVED_BYTES_MAX, cold_ok=True):
            found += some
        done = [each[PLACE] for each in found]
        copies = [
            NewMessage(
                shelf.topic, shelf.queue_id, each[BODY], sys_flag=each[FORM],
                born_ms=each[STORED_MS], born_host=self._host, store_host=self._host,
            )
            for each in found
        ]  # fmt: skip
        try:
            with self._writer.head_room():
                self._writer.write_now(copies, self._shelves.records({shelf: done}))
        except BaseException:
            shelf.give_back(found, counted=False)
            raise
        shelf.finish(found)
        shelf.recorded()
        again = [(each[TIMES], each[SIZE]) for each in found if each[TIMES]]
        shelf.moved(end, again)
        self._shelves.changed(shelf)
        log.info("%d messages of %s were moved to the end of the log", len(found), shelf.topic)


def _is_bound(sent: Delivery) -> bool:
    """Whether a message that was sent has to keep its place."""
    return sent[FORM] == MQTT_FLAG and sent[BODY][0] & QOS == EXACTLY_ONCE


def all_shelves(
    store: StoreReader, known: Mapping[str, LogShelf], declared: DeclaredQueues
) -> Iterator[LogShelf]:
    """The shelves of all queues, also where nothing was recorded of a queue yet.

    That is so in the log of a master: its queue was never consumed.
    """
    yield from list(known.values())
    for topic, is_stream in declared.topics():
        for queue_id in list(store.queue_table.by_topic.get(topic, ())):
            if join_key(topic, str(queue_id)) not in known and not is_stream():
                yield LogShelf(topic, queue_id)


def first_of(shelf: LogShelf) -> int:
    """The first offset of a shelf that is not done; also of one that is only replayed."""
    return min(min(shelf.out, default=shelf.next), min(shelf.returned_bytes, default=shelf.next))


def place_of(store: StoreReader, shelf: LogShelf) -> int:
    """Where in the log the first message of a shelf is that is not done."""
    return store.place_of(shelf.topic, shelf.queue_id, first_of(shelf))


def pins_of(store: StoreReader, shelves: Iterable[LogShelf]) -> list[Pin]:
    """Queues with messages that are not done, the one that begins first in the log first."""
    found: dict[tuple[str, str], Pin] = {}
    for shelf in shelves:
        end = int(store.max_offset(shelf.topic, shelf.queue_id))
        count = max(0, end - shelf.next) + len(shelf.out) + len(shelf.returned_bytes)
        if count:
            name = queue_of(shelf.topic)
            at, before = place_of(store, shelf), found.get(name)
            if before is not None:
                at, count = min(at, before.log_offset), count + before.messages
            found[name] = Pin(*name, at, count)
    return sorted(found.values(), key=lambda pin: pin.log_offset)[:PINS_MAX]
