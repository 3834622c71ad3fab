"""How much a queue holds, how long, and how often a message may come back."""

from typing import Any

import pytest

from onelog.config import BrokerConfig
from onelog.errors import PreconditionFailedError, QueueFullError
from tests.core.queues.yard import Yard, headers_in, numbered

BOTH = pytest.mark.parametrize("durable", [True, False], ids=["log", "memory"])


@BOTH
def test_the_oldest_messages_are_dropped_when_there_are_too_many(yard: Yard, durable: bool) -> None:
    queue = yard.queue(durable=durable, arguments={"x-max-length": 3})
    yard.put_all(*numbered(10))
    assert (queue.ready, queue.ready_bytes) == (3, 3)
    taker = yard.consume(prefetch=2)
    yard.put_all(*numbered(2, 10))
    assert (queue.ready, queue.unacked) == (3, 2)  # What is out does not count.
    queue.requeue(taker.places)
    yard.works.cancel(taker.consumer)
    yard.settle()
    assert yard.drain() == [b"9", b"10", b"11"]


@BOTH
def test_the_oldest_messages_are_dropped_when_they_are_too_large(yard: Yard, durable: bool) -> None:
    queue = yard.queue(durable=durable, arguments={"x-max-length-bytes": 10})
    yard.put_all(b"1234", b"5678", b"90")
    assert queue.ready == 3
    yard.put_all(b"abc")
    assert queue.ready_bytes == 9
    yard.put_all(b"x" * 11)
    assert (queue.ready, queue.ready_bytes) == (0, 0)


@BOTH
def test_a_queue_of_length_0_has_what_finds_a_consumer(yard: Yard, durable: bool) -> None:
    yard.queue(durable=durable, arguments={"x-max-length": 0})
    yard.put_all(b"lost")
    taker = yard.consume()
    yard.put_all(b"found")
    assert taker.bodies == [b"found"]


@BOTH
def test_a_queue_may_refuse_what_is_too_much(yard: Yard, durable: bool) -> None:
    arguments = {"x-max-length": 2, "x-overflow": "reject-publish"}
    queue = yard.queue(durable=durable, arguments=arguments)
    yard.put_all(*numbered(4))
    told = dict(yard.confirmed)
    assert [token for token, error in told.items() if error is None] == [b"0", b"1"]
    assert isinstance(told[b"3"], QueueFullError)
    taker = yard.consume(prefetch=1)
    yard.put_all(b"4", b"5")
    assert queue.ready == 2
    assert taker.bodies == [b"0"]
    yard.works.cancel(taker.consumer)
    assert yard.drain() == [b"1", b"4"]


def test_a_queue_with_a_consumer_that_keeps_up_refuses_nothing(yard: Yard) -> None:
    for name, durable in (("log", True), ("memory", False)):
        yard.queue(
            name, durable=durable, arguments={"x-max-length": 2, "x-overflow": "reject-publish"}
        )
        taker = yard.consume(name, no_ack=True)
        yard.put_all(*numbered(20), key=name)
        assert taker.bodies == numbered(20)
    assert all(error is None for _, error in yard.confirmed)


def test_bytes_may_be_refused(yard: Yard) -> None:
    yard.queue(arguments={"x-max-length-bytes": 10, "x-overflow": "reject-publish"})
    yard.put_all(b"12345678", b"123", b"12")
    assert yard.drain() == [b"12345678", b"12"]


@BOTH
def test_messages_expire_at_the_head(yard: Yard, durable: bool) -> None:
    queue = yard.queue(durable=durable, arguments={"x-message-ttl": 1_000})
    yard.put_all(b"a")
    yard.advance(600)
    yard.put_all(b"b")
    yard.advance(500)
    yard.settle()
    assert queue.ready == 1
    assert yard.drain() == [b"b"]


@BOTH
def test_a_message_says_itself_when_it_expires_and_waits_for_its_turn(
    yard: Yard, durable: bool
) -> None:
    queue = yard.queue(durable=durable, arguments={"x-message-ttl": 5_000})
    yard.put_all(b"long", expiration="60000")
    yard.put_all(b"short", expiration="100")
    yard.advance(1_000)
    yard.settle()
    assert queue.ready == 2  # It is behind one that lives.
    held = yard.get()
    assert held is not None
    yard.settle()
    assert queue.ready == 1
    yard.get()
    yard.advance(20)
    yard.settle()
    assert queue.ready == 0
    queue.requeue([held[0]])
    yard.advance(4_100)
    yard.settle()
    assert queue.ready == 0  # Its time goes on from when it came.


