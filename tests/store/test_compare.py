"""Two stores compared: the same log, or where it first differs."""

import json
from pathlib import Path

import pytest
from typer.testing import CliRunner

from onelog.cli import app
from onelog.clock import ManualClock
from onelog.config import StoreConfig
from onelog.store.compare import compare
from onelog.store.message_store import MessageStore
from tests.e2e.make_store_fixtures import VERSIONS, fixture_folder
from tests.store.replicas import TINY, copy_log, open_gated
from tests.store.samples import flip, sample_messages


@pytest.fixture
def pair(tmp_path: Path) -> tuple[Path, Path]:
    """A master and a replica that begins later and has less."""
    with (
        MessageStore.open(tmp_path / "a", TINY, ManualClock()) as master,
        open_gated(tmp_path / "b") as follower,
    ):
        master.append([*sample_messages(100)])
        start = master.log.segments[1].start
        follower.tail.append_raw(start, bytes(master.tail.read_raw(start, 100)))
        copy_log(master, follower, 1000, int(master.log_end) - 500)
    return tmp_path / "a", tmp_path / "b"


def test_replicas_are_the_same_in_what_both_have(pair: tuple[Path, Path]) -> None:
    found = compare(*pair)
    assert found.same
    assert found.start == TINY.segment_bytes
    assert found.second_range == (found.start, found.end)
    assert found.first_range[1] > found.end
    shown = CliRunner().invoke(app, ["store", "compare", *map(str, pair)])
    assert shown.exit_code == 0
    assert "the same in all that both have" in shown.stdout


def test_the_first_byte_that_differs_is_named(pair: tuple[Path, Path]) -> None:
    segment = pair[1] / "commitlog" / f"{2 * TINY.segment_bytes:020d}"
    flip(segment, 999)
    flip(segment, 70)
    found = compare(*pair)
    assert not found.same
    assert found.differs_at == 2 * TINY.segment_bytes + 70
    assert found.second_record == f"{segment} byte 70"
    shown = CliRunner().invoke(app, ["store", "compare", *map(str, pair), "--json"])
    assert shown.exit_code == 1
    assert json.loads(shown.stdout)["differs_at"] == found.differs_at
    shown = CliRunner().invoke(app, ["store", "compare", *map(str, pair)])
    assert "they differ from log offset" in shown.stdout


def test_logs_without_a_common_part_are_not_the_same(tmp_path: Path) -> None:
    with MessageStore.open(tmp_path / "a", TINY, ManualClock()) as master:
        master.append([*sample_messages(100)])
        start = master.log.segments[2].start
        with open_gated(tmp_path / "b") as late, open_gated(tmp_path / "c") as early:
            late.tail.append_raw(start, bytes(master.tail.read_raw(start, 3000)))
            early.tail.append_raw(0, bytes(master.tail.read_raw(0, 3000)))
    open_gated(tmp_path / "empty").close()
    assert not compare(tmp_path / "b", tmp_path / "c").same
    shown = CliRunner().invoke(app, ["store", "compare", str(tmp_path / "b"), str(tmp_path / "c")])
    assert shown.exit_code == 1
    assert "no part of the log in common" in shown.stdout
    assert compare(tmp_path / "b", tmp_path / "empty").same


@pytest.mark.parametrize("version", VERSIONS)
def test_a_replica_of_what_rocketmq_wrote(version: str, tmp_path: Path) -> None:
    """Its segments come whole, with the zeros of their ends."""
    fixture = fixture_folder(version) / "store"
    files = sorted((fixture / "commitlog").iterdir())
    config = StoreConfig(segment_bytes=files[0].stat().st_size)
    with MessageStore.open(tmp_path / "b", config, ManualClock(), gated=True) as store:
        for path in files:
            content = path.read_bytes()
            for at in range(0, len(content), 32 << 10):
                store.tail.append_raw(int(path.name) + at, content[at : at + (32 << 10)])
        store.tail.confirm(store.tail.raw_end)
        assert store.confirmed > store.log_min
    found = compare(fixture, tmp_path / "b")
    assert found.same
    assert found.end == found.first_range[1]
