"""Record batches between producers, the log and consumers.

A batch is stored as it came, as the body of one record; only the bytes that are the broker's own,
base offset and leader epoch, are put in when it is read. So it costs the same whether it holds one
message or thousands. Messages that came by RocketMQ's protocol lie in the same queues: neighbours
become one batch when they are read.

Invariant: what a consumer gets is whole batches in the order of the queue, the first of which has
the offset that was asked for.
"""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from struct import Struct

from onelog.core.cursors.forms import offset_in
from onelog.core.cursors.unpacking import ColdError, rest
from onelog.core.transactions.in_place import UNNUMBERED, Stamp
from onelog.errors import UnpackedTooLargeError, WireError
from onelog.message import Message
from onelog.record.decode import decode_message, records_in
from onelog.record.forms import Form, form_of, kafka
from onelog.record.forms.kafka import Attribute, Batch, Codec
from onelog.record.forms.neutral import Neutral
from onelog.record.layout import QUEUE_OFFSET, body_at
from onelog.wire.kafka.codes import ErrorCode

CONVERTED_MAX, CONVERTED_BYTES_MAX = 1_000, 2 << 20
"""Messages of RocketMQ's form that one answer converts; those behind them come with the next."""
RECORDS_MAX = 4_000
"""Batches that one answer has, which is some milliseconds of work; the same."""
_ZSTD_PRODUCE_VERSION = 7
_START = Struct(">qii")
_START_BYTES = _START.size
_RECORD_BYTES_MIN: dict[int, int] = {
    Codec.NONE: 7,
    Codec.GZIP: 1,
    Codec.SNAPPY: 3,
    Codec.LZ4: 3,
    Codec.ZSTD: 1,
}
"""The least that a record takes in a batch, packed with thousands of the same content: its number
is another one each time. Each record takes 20 bytes in the index, so that no batch takes more than
20 times its bytes there."""
_BELIEVED_BYTES = 2.5
"""With so many bytes for each, packed records are not counted."""
_LITTLE_BYTES, _LITTLE_RECORDS, _LITTLE_UNPACKED_BYTES = 64 << 10, 2_000, 256 << 10
"""What is looked into in the loop."""
WithOffset = tuple[int, Neutral]
"""A message and its offset in the queue."""
MessagesIn = Callable[[Message, int], Iterator[tuple[int, Neutral]]]
"""The broker's `messages_in`."""


@dataclass(slots=True)
class Budget:
    """How much one answer may convert, and take as it is."""

    messages: int = CONVERTED_MAX
    size: int = CONVERTED_BYTES_MAX
    is_whole: bool = False
    """Whether nothing of what was read may be left for the next answer."""
    records: int = RECORDS_MAX
    """Of Kafka's form: what is taken as it is."""

    @property
    def is_used_up(self) -> bool:
        """Whether there is nothing left of it."""
        return self.messages <= 0 or self.size <= 0

    def use(self, message: Neutral) -> None:
        self.messages -= 1
        self.size -= len(message.body or b"")


class BatchError(Exception):
    """What is wrong with a producer's batch."""

    def __init__(self, code: ErrorCode, reason: str) -> None:
        super().__init__(reason)
        self.code = code


# -- from producers ----------------------------------------------------------------------------


def checked(data: memoryview | None, version: int, bytes_max: int) -> Batch:
    """The head of the one batch that a producer sends to a partition; `BatchError`.

    Its records stay packed: looking into them would cost more than everything else.
    """
    if not data:
        raise BatchError(ErrorCode.INVALID_RECORD, "a partition without a batch")
    if len(data) > kafka.MAGIC_AT and data[kafka.MAGIC_AT] != kafka.MAGIC:
        raise BatchError(
            ErrorCode.UNSUPPORTED_FOR_MESSAGE_FORMAT,
            f"a batch of magic {data[kafka.MAGIC_AT]}; producers send magic {kafka.MAGIC}",
        )
    try:
        batch = kafka.read_head(data)
    except WireError as error:
        raise BatchError(ErrorCode.CORRUPT_MESSAGE, str(error)) from None
    if batch.size != len(data):
        raise BatchError(ErrorCode.INVALID_RECORD, "more than one batch for a partition")
    if batch.size > bytes_max:
        reason = f"a batch of {batch.size} bytes; the topic takes {bytes_max}"
        raise BatchError(ErrorCode.MESSAGE_TOO_LARGE, reason)
    if batch.crc != kafka.crc_of(data):
        raise BatchError(ErrorCode.CORRUPT_MESSAGE, "a batch with another CRC than it says")
    _check_head(batch, version)
    return batch


def _check_head(batch: Batch, version: int) -> None:
    attributes, codec = batch.attributes, batch.attributes & Attribute.CODEC
    if codec > Codec.ZSTD or (codec == Codec.ZSTD and version < _ZSTD_PRODUCE_VERSION):
        reason = f"records are compressed by codec {codec}"
        raise BatchError(ErrorCode.UNSUPPORTED_COMPRESSION_TYPE, reason)
    if attributes & Attribute.APPEND_TIME:
        reason = "only the broker says that a time is that of an arrival"
        raise BatchError(ErrorCode.INVALID_TIMESTAMP, reason)
    if attributes & Attribute.CONTROL:
        raise BatchError(ErrorCode.INVALID_RECORD, "only the broker ends a transaction")
    if attributes & Attribute.TRANSACTIONAL and batch.producer_id < 0:
        raise BatchError(ErrorCode.INVALID_RECORD, "a transaction of nobody")
    if batch.base_offset != 0:
        raise BatchError(ErrorCode.INVALID_RECORD, f"a batch that begins at {batch.base_offset}")
    room = batch.size - kafka.HEAD.size
    if (
        batch.records <= 0
        or batch.last_offset_delta != batch.records - 1
        or batch.records * _RECORD_BYTES_MIN[codec] > room
    ):
        reason = (
            f"a batch that counts {batch.records} records, the last of them number "
            f"{batch.last_offset_delta}"
        )
        raise BatchError(ErrorCode.INVALID_RECORD, reason)
    if batch.producer_id >= 0 and (batch.base_sequence < 0 or batch.producer_epoch < 0):
        raise BatchError(ErrorCode.INVALID_RECORD, "a producer's batch without a number")


