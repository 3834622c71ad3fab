"""What RocketMQ's senders want of a message: properties say it, and become an `Intent` of the core.

    TRAN_MSG true                                     half: it waits for the end of a transaction
    DELAY n                                           the delay level
    TIMER_DELAY_SEC, TIMER_DELAY_MS, TIMER_DELIVER_MS the time; a level goes before it
    TIMER_DEL_UNIQKEY                                 with a time: take a message back that waits
    TIMER_OUT_MS                                      it has been through the wheel, and stays out

A name may be in a value, too: bytes that are found are only a reason to look closely.
"""

import re

from onelog.core.publish import Intent
from onelog.core.schedule.records import DELETE_KEY, DUE_MS, UNITS_MS
from onelog.core.transactions.half_records import HALF_MARK
from onelog.errors import MessageError
from onelog.message import DELAY_LEVEL, property_bytes, property_value

_LEVEL_NEEDLE = DELAY_LEVEL.encode() + b"\x01"
_TIMED_NEEDLE = b"TIMER_DEL"
"""In all of TIMER_DELAY_SEC, TIMER_DELAY_MS, TIMER_DELIVER_MS and TIMER_DEL_UNIQKEY."""
_HALF_NEEDLE = HALF_MARK.encode() + b"\x01"
_DUE_NEEDLE = DUE_MS.encode() + b"\x01"
NEEDLES = (_LEVEL_NEEDLE, _TIMED_NEEDLE, _HALF_NEEDLE)
"""Properties with none of these in them ask for nothing."""
_UNITS_MS = {name.encode(): unit_ms for name, unit_ms in UNITS_MS.items()}
_NUMBER = re.compile(rb"[+-]?[0-9]{1,18}")


def intent_of(properties: bytes, now_ms: int) -> Intent | None:
    """What the message is to become; None if it is just to be stored."""
    # `find` is half the price of `in`.
    if properties.find(_HALF_NEEDLE) >= 0 and _is_half(properties):
        return Intent(half=True)
    level = _level(properties) if properties.find(_LEVEL_NEEDLE) >= 0 else 0
    if level > 0:
        return Intent(delay_level=level)
    due_ms = wanted_ms(properties, now_ms) if properties.find(_TIMED_NEEDLE) >= 0 else None
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
