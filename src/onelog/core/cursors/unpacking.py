"""Batches and compressed messages, unpacked for readers of other forms than theirs.

What is little is unpacked in the loop. For what is much, or claims to be, `ColdError` says which
part of the log a worker has to see to first, as for what is not in memory; there one is unpacked
after the other, for all readers of the broker, and the last ones are kept (`Warming.prepare`).
Readers get the messages from the place on that they ask for, and stop where they have enough.

Invariant: all that is kept takes at most `bytes_max`, or is one record; a message that cannot be
read is passed over, counted and said, and those behind it are not.
"""

import contextlib
import logging
import threading
import time
from collections import OrderedDict
from collections.abc import Collection, Iterator, Sequence

from onelog.errors import OnelogError, UnpackedTooLargeError, WireError
from onelog.message import Message, SysFlag
from onelog.record.forms import Form, form_of, kafka
from onelog.record.forms.neutral import Neutral
from onelog.record.forms.unpacked import Unpacked, unpack_record
from onelog.store.message_store import MessageStore

KEPT_BYTES_MAX = 64 << 20
_LITTLE_BYTES, _LITTLE_MESSAGES, _LITTLE_UNPACKED_BYTES = 256 << 10, 2_000, 1 << 20
"""What is taken apart in the loop: a millisecond or two."""
_KEPT_FOR_BYTES = 256
"""What is kept for a record beside its messages."""
_REST_RUNS, REST_SECONDS = 32, 0.0001
_PACKED = int(SysFlag.COMPRESSED | SysFlag.INNER_BATCH)

log = logging.getLogger(__name__)

unpacking_one = threading.RLock()
"""Held by a worker while it has something unpacked: one of all workers has, whoever asked."""
Opened = Sequence[tuple[Message, Unpacked | WireError]]
"""Records, and what came of unpacking them."""
Kept = tuple[int, int]
"""Where in the log a record is, and when it was stored: a log can be cut, and go on otherwise."""


class ColdError(Exception):
    """What a worker has to read, and to unpack, before it can be handed out."""

    def __init__(self, ranges: Sequence[tuple[int, int]]) -> None:
        super().__init__(ranges)
        self.ranges = ranges


def is_packed(sys_flag: int) -> bool:
    """Whether a record may hold more than it has bytes: a batch, or what was compressed."""
    form = form_of(sys_flag)
    return form == Form.KAFKA or (form == Form.ROCKETMQ and bool(sys_flag & _PACKED))


