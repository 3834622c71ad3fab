"""The wheel, with runs of a few entries, so that there are many."""

import tempfile
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any
from unittest import mock

import numpy as np
import pytest
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from onelog.core.schedule import wheel as timer_wheel
from onelog.core.schedule.progress import DeliveryProgress, Entry
from onelog.core.schedule.sorted_files import Columns, SortedFile
from onelog.core.schedule.wheel import TimerWheel
from onelog.errors import StoreFullError

SMALL: dict[str, Any] = {"FILE_COUNT": 8, "NEAR_COUNT": 4, "MERGE_FILES": 3, "MERGE_COUNT_MAX": 60}


@pytest.fixture
def small() -> Iterator[None]:
    with mock.patch.multiple(timer_wheel, **SMALL):
        yield


def run_now(work: Callable[[], None]) -> None:
    work()


def no_barrier() -> Callable[[], None]:
    return lambda: None


def made(folder: Path, offload: Callable[[Callable[[], None]], None] = run_now) -> TimerWheel:
    wheel = TimerWheel(folder, offload, no_barrier)
    wheel.load(0, 0, DeliveryProgress(), place_of)
    return wheel


def place_of(offset: int) -> int:
    return offset * 100


def add(wheel: TimerWheel, *dues: int) -> None:
    """A message for each due time."""
    end = wheel.end + len(dues)
    enter(wheel, list(zip(dues, range(wheel.end, end), strict=True)), end)


def enter(wheel: TimerWheel, entries: list[Entry], end: int) -> None:
    """What the messages up to `end` say."""
    columns = np.array(entries, np.int64).reshape(-1, 2)
    wheel.add(Columns(columns[:, 0], columns[:, 1]), end, place_of(end - 1))


def leave(wheel: TimerWheel, now_ms: int, count_max: int = 100) -> list[Entry]:
    """Take entries, and record that they have left."""
    taken = wheel.take(now_ms, count_max)
    if taken:
        wheel.progress = wheel.progress.after(*taken[-1], wheel.end)
        wheel.forget_below(wheel.position)
    return taken


def leave_all(wheel: TimerWheel, now_ms: int) -> list[Entry]:
    found: list[Entry] = []
    while taken := leave(wheel, now_ms):
        found += taken
    return found


def reloaded(wheel: TimerWheel, folder: Path, position: int | None = None) -> TimerWheel:
    again = TimerWheel(folder, run_now, no_barrier)
    at = wheel.position if position is None else position
    again.load(at, wheel.end, wheel.progress, place_of)
    return again


def test_entries_leave_in_the_order_of_their_due_times(tmp_path: Path, small: None) -> None:
    wheel = made(tmp_path)
    assert wheel.next_due_ms() is None
    assert wheel.take(10**15, 10) == []
    add(wheel, 30, 10, 20, 10)
    assert wheel.next_due_ms() == 10
    assert wheel.take(9, 10) == []
    assert leave(wheel, 20, 2) == [(10, 1), (10, 3)]
    assert leave(wheel, 20) == [(20, 2)]
    assert leave(wheel, 29) == []
    assert wheel.next_due_ms() == 30
    assert leave(wheel, 30) == [(30, 0)]
    assert wheel.next_due_ms() is None


def test_a_late_one_leaves_too(tmp_path: Path, small: None) -> None:
    wheel = made(tmp_path)
    add(wheel, 30, 40)
    assert leave(wheel, 30) == [(30, 0)]
    add(wheel, 20, 30)
    assert leave(wheel, 30) == [(20, 2), (30, 3)]
    assert leave_all(wheel, 99) == [(40, 1)]


def test_what_was_taken_but_not_recorded_comes_again(tmp_path: Path, small: None) -> None:
    wheel = made(tmp_path)
    add(wheel, *range(20))
    assert wheel.take(99, 3) == [(0, 0), (1, 1), (2, 2)]
    wheel.drop_cache()
    assert wheel.take(99, 3) == [(0, 0), (1, 1), (2, 2)]


def test_thousands_go_through_files_in_order(tmp_path: Path, small: None) -> None:
    wheel = made(tmp_path)
    dues = [number * 7_919 % 1_000 for number in range(1_000)]
    for at in range(0, 1_000, 10):
        add(wheel, *dues[at : at + 10])
    runs = list(tmp_path.iterdir())
    assert 1 < len(runs) < 30
    assert wheel.count == 1_000
    expected = sorted((due_ms, offset) for offset, due_ms in enumerate(dues))
    assert leave_all(wheel, 499) == expected[:500]
    assert leave_all(wheel, 10_000) == expected[500:]
    wheel.close()
    assert list(tmp_path.iterdir()) == []
    assert wheel.position == wheel.end == 1_000


