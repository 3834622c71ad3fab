import json
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import msgspec
import pytest

from onelog.core.transactions import half_records
from onelog.errors import TransactionNotFoundError
from onelog.message import Message, NewMessage, decode_properties, encode_properties
from onelog.names import CHECKED_OUT_TOPIC, HALF_TOPIC, OP_HALF_TOPIC, SCHEDULE_TOPIC
from onelog.names import CHECKER_GROUP as CHECKER
from onelog.rocketmq import config_files
from onelog.rocketmq.config_files import with_quoted_keys
from onelog.store.message_store import MessageStore
from onelog.store.reader import Fetched, StoreReader
from tests.core.transacting import GROUP, Producers
from tests.core.world import SMALL_STORE, World, entries_of

ROUND_MS = 30_000


@pytest.fixture
def producers(world: World) -> Producers:
    world.topic("orders", 4)
    return Producers(world)


def entries(producers: Producers) -> dict[str, Any]:
    return entries_of(producers.world.core.transactions)


def open_offsets(producers: Producers) -> list[int]:
    return sorted(producers.world.core.transactions.log_offsets)


# -- restarts ------------------------------------------------------------------------------------


@pytest.mark.parametrize("how", ["restart", "crash"])
@pytest.mark.parametrize("rounds", [0, 1])
def test_what_is_open_ended_and_counted_survives(
    producers: Producers, how: str, rounds: int
) -> None:
    producers.join()
    halves = [producers.begin(b"%d" % number) for number in range(6)]
    producers.commit(halves[0])
    producers.roll_back(halves[3])
    producers.advance(rounds * ROUND_MS)
    producers.commit(halves[2])
    later = producers.begin(b"later")
    getattr(producers, how)()
    assert open_offsets(producers) == [1, 4, 5, 6]
    assert producers.world.bodies("orders") == [b"0", b"2"]
    for half in (halves[0], halves[2], halves[3]):
        with pytest.raises(TransactionNotFoundError):
            producers.end(half, commit=True)
    producers.take_asked()
    producers.join()
    producers.advance(ROUND_MS)
    asked = {
        check.half_offset: decode_properties(check.message.properties)
        for _, check in producers.take_asked()
    }
    assert {at: p["TRANSACTION_CHECK_TIMES"] for at, p in asked.items()} == {
        1: str(rounds + 1),
        4: str(rounds + 1),
        5: str(rounds + 1),
        6: "1",
    }
    for half in (halves[1], halves[4], halves[5], later):
        producers.commit(half)
    assert producers.world.bodies("orders") == [b"0", b"2", b"1", b"4", b"5", b"later"]


def test_an_end_that_did_not_reach_the_log_did_not_happen(producers: Producers) -> None:
    half = producers.begin()
    producers.end(half, commit=True, tick=False)
    producers.world.core.checkback.check()
    producers.crash()
    assert open_offsets(producers) == [0]
    producers.commit(half)
    assert producers.world.bodies("orders") == [b"x"]


def test_a_start_reads_what_came_since_the_last_round_however_old_an_open_one_is(
    producers: Producers, monkeypatch: pytest.MonkeyPatch
) -> None:
    oldest = producers.begin(b"oldest")
    for _ in range(50):
        producers.commit(producers.begin())
    producers.advance(ROUND_MS)
    assert entries(producers) == {"0": 0, "position": [51, 50]}
    producers.commit(producers.begin())
    read_from: list[int] = []
    read = StoreReader.read

    def spy(self: StoreReader, topic: str, queue_id: int, offset: int, *how: int) -> Fetched:
        if topic == OP_HALF_TOPIC:
            read_from.append(offset)
        return read(self, topic, queue_id, offset, *how)

    monkeypatch.setattr(StoreReader, "read", spy)
    producers.crash()
    assert read_from == [50]
    assert open_offsets(producers) == [oldest.queue_offset]