def is_to_look_into(batch: Batch, needs_keys: bool) -> bool:
    """Whether a batch is stored only after its records were looked at."""
    room = batch.size - kafka.HEAD.size
    is_packed = batch.attributes & Attribute.CODEC != Codec.NONE
    return needs_keys or (is_packed and batch.records * _BELIEVED_BYTES > room)


def look_into(data: memoryview, batch: Batch) -> list[int] | None:
    """Which records of a batch, by their numbers, have no key; `BatchError` if they are not those
    that it counts. None if that takes a while (`look_into_much`)."""
    if batch.size > _LITTLE_BYTES or batch.records > _LITTLE_RECORDS:
        return None
    try:
        return kafka.keyless(data, _LITTLE_UNPACKED_BYTES)
    except UnpackedTooLargeError:
        return None
    except WireError as error:
        raise BatchError(ErrorCode.INVALID_RECORD, str(error)) from None


def look_into_much(data: memoryview) -> list[int] | BatchError:
    """The same, for a worker."""
    try:
        return kafka.keyless(data, rest=rest)
    except WireError as error:
        return BatchError(ErrorCode.INVALID_RECORD, str(error))


def stamp_of(batch: Batch) -> Stamp:
    """What a batch says of its producer."""
    if batch.producer_id < 0:
        return UNNUMBERED
    return Stamp(
        batch.producer_id,
        batch.producer_epoch,
        batch.base_sequence,
        batch.records,
        bool(batch.attributes & Attribute.TRANSACTIONAL),
    )


# -- to consumers ------------------------------------------------------------------------------


def pieces_of(
    topic: str,
    queue_id: int,
    offset: int,
    slices: Sequence[memoryview],
    messages_in: MessagesIn,
    budget: Budget,
    epoch: int = 0,
) -> tuple[list[bytes | memoryview], int]:
    """What was read from a queue as batches, in pieces for the socket; and the most recent codec.

    The budget says how much there may be, and is used up. `ColdError` if a worker has to unpack
    the first of RocketMQ's form before. `epoch` is the leader's.
    """
    found: list[bytes | memoryview] = []
    plain: list[WithOffset] = []
    codecs = 0
    for record, flags in records_in(slices):
        if form_of(flags) == Form.KAFKA:
            if plain:
                found += _converted(plain)
                plain = []
            if budget.records <= 0:
                break  # As below.
            budget.records -= 1
            at, size = body_at(record)
            body = record[at : at + size]
            length = int.from_bytes(body[8:12], "big")
            base = int.from_bytes(record[QUEUE_OFFSET], "big")
            found.append(_START.pack(base, length, epoch))
            found.append(body[_START_BYTES:])
            codecs |= 1 << (body[22] & Attribute.CODEC)
        else:
            try:
                for each in with_offsets(topic, queue_id, offset, record, messages_in):
                    if budget.is_used_up:
                        return found + _converted(plain), codecs
                    budget.use(each[1])
                    plain.append(each)
            except ColdError:
                if budget.is_whole or not (found or plain):
                    raise
                break  # What follows comes with the next answer.
    return found + _converted(plain), codecs


def with_offsets(
    topic: str, queue_id: int, offset: int, record: memoryview, messages_in: MessagesIn
) -> Iterator[WithOffset]:
    """The messages in a record, from an offset of the queue on, with their offsets in it."""
    message = decode_message(record)
    at = offset_in(topic, queue_id, message)
    for delta, neutral in messages_in(message, max(0, offset - at)):
        yield at + delta, neutral


def _converted(messages: Sequence[WithOffset]) -> list[bytes | memoryview]:
    """Messages of RocketMQ's form as batches; a new one where offsets do not follow."""
    batches: list[bytes | memoryview] = []
    begin = 0
    for end in range(1, len(messages) + 1):
        if end == len(messages) or messages[end][0] != messages[end - 1][0] + 1:
            run = messages[begin:end]
            batches.append(kafka.from_neutral([neutral for _, neutral in run], run[0][0]))
            begin = end
    return batches


def gap(begin: int, end: int) -> bytes:
    """A batch without records that stands for offsets at which nothing is to be had."""
    empty = kafka.HEAD.pack(
        begin,
        kafka.HEAD.size - 12,
        0,
        kafka.MAGIC,
        0,
        0,
        end - begin - 1,
        0,
        0,
        -1,
        -1,
        -1,
        0,
    )
    return kafka.with_crc(empty)


def with_append_time(data: memoryview, now_ms: int) -> bytes:
    """The batch, stamped with the time of its arrival."""
    batch = bytearray(data)
    batch[kafka.ATTRIBUTES_AT + 1] |= Attribute.APPEND_TIME
    batch[35:43] = now_ms.to_bytes(8, "big")
    return kafka.with_crc(bytes(batch))
