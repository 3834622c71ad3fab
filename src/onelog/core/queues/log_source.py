"""Messages of declared queues, read back from the log.

Records of AMQP's and MQTT's forms go out as they are stored; those of others (somebody sent to the
queue's topic with RocketMQ's or Kafka's protocol) become AMQP's. What is not in the page cache is
not waited for: `ColdError` says which parts of the log a worker has to read first.

Invariant: an offset that is passed over has no message that a consumer could get.
"""

import logging
from collections.abc import Callable, Iterable, Iterator, Sequence
from itertools import repeat
from operator import itemgetter
from typing import NamedTuple

from onelog.core.cursors.forms import is_of, offset_in
from onelog.core.cursors.reading import QueueReader, ReadRequest
from onelog.core.cursors.unpacking import ColdError
from onelog.core.queues.deliveries import (
    AMQP_FLAG,
    BODY,
    FORM,
    MQTT_FLAG,
    POSITION,
    SIZE,
    Delivery,
    Stretch,
    facts_of,
)
from onelog.core.routing.names import queue_of
from onelog.errors import WireError
from onelog.message import LOOPBACK, LogOffset, Message, NewMessage, NewRun, QueueOffset, SysFlag
from onelog.record.decode import decode_messages
from onelog.record.forms import FORM_MASK, amqp
from onelog.record.forms.neutral import Neutral
from onelog.record.layout import BOTH_V6, FACTS_V4, HEAD_V4
from onelog.store.message_store import MessageStore
from onelog.store.reader import FetchStatus

log = logging.getLogger(__name__)

HOT_MAX, HOT_BYTES_MAX = 1_024, 1 << 20
"""Messages of a queue that are kept at hand."""
HOT_BYTES_OF_ALL = 2 << 20
"""Bytes that all queues keep at hand together, before each is content with a few."""
_HOT_BYTES_MIN = 2 << 10
READ_BYTES_MAX = HOT_BYTES_MAX
_READ_BYTES_OF_ALL, _READ_BYTES_MIN = 16 << 20, 16 << 10
"""The same for what is read back: of little at a time each message would cost more."""
_MESSAGE_BYTES = 200
"""What a message at hand costs beside its record's body."""
AS_STORED = frozenset((AMQP_FLAG, MQTT_FLAG))
"""Forms whose messages gateways of declared queues read themselves."""
_UNUSUAL = BOTH_V6 | int(SysFlag.INNER_BATCH)
"""Flags of records that have longer addresses, or are inner batches."""
_MEASURED_COUNT, _MEASURED_BYTES = 1_000, 1 << 20
_BULK_COMMITTED = True, True, True
"""How declared queues are read: in bulk, as stored, and up to the first open transaction."""


class Entries(NamedTuple):
    """Messages that were just appended, as a ledger wants to know them."""

    bodies: list[bytes]
    forms: list[int]
    payloads: list[int]
    """Of each its record body, form, and payload bytes."""
    size: int
    body_bytes: int
    expires: bool
    """Whether one of them says itself when."""
    are_plain: bool
    """Whether each is one message, of a form that goes out as it is."""
    total: int
    """How many messages that are."""


def entries_of(messages: Sequence[NewMessage | NewRun]) -> Entries:
    """What there is to know of messages; those of a run in AMQP's form differ in payload only."""
    bodies: list[bytes] = []
    forms: list[int] = []
    payloads: list[int] = []
    count = size = body_bytes = 0
    any_expires, are_plain = False, True
    lead, last_form = b"", -1
    for message in messages:
        if isinstance(message, NewRun):
            form = message.sys_flag & FORM_MASK
            _, first, _ = message.parts[0]
            payload, expires = facts_of(first, form)
            before = len(first) - payload if form == AMQP_FLAG else 0
            some = [body for _, body, _ in message.parts]
            sizes = [len(body) - before for body in some]
            bodies += some
            forms += [form] * len(some)
            payloads += sizes
            count += len(some)
            size += sum(sizes)
            body_bytes += sum(sizes) + before * len(some)
            any_expires |= expires
            are_plain = are_plain and form in AS_STORED
            continue
        body, form = message[2], message[5] & FORM_MASK
        if type(body) is not bytes:
            body = bytes(body)
        if form == AMQP_FLAG == last_form and body.startswith(lead):
            payload = len(body) - len(lead)  # Nothing but the payload is another one.
        else:
            payload, expires = facts_of(body, form)
            any_expires |= expires
            are_plain = are_plain and form in AS_STORED
            lead, last_form = body[: len(body) - payload], form
        bodies.append(body)
        forms.append(form)
        payloads.append(payload)
        count += message[11]
        size += payload
        body_bytes += len(body)
        are_plain = are_plain and message[11] == 1
    return tuple.__new__(
        Entries, (bodies, forms, payloads, size, body_bytes, any_expires, are_plain, count)
    )


