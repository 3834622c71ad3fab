"""What RocketMQ's senders say in a message's properties: what may be stored, and what they want.

Some properties are the broker's to set, and are taken out; a message without a unique key gets one.
Most messages differ in their unique key only. So what surrounds that key is remembered, if nothing
in it asks for more than storing, and another message with the same around it need not be searched.

What a message is to become is an `Intent` of the core:

    TRAN_MSG true                                     half: it waits for the end of a transaction
    DELAY n                                           the delay level
    TIMER_DELAY_SEC, TIMER_DELAY_MS, TIMER_DELIVER_MS the time; a level goes before it
    TIMER_DEL_UNIQKEY                                 with a time: take a message back that waits
    TIMER_OUT_MS                                      it has been through the wheel, and stays out

A name may be in a value, too: bytes that are found are only a reason to look closely.
"""

import functools
import itertools
import os
import re
import time
from collections.abc import Callable
from operator import itemgetter

from onelog.clock import Clock
from onelog.core.publish import Intent
from onelog.core.schedule.records import DELETE_KEY, DUE_MS, UNITS_MS
from onelog.core.transactions.half_records import HALF_MARK
from onelog.errors import MessageError, MessageTooLargeError
from onelog.message import DELAY_LEVEL, RECORD_CRC, UNIQUE_KEY, Part, property_bytes, property_value
from onelog.record.inner_batch import split_batch
from onelog.rocketmq.priorities import LITE_NEEDLE, PRIORITY_NEEDLE

_LEVEL_NEEDLE = DELAY_LEVEL.encode() + b"\x01"
_TIMED_NEEDLE = b"TIMER_DEL"
"""In all of TIMER_DELAY_SEC, TIMER_DELAY_MS, TIMER_DELIVER_MS and TIMER_DEL_UNIQKEY."""
_HALF_NEEDLE = HALF_MARK.encode() + b"\x01"
_DUE_NEEDLE = DUE_MS.encode() + b"\x01"
NEEDLES = (_LEVEL_NEEDLE, _TIMED_NEEDLE, _HALF_NEEDLE)
"""Properties with none of these in them ask for nothing."""
_UNITS_MS = {name.encode(): unit_ms for name, unit_ms in UNITS_MS.items()}
_NUMBER = re.compile(rb"[+-]?[0-9]{1,18}")


def intent_of(properties: bytes, clock: Clock) -> Intent | None:
    """What the message is to become; None if it is just to be stored."""
    # `find` is half the price of `in`.
    if properties.find(_HALF_NEEDLE) >= 0 and _is_half(properties):
        return Intent(half=True)
    level = _level(properties) if properties.find(_LEVEL_NEEDLE) >= 0 else 0
    if level > 0:
        return Intent(delay_level=level)
    if properties.find(_TIMED_NEEDLE) < 0:
        return None
    now_ms = clock.now_ms()
    due_ms = wanted_ms(properties, now_ms)
    if due_ms is None:
        return None
    recalls = property_value(properties, DELETE_KEY)
    if due_ms > now_ms:
        return Intent(due_ms, recalls=recalls)
    if recalls is not None:
        raise MessageError("timer message illegal: what it deletes has been delivered")
    return None


def _is_half(properties: bytes) -> bool:
    return (property_bytes(properties, _HALF_NEEDLE) or b"").lower() == b"true"


def _level(properties: bytes) -> int:
    text = (property_bytes(properties, _LEVEL_NEEDLE) or b"0").decode("utf-8", "replace")
    try:
        return int(text)
    except ValueError:
        raise MessageError(f"delay level {text!r} is not a number") from None


def is_timed(properties: bytes) -> bool:
    """Whether the sender wants a time."""
    return properties.find(_TIMED_NEEDLE) >= 0 and wanted_ms(properties, 0) is not None


def wanted_ms(properties: bytes, now_ms: int) -> int | None:
    """When the sender wants the message to be delivered; None if it does not say."""
    at = properties.find(_TIMED_NEEDLE)
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


UNIQUE_KEY_NEEDLE = UNIQUE_KEY.encode() + b"\x01"
INNER_NEEDLE = b"INNER_"
"""How the properties begin that say into which queues, and how often, a record is entered. They are
the store's; from a client they would count at the next recovery."""
POP_NEEDLE = b"POP_"
CRC_NEEDLE = RECORD_CRC.encode()
_NOT_PLAIN = (
    *NEEDLES,
    INNER_NEEDLE,
    POP_NEEDLE,
    CRC_NEEDLE,
    UNIQUE_KEY_NEEDLE,
    PRIORITY_NEEDLE,
    LITE_NEEDLE,
)
_P, _HASH = POP_NEEDLE[0], ord("#")
_RESERVED = frozenset((b"POP_CK", b"POP_CK_OFFSET", b"1ST_POP_TIME", CRC_NEEDLE))
"""More that only brokers set. A message that was popped from one and is sent on to another brings
them along, and its next reader would take the old receipt for his."""
BATCH_MAX = 32_768
_PROPERTIES: Callable[[Part], bytes] = itemgetter(2)
_counter = itertools.count()
_FORMS_MAX = 1_024
_FORM_BYTES_MAX = 512
_MISSES_PER_FORM = 16
"""Learning one of so many keeps messages that are all different from filling the table."""


