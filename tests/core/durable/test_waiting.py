from hypothesis import given
from hypothesis import strategies as st

from onelog.clock import ManualClock
from onelog.core.durable.waiting import ANY_QUEUE, ROUND_COUNT, OpenWaits, Wait
from tests.core.world import ManualTimer


class Room:
    def __init__(self, **settings: int) -> None:
        self.clock = ManualClock(1_000_000)
        self.timer = ManualTimer(self.clock)
        self.waiting = OpenWaits(self.clock, self.timer.schedule, **settings)
        self.ended: list[tuple[str, bool]] = []

    def wait(self, name: str, *queues: int, timeout_ms: int = 15_000, **how: object) -> Wait | None:
        keys = [("orders", queue_id) for queue_id in queues or (0,)]
        return self.waiting.wait(
            keys,
            timeout_ms,
            lambda wait, timed_out: self.ended.append((name, timed_out)),
            **how,  # type: ignore[arg-type]
        )


def test_a_wait_ends_when_a_message_arrives_in_its_queue_and_only_then() -> None:
    room = Room()
    room.wait("a", 0)
    room.wait("b", 1)
    room.waiting.arrived("orders", 2)
    room.waiting.arrived("bills", 0)
    assert room.ended == []
    room.waiting.arrived("orders", 0)
    room.waiting.arrived("orders", 0)
    assert room.ended == [("a", False)]
    assert len(room.waiting) == 1


def test_a_wait_ends_when_its_time_is_up_rounded_to_the_wheels_tick() -> None:
    room = Room()
    room.wait("a", timeout_ms=15_000)
    room.wait("b", timeout_ms=15_020)
    room.timer.advance(14_999)
    assert room.ended == []
    room.timer.advance(1)
    assert room.ended == [("a", True)]
    room.timer.advance(100)
    assert room.ended == [("a", True), ("b", True)]
    assert len(room.waiting) == 0
    assert room.waiting.keys == {}


def test_an_earlier_deadline_that_comes_later_is_kept() -> None:
    room = Room()
    room.wait("late", timeout_ms=20_000)
    room.wait("early", timeout_ms=1_000)
    room.timer.advance(1_000)
    assert room.ended == [("early", True)]
    room.timer.advance(19_000)
    assert room.ended[-1] == ("late", True)


def test_many_waits_use_few_timers() -> None:
    room = Room()
    for number in range(10_000):
        room.wait(str(number), timeout_ms=15_000)
        room.waiting.arrived("orders", 0)
    assert len(room.ended) == 10_000
    assert len(room.timer) == 1
    assert len(room.waiting) == 0


def test_a_wait_that_is_not_ready_goes_on() -> None:
    room = Room()
    ready = [False]
    room.wait("a", ready=lambda: ready[0])
    room.waiting.arrived("orders", 0)
    assert room.ended == []
    ready[0] = True
    room.waiting.arrived("orders", 0)
    assert room.ended == [("a", False)]


def test_a_wait_for_several_queues_ends_once() -> None:
    room = Room()
    room.wait("a", 0, 1, 2)
    room.waiting.arrived("orders", 2)
    room.waiting.arrived("orders", 1)
    room.timer.advance(20_000)
    assert room.ended == [("a", False)]


def test_a_wait_for_any_queue_of_a_topic() -> None:
    room = Room()
    room.wait("a", ANY_QUEUE)
    room.waiting.arrived("bills", 3)
    room.waiting.arrived("orders", 3)
    assert room.ended == [("a", False)]


def test_a_closed_connection_ends_its_waits_without_a_word() -> None:
    room = Room()
    room.wait("a", 0, owner="c1")
    room.wait("b", 1, owner="c1")
    room.wait("c", 0, owner="c2")
    room.waiting.cancel_owned("c1")
    room.waiting.arrived("orders", 0)
    room.waiting.arrived("orders", 1)
    room.timer.advance(20_000)
    assert room.ended == [("c", False)]


def test_a_single_wait_can_be_cancelled_twice() -> None:
    room = Room()
    wait = room.wait("a")
    assert wait is not None
    room.waiting.cancel(wait)
    room.waiting.cancel(wait)
    room.timer.advance(20_000)
    assert room.ended == []
    assert len(room.waiting) == 0


def test_more_waits_than_allowed_are_refused() -> None:
    room = Room(waits_max=2)
    assert room.wait("a") is not None
    assert room.wait("b") is not None
    assert room.wait("c") is None
    room.waiting.arrived("orders", 0)
    assert room.wait("c") is not None


def test_a_wait_that_begins_while_others_end_is_not_ended_with_them() -> None:
    room = Room()

    def again(wait: Wait, timed_out: bool) -> None:
        room.ended.append(("first", timed_out))
        room.wait("second", timeout_ms=0)

    room.waiting.wait([("orders", 0)], 1_000, again)
    room.waiting.arrived("orders", 0)
    assert room.ended == [("first", False)]
    room.timer.advance(100)
    assert room.ended == [("first", False), ("second", True)]


