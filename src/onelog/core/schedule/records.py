"""The records of timed messages, in RocketMQ's form.

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

from onelog.core.catalog.topics import HALF_TOPIC, TIMER_TOPIC
from onelog.core.schedule.levels import REAL_QUEUE_ID, REAL_TOPIC
from onelog.errors import MessageError, PropertiesTooLargeError
from onelog.message import (
    PROPERTIES_BYTES_MAX,
    RECORD_CRC,
    UNIQUE_KEY,
    Message,
    NewMessage,
    decode_properties,
    encode_properties,
    property_bytes,
)
from onelog.store.record import CRC_PROPERTY_BYTES

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
NEEDLE = b"TIMER_DEL"
"""In the properties of every message that may be a timed one or a deletion."""

_UNITS_MS = {DELAY_SECONDS.encode(): 1_000, DELAY_MS.encode(): 1, DELIVER_MS.encode(): 0}
"""The properties that are times, and what they count in; 0 for a point in time. As RocketMQ has
it, the first of them that is there counts."""
_DUE_NEEDLE = DUE_MS.encode() + b"\x01"
_LEVEL_NEEDLE = b"DELAY\x01"
_TOPIC_NEEDLE = REAL_TOPIC.encode() + b"\x01"
_NUMBER = re.compile(rb"[+-]?[0-9]{1,18}")
_OWN = re.compile(
    rb"REAL_TOPIC\x01([^\x01\x02]+)\x02REAL_QID\x01([0-9]{1,9})\x02"
    rb"TIMER_OUT_MS\x010([0-9]{1,18})\x02\Z"
)
"""What a scheduled message of ours ends with."""
_RESERVED = (REAL_TOPIC, REAL_QUEUE_ID, ENQUEUE_MS, DEQUEUE_MS, ROLL_TIMES, ROLL_FROM)
_CRC_NEEDLE = RECORD_CRC.encode() + b"\x01"
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


def wanted_ms(properties: bytes, now_ms: int) -> int | None:
    """When the sender wants the message to be delivered; None if it does not say.

    A delay level goes before a time, and a message that has been through the wheel stays out.
    """
    at = properties.find(NEEDLE)
    end = properties.find(b"\x02", at)
    name, _, text = properties[at:end].partition(b"\x01")
    unit_ms = _UNITS_MS.get(name)
    # The usual case: there is one such property, it stands alone, and nothing is in its way.
    if (
        unit_ms is None
        or not text.isdigit()
        or len(text) > 18
        or properties.count(b"TIMER_") > 1
        or properties.find(_LEVEL_NEEDLE) >= 0
        or (at and properties[at - 1] != 2)
        or end < 0
    ):
        return _wanted_carefully(properties, now_ms)
    return now_ms + int(text) * unit_ms if unit_ms else int(text)


def _wanted_carefully(properties: bytes, now_ms: int) -> int | None:
    """`wanted_ms` of any properties."""
    if property_bytes(properties, _DUE_NEEDLE) is not None:
        return None
    level = property_bytes(properties, _LEVEL_NEEDLE)
    if level is not None and level.isdigit() and int(level) > 0:
        return None
    for name, unit_ms in _UNITS_MS.items():
        text = property_bytes(properties, name + b"\x01")
        if text is not None:
            if not _NUMBER.fullmatch(text):
                raise MessageError(
                    f"timer message illegal: {name.decode()} {text[:40]!r} is not a number"
                )
            return now_ms + int(text) * unit_ms if unit_ms else int(text)
    return None


def is_deletion(properties: bytes) -> bool:
    """Whether the message is to delete another one."""
    return property_bytes(properties, DELETE_KEY.encode() + b"\x01") is not None


def scheduled(message: NewMessage, due_ms: int) -> NewMessage:
    """The message, which wants a time, as it waits for it."""
    properties = message.properties
    if properties and properties[-1] != 2:
        properties += b"\x02"
    last = b""
    # The usual case: of all that could be in the way, there is just the time.
    if properties.count(b"TIMER_") > 1 or properties.find(b"REAL_") >= 0:
        properties, last = _freed(properties)
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


def _freed(properties: bytes) -> tuple[bytes, bytes]:
    """Properties without those that are ours to set, and what has to stand at their end."""
    named = decode_properties(properties)
    for name in _RESERVED:
        named.pop(name, None)
    key = named.pop(DELETE_KEY, None)
    last = b"" if key is None else encode_properties({DELETE_KEY: key})
    return encode_properties(named), last


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


# -- reading ---------------------------------------------------------------------------------------


def read(message: Message) -> Scheduled:
    """What a record of the timer queue says; `MessageError` if that is nothing useful."""
    properties = decode_properties(message.properties)
    topic, _ = _own_place(properties)
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
    unrounded = {name: text for name, text in properties.items() if name != DUE_MS}
    try:
        wanted = wanted_ms(encode_properties(unrounded), message.store_ms)
    except MessageError:
        return due_ms
    return due_ms if wanted is None else max(due_ms, min(due_ms + _SECOND_MS, wanted))


def _own_end(properties: bytes) -> re.Match[bytes] | None:
    """What we have put at the end of a scheduled message, if it is one of ours."""
    if properties[-CRC_PROPERTY_BYTES:].startswith(_CRC_NEEDLE):
        properties = properties[:-CRC_PROPERTY_BYTES]
    at = properties.rfind(_TOPIC_NEEDLE)
    return _OWN.match(properties, at) if at == 0 or properties[at - 1] == 2 else None


def _own_place(properties: dict[str, str]) -> tuple[str, int]:
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
        topic, queue_id = _own_place(properties)
        due = properties.get(DUE_MS, "").lstrip("0")
        for name in (*_RESERVED, DUE_MS, RECORD_CRC):
            properties.pop(name, None)
        kept = encode_properties(properties)
    times = (
        f"{DUE_MS}\x01{due}\x02{ENQUEUE_MS}\x01{message.store_ms}\x02{DEQUEUE_MS}\x01{now_ms}\x02"
    ).encode()
    if len(kept) + len(times) <= PROPERTIES_BYTES_MAX:
        kept += times
    return NewMessage(
        topic,
        queue_id,
        message.body,
        kept,
        message.flag,
        message.sys_flag,
        message.born_ms,
        message.born_host,
        message.store_host,
        message.reconsume_times,
        message.prepared_offset,
    )


def renewed(message: Message) -> NewMessage:
    """The scheduled message once more."""
    properties = decode_properties(message.properties)
    _own_place(properties)
    properties.pop(RECORD_CRC, None)
    times = properties.get(ROLL_TIMES, "")
    properties[ROLL_TIMES] = str(int(times) + 1 if times.isascii() and times.isdigit() else 1)
    properties[ROLL_FROM] = str(message.queue_offset)
    return NewMessage(
        TIMER_TOPIC,
        0,
        message.body,
        encode_properties(properties),
        message.flag,
        message.sys_flag,
        message.born_ms,
        message.born_host,
        message.store_host,
        message.reconsume_times,
        message.prepared_offset,
    )
