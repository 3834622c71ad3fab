from hypothesis import given
from hypothesis import strategies as st

from onelog.clock import ManualClock
from onelog.core.membership.locks import Locks

Q0, Q1 = ("orders", 0), ("orders", 1)


def test_a_queue_belongs_to_whom_it_was_given_until_it_is_released() -> None:
    locks = Locks(ManualClock())
    assert locks.lock("g", "a", [Q0, Q1]) == [Q0, Q1]
    assert locks.lock("g", "b", [Q0, Q1]) == []
    locks.unlock("g", "b", [Q0])
    assert locks.lock("g", "b", [Q0]) == []
    locks.unlock("g", "a", [Q0])
    assert locks.lock("g", "b", [Q0, Q1]) == [Q0]
    assert locks.holder("g", Q0) == "b"


def test_groups_do_not_disturb_each_other() -> None:
    locks = Locks(ManualClock())
    assert locks.lock("g", "a", [Q0]) == [Q0]
    assert locks.lock("h", "b", [Q0]) == [Q0]


def test_a_lock_lives_for_its_time_and_renewing_prolongs_it() -> None:
    clock = ManualClock()
    locks = Locks(clock, 60_000)
    locks.lock("g", "a", [Q0])
    clock.advance(60_000)
    assert locks.lock("g", "b", [Q0]) == []
    assert locks.lock("g", "a", [Q0]) == [Q0]
    clock.advance(60_000)
    assert locks.holder("g", Q0) == "a"
    clock.advance(1)
    assert locks.holder("g", Q0) is None
    assert locks.lock("g", "b", [Q0]) == [Q0]


def test_a_group_is_ordered_while_any_of_its_locks_lives() -> None:
    clock = ManualClock()
    locks = Locks(clock, 60_000)
    assert not locks.any_held("g")
    locks.lock("g", "a", [Q0])
    assert locks.any_held("g")
    clock.advance(60_001)
    assert not locks.any_held("g")
    locks.expire()
    locks.lock("g", "a", [Q0])
    locks.expire()
    assert locks.any_held("g")


moves = st.lists(
    st.tuples(
        st.sampled_from(["lock", "unlock", "wait"]),
        st.sampled_from("abc"),
        st.sampled_from([Q0, Q1]),
        st.integers(0, 90_000),
    ),
    max_size=60,
)


@given(moves)
def test_nobody_gets_a_queue_that_another_has_held_within_the_expiry(
    steps: list[tuple[str, str, tuple[str, int], int]],
) -> None:
    clock = ManualClock()
    locks = Locks(clock, 60_000)
    held: dict[tuple[str, int], tuple[str, int]] = {}
    for move, client, queue, ms in steps:
        if move == "wait":
            clock.advance(ms)
            locks.expire()
        elif move == "lock":
            holder = held.get(queue)
            free = holder is None or holder[0] == client or clock.now_ms() - holder[1] > 60_000
            assert bool(locks.lock("g", client, [queue])) is free
            if free:
                held[queue] = (client, clock.now_ms())
        else:
            locks.unlock("g", client, [queue])
            if held.get(queue, ("", 0))[0] == client:
                del held[queue]