class Unpacking:
    """What is unpacked, and what is to be."""

    def __init__(self, bytes_max: int = KEPT_BYTES_MAX) -> None:
        self._bytes_max = bytes_max
        self._kept: OrderedDict[Kept, Unpacked | WireError] = OrderedDict()
        self._kept_bytes = 0
        self._wanted: dict[int, Message] = {}
        """What a worker has to see to, by its place in the log."""
        self.passed_over = 0
        """Messages that could not be read."""
        self._say_at = 1

    # -- for readers ---------------------------------------------------------------------------

    def messages(self, record: Message, begin: int = 0) -> Iterator[tuple[int, Neutral]]:
        """The messages in a record, from an offset in it on, with their offsets in it.

        What cannot be read is left out. `ColdError`, but only before the first.
        """
        try:
            if not is_packed(record.sys_flag):
                from onelog.record.forms import conversion  # Of all forms; few need that.

                if form_of(record.sys_flag):
                    yield from conversion.neutrals(record)
                else:
                    yield 0, conversion.neutral_of(record)
                return
            unpacked = self.of(record)
        except WireError as error:
            if not begin:  # Once for each reader.
                self.pass_over(record, record.inner_count, str(error))
            return
        for number in unpacked.runs_from(begin):
            found = self.run(record, unpacked, number)
            if found and found[0][0] < begin:
                found = [each for each in found if each[0] >= begin]
            yield from found

    def run(self, record: Message, unpacked: Unpacked, number: int) -> list[tuple[int, Neutral]]:
        """The messages of one run of a record."""
        found, bad = unpacked.run(number)
        if bad:
            self.pass_over(record, bad, "their lengths, varints or numbers are wrong")
        return found

    def unpack_now(self, record: Message) -> None:
        """Have a record ready for those who cannot wait, also if that takes a while."""
        if is_packed(record.sys_flag):
            with contextlib.suppress(WireError):  # Which is remembered.
                self.of(record, now=True)

    def of(self, record: Message, *, now: bool = False) -> Unpacked:
        """A record of RocketMQ's or Kafka's form."""
        key = record.log_offset, record.store_ms
        found = self._kept.get(key)
        if found is None:
            try:
                if now:
                    found = unpack_record(record)
                elif _is_much(record):
                    raise self._cold(record)
                else:
                    found = unpack_record(record, _LITTLE_UNPACKED_BYTES)
            except UnpackedTooLargeError as error:
                if not now:
                    raise self._cold(record) from None
                found = error
            except WireError as error:
                found = error
            self._keep(record, found)
        else:
            self._kept.move_to_end(key)
        if isinstance(found, WireError):
            raise found.with_traceback(None)
        return found

    def _cold(self, record: Message) -> ColdError:
        self._wanted[record.log_offset] = record._replace(body=memoryview(b""))
        return ColdError([(record.log_offset, record.size)])

    def pass_over(self, record: Message, count: int, reason: str) -> None:
        """Messages of a record are not delivered."""
        self.passed_over += count
        if self.passed_over >= self._say_at:
            self._say_at = self.passed_over * 10
            log.warning(
                "%d messages of the record at log offset %d, topic %r, are passed over for "
                "readers of another protocol: %s (%d in all; said again at ten times as many)",
                count,
                record.log_offset,
                record.topic,
                reason,
                self.passed_over,
            )

    def _keep(self, record: Message, found: Unpacked | WireError) -> None:
        if isinstance(found, Unpacked):
            if found.lost:
                self.pass_over(record, found.lost, "the batch counts more than it has")
            self._kept_bytes += found.size
        self._kept_bytes += _KEPT_FOR_BYTES
        self._kept[record.log_offset, record.store_ms] = found
        while self._kept_bytes > self._bytes_max and len(self._kept) > 1:
            _, oldest = self._kept.popitem(last=False)
            self._kept_bytes -= _KEPT_FOR_BYTES
            if isinstance(oldest, Unpacked):
                self._kept_bytes -= oldest.size

    # -- for a worker --------------------------------------------------------------------------

    def wanted(self, ranges: Collection[tuple[int, int]]) -> list[int]:
        """Which of some parts of the log are to be unpacked."""
        return [at for at, _ in ranges if at in self._wanted]

    def unpack(self, store: MessageStore, wanted: Sequence[int]) -> Opened:
        """Unpack records; it changes nothing here."""
        found: list[tuple[Message, Unpacked | WireError]] = []
        for at in wanted:
            try:
                record = store.message_at(at)
            except OnelogError:
                continue  # Whoever asked reads it again, and says what is wrong.
            try:
                found.append((record, unpack_record(record, rest=_rest)))
            except WireError as error:
                found.append((record, error.with_traceback(None)))
        return found

    def take(self, wanted: Sequence[int], found: Opened) -> None:
        """Keep what a worker has unpacked; what it has not is not asked of it again."""
        left = {at: self._wanted.pop(at, None) for at in wanted}
        for record, unpacked in found:
            if left.pop(record.log_offset, None) is not None:
                self._keep(record, unpacked)
        for missing in left.values():
            if missing is not None:
                self._keep(missing, WireError("it could not be unpacked; the log says why"))


def _is_much(record: Message) -> bool:
    """Whether to unpack a record takes a while, by what it says itself."""
    is_plain = form_of(record.sys_flag) == Form.KAFKA and not kafka.is_packed(record.body)
    bytes_max = _LITTLE_UNPACKED_BYTES if is_plain else _LITTLE_BYTES
    return len(record.body) > bytes_max or record.inner_count > _LITTLE_MESSAGES


def _rest(runs: int) -> None:
    if not runs % _REST_RUNS:
        rest()


def rest() -> None:
    """For a worker that computes: let the loop have the interpreter, which it would wait for."""
    time.sleep(REST_SECONDS)  # None at all would be too short for the loop to wake up.
