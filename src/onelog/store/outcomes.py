"""How transactions in place ended: which messages of a queue are committed.

A transaction's batches lie in their queues like all others, and a marker behind them says how it
ended. Until it is there, readers of committed messages stop before the first of them: at the
queue's stable end. What was aborted is remembered by producer and place, so that such readers can
leave it out.

A broker writes down what it knows of its queues every few seconds, in its tables
(`core.durable.tables` draws them). Who has only the files of a store reads that, and the batches
behind it from the queues.

    table     "forms": {topic: true}              topics that have such batches
              "producers": {topic@queue id: {"covered": offset, "open": [[producer, offset], ...],
                                             "aborted": [[producer, first, last], ...], ...}}

Invariant: the stable end never goes back, and all that is before it is decided.
"""

from bisect import bisect_left
from collections.abc import Collection, Iterator
from operator import attrgetter
from typing import Any, NamedTuple

import msgspec

from onelog.errors import StoreCorruptError
from onelog.message import Message
from onelog.names import TABLES_FILE, TABLES_TOPIC, join_key
from onelog.record.decode import decode_messages
from onelog.record.forms import Form, form_of
from onelog.store.reader import StoreReader

_READ_BYTES = 4 << 20
_READ_COUNT = 100_000


class Aborted(NamedTuple):
    """A transaction that failed: its producer, its first batch, its marker."""

    producer_id: int
    first_offset: int
    last_offset: int


class Outcomes:
    """The transactions of one queue."""

    __slots__ = ("aborted", "covered", "open")

    def __init__(self) -> None:
        self.open: dict[int, int] = {}
        """Where the open transaction of each producer begins, in the order of beginning."""
        self.aborted: list[Aborted] = []
        """In the order of their markers."""
        self.covered = 0
        """The queue offset up to which batches are accounted for."""

    def restore(self, kept: dict[str, Any]) -> None:
        """Take over what a table has."""
        self.covered = kept["covered"]
        self.aborted = [Aborted(*each) for each in kept.get("aborted", ())]
        self.open = dict(kept.get("open", ()))

    def decided(self, producer_id: int, offset: int, *, kept: bool) -> None:
        """A marker is in the queue: the producer's transaction has ended there."""
        begun = self.open.pop(producer_id, None)
        if begun is not None and not kept:
            self.aborted.append(Aborted(producer_id, begun, offset))

    def stable_end(self, end: int) -> int:
        """Where readers of committed messages stop, in a queue that ends at `end`."""
        return min(end, min(self.open.values())) if self.open else end

    def is_committed(self, message: Message) -> bool:
        """Whether a record of the queue has messages for readers of committed ones."""
        if form_of(message.sys_flag) != Form.KAFKA:
            return True
        # Only who has such records needs what reads them.
        from onelog.record.forms import kafka

        batch, offset = kafka.read_head(message.body), message.queue_offset
        if batch.is_control or not batch.attributes & kafka.Attribute.TRANSACTIONAL:
            return not batch.is_control
        return self.open.get(batch.producer_id, offset + 1) > offset and not any(
            each.producer_id == batch.producer_id
            for each in self.aborted_between(offset, offset + 1)
        )

    def aborted_between(self, begin: int, end: int) -> list[Aborted]:
        """The failed transactions with batches in these offsets."""
        if not self.aborted:
            return []
        at = bisect_left(self.aborted, begin, key=attrgetter("last_offset"))
        return [each for each in self.aborted[at:] if each.first_offset < end]


def batches_from(store: StoreReader, topic: str, queue_id: int, offset: int) -> Iterator[Message]:
    """The batches of Kafka's in a queue, from an offset on."""
    end = store.max_offset(topic, queue_id)
    at = max(offset, int(store.min_offset(topic, queue_id)))
    while at < end:
        read = store.read_now(topic, queue_id, at, _READ_COUNT, _READ_BYTES)
        for part in read.slices:
            for message in decode_messages(part):
                if form_of(message.sys_flag) == Form.KAFKA and message.queue_offset >= offset:
                    yield message
        if read.next_offset <= at:
            break
        at = read.next_offset


# -- from the files of a store -----------------------------------------------------------------


class _Tables(msgspec.Struct):
    forms: dict[str, bool] = {}
    producers: dict[str, Any] = {}


class _Snapshot(msgspec.Struct):
    next_offset: int
    tables: _Tables


_NEEDLES = [b'["%b",' % name.encode() for name in _Tables.__struct_fields__]
_decode_changes = msgspec.json.Decoder(list[tuple[str, str, Any]]).decode


def outcomes_in(store: StoreReader, topics: Collection[str]) -> dict[tuple[str, int], Outcomes]:
    """By topic and queue id; queues that never had a batch are left out."""
    tables = _tables(store)
    found = {}
    for topic in topics:
        for queue_id in (
            store.queue_table.by_topic.get(topic, ()) if tables.forms.get(topic) else ()
        ):
            outcomes = found[topic, queue_id] = Outcomes()
            kept = tables.producers.get(join_key(topic, str(queue_id)))
            if kept is not None:
                outcomes.restore(kept)
            for message in batches_from(store, topic, queue_id, outcomes.covered):
                _take(outcomes, message)
    return found


def _tables(store: StoreReader) -> _Tables:
    """What the broker wrote down: its snapshot, and what changed since."""
    path = store.folder / "config" / TABLES_FILE
    try:
        snapshot = msgspec.json.decode(path.read_bytes(), type=_Snapshot)
    except FileNotFoundError:
        snapshot = _Snapshot(0, _Tables())
    except msgspec.MsgspecError as error:
        raise StoreCorruptError(
            f"{path} is not a snapshot of the broker's tables: {error}"
        ) from None
    offset = max(snapshot.next_offset, int(store.min_offset(TABLES_TOPIC, 0)))
    while offset < store.max_offset(TABLES_TOPIC, 0):
        read = store.read_now(TABLES_TOPIC, 0, offset, _READ_COUNT, _READ_BYTES)
        for part in read.slices:
            for message in decode_messages(part):
                body = bytes(message.body)
                if not any(needle in body for needle in _NEEDLES):
                    continue  # Most records are about positions.
                for name, key, value in _decode_changes(body):
                    if name in _Tables.__struct_fields__:
                        _change(getattr(snapshot.tables, name), key, value)
        if read.next_offset <= offset:
            break
        offset = read.next_offset
    return snapshot.tables


def _change(table: dict[str, Any], key: str, value: Any) -> None:
    if value is None:
        table.pop(key, None)
    else:
        table[key] = value


def _take(outcomes: Outcomes, message: Message) -> None:
    from onelog.record.forms import kafka

    batch = kafka.read_head(message.body)
    if batch.is_control:
        kept = kafka.is_commit(message.body)
        outcomes.decided(batch.producer_id, message.queue_offset, kept=kept)
    elif batch.attributes & kafka.Attribute.TRANSACTIONAL:
        outcomes.open.setdefault(batch.producer_id, message.queue_offset)
