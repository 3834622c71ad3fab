from collections.abc import Sequence
from dataclasses import replace

import pytest

from onelog.errors import MessageError, StoreFullError, TransactionNotFoundError
from onelog.message import Appended, NewMessage, decode_properties
from onelog.names import CHECKED_OUT_TOPIC, HALF_TOPIC
from tests.core.transacting import GROUP, Producers
from tests.core.world import HELD_S_MAX, SMALL_STORE, TROUBLES, World

ROUND_MS = 30_000


@pytest.fixture
def producers(world: World) -> Producers:
    world.topic("orders", 4)
    return Producers(world)


# -- questions -----------------------------------------------------------------------------------


def test_a_producer_is_asked_when_the_immunity_is_over_and_then_in_every_round(
    producers: Producers,
) -> None:
    producers.join()
    world = producers.world
    world.advance(ROUND_MS - 5_999)
    half = producers.begin(b"young", 2)
    world.advance(5_999)
    assert producers.take_asked() == [], "5,999 ms old in the first round"
    producers.advance(ROUND_MS)
    ((client, check),) = producers.take_asked()
    assert client == "p1"
    assert (check.half_offset, check.log_offset) == (half.queue_offset, half.log_offset)
    assert (check.message.topic, check.message.queue_id) == ("orders", 2)
    assert bytes(check.message.body) == b"young"
    properties = decode_properties(check.message.properties)
    assert properties["TRANSACTION_CHECK_TIMES"] == "1"
    assert (properties["PGROUP"], properties["UNIQ_KEY"]) == (GROUP, "U0")
    producers.advance(ROUND_MS)
    ((_, again),) = producers.take_asked()
    assert decode_properties(again.message.properties)["TRANSACTION_CHECK_TIMES"] == "2"
    assert (again.half_offset, again.log_offset) == (check.half_offset, check.log_offset)
    assert len(producers.halves()) == 1


def test_the_answer_to_a_question_ends_the_transaction(producers: Producers) -> None:
    producers.join()
    producers.begin(b"commit", CHECK_IMMUNITY_TIME_IN_SECONDS="7")
    producers.begin(b"roll back")
    producers.advance(ROUND_MS)
    (_, first), (_, second) = producers.take_asked()
    producers.commit(first, checked=True)
    producers.roll_back(second, checked=True)
    producers.advance(3 * ROUND_MS)
    assert producers.take_asked() == []
    (found,) = producers.world.messages("orders")
    assert bytes(found.body) == b"commit"
    assert decode_properties(found.properties)["TRANSACTION_CHECK_TIMES"] == "1"


def test_a_chosen_immunity_counts_from_the_birth_of_the_message(producers: Producers) -> None:
    producers.join()
    producers.begin(CHECK_IMMUNITY_TIME_IN_SECONDS="100")
    producers.begin(b"no number", CHECK_IMMUNITY_TIME_IN_SECONDS="soon")
    producers.begin(b"shorter than allowed", CHECK_IMMUNITY_TIME_IN_SECONDS="1")
    producers.advance(3 * ROUND_MS)
    assert {bytes(check.message.body) for _, check in producers.take_asked()} == {
        b"no number",
        b"shorter than allowed",
    }
    producers.advance(ROUND_MS)
    assert b"x" in {bytes(check.message.body) for _, check in producers.take_asked()}


def test_a_producer_with_a_clock_that_is_ahead_is_asked_all_the_same(producers: Producers) -> None:
    producers.join()
    world = producers.world
    message = producers.message()._replace(born_ms=world.clock.now_ms() + 3_600_000)
    world.publish(message)
    world.end_tick()
    producers.advance(ROUND_MS)
    assert len(producers.take_asked()) == 1


def test_producers_of_a_group_are_asked_in_turn(producers: Producers) -> None:
    for client_id in ("p1", "p2", "p3"):
        producers.join(client_id)
    producers.join("stranger", "other-group")
    for _ in range(4):
        producers.begin()
    producers.advance(ROUND_MS)
    assert [client for client, _ in producers.take_asked()] == ["p1", "p2", "p3", "p1"]
    producers.leave("p2")
    producers.deaf.add("p3")
    producers.advance(ROUND_MS)
    assert [client for client, _ in producers.take_asked()] == ["p1"] * 4


def test_another_producer_answers_for_one_that_died(producers: Producers) -> None:
    producers.join("dead")
    producers.begin()
    producers.leave("dead")
    producers.join("alive")
    producers.advance(ROUND_MS)
    ((client, check),) = producers.take_asked()
    assert client == "alive"
    producers.commit(check, checked=True)
    assert producers.world.bodies("orders") == [b"x"]


