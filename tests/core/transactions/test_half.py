import logging
import tempfile
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import (
    Bundle,
    RuleBasedStateMachine,
    consumes,
    invariant,
    multiple,
    rule,
)

from onelog.config import BrokerConfig
from onelog.core.access import SELF
from onelog.core.transactions import half as transactions_module
from onelog.core.transactions.checkback import Check
from onelog.errors import (
    BrokerBusyError,
    FlushTimeoutError,
    InvalidQueueError,
    MessageError,
    MessageTooLargeError,
    PropertiesTooLargeError,
    StoreFullError,
    TopicNotFoundError,
    TopicPermissionError,
    TransactionForeignError,
    TransactionLateError,
    TransactionNotFoundError,
)
from onelog.message import (
    Appended,
    LogOffset,
    NewMessage,
    QueueOffset,
    SysFlag,
    decode_properties,
)
from onelog.names import CHECKED_OUT_TOPIC, HALF_TOPIC, OP_HALF_TOPIC
from tests.core.transacting import GROUP, Producers
from tests.core.world import SMALL_STORE, World

ROUND_MS = 30_000


@pytest.fixture
def producers(world: World) -> Producers:
    world.topic("orders", 4)
    return Producers(world)


# -- ends ----------------------------------------------------------------------------------------


def test_a_half_message_is_stored_where_no_consumer_looks(producers: Producers) -> None:
    where = producers.begin(b"pay", 3, TAGS="t")
    assert producers.world.bodies("orders", 3) == []
    (half,) = producers.halves()
    assert (half.queue_offset, half.log_offset) == (where.queue_offset, where.log_offset)
    assert (bytes(half.body), half.queue_id, half.sys_flag) == (b"pay", 0, 0)
    assert decode_properties(half.properties) == {
        "TRAN_MSG": "true",
        "PGROUP": GROUP,
        "UNIQ_KEY": "U0",
        "TAGS": "t",
        "__transactionId__": "U0",
        "REAL_TOPIC": "orders",
        "REAL_QID": "3",
    }


def test_a_commit_delivers_what_was_sent(producers: Producers) -> None:
    world = producers.world
    message = producers.message(b"pay", 3, TAGS="t")._replace(
        flag=9, reconsume_times=2, sys_flag=4 | 0x301, born_host=bytes(range(8))
    )
    world.publish(message)
    world.end_tick()
    half = world.told.pop().appended
    producers.commit(half)
    (found,) = world.messages("orders", 3)
    assert (bytes(found.body), found.flag, found.reconsume_times) == (b"pay", 9, 2)
    assert (found.born_ms, found.born_host) == (message.born_ms, message.born_host)
    assert found.sys_flag == SysFlag.COMMITTED | 0x301
    assert found.prepared_offset == half.log_offset
    assert decode_properties(found.properties) == {
        "PGROUP": GROUP,
        "UNIQ_KEY": "U0",
        "TAGS": "t",
        "__transactionId__": "U0",
    }
    assert world.store.find_by_key("orders", "U0") == [found.log_offset]


def test_a_commit_wakes_who_waits_for_the_message(producers: Producers) -> None:
    woken: list[bool] = []
    producers.world.core.waiting.wait(
        (("orders", 0),), 60_000, lambda wait, late: woken.append(late)
    )
    half = producers.begin()
    assert woken == []
    producers.commit(half)
    assert woken == [False]


def test_a_rollback_delivers_nothing_and_leaves_an_operation(producers: Producers) -> None:
    producers.begin(b"a")
    producers.roll_back(producers.begin(b"b"))
    assert producers.world.bodies("orders") == []
    (operation,) = producers.world.messages(OP_HALF_TOPIC)
    assert (bytes(operation.body), operation.tags) == (b"1", "d")
    assert producers.open_count() == 1


def test_what_ends_in_one_tick_is_one_write_with_one_operation(
    producers: Producers, monkeypatch: pytest.MonkeyPatch
) -> None:
    halves = [producers.begin(b"%d" % number) for number in range(5)]
    writes: list[list[str]] = []
    append = producers.world.store.append

    def spy(messages: Sequence[NewMessage]) -> list[Appended]:
        writes.append([message.topic for message in messages])
        return append(messages)

    monkeypatch.setattr(producers.world.store, "append", spy)
    for half in halves:
        producers.end(half, commit=half.queue_offset != 2, tick=False)
    producers.world.end_tick()
    assert writes == [["orders"] * 4 + [OP_HALF_TOPIC]]
    assert producers.operations() == [b"0,1,2,3,4"]
    assert producers.world.bodies("orders") == [b"0", b"1", b"3", b"4"]
    places = [told.appended for told in producers.world.told]
    assert [place and place.queue_offset for place in places] == [0, 1, None, 2, 3]


