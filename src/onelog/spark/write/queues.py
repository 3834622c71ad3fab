"""Which queue a row goes to, and the parts in which messages of a queue go there.

A row with a queue goes there, one with a key to the queue that producers choose for it, and others
to one queue after the other, a part at a time.

Invariant: rows of one key, or of one queue, keep their order.
"""

import itertools
from collections.abc import Iterator, Sequence

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from onelog.client.message import Queue
from onelog.client.producer.staged import PART_COUNT
from onelog.errors import MessageError
from onelog.message import java_hash
from onelog.record.columns import Ints, Mask
from onelog.spark.write.rows import BROKER, KEY, MESSAGE, QUEUE, content

ANYWHERE = -1
_KEY_BYTES_MAX = 64
"""Longer keys are hashed one by one."""


class QueueChoice:
    """Which queue of a topic a row goes to."""

    def __init__(self, queues: Sequence[Queue], begin: int) -> None:
        assert queues
        self._queues = tuple(queues)
        self._turn = itertools.count(begin)
        self.current = self.next()

    def next(self) -> Queue:
        """Another queue for the rows that may go anywhere."""
        self.current = self._queues[next(self._turn) % len(self._queues)]
        return self.current

    def shares(self, rows: pa.RecordBatch) -> Iterator[tuple[Queue | None, pa.Array]]:
        """The messages of each queue, and of None those that may go anywhere, in order."""
        queue_id = self.queue_ids(rows)
        messages = rows.column(MESSAGE)
        if (queue_id != queue_id[0]).any():
            order = np.argsort(queue_id, kind="stable")
            queue_id, messages = queue_id[order], messages.take(pa.array(order))
        found, begins = np.unique(queue_id, return_index=True)
        ends = [*begins[1:].tolist(), len(queue_id)]
        for each, begin, end in zip(found.tolist(), begins.tolist(), ends, strict=True):
            queue = None if each == ANYWHERE else self._queues[each]
            yield queue, messages.slice(begin, end - begin)

    def queue_ids(self, rows: pa.RecordBatch) -> Ints:
        """The number of each row's queue, or `ANYWHERE`."""
        names = rows.schema.names
        queue_id: Ints = np.full(rows.num_rows, ANYWHERE, np.int64)
        if KEY in names:
            keys = rows.column(KEY)
            is_keyed = keys.is_valid().to_numpy(zero_copy_only=False)
            # As `Lane.of_key`: so producers and Spark put a key into the same queue.
            hashed = np.abs(java_hashes(keys)) % len(self._queues)
            queue_id = np.where(is_keyed, hashed, queue_id)
        if QUEUE in names:
            queues = rows.column(QUEUE)
            brokers = rows.column(BROKER) if BROKER in names else None
            is_named = queues.is_valid().to_numpy(zero_copy_only=False)
            named = self._named(pc.fill_null(queues, ANYWHERE).to_numpy(), is_named, brokers)
            queue_id = np.where(is_named, named, queue_id)
        return queue_id

    def _named(self, numbers: Ints, is_named: Mask, brokers: pa.Array | None) -> Ints:
        """The queues that rows name, by their number among all or those of a broker."""
        found = np.where((numbers >= 0) & (numbers < len(self._queues)), numbers, ANYWHERE)
        if brokers is not None:
            for broker in brokers.unique().drop_null().to_pylist():
                its = pc.fill_null(pc.equal(brokers, broker), False)
                here = its.to_numpy(zero_copy_only=False)
                found[here] = self._of_broker(broker, numbers[here])
        wrong = is_named & (found == ANYWHERE)
        if wrong.any():
            row = int(np.argmax(wrong))
            broker = None if brokers is None else brokers[row].as_py()
            name = int(numbers[row]) if broker is None else (broker, int(numbers[row]))
            raise MessageError(
                f"a row wants queue {name} of topic {self._queues[0].topic!r}, which has "
                f"{len(self._queues)}: drop the column `queue` to have queues chosen"
            )
        return found

    def _of_broker(self, broker: str, numbers: Ints) -> Ints:
        own = {
            queue.queue_id: queue_id
            for queue_id, queue in enumerate(self._queues)
            if queue.broker == broker
        }
        return np.array([own.get(number, ANYWHERE) for number in numbers.tolist()], np.int64)


def java_hashes(keys: pa.Array) -> Ints:
    """`java_hash` of each text; anything for a null."""
    encoded = pc.fill_null(keys.cast(pa.binary()), b"")
    sizes: Ints = pc.binary_length(encoded).to_numpy().astype(np.int64)
    most = int(sizes.max(initial=0))
    if most > _KEY_BYTES_MAX or not pc.all(pc.string_is_ascii(keys), min_count=0).as_py():
        return np.array([java_hash(key or "") for key in keys.to_pylist()], np.int64)
    bounds, text = content(encoded)
    begin = bounds[:-1].astype(np.int64)
    padded = np.append(text, np.zeros(most, np.uint8))
    value = np.zeros(len(keys), np.uint32)
    for at in range(most):
        value = np.where(at < sizes, value * np.uint32(31) + padded[begin + at], value)
    return value.view(np.int32).astype(np.int64)


class Parts:
    """Collects messages by queue, until there is enough of one queue for a request.

    A part has about `part_bytes`, and more than `bytes_max` only if it is a single message.
    """

    def __init__(
        self, part_bytes: int, part_count: int = PART_COUNT, bytes_max: int = 1 << 30
    ) -> None:
        self._part_bytes = part_bytes
        self._bytes_max = bytes_max
        self._part_count = part_count
        self._counts: dict[Queue, int] = {}
        self._pieces: dict[Queue, list[memoryview]] = {}
        self._sizes: dict[Queue, int] = {}

    def add(self, queue: Queue, messages: pa.Array) -> tuple[pa.Array, bytes | None]:
        """Take messages until there is a part; gives what was not taken, and the part."""
        bounds, text = content(messages)
        size = self._sizes.get(queue, 0)
        full_at = int(bounds[0]) + self._part_bytes - size
        taken = self._counts.get(queue, 0)
        room = self._part_count - taken
        count = min(int(np.searchsorted(bounds, full_at)), len(messages), room)
        begin, end = int(bounds[0]), int(bounds[count])
        is_full = size + end - begin > self._bytes_max and (count > 1 or size > 0)
        if is_full:  # Without the last one it fits.
            count -= 1
            end = int(bounds[count])
        self._counts[queue] = taken + count
        self._pieces.setdefault(queue, []).append(text[begin:end].data)
        self._sizes[queue] = size = size + end - begin
        is_full |= size >= self._part_bytes or count == room
        part = self._take(queue) if is_full else None
        return messages.slice(count), part

    def rest(self) -> Iterator[tuple[Queue, bytes]]:
        """What is left, at the end."""
        for queue in list(self._pieces):
            yield queue, self._take(queue)

    def _take(self, queue: Queue) -> bytes:
        del self._sizes[queue], self._counts[queue]
        return b"".join(self._pieces.pop(queue))
