"""A record of many messages, or one that was compressed, unpacked: read some messages at a time.

A batch of a few kilobytes can hold a million messages. Whoever reads it in another form wants some
of them from somewhere on; so when it is unpacked only the places are noted where a run of messages
begins, and a run is read when it is wanted.

Invariant: what a producer claims of his batch costs nobody more than the bytes that are there; a
message that cannot be read is left out, and the others are not.
"""

from bisect import bisect_right
from collections.abc import Callable, Iterable, Iterator

from onelog.errors import CompressionError, UnpackedTooLargeError, WireError
from onelog.message import Message, SysFlag
from onelog.record.compression import UNPACKED_BYTES_MAX, unpacked_body
from onelog.record.forms import Form, form_of, kafka, rocketmq
from onelog.record.forms.kafka import Batch, Run
from onelog.record.forms.neutral import Neutral
from onelog.record.inner_batch import BATCHED_BYTES, split_batch

RUN_MESSAGES, RUN_BYTES = 64, 16 << 10
"""In a run, unless one message has more bytes."""
MESSAGE_BYTES_MAX = 16 << 20
"""Of an unpacked message that other protocols' readers get: few of their clients take more."""
_INNER_BATCH = int(SysFlag.INNER_BATCH)
_RUN_OVERHEAD_BYTES = 200


class Unpacked:
    """The messages of a record, in runs."""

    __slots__ = ("_batch", "_raw", "_record", "_runs", "size")

    def __init__(self, record: Message, raw: bytes, batch: Batch | None, runs: list[Run]) -> None:
        self._record = record._replace(body=memoryview(b""))  # The log is not held on to.
        self._raw = raw
        self._batch = batch
        self._runs = runs
        self.size = len(raw) + _RUN_OVERHEAD_BYTES * len(runs)
        """What it takes in memory."""

    def runs_from(self, delta: int) -> range:
        """The numbers of the runs in which the messages from an offset in the record on are."""
        first = bisect_right(self._runs, delta, key=lambda run: run.first_delta) - 1
        return range(max(0, first), len(self._runs))

    def run(self, number: int) -> tuple[list[tuple[int, Neutral]], int]:
        """The messages of a run and their offsets in the record; and how many cannot be read."""
        run, raw, record = self._runs[number], self._raw, self._record
        found: Iterable[tuple[int, Neutral]]
        if self._batch is not None:
            found = kafka.records_in(raw, self._batch, run)
        elif not record.sys_flag & _INNER_BATCH:
            return [(0, rocketmq.to_neutral(raw, record.properties, record.born_ms))], 0
        else:
            found = self._inner(run)
        kept = [each for each in found if len(each[1].body or b"") <= MESSAGE_BYTES_MAX]
        return kept, run.records - len(kept)

    def _inner(self, run: Run) -> Iterator[tuple[int, Neutral]]:
        at = run.at
        for delta in range(run.first_delta, run.first_delta + run.records):
            end = at + int.from_bytes(self._raw[at : at + 4], "big")
            try:
                ((_, body, properties),) = split_batch(self._raw[at:end])
            except (WireError, ValueError):
                continue
            finally:
                at = end
            yield delta, rocketmq.to_neutral(body, properties, self._record.born_ms)

    @property
    def lost(self) -> int:
        """How many messages the record claims, and does not have."""
        if self._batch is None or self._batch.is_control:
            return 0
        return self._batch.records - sum(run.records for run in self._runs)


def unpack_record(
    record: Message,
    bytes_max: int = UNPACKED_BYTES_MAX,
    rest: Callable[[int], object] = lambda runs: None,
) -> Unpacked:
    """A record of RocketMQ's or Kafka's form; `WireError` if nothing in it can be read.

    `UnpackedTooLargeError` if it unpacks to more. `rest` is called every now and then, with a
    number that grows.
    """
    if form_of(record.sys_flag) == Form.KAFKA:
        batch = kafka.read_head(record.body)
        if batch.is_control:
            return Unpacked(record, b"", batch, [])
        raw = kafka.raw_records(record.body, batch, bytes_max)
        runs = kafka.runs(raw, batch, RUN_MESSAGES, RUN_BYTES, rest)
        if not runs:
            raise WireError(f"a batch that counts {batch.records} records has none")
        return Unpacked(record, raw, batch, runs)
    if record.sys_flag & _INNER_BATCH:
        raw = unpacked_body(record, bytes_max)
        runs = _inner_runs(raw, rest)
        if not runs:
            raise WireError("a batch that has no message")
        return Unpacked(record, raw, None, runs)
    try:
        raw = unpacked_body(record, min(bytes_max, MESSAGE_BYTES_MAX))
    except CompressionError as error:
        if bytes_max < MESSAGE_BYTES_MAX and isinstance(error, UnpackedTooLargeError):
            raise
        raw = bytes(record.body)  # Its reader has to see what it makes of that.
    return Unpacked(record, raw, None, [Run(0, len(raw), 1, 0)])


def _inner_runs(raw: bytes, rest: Callable[[int], object]) -> list[Run]:
    found: list[Run] = []
    at, number, size = 0, 0, len(raw)
    while at < size:
        begin, first = at, number
        while at < size and number - first < RUN_MESSAGES:
            step = int.from_bytes(raw[at : at + 4], "big")
            if step < BATCHED_BYTES or at + step > size:
                size = at  # Where the next one begins nobody knows.
                break
            if number > first and at + step - begin > RUN_BYTES:
                break
            at, number = at + step, number + 1
        if number > first:
            found.append(Run(begin, at, number - first, first))
        rest(len(found))
    return found
