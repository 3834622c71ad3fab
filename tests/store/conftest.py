"""Small files and a clock that stands still, so that a test reaches every edge quickly."""

from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from onelog.clock import ManualClock
from onelog.config import StoreConfig
from onelog.store import queue_files
from onelog.store.message_store import MessageStore

SMALL = StoreConfig(
    segment_bytes=16 * 1024,
    queue_file_entries=50,
    index_slots=64,
    index_entries=200,
    body_bytes_max=4096,
    # Nothing is flushed in the middle of a test that did not ask for it, however long it takes.
    flush_interval_ms=60_000,
    flush_thorough_ms=600_000,
    checkpoint_interval_ms=600_000,
)

OpenStore = Callable[..., MessageStore]


@pytest.fixture
def clock() -> ManualClock:
    return ManualClock()


@pytest.fixture
def open_store(tmp_path: Path, clock: ManualClock) -> Iterator[OpenStore]:
    """Opens the store of this test, again and again; closes what is left open."""
    opened: list[MessageStore] = []

    def open_it(config: StoreConfig = SMALL, folder: Path | None = None) -> MessageStore:
        store = MessageStore.open(folder or tmp_path / "store", config, clock)
        opened.append(store)
        return store

    yield open_it
    for store in opened:
        store.close()


@pytest.fixture(autouse=True)
def _files_of_queues_are_there_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """However busy the machine is, as on a disk that is quick."""
    monkeypatch.setattr(queue_files, "WAIT_SECONDS", 60.0)
