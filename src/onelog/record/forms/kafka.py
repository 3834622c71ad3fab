r"""Kafka's form: a record batch of magic 2, kept as its producer sent it. All big-endian.

     0  BASEOFFSET        8   the offset of the first record; the broker's, not in the CRC
     8  LENGTH            4   bytes behind this field
    12  LEADEREPOCH       4   the broker's, not in the CRC
    16  MAGIC             1   2
    17  CRC               4   CRC-32C of everything behind it
    21  ATTRIBUTES        2   bits 0-2 codec, 3 append time, 4 transactional, 5 control
    23  LASTOFFSETDELTA   4
    27  BASETIMESTAMP     8
    35  MAXTIMESTAMP      8
    43  PRODUCERID        8   -1: none
    51  PRODUCEREPOCH     2
    53  BASESEQUENCE      4
    57  COUNT             4
    61  records, compressed as one if the codec says so

A record: LENGTH, attributes (int8), TIMEDELTA, OFFSETDELTA, KEYLEN key, VALUELEN value, HEADERS,
and for each header NAMELEN name, VALUELEN value. Names in capitals are zig-zag varints; a length of
-1 is null.

    neutral     Kafka
    key, body   key, value
    header      header; names are UTF-8
    time        timestamp

Invariant: what is written here is read back as the same neutral messages. Bytes that are no batch
raise `WireError`, and nothing else.
"""

from collections.abc import Callable, Iterator, Sequence
from enum import IntEnum
from struct import Struct
from typing import NamedTuple

from crc32c import crc32c

from onelog.errors import WireError
from onelog.record.compression import UNPACKED_BYTES_MAX, Method, pack, unpack
from onelog.record.forms.neutral import Header, Neutral, sane_ms

HEAD = Struct(">qiibIhiqqqhii")
MAGIC = 2
LENGTH_AT, EPOCH_AT, MAGIC_AT, CRC_AT, ATTRIBUTES_AT = 8, 12, 16, 17, 21
_LENGTH_END = 12
_RECORD_BYTES_MIN = 7
"""A record without key, value and headers."""
_HEADERS_MAX = 500
"""Of a message that is read run by run: each takes two bytes at least, and so much work as others'
whole messages."""


class Codec(IntEnum):
    """Bits 0 to 2 of a batch's attributes."""

    NONE = 0
    GZIP = 1
    SNAPPY = 2
    LZ4 = 3
    ZSTD = 4


_METHODS: dict[int, Method] = {
    Codec.GZIP: Method.GZIP,
    Codec.SNAPPY: Method.SNAPPY,
    Codec.LZ4: Method.LZ4,
    Codec.ZSTD: Method.ZSTD,
}


class Attribute(IntEnum):
    """The bits of a batch's attributes."""

    CODEC = 0x07
    APPEND_TIME = 0x08
    TRANSACTIONAL = 0x10
    CONTROL = 0x20


class Batch(NamedTuple):
    """The head of a batch, and where its records are."""

    base_offset: int
    length: int
    leader_epoch: int
    magic: int
    crc: int
    attributes: int
    last_offset_delta: int
    base_ms: int
    max_ms: int
    producer_id: int
    producer_epoch: int
    base_sequence: int
    records: int
    """How many messages it holds."""

    @property
    def size(self) -> int:
        return _LENGTH_END + self.length

    @property
    def append_ms(self) -> int | None:
        """When it arrived, if that is the time of all its messages."""
        return self.max_ms if self.attributes & Attribute.APPEND_TIME else None

    @property
    def is_control(self) -> bool:
        """Whether it says how a transaction ended, instead of holding messages."""
        return bool(self.attributes & Attribute.CONTROL)


class Span(NamedTuple):
    """Where a record lies among those of its batch, and what tells whether it is to stay."""

    start: int
    end: int
    time_delta: int
    offset_delta: int
    key: bytes | None
    is_tombstone: bool
    """Whether its value is null: it says that its key is no more."""


class Record(NamedTuple):
    """One message of a batch."""

    offset_delta: int
    message: Neutral


def read_head(data: bytes | memoryview, at: int = 0) -> Batch:
    """The head of the batch at `at`, if there is room for all that it claims."""
    if len(data) - at < HEAD.size:
        raise WireError(f"a record batch needs {HEAD.size} bytes, and {len(data) - at} are there")
    batch = Batch(*HEAD.unpack_from(data, at))
    if batch.magic != MAGIC:
        raise WireError(f"a record batch of magic {batch.magic}; this is for magic {MAGIC}")
    if not HEAD.size <= batch.size <= len(data) - at:
        raise WireError(f"a record batch claims {batch.size} bytes of {len(data) - at}")
    return batch