class LogReader:
    """Reads for all queues of a broker. Places are offsets here."""

    def __init__(self, store: MessageStore, reader: QueueReader) -> None:
        self.store = store
        self._reader = reader
        self.hot_bytes = 0
        """What all ledgers keep at hand together."""
        self._last: tuple[Sequence[NewMessage | NewRun], Entries] = ((), entries_of(()))

    def entries(self, messages: Sequence[NewMessage | NewRun]) -> Entries:
        """`entries_of`, but once for all queues that got the same messages."""
        if messages != self._last[0]:  # These are the same objects, or others from the start.
            self._last = messages, entries_of(messages)
        return self._last[1]

    def read(
        self, topic: str, queue_id: int, offset: int, count: int, bytes_max: int, *, cold_ok: bool
    ) -> Stretch:
        """The messages from `offset` on: at least one, if there is any."""
        request = ReadRequest(
            topic, queue_id, offset, count, bytes_max, None, cold_ok, *_BULK_COMMITTED
        )
        limits = count, bytes_max, cold_ok
        for at, result in self._reader.stretches(request):
            if result.status is FetchStatus.COLD:
                raise ColdError(result.ranges)
            if result.status is FetchStatus.FOUND:
                end = result.next_offset
                stretch = self._deliveries(topic, queue_id, at, end, result.slices, limits)
                if stretch.found:
                    return stretch
        return Stretch([], at)

    def measure(self, topic: str, queue_id: int, begin: int, end: int) -> tuple[int, int]:
        """The payload bytes of some messages; of those in a batch, what the batch has."""
        limits = min(_MEASURED_COUNT, end - begin), _MEASURED_BYTES
        request = ReadRequest(topic, queue_id, begin, *limits, None, True, *_BULK_COMMITTED)
        result = self._reader.read_request(request)
        if result.status is FetchStatus.COLD:  # An entry is wrong, and the log is to be searched.
            self._reader.warm(result.ranges)
            result = self._reader.read_request(request)
        size = 0
        for message in (each for view in result.slices for each in decode_messages(view)):
            form = message.sys_flag & FORM_MASK
            size += facts_of(message.body, form)[0]
        return size, result.next_offset

    def _deliveries(
        self,
        topic: str,
        queue_id: int,
        begin: int,
        end: int,
        slices: Sequence[memoryview],
        limits: tuple[int, int, bool],
    ) -> Stretch:
        found: list[Delivery] = []
        offset = begin
        unpack, body_at = FACTS_V4.unpack_from, HEAD_V4.size
        lead, lead_bytes = b"\0", 0
        for view in slices:
            at, length = 0, len(view)
            while at < length:
                size, flags, stored_ms, body_bytes = unpack(view, at)
                form = flags & FORM_MASK
                if flags & _UNUSUAL or form not in AS_STORED:
                    return self._any_form(topic, queue_id, begin, end, slices, *limits)
                begins = at + body_at
                body = bytes(view[begins : begins + body_bytes])
                at += size
                if form != AMQP_FLAG:
                    payload = body_bytes
                elif lead_bytes and body.startswith(lead):
                    payload = body_bytes - lead_bytes
                else:
                    payload = facts_of(body, form)[0]
                    lead_bytes = body_bytes - payload
                    lead = body[:lead_bytes]
                found.append((offset, 0, body, form, stored_ms, payload))
                offset += 1
        if offset != end:  # A record less than entries: something there is damaged or deleted.
            return self._any_form(topic, queue_id, begin, end, slices, *limits)
        return Stretch(found, end)

    def _any_form(
        self,
        topic: str,
        queue_id: int,
        begin: int,
        end: int,
        slices: Sequence[memoryview],
        count: int,
        bytes_max: int,
        cold_ok: bool,
    ) -> Stretch:
        """The same for records of which some are not as most are; not more than there is room for,
        and the first in any case."""
        aborted = self._reader.aborted(topic, queue_id, begin, end)
        found: list[Delivery] = []
        reached, room = begin, bytes_max
        for message in (each for view in slices for each in decode_messages(view)):
            first = offset_in(topic, queue_id, message)
            form = message.sys_flag & FORM_MASK
            if form in AS_STORED:
                body = bytes(message.body)
                found.append((first, 0, body, form, message.store_ms, facts_of(body, form)[0]))
                room -= len(body)
                reached = first + 1
                continue
            if form and aborted and is_of(message, aborted):
                continue
            try:
                for delta, body in bodies_in(
                    message,
                    queue_of(topic)[1],
                    max(0, begin - first),
                    self._reader.unpacking.messages,
                ):
                    if first + delta >= end:
                        break
                    if found and (len(found) >= count or room < len(body)):
                        return Stretch(found, max(reached, first + delta))
                    size = facts_of(body, AMQP_FLAG)[0]
                    found.append((first + delta, 0, body, AMQP_FLAG, message.store_ms, size))
                    room -= len(body)
                    reached = first + delta + 1
            except ColdError:
                if found:
                    return Stretch(found, reached)
                if not cold_ok:
                    raise
                self._reader.unpacking.unpack_now(message)
                return self._any_form(
                    topic, queue_id, begin, end, slices, count, bytes_max, cold_ok
                )
        return Stretch(found, end)


