"""A task opens the files that it needs, and notices those that went."""

from pathlib import Path

import pytest

from onelog.client.message import Queue
from onelog.errors import DataLossError, StoreError
from onelog.spark.read.store_files import LogFiles, QueueFiles, entries_of
from onelog.store.message_store import MessageStore
from onelog.store.readonly import open_readonly
from tests.store.samples import SAMPLE, append_plain


@pytest.fixture
def store(tmp_path: Path) -> Path:
    with MessageStore.open(tmp_path, SAMPLE) as opened:
        append_plain(opened, "busy", 300)
    return tmp_path


@pytest.mark.parametrize("topic", ["a/b", "..", "題" * 85])
def test_a_queue_is_found_whatever_its_topic_is_called(tmp_path: Path, topic: str) -> None:
    with MessageStore.open(tmp_path, SAMPLE) as opened:
        append_plain(opened, topic, 3)
    assert QueueFiles(tmp_path).open(Queue(topic, "", 0)).end == 2


def test_a_segment_is_found_by_any_offset_in_it(store: Path) -> None:
    log = LogFiles(store)
    size = SAMPLE.segment_bytes
    assert log.start == 0
    assert [log.segment_at(at).start for at in (0, size - 1, size, 5)] == [0, 0, size, 0]
    assert (log.next_start(0), log.next_start(size - 1)) == (size, size)
    assert log.next_start(1 << 40) is None


def test_a_segment_that_went_is_lost_data(store: Path) -> None:
    log = LogFiles(store)
    (store / "commitlog" / f"{0:020d}").unlink()
    with pytest.raises(DataLossError, match="was deleted while it was to be read"):
        log.segment_at(0)
    assert log.segment_at(SAMPLE.segment_bytes).start == SAMPLE.segment_bytes
    for at in (-1, 1 << 40):
        with pytest.raises(DataLossError, match="in no file"):
            log.segment_at(at)
    with pytest.raises(StoreError, match="there is no store"):
        LogFiles(store / "elsewhere")


@pytest.mark.parametrize("at_once", [1, 7, 1000])
def test_entries_are_read_across_files(store: Path, at_once: int) -> None:
    queue = QueueFiles(store).open(Queue("busy", "", 1))
    assert (queue.start, queue.end) == (0, 150)
    found = [entry for part in entries_of(queue, 13, 120, at_once) for entry in part.tolist()]
    assert found == list(open_readonly(store).entries("busy", 1, 13, 107))


def test_a_queue_file_that_went_is_noticed(store: Path) -> None:
    queue = QueueFiles(store).open(Queue("busy", "", 1))
    queue.unmap_all()
    (store / "consumequeue" / "busy" / "1" / f"{0:020d}").unlink()
    with pytest.raises(FileNotFoundError):
        list(entries_of(queue, 0, 10, 5))
    assert QueueFiles(store).open(Queue("busy", "", 1)).start == SAMPLE.queue_file_entries


def test_a_queue_that_never_was_has_no_entries(store: Path) -> None:
    queue = QueueFiles(store).open(Queue("nobody", "", 0))
    assert (queue.start, queue.end) == (0, 0)
