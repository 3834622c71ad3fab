"""What is lost at the ends of queues is known at the next start, and had from the log again."""

import errno
import os
import shutil
from pathlib import Path

import pytest

from onelog.errors import StoreError
from onelog.message import NewMessage
from onelog.record.entries import ENTRY_BYTES, PADDING
from onelog.store import queue_ends
from onelog.store.message_store import MessageStore
from onelog.store.queue_ends import FILE, QueueEnd, QueueEnds
from onelog.store.queue_files import FOLDER
from tests.store.conftest import SMALL, OpenStore


def fill(store: MessageStore, count: int, topic: str = "orders") -> list[bytes]:
    """Some messages, with one of another topic between two of them."""
    sent = [b"message %03d" % (store.max_offset(topic, 0) + each) for each in range(count)]
    for body in sent:
        store.append([NewMessage(topic, 0, body), NewMessage("others", 0, body)])
    return sent


def bodies(store: MessageStore, topic: str = "orders") -> list[bytes]:
    begin = store.min_offset(topic, 0)
    return [bytes(each.body) for each in store.messages(topic, 0, begin, 1_000)]


def spoil(folder: Path, first: int, data: bytes, topic: str = "orders") -> None:
    """Write over entries of a queue, from one on, in files of 50."""
    files = sorted((folder / "consumequeue" / topic / "0").iterdir())
    at = first * ENTRY_BYTES
    path = files[at // (50 * ENTRY_BYTES)]
    with open(path, "r+b") as file:
        file.seek(at % (50 * ENTRY_BYTES))
        file.write(data)


def crashed(store: MessageStore) -> Path:
    """A copy of the store as a crash would leave it."""
    store.queue_table.settle()
    for queue in store.queue_table:
        queue.settle()
    target = store.folder.with_name(f"{store.folder.name}-crashed")
    shutil.copytree(store.folder, target, ignore=shutil.ignore_patterns(FOLDER))
    return target


@pytest.mark.parametrize("count", [1, 3, 49, 50, 51, 120])
@pytest.mark.parametrize("lost", [1, 2, 30])
def test_what_was_at_the_end_of_a_queue_is_there_again(
    open_store: OpenStore, count: int, lost: int
) -> None:
    store = open_store()
    sent = fill(store, count)
    store.close()
    first = max(0, count - lost, (count - 1) // 50 * 50)
    spoil(store.folder, first, bytes((count - first) * ENTRY_BYTES))
    store = open_store()
    assert bodies(store) == sent
    assert store.mending.mended == count - first
    assert store.append([NewMessage("orders", 0, b"next")])[0].queue_offset == count
    store.close()
    store = open_store()
    assert store.mending.mended == 0
    assert bodies(store) == [*sent, b"next"]


def test_what_was_at_the_end_is_there_again_after_a_crash(open_store: OpenStore) -> None:
    store = open_store()
    sent = fill(store, 20)
    store.flush()
    sent += fill(store, 1)  # Behind the checkpoint: this one is replayed.
    folder = crashed(store)
    spoil(folder, 17, bytes(3 * ENTRY_BYTES))
    store = open_store(folder=folder)
    assert not store.recovery.clean
    assert bodies(store) == sent


def test_padding_that_was_not_there_hides_nothing(open_store: OpenStore) -> None:
    store = open_store()
    sent = fill(store, 20)
    store.close()
    spoil(store.folder, 0, 20 * PADDING)
    store = open_store()
    assert store.min_offset("orders", 0) == 0
    assert bodies(store) == sent


def test_a_queue_that_rightly_begins_behind_padding_does_so(open_store: OpenStore) -> None:
    store = open_store()
    store.close()
    store = open_store()
    queue = store.queue_table.get("orders", 0)
    queue.pad_to(7)
    store.append([NewMessage("orders", 0, b"seven")])
    store.close()
    for _ in range(2):
        store = open_store()
        assert (store.min_offset("orders", 0), store.mending.mended) == (7, 0)
        assert bodies(store) == [b"seven"]
        store.close()


@pytest.mark.parametrize("crash", [False, True])
def test_a_topic_that_was_deleted_and_made_again_gets_nothing_of_before(
    open_store: OpenStore, crash: bool
) -> None:
    store = open_store()
    fill(store, 20)
    store.flush()
    store.delete_topic("orders")
    store.append([NewMessage("orders", 0, b"anew")])
    folder = store.folder
    if crash:
        folder = crashed(store)
    else:
        store.close()
    store = open_store(folder=folder)
    assert bodies(store) == [b"anew"]
    assert crash or store.mending.mended == 0


def test_a_note_of_a_topic_from_before_it_was_deleted_is_not_believed(
    open_store: OpenStore,
) -> None:
    store = open_store()
    fill(store, 20)
    store.flush()
    before = (store.folder / FILE).read_bytes()
    store.delete_topic("orders")
    store.append([NewMessage("orders", 0, b"anew")])
    store.close()
    (store.folder / FILE).write_bytes(
        before
    )  # What came behind was not on disk at a loss of power.
    store = open_store()
    assert bodies(store) == [b"anew"]


@pytest.mark.parametrize("count", [16, 20])
def test_a_topic_whose_deletion_a_crash_cut_short_gets_nothing_of_before(
    open_store: OpenStore, count: int
) -> None:
    store = open_store()
    fill(store, count)
    store.flush()
    store.delete_topic("orders")
    folder = crashed(store)  # The files of the topic are gone, and no checkpoint knows.
    assert not (folder / "consumequeue" / "orders").exists()
    store = open_store(folder=folder)
    store.append([NewMessage("orders", 0, b"anew")])
    store = open_store(folder=crashed(store))
    assert bodies(store) == [b"anew"]
    assert store.recovery.damage == ()


def test_a_deletion_is_noted_on_disk_before_the_checkpoint_knows_of_it(
    open_store: OpenStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    store = open_store()
    fill(store, 5)
    store.flush()
    synced: list[tuple[str, int]] = []
    monkeypatch.setattr(
        queue_ends,
        "sync_file",
        lambda fd, path: synced.append((path.name, store.checkpoints.safe_offset)),
    )
    store.flush()
    assert synced == []
    safe_offset = store.checkpoints.safe_offset
    store.delete_topic("orders")
    store.flush()
    assert synced == [(FILE, safe_offset)]
    assert store.checkpoints.safe_offset > safe_offset


@pytest.mark.parametrize("may_delete", [False, True])
def test_a_deletion_that_cannot_be_noted_leaves_no_older_notes(
    open_store: OpenStore, monkeypatch: pytest.MonkeyPatch, may_delete: bool
) -> None:
    store = open_store()
    fill(store, 5)
    store.flush()
    store.delete_topic("orders")

    def fail(*_: object, **__: object) -> None:
        raise OSError(errno.EROFS, os.strerror(errno.EROFS))

    safe_offset = store.checkpoints.safe_offset
    with monkeypatch.context() as broken:
        broken.setattr(os, "write", fail)
        if may_delete:
            store.flush()
            assert not (store.folder / FILE).exists()
        else:
            broken.setattr(Path, "unlink", fail)
            with pytest.raises(StoreError):
                store.flush()
            assert store.checkpoints.safe_offset == safe_offset
    store.flush()
    assert ("orders", 0) not in QueueEnds(store.folder).known(1 << 62)


def test_without_the_file_a_store_opens_and_has_it_again(open_store: OpenStore) -> None:
    store = open_store()
    sent = fill(store, 5)
    store.close()
    (store.folder / FILE).unlink()
    store = open_store()
    assert bodies(store) == sent
    store.close()
    spoil(store.folder, 4, bytes(ENTRY_BYTES))
    assert bodies(open_store()) == sent


@pytest.mark.parametrize("keep", [0, 1, 7, 40])
def test_a_file_that_was_cut_off_counts_as_far_as_it_is_whole(
    open_store: OpenStore, keep: int
) -> None:
    store = open_store()
    sent = fill(store, 5)
    store.flush()
    whole = (store.folder / FILE).stat().st_size
    sent += fill(store, 5)
    store.close()
    path = store.folder / FILE
    path.write_bytes(path.read_bytes()[: whole + keep] + b"\xff" * bool(keep))
    store = open_store()
    assert bodies(store) == sent
    sent += fill(store, 1)
    store.close()
    spoil(store.folder, 10, bytes(ENTRY_BYTES))
    assert bodies(open_store()) == sent


def test_noise_for_a_file_is_no_hindrance(open_store: OpenStore) -> None:
    store = open_store()
    sent = fill(store, 5)
    store.close()
    (store.folder / FILE).write_bytes(bytes(range(256)) * 9)
    assert bodies(open_store()) == sent


def test_the_file_does_not_grow_for_ever(
    open_store: OpenStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(queue_ends, "_GROWTH_BYTES", 500)
    store = open_store()
    for _ in range(100):
        fill(store, 1)
        store.flush()
        assert (store.folder / FILE).stat().st_size < 1_000
    store.close()
    known = QueueEnds(store.folder).known(1 << 62)
    assert known["orders", 0].end == known["others", 0].end == 100


def test_the_last_that_is_known_before_an_offset_counts(open_store: OpenStore) -> None:
    store = open_store(SMALL)
    fill(store, 2)
    store.close()
    known = QueueEnds(store.folder).known(1 << 62)
    last = int(store.log_end)
    assert known["orders", 0] == QueueEnd(0, 2, known["orders", 0].last_record)
    assert 0 < known["orders", 0].last_record < known["others", 0].last_record < last
    assert set(QueueEnds(store.folder).known(known["others", 0].last_record)) == {("orders", 0)}