def test_a_million_at_one_time_leave_in_parts(tmp_path: Path, small: None) -> None:
    wheel = made(tmp_path)
    for _ in range(20):
        add(wheel, *[500] * 10)
    found = []
    while taken := leave(wheel, 500, 3):
        assert len(taken) <= 3
        found += taken
    assert found == [(500, offset) for offset in range(200)]


def test_memory_stays_small_whatever_comes(tmp_path: Path, small: None) -> None:
    wheel = made(tmp_path)
    for number in range(1_000):
        add(wheel, 100_000 - number)
        assert len(wheel._near) + len(wheel._arrived) <= 16
        assert len(wheel._open) < 8
        assert wheel.next_due_ms() == 100_000 - number


def test_a_restart_finds_everything_that_was_written(tmp_path: Path, small: None) -> None:
    wheel = made(tmp_path)
    add(wheel, *range(100, 150))
    leave_all(wheel, 104)
    wheel.close()
    again = reloaded(wheel, tmp_path)
    assert again.end == 50
    assert leave_all(again, 999) == [(due_ms, due_ms - 100) for due_ms in range(105, 150)]


def test_a_restart_without_a_close_says_what_to_read_again(tmp_path: Path, small: None) -> None:
    wheel = made(tmp_path)
    for start in range(0, 30, 3):
        add(wheel, start, start + 1, start + 2)
    again = reloaded(wheel, tmp_path)
    assert 20 < again.end < 30
    add(again, *range(again.end, 30))
    assert leave_all(again, 99) == [(offset, offset) for offset in range(30)]


@pytest.mark.parametrize("damage", ["cut", "flip", "missing", "renamed"])
def test_a_damaged_run_and_what_follows_is_read_again(
    tmp_path: Path, small: None, damage: str, caplog: pytest.LogCaptureFixture
) -> None:
    with mock.patch.object(timer_wheel, "MERGE_FILES", 1_000):
        wheel = made(tmp_path)
        for start in range(0, 40, 8):
            add(wheel, *range(start, start + 8))
    second = sorted(tmp_path.iterdir())[1]
    if damage == "cut":
        second.write_bytes(second.read_bytes()[:-1])
    elif damage == "flip":
        second.write_bytes(second.read_bytes()[:-1] + b"\xff")
    elif damage == "missing":
        second.unlink()
    else:
        second.rename(second.with_name("00000000000000000008-00000000000000000017"))
    again = reloaded(wheel, tmp_path)
    assert again.end == 8
    assert len(list(tmp_path.iterdir())) == 1
    assert "offset 8 to 40 are read again" in caplog.text


def test_a_run_about_messages_that_are_not_there_is_not_used(tmp_path: Path, small: None) -> None:
    wheel = made(tmp_path)
    add(wheel, *range(16))
    wheel.close()
    for end, place in ((15, place_of), (16, lambda offset: 7)):
        again = TimerWheel(tmp_path, run_now, no_barrier)
        again.load(0, end, DeliveryProgress(), place)
        assert again.end == 0
        assert list(tmp_path.iterdir()) == []
        add(again, *range(16))
        again.close()


def test_runs_below_the_position_are_deleted_on_a_start(tmp_path: Path, small: None) -> None:
    wheel = made(tmp_path)
    with mock.patch.object(timer_wheel, "MERGE_FILES", 1_000):
        add(wheel, *range(8))
        add(wheel, *range(8, 16))
        again = reloaded(wheel, tmp_path, position=8)
    assert leave_all(again, 99) == [(offset, offset) for offset in range(8, 16)]


def test_a_cancelled_message_is_told_before_it_comes(tmp_path: Path, small: None) -> None:
    wheel = made(tmp_path)
    add(wheel, 50, 60, 50)
    enter(wheel, [(50, ~2), (60, ~1)], 5)
    assert not wheel.is_pending(50, 2)
    assert not wheel.is_pending(50, 9)
    assert wheel.is_pending(50, 0)
    assert leave_all(wheel, 99) == [(50, ~2), (50, 0), (50, 2), (60, ~1), (60, 1)]


def test_cancellations_in_files_are_found(tmp_path: Path, small: None) -> None:
    wheel = made(tmp_path)
    add(wheel, *[500] * 40)
    enter(wheel, [(500, ~offset) for offset in range(8)], 48)
    assert not wheel._open
    found = wheel.pending(np.full(10, 500), np.arange(10))
    assert found.tolist() == [False] * 8 + [True] * 2