def is_packed(data: bytes | memoryview) -> bool:
    """Whether the records of a batch are compressed."""
    return len(data) > ATTRIBUTES_AT + 1 and bool(data[ATTRIBUTES_AT + 1] & Attribute.CODEC)


def crc_of(data: bytes | memoryview) -> int:
    """The CRC of a whole batch, as its head should have it."""
    return int(crc32c(data[ATTRIBUTES_AT:]))


def to_neutral(data: bytes | memoryview, *, bytes_max: int = UNPACKED_BYTES_MAX) -> list[Neutral]:
    """The messages of a batch; none, if it is a control batch."""
    return [record.message for record in records(data, bytes_max=bytes_max)]


def records(data: bytes | memoryview, *, bytes_max: int = UNPACKED_BYTES_MAX) -> list[Record]:
    """The messages of a batch and their places in it; none, if it is a control batch."""
    batch = read_head(data)
    if batch.is_control:
        return []
    raw = unpacked(data, batch, bytes_max)
    return list(_records(raw, batch.records, batch.base_ms, batch.append_ms))


def unpacked(data: bytes | memoryview, batch: Batch, bytes_max: int = UNPACKED_BYTES_MAX) -> bytes:
    """The records of a batch, one behind the other."""
    raw = raw_records(data, batch, bytes_max)
    if not 0 < batch.records <= len(raw) // _RECORD_BYTES_MIN:
        raise WireError(f"a batch of {len(raw)} bytes cannot hold {batch.records} records")
    return raw


def raw_records(
    data: bytes | memoryview, batch: Batch, bytes_max: int = UNPACKED_BYTES_MAX
) -> bytes:
    """The same, whether or not there can be as many as the batch says."""
    packed, codec = data[HEAD.size : batch.size], batch.attributes & Attribute.CODEC
    if codec == Codec.NONE:
        return bytes(packed)
    if codec not in _METHODS:
        raise WireError(f"records are compressed by codec {codec}, which is unknown")
    return unpack(packed, _METHODS[codec], bytes_max)


def _records(raw: bytes, count: int, base_ms: int, append_ms: int | None) -> Iterator[Record]:
    at = 0
    try:
        for number in range(count):
            size, at = varint(raw, at)
            yield _record_in(raw, at, at + size, number, base_ms, append_ms)
            at += size
    except IndexError:
        raise WireError("a record batch is cut off") from None
    if at != len(raw):
        raise WireError(f"{len(raw) - at} bytes follow the last record of a batch")


def _record_in(
    raw: bytes,
    at: int,
    end: int,
    number: int,
    base_ms: int,
    append_ms: int | None,
    headers_max: int = 1 << 31,
) -> Record:
    """The record whose length says that it is there; also `IndexError` if it is cut off."""
    time_delta, at = varint(raw, at + 1)
    offset_delta, at = varint(raw, at)
    key, at = _bytes(raw, at)
    value, at = _bytes(raw, at)
    header_count, at = varint(raw, at)
    if not 0 <= header_count <= len(raw) - at:
        raise WireError(f"record {number} claims {header_count} headers")
    headers: list[Header] = []
    for _ in range(min(header_count, headers_max)):
        name, at = _bytes(raw, at)
        if name is None:
            raise WireError(f"record {number} has a header without a name")
        content, at = _bytes(raw, at)
        headers.append((name.decode("utf-8", "surrogateescape"), content))
    if at > end or (at < end and header_count <= headers_max):
        raise WireError(f"record {number} of a batch is not as long as it says")
    time_ms = base_ms + time_delta if append_ms is None else append_ms
    return Record(offset_delta, Neutral(key, value, tuple(headers), time_ms))


class Run(NamedTuple):
    """Some records of a batch, one behind the other."""

    at: int
    end: int
    records: int
    first_delta: int
    """No record from here on is before that."""