@BOTH
def test_a_message_that_came_back_still_says_itself_when_it_expires(
    yard: Yard, durable: bool
) -> None:
    queue = yard.queue(durable=durable)
    yard.put_all(b"a", expiration="1000")
    held = yard.get()
    assert held is not None
    yard.settle()
    queue.requeue([held[0]])
    yard.settle()
    assert queue.ready == 1
    yard.advance(1_100)
    yard.settle()
    assert queue.ready == 0
    yard.put_all(b"b", expiration="1000")
    taker = yard.consume(prefetch=1)
    yard.advance(1_100)
    yard.works.cancel(taker.consumer)
    queue.requeue(taker.places)
    yard.settle()
    assert queue.ready == 0


@pytest.mark.parametrize("requeued", [True, False])
def test_a_message_that_came_back_expires_after_a_restart_too(yard: Yard, requeued: bool) -> None:
    queue = yard.queue()
    yard.put_all(b"a", expiration="1000")
    held = yard.get()
    assert held is not None
    if requeued:
        queue.requeue([held[0]])
    yard.record()
    yard.restart()
    assert yard.find().ready == 1
    yard.advance(1_100)
    yard.settle()
    assert yard.find().ready == 0


@BOTH
def test_what_lives_for_no_time_needs_a_consumer_at_once(yard: Yard, durable: bool) -> None:
    queue = yard.queue(durable=durable, arguments={"x-message-ttl": 0})
    yard.put_all(b"a")
    assert queue.ready == 0
    taker = yard.consume()
    yard.put_all(b"b")
    assert taker.bodies == [b"b"]
    yard.works.cancel(taker.consumer)
    yard.put_all(b"c", expiration="0")
    assert queue.ready == 0


def test_messages_expire_after_a_restart_too(yard: Yard) -> None:
    yard.queue()
    yard.put_all(b"a", expiration="1000")
    yard.put_all(b"b")
    yard.crash()
    yard.settle()
    yard.advance(1_100)
    yard.settle()
    assert yard.find().ready == 1
    assert yard.drain() == [b"b"]


def test_who_waits_for_the_head_to_expire_does_not_read_it_again(
    yard: Yard, monkeypatch: pytest.MonkeyPatch
) -> None:
    queue = yard.queue(arguments={"x-message-ttl": 60_000})
    yard.put_all(b"a")
    reads: list[object] = []
    read = yard.works._log_reader.read

    def noted(*at: Any, **how: Any) -> Any:
        reads.append(at)
        return read(*at, **how)

    monkeypatch.setattr(yard.works._log_reader, "read", noted)
    for number in range(5):
        yard.put_all(b"%d" % number)
    assert reads == []
    yard.get(no_ack=True)
    yard.put_all(b"more", expiration="100")
    assert len(reads) <= 2
    yard.advance(60_100)
    yard.settle()
    assert queue.ready == 0


def test_very_many_expire_some_at_a_time(yard: Yard) -> None:
    queue = yard.queue(arguments={"x-message-ttl": 1_000})
    yard.put_all(*numbered(3_000))
    yard.timer.longest_cpu_s = 0.0
    yard.advance(1_010)
    yard.settle()
    assert (queue.ready, queue.ready_bytes) == (0, 0)
    assert yard.timer.longest_cpu_s < 0.1


def test_a_message_of_a_quorum_queue_comes_back_so_often_and_no_more(yard: Yard) -> None:
    queue = yard.queue(arguments={"x-queue-type": "quorum", "x-delivery-limit": 2})
    yard.put_all(b"a")
    times = []
    for _ in range(5):
        found = yard.get()
        if found is None:
            break
        times.append(found[1])
        queue.requeue([found[0]])
    assert times == [0, 1, 2]
    assert yard.counts() == (0, 0)


def test_how_often_it_came_back_is_remembered(yard: Yard) -> None:
    queue = yard.queue(arguments={"x-queue-type": "quorum", "x-delivery-limit": 3})
    yard.put_all(b"a")
    for _ in range(2):
        found = yard.get()
        assert found is not None
        queue.requeue([found[0]])
    yard.record()
    yard.crash()
    found = yard.get()
    assert found is not None
    assert found[1] == 2
    yard.find().requeue([found[0]], counted=False)
    assert yard.find().ready == 1


def test_a_consumer_that_keeps_a_message_too_long_is_cancelled(yard: Yard) -> None:
    queue = yard.queue()
    other = yard.queue("other", arguments={"x-consumer-timeout": 60_000})
    taker, quick = yard.consume(), yard.consume("other")
    yard.put_all(b"a")
    yard.put_all(b"b", key="other")
    yard.advance(80_000)
    assert (taker.cancelled, quick.cancelled) == ("", "timeout")
    yard.advance(1_800_000)
    assert taker.cancelled == "timeout"
    assert (queue.unacked, other.unacked) == (1, 1)
    queue.requeue(taker.places)
    assert yard.drain() == [b"a"]