def test_without_a_producer_the_transaction_waits_and_nothing_is_counted(
    producers: Producers, caplog: pytest.LogCaptureFixture
) -> None:
    producers.begin()
    producers.advance(100 * ROUND_MS)
    assert "wait for a producer of their group to come back: {'payments': 1}" in caplog.text
    producers.deaf.add("p1")
    producers.join("p1")
    producers.advance(ROUND_MS)
    producers.deaf.clear()
    producers.advance(ROUND_MS)
    ((_, check),) = producers.take_asked()
    assert decode_properties(check.message.properties)["TRANSACTION_CHECK_TIMES"] == "1"


def test_after_the_last_question_the_message_is_put_away(
    producers: Producers, caplog: pytest.LogCaptureFixture
) -> None:
    producers.join()
    half = producers.begin(b"never answered", 2, KEYS="k")
    producers.advance(15 * ROUND_MS)
    assert len(producers.take_asked()) == 15
    assert producers.world.bodies(CHECKED_OUT_TOPIC) == []
    producers.advance(ROUND_MS)
    assert producers.take_asked() == []
    (kept,) = producers.world.messages(CHECKED_OUT_TOPIC)
    assert bytes(kept.body) == b"never answered"
    properties = decode_properties(kept.properties)
    assert properties["TRANSACTION_CHECK_TIMES"] == "15"
    assert (properties["REAL_TOPIC"], properties["REAL_QID"]) == ("orders", "2")
    assert "is put away" in caplog.text
    assert producers.open_count() == 0
    assert producers.world.core.topics.require(CHECKED_OUT_TOPIC).read_queues == 1
    with pytest.raises(TransactionNotFoundError):
        producers.end(half, commit=True, checked=True)
    producers.crash()
    assert producers.open_count() == 0


def test_a_transaction_that_was_put_away_can_be_resumed_once(producers: Producers) -> None:
    producers.join()
    producers.begin(b"resumed")
    producers.advance(16 * ROUND_MS)
    producers.take_asked()
    (kept,) = producers.world.messages(CHECKED_OUT_TOPIC)
    checkback, told = producers.world.core.checkback, producers.world.on_stored
    checkback.resume(kept.message_id, told)
    producers.world.end_tick()
    with pytest.raises(TransactionNotFoundError, match="resumed already"):
        checkback.resume(kept.message_id, told)
    producers.advance(ROUND_MS)
    ((_, check),) = producers.take_asked()
    assert decode_properties(check.message.properties)["TRANSACTION_CHECK_TIMES"] == "1"
    producers.commit(check, checked=True)
    assert producers.world.bodies("orders") == [b"resumed"]
    with pytest.raises(TransactionNotFoundError, match="resumed already"):
        checkback.resume(kept.message_id, told)


def test_only_what_was_put_away_can_be_resumed(producers: Producers) -> None:
    producers.begin()
    (half,) = producers.halves()
    checkback, told = producers.world.core.checkback, producers.world.on_stored
    with pytest.raises(TransactionNotFoundError, match=CHECKED_OUT_TOPIC):
        checkback.resume(half.message_id, told)
    with pytest.raises(MessageError, match="not a message id"):
        checkback.resume("nonsense", told)


def test_the_limits_of_checks_can_change_while_the_broker_runs(producers: Producers) -> None:
    producers.join()
    producers.begin()
    broker = producers.world.broker
    producers.world.core.reconfigure(
        replace(broker.admin.config, transaction_check_max=1, transaction_timeout_ms=45_000)
    )
    producers.advance(ROUND_MS)
    assert producers.take_asked() == []
    producers.advance(ROUND_MS)
    assert len(producers.take_asked()) == 1
    producers.advance(ROUND_MS)
    assert producers.world.bodies(CHECKED_OUT_TOPIC) == [b"x"]


@pytest.mark.usefixtures("no_garbage")
def test_ten_thousand_open_transactions_are_asked_about_slice_by_slice(
    producers: Producers,
) -> None:
    world = producers.world
    producers.join()
    for number in range(10_000):
        world.publish(producers.message(b"%d" % number))
    world.end_tick()
    world.told.clear()
    world.timer.longest_cpu_s = 0.0
    producers.advance(ROUND_MS)
    assert len(producers.asked) < 100
    world.advance(1_000)
    assert world.timer.longest_cpu_s < HELD_S_MAX
    checks = [check for _, check in producers.take_asked()]
    assert len(checks) == 10_000
    for check in checks:
        producers.end(check, commit=True, checked=True, tick=False)
    world.end_tick()
    assert len(world.bodies("orders")) == 10_000
    producers.restart()
    assert producers.open_count() == 0


