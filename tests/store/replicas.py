"""Two stores side by side: what one knows compared with what another knows."""

import itertools
from dataclasses import replace
from pathlib import Path

from onelog.clock import ManualClock
from onelog.config import StoreConfig
from onelog.store.message_store import MessageStore
from tests.store.conftest import SMALL

TINY = replace(SMALL, segment_bytes=8192, queue_file_entries=10)


def open_gated(folder: Path, config: StoreConfig = TINY) -> MessageStore:
    return MessageStore.open(folder, config, ManualClock(), gated=True)


def log_bytes(store: MessageStore, end: int | None = None) -> bytes:
    """All bytes of a log."""
    end = store.tail.raw_end if end is None else end
    log = store.log
    parts = (each.read(0, min(each.size, end - each.start)) for each in log.segments)
    return b"".join(
        part for part, each in zip(parts, log.segments, strict=True) if each.start < end
    )


Known = dict[tuple[str, int], list[tuple[int, int, int]]]


def queues_of(store: MessageStore, end: int | None = None) -> Known:
    """The entries of all queues, or those of records before a log offset."""
    return {
        (queue.topic, queue.queue_id): entries
        for queue in store.queue_table
        if (
            entries := [
                each
                for each in queue.entries(queue.start, queue.end - queue.start)
                if end is None or each[0] < end
            ]
        )
    }


def keys_of(store: MessageStore, end: int | None = None) -> list[tuple[int, int]]:
    """The hashes and places of all keys, in the order of the index."""
    store.index.build()
    rows = itertools.chain.from_iterable(
        file._read_entries(file.next_entry - 1).tolist() for file in store.index.files
    )
    return [(row[0], row[1]) for row in rows if end is None or row[1] < end]


def copy_log(master: MessageStore, follower: MessageStore, step: int, until: int) -> None:
    """Send the bytes of a log up to an offset, in pieces."""
    while follower.tail.raw_end < until:
        at = follower.tail.raw_end
        piece = master.tail.read_raw(at, min(step, until - at))
        follower.tail.append_raw(at, bytes(piece))
