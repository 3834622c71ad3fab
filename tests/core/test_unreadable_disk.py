"""A disk that cannot read some of its sectors: an error for those who ask, and the process lives.

A touch of a map where the disk cannot read ends the process (SIGBUS). A file that was cut short
under the map does the same, so that is done here, in processes of their own.
"""

import errno
import json
import os
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from onelog.core.access import SELF
from onelog.core.filters.tags import Subscription, subscribe
from onelog.core.queues.lending import Leased
from onelog.errors import OnelogError, StoreFailedError
from onelog.message import NewMessage, encode_properties
from onelog.store import consumequeue
from onelog.store.message_store import MessageStore
from tests import disk
from tests.core.world import World

ROOT = Path(__file__).resolve().parents[2]
COUNT = 300
BODY_BYTES = 8 * 1024


def write(folder: Path) -> None:
    """Three segments of messages, and a clean stop."""
    world = World(folder)
    world.topic("orders", 1)
    for number in range(COUNT):
        world.clock.advance(1_000)
        world.send("orders", 0, b"%05d" % number * (BODY_BYTES // 5), TAGS="a", KEYS=f"k{number}")
    world.close()


def forget_pages(folder: Path) -> None:
    """Have nothing of a store in the page cache, as after a restart of the machine."""
    for path in folder.rglob("*"):
        if path.is_file():
            fd = os.open(path, os.O_RDONLY)
            disk.fsync(fd)
            os.posix_fadvise(fd, 0, 0, os.POSIX_FADV_DONTNEED)
            os.close(fd)


def outcome(ask: Callable[[], Any]) -> str:
    """What came of a question: the type of the answer, or of the error."""
    try:
        return type(ask()).__name__
    except OnelogError as error:
        return type(error).__name__


def pulled(world: World, offset: int, subscription: Subscription | None = None) -> str:
    """A pull as the gateway makes it: what is cold is read first, and errors are answered."""

    def ask() -> bytes:
        return b"".join(world.pull(offset, subscription=subscription).slices)

    try:
        return ask()[88:93].decode()
    except OnelogError as error:
        return type(error).__name__


def popped(world: World) -> str:
    """A request as the gateway makes it; there is no worker, so that it is answered at once."""
    request = world.pop.request("readers", "orders", 0, 32, 60_000)
    told: list[Leased | OnelogError] = []
    world.core.groups.require("readers")

    def ask() -> bytes:
        world.broker.queues.lease(SELF, request, 0, lambda _, leased: told.append(leased))
        world.end_tick()
        (found,) = told
        if isinstance(found, OnelogError):
            raise found
        return b"".join(bytes(record) for part in found.parts for record in part.records)

    try:
        return ask()[88:93].decode()
    except OnelogError as error:
        return type(error).__name__


def look_into_a_log_without_its_second_segment(folder: Path) -> dict[str, Any]:
    """Ask for everything that lies where the disk cannot read, and for what lies beside it."""
    world = World(folder)
    store = world.store
    forget_pages(folder)
    lost = [n for n in range(COUNT) if store.entry_at("orders", 0, n)[0] // (1 << 20) == 1]  # type: ignore[index]
    at, size, _ = store.entry_at("orders", 0, lost[5])  # type: ignore[misc]
    assert len(store.log.segments[1].view) == 1 << 20, "it is mapped"
    os.truncate(store.log.segments[1].path, 0)
    tags = subscribe("orders", "a")
    selected = subscribe("orders", "TAGS = 'a'", "SQL92")
    return {
        "before": pulled(world, 0),
        "pull": pulled(world, lost[5]),
        "again": pulled(world, lost[5]),
        "last before": pulled(world, lost[0] - 1),
        "tags": pulled(world, lost[5], tags),
        "sql92": pulled(world, lost[5], selected),
        "after": pulled(world, lost[-1] + 1),
        "message": outcome(lambda: store.message_at(at)),
        "record": outcome(lambda: store.read_record(at, size)),
        "key": outcome(lambda: store.find_by_key("orders", f"k{lost[5]}")),
        "other key": outcome(lambda: store.find_by_key("orders", f"k{lost[0] - 1}")),
        "time": outcome(lambda: store.store_time("orders", 0, lost[5])),
        "by time": outcome(lambda: store.offset_by_time("orders", 0, world.begin_ms + 150_000)),
        "messages": outcome(lambda: store.messages("orders", 0, lost[5], 3)),
        "pop": popped(world),
        "retention": outcome(lambda: store.retention.run({}, manual=True)),
        "send": outcome(lambda: world.send("orders", 0, b"goes on")),
    }


def look_into_a_queue_without_its_file(folder: Path) -> dict[str, Any]:
    world = World(folder)
    assert pulled(world, 5) == "00005"
    consumequeue._PROBE_S = 0
    forget_pages(folder)
    os.truncate(next((folder / "consumequeue" / "orders" / "0").iterdir()), 0)
    return {
        "pull": pulled(world, 5),
        "pop": popped(world),
        "by time": outcome(lambda: world.store.offset_by_time("orders", 0, world.begin_ms)),
        "key": outcome(lambda: world.store.find_by_key("orders", "k5")),
    }


def look_into_an_index_without_its_file(folder: Path) -> dict[str, Any]:
    world = World(folder)
    forget_pages(folder)
    os.truncate(next((folder / "index").iterdir()), 0)
    return {
        "key": outcome(lambda: world.store.find_by_key("orders", "k5")),
        "pull": pulled(world, 5),
    }


def in_a_process(look: Callable[[Path], dict[str, Any]], folder: Path) -> dict[str, Any]:
    ended = subprocess.run(
        [sys.executable, "-m", __name__, look.__name__, str(folder)],
        cwd=ROOT,
        capture_output=True,
        text=True,
        timeout=60,
    )
    assert ended.returncode == 0, f"ended with {ended.returncode}: {ended.stderr[-2000:]}"
    found: dict[str, Any] = json.loads(ended.stdout)
    return found


def test_where_the_log_cannot_be_read_there_is_an_error_and_the_rest_goes_on(
    tmp_path: Path,
) -> None:
    write(tmp_path / "store")
    found = in_a_process(look_into_a_log_without_its_second_segment, tmp_path / "store")
    failed = "StoreFailedError"
    assert found == {
        "before": "00000",
        "pull": failed,
        "again": failed,
        "last before": found["last before"],
        "tags": failed,
        "sql92": failed,
        "after": found["after"],
        "message": failed,
        "record": failed,
        "key": failed,
        "other key": "list",
        "time": failed,
        "by time": failed,
        "messages": failed,
        "pop": "00000",
        "retention": found["retention"],
        "send": "Appended",
    }
    # What lies right beside it can be had.
    assert found["last before"].isdigit()
    assert found["after"].isdigit()
    assert found["retention"] in (failed, "RetentionRound")


def test_where_a_queue_or_the_index_cannot_be_read_there_is_an_error(tmp_path: Path) -> None:
    write(tmp_path / "store")
    assert in_a_process(look_into_a_queue_without_its_file, tmp_path / "store") == {
        "pull": "StoreFailedError",
        "pop": "StoreFailedError",
        "by time": "StoreFailedError",
        "key": "list",
    }
    write(tmp_path / "other")
    assert in_a_process(look_into_an_index_without_its_file, tmp_path / "other") == {
        "key": "StoreFailedError",
        "pull": "00005",
    }


# -- the disk says no: at the edge of the system ---------------------------------------------------


@pytest.fixture
def unreadable(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> World:
    """A store whose disk cannot read the page with message 7."""
    world = World(tmp_path / "store")
    world.topic("orders", 1)
    for number in range(20):
        properties = encode_properties({"KEYS": f"k{number}"})
        world.store.append([NewMessage("orders", 0, b"%05d" % number * 2400, properties)])
    world.close()
    world.start()
    at = world.store.entry_at("orders", 0, 7)[0]  # type: ignore[index]
    bad_page = (at + 4096) // 4096 * 4096
    pread, preadv = os.pread, os.preadv

    def touches(fd: int, begin: int, size: int) -> bool:
        is_log = "/commitlog/" in os.readlink(f"/proc/self/fd/{fd}")
        return is_log and begin < bad_page + 4096 and begin + size > bad_page

    def read(fd: int, size: int, begin: int) -> bytes:
        if not touches(fd, begin, size):
            return pread(fd, size, begin)
        if begin < bad_page:  # The kernel gives what there is before it.
            return pread(fd, bad_page - begin, begin)
        raise OSError(errno.EIO, "Input/output error")

    def read_into(fd: int, buffers: list[memoryview], begin: int, flags: int = 0) -> int:
        if touches(fd, begin, sum(map(len, buffers))):
            raise BlockingIOError
        return preadv(fd, buffers, begin, flags)

    monkeypatch.setattr(os, "pread", read)
    monkeypatch.setattr(os, "preadv", read_into)
    # The page cache has it all here, and would say so.
    monkeypatch.setattr("onelog.store.segment._MINCORE", None)
    return world


def test_messages_before_a_bad_sector_come_out_and_the_one_on_it_is_an_error(
    unreadable: World,
) -> None:
    world = unreadable
    got: list[int] = []
    offset = 0
    while True:
        cold = world.core.reader.read("orders", 0, offset, 32, 1 << 20)
        world.core.reader.warm(cold.ranges)
        try:
            found = world.core.reader.read("orders", 0, offset, 32, 1 << 20, cold_ok=True)
        except StoreFailedError:
            break
        got += range(offset, found.next_offset)
        offset = found.next_offset
    assert got == [0, 1, 2, 3, 4, 5, 6]
    with pytest.raises(StoreFailedError, match="Input/output error"):
        world.core.reader.read("orders", 0, 7, 32, 1 << 20, cold_ok=True)
    assert pulled(world, 9) == "00009"


def test_a_failing_disk_is_not_asked_again_and_again(
    unreadable: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    place = unreadable.store.entry_at("orders", 0, 7)
    assert place is not None
    with pytest.raises(StoreFailedError):
        unreadable.store.wait_readable([place[:2]])
    read_cold: list[int] = []
    monkeypatch.setattr(unreadable.store.log, "read_cold", lambda at, _: read_cold.append(at))
    with pytest.raises(StoreFailedError, match="Input/output error"):
        unreadable.store.wait_readable([place[:2]])
    assert read_cold == []


def test_a_store_with_a_bad_sector_opens_and_its_queues_can_be_rebuilt(
    unreadable: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = unreadable.folder
    unreadable.store.close()
    shutil.rmtree(folder / "consumequeue")
    with MessageStore.open(folder, unreadable.store_config, unreadable.clock) as store:
        assert store.entry_at("orders", 0, 7) is None
        kept = [int(m.queue_offset) for m in store.messages("orders", 0, 0, 99)]
        assert kept == [n for n in range(20) if n != 7]
        (found,) = store.damage
        assert "Input/output error" in found.reason


if __name__ == "__main__":
    look = globals()[sys.argv[1]]
    print(json.dumps(look(Path(sys.argv[2]))), flush=True)
    os._exit(0)  # The store's own end would flush what is not there.