def test_a_broker_without_transactions_writes_nothing_about_them(producers: Producers) -> None:
    end = producers.world.store.log_end
    producers.world.core.checkback.check()
    assert producers.world.store.log_end == end
    producers.commit(producers.begin())
    producers.world.core.checkback.check()
    end = producers.world.store.log_end
    producers.world.core.checkback.check()
    assert producers.world.store.log_end == end


def test_a_half_message_that_is_gone_with_its_file_is_reported(
    producers: Producers, caplog: pytest.LogCaptureFixture
) -> None:
    world = producers.world
    producers.begin()
    world.core.checkback.check()
    for _ in range(30):
        world.send("orders", 3, b"x" * 100_000)
    world.clock.advance(SMALL_STORE.retention_ms + 1)
    world.core.tables.snapshot(wait=True)
    world.store.retention.kept_from = None  # As if somebody had deleted the files by hand.
    world.store.retention.run({}, manual=True)
    producers.crash()
    assert "half message 0 is gone from the log" in caplog.text
    assert producers.open_count() == 0


# -- a commit without its operation --------------------------------------------------------------


def commit_torn(producers: Producers, message: NewMessage) -> None:
    """The write of a commit ended, with the process, before its operation."""
    producers.world.store.append([message])
    producers.crash()
    assert producers.open_count() == 1


def half_of(producers: Producers) -> Message:
    return producers.halves()[-1]


def test_a_torn_commit_is_not_delivered_again_by_another_one(producers: Producers) -> None:
    half = producers.begin()
    commit_torn(producers, half_records.committed(half_of(producers), 0))
    with pytest.raises(TransactionNotFoundError, match="was committed"):
        producers.end(half, commit=False)
    producers.commit(half)
    assert producers.world.bodies("orders") == [b"x"]
    assert producers.operations() == [b"0"]
    assert producers.open_count() == 0


@pytest.mark.parametrize("checks", [0, 15])
def test_a_torn_commit_is_not_asked_about_and_not_put_away(
    producers: Producers, checks: int
) -> None:
    producers.join()
    producers.begin()
    producers.advance(checks * ROUND_MS)
    producers.take_asked()
    commit_torn(producers, half_records.committed(half_of(producers), checks))
    producers.join()
    producers.advance(ROUND_MS)
    producers.world.end_tick()
    assert producers.take_asked() == []
    assert producers.operations() == [b"0"]
    assert producers.world.bodies(CHECKED_OUT_TOPIC) == []


def test_a_torn_commit_of_a_delayed_message_is_found_where_it_waits(producers: Producers) -> None:
    half = producers.begin(DELAY="2")
    committed = half_records.committed(half_of(producers), 0)
    delayed = producers.world.core.delay.postpone(committed, 2)
    assert delayed.topic == SCHEDULE_TOPIC
    commit_torn(producers, delayed)
    producers.commit(half)
    producers.world.advance(60_000)
    assert producers.world.bodies("orders") == [b"x"]


def test_a_half_message_without_an_id_is_open_when_it_has_no_operation(
    producers: Producers,
) -> None:
    half = producers.begin(UNIQ_KEY="")
    producers.crash()
    producers.commit(half)
    assert producers.world.bodies("orders") == [b"x"]


# -- RocketMQ ------------------------------------------------------------------------------------


class Theirs:
    """A store as RocketMQ leaves it."""

    def __init__(self, store: MessageStore) -> None:
        self._store = store

    def half(self, body: bytes, **properties: str) -> int:
        """A half message, as it is appended the first time, or again."""
        given = {
            "TRAN_MSG": "true",
            "PGROUP": GROUP,
            "UNIQ_KEY": f"K{body.decode()}",
            "REAL_TOPIC": "orders",
            "REAL_QID": "0",
            **properties,
        }
        message = NewMessage(HALF_TOPIC, 0, body, encode_properties(given))
        return self._store.append([message])[0].queue_offset

    def operation(self, body: bytes, tags: str = "d") -> None:
        properties = encode_properties({"TAGS": tags, "UNIQ_KEY": "op"})
        self._store.append([NewMessage(OP_HALF_TOPIC, 0, body, properties)])


