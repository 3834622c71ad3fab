"""Transactions of sessions: messages of several topics that become visible together, or never."""

import logging
import tempfile
from pathlib import Path
from typing import Any
from unittest import mock

import pytest
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule

from onelog.config import StoreConfig
from onelog.core.access import SELF
from onelog.core.transactions import staged
from onelog.core.transactions.staged import AGE_MS_MAX
from onelog.errors import (
    BrokerBusyError,
    InvalidRequestError,
    MessageTooLargeError,
    OnelogError,
    StoreError,
    StoreFullError,
    TopicNotFoundError,
    TransactionNotFoundError,
)
from onelog.message import NewMessage, encode_properties
from onelog.store.appender import Appender
from tests.core.world import HELD_S_MAX, SMALL_STORE, TROUBLES, World, cut

SEVERAL = (("orders", 0, b"a"), ("payments", 1, b"b"), ("orders", 2, b"c"), ("orders", 0, b"d"))
"""Topic, queue and body of what most tests stage."""


class Session:
    """A connection that has transactions."""

    def __init__(self, world: World, channel: str = "session-1") -> None:
        self.world = world
        self.channel = channel
        self.committed: list[tuple[Any, OnelogError | None]] = []

    def begin(self, name: str = "") -> None:
        self.world.core.staged.begin(self.channel, name)

    def stage(self, *messages: tuple[str, int, bytes], name: str = "") -> None:
        """Stage messages, one by one, as a protocol does it."""
        for topic, queue_id, body in messages:
            message = NewMessage(topic, queue_id, body, encode_properties({"KEYS": "k"}))
            self.world.core.staged.stage(self.channel, name, [message])

    def commit(self, name: str = "") -> None:
        def told(_: Any, appended: Any, error: OnelogError | None) -> None:
            self.committed.append((appended, error))

        self.world.core.staged.commit(self.channel, name, told)

    def seen(self) -> list[bytes]:
        """What consumers see of `SEVERAL`, in the order of queues."""
        queues = sorted({(topic, queue_id) for topic, queue_id, _ in SEVERAL})
        return [body for queue in queues for body in self.world.bodies(*queue)]


ALL = [b"a", b"d", b"c", b"b"]


@pytest.fixture(params=[1 << 10, 20, 1], ids=["in memory", "in the log, too", "in the log"])
def session(
    tmp_path: Path, request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch
) -> Session:
    monkeypatch.setattr(staged, "GATHERED_BYTES_MAX", request.param)
    world = World(tmp_path / "store")
    world.topic("orders")
    world.topic("payments")
    return Session(world)


def test_messages_of_several_topics_are_visible_together_when_they_are_committed(
    session: Session,
) -> None:
    session.begin()
    session.stage(*SEVERAL)
    assert session.seen() == []
    session.commit()
    assert session.seen() == ALL
    ((appended, error),) = session.committed
    assert error is None
    assert [place.queue_offset for place in appended] == [0, 0, 0, 1]
    assert len(session.world.core.staged) == 0


def test_a_staged_message_is_published_with_all_that_it_has(session: Session) -> None:
    world = session.world
    message = NewMessage(
        "orders",
        1,
        memoryview(b"body"),
        encode_properties({"TAGS": "t"}),
        7,
        0x1,
        1_234,
        b"\x01\x02\x03\x04\0\0\0\x05",
        b"\x05\x06\x07\x08\0\0\0\x09",
        3,
        99,
        1,
        ("%LMQ%mine",),
    )
    session.begin()
    world.core.staged.stage(session.channel, "", [message])
    session.commit()
    (found,) = world.messages("orders", 1)
    assert (bytes(found.body), found.tags, found.flag, found.sys_flag) == (b"body", "t", 7, 0x1)
    assert (found.born_ms, found.born_host) == (1_234, message.born_host)
    assert (found.store_host, found.reconsume_times) == (message.store_host, 3)
    assert found.prepared_offset == 99
    assert world.bodies("%LMQ%mine") == [b"body"]


def test_under_sync_flush_a_commit_is_answered_when_it_is_on_disk(tmp_path: Path) -> None:
    world = World(tmp_path / "store", StoreConfig(flush="sync", segment_bytes=1 << 20))
    world.topic("orders")
    session = Session(world)
    session.begin()
    session.stage(("orders", 0, b"a"))
    session.commit()
    assert session.committed == []
    world.run_posted()
    assert [error for _, error in session.committed] == [None]
    assert world.store.log.flushed == world.store.log_end
    world.power_loss()
    assert world.bodies("orders") == [b"a"]