_size_of = itemgetter(SIZE)

Fresh = tuple[int, int, int, int, Entries]
"""The first offset of messages, how many of them are at hand, what that costs, when they came."""


def _costs(found: Sequence[Delivery]) -> int:
    """The bytes that messages take in memory."""
    return sum([len(each[BODY]) for each in found]) + _MESSAGE_BYTES * len(found)


class LogSource:
    """Where the messages of a ledger are: in a queue of a topic.

    Those that have just been stored are kept at hand for consumers who keep up, and are never read
    back.
    """

    __slots__ = (
        "_bits _fresh _hot _hot_bytes _hot_end _level _queue_id _reader _sizes _store _topic "
        "is_wanted"
    ).split()

    def __init__(self, reader: LogReader, topic: str, queue_id: int) -> None:
        self._reader = reader
        self._store = reader.store
        self._topic = topic
        self._queue_id = queue_id
        # Lists, and no deques, which take ten times as much while there is nothing in them.
        self._hot: list[Delivery] = []
        self._fresh: list[Fresh] = []
        """What follows those at hand, as it was stored; few consumers need more of it."""
        self._hot_bytes = self._hot_end = 0
        self.is_wanted = False
        """Whether there are consumers for whom messages are kept at hand."""
        self._bits = self._level = 0
        self._sizes: dict[int, int] = {}
        """Payload bytes of what is in flight, or came back."""

    def number(self, bits: int, level: int) -> None:
        """Places say from here on of which level they are."""
        self._bits, self._level = bits, level

    @property
    def start(self) -> int:
        return self._store.min_offset(self._topic, self._queue_id)

    @property
    def end(self) -> int:
        """Where what may be had ends: what replicas have not confirmed is not there yet."""
        return self._store.max_offset(self._topic, self._queue_id)

    def at_hand(self, begin: int) -> int:
        """How many messages from an offset on need not be read from the log."""
        return self._hot_end - begin if self._hot_bytes else 0

    def entered(
        self, messages: Sequence[NewMessage | NewRun], offset: int, begin: int, now_ms: int
    ) -> Entries:
        """Messages were stored, with their entries from `offset` on; `begin` is who is next."""
        entries = self._reader.entries(messages)
        if (
            self.is_wanted
            and entries.are_plain
            and offset == (self._hot_end if self._hot_bytes else begin)
        ):
            count = len(entries.bodies)
            size = entries.body_bytes + _MESSAGE_BYTES * count
            hot_bytes = self._hot_bytes + size
            if offset - begin + count > HOT_MAX or (
                hot_bytes > _HOT_BYTES_MIN and hot_bytes > self._hot_bytes_max
            ):
                count, size = self._some(entries.bodies, HOT_MAX - offset + begin)
            if count:
                self._fresh.append((offset, count, size, now_ms, entries))
                self._hot_end = offset + count
                self._heat(size)
        return entries

    def _some(self, bodies: list[bytes], count_max: int) -> tuple[int, int]:
        """How many of these messages, from the first on, can be kept at hand, and their bytes."""
        room, size = self._hot_bytes_max - self._hot_bytes, 0
        count = 0
        for body in bodies[: max(0, count_max)]:
            if size >= room:
                break
            size += len(body) + _MESSAGE_BYTES
            count += 1
        return count, size

    def _heat(self, bytes_more: int) -> None:
        self._hot_bytes += bytes_more
        self._reader.hot_bytes += bytes_more

    @property
    def _hot_bytes_max(self) -> int:
        return HOT_BYTES_MAX if self._reader.hot_bytes < HOT_BYTES_OF_ALL else _HOT_BYTES_MIN

    def _thaw(self, count: int) -> None:
        """Have so many at hand as deliveries, if there are any as they were stored."""
        bits, level, fresh = self._bits, self._level, self._fresh
        while fresh and len(self._hot) < count:
            offset, some, _, now_ms, entries = fresh.pop(0)
            first = offset << bits | level
            self._hot.extend(
                zip(
                    range(first, first + (some << bits), 1 << bits),
                    repeat(0),
                    entries.bodies,
                    entries.forms,
                    repeat(now_ms),
                    entries.payloads,
                    strict=False,
                )
            )

    # -- for the ledger ------------------------------------------------------------------------

    def take(
        self, begin: int, count: int, bytes_max: int, cold_ok: bool
    ) -> tuple[list[Delivery], int, int]:
        """The messages that come next, the offset behind them, and their bytes."""
        count = min(count, self.end - begin)
        if count <= 0:
            return [], begin, 0
        self._thaw(count)
        if not self._hot and (after := self._read_ahead(begin, cold_ok)):
            return [], after, 0
        found = self._hot[:count]
        size = sum(map(_size_of, found))
        while size > bytes_max and len(found) > 1:
            size -= found.pop()[SIZE]
        if not found:
            return [], begin, 0
        del self._hot[: len(found)]
        self._heat(-_costs(found) if self._hot or self._fresh else -self._hot_bytes)
        return found, (found[-1][POSITION] >> self._bits) + 1, size

    def pass_on(
        self, begin: int, count: int, bytes_max: int
    ) -> tuple[Sequence[bytes], Sequence[int], int]:
        """The same of messages that were just stored: their bodies and forms, and their bytes."""
        bodies: list[bytes] = []
        forms: list[int] = []
        total, fresh = 0, self._fresh
        if not fresh or self._hot or fresh[0][0] != begin:
            return bodies, forms, 0
        count = min(count, self.end - begin)
        while fresh and len(bodies) + fresh[0][1] <= count:
            _, some, size, _, entries = fresh[0]
            bytes_max -= entries.body_bytes
            if bytes_max < 0 or some != len(entries.bodies):
                break
            del fresh[0]
            bodies = bodies + entries.bodies if bodies else entries.bodies
            forms = forms + entries.forms if forms else entries.forms
            total += entries.size
            self._heat(-size)
        return bodies, forms, total

    def _read_ahead(self, begin: int, cold_ok: bool) -> int:
        """Read what comes next; where to look further on, if there is no message before that."""
        has_room = self._reader.hot_bytes < _READ_BYTES_OF_ALL
        bytes_max = HOT_BYTES_MAX if has_room else _READ_BYTES_MIN
        found, next_offset = self.read(begin, HOT_MAX, bytes_max, cold_ok)
        if found:
            self._hot.extend(found)
            self._hot_end = (found[-1][POSITION] >> self._bits) + 1
            self._heat(_costs(found))
            return 0
        return next_offset if next_offset > begin else 0

    def read(self, offset: int, count: int, bytes_max: int, cold_ok: bool) -> Stretch:
        """Messages from an offset on, which stay."""
        stretch = self._reader.read(
            self._topic, self._queue_id, offset, count, bytes_max, cold_ok=cold_ok
        )
        if self._bits:
            found = [(each[0] << self._bits | self._level, *each[1:]) for each in stretch.found]
            return Stretch(found, stretch.next_offset)
        return stretch

    def measure(self, begin: int, end: int) -> tuple[int, int]:
        return self._reader.measure(self._topic, self._queue_id, begin, end)

    def peek(self, begin: int, cold_ok: bool) -> Delivery | None:
        """The message that comes next."""
        if begin >= self.end:
            return None
        self._thaw(1)
        if not self._hot:
            if not self.is_wanted:
                return next(iter(self.read(begin, 1, 1, cold_ok).found), None)
            self._read_ahead(begin, cold_ok)
        return self._hot[0] if self._hot else None

    def keep(self, offsets: Sequence[int], found: Sequence[Delivery]) -> int:
        """These are in flight, or came back; their bytes."""
        sizes = list(map(_size_of, found))
        self._sizes.update(zip(offsets, sizes, strict=True))
        return sum(sizes)

    def forget(self, offsets: Sequence[int]) -> int:
        """These are done, or were taken again; the bytes of those that were kept."""
        return sum(map(self._sizes.pop, offsets, repeat(0)))

    def size_of(self, offset: int) -> int:
        """The payload bytes of one that is kept."""
        return self._sizes.get(offset, 0)

    def want(self) -> None:
        """There are consumers."""
        self.is_wanted = True

    def cool(self) -> None:
        """There are none."""
        self.is_wanted = False
        self.drop()

    def drop(self) -> None:
        """The ledger goes on elsewhere."""
        self._hot.clear()
        self._fresh.clear()
        self._heat(-self._hot_bytes)