def test_a_wait_that_begins_at_the_end_of_another_times_out_itself() -> None:
    room = Room()

    def again(wait: Wait, timed_out: bool) -> None:
        room.wait("next", timeout_ms=0)

    room.waiting.wait([("orders", 0)], 1_000, again)
    room.timer.advance(1_000)
    room.timer.advance(200)
    assert room.ended == [("next", True)]
    assert len(room.waiting) == 0


def test_one_that_fails_to_end_does_not_keep_the_others_waiting() -> None:
    room = Room()

    def broken(wait: Wait, timed_out: bool) -> None:
        raise ConnectionError("gone")

    room.waiting.wait([("orders", 0)], 1_000, broken)
    room.wait("a")
    room.waiting.arrived("orders", 0)
    assert room.ended == [("a", False)]


def test_one_that_cannot_tell_whether_it_is_ready_ends_and_so_do_the_others() -> None:
    room = Room()

    def broken() -> bool:
        raise KeyError("a bug of ours")

    room.wait("broken", ready=broken)
    room.wait("whole")
    room.waiting.arrived("orders", 0)
    assert room.ended == [("broken", False), ("whole", False)]


def test_a_stopping_broker_lets_everyone_answer() -> None:
    room = Room()
    room.wait("a", 0)
    room.wait("b", 1, timeout_ms=99_000)
    room.waiting.end_all()
    assert room.ended == [("a", True), ("b", True)]


def test_absurd_times_are_taken_as_short_or_as_an_hour() -> None:
    room = Room()
    room.wait("short", timeout_ms=-5)
    room.wait("long", timeout_ms=1 << 62)
    room.timer.advance(0)
    assert room.ended == [("short", True)]
    room.timer.advance(3_600_000)
    assert room.ended[-1] == ("long", True)


steps = st.lists(
    st.one_of(
        st.tuples(st.just("wait"), st.integers(0, 3), st.integers(0, 3_000), st.integers(0, 2)),
        st.tuples(st.just("arrive"), st.integers(0, 3), st.just(0), st.just(0)),
        st.tuples(st.just("pass"), st.just(0), st.integers(0, 2_000), st.just(0)),
        st.tuples(st.just("close"), st.just(0), st.just(0), st.integers(0, 2)),
    ),
    max_size=50,
)


@given(steps)
def test_every_wait_ends_exactly_once_and_never_late(
    moves: list[tuple[str, int, int, int]],
) -> None:
    room = Room()
    open_waits: dict[str, tuple[int, int, int]] = {}
    for number, (move, queue_id, ms, owner) in enumerate(moves):
        room.ended.clear()
        if move == "wait":
            room.wait(str(number), queue_id, timeout_ms=ms, owner=owner)
            open_waits[str(number)] = (queue_id, room.clock.now_ms() + ms, owner)
            continue
        if move == "arrive":
            room.waiting.arrived("orders", queue_id)
            expected = [(name, False) for name, wait in open_waits.items() if wait[0] == queue_id]
            assert room.ended == expected
        elif move == "close":
            room.waiting.cancel_owned(owner)
            assert room.ended == []
            gone = [name for name, wait in open_waits.items() if wait[2] == owner]
            for name in gone:
                del open_waits[name]
        else:
            room.timer.advance(ms)
            now = room.clock.now_ms()
            ended = {name for name, timed_out in room.ended if timed_out}
            assert ended >= {name for name, wait in open_waits.items() if wait[1] <= now - 100}
            assert all(open_waits[name][1] <= now for name in ended)
        for name, _ in room.ended:
            del open_waits[name]
        assert len(room.waiting) == len(open_waits)


def test_very_many_waits_end_in_turns_with_others_whether_by_time_or_by_a_message() -> None:
    room = Room()
    for number in range(3 * ROUND_COUNT):
        room.wait(str(number))
    room.waiting.arrived("orders", 0)
    assert len(room.ended) == ROUND_COUNT
    room.timer.advance(0)
    assert room.ended == [(str(number), False) for number in range(3 * ROUND_COUNT)]
    room.ended.clear()
    for number in range(3 * ROUND_COUNT):
        room.wait(str(number), timeout_ms=1_000)
    room.clock.advance(1_000)
    deadlines = room.waiting._deadlines
    assert deadlines._armed is not None
    deadlines._time_passed(deadlines._armed)
    assert len(room.ended) == ROUND_COUNT
    room.waiting.arrived("orders", 0)
    assert len(room.ended) == 2 * ROUND_COUNT
    room.waiting.end_all()
    assert len(room.ended) == 3 * ROUND_COUNT
    room.timer.advance(10_000)
    assert len({name for name, _ in room.ended}) == 3 * ROUND_COUNT
    assert len(room.waiting) == 0
