"""What queues are made of when they are made anew from the log."""

import shutil
import struct
from dataclasses import replace
from functools import partial
from pathlib import Path

import numpy as np
import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from onelog.clock import ManualClock
from onelog.config import StoreConfig
from onelog.message import Appended, NewMessage
from onelog.record.columns import leading_records
from onelog.store.consumequeue import Entry
from onelog.store.damage import Damage, Damages
from onelog.store.keyindex import KeyIndex
from onelog.store.message_store import MessageStore
from onelog.store.queue_files import FOLDER
from onelog.store.queues import Queues
from onelog.store.reader import FetchStatus
from onelog.store.replay import Replay
from onelog.store.verify import verify
from onelog.store.walk import QueueEntryColumns, Stretch, TopicNumbers
from tests.store.conftest import SMALL, OpenStore
from tests.store.samples import flip, overwrite, write_sample

QUEUE_OFFSET_AT = 20
QUEUE_ID_AT = 12
BODY_AT = 88
CONFIG = replace(SMALL, checkpoint_interval_ms=3_600_000)


def bodies(store: MessageStore, topic: str, queue_id: int = 0) -> dict[int, bytes]:
    begin = store.min_offset(topic, queue_id)
    found = store.messages(topic, queue_id, begin, 10_000)
    return {int(m.queue_offset): bytes(m.body) for m in found}


def segment_file(folder: Path, place: Appended) -> tuple[Path, int]:
    number, inside = divmod(place.log_offset, CONFIG.segment_bytes)
    return folder / "commitlog" / f"{number * CONFIG.segment_bytes:020d}", inside


def written(folder: Path, count: int = 40) -> list[Appended]:
    """A store with messages in queue 0 of `t`, which crashed before a checkpoint knew of them."""
    store = MessageStore.open(folder, CONFIG, ManualClock())
    places = [store.append([NewMessage("t", 0, b"%d" % n)])[0] for n in range(count)]
    shutil.copytree(folder, folder.with_suffix(".copy"))
    store.close()
    shutil.rmtree(folder)
    folder.with_suffix(".copy").rename(folder)
    return places


def crashed(store: MessageStore, folder: Path) -> None:
    """Put what a crash would leave of a store into `folder`/crashed."""
    aside = shutil.ignore_patterns(FOLDER)  # A thread is taking that away.
    shutil.copytree(store.folder, folder / "crashed", ignore=aside)


def reopened(folder: Path, rebuild: bool = False) -> MessageStore:
    if rebuild:
        shutil.rmtree(folder / "consumequeue")
        shutil.rmtree(folder / "index", ignore_errors=True)
    return MessageStore.open(folder, CONFIG, ManualClock())


# -- topics that were deleted --------------------------------------------------------------------


def test_a_topic_that_was_made_anew_has_its_new_messages_after_a_rebuild(tmp_path: Path) -> None:
    folder = tmp_path / "s"
    with MessageStore.open(folder, CONFIG, ManualClock()) as store:
        store.append([NewMessage("t", n % 3, b"old %d" % n) for n in range(100)])
        store.append([NewMessage("other", 0, b"other")])
        store.delete_topic("t")
        store.append([NewMessage("t", n % 2, b"new %d" % n) for n in range(10)])
        before = {queue_id: bodies(store, "t", queue_id) for queue_id in range(3)}
    with reopened(folder, rebuild=True) as store:
        assert {queue_id: bodies(store, "t", queue_id) for queue_id in range(3)} == before
        assert before[0] == {n: b"new %d" % (2 * n) for n in range(5)}
        assert store.queues() == {"other": [0], "t": [0, 1]}
        assert store.append([NewMessage("t", 0, b"next")])[0].queue_offset == 5
    assert verify(folder).clean


@pytest.mark.parametrize("rebuild", [False, True])
def test_a_deleted_topic_stays_deleted_after_a_crash_and_after_a_rebuild(
    open_store: OpenStore, tmp_path: Path, rebuild: bool
) -> None:
    store = open_store(CONFIG)
    store.append([NewMessage("gone", n, b"x") for n in range(4)])
    store.append([NewMessage("stays", 0, b"y")])
    store.delete_topic("gone")
    assert store.read("gone", 0, 0).status is FetchStatus.NO_MATCHED_LOGIC_QUEUE
    crashed(store, tmp_path)
    with reopened(tmp_path / "crashed", rebuild) as again:
        assert not again.recovery.clean
        assert again.queues() == {"stays": [0]}
        assert not (again.folder / "consumequeue" / "gone").exists()
        assert again.append([NewMessage("gone", 0, b"new")])[0].queue_offset == 0


