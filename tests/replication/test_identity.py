"""What a store's folder says of the member that it is."""

from pathlib import Path

import msgspec
import pytest

from onelog.replication.identity import FILE, FORMER_FILE, LOST_POWER, Identity
from onelog.replication.registry import MemberEntry


def known(identity: Identity, confirmed: int = 0, epoch: int = 1) -> MemberEntry:
    """What the registry knows of it."""
    entry = identity.entry(epoch, confirmed, None)
    assert entry is not None
    return entry


def test_a_store_keeps_its_id_and_counts_its_starts(tmp_path: Path) -> None:
    first = known(Identity(1, tmp_path))
    second = Identity(1, tmp_path)
    assert known(second).store == first.store
    assert (first.start, known(second).start) == (1, 2)
    assert second.why_new(first) == ""


def test_two_stores_have_different_ids(tmp_path: Path) -> None:
    first = Identity(1, tmp_path / "missing", sync=True)  # A folder that takes nothing.
    assert first.entry(1, 0, None) is None
    (tmp_path / "a").mkdir()
    (tmp_path / "b").mkdir()
    one, other = Identity(1, tmp_path / "a"), Identity(1, tmp_path / "b")
    assert "has another store" in one.why_new(known(other))


def test_a_copy_that_was_started_less_often_is_an_old_one(tmp_path: Path) -> None:
    Identity(1, tmp_path)
    copy = (tmp_path / FILE).read_bytes()
    entry = known(Identity(1, tmp_path))
    (tmp_path / FILE).write_bytes(copy)
    assert "old copy: of start 1, where start 2 is known" in Identity(1, tmp_path).why_new(entry)


def test_the_folder_of_another_node_is_another_store(tmp_path: Path) -> None:
    entry = known(Identity(2, tmp_path))
    found = Identity(1, tmp_path)
    assert found.doubt == "it was node 2's"
    found.trust()
    assert known(found).store != entry.store


@pytest.mark.parametrize(
    ("clean", "sync", "boot", "is_doubtful"),
    [
        (False, False, "first", False),  # The process was killed.
        (False, False, "second", True),
        (True, False, "second", False),
        (False, True, "second", False),
    ],
)
def test_who_may_have_lost_what_was_not_on_disk_is_in_doubt(
    tmp_path: Path, clean: bool, sync: bool, boot: str, is_doubtful: bool
) -> None:
    Identity(1, tmp_path, boot="first", sync=sync)
    found = Identity(1, tmp_path, clean=clean, boot=boot, sync=sync)
    assert found.doubt == (LOST_POWER if is_doubtful else "")
    assert found.is_intact is not is_doubtful


def test_that_it_flushes_from_now_on_says_nothing_of_what_it_wrote_before(tmp_path: Path) -> None:
    Identity(1, tmp_path, boot="first", sync=False)
    assert Identity(1, tmp_path, clean=False, boot="second", sync=True).doubt


def test_doubt_is_kept_however_the_node_is_stopped(tmp_path: Path) -> None:
    Identity(1, tmp_path, boot="first")
    Identity(1, tmp_path, clean=False, boot="second")
    for _ in range(3):
        found = Identity(1, tmp_path, clean=True, boot="second")
        assert found.doubt == LOST_POWER
        assert found.is_torn
        assert found.entry(1, 10, None) is None
    found.trust()
    assert not Identity(1, tmp_path, clean=True, boot="second").doubt


def test_the_file_of_earlier_versions_is_taken_over(tmp_path: Path) -> None:
    (tmp_path / FORMER_FILE).write_text("first\n")
    assert Identity(1, tmp_path, clean=False, boot="second").doubt == LOST_POWER
    assert not (tmp_path / FORMER_FILE).exists()


def test_a_store_of_earlier_versions_without_a_file_is_not_in_doubt(tmp_path: Path) -> None:
    assert not Identity(1, tmp_path, clean=False, boot="second").doubt


@pytest.mark.parametrize("content", [b"", b"{}", b"\xff" * 20, b'{"store": 1, "node": 1}'])
def test_a_file_that_cannot_be_read_makes_a_new_member(
    tmp_path: Path, content: bytes, caplog: pytest.LogCaptureFixture
) -> None:
    entry = known(Identity(1, tmp_path))
    (tmp_path / FILE).write_bytes(content)
    found = Identity(1, tmp_path)
    assert "has another store" in found.why_new(entry)
    assert "cannot be read" in caplog.text
    assert found.doubt
    assert msgspec.json.decode((tmp_path / FILE).read_bytes())["start"] == 1


def test_what_is_known_does_not_go_back_after_a_start(tmp_path: Path) -> None:
    before = known(Identity(1, tmp_path), confirmed=900, epoch=3)
    entry = Identity(1, tmp_path).entry(2, 500, before)
    assert entry is not None
    assert (entry.epoch, entry.confirmed) == (3, 900)
