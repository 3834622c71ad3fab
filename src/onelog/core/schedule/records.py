"""The records of messages that wait for their time, in RocketMQ's form.

    delayed     topic SCHEDULE_TOPIC_XXXX, queue n - 1: a message of level n as it was sent, with
                REAL_TOPIC and REAL_QID, where it goes
    scheduled   topic rmq_sys_wheel_timer, queue 0: the message as it was sent, and then REAL_TOPIC,
                REAL_QID, where it goes, and TIMER_OUT_MS, when
    renewed     the same again, because the log's file with the old one is about to go; with
                TIMER_ROLL_TIMES, and in TIMER_ROLL_FROM the queue offset of the old one
    deletion    has TIMER_DEL_UNIQKEY, `<topic>+<unique key>`: that scheduled message is not to be
                delivered; TIMER_OUT_MS says when it would have been
    delivered   the message under its own topic, with when it was due, stored and delivered

RocketMQ rounds TIMER_OUT_MS down to a second before the message is due, and delivers at the end of
that second. Here it is to the millisecond, and begins with a zero, which RocketMQ reads and never
writes: so one of its messages is known, and not delivered a second too early.

Invariant: body, flag, birth and the sender's own properties are the same in each of these records.
"""

import functools
import re
from typing import NamedTuple

from onelog.errors import MessageError, PropertiesTooLargeError
from onelog.message import (
    DELAY_LEVEL,
    PROPERTIES_BYTES_MAX,
    UNIQUE_KEY,
    Message,
    NewMessage,
    decode_properties,
    encode_properties,
)
from onelog.names import HALF_TOPIC, SCHEDULE_TOPIC, TIMER_TOPIC
from onelog.record.layout import CRC_NAME, CRC_PROPERTY_BYTES
from onelog.record.properties import written_again

REAL_TOPIC = "REAL_TOPIC"
REAL_QUEUE_ID = "REAL_QID"
DELAY_SECONDS = "TIMER_DELAY_SEC"
DELAY_MS = "TIMER_DELAY_MS"
DELIVER_MS = "TIMER_DELIVER_MS"
DELETE_KEY = "TIMER_DEL_UNIQKEY"
DUE_MS = "TIMER_OUT_MS"
ENQUEUE_MS = "TIMER_ENQUEUE_MS"
DEQUEUE_MS = "TIMER_DEQUEUE_MS"
ROLL_TIMES = "TIMER_ROLL_TIMES"
ROLL_FROM = "TIMER_ROLL_FROM"
RECALL_TAG = "_RECALL_TAG_"
UNITS_MS = {DELAY_SECONDS: 1_000, DELAY_MS: 1, DELIVER_MS: 0}
"""The properties that are times, and what they count in; 0 for a point in time. As RocketMQ has
it, the first of them that is there counts."""
_DUE_NEEDLE = DUE_MS.encode() + b"\x01"
_TOPIC_NEEDLE = REAL_TOPIC.encode() + b"\x01"
_NUMBER = re.compile(r"[+-]?[0-9]{1,18}")
_OWN = re.compile(
    rb"REAL_TOPIC\x01([^\x01\x02]+)\x02REAL_QID\x01([0-9]{1,9})\x02"
    rb"TIMER_OUT_MS\x010([0-9]{1,18})\x02\Z"
)
"""What a scheduled message of ours ends with."""
_RESERVED = (REAL_TOPIC, REAL_QUEUE_ID, ENQUEUE_MS, DEQUEUE_MS, ROLL_TIMES, ROLL_FROM)
_IN_THE_WAY = (b"REAL_", b"TIMER_DEL_", b"TIMER_ROLL_")
_HALF_TOPIC = HALF_TOPIC.encode()
TAIL_HEAD = b"\x02" + _DUE_NEEDLE + b"0"
TAIL_BYTES = len(TAIL_HEAD) + 13 + 1
"""The properties of a scheduled message of ours end with this, 13 digits of its time, and 0x02; in
records that do more than wait, something follows."""
_SECOND_MS = 1_000
_ROOM_BYTES = 100
"""For what `renewed` adds to the properties, and the store's checksum."""