def test_of_an_aborted_transaction_nothing_is_ever_seen(session: Session) -> None:
    session.begin()
    session.stage(*SEVERAL)
    session.world.core.staged.abort(session.channel)
    session.world.restart()
    assert session.seen() == []
    with pytest.raises(TransactionNotFoundError, match="has ended, or never began"):
        session.commit()
    session.begin()
    session.stage(SEVERAL[0])
    session.commit()
    assert session.seen() == [b"a"], "a transaction of the same name is a new one"


def test_the_end_of_a_session_aborts_what_it_has_open_and_nothing_else(session: Session) -> None:
    other = Session(session.world, "session-2")
    for each, body in ((session, b"mine"), (other, b"theirs")):
        each.begin("one")
        each.begin("two")
        each.stage(("orders", 0, body), name="one")
    session.world.broker.groups.channel_closed(session.channel)
    assert len(session.world.core.staged) == 2
    other.commit("one")
    assert session.world.bodies("orders") == [b"theirs"]


def test_a_session_that_ends_while_its_commit_waits_for_the_disk_leaves_nothing(
    session: Session,
) -> None:
    session.begin()
    session.stage(*SEVERAL)
    waiting = []
    with mock.patch.object(session.world.core.cold_reads, "is_ready") as is_ready:
        is_ready.side_effect = lambda places, again: waiting.append(again)
        session.commit()
    with pytest.raises(InvalidRequestError, match="is being committed"):
        session.stage(SEVERAL[0])
    session.world.broker.groups.channel_closed(session.channel)
    waiting[0]()
    assert session.committed == [], "nobody is left to be told"
    assert session.seen() == []


def test_transactions_of_one_session_are_told_apart_by_name(session: Session) -> None:
    session.begin("one")
    session.begin("two")
    with pytest.raises(InvalidRequestError, match="'one' has begun already"):
        session.begin("one")
    session.stage(("orders", 0, b"first"), name="one")
    session.stage(("orders", 0, b"second"), name="two")
    session.commit("two")
    assert session.world.bodies("orders") == [b"second"]
    session.commit("one")
    assert session.world.bodies("orders") == [b"second", b"first"]


def test_an_empty_transaction_can_be_committed(session: Session) -> None:
    session.begin()
    session.commit()
    assert session.committed == [([], None)]


def test_a_crash_before_the_commit_leaves_nothing(session: Session) -> None:
    session.begin()
    session.stage(*SEVERAL)
    session.world.crash()
    assert session.seen() == []
    with pytest.raises(TransactionNotFoundError):
        session.commit()


@pytest.mark.parametrize("lost", range(1, 7))
def test_of_a_commit_that_a_crash_cut_off_all_is_seen_or_nothing(
    session: Session, lost: int
) -> None:
    world = session.world
    session.begin()
    session.stage(*SEVERAL)
    world.broker.publish.send(SELF, NewMessage("orders", 0, b"before"), world.on_stored)
    session.commit()
    cut(world, lost)
    world.crash()
    # The commit is six records: what follows, the four messages, and that they are all there.
    expected = [b"before", *ALL] if lost < 6 else [b"before"]
    assert session.seen() == expected, "at once"
    world.send("orders", 2, b"after")
    for again in (world.crash, world.restart):
        again()
        assert sorted(session.seen()) == sorted([*expected, b"after"])


