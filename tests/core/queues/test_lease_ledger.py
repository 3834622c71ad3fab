"""One group's leases in one queue, without a clock and without a log."""

from unittest import mock

import msgspec
from hypothesis import given
from hypothesis import strategies as st

from onelog.core.queues.lease_ledger import IN_ORDER, IN_PLACE, Lease, LeaseLedger

STEPS = st.lists(
    st.tuples(
        st.sampled_from(
            ["hand out", "finish", "in order", "in order", "give back", "again", "record", "move"]
        ),
        st.integers(0, 100),
    ),
    max_size=60,
)


def new_queue() -> LeaseLedger:
    return LeaseLedger("group", "topic", 3)


def hand_out(queue: LeaseLedger, count: int, given_ms: int = 5, skip: int = 0) -> Lease:
    """Lease so many unread messages, after passing over some."""
    begin = queue.next
    offsets = tuple(range(begin + skip, begin + skip + count))
    lease = Lease(queue, given_ms, given_ms + 10, IN_PLACE, None, offsets)
    queue.hand_out(lease, begin, begin + skip + count)
    return lease


def plain(value: object) -> object:
    return msgspec.json.decode(msgspec.json.encode(value))


def rebuilt(*records: object) -> LeaseLedger:
    queue = new_queue()
    for record in records:
        queue.apply(plain(record))  # type: ignore[arg-type]
    queue.settle()
    return queue


def test_the_cursor_waits_for_the_first_that_is_not_finished() -> None:
    queue = new_queue()
    hand_out(queue, 4)
    assert queue.cursor == 0
    queue.finish_one(1)
    queue.finish_one(0)
    assert queue.cursor == 2
    queue.return_one(2)
    queue.finish_one(3)
    assert queue.cursor == 2
    queue.finish_one(2)
    assert queue.cursor == queue.next == 4


def test_what_is_early_is_finished_in_its_turn_or_comes_again_behind_what_comes_back() -> None:
    queue = new_queue()
    hand_out(queue, 6)
    for offset in (1, 3, 5):
        queue.finish_in_order(offset)
    queue.finish_in_order(0)
    assert (queue.cursor, sorted(queue.early)) == (2, [3, 5])
    queue.return_one(4)
    assert (sorted(queue.early), sorted(queue.returned)) == ([3], [4, 5])
    queue.finish_in_order(2)
    assert queue.cursor == 4
    assert queue.times == {4: 1, 5: 1}
    assert plain(queue.state()) == {"n": 6, "r": [[4, 5], [5, 5]], "t": [[4, 1], [5, 1]]}


def test_the_state_in_steps_says_the_same_as_the_state_of_what_is_early_too() -> None:
    queue = new_queue()
    hand_out(queue, 4)
    queue.finish_in_order(2)
    queue.return_one(3)
    assert queue.early.keys() == {2}
    assert list(queue.state_in_steps()) == [queue.state()]
    with mock.patch("onelog.core.queues.lease_ledger.STEP_LEASES", 1):
        *_, text = queue.state_in_steps()
    assert isinstance(text, list)
    again = rebuilt(msgspec.json.decode(b"".join(text)))
    assert (again.out.keys(), again.returned, again.early) == (
        queue.out.keys(),
        queue.returned,
        queue.early,
    )


def test_a_queue_that_is_cut_off_forgets_everything_from_there_on() -> None:
    queue = new_queue()
    hand_out(queue, 6)
    queue.finish_in_order(1)
    queue.finish_in_order(4)
    queue.return_one(5)
    queue.cut(3)
    queue.settle()
    assert (sorted(queue.out), sorted(queue.early), sorted(queue.returned)) == ([0, 2], [1], [])
    hand_out(queue, 2)
    queue.finish_in_order(0)
    queue.finish_in_order(2)
    assert queue.cursor == 3
    assert sorted(queue.out) == [3, 4]


def test_what_was_passed_over_is_finished() -> None:
    queue = new_queue()
    hand_out(queue, 1, skip=7)
    assert queue.cursor == 7


def test_what_came_back_is_to_be_had_smallest_first_until_it_is_handed_out() -> None:
    queue = new_queue()
    hand_out(queue, 5)
    for offset in (3, 0, 4):
        queue.return_one(offset)
    assert queue.next_returned(2) == [0, 3]
    queue.keep_returned([3])
    again = Lease(queue, 9, 19, IN_PLACE, None, (0,))
    queue.hand_out(again, queue.next, queue.next)
    assert queue.next_returned(9) == [3, 4]
    assert queue.times == {0: 1, 3: 1, 4: 1}
    assert again.still_out() == [0]


def test_a_handout_knows_what_is_still_out_of_it() -> None:
    queue = new_queue()
    lease = hand_out(queue, 4)
    queue.finish_one(1)
    queue.return_one(2)
    queue.lease_anew(3, Lease(queue, 6, 16, IN_PLACE, None, (3,)))
    assert lease.still_out() == [0]


def test_a_record_is_small_and_says_how_things_stand() -> None:
    queue = new_queue()
    hand_out(queue, 3, given_ms=5)
    hand_out(queue, 1, given_ms=5)
    hand_out(queue, 2, given_ms=6)
    queue.finish_one(1)
    queue.return_one(2)
    assert plain(queue.record()) == {
        "n": 6,
        "o": [[5, 15, 1, None, [0, 3]], [6, 16, 1, None, [4, 5]]],
        "r": [[2, 5]],
        "t": [[2, 1]],
        "d": [1],
    }
    queue.recorded()
    queue.finish_one(4)
    assert plain(queue.record()) == {"n": 6, "d": [4]}
    queue.move_to(2)
    assert plain(queue.record()) == {"w": 1, "n": 2}


def test_hand_overs_of_one_moment_are_one_after_a_restart() -> None:
    queue = new_queue()
    hand_out(queue, 3)
    hand_out(queue, 2)
    again = rebuilt(queue.state())
    assert len(set(again.out.values())) == 1
    lease = again.out[0]
    assert (lease.offsets, lease.left) == ((0, 1, 2, 3, 4), 5)
    assert lease.policy.number == IN_PLACE.number


@given(STEPS)
def test_records_rebuild_the_state_also_if_they_come_twice(
    steps: list[tuple[str, int]],
) -> None:
    queue = new_queue()
    records: list[object] = []

    def record() -> None:
        records.append(plain(queue.record()))
        queue.recorded()

    for number, (what, pick) in enumerate(steps):
        out, ready = sorted(queue.out), sorted(queue.returned)
        if what == "hand out":
            hand_out(queue, pick % 4 + 1, given_ms=number, skip=pick % 3)
        elif what == "finish" and out:
            queue.finish_one(out[pick % len(out)])
        elif what == "in order" and out:
            queue.finish_in_order(out[pick % len(out)])
        elif what == "give back" and out:
            queue.return_one(out[pick % len(out)])
        elif what == "again" and ready:
            offset = queue.next_returned(1)[0]
            lease = Lease(queue, number, number + 10, IN_ORDER, "a", (offset,))
            queue.hand_out(lease, queue.next, queue.next)
        elif what == "record":
            record()
        elif what == "move":
            queue.move_to(pick)
    record()
    for copy in (rebuilt(*records), rebuilt(queue.state(), records[-1]), rebuilt(queue.state())):
        assert plain(copy.state()) == plain(queue.state())
        assert copy.cursor == queue.cursor
        assert copy.next_returned(100) == sorted(queue.returned)