def runs(
    raw: bytes, batch: Batch, records_max: int, bytes_max: int, rest: Callable[[int], object]
) -> list[Run]:
    """Where the records of a batch are, some at a time, as far as their lengths lead.

    No run has more records or bytes than that, unless a single record is larger. `rest` is called
    after each.
    """
    found: list[Run] = []
    at, left, size = 0, batch.records, len(raw)
    delta = 0
    while left > 0 and at < size:
        begin, count = at, 0
        try:
            delta = max(delta, min(_delta_at(raw, at), batch.last_offset_delta))
        except (IndexError, WireError):
            pass  # It cannot be read, which is seen when it is.
        while count < records_max and left > 0 and at < size:
            byte = raw[at]
            if byte < 0x80 and not byte & 1:
                end = at + 1 + (byte >> 1)
            else:
                try:
                    step, behind = varint(raw, at)
                except (IndexError, WireError):
                    step, behind = -1, at
                end = behind + step if step >= 0 else size + 1
            if end > size:
                left = 0  # Where the next one begins nobody knows.
                break
            if count and end - begin > bytes_max:
                break
            at, count, left = end, count + 1, left - 1
        if count:
            found.append(Run(begin, at, count, delta))
        rest(len(found))
    return found


def _delta_at(raw: bytes, at: int) -> int:
    _, at = varint(raw, at)
    _, at = varint(raw, at + 1)
    return varint(raw, at)[0]


def records_in(raw: bytes, batch: Batch, run: Run) -> list[Record]:
    """The messages of a run, without those that cannot be read, and headers that are too many."""
    found: list[Record] = []
    at, before = run.at, run.first_delta - 1
    for number in range(run.records):
        size, at = varint(raw, at)
        try:
            record = _record_in(
                raw, at, at + size, number, batch.base_ms, batch.append_ms, _HEADERS_MAX
            )
        except (IndexError, WireError):
            record = None
        at += size
        if record is not None and before < record.offset_delta <= batch.last_offset_delta:
            before = record.offset_delta
            found.append(record)
    return found


def spans(data: bytes | memoryview) -> tuple[Batch, bytes, list[Span]]:
    """The head of a batch, its records unpacked, and where each of them is: nothing is copied out
    of them but their keys."""
    batch = read_head(data)
    raw = unpacked(data, batch)
    found = []
    at = 0
    try:
        for number in range(batch.records):
            start = at
            size, at = varint(raw, at)
            end = at + size
            time_delta, at = varint(raw, at + 1)
            offset_delta, at = varint(raw, at)
            key, at = _bytes(raw, at)
            value_size, at = varint(raw, at)
            if not at + max(value_size, 0) < end <= len(raw):
                raise WireError(f"record {number} of a batch is not as long as it says")
            found.append(Span(start, end, time_delta, offset_delta, key, value_size < 0))
            at = end
    except IndexError:
        raise WireError("a record batch is cut off") from None
    if at != len(raw):
        raise WireError(f"{len(raw) - at} bytes follow the last record of a batch")
    return batch, raw, found


def keyless(
    data: bytes | memoryview,
    bytes_max: int = UNPACKED_BYTES_MAX,
    rest: Callable[[], object] = lambda: None,
) -> list[int]:
    """The numbers of the records in a batch that have no key.

    For batches on their way in: nothing else is looked at, and no varint is read without need.
    `rest` is called every now and then. `WireError` if they are not as many as the batch counts.
    """
    batch = read_head(data)
    raw = unpacked(data, batch, bytes_max)
    found = []
    at = 0
    try:
        for number in range(batch.records):
            if not number & 0x7FF:
                rest()
            size, at = varint(raw, at)
            end = at + size
            at += 1
            while raw[at] >= 0x80:
                at += 1
            at += 1
            while raw[at] >= 0x80:
                at += 1
            if raw[at + 1] == 1:
                found.append(number)
            if not at + 1 < end <= len(raw):
                raise WireError(f"record {number} of a batch is not as long as it says")
            at = end
    except IndexError:
        raise WireError("a record batch is cut off") from None
    if at != len(raw):
        raise WireError(f"{len(raw) - at} bytes follow the last record of a batch")
    return found


def with_only(
    data: bytes | memoryview, batch: Batch, raw: bytes, kept: Sequence[Span], base_offset: int
) -> bytes:
    """The batch at its offset, with some of its records, as nobody's and of no transaction.

    Each record keeps its offset and its time, and the batch the offset where it ends.
    """
    attributes = batch.attributes & ~Attribute.TRANSACTIONAL
    if len(kept) == batch.records and attributes == batch.attributes:
        return base_offset.to_bytes(8, "big") + bytes(data[LENGTH_AT : batch.size])
    codec = attributes & Attribute.CODEC
    left = b"".join([raw[each.start : each.end] for each in kept])
    packed = pack(left, _METHODS[codec]) if codec else left
    max_ms = batch.max_ms
    if not attributes & Attribute.APPEND_TIME:
        max_ms = batch.base_ms + max(each.time_delta for each in kept)
    head = HEAD.pack(
        base_offset,
        HEAD.size - _LENGTH_END + len(packed),
        batch.leader_epoch,
        MAGIC,
        0,
        attributes,
        batch.last_offset_delta,
        batch.base_ms,
        max_ms,
        -1,
        -1,
        -1,
        len(kept),
    )
    return with_crc(head + packed)