def test_a_broker_does_not_start_with_half_a_commit_that_it_cannot_complete(
    session: Session, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(store: Appender, messages: object) -> None:
        raise StoreFullError("no room")

    session.begin()
    session.stage(*SEVERAL)
    session.commit()
    cut(session.world, 3)
    with monkeypatch.context() as patched:
        patched.setattr(Appender, "append", refuse)
        with pytest.raises(StoreError, match=r"visible in part.*no room"):
            session.world.crash()
    session.world.store.close()
    session.world.start()
    assert session.seen() == ALL


@pytest.mark.parametrize("trouble", TROUBLES)
def test_a_commit_that_cannot_be_written_is_told_and_leaves_nothing(
    session: Session, trouble: Exception
) -> None:
    session.begin()
    session.stage(*SEVERAL)
    with mock.patch.object(session.world.store, "append", side_effect=trouble):
        session.commit()
    ((appended, error),) = session.committed
    assert appended is None
    assert isinstance(error, OnelogError)
    session.world.crash()
    assert session.seen() == []


def test_a_message_that_could_not_be_staged_is_not_part_of_the_transaction(
    session: Session, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(staged, "GATHERED_BYTES_MAX", 1)
    session.begin()
    session.stage(*SEVERAL[:2])
    full = StoreFullError("disk is full")
    with (
        mock.patch.object(session.world.store, "append", side_effect=full),
        pytest.raises(StoreFullError),
    ):
        session.stage(SEVERAL[2])
    session.stage(SEVERAL[3])
    session.commit()
    assert session.seen() == [b"a", b"d", b"b"]


def test_a_topic_that_was_deleted_meanwhile_fails_the_commit(session: Session) -> None:
    session.begin()
    session.stage(*SEVERAL)
    session.world.broker.topics.delete(SELF, "payments")
    session.commit()
    ((_, error),) = session.committed
    assert isinstance(error, TopicNotFoundError)
    assert session.world.bodies("orders") == []


def test_messages_are_checked_when_they_are_staged(session: Session) -> None:
    session.begin()
    with pytest.raises(TopicNotFoundError):
        session.stage(("nowhere", 0, b"a"))
    with pytest.raises(MessageTooLargeError):
        session.stage(("orders", 0, b"x" * (SMALL_STORE.body_bytes_max + 1)))
    session.stage(SEVERAL[0])
    session.commit()
    assert session.seen() == [b"a"], "what was refused is not part of it"


def test_a_transaction_has_limits(session: Session, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(staged, "COUNT_MAX", 3)
    monkeypatch.setattr(staged, "BYTES_MAX", 1_000)
    monkeypatch.setattr(staged, "OPEN_MAX", 1)
    session.begin()
    with pytest.raises(BrokerBusyError, match="1 transactions are open"):
        session.begin("one more")
    with pytest.raises(MessageTooLargeError, match="at most 3 messages and 1000 bytes"):
        session.stage(("orders", 0, b"x" * 1_000))
    session.stage(*SEVERAL[:3])
    with pytest.raises(MessageTooLargeError, match="commit more often"):
        session.stage(SEVERAL[3])
    session.commit()
    assert len(session.seen()) == 3


def test_a_transaction_that_is_too_old_is_aborted(session: Session) -> None:
    session.begin("empty")
    session.begin()
    session.stage(*SEVERAL)
    session.world.advance(AGE_MS_MAX + 60_000)
    with pytest.raises(TransactionNotFoundError, match="60 minutes after its first message"):
        session.commit()
    session.stage(SEVERAL[0], name="empty")
    session.commit("empty")
    assert session.seen() == [b"a"], "nothing was staged in it until now"


def test_what_is_staged_outlives_the_files_of_the_log_while_its_transaction_is_open(
    session: Session, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(staged, "GATHERED_BYTES_MAX", 1)
    world = session.world
    session.begin()
    session.stage(*SEVERAL)
    for _ in range(30):
        world.send("orders", 3, b"x" * 100_000)
    world.clock.advance(SMALL_STORE.retention_ms + 1)
    world.store.retention.disk = lambda folder: 88.0
    assert world.retain().segments_deleted == 0
    session.commit()
    assert session.seen() == ALL
    assert world.retain().segments_deleted > 0


def test_what_is_on_disk_only_is_read_before_it_is_committed(session: Session) -> None:
    session.begin()
    session.stage(*SEVERAL)
    with mock.patch.object(session.world.store, "is_warm", return_value=False):
        session.commit()
    assert session.seen() == ALL


@pytest.mark.usefixtures("no_garbage")
def test_the_largest_commit_holds_the_loop_for_a_moment_only(tmp_path: Path) -> None:
    world = World(tmp_path / "store", StoreConfig(segment_bytes=64 << 20))
    world.topic("orders")
    session = Session(world)
    # The shortest of a few: what else the machine does makes some of them longer.
    tries = 0
    while not tries or (tries < 5 and world.timer.longest_cpu_s >= HELD_S_MAX):
        tries += 1
        session.begin()
        session.stage(*[("orders", n % 4, b"%d" % n * 20) for n in range(staged.APPEND_COUNT_MAX)])
        world.timer.longest_cpu_s = 0.0
        world.timer.measured(session.commit)
    assert world.timer.longest_cpu_s < HELD_S_MAX
    expected = tries * staged.APPEND_COUNT_MAX
    assert sum(world.store.max_offset("orders", n) for n in range(4)) == expected


@pytest.mark.usefixtures("no_garbage")
def test_a_commit_to_very_many_new_queues_leaves_others_their_turn(tmp_path: Path) -> None:
    world = World(tmp_path / "store", StoreConfig(segment_bytes=64 << 20, queue_file_entries=100))
    names = [f"new-{number}" for number in range(4_900)]
    for name in names:
        world.topic(name, queues=1)
    session = Session(world)
    session.begin()
    session.stage(*[(name, 0, b"x" * 40) for name in names])
    world.timer.longest_cpu_s = 0.0
    world.timer.measured(session.commit)
    while not session.committed:
        world.end_tick()
        world.advance(1)
    assert world.timer.longest_cpu_s < 2 * HELD_S_MAX
    assert sum(world.store.max_offset(name, 0) for name in names) == len(names)


@pytest.fixture
def large(session: Session, monkeypatch: pytest.MonkeyPatch) -> Session:
    """A session whose transactions take an append for each part."""
    monkeypatch.setattr(staged, "GATHERED_BYTES_MAX", 1)
    monkeypatch.setattr(staged, "APPEND_COUNT_MAX", 1)
    monkeypatch.setattr(staged, "SOME_COUNT_MAX", 1)
    return session


def test_a_transaction_that_takes_several_appends_is_told_of_behind_the_last(
    large: Session,
) -> None:
    world = large.world
    large.begin()
    large.stage(*SEVERAL)
    large.commit()
    seen = [large.seen()]
    while world.soon or not large.committed:
        world.end_tick()
        world.advance(1)
        seen.append(large.seen())
        assert not large.committed or len(seen[-1]) == 4
    assert len(seen[0]) == 1
    assert large.seen() == ALL
    ((appended, error),) = large.committed
    assert (len(appended), error) == (4, None)
    world.restart()
    assert large.seen() == ALL
    assert world.core.staged.parts() == []


@pytest.mark.parametrize("appends", range(1, 5))
@pytest.mark.parametrize("lost", range(5))
def test_of_several_appends_all_are_made_once_the_first_is(
    large: Session, appends: int, lost: int
) -> None:
    world = large.world
    following: list[Any] = []
    world.core.staged.schedule = lambda _, call: following.append(call)
    large.begin()
    large.stage(*SEVERAL)
    large.commit()
    for _ in range(appends - 1):
        following.pop()()
    assert len(large.seen()) == appends
    world.send("orders", 2, b"other")
    if lost:
        cut(world, lost)
    world.crash()
    seen = [each for each in large.seen() if each != b"other"]
    assert seen in (ALL, [])
    assert seen == ALL or (appends, lost) == (1, 4)
    for again in (world.crash, world.restart):
        again()
        assert [each for each in large.seen() if each != b"other"] == seen


def test_a_large_commit_goes_on_when_there_is_room_again(large: Session) -> None:
    world = large.world
    large.begin()
    large.stage(*SEVERAL)
    large.commit()
    full = StoreFullError("disk is full")
    with mock.patch.object(world.store, "append", side_effect=full):
        for _ in range(3):
            world.end_tick()
            world.advance(10)
    assert not large.committed
    while not large.committed:
        world.advance(1_000)
        world.end_tick()
    assert large.seen() == ALL


def test_two_large_commits_do_not_get_in_each_others_way(large: Session) -> None:
    world = large.world
    for name in ("one", "two"):
        large.begin(name)
        large.stage(*SEVERAL, name=name)
    large.commit("one")
    large.commit("two")
    world.end_tick()
    cut(world, 2)
    world.crash()
    assert sorted(large.seen()) == sorted(ALL * 2)


def test_what_is_left_of_a_large_commit_outlives_a_topic(large: Session) -> None:
    world = large.world
    large.begin()
    large.stage(*SEVERAL)
    large.commit()
    world.broker.topics.delete(SELF, "payments")
    while not large.committed:
        world.end_tick()
        world.advance(1)
    assert world.bodies("orders") == [b"a", b"d"]
    assert large.committed[0][1] is None


def test_all_transactions_together_have_a_limit(
    session: Session, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(staged, "BYTES_OF_ALL_MAX", 1_000)
    for name in ("one", "two"):
        session.begin(name)
    session.stage(("orders", 0, b"x" * 600), name="one")
    with pytest.raises(BrokerBusyError, match="commit some of them"):
        session.stage(("orders", 0, b"x" * 600), name="two")
    session.commit("one")
    session.stage(("orders", 0, b"x" * 600), name="two")


class StagedModel(RuleBasedStateMachine):
    """Sessions with transactions over two topics, and crashes that take the end of the log."""

    names = st.sampled_from(["a", "b", "c"])

    def __init__(self) -> None:
        super().__init__()
        logging.getLogger("onelog").setLevel(logging.CRITICAL)
        self._gathered, staged.GATHERED_BYTES_MAX = staged.GATHERED_BYTES_MAX, 60
        self._temporary = tempfile.TemporaryDirectory()
        self.world = World(Path(self._temporary.name) / "store")
        self.world.topic("orders", 2)
        self.world.topic("payments", 2)
        self.staged: dict[str, list[bytes]] = {}
        """What is in the transactions that are open."""
        self.committed: list[list[bytes]] = []
        self.number = 0

    @rule(name=names, count=st.integers(1, 5), queue=st.integers(0, 3), size=st.integers(0, 40))
    def stages(self, name: str, count: int, queue: int, size: int) -> None:
        messages = []
        for number in range(count):
            self.number += 1
            topic, queue_id = ("orders", "payments")[(queue + number) % 2], queue // 2
            messages.append(NewMessage(topic, queue_id, b"%d %b" % (self.number, b"x" * size)))
        if name not in self.staged:
            self.world.core.staged.begin("session", name)
        self.world.core.staged.stage("session", name, messages)
        self.staged.setdefault(name, []).extend(bytes(message.body) for message in messages)

    @rule(name=names)
    def commits(self, name: str) -> None:
        if name in self.staged:
            told: list[OnelogError | None] = []
            self.world.core.staged.commit("session", name, lambda *end: told.append(end[2]))
            assert told == [None]
            self.committed.append(self.staged.pop(name))

    @rule(name=names)
    def aborts(self, name: str) -> None:
        if self.staged.pop(name, None) is not None:
            self.world.core.staged.abort("session", name)

    @rule()
    def others_send(self) -> None:
        self.world.send("orders", 0, b"another's")

    @rule()
    def session_ends(self) -> None:
        self.world.broker.groups.channel_closed("session")
        self.staged.clear()

    @rule()
    def broker_is_killed(self) -> None:
        self.world.crash()
        self.staged.clear()

    @rule(name=names, lost=st.integers(1, 8))
    def a_crash_takes_the_end_of_a_commit(self, name: str, lost: int) -> None:
        self.stages(name, 1 + lost // 2, lost % 4, lost)
        count = len(self.staged[name])
        self.commits(name)
        # Of its records, the first says what follows, and the last that it was all.
        cut(self.world, min(lost, count + 2))
        if lost >= count + 2:
            self.committed.pop()
        self.broker_is_killed()

    def seen(self) -> set[bytes]:
        queues = [(topic, queue_id) for topic in ("orders", "payments") for queue_id in (0, 1)]
        bodies = [body for queue in queues for body in self.world.bodies(*queue)]
        bodies = [body for body in bodies if body != b"another's"]
        assert len(set(bodies)) == len(bodies), "each once"
        return set(bodies)

    @invariant()
    def what_is_committed_is_seen_whole_and_nothing_else(self) -> None:
        assert self.seen() == {body for each in self.committed for body in each}

    def teardown(self) -> None:
        self.world.close()
        self._temporary.cleanup()
        staged.GATHERED_BYTES_MAX = self._gathered
        logging.getLogger("onelog").setLevel(logging.NOTSET)


StagedModel.TestCase.settings = settings(
    max_examples=20,
    stateful_step_count=20,
    deadline=None,
    suppress_health_check=[HealthCheck.too_slow, HealthCheck.filter_too_much],
)
TestStagedModel = StagedModel.TestCase