@contextmanager
def taken_over(folder: Path, half: int, op: int) -> Iterator[Theirs]:
    """Write a store, with these positions of RocketMQ's checker."""
    with MessageStore.open(folder, SMALL_STORE) as store:
        yield Theirs(store)
    table = {
        f"{HALF_TOPIC}@{CHECKER}": {"0": half},
        f"{OP_HALF_TOPIC}@{CHECKER}": {"0": op},
    }
    topic = {"topicName": "orders", "readQueueNums": 1, "writeQueueNums": 1, "perm": 6}
    (folder / "config").mkdir()
    for name, content in (
        ("consumerOffset.json", {"offsetTable": table}),
        ("topics.json", {"topicConfigTable": {"orders": topic}}),
    ):
        (folder / "config" / name).write_bytes(msgspec.json.encode(content))


def test_open_transactions_of_rocketmq_go_on_here(tmp_path: Path) -> None:
    with taken_over(tmp_path / "store", 1, 1) as theirs:
        theirs.half(b"done long ago")
        theirs.operation(b"0")
        for body in (b"1", b"2", b"3", b"4", b"5"):
            theirs.half(body)
        theirs.operation(b"1,3,")
        theirs.operation(b"5")
        theirs.operation(b"2", tags="other")
        theirs.operation(b"4x,,-4")
    world = World(tmp_path / "store")
    producers = Producers(world)
    assert open_offsets(producers) == [2, 4]
    producers.join()
    producers.advance(ROUND_MS)
    for _, check in producers.take_asked():
        producers.commit(check, checked=True)
    assert world.bodies("orders") == [b"2", b"4"]
    world.close()


def test_a_half_message_that_rocketmq_appended_again_counts_once(tmp_path: Path) -> None:
    with taken_over(tmp_path / "store", 0, 0) as theirs:
        theirs.half(b"checked")
        spared = theirs.half(b"spared")
        ended = theirs.half(b"ended")
        theirs.half(b"checked", TRANSACTION_CHECK_TIMES="1")
        theirs.half(b"spared", TRAN_PREPARED_QUEUE_OFFSET=str(spared))
        theirs.half(b"ended", TRAN_PREPARED_QUEUE_OFFSET=str(ended))
        theirs.operation(b"%d" % ended)
        theirs.half(b"checked", TRANSACTION_CHECK_TIMES="2")
    world = World(tmp_path / "store")
    producers = Producers(world)
    assert open_offsets(producers) == [4, 6]
    producers.join()
    producers.advance(ROUND_MS)
    asked = {
        bytes(check.message.body): decode_properties(check.message.properties)
        for _, check in producers.take_asked()
    }
    assert {body: p["TRANSACTION_CHECK_TIMES"] for body, p in asked.items()} == {
        b"checked": "3",
        b"spared": "1",
    }
    world.close()


def test_rocketmq_finds_every_open_transaction_behind_the_exported_positions(
    producers: Producers,
) -> None:
    world = producers.world
    producers.commit(producers.begin())
    producers.roll_back(producers.begin())
    producers.begin(b"open")
    producers.commit(producers.begin())
    producers.begin(b"open too")
    producers.restart()
    config_files.export(world.core)
    text = (world.folder / "config" / "consumerOffset.json").read_text()
    exported = json.loads(with_quoted_keys(text))["offsetTable"]
    assert exported[f"{HALF_TOPIC}@{CHECKER}"] == {"0": 2}
    assert exported[f"{OP_HALF_TOPIC}@{CHECKER}"] == {"0": 2}
    for half in producers.halves()[2:]:
        if bytes(half.body) in (b"open", b"open too"):
            world.core.transactions.roll_back(
                GROUP, half.queue_offset, half.log_offset, world.on_stored
            )
    world.end_tick()
    producers.restart()
    config_files.export(world.core)
    text = (world.folder / "config" / "consumerOffset.json").read_text()
    exported = json.loads(with_quoted_keys(text))["offsetTable"]
    assert exported[f"{HALF_TOPIC}@{CHECKER}"] == {"0": 5}
    assert exported[f"{OP_HALF_TOPIC}@{CHECKER}"] == {"0": 4}
