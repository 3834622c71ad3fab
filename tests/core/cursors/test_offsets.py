import tempfile
from collections.abc import Sequence
from pathlib import Path
from unittest import mock

import pytest
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule

from onelog.core.access import SELF
from onelog.errors import (
    GroupNotFoundError,
    InvalidQueueError,
    MessageTooLargeError,
    OffsetOutOfRangeError,
    TopicNotFoundError,
)
from onelog.message import Appended, NewMessage
from onelog.names import TABLES_TOPIC
from tests.core.world import World


def test_commits_are_recorded_together_and_only_when_something_changed(world: World) -> None:
    world.topic("orders", 4)
    for queue_id in range(4):
        for offset in range(10):
            world.commit("readers", "orders", queue_id, offset)
    before = world.store.max_offset(TABLES_TOPIC, 0)
    world.advance(5_000)
    assert world.store.max_offset(TABLES_TOPIC, 0) == before + 1
    world.commit("readers", "orders", 0, 9)
    world.advance(5_000)
    assert world.store.max_offset(TABLES_TOPIC, 0) == before + 1


def test_a_crash_loses_only_the_commits_of_the_last_seconds(world: World) -> None:
    world.topic("orders")
    world.fill("orders", 0, 20)
    world.commit("readers", "orders", 0, 10)
    world.advance(5_000)
    world.commit("readers", "orders", 0, 20)
    world.crash()
    assert world.broker.cursors.query(SELF, "readers", "orders", 0) == 10


def test_a_clean_stop_loses_nothing(world: World) -> None:
    world.topic("orders")
    world.fill("orders", 1, 20)
    world.commit("readers", "orders", 1, 20)
    world.restart()
    assert world.broker.cursors.query(SELF, "readers", "orders", 1) == 20