class Scheduled(NamedTuple):
    """What a record of the timer queue says. `deletes` is a key, `renews` a queue offset."""

    due_ms: int
    topic: str
    unique_key: str | None
    deletes: str | None = None
    renews: int | None = None
    is_copy: bool = False
    """RocketMQ renewed it, and does not say which one: the last with its unique key."""


def scheduled(message: NewMessage, due_ms: int, deletes: str | None = None) -> NewMessage:
    """The message as it waits for its time; or deletes, before that, another one by its key."""
    properties = message.properties
    if properties and properties[-1] != 2:
        properties += b"\x02"
    # The usual case: of all that could be in the way, there is at most the time.
    if any(properties.find(name) >= 0 for name in _IN_THE_WAY) or properties.count(b"TIMER_") > 1:
        named = decode_properties(properties)
        for name in (*_RESERVED, DELETE_KEY):
            named.pop(name, None)
        properties = encode_properties(named)
    last = b"" if deletes is None else encode_properties({DELETE_KEY: deletes})
    way = _way(message.topic, message.queue_id)
    properties = b"%b%b%d\x02%b" % (properties, way, due_ms, last)
    if len(properties) > PROPERTIES_BYTES_MAX - _ROOM_BYTES:
        raise PropertiesTooLargeError(
            f"properties of {len(properties)} bytes, with the message's own topic, are over the "
            f"limit of {PROPERTIES_BYTES_MAX - _ROOM_BYTES} for timed messages"
        )
    # What `_replace` does, at a third of the price.
    return tuple.__new__(NewMessage, (TIMER_TOPIC, 0, message.body, properties, *message[4:]))


@functools.lru_cache(maxsize=4_096)
def _way(topic: str, queue_id: int) -> bytes:
    """What is added to the properties, up to the time."""
    return f"{REAL_TOPIC}\x01{topic}\x02{REAL_QUEUE_ID}\x01{queue_id}\x02{DUE_MS}\x010".encode()


def deletion(
    topic: str, unique_key: str, due_ms: int, group: str, now_ms: int, host: bytes
) -> NewMessage:
    """The record that takes a scheduled message back, as RocketMQ writes it."""
    if not group.isprintable():  # With a separator in it, it would be more than a group.
        group = ""
    properties = {
        "TAGS": RECALL_TAG,
        UNIQUE_KEY: unique_key,
        DELIVER_MS: str(due_ms),
        "BORN_TIMESTAMP": str(now_ms),
        "PGROUP": group,
        REAL_TOPIC: topic,
        REAL_QUEUE_ID: "0",
        DUE_MS: f"0{due_ms}",
        DELETE_KEY: delete_key(topic, unique_key),
    }
    return NewMessage(
        TIMER_TOPIC,
        0,
        b"0",
        encode_properties({name: value for name, value in properties.items() if value}),
        born_ms=now_ms,
        born_host=host,
        store_host=host,
    )


def delete_key(topic: str, unique_key: str) -> str:
    """What a deletion names a scheduled message by."""
    return f"{topic}+{unique_key}"


def delayed(message: NewMessage, level: int) -> NewMessage:
    """The message as it waits in the queue of a level."""
    properties = decode_properties(message.properties)
    properties[DELAY_LEVEL] = str(level)
    properties[REAL_TOPIC] = message.topic
    properties[REAL_QUEUE_ID] = str(message.queue_id)
    return message._replace(
        topic=SCHEDULE_TOPIC, queue_id=level - 1, properties=encode_properties(properties)
    )


# -- reading ---------------------------------------------------------------------------------------


def read(message: Message) -> Scheduled:
    """What a record of the timer queue says; `MessageError` if that is nothing useful."""
    properties = decode_properties(message.properties)
    topic, _ = _own_queue(properties)
    due_ms = _due_ms(message, properties)
    unique_key = properties.get(UNIQUE_KEY)
    deletes = properties.get(DELETE_KEY)
    if deletes is not None:
        return Scheduled(due_ms, topic, unique_key, deletes)
    renews = properties.get(ROLL_FROM, "")
    if renews.isascii() and renews.isdigit():
        return Scheduled(due_ms, topic, unique_key, renews=int(renews))
    return Scheduled(due_ms, topic, unique_key, is_copy=ROLL_TIMES in properties)