def from_neutral(
    messages: Sequence[Neutral], base_offset: int = 0, codec: Codec = Codec.NONE
) -> bytes:
    """One batch with all these messages."""
    base_ms = sane_ms(messages[0].time_ms)
    raw = b"".join(_record(message, index, base_ms) for index, message in enumerate(messages))
    packed = pack(raw, _METHODS[codec]) if codec else raw
    latest_ms = max(sane_ms(message.time_ms) for message in messages)
    last = len(messages) - 1
    head = HEAD.pack(
        base_offset,
        HEAD.size - _LENGTH_END + len(packed),
        0,
        MAGIC,
        0,
        codec,
        last,
        base_ms,
        latest_ms,
        -1,
        -1,
        -1,
        len(messages),
    )
    return with_crc(head + packed)


def control_batch(producer_id: int, epoch: int, now_ms: int, *, commit: bool) -> bytes:
    """The batch that says how a producer's transaction ended: one record, without a message.

    Its key is a version and 0 for an abort or 1 for a commit, its value a version and an epoch.
    """
    key, value = (0).to_bytes(2, "big") + commit.to_bytes(2, "big"), bytes(6)
    raw = _record(Neutral(key, value, (), now_ms), 0, now_ms)
    attributes = Attribute.TRANSACTIONAL | Attribute.CONTROL
    head = HEAD.pack(
        0,
        HEAD.size - _LENGTH_END + len(raw),
        0,
        MAGIC,
        0,
        attributes,
        0,
        now_ms,
        now_ms,
        producer_id,
        epoch,
        -1,
        1,
    )
    return with_crc(head + raw)


def is_commit(data: bytes | memoryview) -> bool:
    """Whether a control batch says that its transaction is committed."""
    batch = read_head(data)
    raw = bytes(data[HEAD.size : batch.size])
    key = next(_records(raw, 1, 0, None)).message.key
    return key is not None and len(key) >= 4 and key[2:4] == b"\0\1"


def with_crc(batch: bytes) -> bytes:
    """The same batch, with the CRC that it should have."""
    return batch[:CRC_AT] + crc_of(batch).to_bytes(4, "big") + batch[ATTRIBUTES_AT:]


def _record(message: Neutral, index: int, base_ms: int) -> bytes:
    pieces = [b"\0", _zigzag(sane_ms(message.time_ms) - base_ms), _zigzag(index)]
    pieces += _sized(message.key)
    pieces += _sized(message.body)
    pieces.append(_zigzag(len(message.headers)))
    for name, value in message.headers:
        pieces += _sized(name.encode("utf-8", "surrogateescape"))
        pieces += _sized(value)
    record = b"".join(pieces)
    return _zigzag(len(record)) + record


def _sized(value: bytes | None) -> tuple[bytes, bytes]:
    return (b"\1", b"") if value is None else (_zigzag(len(value)), value)


def _bytes(raw: bytes, at: int) -> tuple[bytes | None, int]:
    size, at = varint(raw, at)
    if size < 0:
        return None, at
    end = at + size
    if end > len(raw):
        raise WireError(f"a field of a record claims {size} bytes of {len(raw) - at}")
    return raw[at:end], end


def varint(raw: bytes, at: int) -> tuple[int, int]:
    """A zig-zag varint, and the place behind it."""
    byte = raw[at]
    at += 1
    if byte < 0x80:
        return (byte >> 1) ^ -(byte & 1), at
    value, shift = byte & 0x7F, 7
    while True:
        byte = raw[at]
        at += 1
        value |= (byte & 0x7F) << shift
        if byte < 0x80 and value < 1 << 64:
            return (value >> 1) ^ -(value & 1), at
        shift += 7
        if shift > 63:
            raise WireError("a varint of a record batch has more than 64 bits")


def _zigzag(number: int) -> bytes:
    return encode_uvarint((number << 1) ^ (number >> 63))


def encode_uvarint(value: int) -> bytes:
    """A number that is not negative, as a varint."""
    if value < 0x80:
        return bytes((value,))
    pieces = bytearray()
    while value >= 0x80:
        pieces.append(value & 0x7F | 0x80)
        value >>= 7
    pieces.append(value)
    return bytes(pieces)