def test_queues_in_memory_take_no_more_than_they_may(tmp_path: Any) -> None:
    yard = Yard(tmp_path / "store", broker_config=BrokerConfig(memory_queue_bytes_max=1 << 20))
    queue = yard.queue(durable=False)
    for _ in range(40):
        yard.put_all(b"x" * 100_000)
    assert 10 <= queue.ready <= 12
    assert isinstance(yard.confirmed[-1][1], QueueFullError)
    yard.drain()
    yard.settle()
    yard.put_all(b"again")
    assert yard.drain() == [b"again"]
    assert yard.works.memory_bytes == 0
    yard.close()


# -- dead letters ----------------------------------------------------------------------------------


@BOTH
@pytest.mark.parametrize("how", ["rejected", "expired", "maxlen"])
def test_dead_letters_say_what_happened(yard: Yard, durable: bool, how: str) -> None:
    dead = yard.queue("dead", durable=durable)
    limits = {"expired": {"x-message-ttl": 10}, "maxlen": {"x-max-length": 0}}.get(how, {})
    arguments = {"x-dead-letter-exchange": "", "x-dead-letter-routing-key": "dead", **limits}
    queue = yard.queue(durable=durable, arguments=arguments)
    yard.put_all(b"a", headers={"mine": 1, "CC": ["q"]}, expiration="60000")
    if how == "rejected":
        found = yard.get()
        assert found is not None
        queue.reject([found[0]])
    yard.advance(30)
    yard.settle()
    assert (queue.ready, queue.unacked, dead.ready) == (0, 0, 1)
    letter = yard.get("dead")
    assert letter is not None
    headers = headers_in(letter)
    (death,) = headers["x-death"]
    assert death.pop("time") == yard.begin_ms // 1000
    assert death == {
        "count": 1,
        "reason": how,
        "queue": "q",
        "exchange": "",
        "routing-keys": ["q", "q"],
        "original-expiration": "60000",
    }
    assert headers["mine"] == 1
    assert "CC" not in headers
    assert headers["x-first-death-queue"] == headers["x-last-death-queue"] == "q"
    assert headers["x-first-death-reason"] == how
    assert headers["x-first-death-exchange"] == ""
    yard.crash()
    assert not durable or yard.counts("dead") == (1, 0)
    assert not durable or yard.counts("q") == (0, 0)


def test_a_letter_that_dies_again_is_counted(yard: Yard) -> None:
    yard.queue("a", arguments={"x-dead-letter-exchange": "", "x-dead-letter-routing-key": "b"})
    yard.queue("b", arguments={"x-dead-letter-exchange": "", "x-dead-letter-routing-key": "a"})
    yard.put_all(b"x", key="a")
    for name in ("a", "b", "a"):
        found = yard.get(name)
        assert found is not None
        yard.find(name).reject([found[0]])
    found = yard.get("b")
    assert found is not None
    deaths = [(each["queue"], each["count"]) for each in headers_in(found)["x-death"]]
    assert deaths == [("a", 2), ("b", 1)]
    headers = headers_in(found)
    assert (headers["x-first-death-queue"], headers["x-last-death-queue"]) == ("a", "a")


def _died(yard: Yard, deaths: object) -> list[dict[str, Any]]:
    """What is told of the deaths of a message that somebody has rejected."""
    yard.queue("dead")
    queue = yard.queue(
        arguments={"x-dead-letter-exchange": "", "x-dead-letter-routing-key": "dead"}
    )
    yard.put_all(b"x", headers={"x-death": deaths, "x-first-death-queue": "mine"})
    found = yard.get()
    assert found is not None
    queue.reject([found[0]])
    letter = yard.get("dead", no_ack=True)
    assert letter is not None
    headers = headers_in(letter)
    assert headers["x-first-death-queue"] == "mine"  # RabbitMQ leaves it, where there are deaths.
    return list(headers["x-death"])


def test_deaths_that_a_client_wrote_are_one_for_each_queue_and_reason(yard: Yard) -> None:
    other = {"queue": "a", "reason": "maxlen"}
    first, *rest = _died(yard, [other, {**other, "n": 1}, {"queue": "b", "count": 3}, "junk"])
    assert (first["queue"], first["count"]) == ("q", 1)
    assert rest == [{**other, "count": 2}, {"queue": "b", "count": 3}]
    mine = {"queue": "q", "reason": "rejected"}
    assert _died(yard, [mine]) == [{**mine, "count": 1}]
    assert _died(yard, [mine, mine]) == [{**mine, "count": 3}]
    assert _died(yard, [{**mine, "count": 7, "n": 1}, mine]) == [{**mine, "count": 8, "n": 1}]
    assert _died(yard, [{**mine, "count": "many"}]) == [{**mine, "count": 1}]