def bodies_in(
    record: Message,
    key: str,
    begin: int,
    messages_in: Callable[[Message, int], Iterable[tuple[int, Neutral]]],
) -> Iterator[tuple[int, bytes]]:
    """The messages in a record from an offset in it on, as record bodies of AMQP's form."""
    if record.sys_flag & FORM_MASK == AMQP_FLAG:
        yield 0, bytes(record.body)
        return
    for delta, neutral in messages_in(record, begin):
        yield delta, amqp.from_neutral(neutral, key=key)


def content_of(delivery: Delivery, queue: str) -> amqp.Content | None:
    """A message that was read, as AMQP has it, whatever its form is; None if it is unreadable."""
    if delivery[FORM] == AMQP_FLAG:
        return amqp.read(delivery[BODY])
    position, _, body, form, stored_ms, _ = delivery
    record = Message(
        queue,
        0,
        QueueOffset(position),
        LogOffset(0),
        memoryview(body),
        b"",
        0,
        form,
        stored_ms,
        LOOPBACK,
        stored_ms,
        LOOPBACK,
        0,
        0,
        0,
        len(body),
    )
    from onelog.record.forms.conversion import in_amqp_form  # Few queues have such messages.

    try:
        return amqp.read(in_amqp_form(record, queue_of(queue)[1])[0][1])
    except WireError as error:
        log.warning("a message of queue %s cannot be read: %s", queue, error)
        return None