def test_a_position_that_cannot_be_recorded_keeps_no_other_from_it(
    world: World, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    for topic in ("bad", "orders"):
        world.topic(topic)
        world.fill(topic, 0, 7)
        world.commit("readers", topic, 0, 5)
    append = world.store.append

    def picky(messages: Sequence[NewMessage]) -> list[Appended]:
        if any(b"bad@readers" in bytes(message.body) for message in messages):
            raise MessageTooLargeError("no segment has room for it")
        return append(messages)

    with monkeypatch.context() as patched:
        patched.setattr(world.store, "append", picky)
        patched.setattr(world.store, "append_own", picky)
        world.advance(5_000)
        assert "bad@readers" in caplog.text
        caplog.clear()
        world.commit("others", "orders", 0, 7)
        world.advance(5_000)
        assert "bad@readers" not in caplog.text
    world.commit("readers", "bad", 0, 6)
    world.advance(5_000)
    world.crash()
    assert world.broker.cursors.query(SELF, "others", "orders", 0) == 7
    assert world.broker.cursors.query(SELF, "readers", "bad", 0) == 6


def test_a_commit_may_go_back(world: World) -> None:
    world.topic("orders")
    world.commit("readers", "orders", 0, 20)
    world.commit("readers", "orders", 0, 10)
    assert world.broker.cursors.query(SELF, "readers", "orders", 0) == 10


def test_what_cannot_be_a_position_is_refused(world: World) -> None:
    world.topic("orders", 4)
    with pytest.raises(OffsetOutOfRangeError):
        world.commit("readers", "orders", 0, -1)
    with pytest.raises(InvalidQueueError):
        world.commit("readers", "orders", 4, 1)
    with pytest.raises(InvalidQueueError):
        world.commit("readers", "orders", -1, 1)
    with pytest.raises(TopicNotFoundError):
        world.commit("readers", "nowhere", 0, 1)
    with pytest.raises(GroupNotFoundError):
        world.broker.cursors.commit(SELF, "strangers", "orders", 0, 1)


def test_a_new_group_starts_a_young_queue_at_its_first_message(world: World) -> None:
    world.topic("orders")
    assert world.broker.cursors.query(SELF, "readers", "orders", 0) is None
    world.send("orders")
    assert world.broker.cursors.query(SELF, "readers", "orders", 0) == 0
    assert world.broker.cursors.query(SELF, "readers", "orders", 0, zero_if_missing=False) is None


def test_a_new_group_decides_itself_where_the_first_message_is_far_away(world: World) -> None:
    world.topic("orders")
    world.send("orders")
    for _ in range(5):
        world.send("orders", 1, b"x" * 10_000)
    world.memory_bytes = 100_000
    world.restart()
    assert world.broker.cursors.query(SELF, "readers", "orders", 0) is None
    assert world.broker.cursors.query(SELF, "readers", "orders", 1) is None


def test_a_reset_is_recorded_at_once_and_sends_the_next_pull_there_once(world: World) -> None:
    world.topic("orders", 2)
    for _ in range(5):
        world.send("orders")
    world.commit("readers", "orders", 0, 5)
    world.core.offsets.reset("readers", "orders", {0: 2})
    assert world.broker.cursors.query(SELF, "readers", "orders", 0) == 2
    first = world.pull(5)
    assert (first.status.name, first.next_offset) == ("OFFSET_RESET", 2)
    assert (first.min_offset, first.max_offset) == (0, 5)
    assert world.pull(2).status.name == "FOUND"
    world.crash()
    assert world.broker.cursors.query(SELF, "readers", "orders", 0) == 2


def test_a_commit_after_a_reset_is_ignored_until_the_consumer_was_told(world: World) -> None:
    world.topic("orders", 2)
    world.send("orders")
    world.core.offsets.reset("readers", "orders", {0: 0})
    world.commit("readers", "orders", 0, 1)
    world.commit("readers", "orders", 1, 1)
    world.pull(1)
    assert world.broker.cursors.query(SELF, "readers", "orders", 0) == 0
    assert world.broker.cursors.query(SELF, "readers", "orders", 1) == 1
    world.commit("readers", "orders", 0, 1)
    assert world.broker.cursors.query(SELF, "readers", "orders", 0) == 1


def test_a_clone_replaces_the_other_groups_position(world: World) -> None:
    world.topic("orders", 4)
    world.fill("orders", 0, 5)
    world.commit("readers", "orders", 0, 5)
    world.commit("others", "orders", 3, 9)
    world.core.offsets.clone("readers", "others", "orders")
    assert world.core.offsets.of("others", "orders") == {0: 5}
    world.crash()
    assert world.core.offsets.of("others", "orders") == {0: 5}
    world.core.offsets.clone("nobody", "others", "orders")
    assert world.core.offsets.of("others", "orders") == {0: 5}


def test_positions_can_be_listed_by_group_and_by_topic(world: World) -> None:
    world.topic("orders")
    world.topic("bills")
    world.commit("readers", "orders", 0, 1)
    world.commit("readers", "bills", 0, 1)
    world.commit("others", "bills", 0, 1)
    assert world.core.offsets.topics_of("readers") == ["orders", "bills"]
    assert world.core.offsets.groups_of("bills") == ["readers", "others"]


class Positions(RuleBasedStateMachine):
    """Positions against a model, with restarts and kills as moves."""

    groups = st.sampled_from(["g", "h", "with@sign"])
    topics = st.sampled_from(["orders", "bills"])
    queues = st.integers(0, 2)

    def __init__(self) -> None:
        super().__init__()
        self._temporary = tempfile.TemporaryDirectory()
        self.world = World(Path(self._temporary.name) / "store")
        for topic in ("orders", "bills"):
            self.world.topic(topic, 3)
            for queue_id in range(3):
                self.world.fill(topic, queue_id, 50)
        self.now: dict[tuple[str, str], dict[int, int]] = {}
        self.recorded: dict[tuple[str, str], dict[int, int]] = {}

    def _record(self) -> None:
        self.recorded = {cursor: dict(queues) for cursor, queues in self.now.items()}

    @rule(group=groups, topic=topics, queue_id=queues, offset=st.integers(0, 50))
    def commit(self, group: str, topic: str, queue_id: int, offset: int) -> None:
        self.world.core.offsets.commit(group, topic, queue_id, offset)
        self.now.setdefault((group, topic), {})[queue_id] = offset

    @rule()
    def five_seconds_pass(self) -> None:
        self.world.advance(5_000)
        self._record()

    @rule()
    def a_part_is_recorded(self) -> None:
        offsets = self.world.core.offsets
        with mock.patch("onelog.core.cursors.offsets.PART_ENTRIES", 1):
            cursor = next(iter(offsets._passing or offsets._dirty), None)
            offsets.flush_some()
        if cursor in self.now:
            self.recorded[cursor] = dict(self.now[cursor])

    @rule()
    def snapshot(self) -> None:
        self.world.core.tables.snapshot(wait=True)
        self._record()

    @rule(source=groups, other=groups, topic=topics)
    def clone(self, source: str, other: str, topic: str) -> None:
        self.world.core.offsets.clone(source, other, topic)
        if (source, topic) in self.now:
            self.now[other, topic] = dict(self.now[source, topic])
            for cursor in ((source, topic), (other, topic)):
                self.recorded[cursor] = dict(self.now[cursor])

    @rule(group=groups)
    def remove_group(self, group: str) -> None:
        offsets = self.world.core.offsets
        self.world.core.tables.write(offsets.removal(group=group))
        for kept in (self.now, self.recorded):
            for cursor in [cursor for cursor in kept if cursor[0] == group]:
                del kept[cursor]

    @rule()
    def restart(self) -> None:
        self.world.restart()
        self._record()

    @rule()
    def kill(self) -> None:
        self.world.crash()
        self.now = {cursor: dict(queues) for cursor, queues in self.recorded.items()}

    @invariant()
    def positions_are_the_models(self) -> None:
        found = self.world.core.offsets.all()
        assert {cursor: queues for cursor, queues in found.items() if queues} == self.now

    def teardown(self) -> None:
        self.world.close()
        self._temporary.cleanup()


Positions.TestCase.settings = settings(
    max_examples=25,
    stateful_step_count=20,
    deadline=None,
    suppress_health_check=[HealthCheck.too_slow],
)
TestPositions = Positions.TestCase
