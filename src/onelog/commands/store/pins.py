"""Which declared queues a store's log has to be kept for, from its files alone."""

import contextlib
from typing import Any

import msgspec

from onelog.core.durable.tables import LEASES_TOPIC
from onelog.core.leases.journal import LEASES_FILE
from onelog.core.workqueues.keeping import Pin, pins_of
from onelog.core.workqueues.log_shelf import TABLE, LogShelf, shelf_of
from onelog.errors import OnelogError
from onelog.record.decode import decode_messages
from onelog.store.reader import StoreReader

_NEEDLE = b'["%b",' % TABLE.encode()
_READ_COUNT, _READ_BYTES = 1_000, 1 << 20


def pins_in(store: StoreReader) -> list[Pin]:
    """Queues with messages that are not done; none, if what is recorded of them is unreadable."""
    try:
        return pins_of(store, _shelves(store).values())
    except (OnelogError, msgspec.MsgspecError, KeyError, TypeError, ValueError):
        return []


def _shelves(store: StoreReader) -> dict[str, LogShelf]:
    shelves: dict[str, LogShelf] = {}
    offset = 0
    with contextlib.suppress(FileNotFoundError):
        snapshot = msgspec.json.decode((store.folder / "config" / LEASES_FILE).read_bytes())
        offset = snapshot["next_offset"]
        for key, value in snapshot["tables"].get(TABLE, {}).items():
            _apply(shelves, key, value)
    offset = max(offset, int(store.min_offset(LEASES_TOPIC, 0)))
    while offset < store.max_offset(LEASES_TOPIC, 0):
        read = store.read_now(LEASES_TOPIC, 0, offset, _READ_COUNT, _READ_BYTES)
        for part in read.slices:
            for message in decode_messages(part):
                body = bytes(message.body)
                for name, key, value in msgspec.json.decode(body) if _NEEDLE in body else ():
                    if name == TABLE:
                        _apply(shelves, key, value)
        if read.next_offset <= offset:
            break
        offset = read.next_offset
    return shelves


def _apply(shelves: dict[str, LogShelf], key: str, value: Any) -> None:
    if value is None:
        shelves.pop(key, None)
    else:
        if key not in shelves:
            shelves[key] = shelf_of(key)
        shelves[key].apply(value)
