"""A store with messages of every kind in it, and ways to damage it.

Run as a program it appends to a store, and deletes its oldest segments, until its stdin ends:

    python -m tests.store.samples DIR
"""

import select
import sys
from collections.abc import Iterator
from pathlib import Path

from onelog.clock import ManualClock
from onelog.config import StoreConfig
from onelog.message import NewMessage, encode_properties
from onelog.store.message_store import MessageStore
from tests.e2e.store_corpus import corpus

SAMPLE = StoreConfig(
    segment_bytes=16 * 1024, queue_file_entries=20, index_slots=64, index_entries=200
)


def sample_messages(count: int) -> Iterator[NewMessage]:
    """Topics, tags, keys, hosts, transactions, delays, inner batches, extra queues."""
    for number, message in enumerate(corpus(3, count, long_topic=True)):
        if number % 29 == 5:
            yield message._replace(
                topic="Orders", sys_flag=0, inner_count=5, extra_queues=("fan-out",)
            )
        elif len(message.body) < 4000:
            yield message


def write_sample(folder: Path, count: int = 150, config: StoreConfig = SAMPLE) -> None:
    """A store that was stopped cleanly."""
    clock = ManualClock()
    with MessageStore.open(folder, config, clock) as store:
        for message in sample_messages(count):
            store.append([message])
            clock.advance(300)


def append_plain(store: MessageStore, topic: str, count: int) -> None:
    """Messages that say which one they are."""
    for number in range(count):
        properties = encode_properties({"TAGS": f"t{number % 3}", "KEYS": f"{topic}-{number}"})
        store.append([NewMessage(topic, number % 2, f"{topic} {number}".encode(), properties)])


def flip(path: Path, at: int, bit: int = 0x10) -> None:
    """Change one bit of a file."""
    content = bytearray(path.read_bytes())
    content[at] ^= bit
    path.write_bytes(content)


def overwrite(path: Path, at: int, content: bytes) -> None:
    """Change bytes of a file."""
    with open(path, "r+b") as raw:
        raw.seek(at)
        raw.write(content)


def _write_until_told() -> None:
    clock = ManualClock()
    config = StoreConfig(
        segment_bytes=16 * 1024,
        queue_file_entries=20,
        index_slots=64,
        index_entries=200,
        retention_ms=3_000,
    )
    with MessageStore.open(Path(sys.argv[1]), config, clock) as store:
        for message in sample_messages(100):
            store.append([message])
        print("ready", flush=True)
        number = 0
        while not select.select([sys.stdin], [], [], 0.001)[0]:
            store.append([*sample_messages(7)])
            append_plain(store, "busy", 4)
            clock.advance(50)
            number += 1
            if number % 20 == 0:
                store.retention.run({}, manual=True)


if __name__ == "__main__":
    _write_until_told()
