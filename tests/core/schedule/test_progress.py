"""The staircase of what has left."""

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from onelog.core.schedule.progress import DeliveryProgress, DeliveryStep

ENTRIES = st.tuples(st.integers(0, 6), st.integers(-6, 6))


def test_at_first_nothing_has_left() -> None:
    assert not DeliveryProgress().covers(0, 0)
    assert not DeliveryProgress().covered(np.array([1]), np.array([1])).any()


def test_what_comes_later_is_pending_even_if_it_is_due_before() -> None:
    progress = DeliveryProgress().after(100, 5, end=10)
    assert progress.covers(100, 5)
    assert progress.covers(99, 9)
    assert not progress.covers(100, 6)
    assert not progress.covers(50, 10)


def test_of_messages_due_at_once_some_may_have_left() -> None:
    progress = DeliveryProgress().after(100, 5, end=10)
    assert [offset for offset in range(10) if progress.covers(100, offset)] == [0, 1, 2, 3, 4, 5]


def test_what_cancels_a_message_leaves_before_it() -> None:
    progress = DeliveryProgress().after(100, ~7, end=10)
    assert progress.covers(100, ~7)
    assert not progress.covers(100, 7)
    assert not progress.covers(100, ~6)
    assert not progress.covers(50, ~12)


def test_a_higher_step_makes_the_lower_ones_superfluous() -> None:
    progress = DeliveryProgress().after(100, 1, 2).after(60, 2, 3).after(50, 3, 4)
    assert progress.steps == (
        DeliveryStep(2, 100, 1),
        DeliveryStep(3, 60, 2),
        DeliveryStep(4, 50, 3),
    )
    assert progress.after(99, 0, 5).steps == (DeliveryStep(2, 100, 1), DeliveryStep(5, 99, 0))
    assert progress.after(100, 1, 5).steps == (DeliveryStep(5, 100, 1),)


def test_it_is_recorded_and_read_back() -> None:
    progress = DeliveryProgress().after(100, 1, 2).after(60, ~2, 3)
    assert DeliveryProgress.from_json(progress.as_json()) == progress
    assert DeliveryProgress.from_json([]) == DeliveryProgress()


@given(
    st.lists(st.tuples(st.integers(0, 6), st.integers(-6, 6), st.integers(0, 3))),
    st.lists(ENTRIES, max_size=20),
)
def test_one_by_one_and_many_at_once_are_the_same(
    taken: list[tuple[int, int, int]], entries: list[tuple[int, int]]
) -> None:
    progress, end = DeliveryProgress(), 0
    for due_ms, offset, more in taken:
        end += more
        progress = progress.after(due_ms, offset, end)
    assert list(progress.steps) == sorted(progress.steps)
    heights = [step[1:] for step in progress.steps]
    assert heights == sorted(set(heights), reverse=True)
    dues = np.array([due_ms for due_ms, _ in entries], np.int64)
    offsets = np.array([offset for _, offset in entries], np.int64)
    assert progress.covered(dues, offsets).tolist() == [progress.covers(*each) for each in entries]