def test_after_a_restart_in_the_middle_of_a_moment_it_is_known_who_was_cancelled(
    tmp_path: Path, small: None
) -> None:
    wheel = made(tmp_path)
    add(wheel, *[500] * 20)
    enter(wheel, [(500, ~3), (500, ~15), (600, ~9)], 23)
    taken: list[Entry] = []
    while len(taken) < 12:
        taken += leave(wheel, 500, 2)
    assert taken[:2] == [(500, ~15), (500, ~3)]
    assert wheel.cancelled_halfway() == {15: 500}
    wheel.close()
    again = reloaded(wheel, tmp_path)
    assert again.cancelled_halfway() == {15: 500}
    assert (500, ~15) not in leave_all(again, 999)


def test_old_messages_are_found(tmp_path: Path, small: None) -> None:
    wheel = made(tmp_path)
    add(wheel, *range(0, 300, 10))
    leave(wheel, 50)
    found = [offset for part in wheel.pending_below(12, due_after_ms=70) for offset in part.offsets]
    assert sorted(found) == [8, 9, 10, 11]


def test_messages_that_wait_are_listed_without_the_cancelled_ones(
    tmp_path: Path, small: None
) -> None:
    wheel = made(tmp_path)
    add(wheel, *range(0, 300, 10))
    enter(wheel, [(200, ~20), (40, ~4)], 32)
    leave_all(wheel, 150)
    found = [offset for part in wheel.pending_messages() for offset in part.offsets]
    assert sorted(found) == [16, 17, 18, 19, *range(21, 30)]


class Slowly:
    """Runs work when it is told to."""

    def __init__(self) -> None:
        self.waiting: list[Callable[[], None]] = []

    def __call__(self, work: Callable[[], None]) -> None:
        self.waiting.append(work)

    def finish(self) -> None:
        while self.waiting:
            self.waiting.pop()()


def test_while_a_worker_writes_everything_goes_on(tmp_path: Path, small: None) -> None:
    slowly = Slowly()
    wheel = made(tmp_path, slowly)
    for start in range(0, 40, 8):
        add(wheel, *range(start, start + 8))
    assert len(slowly.waiting) == 1
    assert list(tmp_path.iterdir()) == []
    assert leave_all(wheel, 9) == [(offset, offset) for offset in range(10)]
    slowly.finish()
    for _ in range(20):
        wheel.work()
        slowly.finish()
    assert not wheel._sealed
    assert leave_all(wheel, 99) == [(offset, offset) for offset in range(10, 40)]


def test_a_close_waits_for_the_worker(tmp_path: Path, small: None) -> None:
    threads: list[threading.Thread] = []

    def start(work: Callable[[], None]) -> None:
        threads.append(threading.Thread(target=work))
        threads[-1].start()

    wheel = made(tmp_path, start)
    for number in range(100):
        add(wheel, number)
    wheel.close()
    again = reloaded(wheel, tmp_path)
    assert again.end == 100
    assert len(leave_all(again, 999)) == 100
    for thread in threads:
        thread.join()


def test_a_full_disk_keeps_entries_in_memory_until_there_is_room(
    tmp_path: Path, small: None, caplog: pytest.LogCaptureFixture
) -> None:
    wheel = made(tmp_path)

    def refuse(*_: object) -> SortedFile:
        raise StoreFullError("no room")

    with mock.patch.object(timer_wheel, "write_sorted", refuse):
        for start in range(0, 40, 8):
            add(wheel, *range(start, start + 8))
        assert len(leave(wheel, 3)) == 4
    assert caplog.text.count("no room") == 1
    assert list(tmp_path.iterdir()) == []
    wheel.work()
    assert list(tmp_path.iterdir()) != []
    assert leave_all(wheel, 99) == [(offset, offset) for offset in range(4, 40)]


def test_space_of_what_has_left_comes_back(tmp_path: Path, small: None) -> None:
    with mock.patch.object(timer_wheel, "MERGE_FILES", 1_000):
        wheel = made(tmp_path)
        for start in range(0, 64, 8):
            add(wheel, 10_000, *range(start, start + 7))
        before = sum(path.stat().st_size for path in tmp_path.iterdir())
        leave_all(wheel, 999)
        assert wheel.next_due_ms() == 10_000
        wheel.work()
        after = sum(path.stat().st_size for path in tmp_path.iterdir())
    assert after < before / 1.8
    assert [due_ms for due_ms, _ in leave_all(wheel, 10_000)] == [10_000] * 8


def _message(entry: Entry) -> int:
    return entry[1] if entry[1] >= 0 else ~entry[1]


