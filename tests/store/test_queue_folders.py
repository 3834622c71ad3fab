"""Folders of queues."""

import os
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from onelog.errors import InvalidTopicError
from onelog.record.entries import ENTRY
from onelog.store.queue_folders import folder_of, parents_of, queue_folders, topic_of
from onelog.store.queues import Queues

names = st.text(st.characters(exclude_categories=["Cs", "Cc"]), min_size=1, max_size=85).filter(
    lambda name: len(name.encode()) <= 255
)
hostile = st.text("./~\\2fe é", min_size=1, max_size=120).filter(
    lambda name: len(name.encode()) <= 255
)
NAMES = [
    "orders",
    "%RETRY%g+t",
    ".",
    "..",
    "...",
    "a/b",
    "../../etc",
    "a\\b",
    "~",
    "a~2fb",
    "a b",
    "user@host",
    "Ünïcode 题",
    "/",
    "a/",
    ".hidden",
    "x" * 255,
    "題" * 85,
    "/" * 255,
    "." * 255,
    "a" * 252 + "/..",
    "~" * 255,
]


@given(st.from_regex(r"[%|a-zA-Z0-9_-]{1,255}", fullmatch=True))
def test_a_name_that_rocketmq_allows_is_the_folder(name: str) -> None:
    assert folder_of(name) == name


@given(names | hostile)
def test_a_folder_says_which_topic_it_is_of_and_stays_inside(name: str) -> None:
    folder = folder_of(name)
    assert topic_of(folder) == name
    assert folder.isascii()
    assert folder.isprintable()
    assert os.path.normpath(f"root/{folder}/0") == f"root/{folder}/0"
    assert all(0 < len(part) <= 255 for part in folder.split("/"))


@given(hostile, hostile)
def test_no_two_topics_share_a_folder(one: str, other: str) -> None:
    assert (folder_of(one) == folder_of(other)) == (one == other)


def _queues(folder: Path, *topics: str) -> Queues:
    queues = Queues(folder, 10)
    for topic in topics:
        queue = queues.get(topic, 7)
        queue.reserve(1)
        queue.put(ENTRY.pack(0, 100, 0))
    return queues


def test_queues_of_all_names_are_made_found_and_deleted(tmp_path: Path) -> None:
    root = tmp_path / "consumequeue"
    queues = _queues(root, *NAMES)
    assert sorted(each[:2] for each in queue_folders(root)) == sorted((name, 7) for name in NAMES)
    assert list(tmp_path.iterdir()) == [root]
    for topic, queue_id, path in queue_folders(root):
        assert queues.get(topic, queue_id).folder == path
        assert parents_of(path)[-2:] == (root, tmp_path)
    again = Queues(root, 10)
    for left, name in reversed(list(enumerate(NAMES))):
        again.delete_topic(name)
        assert len(list(queue_folders(root))) == left
    assert list(root.iterdir()) == []


def test_a_folder_that_was_named_otherwise_is_read_and_deleted(tmp_path: Path) -> None:
    odd = _queues(tmp_path, "ab")
    odd.close()
    (tmp_path / "ab").rename(tmp_path / "é b")
    queues = Queues(tmp_path, 10)
    found = queues.find("é b", 7)
    assert found is not None
    assert found.end == 1
    assert found.folder == tmp_path / "é b" / "7"
    queues.delete_topic("é b")
    assert list(tmp_path.iterdir()) == []


def test_names_that_begin_alike_share_a_folder_until_the_last_is_gone(tmp_path: Path) -> None:
    one, other = "/" * 100 + "a", "/" * 100 + "b"
    queues = _queues(tmp_path, one, other)
    queues.delete_topic(one)
    assert [topic for topic, _, _ in queue_folders(tmp_path)] == [other]
    queues.delete_topic(other)
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("topic", ["", "x" * 256, "a\nb", "\0"])
def test_what_is_no_name_gets_no_folder(tmp_path: Path, topic: str) -> None:
    with pytest.raises(InvalidTopicError):
        Queues(tmp_path, 10).get(topic, 0)
    assert list(tmp_path.iterdir()) == []
