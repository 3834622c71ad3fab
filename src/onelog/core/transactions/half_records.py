"""The records of a transaction: half messages, operations, and what becomes of them.

    half message   topic RMQ_SYS_TRANS_HALF_TOPIC, queue 0: the message as it was sent, with its own
                   topic and queue in REAL_TOPIC and REAL_QID, and no transaction bits in its flags
    operation      topic RMQ_SYS_TRANS_OP_HALF_TOPIC, queue 0, TAGS d: the body is the queue offsets
                   of half messages that have ended, "7" or "7,9,12"
    committed      the message under its own topic, with the commit bit in its flags and the log
                   offset of its half message in the record
    checked out    topic TRANS_CHECK_MAX_TIME_TOPIC, queue 0: a half message whose producer was
                   asked too often

All of it is RocketMQ's form, so that a store with open transactions can be taken over
from it and handed back. Its 4.9 reads only operations of one offset, which are written when just
one transaction ends in a tick; 5.x reads all of them.

Invariant: body, flag, birth and the sender's own properties are the same in each of these records.
"""

from collections.abc import Iterator, Sequence

from onelog.core.schedule.records import REAL_QUEUE_ID, REAL_TOPIC
from onelog.errors import MessageError, PropertiesTooLargeError
from onelog.message import (
    PROPERTIES_BYTES_MAX,
    TRANSACTION_MASK,
    UNIQUE_KEY,
    Message,
    NewMessage,
    SysFlag,
    property_bytes,
    property_value,
)
from onelog.names import CHECKED_OUT_TOPIC, HALF_TOPIC, OP_HALF_TOPIC
from onelog.record.properties import (
    with_property,
    without_property,
    without_stores_own,
    written_again,
)

HALF_MARK = "TRAN_MSG"
PRODUCER_GROUP = "PGROUP"
CHECK_TIMES = "TRANSACTION_CHECK_TIMES"
IMMUNITY_SECONDS = "CHECK_IMMUNITY_TIME_IN_SECONDS"
PREPARED_QUEUE_OFFSET = "TRAN_PREPARED_QUEUE_OFFSET"
"""Where a half message was first, in the copies that RocketMQ makes of immune ones."""
TRANSACTION_ID = "__transactionId__"
REMOVE_TAG = b"d"
OFFSETS_PER_OPERATION_MAX = 200
"""RocketMQ keeps the body of an operation within 4,096 bytes; an offset has up to 19 digits."""
_COMMITTED = int(SysFlag.COMMITTED)
_MARK_NEEDLE = HALF_MARK.encode() + b"\x01"
_GROUP_NEEDLE = PRODUCER_GROUP.encode() + b"\x01"
_TOPIC_NEEDLE = REAL_TOPIC.encode() + b"\x01"
_QUEUE_NEEDLE = REAL_QUEUE_ID.encode() + b"\x01"
_CHECKS_NEEDLE = CHECK_TIMES.encode() + b"\x01"
_PREPARED_OFFSET_NEEDLE = PREPARED_QUEUE_OFFSET.encode() + b"\x01"
_UNIQUE_KEY_NEEDLE = UNIQUE_KEY.encode() + b"\x01"
_TRANSACTION_ID_NEEDLE = TRANSACTION_ID.encode() + b"\x01"
_OPERATION_PROPERTIES = b"TAGS\x01" + REMOVE_TAG + b"\x02"


def prepared(message: NewMessage) -> NewMessage:
    """The message as it waits for the end of its transaction; `MessageError` if it cannot."""
    properties = message.properties
    if not property_bytes(properties, _GROUP_NEEDLE):
        raise MessageError(
            f"a message of a transaction names its producer group in {PRODUCER_GROUP}"
        )
    # Of an earlier transaction, in a message that is sent on: the broker counts from 0.
    properties = without_property(
        without_property(properties, _CHECKS_NEEDLE), _PREPARED_OFFSET_NEEDLE
    )
    unique_key = property_bytes(properties, _UNIQUE_KEY_NEEDLE)
    if unique_key:
        properties = with_property(properties, _TRANSACTION_ID_NEEDLE, unique_key)
    properties = with_property(properties, _TOPIC_NEEDLE, message.topic.encode())
    properties = with_property(properties, _QUEUE_NEEDLE, b"%d" % message.queue_id)
    if len(properties) > PROPERTIES_BYTES_MAX:
        raise PropertiesTooLargeError(
            f"properties of {len(properties)} bytes, with the message's own topic, are over the "
            f"limit of {PROPERTIES_BYTES_MAX}"
        )
    return message._replace(
        topic=HALF_TOPIC,
        queue_id=0,
        properties=properties,
        sys_flag=message.sys_flag & ~TRANSACTION_MASK,
    )


