"""Properties as bytes, and the one way in which a stored message is written once more.

A message is written again when it is redelivered, when it was postponed, and when its transaction
ends. What the store has added to its properties is about the old record, and the store adds it
anew: a checksum that is carried along would be wrong, and INNER_* would count at the next recovery.

Invariant: `written_again` keeps body, flag, birth and form; the rest is what the caller says.
"""

from onelog.message import (
    INNER_COUNT,
    MULTI_DISPATCH,
    MULTI_QUEUE_OFFSET,
    RECORD_CRC,
    Message,
    NewMessage,
)

_STORES_OWN = tuple(
    name.encode() + b"\x01"
    for name in (RECORD_CRC, INNER_COUNT, MULTI_DISPATCH, MULTI_QUEUE_OFFSET)
)
_MARKS = b"__CRC32#", b"INNER_"


def written_again(
    message: Message,
    topic: str,
    queue_id: int,
    properties: bytes,
    *,
    sys_flag: int | None = None,
    store_host: bytes | None = None,
    reconsume_times: int | None = None,
    prepared_offset: int = 0,
) -> NewMessage:
    """A stored message for another place; `properties` may have what is the store's own."""
    # What calling the class does, at half the price: timers and transactions end here.
    return tuple.__new__(
        NewMessage,
        (
            topic,
            queue_id,
            message.body,
            without_stores_own(properties),
            message.flag,
            message.sys_flag if sys_flag is None else sys_flag,
            message.born_ms,
            message.born_host,
            message.store_host if store_host is None else store_host,
            message.reconsume_times if reconsume_times is None else reconsume_times,
            prepared_offset,
            message.inner_count,
            (),
        ),
    )


def without_stores_own(properties: bytes) -> bytes:
    """The properties without those that the store adds to a record."""
    if properties.find(_MARKS[0]) >= 0 or properties.find(_MARKS[1]) >= 0:
        for needle in _STORES_OWN:
            properties = without_property(properties, needle)
    return properties


def with_property(properties: bytes, needle: bytes, value: bytes) -> bytes:
    """The properties with this one, whatever its value was; the needle is its name and 0x01."""
    properties = without_property(properties, needle)
    if properties and properties[-1] != 2:
        properties += b"\x02"
    return properties + needle + value + b"\x02"


def without_property(properties: bytes, needle: bytes) -> bytes:
    """The properties without this one, however often it is there."""
    at = properties.find(needle)
    while at >= 0:
        if at and properties[at - 1] != 2:
            at = properties.find(needle, at + 1)
            continue
        end = properties.find(b"\x02", at) + 1
        properties = properties[:at] + (properties[end:] if end else b"")
        at = properties.find(needle, at)
    return properties
