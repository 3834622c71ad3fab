"""Stores that RocketMQ wrote, checked in: OneLog must read them as RocketMQ did, without Java."""

import json
import shutil
from pathlib import Path

import pytest

from onelog.message import tags_code
from onelog.store.message_store import MessageStore
from tests.e2e.make_store_fixtures import CONFIG, MESSAGES, VERSIONS, fixture_folder
from tests.e2e.store_corpus import LONG_TOPIC, append
from tests.e2e.store_lines import Line, assert_goes_on, by_identity, differences, store_lines


@pytest.fixture(params=VERSIONS)
def version(request: pytest.FixtureRequest) -> str:
    return str(request.param)


@pytest.fixture
def expected(version: str) -> list[Line]:
    text = (fixture_folder(version) / "expected.jsonl").read_text(encoding="utf-8")
    return [json.loads(line) for line in text.splitlines()]


@pytest.fixture
def folder(version: str, tmp_path: Path) -> Path:
    copy: Path = shutil.copytree(fixture_folder(version) / "store", tmp_path / "store")
    return copy


def test_the_fixture_holds_what_a_store_can_hold(expected: list[Line], version: str) -> None:
    records = by_identity(expected, "record").values()
    entries = by_identity(expected, "entry").values()
    assert len(records) == MESSAGES
    assert {"Orders", "Clicks", "%RETRY%billing"} <= {line["topic"] for line in records}
    assert (LONG_TOPIC in {line["topic"] for line in records}) == (version == "5.5.0")
    assert {0, 4, 8, 12} == {line["sysFlag"] & 12 for line in records}
    assert {0, 16, 32} <= {line["sysFlag"] & 48 for line in records}
    assert tags_code("🚀🚀") in {line["tagsCode"] for line in entries}
    assert "%LMQ%left" in {line["topic"] for line in entries}
    assert any(
        len(line["physicalOffsets"]) > 1 for line in by_identity(expected, "lookup").values()
    )
    files = [path.parent.name for path in fixture_folder(version).rglob("*") if path.is_file()]
    assert files.count("commitlog") > 2
    assert files.count("index") > 2


def test_every_message_offset_tag_hash_and_key_reads_the_same(
    folder: Path, expected: list[Line]
) -> None:
    with MessageStore.open(folder, CONFIG) as store:
        assert store.recovery.clean
        assert store.recovery.cut_bytes == 0
        assert differences(expected, store_lines(store)) == []
    with MessageStore.open(folder, CONFIG) as store:
        assert differences(expected, store_lines(store)) == []


def test_appending_goes_on_where_rocketmq_stopped(
    folder: Path, expected: list[Line], version: str
) -> None:
    with MessageStore.open(folder, CONFIG) as store:
        append(store, 8, 100, long_topic=version == "5.5.0")
        appended = store_lines(store)
    assert_goes_on(expected, appended)
    with MessageStore.open(folder, CONFIG) as store:
        assert differences(appended, store_lines(store)) == []


def test_after_a_crash_queues_and_keys_are_the_same(folder: Path, expected: list[Line]) -> None:
    (folder / "abort").write_text("4711")
    with MessageStore.open(folder, CONFIG) as store:
        assert not store.recovery.clean
        assert differences(expected, store_lines(store)) == []


def test_queues_and_keys_are_rebuilt_from_the_log_alone(folder: Path, expected: list[Line]) -> None:
    shutil.rmtree(folder / "consumequeue")
    shutil.rmtree(folder / "index")
    (folder / "checkpoint").unlink()
    (folder / "abort").write_text("4711")
    with MessageStore.open(folder, CONFIG) as store:
        assert store.recovery.records_replayed == MESSAGES
        assert differences(expected, store_lines(store)) == []