class PlainForms(dict[tuple[bytes, bytes, bytes], bytes]):
    """What comes before the unique key, whether it is ended, what follows; and the missing end."""

    misses = 0

    def _missed(self, properties: bytes) -> None:
        """A message whose properties were searched: now and then, learn its form."""
        self.misses += 1
        if self.misses % _MISSES_PER_FORM:
            return
        before, _, rest = properties.partition(UNIQUE_KEY_NEEDLE)
        unique, ended, after = rest.partition(b"\x02")
        around = before + b"\x02" + after
        if (
            unique
            and (not before or before[-1] == 2)
            and len(around) <= _FORM_BYTES_MAX
            and not any(around.find(needle) >= 0 for needle in _NOT_PLAIN)
        ):
            if len(self) >= _FORMS_MAX:
                self.clear()
            self[before, ended, after] = b"" if properties[-1] == 2 else b"\x02"

    def storable(self, properties: bytes, store_host: bytes) -> tuple[bytes, bytes]:
        """Properties as they may be stored, ended, and with a unique key; and that key."""
        sent = properties
        properties = without_reserved(properties)
        if properties and properties[-1] != 2:
            properties += b"\x02"
        unique = property_bytes(properties, UNIQUE_KEY_NEEDLE)
        if unique is None:
            unique = new_unique_key(store_host).encode()
            return properties + UNIQUE_KEY_NEEDLE + unique + b"\x02", unique
        self._missed(sent)
        return properties, unique


def without_reserved(properties: bytes) -> bytes:
    """The properties without those that only the broker may set."""
    if not _may_have_reserved(properties):
        return properties
    kept = []
    for each in properties.split(b"\x02"):
        name = each.partition(b"\x01")[0]
        if not name.startswith(INNER_NEEDLE) and name not in _RESERVED:
            kept.append(each)
    return b"\x02".join(kept)


def _may_have_reserved(properties: bytes) -> bool:
    # Most properties lack even the one letter, and to know that costs a third of a needle.
    return (
        (_P in properties and properties.find(POP_NEEDLE) >= 0)
        or (_HASH in properties and properties.find(CRC_NEEDLE) >= 0)
        or bool(properties.partition(INNER_NEEDLE)[1])
    )


@functools.lru_cache(maxsize=256)
def shared_properties(properties: str) -> bytes:
    """Properties of a whole batch, as each of its messages gets them: its id is not theirs."""
    kept = without_reserved(properties.encode()).split(b"\x02")
    return b"".join(
        each + b"\x02" for each in kept if each and not each.startswith(UNIQUE_KEY_NEEDLE)
    )


def checked_parts(source: bytes) -> list[Part]:
    """The messages of a batch, without properties that are not their sender's to set."""
    parts = split_batch(source)
    if len(parts) > BATCH_MAX:
        raise MessageTooLargeError(f"a batch of {len(parts)} messages; {BATCH_MAX} is the most")
    # One look at all properties tells that no message has such a one. At theirs only: bodies are
    # long, and searched slowly.
    properties = b"\x02".join(map(_PROPERTIES, parts))
    if _may_have_reserved(properties) or is_timed(properties):
        parts = [(flag, body, _checked(properties)) for flag, body, properties in parts]
    return parts


def _checked(properties: bytes) -> bytes:
    properties = without_reserved(properties)
    if is_timed(properties):
        raise MessageError("a message of a batch cannot be timed: send it by itself")
    return properties


def new_unique_key(host: bytes) -> str:
    """An id as RocketMQ's clients make it, for a message whose sender gave it none."""
    now_ms = time.time_ns() // 1_000_000
    month = time.strftime("%Y-%m-01", time.localtime(now_ms / 1000))
    month_ms = int(time.mktime(time.strptime(month, "%Y-%m-%d"))) * 1000
    return (
        (
            host[:-4]
            + (os.getpid() & 0xFFFF).to_bytes(2, "big")
            + (id(_counter) & 0xFFFFFFFF).to_bytes(4, "big")
            + (now_ms - month_ms & 0xFFFFFFFF).to_bytes(4, "big")
            + (next(_counter) & 0xFFFF).to_bytes(2, "big")
        )
        .hex()
        .upper()
    )