def _due_ms(message: Message, properties: dict[str, str]) -> int:
    text = properties.get(DUE_MS, "")
    if not (text.isascii() and text.isdigit() and len(text) <= 18):
        raise MessageError(f"{DUE_MS} {text!r} is no time")
    due_ms = int(text)
    if text[0] == "0":
        return due_ms
    # RocketMQ has written it, and rounded the time down by up to a second.
    name = next((name for name in UNITS_MS if name in properties), DUE_MS)
    wanted = properties[name]
    if name == DUE_MS or not _NUMBER.fullmatch(wanted):
        return due_ms
    unit_ms = UNITS_MS[name]
    wanted_ms = message.store_ms + int(wanted) * unit_ms if unit_ms else int(wanted)
    return max(due_ms, min(due_ms + _SECOND_MS, wanted_ms))


def _own_end(properties: bytes) -> re.Match[bytes] | None:
    """What we have put at the end of a scheduled message, if it is one of ours."""
    if properties[-CRC_PROPERTY_BYTES:].startswith(CRC_NAME):
        properties = properties[:-CRC_PROPERTY_BYTES]
    at = properties.rfind(_TOPIC_NEEDLE)
    return _OWN.match(properties, at) if at == 0 or properties[at - 1] == 2 else None


def _own_queue(properties: dict[str, str]) -> tuple[str, int]:
    topic, queue_id = properties.get(REAL_TOPIC), properties.get(REAL_QUEUE_ID, "")
    if not topic or topic == HALF_TOPIC or not (queue_id.isascii() and queue_id.isdigit()):
        raise MessageError(f"it has no topic and queue to go to ({topic!r}, {queue_id!r})")
    return topic, int(queue_id)


# -- what becomes of it ----------------------------------------------------------------------------


def delivered(message: Message, now_ms: int) -> NewMessage:
    """What consumers get; `MessageError` if the record does not say where."""
    found = _own_end(message.properties)
    if found is not None and found[1] != _HALF_TOPIC:
        topic, queue_id, due = found[1].decode(), int(found[2]), found[3].decode()
        kept = message.properties[: found.start()]
    else:
        properties = decode_properties(message.properties)
        topic, queue_id = _own_queue(properties)
        due = properties.get(DUE_MS, "").lstrip("0")
        for name in (*_RESERVED, DUE_MS):
            properties.pop(name, None)
        kept = encode_properties(properties)
    times = (
        f"{DUE_MS}\x01{due}\x02{ENQUEUE_MS}\x01{message.store_ms}\x02{DEQUEUE_MS}\x01{now_ms}\x02"
    ).encode()
    if len(kept) + len(times) <= PROPERTIES_BYTES_MAX:
        kept += times
    return written_again(message, topic, queue_id, kept, prepared_offset=message.prepared_offset)


def renewed(message: Message) -> NewMessage:
    properties = decode_properties(message.properties)
    _own_queue(properties)
    times = properties.get(ROLL_TIMES, "")
    properties[ROLL_TIMES] = str(int(times) + 1 if times.isascii() and times.isdigit() else 1)
    properties[ROLL_FROM] = str(message.queue_offset)
    return written_again(
        message,
        TIMER_TOPIC,
        0,
        encode_properties(properties),
        prepared_offset=message.prepared_offset,
    )


def restored(message: Message) -> NewMessage:
    """A message that a level has delayed, under its own topic; `MessageError` if it names none.

    Its times go, too: the level went before them, and they must not be obeyed now.
    """
    properties = decode_properties(message.properties)
    topic, queue_id = _own_queue(properties)
    for name in (DELAY_LEVEL, *UNITS_MS):
        properties.pop(name, None)
    return written_again(message, topic, queue_id, encode_properties(properties))
