"""The store as a whole: append, close, open, refuse."""

import contextlib
import itertools
import json
import os
import resource
import select
import shutil
import subprocess
import sys
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path

import pytest

from onelog.clock import ManualClock
from onelog.config import StoreConfig
from onelog.errors import (
    InvalidQueueError,
    InvalidTopicError,
    MessageError,
    MessageTooLargeError,
    NotAStoreError,
    OnelogError,
    PropertiesTooLargeError,
    StoreBusyError,
    StoreClosedError,
    StoreFullError,
    StoreLockedError,
    StoreVersionError,
)
from onelog.message import NewMessage, NewRun, SysFlag, encode_properties
from onelog.store.message_store import MessageStore
from onelog.store.reader import FetchStatus
from onelog.store.retention import space_usage
from tests.client.forking import in_a_child
from tests.store.conftest import SMALL, OpenStore
from tests.waiting import wait_until


def bodies(store: MessageStore, topic: str, queue_id: int = 0, offset: int = 0) -> list[bytes]:
    return [bytes(m.body) for m in store.messages(topic, queue_id, offset, 10_000)]


def test_a_list_over_several_topics_gets_places_in_log_and_queues(open_store: OpenStore) -> None:
    store = open_store()
    places = store.append([NewMessage(f"t{n % 2}", n % 3, b"%d" % n) for n in range(12)])
    assert [place.queue_offset for place in places] == [0] * 6 + [1] * 6
    assert all(b.log_offset == a.log_offset + a.size for a, b in itertools.pairwise(places))
    assert bodies(store, "t0", 0) == [b"0", b"6"]
    assert store.queues() == {"t0": [0, 1, 2], "t1": [0, 1, 2]}


def test_an_empty_list_is_nothing(open_store: OpenStore) -> None:
    store = open_store()
    assert store.append([]) == []
    assert store.log_end == 0


