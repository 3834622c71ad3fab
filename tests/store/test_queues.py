"""All queues of a store."""

from pathlib import Path

import pytest

from onelog.errors import InvalidQueueError
from onelog.record.entries import ENTRY
from onelog.store.queues import Queues


def test_queues_are_made_when_written_to_and_found_again(tmp_path: Path) -> None:
    queues = Queues(tmp_path / "q", 10)
    for topic, queue_id in [("a", 0), ("a", 3), ("%RETRY%b", 0)]:
        queue = queues.get(topic, queue_id)
        queue.reserve(1)
        queue.put(ENTRY.pack(0, 100, 0))
    again = Queues(tmp_path / "q", 10)
    assert {(q.topic, q.queue_id, q.end) for q in again} == {
        ("a", 0, 1),
        ("a", 3, 1),
        ("%RETRY%b", 0, 1),
    }
    assert again.find("a", 1) is None
    assert again.find("c", 0) is None


def test_foreign_files_are_left_alone(tmp_path: Path) -> None:
    (tmp_path / "topic" / "not-a-number").mkdir(parents=True)
    (tmp_path / "file").touch()
    assert list(Queues(tmp_path, 10)) == []


@pytest.mark.parametrize("queue_id", [-1, 65_536, 1 << 40])
def test_a_queue_id_out_of_range_is_refused(tmp_path: Path, queue_id: int) -> None:
    with pytest.raises(InvalidQueueError, match=str(queue_id)):
        Queues(tmp_path, 10).get("t", queue_id)


def test_deleting_a_topic_takes_its_folder(tmp_path: Path) -> None:
    queues = Queues(tmp_path, 10)
    queue = queues.get("t", 0)
    queue.reserve(1)
    queue.put(ENTRY.pack(0, 1, 0))
    queues.delete_topic("t")
    queues.delete_topic("never-was")
    assert list(tmp_path.iterdir()) == []
    assert queues.find("t", 0) is None