@pytest.mark.parametrize("trouble", TROUBLES)
def test_a_round_that_fails_is_made_up_for_by_the_next(
    producers: Producers,
    trouble: Exception,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    producers.join()
    producers.begin()
    producers.world.core.checkback.check()

    def refuse(messages: Sequence[NewMessage]) -> list[Appended]:
        raise trouble

    with monkeypatch.context() as patched:
        patched.setattr(producers.world.store, "append", refuse)
        patched.setattr(producers.world.store, "append_own", refuse)
        producers.advance(ROUND_MS)
        assert len(producers.take_asked()) == 1
    assert "asking about open transactions failed" in caplog.text
    producers.advance(ROUND_MS)
    ((_, check),) = producers.take_asked()
    assert decode_properties(check.message.properties)["TRANSACTION_CHECK_TIMES"] == "1"


# -- retention -----------------------------------------------------------------------------------


def fill_segments(world: World) -> None:
    for _ in range(30):
        world.send("orders", 3, b"x" * 100_000)


def test_a_transaction_is_put_away_before_its_segment_is_deleted(producers: Producers) -> None:
    world = producers.world
    producers.begin(b"old")
    fill_segments(world)
    young = producers.begin(b"young")
    world.clock.advance(SMALL_STORE.retention_ms + 1)
    world.retain()
    assert world.store.min_offset(HALF_TOPIC, 0) == 1
    assert world.bodies(CHECKED_OUT_TOPIC) == [b"old"]
    assert list(world.core.transactions.log_offsets) == [young.queue_offset]
    producers.commit(young)


def test_a_full_disk_that_forces_files_out_does_not_take_transactions_along(
    producers: Producers,
) -> None:
    world = producers.world
    producers.begin(b"a")
    fill_segments(world)
    world.core.prepare_retention()
    assert world.bodies(CHECKED_OUT_TOPIC) == []
    world.store.retention.disk = lambda folder: 88.0
    world.core.prepare_retention()
    assert world.bodies(CHECKED_OUT_TOPIC) == [b"a"]


def test_transactions_that_cannot_be_put_away_keep_their_files(
    producers: Producers, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    world = producers.world
    half = producers.begin()
    fill_segments(world)
    world.clock.advance(SMALL_STORE.retention_ms + 1)

    def refuse(messages: Sequence[NewMessage]) -> list[Appended]:
        raise StoreFullError("disk is full")

    with monkeypatch.context() as patched:
        patched.setattr(world.store, "append", refuse)
        patched.setattr(world.store, "append_own", refuse)
        assert world.retain().segments_deleted == 0
    assert "transactions whose log files should be deleted failed" in caplog.text
    producers.commit(half)


def test_a_half_message_that_is_gone_all_the_same_is_reported(
    producers: Producers, caplog: pytest.LogCaptureFixture
) -> None:
    world = producers.world
    half = producers.begin()
    fill_segments(world)
    world.clock.advance(SMALL_STORE.retention_ms + 1)
    world.store.retention.kept_from = None  # As if somebody had deleted the files by hand.
    world.store.retention.run({}, manual=True)
    world.core.checkback.check()
    assert "is lost" in caplog.text
    assert producers.open_count() == 0
    with pytest.raises(TransactionNotFoundError):
        producers.end(half, commit=True)


def test_on_a_disk_that_is_too_full_for_messages_transactions_are_put_away(
    producers: Producers,
) -> None:
    world = producers.world
    producers.begin(b"old")
    fill_segments(world)
    world.store.retention.disk = lambda folder: 92.0
    world.store.retain()
    assert world.retain().segments_deleted > 0
    assert world.bodies(CHECKED_OUT_TOPIC) == [b"old"]


def test_a_transaction_without_producers_is_open_no_longer_than_the_log_is_kept(
    producers: Producers,
) -> None:
    producers.begin()
    producers.begin(b"immune for ever", CHECK_IMMUNITY_TIME_IN_SECONDS="999999999")
    producers.world.clock.advance(SMALL_STORE.retention_ms - ROUND_MS)
    producers.world.advance(0)
    assert producers.open_count() == 2
    producers.world.advance(2 * ROUND_MS)
    assert producers.world.bodies(CHECKED_OUT_TOPIC) == [b"x", b"immune for ever"]