def test_the_whole_list_is_one_write(
    open_store: OpenStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    store = open_store()
    store.append([NewMessage("warm", 0, b"")])
    calls: list[int] = []
    pwritev = os.pwritev

    def counting(fd: int, buffers: list[bytes], at: int) -> int:
        calls.append(at)
        return pwritev(fd, buffers, at)

    monkeypatch.setattr(os, "pwritev", counting)
    store.append([NewMessage(f"t{n}", 0, b"body") for n in range(50)])
    assert len(calls) == 1


def test_a_large_list_is_written_in_pieces(
    open_store: OpenStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    store = open_store(StoreConfig())
    ends: list[int] = []
    pwritev = os.pwritev

    def ending(fd: int, buffers: list[bytes], at: int) -> int:
        ends.append(at + pwritev(fd, buffers, at))
        return ends[-1] - at

    monkeypatch.setattr(os, "pwritev", ending)
    bodies = [bytes([number]) * 100_000 for number in range(5)]
    store.append([NewMessage("t", 0, body) for body in bodies])
    assert ends == [128 << 10, 256 << 10, 384 << 10, int(store.log_end)]
    assert [message.body for message in store.messages("t", 0, 0, 9)] == bodies


def test_small_steps_back_of_the_clock_do_not_show_in_store_times(
    open_store: OpenStore, clock: ManualClock
) -> None:
    store = open_store()
    store.append([NewMessage("t", 0, b"1")])
    clock.advance(-60_000)
    store.append([NewMessage("t", 0, b"2")])
    store.close()
    store = open_store()
    store.append([NewMessage("t", 0, b"3")])
    times = [m.store_ms for m in store.messages("t", 0, 0, 9)]
    assert times == sorted(times)


def test_a_clock_that_was_ahead_and_is_corrected_is_believed(
    open_store: OpenStore, clock: ManualClock, caplog: pytest.LogCaptureFixture
) -> None:
    year_ms = 365 * 86_400_000
    store = open_store()
    clock.advance(year_ms)
    store.append([NewMessage("t", 0, b"ahead")])
    clock.advance(-year_ms)
    store.close()
    store = open_store()
    store.append([NewMessage("t", 0, b"corrected")])
    store.append_runs([NewRun.of(NewMessage("t", 0, b"too"))])
    times = [message.store_ms - clock.now_ms() for message in store.messages("t", 0, 0, 9)]
    assert times == [year_ms, 0, 0]
    assert caplog.text.count("the clock was set back by 31536000 s") == 1


def test_everything_is_there_after_a_clean_stop(open_store: OpenStore) -> None:
    store = open_store()
    for n in range(500):
        properties = encode_properties({"TAGS": f"tag{n % 3}", "KEYS": f"k{n}"})
        store.append([NewMessage("t", n % 4, b"%d" % n, properties)])
    end = store.log_end
    store.close()
    store = open_store()
    assert store.recovery.clean
    assert (store.recovery.records_replayed, store.recovery.cut_bytes) == (0, 0)
    assert store.log_end == end
    assert bodies(store, "t", 1) == [b"%d" % n for n in range(1, 500, 4)]
    assert [store.message_at(at).keys for at in store.find_by_key("t", "k77")] == [["k77"]]
    (place,) = store.append([NewMessage("t", 0, b"next")])
    assert (place.log_offset, place.queue_offset) == (end, 125)


def test_an_inner_batch_is_one_record_and_many_offsets(open_store: OpenStore) -> None:
    store = open_store()
    before, batch, after = store.append(
        [
            NewMessage("t", 0, b"a"),
            NewMessage("t", 0, b"ten", inner_count=10),
            NewMessage("t", 0, b"z"),
        ]
    )
    assert (before.queue_offset, batch.queue_offset, after.queue_offset) == (0, 1, 11)
    assert store.max_offset("t", 0) == 12
    for offset in range(1, 11):
        result = store.read("t", 0, offset, 1)
        assert (result.next_offset, len(result.slices)) == (11, 1)
    assert bodies(store, "t") == [b"a", b"ten", b"z"]
    assert store.messages("t", 0, 5, 1)[0].sys_flag & SysFlag.INNER_BATCH


def test_one_record_can_be_in_many_queues(open_store: OpenStore) -> None:
    store = open_store()
    store.append([NewMessage("fan", 0, b"first", extra_queues=("%LMQ%a",))])
    (place,) = store.append([NewMessage("fan", 2, b"both", extra_queues=("%LMQ%a", "copy"))])
    assert bodies(store, "%LMQ%a") == [b"first", b"both"]
    assert bodies(store, "copy", 2) == [b"both"]
    assert list(store.entries("copy", 2, 0, 9)) == list(store.entries("fan", 2, 0, 9))
    assert store.message_at(place.log_offset).topic == "fan"


def test_half_messages_are_in_the_log_and_in_no_queue(open_store: OpenStore) -> None:
    store = open_store()
    half, done = store.append(
        [
            NewMessage("t", 0, b"half", sys_flag=int(SysFlag.PREPARED)),
            NewMessage("t", 0, b"done", sys_flag=int(SysFlag.COMMITTED)),
        ]
    )
    assert bytes(store.message_at(half.log_offset).body) == b"half"
    assert bodies(store, "t") == [b"done"]
    assert (half.queue_offset, done.queue_offset) == (0, 0)


BAD_MESSAGES: list[tuple[NewMessage, type[OnelogError], str]] = [
    (NewMessage("", 0, b""), InvalidTopicError, "empty"),
    (NewMessage("a\nb", 0, b""), InvalidTopicError, "control character"),
    (NewMessage("a\x07b", 0, b""), InvalidTopicError, "control character"),
    (NewMessage("ü" * 128, 0, b""), InvalidTopicError, "256 bytes; the limit is 255"),
    (NewMessage("\ud800", 0, b""), InvalidTopicError, "not valid text"),
    (NewMessage("t", -1, b""), InvalidQueueError, "queue id -1"),
    (NewMessage("t", 70_000, b""), InvalidQueueError, "outside 0..65535"),
    (NewMessage("t", 0, b"x" * (1 << 20)), MessageTooLargeError, "a segment of .* holds at most"),
    (NewMessage("t", 0, b"", b"x" * 32_768), PropertiesTooLargeError, "32768 bytes; .* 32767"),
    (NewMessage("t", 0, b"", flag=1 << 33), MessageError, "too large"),
    (NewMessage("t", 0, b"", inner_count=-5), MessageError, "-5"),
    (NewMessage("t", 0, b"", extra_queues=("a\0b",)), InvalidTopicError, "control"),
    (NewMessage("t", 70_000, b"", sys_flag=4), InvalidQueueError, "70000"),
]


def test_the_limit_on_bodies_is_not_the_stores_to_keep(open_store: OpenStore) -> None:
    # Its own records, and delayed messages that came when the limit was higher, must get in.
    store = open_store(replace(SMALL, body_bytes_max=10))
    store.append([NewMessage("t", 0, b"x" * 11)])
    store.append_runs([NewRun("t", 0, [(0, b"y" * 11, b"")], b"")])
    assert bodies(store, "t") == [b"x" * 11, b"y" * 11]


@pytest.mark.parametrize(("bad", "kind", "says"), BAD_MESSAGES)
def test_a_bad_message_is_refused_with_its_list_and_nothing_is_written(
    open_store: OpenStore, tmp_path: Path, bad: NewMessage, kind: type[OnelogError], says: str
) -> None:
    store = open_store()
    store.append([NewMessage("good", 0, b"before")])
    end, files = store.log_end, sorted((tmp_path / "store").rglob("*"))
    with pytest.raises(kind, match=says):
        store.append([NewMessage("good", 0, b"x"), NewMessage("fresh", 0, b"x"), bad])
    assert store.log_end == end
    assert {f for f in (tmp_path / "store").rglob("*") if f.is_file()} == {
        f for f in files if f.is_file()
    }
    assert store.append([NewMessage("good", 0, b"after")])[0].queue_offset == 1
    assert bodies(store, "good") == [b"before", b"after"]
    assert store.read("fresh", 0, 0).status in (
        FetchStatus.NO_MATCHED_LOGIC_QUEUE,
        FetchStatus.NO_MESSAGE_IN_QUEUE,
    )


def test_a_second_writer_is_refused_until_the_first_is_gone(open_store: OpenStore) -> None:
    store = open_store()
    with pytest.raises(StoreLockedError, match="in use by another broker"):
        open_store()
    store.close()
    open_store()


def test_a_second_process_is_refused_too(open_store: OpenStore, tmp_path: Path) -> None:
    open_store()
    code = (
        "import sys\n"
        "from pathlib import Path\n"
        "from onelog.store.message_store import MessageStore\n"
        "MessageStore.open(Path(sys.argv[1]))"
    )
    child = subprocess.run(
        [sys.executable, "-c", code, str(tmp_path / "store")], capture_output=True, text=True
    )
    assert child.returncode != 0
    assert "StoreLockedError" in child.stderr


def test_a_closed_store_says_so(open_store: OpenStore) -> None:
    store = open_store()
    store.close()
    store.close()
    with pytest.raises(StoreClosedError, match="is closed"):
        store.append([NewMessage("t", 0, b"")])


def test_a_folder_with_other_things_is_not_a_store(tmp_path: Path) -> None:
    (tmp_path / "photos").mkdir()
    with pytest.raises(NotAStoreError, match="no commitlog folder, but photos"):
        MessageStore.open(tmp_path)
    (tmp_path / "file").touch()
    with pytest.raises(NotAStoreError, match="is a file"):
        MessageStore.open(tmp_path / "file")
    assert sorted(p.name for p in tmp_path.iterdir()) == ["file", "photos"]


@pytest.mark.parametrize("name", ["dledger-n0", "consumequeue_r"])
def test_other_kinds_of_rocketmq_stores_are_refused_by_name(tmp_path: Path, name: str) -> None:
    (tmp_path / "commitlog").mkdir()
    (tmp_path / name).mkdir()
    with pytest.raises(StoreVersionError, match="only"):
        MessageStore.open(tmp_path)


def test_a_newer_format_is_refused_and_left_alone(open_store: OpenStore, tmp_path: Path) -> None:
    open_store().close()
    (tmp_path / "store" / "onelog.json").write_text(json.dumps({"format": 2}))
    with pytest.raises(StoreVersionError, match="store format 2"):
        open_store()
    assert not (tmp_path / "store" / "abort").exists()


def test_a_folder_without_permission_is_told_by_name(tmp_path: Path) -> None:
    tmp_path.chmod(0o755)
    locked = tmp_path / "locked"
    locked.mkdir()
    locked.chmod(0o555)
    code = (
        "import os, sys\n"
        "from pathlib import Path\n"
        "from onelog.errors import StorePermissionError\n"
        "from onelog.store.message_store import MessageStore\n"
        "if os.getuid() == 0: os.setuid(65534)\n"
        "try: MessageStore.open(Path(sys.argv[1]))\n"
        "except StorePermissionError as error: print(error)"
    )
    # The parents of a temporary folder are closed to other users: start inside.
    child = subprocess.run(
        [sys.executable, "-c", code, "."], cwd=locked, capture_output=True, text=True
    )
    assert "may not open a store in" in child.stdout, child.stderr


def test_a_changed_segment_size_is_refused(open_store: OpenStore) -> None:
    store = open_store()
    for _ in range(40):
        store.append([NewMessage("t", 0, b"x" * 1000)])
    store.close()
    with pytest.raises(StoreVersionError, match="segment_bytes=16384"):
        open_store(StoreConfig(segment_bytes=32 * 1024))
    open_store(SMALL)


def test_a_deleted_topic_does_not_come_back_after_a_crash(
    open_store: OpenStore, tmp_path: Path
) -> None:
    store = open_store()
    store.append([NewMessage("gone", 0, b"x"), NewMessage("stays", 0, b"y")])
    store.delete_topic("gone")
    assert store.read("gone", 0, 0).status is FetchStatus.NO_MATCHED_LOGIC_QUEUE
    store.append([NewMessage("stays", 0, b"z")])
    subprocess.run(["cp", "-r", tmp_path / "store", tmp_path / "crashed"], check=True)
    again = open_store(folder=tmp_path / "crashed")
    assert not again.recovery.clean
    assert list(again.queues()) == ["stays"]
    assert again.append([NewMessage("gone", 0, b"new")])[0].queue_offset == 0


def test_ten_segments_of_messages_with_a_record_crc(open_store: OpenStore) -> None:
    store = open_store(StoreConfig(segment_bytes=4096, record_crc=True))
    for n in range(200):
        store.append([NewMessage("t", 0, b"%d" % n, encode_properties({"TAGS": "a"}))])
    assert len(store.log.segments) > 5
    store.close()
    store = open_store(StoreConfig(segment_bytes=4096))
    assert bodies(store, "t") == [b"%d" % n for n in range(200)]


def test_space_is_accounted_by_part(open_store: OpenStore) -> None:
    store = open_store()
    for _ in range(50):
        store.append([NewMessage("t", 0, b"x" * 1000, encode_properties({"KEYS": "k"}))])
    store.flush()
    usage = space_usage(store.folder)
    assert usage.log_bytes >= 50_000
    assert usage.queue_bytes > 0
    assert usage.index_bytes > 0
    assert 0 < usage.disk_free_bytes <= usage.disk_total_bytes


def test_a_disk_too_full_for_the_index_refuses_the_next_messages_until_there_is_room(
    open_store: OpenStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    store = open_store()
    store.append([NewMessage("t", 0, b"first")])
    allocate = os.posix_fallocate
    full = True

    def only_queues(fd: int, at: int, size: int) -> None:
        if full and "/index/" in os.readlink(f"/proc/self/fd/{fd}"):
            raise OSError(28, "No space left on device")
        allocate(fd, at, size)

    monkeypatch.setattr(os, "posix_fallocate", only_queues)
    sent = 1

    def send_for_ever() -> None:
        nonlocal sent
        while True:
            properties = encode_properties({"KEYS": f"k{sent}"})
            store.append([NewMessage("t", 0, b"%d" % sent, properties)])
            sent += 1

    with pytest.raises(StoreFullError, match="free some space"):
        send_for_ever()
    assert store.max_offset("t", 0) == sent > 1000
    full = False
    store.append([NewMessage("t", 0, b"room again", encode_properties({"KEYS": "last"}))])
    assert len(store.find_by_key("t", "k1")) == len(store.find_by_key("t", "last")) == 1
    assert len(bodies(store, "t")) == sent + 1


def test_rolled_back_messages_are_found_under_no_key(open_store: OpenStore) -> None:
    store = open_store()
    properties = encode_properties({"KEYS": "k"})
    rolled_back, half, plain = (
        NewMessage("t", 0, b"x", properties, sys_flag=flag) for flag in (0xC, 0x4, 0)
    )
    places = store.append([rolled_back, half, plain])
    found = [places[2].log_offset, places[1].log_offset]
    assert store.find_by_key("t", "k") == found
    store.close()
    shutil.rmtree(store.folder / "consumequeue")
    assert open_store().find_by_key("t", "k") == found, "also when the index is made anew"


def test_a_forked_child_keeps_no_lock_and_cannot_write(open_store: OpenStore) -> None:
    store = open_store()
    store.append([NewMessage("orders", 0, b"parent's")])
    reading, writing = os.pipe()
    release, stay = os.pipe()

    def work() -> str:
        try:
            store.append([NewMessage("orders", 0, b"child's")])
        except StoreClosedError as error:
            said = str(error)
        store.close()
        os.write(writing, said.encode())
        os.close(stay)
        os.read(release, 1)  # The child lives on while the parent closes and opens the store.
        return "done"

    with ThreadPoolExecutor(1) as pool:
        child = pool.submit(in_a_child, work)
        try:
            said = select.poll()  # `select` knows no descriptor above 1,023.
            said.register(reading, select.POLLIN)
            assert said.poll(60_000), child.result(1)
            assert "forked" in os.read(reading, 1_000).decode()
            store.close()
            with MessageStore.open(store.folder, store.config) as again:
                assert again.recovery.clean
                assert again.max_offset("orders", 0) == 1
        finally:
            os.close(stay)  # Else the child, and so the pool, would never end.
        assert child.result(60) == "done"
    for each in (reading, writing, release):
        os.close(each)


# -- no file descriptors ---------------------------------------------------------------------------


@contextlib.contextmanager
def no_descriptors() -> Iterator[None]:
    """This process cannot open a single file."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    # Lower ones than these are always taken, whatever other threads close meanwhile.
    resource.setrlimit(resource.RLIMIT_NOFILE, (3, hard))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))


def test_a_queue_that_cannot_be_made_for_want_of_descriptors_is_made_later(
    open_store: OpenStore,
) -> None:
    store = open_store()
    store.append([NewMessage("old", 0, b"before")])
    with no_descriptors():
        with pytest.raises(StoreBusyError, match="ulimit -n"):
            store.append([NewMessage("new", 0, b"refused")])
        store.append([NewMessage("old", 0, b"needs none")])
    store.append([NewMessage("new", 0, b"later")])
    assert [bytes(each.body) for each in store.messages("new", 0, 0, 9)] == [b"later"]
    assert [bytes(each.body) for each in store.messages("old", 0, 0, 9)] == [
        b"before",
        b"needs none",
    ]


def test_a_segment_that_cannot_be_made_for_want_of_descriptors_is_made_later(
    open_store: OpenStore,
) -> None:
    store = open_store()
    first = [store.append([NewMessage("t", 0, bytes(4_050))])[0] for _ in range(3)]
    with no_descriptors(), pytest.raises(StoreBusyError):
        store.append([NewMessage("t", 0, bytes(4_050))])
    (after,) = store.append([NewMessage("t", 0, bytes(4_050))])
    assert after.log_offset == store.log.segment_bytes
    assert [each.queue_offset for each in (*first, after)] == [0, 1, 2, 3]
    store.close()
    assert open_store().recovery.clean


def test_flushes_and_checkpoints_wait_for_descriptors_and_do_not_end_the_store(
    open_store: OpenStore, caplog: pytest.LogCaptureFixture
) -> None:
    store = open_store(replace(SMALL, checkpoint_interval_ms=1, flush_interval_ms=1))
    store.append([NewMessage("t", 0, b"first")])
    store.flush()
    with no_descriptors():
        (appended,) = store.append([NewMessage("t", 0, b"second")])
        with pytest.raises(StoreBusyError):
            store.flush()
        assert store.wait_flushed(appended.log_offset + appended.size), "the log is open"
        wait_until(lambda: "no checkpoint" in caplog.text)
    store.append([NewMessage("t", 0, b"third")])
    wait_until(lambda: store.checkpoints.safe_offset == store.log_end)
    assert caplog.text.count("no checkpoint") == 1


def test_a_new_segment_is_flushed_when_there_are_descriptors_again(open_store: OpenStore) -> None:
    store = open_store()
    for _ in range(4):
        (appended,) = store.append([NewMessage("t", 0, bytes(4_050))])
    flushed = threading.Event()
    with no_descriptors():
        store.when_flushed(appended.log_offset + appended.size, lambda error: flushed.set())
    assert flushed.wait(30)
    store.append([NewMessage("t", 0, b"goes on")])


def test_entries_whose_queue_cannot_be_mapped_wait_and_writes_with_them(
    open_store: OpenStore,
) -> None:
    store = open_store()
    for queue_id in range(3):
        store.append([NewMessage("t", queue_id, b"0")])
    store.queue_table.unmap()
    with no_descriptors():
        # They are in the log: it is the next ones that have to wait.
        store.append([NewMessage("t", 0, b"1"), NewMessage("t", 1, b"1"), NewMessage("t", 0, b"2")])
        with pytest.raises(StoreBusyError):
            store.append([NewMessage("t", 2, b"refused")])
        with pytest.raises(StoreBusyError):
            store.append_runs([NewRun.of(NewMessage("t", 2, b"refused"))])
        assert store.max_offset("t", 0) == 1
    store.append([NewMessage("t", 0, b"3")])
    for queue_id, bodies in enumerate(([b"0", b"1", b"2", b"3"], [b"0", b"1"], [b"0"])):
        found = store.messages("t", queue_id, 0, 9)
        assert [bytes(each.body) for each in found] == bodies
        assert [each.queue_offset for each in found] == list(range(len(bodies)))


@pytest.mark.parametrize("kind", ["runs", "special"])
def test_entries_of_runs_and_batches_wait_in_their_order(open_store: OpenStore, kind: str) -> None:
    store = open_store()
    store.append([NewMessage("t", 0, b"0")])
    store.queue_table.unmap()
    messages = [NewMessage("t", 0, b"%d" % number) for number in range(1, 4)]
    with no_descriptors():
        if kind == "runs":
            store.append_runs([NewRun.of(message) for message in messages])
        else:
            flag = int(SysFlag.COMMITTED)
            store.append([*messages[:2], messages[2]._replace(sys_flag=flag, extra_queues=())])
    store.append([NewMessage("t", 0, b"4")])
    found = store.messages("t", 0, 0, 9)
    assert [bytes(each.body) for each in found] == [b"0", b"1", b"2", b"3", b"4"]
    assert [each.queue_offset for each in found] == [0, 1, 2, 3, 4]


def test_a_store_that_is_closed_while_entries_wait_finds_them_in_the_log(
    open_store: OpenStore,
) -> None:
    store = open_store()
    store.append([NewMessage("t", 0, b"0")])
    store.flush()
    store.queue_table.unmap()
    with no_descriptors():
        store.append([NewMessage("t", 0, b"1")])
        store.close()
    again = open_store()
    assert [bytes(each.body) for each in again.messages("t", 0, 0, 9)] == [b"0", b"1"]


def test_the_index_grows_when_there_are_descriptors_again(open_store: OpenStore) -> None:
    store = open_store(replace(SMALL, segment_bytes=1 << 20, queue_file_entries=1_000))
    keyed = [
        NewMessage("t", 0, b"x", encode_properties({"KEYS": f"k{number}"})) for number in range(250)
    ]
    store.append(keyed[:100])
    store.index.build()
    store.append(keyed[100:])
    with no_descriptors(), pytest.raises(StoreBusyError):
        store.index.build()
    assert all(store.find_by_key("t", f"k{number}") for number in (0, 99, 150, 249))
