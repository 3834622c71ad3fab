"""Epochs: where two histories part, and the file that remembers them."""

from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from onelog.errors import StoreCorruptError
from onelog.replication.epochs import FILE, Epochs, last_shared


def test_two_logs_of_the_same_epoch_are_equal_up_to_the_shorter_one() -> None:
    assert last_shared([(1, 0)], 100, [(1, 0)], 70) == 70


def test_what_the_old_master_wrote_alone_is_cut() -> None:
    """It wrote up to 120 in epoch 1; the new one had 100 when it began epoch 2."""
    assert last_shared([(1, 0)], 120, [(1, 0), (2, 100)], 300) == 100


def test_an_epoch_that_began_elsewhere_is_another_history() -> None:
    assert last_shared([(1, 0), (2, 50)], 120, [(1, 0), (2, 100)], 300) == 50


def test_an_epoch_of_which_nothing_was_written_takes_no_part() -> None:
    assert last_shared([(1, 0), (3, 100)], 130, [(1, 0), (2, 100)], 120) == 100


def test_histories_that_do_not_meet_have_no_common_place() -> None:
    assert last_shared([(1, 0)], 120, [(5, 0)], 300) is None
    assert last_shared([], 120, [(5, 0)], 300) is None


@given(
    writes=st.lists(
        st.tuples(st.integers(0, 3), st.integers(0, 20), st.integers(0, 3)), max_size=12
    )
)
def test_the_common_place_is_where_the_logs_part(writes: list[tuple[int, int, int]]) -> None:
    """Four nodes; each epoch has a master that writes, and one follower that copies some of it."""
    logs: list[list[int]] = [[], [], [], []]
    histories = [Epochs() for _ in logs]
    for epoch, (master, size, follower) in enumerate(writes, 1):
        histories[master].begin(epoch, len(logs[master]))
        logs[master] += [epoch] * size
        if follower == master:
            continue
        mine = histories[follower]
        ends = len(logs[follower]), len(logs[master])
        common = last_shared(mine.entries, ends[0], histories[master].entries, ends[1])
        expected = _prefix(logs[follower], logs[master])
        if mine.entries:
            assert common is None or common <= expected
            assert common == expected or expected == 0 or common is not None
        place = common or 0
        mine.cut(place)
        logs[follower] = logs[master][: place + (ends[1] - place) // 2]
        for begun, start in histories[master].entries:
            if start >= place and start < len(logs[follower]) and begun > mine.last:
                mine.begin(begun, start)
    for one in range(4):
        for two in range(4):
            common = last_shared(
                histories[one].entries, len(logs[one]), histories[two].entries, len(logs[two])
            )
            if common is not None:
                assert logs[one][:common] == logs[two][:common]


def _prefix(one: list[int], two: list[int]) -> int:
    return next(
        (at for at, (a, b) in enumerate(zip(one, two, strict=False)) if a != b),
        min(len(one), len(two)),
    )


def test_the_file_is_rocketmqs(tmp_path: Path) -> None:
    epochs = Epochs(tmp_path)
    epochs.begin(7, 7_000)
    epochs.begin(8, 8_000)
    assert (tmp_path / FILE).read_text() == "2\n773307083\n7-7000\n8-8000\n"
    assert Epochs(tmp_path).entries == [(7, 7_000), (8, 8_000)]


def test_a_file_with_checksum_0_is_taken_as_it_is(tmp_path: Path) -> None:
    (tmp_path / FILE).write_text("1\n0\n7-7000\n")
    assert Epochs(tmp_path).entries == [(7, 7_000)]


@pytest.mark.parametrize(
    "text", ["", "2\n773307083\n7-7000\n", "1\n5\n7-7000\n", "1\n0\nx\n", "2\n0\n7-70\n6-80\n"]
)
def test_a_damaged_file_says_what_to_do(tmp_path: Path, text: str) -> None:
    (tmp_path / FILE).write_text(text)
    with pytest.raises(StoreCorruptError, match="move its store away"):
        Epochs(tmp_path)


def test_epochs_before_the_beginning_of_the_log_are_forgotten(tmp_path: Path) -> None:
    epochs = Epochs(tmp_path)
    for epoch in range(1, 6):
        epochs.begin(epoch, epoch * 100)
    epochs.forget(320)
    assert epochs.entries == [(3, 300), (4, 400), (5, 500)]
    epochs.forget(10_000)
    assert Epochs(tmp_path).entries == [(5, 500)]


def test_each_place_has_its_epoch() -> None:
    epochs = Epochs()
    assert epochs.at(5) == (0, 0, None)
    epochs.begin(1, 0)
    epochs.begin(4, 100)
    assert epochs.at(99) == (1, 0, 100)
    assert epochs.at(100) == (4, 100, None)


def test_a_cut_takes_the_epochs_behind_it(tmp_path: Path) -> None:
    epochs = Epochs(tmp_path)
    epochs.begin(1, 0)
    epochs.begin(2, 100)
    epochs.cut(100)
    assert Epochs(tmp_path).entries == [(1, 0)]