def test_many_ends_in_one_tick_keep_the_operations_small(producers: Producers) -> None:
    world = producers.world
    for number in range(450):
        world.publish(producers.message(b"%d" % number))
    world.end_tick()
    for told in world.told:
        producers.end(told.appended, commit=True, tick=False)
    world.end_tick()
    assert [body.count(b",") + 1 for body in producers.operations()] == [200, 200, 50]
    assert producers.open_count() == 0
    assert len(world.bodies("orders")) == 450


def test_a_delay_begins_with_the_commit(producers: Producers) -> None:
    half = producers.begin(b"later", DELAY="1")
    producers.world.advance(5_000)
    producers.commit(half)
    producers.world.advance(999)
    assert producers.world.bodies("orders") == []
    producers.world.advance(1)
    assert producers.world.bodies("orders") == [b"later"]


def test_a_message_that_only_looks_like_a_half_message_is_a_plain_one(producers: Producers) -> None:
    message = producers.message(b"plain", XTRAN_MSG="true", TRAN_MSG="false")._replace(sys_flag=0)
    producers.world.publish(message)
    producers.world.end_tick()
    assert producers.world.bodies("orders") == [b"plain"]
    assert producers.open_count() == 0


# -- bad input -----------------------------------------------------------------------------------


def test_what_cannot_be_a_half_message_is_refused_at_once(producers: Producers) -> None:
    world = producers.world
    with pytest.raises(MessageError, match="PGROUP"):
        world.publish(producers.message(PGROUP=""))
    with pytest.raises(TopicNotFoundError):
        world.publish(producers.message()._replace(topic="nowhere"))
    with pytest.raises(TopicPermissionError):
        world.publish(producers.message()._replace(topic=HALF_TOPIC))
    with pytest.raises(InvalidQueueError):
        world.publish(producers.message(queue_id=4))
    with pytest.raises(PropertiesTooLargeError):
        world.publish(producers.message(KEYS="k" * 32_690))
    assert producers.halves() == []


def test_nobody_ends_a_transaction_twice(producers: Producers) -> None:
    half = producers.begin()
    producers.commit(half)
    for commit in (True, False):
        with pytest.raises(TransactionNotFoundError, match="has ended"):
            producers.end(half, commit)
    other = producers.begin()
    producers.end(other, commit=False, tick=False)
    with pytest.raises(TransactionNotFoundError):
        producers.end(other, commit=True)
    producers.world.end_tick()
    assert producers.world.bodies("orders") == [b"x"]
    assert producers.operations() == [b"0", b"1"]


def test_an_unknown_or_foreign_half_message_is_refused_without_a_change(
    producers: Producers,
) -> None:
    half = producers.begin()
    for queue_offset, log_offset in (
        (half.queue_offset + 1, half.log_offset),
        (-1, half.log_offset),
        (half.queue_offset, half.log_offset + 1),
        (half.queue_offset, 1 << 40),
    ):
        wrong = Appended(LogOffset(log_offset), QueueOffset(queue_offset), half.size)
        with pytest.raises(TransactionNotFoundError):
            producers.end(wrong, commit=True)
    with pytest.raises(TransactionForeignError):
        producers.end(half, commit=True, group="others")
    with pytest.raises(TransactionForeignError):
        producers.end(half, commit=False, group="others", checked=True)
    assert (producers.world.bodies("orders"), producers.operations()) == ([], [])
    producers.commit(half)


def test_the_end_of_a_chosen_immunity_is_the_end_of_unasked_commits(producers: Producers) -> None:
    half = producers.begin(CHECK_IMMUNITY_TIME_IN_SECONDS="10")
    usual = producers.begin(b"usual")
    producers.world.clock.advance(10_001)
    for commit in (True, False):
        with pytest.raises(TransactionLateError):
            producers.end(half, commit)
    producers.commit(usual)
    producers.commit(half, checked=True)
    assert producers.world.bodies("orders") == [b"usual", b"x"]


def test_a_topic_that_is_gone_keeps_its_transactions_open(producers: Producers) -> None:
    half = producers.begin()
    producers.world.broker.topics.delete(SELF, "orders")
    with pytest.raises(TopicNotFoundError, match="stays open"):
        producers.end(half, commit=True)
    assert producers.open_count() == 1
    producers.world.topic("orders", 4)
    producers.commit(half)