def own_queue(properties: bytes) -> tuple[str, int]:
    """The topic and queue that a half message is meant for; `MessageError` if it names none."""
    topic = property_bytes(properties, _TOPIC_NEEDLE)
    queue_id = property_bytes(properties, _QUEUE_NEEDLE) or b""
    if not topic or not queue_id.isdigit():
        raise MessageError(f"it has no topic and queue to go to ({topic!r}, {queue_id!r})")
    return topic.decode("utf-8", "replace"), int(queue_id)


def committed(half: Message, checks: int) -> NewMessage:
    """What consumers get, after the producer was asked `checks` times."""
    properties = _properties(half, checks)
    topic, queue_id = own_queue(properties)
    for needle in (_MARK_NEEDLE, _TOPIC_NEEDLE, _QUEUE_NEEDLE):
        properties = without_property(properties, needle)
    return written_again(
        half,
        topic,
        queue_id,
        properties,
        prepared_offset=half.log_offset,
        sys_flag=half.sys_flag & ~TRANSACTION_MASK | _COMMITTED,
    )


def check_of(half: Message, checks: int) -> NewMessage:
    """The message as its producer knows it, for the `checks`-th question what became of it."""
    properties = _properties(half, checks)
    return written_again(half, *own_queue(properties), properties)


def checked_out(half: Message, checks: int) -> NewMessage:
    """A half message that nobody will be asked about any more."""
    return written_again(half, CHECKED_OUT_TOPIC, 0, _properties(half, checks))


def resumed(given_up: Message) -> NewMessage:
    """A half message, from one that was checked out, with all checks before it again."""
    properties = without_property(_properties(given_up, 0), _CHECKS_NEEDLE)
    own_queue(properties)
    return written_again(given_up, HALF_TOPIC, 0, properties)


def _properties(half: Message, checks: int) -> bytes:
    properties = without_stores_own(half.properties)
    if checks and len(properties) + len(_CHECKS_NEEDLE) + 12 <= PROPERTIES_BYTES_MAX:
        properties = with_property(properties, _CHECKS_NEEDLE, b"%d" % checks)
    return properties


# -- operations ----------------------------------------------------------------------------------


def operations(offsets: Sequence[int], now_ms: int, host: bytes) -> list[NewMessage]:
    """The records that say: the half messages at these queue offsets have ended."""
    return [
        NewMessage(
            OP_HALF_TOPIC,
            0,
            ",".join(map(str, offsets[at : at + OFFSETS_PER_OPERATION_MAX])).encode(),
            _OPERATION_PROPERTIES,
            born_ms=now_ms,
            born_host=host,
            store_host=host,
        )
        for at in range(0, len(offsets), OFFSETS_PER_OPERATION_MAX)
    ]


def ended_offsets(operation: Message) -> Iterator[int]:
    """The queue offsets in an operation; nothing if it is of another kind."""
    if operation.tags == REMOVE_TAG.decode():
        for part in bytes(operation.body).split(b","):
            if part.isdigit():
                yield int(part)


# -- times ---------------------------------------------------------------------------------------


def stated_checks(half: Message) -> int:
    """How often the record itself says that its producer was asked: RocketMQ keeps it there."""
    text = property_value(half.properties, CHECK_TIMES) or ""
    return int(text) if text.isascii() and text.isdigit() and len(text) < 10 else 0


def has_own_immunity(half: Message) -> bool:
    """Whether the sender chose for how long nobody is to be asked."""
    return bool(property_value(half.properties, IMMUNITY_SECONDS))


def immune_until(half: Message, timeout_ms: int) -> int:
    """When the producer may first be asked what became of the transaction.

    The time runs from the message's birth; a producer's clock that is ahead of ours must not keep
    it immune for longer, so the moment it was stored counts if that was before.
    """
    text = property_value(half.properties, IMMUNITY_SECONDS) or ""
    own_ms = int(text) * 1_000 if text.isascii() and text.isdigit() and len(text) < 10 else 0
    return min(half.born_ms, half.store_ms) + max(own_ms, timeout_ms)