def test_a_crash_in_the_middle_of_a_deletion_leaves_nothing_of_the_topic(
    open_store: OpenStore, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """Also if the flush thread makes a checkpoint just then."""
    store = open_store(CONFIG)
    store.append([NewMessage("gone", n, b"x") for n in range(4)])
    store.append([NewMessage("stays", 0, b"y")])
    store.flush()
    delete = store.queue_table.delete_topic

    def crash_first(topic: str) -> None:
        store.flush()
        crashed(store, tmp_path)
        delete(topic)

    monkeypatch.setattr(store.queue_table, "delete_topic", crash_first)
    store.delete_topic("gone")
    with reopened(tmp_path / "crashed") as again:
        assert again.queues() == {"stays": [0]}


@pytest.mark.parametrize("flushed", [False, True])
def test_a_store_that_crashed_just_after_its_only_topic_was_deleted_opens(
    open_store: OpenStore, tmp_path: Path, flushed: bool
) -> None:
    store = open_store(CONFIG)
    store.append([NewMessage("gone", 0, b"x")])
    if flushed:  # Then the deletion is all that there is to be replayed.
        store.flush()
    store.delete_topic("gone")
    crashed(store, tmp_path)
    with reopened(tmp_path / "crashed") as again:
        assert again.queues() == {}
        assert again.append([NewMessage("gone", 0, b"new")])[0].queue_offset == 0


def test_a_topic_deleted_and_made_anew_again_and_again_ends_with_the_last(tmp_path: Path) -> None:
    folder = tmp_path / "s"
    with MessageStore.open(folder, CONFIG, ManualClock()) as store:
        for life in range(5):
            store.append([NewMessage("t", 0, b"%d" % life) for _ in range(20 - 3 * life)])
            store.delete_topic("t")
        store.append([NewMessage("t", 0, b"last")])
    with reopened(folder, rebuild=True) as store:
        assert bodies(store, "t") == {0: b"last"}


def test_records_shared_with_a_deleted_topic_stay_in_the_other_queue(tmp_path: Path) -> None:
    folder = tmp_path / "s"
    with MessageStore.open(folder, CONFIG, ManualClock()) as store:
        store.append([NewMessage("t", 0, b"shared", extra_queues=("u",))])
        store.delete_topic("u")
    with reopened(folder, rebuild=True) as store:
        assert store.queues() == {"t": [0]}
        assert bodies(store, "t") == {0: b"shared"}


def test_deleting_a_topic_waits_for_no_disk(
    open_store: OpenStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    store = open_store(CONFIG)
    store.append([NewMessage("t", 0, b"x")])

    def refused(_: int) -> None:
        raise AssertionError("a flush")

    with monkeypatch.context() as patched:
        patched.setattr("os.fsync", refused)
        patched.setattr("os.fdatasync", refused)
        store.delete_topic("t")
    assert "t" not in store.queues()


def test_a_topic_that_rocketmq_deleted_is_known_by_offsets_that_begin_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It writes no record of it."""
    folder = tmp_path / "s"
    with MessageStore.open(folder, CONFIG, ManualClock()) as store:
        store.append([NewMessage("t", 0, b"old %d" % n) for n in range(100)])
        store.queue_table.delete_topic("t")
        store.append([NewMessage("t", 0, b"new %d" % n) for n in range(10)])
        store.append([NewMessage("once", 0, b"old %d" % n) for n in range(11)])
        store.queue_table.delete_topic("once")
        store.append([NewMessage("once", 0, b"new")])
    with reopened(folder, rebuild=True) as store:
        assert bodies(store, "t") == {n: b"new %d" % n for n in range(10)}
        assert bodies(store, "once") == {0: b"new"}


# -- damaged headers -----------------------------------------------------------------------------


@pytest.mark.parametrize("rebuild", [False, True])
@pytest.mark.parametrize("number", [0, 1, 5, 20, 38, 39])
@pytest.mark.parametrize("bit", [0, 1, 5, 12, 30, 40, 62])
def test_one_wrong_bit_in_a_queue_offset_costs_one_message(
    tmp_path: Path, rebuild: bool, number: int, bit: int
) -> None:
    folder = tmp_path / "s"
    places = written(folder)
    path, inside = segment_file(folder, places[number])
    flip(path, inside + QUEUE_OFFSET_AT + 7 - bit // 8, 1 << bit % 8)
    with reopened(folder, rebuild) as store:
        expected = {n: b"%d" % n for n in range(40) if n != number}
        assert bodies(store, "t") == expected
        assert store.max_offset("t", 0) == max(expected) + 1
        (found,) = store.damage
        assert found.start == places[number].log_offset
        assert f"message {number ^ 1 << bit} of queue 0 of topic 't'" in found.reason


@pytest.mark.parametrize("number", [0, 7, 39])
def test_one_wrong_bit_in_a_queue_id_costs_one_message(tmp_path: Path, number: int) -> None:
    folder = tmp_path / "s"
    places = written(folder)
    path, inside = segment_file(folder, places[number])
    flip(path, inside + QUEUE_ID_AT + 2, 0x02)
    with reopened(folder, rebuild=True) as store:
        assert bodies(store, "t") == {n: b"%d" % n for n in range(40) if n != number}


def test_a_topic_or_queue_that_cannot_be_is_damage_and_the_store_opens(tmp_path: Path) -> None:
    folder = tmp_path / "s"
    places = written(folder)
    path, inside = segment_file(folder, places[3])
    flip(path, inside + QUEUE_ID_AT + 1, 0x40)
    path, inside = segment_file(folder, places[9])
    overwrite(path, inside + places[9].size - 3, b"\x01")
    with reopened(folder, rebuild=True) as store:
        assert bodies(store, "t") == {n: b"%d" % n for n in range(40) if n not in (3, 9)}
        assert {each.start for each in store.damage} == {places[3].log_offset, places[9].log_offset}
        assert list(store.queues()) == ["t"]


def test_a_lost_message_between_two_records_is_padded_and_readers_go_over_it(
    tmp_path: Path,
) -> None:
    folder = tmp_path / "s"
    places = written(folder)
    for number in (4, 5, 6, 38):
        path, inside = segment_file(folder, places[number])
        flip(path, inside + BODY_AT)
    with reopened(folder) as store:
        lost = {4, 5, 6, 38}
        assert bodies(store, "t") == {n: b"%d" % n for n in range(40) if n not in lost}
        assert store.recovery.entries_missing == 4
        found = store.read("t", 0, 4)
        assert (found.status, found.next_offset) == (FetchStatus.MESSAGE_WAS_REMOVING, 7)
        assert store.entry_at("t", 0, 5) is None
        assert store.store_time("t", 0, 5) is None
        # Padding has no place, and must not lead a search astray.
        queue = store.queue_table.by_topic["t"][0]
        for number in set(range(40)) - lost:
            found_at = queue.first_not_before(partial(_is_before, places[number].log_offset))
            assert queue.next_real(found_at, queue.end) == number
    assert not verify(folder).clean, "the damage is still there, and told"
    with reopened(folder) as store:
        assert store.recovery.clean
        assert bodies(store, "t") == {n: b"%d" % n for n in range(40) if n not in lost}


def _is_before(log_offset: int, entry: Entry) -> bool:
    return entry[0] < log_offset


# -- the rules, one by one -----------------------------------------------------------------------


def replayed(
    folder: Path, offsets: list[int], *, damage_before: int | None = None, existing: int = 0
) -> tuple[list[int], Damages]:
    """Queue offsets in the order of the log; which of the records are entered, and where."""
    queues = Queues(folder / "consumequeue", 1000)
    if existing:
        queue = queues.get("t", 0)
        queue.reserve(existing)
        queue.put(b"".join(struct.pack(">qiq", n, 100, 7) for n in range(existing)))
    topics, damages = TopicNumbers(), Damages()
    replay = Replay(
        queues, KeyIndex(folder / "index", 16, 16), topics, damages, may_begin_anywhere=False
    )
    number = topics.of("t") << 32
    for place, offset in enumerate(offsets):
        log = 1_000_000 + 1000 * place
        if place == damage_before:
            replay.skip(Damage(log - 500, log, "damaged"))
        replay.enter(stretch(number, offset, log))
    replay.finish()
    queue = queues.get("t", 0)
    entered = [(at - 1_000_000) // 1000 for at, _, _ in queue.entries(queue.start, 10_000)]
    return [-1 if each < -900 else each for each in entered], damages


def stretch(queue: int, offset: int, log: int) -> Stretch:
    def one(value: int) -> "np.typing.NDArray[np.int64]":
        return np.array([value], np.int64)

    none = np.empty(0, np.int64)
    places = QueueEntryColumns(one(queue), one(offset), one(log), one(100), one(0))
    layout = leading_records(np.empty(0, np.uint8))
    return Stretch(one(log), one(0), log + 100, places, none, none, layout, [])


@pytest.mark.parametrize(
    ("offsets", "damage_before", "entered"),
    [
        ([10, 11, 12], None, [0, 1, 2]),
        ([10, 99, 12, 13], None, [0, -1, 2, 3]),  # what follows refutes it
        ([10, 99, 11, 12], None, [0, 2, 3]),  # it belonged to another queue
        ([10, 3, 12], None, [0, -1, 2]),
        ([10, 11, 99], None, [0, 1]),  # nothing confirms it
        ([10, 11, 3], None, [0, 1]),
        ([10, 13], 1, [0, -1, -1, 1]),  # damage explains it
        ([10, 13, 14], None, [0, -1, -1, 1, 2]),  # the next one confirms it
        ([10, 1 << 40, (1 << 40) + 1], None, [0]),  # no log has so many
    ],
)
def test_a_record_out_of_order_is_believed_if_others_confirm_it(
    tmp_path: Path, offsets: list[int], damage_before: int | None, entered: list[int]
) -> None:
    found, damages = replayed(tmp_path, offsets, damage_before=damage_before, existing=10)
    assert found == [-1] * 10 + entered
    left_out = len(offsets) - sum(each >= 0 for each in entered)
    assert bool(left_out) == any("is next" in each.reason for each in damages.ranges)


def test_a_single_last_record_with_offset_zero_is_a_new_topic_unless_it_is_one_wrong_bit(
    tmp_path: Path,
) -> None:
    assert replayed(tmp_path / "a", [8, 9, 10, 0], existing=8)[0] == [3]
    assert replayed(tmp_path / "b", [8, 9, 10, 0, 1], existing=8)[0] == [3, 4]
    assert replayed(tmp_path / "c", [14, 15, 0], existing=14)[0][-2:] == [0, 1]


@settings(max_examples=60, deadline=None)
@given(data=st.data())
def test_one_wrong_offset_costs_one_record_whatever_it_says(
    tmp_path_factory: pytest.TempPathFactory, data: st.DataObject
) -> None:
    count = data.draw(st.integers(2, 30))
    wrong = data.draw(st.integers(0, count - 1))
    value = data.draw(st.integers(0, 60) | st.integers(0, 1 << 62))
    assume(value != wrong and (value, wrong) != (0, count - 1))
    offsets = [value if n == wrong else n for n in range(count)]
    found, _ = replayed(tmp_path_factory.mktemp("replay"), offsets)
    expected = [n if n != wrong else -1 for n in range(count)]
    while expected[-1] == -1:
        expected.pop()
    assert found == expected[expected[0] == -1 :]


def test_everything_that_is_appended_is_replayed_into_the_same_queues_and_index(
    tmp_path: Path,
) -> None:
    folder = tmp_path / "s"
    write_sample(folder, 400)
    config = StoreConfig(
        segment_bytes=16 * 1024, queue_file_entries=20, index_slots=64, index_entries=200
    )

    def content(store: MessageStore) -> object:
        queues = {
            (q.topic, q.queue_id): list(q.entries(0, 9999)) for q in store.queue_table if q.end
        }
        keys = [
            (f.first_log, f.last_log, f.next_entry, bytes(f._entries.tobytes()))
            for f in store.index.files
        ]
        return queues, keys

    with MessageStore.open(folder, config, ManualClock()) as store:
        before = content(store)
    shutil.rmtree(folder / "consumequeue")
    shutil.rmtree(folder / "index")
    with MessageStore.open(folder, config, ManualClock()) as store:
        assert content(store) == before
        assert store.damage == ()
    assert verify(folder).clean