def test_too_many_open_transactions_are_refused(
    producers: Producers, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(transactions_module, "OPEN_MAX", 2)
    half = producers.begin()
    producers.begin()
    with pytest.raises(BrokerBusyError, match="2 transactions are open"):
        producers.begin()
    producers.roll_back(half)
    producers.begin()


# -- trouble with the disk -----------------------------------------------------------------------


def test_a_full_disk_keeps_a_transaction_open(
    producers: Producers, monkeypatch: pytest.MonkeyPatch
) -> None:
    half = producers.begin()

    def refuse(messages: Sequence[NewMessage]) -> list[Appended]:
        raise StoreFullError("disk is full")

    with monkeypatch.context() as patched:
        patched.setattr(producers.world.store, "append", refuse)
        assert isinstance(producers.end(half, commit=True), StoreFullError)
        with pytest.raises(AssertionError):
            producers.begin()
    assert producers.open_count() == 1
    producers.commit(half)
    assert producers.world.bodies("orders") == [b"x"]


def test_a_commit_that_the_store_refuses_spoils_no_other(
    producers: Producers, monkeypatch: pytest.MonkeyPatch
) -> None:
    world = producers.world
    good, bad = producers.begin(b"good"), producers.begin(b"bad")
    rolled_back = producers.begin(b"rolled back")
    append = world.store.append

    def picky(messages: list[NewMessage]) -> list[Appended]:
        if any(bytes(message.body) == b"bad" for message in messages):
            raise MessageTooLargeError("no segment has room for it")
        return append(messages)

    monkeypatch.setattr(world.store, "append", picky)
    for half, commit in ((good, True), (bad, True), (rolled_back, False)):
        producers.end(half, commit, tick=False)
    world.end_tick()
    world.end_tick()
    assert [type(told.error) for told in world.told] == [
        type(None),
        MessageTooLargeError,
        type(None),
    ]
    assert world.bodies("orders") == [b"good"]
    assert list(world.core.transactions.log_offsets) == [bad.queue_offset]


def test_a_message_that_waited_while_the_limit_on_bodies_was_lowered_is_committed(
    producers: Producers,
) -> None:
    world = producers.world
    half = producers.begin(b"b" * 5_000)
    world.close()
    world.store_config = replace(SMALL_STORE, body_bytes_max=1_000)
    world.start()
    producers.connect()
    producers.commit(half)
    assert world.bodies("orders") == [b"b" * 5_000]


def test_a_commit_behind_a_disk_that_is_slow_is_a_commit(tmp_path: Path) -> None:
    world = World(
        tmp_path / "store", replace(SMALL_STORE, flush="sync"), BrokerConfig(flush_timeout_ms=100)
    )
    world.topic("orders")
    producers = Producers(world)
    world.publish(producers.message())
    world.end_tick()
    world.advance(100)
    half = world.told.pop()
    assert isinstance(half.error, FlushTimeoutError)
    assert producers.end(half.appended, commit=True, tick=False) is None
    world.end_tick()
    world.advance(100)
    assert isinstance(world.told.pop().error, FlushTimeoutError)
    assert world.bodies("orders") == [b"x"]
    assert producers.open_count() == 0
    world.close()


def test_a_half_message_that_waits_for_the_disk_is_not_forgotten_by_a_round(
    tmp_path: Path,
) -> None:
    world = World(tmp_path / "store", replace(SMALL_STORE, flush="sync"))
    world.topic("orders")
    producers = Producers(world)
    world.publish(producers.message())
    world.end_tick()
    assert world.told == [], "the disk has not answered"
    world.core.checkback.check()
    producers.crash()
    assert producers.open_count() == 1
    world.close()


# -- the model -----------------------------------------------------------------------------------

CHECKS_MAX = 3


class TransactionsModel(RuleBasedStateMachine):
    """Nothing lost, nothing delivered twice or against a rollback, nothing hidden for ever."""

    halves = Bundle("halves")
    questions = Bundle("questions")

    def __init__(self) -> None:
        super().__init__()
        logging.getLogger("onelog").setLevel(logging.CRITICAL)
        self._temporary = tempfile.TemporaryDirectory()
        config = BrokerConfig(transaction_check_max=CHECKS_MAX)
        self.world = World(Path(self._temporary.name) / "store", broker_config=config)
        self.world.topic("orders", 1)
        self.producers = Producers(self.world)
        self.outcome: dict[int, str] = {}
        self.late_ms: dict[int, int] = {}
        self.pending: dict[int, str] = {}

    def body(self, half_offset: int) -> bytes:
        return b"%d" % half_offset

    def tick(self) -> None:
        self.world.end_tick()
        assert all(told.error is None for told in self.world.told)
        self.world.told.clear()
        self.outcome.update(self.pending)
        self.pending.clear()

    @rule(target=halves, immunity=st.sampled_from([0, 0, 0, 2, 20, 90]))
    def begin(self, immunity: int) -> Appended:
        number = len(self.outcome)
        own = {"CHECK_IMMUNITY_TIME_IN_SECONDS": str(immunity)} if immunity else {}
        self.tick()
        half = self.producers.begin(self.body(number), 0, **own)
        assert half.queue_offset == number
        self.outcome[number] = "open"
        if immunity:
            self.late_ms[number] = self.world.clock.now_ms() + max(6_000, immunity * 1_000)
        return half

    def end(self, where: Appended | Check, commit: bool, checked: bool, tick: bool) -> None:
        number = where.half_offset if isinstance(where, Check) else where.queue_offset
        late = not checked and self.world.clock.now_ms() > self.late_ms.get(number, 1 << 62)
        if self.outcome[number] != "open" or number in self.pending:
            with pytest.raises(TransactionNotFoundError):
                self.producers.end(where, commit, checked=checked, tick=False)
        elif late:
            with pytest.raises(TransactionLateError):
                self.producers.end(where, commit, checked=checked, tick=False)
        else:
            self.producers.end(where, commit, checked=checked, tick=False)
            self.pending[number] = "committed" if commit else "rolled back"
        if tick:
            self.tick()

    @rule(half=halves, commit=st.booleans(), tick=st.booleans())
    def producer_ends(self, half: Appended, commit: bool, tick: bool) -> None:
        self.end(half, commit, checked=False, tick=tick)

    @rule(target=questions)
    def producer_listens(self) -> object:
        return multiple(*(check for _, check in self.producers.take_asked()))

    @rule(check=consumes(questions), outcome=st.sampled_from(["commit", "roll back", "unknown"]))
    def producer_answers(self, check: Check, outcome: str) -> None:
        if outcome != "unknown":
            self.end(check, outcome == "commit", checked=True, tick=True)

    @rule(client_id=st.sampled_from(["p1", "p2"]))
    def producer_comes(self, client_id: str) -> None:
        self.producers.join(client_id)

    @rule(client_id=st.sampled_from(["p1", "p2"]))
    def producer_dies(self, client_id: str) -> None:
        self.producers.leave(client_id)

    @rule(ms=st.sampled_from([1, 1_000, 6_000, 25_000, 30_000, 61_000]))
    def time_passes(self, ms: int) -> None:
        self.tick()
        self.producers.advance(ms)
        self.note_put_away()

    @rule()
    def a_round_begins_in_the_middle_of_a_tick(self) -> None:
        self.world.core.checkback.check()
        self.note_put_away()

    def note_put_away(self) -> None:
        for body in self.world.bodies(CHECKED_OUT_TOPIC):
            assert self.outcome[int(body)] in ("open", "put away")
            self.outcome[int(body)] = "put away"

    @rule()
    def broker_restarts(self) -> None:
        self.producers.restart()
        # The last tick was ended on the way down.
        self.world.told.clear()
        self.outcome.update(self.pending)
        self.pending.clear()

    @rule()
    def broker_is_killed(self) -> None:
        self.producers.crash()
        self.world.told.clear()
        self.pending.clear()

    @invariant()
    def each_message_is_where_its_outcome_says(self) -> None:
        found: dict[str, list[int]] = {"committed": [], "open": [], "put away": []}
        for number, outcome in self.outcome.items():
            found.setdefault(outcome, []).append(number)
        delivered = sorted(int(body) for body in self.world.bodies("orders"))
        assert delivered == found["committed"]
        put_away = sorted(int(body) for body in self.world.bodies(CHECKED_OUT_TOPIC))
        assert put_away == found["put away"]
        is_open = {*self.world.core.transactions.log_offsets, *self.pending}
        assert is_open == set(found["open"])

    def teardown(self) -> None:
        self.tick()
        self.producers.join("last")
        self.producers.advance(90_000 + (CHECKS_MAX + 2) * ROUND_MS)
        self.note_put_away()
        self.each_message_is_where_its_outcome_says()
        assert "open" not in self.outcome.values()
        self.world.close()
        self._temporary.cleanup()
        logging.getLogger("onelog").setLevel(logging.NOTSET)


TransactionsModel.TestCase.settings = settings(
    max_examples=30,
    stateful_step_count=30,
    deadline=None,
    suppress_health_check=[HealthCheck.too_slow, HealthCheck.filter_too_much],
)
TestTransactionsModel = TransactionsModel.TestCase
