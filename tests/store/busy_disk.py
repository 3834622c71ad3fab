"""A disk that is too busy to make files of queues."""

import contextlib
import os
import threading
from collections.abc import Iterator

import pytest

from onelog.store import queue_files


@contextlib.contextmanager
def busy_disk(monkeypatch: pytest.MonkeyPatch) -> Iterator[threading.Event]:
    """No folder of a queue is made or moved until the event is set, or the block ends."""
    monkeypatch.setattr(queue_files, "WAIT_SECONDS", 0.001)
    works = threading.Event()
    makedirs, rename = os.makedirs, os.rename

    def await_disk() -> None:
        if threading.current_thread().name.startswith("onelog-queue-files"):
            assert works.wait(60)

    def make(*args: object, **more: object) -> None:
        await_disk()
        makedirs(*args, **more)  # type: ignore[arg-type]

    def move(*args: object) -> None:
        await_disk()
        rename(*args)  # type: ignore[arg-type]

    monkeypatch.setattr(os, "makedirs", make)
    monkeypatch.setattr(os, "rename", move)
    try:
        yield works
    finally:
        works.set()