class WheelMachine(RuleBasedStateMachine):
    """Against a list of what is pending: restarts, crashes, late workers, failed records."""

    def __init__(self) -> None:
        super().__init__()
        self._patch = mock.patch.multiple(timer_wheel, **SMALL)
        self._patch.start()
        self._temporary = tempfile.TemporaryDirectory()
        self.folder = Path(self._temporary.name) / "timers"
        self.slowly = Slowly()
        self.wheel = made(self.folder, self.slowly)
        self.queue: list[list[Entry]] = []
        self.pending: set[Entry] = set()
        self.cancelled: set[int] = set()
        self.told: set[int] = set()
        self.position = 0
        self.now_ms = 50

    def _enter(self, *messages: list[Entry]) -> None:
        self.queue += messages
        entries = [entry for message in messages for entry in message]
        enter(self.wheel, entries, len(self.queue))

    @rule(delays=st.lists(st.integers(-5, 60), min_size=1, max_size=12))
    def messages_come(self, delays: list[int]) -> None:
        first = len(self.queue)
        entries = [(self.now_ms + each, first + at) for at, each in enumerate(delays)]
        self.pending.update(entries)
        self._enter(*[[entry] for entry in entries])

    @precondition(lambda self: any(offset >= 0 for _, offset in self.pending))
    @rule(data=st.data())
    def one_is_cancelled(self, data: st.DataObject) -> None:
        waiting = sorted(
            entry
            for entry in self.pending
            if entry[0] > self.now_ms and entry[1] >= 0 and entry[1] not in self.cancelled
        )
        if waiting:
            due_ms, offset = data.draw(st.sampled_from(waiting))
            self.pending.add((due_ms, ~offset))
            self.cancelled.add(offset)
            self._enter([(due_ms, ~offset)])

    @rule(count_max=st.integers(1, 10), ms=st.integers(0, 30), fails=st.booleans())
    def time_passes(self, count_max: int, ms: int, fails: bool) -> None:
        self.now_ms += ms
        taken = self.wheel.take(self.now_ms, count_max)
        due = sorted(entry for entry in self.pending if entry[0] <= self.now_ms)
        # A message and its cancellation that met in a file are both gone.
        passed = [entry for entry in due if taken and entry <= taken[-1]]
        assert taken == [entry for entry in passed if entry in taken]
        assert all(_message(entry) in self.cancelled for entry in passed if entry not in taken)
        assert taken or all(_message(entry) in self.cancelled for entry in due)
        if fails or not taken:
            self.wheel.drop_cache()
            return
        self.position = self.wheel.position
        self.wheel.progress = self.wheel.progress.after(*taken[-1], self.wheel.end)
        self.wheel.forget_below(self.position)
        self.wheel.fill_ahead()
        self.pending.difference_update(passed)
        for _, offset in taken:
            if offset < 0:
                self.told.add(~offset)
            else:
                assert offset not in self.cancelled or offset in self.told

    @rule(ms=st.integers(1, 100))
    def the_clock_is_set_back(self, ms: int) -> None:
        self.now_ms = max(50, self.now_ms - ms)

    @rule()
    def the_worker_gets_on(self) -> None:
        self.slowly.finish()
        self.wheel.work()

    @rule(cleanly=st.booleans())
    def restart(self, cleanly: bool) -> None:
        if cleanly:
            self.slowly.finish()
            self.wheel.close()
            self.position = self.wheel.position
        progress = self.wheel.progress
        self.slowly = Slowly()
        self.wheel = TimerWheel(self.folder, self.slowly, no_barrier)
        self.wheel.load(self.position, len(self.queue), progress, place_of)
        assert not cleanly or self.wheel.end == len(self.queue)
        self.told.clear()
        for number in range(self.wheel.end, len(self.queue)):
            enter(self.wheel, self.queue[number], number + 1)
        self.told = set(self.wheel.cancelled_halfway())

    @invariant()
    def the_next_one_is_known(self) -> None:
        next_ms = self.wheel.next_due_ms()
        waiting = [entry[0] for entry in self.pending if _message(entry) not in self.cancelled]
        assert next_ms is None or next_ms in {due_ms for due_ms, _ in self.pending}
        assert not waiting or (next_ms is not None and next_ms <= min(waiting))

    def teardown(self) -> None:
        self._patch.stop()
        self._temporary.cleanup()


WheelMachine.TestCase.settings = settings(
    max_examples=60,
    stateful_step_count=40,
    deadline=None,
    suppress_health_check=[HealthCheck.too_slow],
)
TestWheelMachine = WheelMachine.TestCase
