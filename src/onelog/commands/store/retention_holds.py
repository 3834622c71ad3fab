"""Which declared queues a store's log has to be kept for, from its files alone."""

import contextlib
from typing import Any

import msgspec

from onelog.core.durable.tables import LEASES_TOPIC, Table
from onelog.core.queues.declared import DeclaredQueues
from onelog.core.queues.journal import LEASES_FILE
from onelog.core.queues.ledger import TABLE, Ledger, ledger_of
from onelog.core.queues.retention_holds import RetentionHold, all_ledgers, holds_of
from onelog.errors import OnelogError
from onelog.names import TABLES_FILE, TABLES_TOPIC
from onelog.record.decode import decode_messages
from onelog.store.reader import StoreReader

_READ_COUNT, _READ_BYTES = 1_000, 1 << 20


class _Ledgers:
    """The table of ledgers, as far as it is needed here."""

    name = TABLE

    def __init__(self) -> None:
        self.known: dict[str, Ledger] = {}

    def apply(self, key: str, value: Any) -> None:
        if value is None:
            self.known.pop(key, None)
        else:
            if key not in self.known:
                self.known[key] = ledger_of(key)
            self.known[key].apply(value)

    def parts(self) -> list[dict[str, Any]]:
        return []


def holds_in(store: StoreReader) -> list[RetentionHold]:
    """Queues with messages that are not done; none, if what is recorded of them is unreadable."""
    ledgers, declared = _Ledgers(), DeclaredQueues()
    try:
        _read(store, LEASES_FILE, LEASES_TOPIC, ledgers)
        _read(store, TABLES_FILE, TABLES_TOPIC, declared)
        return holds_of(store, all_ledgers(store, ledgers.known, declared))
    except (OnelogError, msgspec.MsgspecError, KeyError, TypeError, ValueError):
        return []


def _read(store: StoreReader, file: str, topic: str, table: Table) -> None:
    """Bring a table to its last recorded state: the snapshot in a file, and what came since."""
    offset, needle = 0, b'["%b",' % table.name.encode()
    with contextlib.suppress(FileNotFoundError):
        snapshot = msgspec.json.decode((store.folder / "config" / file).read_bytes())
        offset = snapshot["next_offset"]
        for key, value in snapshot["tables"].get(table.name, {}).items():
            table.apply(key, value)
    offset = max(offset, int(store.min_offset(topic, 0)))
    while offset < store.max_offset(topic, 0):
        read = store.read_now(topic, 0, offset, _READ_COUNT, _READ_BYTES)
        for part in read.slices:
            for message in decode_messages(part):
                body = bytes(message.body)
                for name, key, value in msgspec.json.decode(body) if needle in body else ():
                    if name == table.name:
                        table.apply(key, value)
        if read.next_offset <= offset:
            break
        offset = read.next_offset