def test_a_count_of_deaths_does_not_overflow(yard: Yard) -> None:
    most = (1 << 63) - 1
    (death,) = _died(yard, [{"queue": "q", "reason": "rejected", "count": most}])
    assert death["count"] == most


def test_letters_that_go_in_a_circle_by_themselves_end(yard: Yard) -> None:
    queue = yard.queue(
        arguments={
            "x-dead-letter-exchange": "",
            "x-dead-letter-routing-key": "q",
            "x-message-ttl": 10,
        }
    )
    yard.put_all(b"a")
    yard.advance(30)
    yard.settle()
    assert queue.ready == 0
    yard.put_all(b"b")
    for _ in range(3):
        delivery = yard.get()
        assert delivery is not None
        queue.reject([delivery[0]])  # Somebody rejects it each time: that may go on.


def test_a_refused_message_may_be_a_dead_letter(yard: Yard) -> None:
    yard.queue("dead")
    yard.queue(
        arguments={
            "x-dead-letter-exchange": "",
            "x-dead-letter-routing-key": "dead",
            "x-max-length": 1,
            "x-overflow": "reject-publish-dlx",
        }
    )
    yard.put_all(*numbered(3))
    assert yard.drain("dead") == [b"1", b"2"]
    assert [error is None for _, error in sorted(yard.confirmed)] == [True, False, False]


def test_messages_that_came_back_too_often_are_dead_letters(yard: Yard) -> None:
    yard.queue("dead")
    queue = yard.queue(
        arguments={
            "x-queue-type": "quorum",
            "x-delivery-limit": 0,
            "x-dead-letter-exchange": "",
            "x-dead-letter-routing-key": "dead",
        }
    )
    taker = yard.consume()
    yard.put_all(*numbered(3))
    queue.requeue(taker.places)
    found = yard.get("dead")
    assert found is not None
    assert headers_in(found)["x-death"][0]["reason"] == "delivery_limit"
    assert yard.counts() == (0, 0)


def test_without_its_exchange_a_dead_letter_is_just_gone(yard: Yard) -> None:
    queue = yard.queue(arguments={"x-dead-letter-exchange": "nowhere"})
    yard.put_all(b"a")
    found = yard.get()
    assert found is not None
    queue.reject([found[0]])
    assert yard.counts() == (0, 0)


def test_dead_letters_that_cannot_be_written_wait(yard: Yard) -> None:
    dead = yard.queue("dead")
    queue = yard.queue(
        arguments={"x-dead-letter-exchange": "", "x-dead-letter-routing-key": "dead"}
    )
    yard.put_all(*numbered(2))
    found = [yard.get(), yard.get()]
    yard.core.refuse_writes("another is the master")
    queue.reject([each[0] for each in found if each is not None])
    yard.settle()
    assert queue.unacked == 2
    yard.core.refuse_writes(None)
    yard.advance(1_000)
    yard.settle()
    assert (queue.unacked, dead.ready) == (0, 2)


YEARS_MS = 315_360_000_000
"""Ten of them: the most that RabbitMQ takes. Celery asks for more than four."""


def pass_years(yard: Yard, ms: int) -> None:
    """Let time pass at once: what is done every few seconds is not done for all of them."""
    yard.clock.advance(ms)
    yard.advance(100)


@pytest.mark.parametrize("kind", ["classic", "quorum"])
@pytest.mark.parametrize("name", ["x-message-ttl", "x-expires"])
def test_a_time_of_years_is_taken_and_one_of_more_is_refused(
    yard: Yard, name: str, kind: str
) -> None:
    yard.queue("long", arguments={name: YEARS_MS, "x-queue-type": kind})
    yard.put_all(b"x", key="long")
    for wrong in (YEARS_MS + 1, -1, 1 << 62):
        with pytest.raises(PreconditionFailedError, match=f"invalid arg '{name}'"):
            yard.queue("longer", arguments={name: wrong, "x-queue-type": kind})
    yard.record()
    yard.crash()
    pass_years(yard, YEARS_MS - 120_000)
    assert yard.drain("long") == [b"x"]


def test_a_message_that_may_live_for_years_ends_with_them(yard: Yard) -> None:
    yard.queue("q", arguments={"x-message-ttl": 2**27 * 1000})
    yard.put_all(b"x")
    yard.put_all(b"y", expiration=str(YEARS_MS))
    pass_years(yard, 2**27 * 1000 - 1_000)
    assert yard.counts() == (2, 0)
    yard.advance(2_000)
    assert yard.counts() == (0, 0)


@pytest.mark.parametrize("name", ["x-max-length", "x-max-length-bytes", "x-delivery-limit"])
def test_a_count_may_be_as_large_as_any_number(yard: Yard, name: str) -> None:
    yard.queue(arguments={name: (1 << 63) - 1, "x-queue-type": "quorum"})
    yard.put_all(b"x")
    assert yard.drain() == [b"x"]
