"""After a crash: every whole record, nothing else, in every queue and under every key."""

import json
import os
import random
import shutil
import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from typing import NamedTuple

import pytest
from hypothesis import HealthCheck, assume, given, settings
from hypothesis import strategies as st

from onelog.clock import ManualClock
from onelog.config import StoreConfig
from onelog.message import NewMessage, encode_properties
from onelog.store.message_store import MessageStore
from onelog.store.segment import Segment
from tests.store.conftest import OpenStore
from tests.store.samples import flip, overwrite

CONFIG = StoreConfig(
    segment_bytes=8192,
    queue_file_entries=20,
    index_slots=32,
    index_entries=60,
    record_crc=True,
    checkpoint_interval_ms=3_600_000,
)


def message(n: int) -> NewMessage:
    properties = encode_properties({"TAGS": f"tag{n % 3}", "KEYS": f"k{n}", "UNIQ_KEY": f"u{n}"})
    return NewMessage(f"topic{n % 2}", n % 3, b"body-%d-" % n + b"x" * (n * 37 % 200), properties)


def expected_queues(count: int) -> dict[tuple[str, int], list[int]]:
    queues: dict[tuple[str, int], list[int]] = {}
    for n in range(count):
        queues.setdefault((f"topic{n % 2}", n % 3), []).append(n)
    return queues


def assert_holds_exactly(store: MessageStore, count: int) -> None:
    """The first `count` messages are there, whole, in order, by queue and by key; no others."""
    found = {}
    for topic, queue_ids in store.queues().items():
        for queue_id in queue_ids:
            messages = store.messages(topic, queue_id, 0, 10_000)
            assert [m.queue_offset for m in messages] == list(range(len(messages)))
            assert len(messages) == store.max_offset(topic, queue_id)
            if messages:
                found[topic, queue_id] = [int(bytes(m.body).split(b"-")[1]) for m in messages]
    assert found == expected_queues(count)
    for n in range(0, count, 7):
        (at,) = store.find_by_key(f"topic{n % 2}", f"k{n}")
        assert bytes(store.message_at(at).body).startswith(b"body-%d-" % n)
    assert store.find_by_key(f"topic{count % 2}", f"k{count}") == []


def crashed_copy(store: MessageStore, target: Path) -> Path:
    """What the disk would hold if the process died now."""
    subprocess.run(["cp", "-r", "--sparse=always", store.folder, target], check=True)
    return target


class Crashed(NamedTuple):
    """A crashed store, where its records start (and the log's end), its safe offset, its ends."""

    folder: Path
    offsets: list[int]
    safe: int
    ends: list[int]


@pytest.fixture(scope="module")
def crashed(tmp_path_factory: pytest.TempPathFactory) -> Crashed:
    """A store that crashed with 100 messages, 60 of them after its last checkpoint."""
    folder = tmp_path_factory.mktemp("crashed")
    store = MessageStore.open(folder / "store", CONFIG, ManualClock())
    places = [store.append([message(n)])[0] for n in range(40)]
    store.flush()
    safe = int(store.log_end)
    places += [store.append([message(n)])[0] for n in range(40, 100)]
    store.index.build()
    copy = crashed_copy(store, folder / "copy")
    store.close()
    starts = [int(p.log_offset) for p in places]
    ends = [int(p.log_offset) + p.size for p in places]
    return Crashed(copy, [*starts, ends[-1]], safe, ends)


def opened(folder: Path) -> MessageStore:
    return MessageStore.open(folder, CONFIG, ManualClock())


def test_a_crash_without_damage_loses_nothing_and_replays_only_from_the_checkpoint(
    crashed: Crashed, tmp_path: Path
) -> None:
    copy, offsets, safe, _ = crashed
    shutil.copytree(copy, tmp_path / "s")
    with opened(tmp_path / "s") as store:
        assert not store.recovery.clean
        assert store.recovery.replayed_from == safe
        assert store.recovery.records_replayed == 60
        assert store.recovery.cut_bytes == 0
        assert store.log_end == offsets[-1]
        assert_holds_exactly(store, 100)
    with opened(tmp_path / "s") as store:
        assert store.recovery.clean
        assert_holds_exactly(store, 100)


def assert_holds_all_but(store: MessageStore, lost: set[int]) -> None:
    """Of 100 messages all but the lost ones are there, each at its own offset of its queue."""
    for (topic, queue_id), numbers in expected_queues(100).items():
        found = store.messages(topic, queue_id, store.min_offset(topic, queue_id), 10_000)
        kept = [(at, n) for at, n in enumerate(numbers) if n not in lost]
        assert [(m.queue_offset, int(bytes(m.body).split(b"-")[1])) for m in found] == kept
        # Behind the last message that is left nothing is padded.
        assert store.max_offset(topic, queue_id) == (kept[-1][0] + 1 if kept else 0)
    for n in range(0, 100, 7):
        assert len(store.find_by_key(f"topic{n % 2}", f"k{n}")) == (n not in lost)


def segment_file(folder: Path, log_offset: int) -> Path:
    return folder / "commitlog" / f"{log_offset // 8192 * 8192:020d}"


@settings(
    max_examples=int(os.environ.get("ONELOG_DAMAGE_EXAMPLES", "80")),
    deadline=None,
    suppress_health_check=[HealthCheck.function_scoped_fixture],
)
@given(data=st.data())
def test_damage_anywhere_costs_the_damaged_messages_and_no_others(
    crashed: Crashed,
    tmp_path_factory: pytest.TempPathFactory,
    data: st.DataObject,
) -> None:
    copy, offsets, safe, ends = crashed
    rebuild = data.draw(st.booleans(), label="queues are rebuilt")
    at = data.draw(st.integers(0 if rebuild else safe, offsets[-1] - 1), label="damage at")
    kind = data.draw(st.sampled_from(["cut", "flip", "zero", "garbage"]), label="kind")
    folder = tmp_path_factory.mktemp("damaged") / "s"
    shutil.copytree(copy, folder)
    if rebuild:
        shutil.rmtree(folder / "consumequeue")
    file = segment_file(folder, at)
    raw = bytearray(file.read_bytes())
    before = bytes(raw)
    inside = at % 8192
    if kind == "cut":
        raw[inside:] = bytes(len(raw) - inside)
    elif kind == "flip":
        raw[inside] ^= 1 << data.draw(st.integers(0, 7))
    elif kind == "zero":
        raw[inside : inside + 50] = bytes(len(raw[inside : inside + 50]))
    else:
        noise = data.draw(st.binary(min_size=1, max_size=60))[: len(raw) - inside]
        raw[inside : inside + len(noise)] = noise
    file.write_bytes(raw)
    base = at - inside
    changed = [base + i for i, (a, b) in enumerate(zip(before, raw, strict=True)) if a != b]
    lost = {
        n
        for n, (start, end) in enumerate(zip(offsets, ends, strict=False))
        if any(start <= byte < end for byte in changed)
    }
    # A checksum that is not recognised as one is not missed, below the safe offset.
    names = {byte for end in ends for byte in range(end - 20, end - 11)}
    assume(not rebuild or not names.intersection(changed))
    with opened(folder) as store:
        assert_holds_all_but(store, lost)
        kept_end = max(ends[n] for n in range(100) if n not in lost)
        assert store.log_end == max(kept_end, safe)
        damaged_before_the_end = [n for n in lost if ends[n] <= store.log_end]
        assert bool(damaged_before_the_end) <= bool(store.recovery.damage)
        store.append([NewMessage("after", 0, b"goes on")])
    with opened(folder) as store:
        assert store.recovery.clean
        assert_holds_all_but(store, lost)
        assert [bytes(m.body) for m in store.messages("after", 0, 0, 9)] == [b"goes on"]


def test_one_damaged_record_costs_one_message_and_no_segment_when_queues_are_rebuilt(
    tmp_path: Path,
) -> None:
    config = replace(CONFIG, record_crc=False)
    folder = tmp_path / "s"
    with MessageStore.open(folder, config, ManualClock()) as store:
        places = [store.append([message(n)])[0] for n in range(100)]
        end = store.log_end
    segments = sorted(path.name for path in (folder / "commitlog").iterdir())
    assert len(segments) == 3
    flip(segment_file(folder, places[3].log_offset), places[3].log_offset % 8192 + 90)
    shutil.rmtree(folder / "consumequeue")
    shutil.rmtree(folder / "index")
    damaged = segment_file(folder, places[3].log_offset).read_bytes()
    with MessageStore.open(folder, config, ManualClock()) as store:
        assert store.log_end == end
        assert_holds_all_but(store, {3})
        (found,) = store.recovery.damage
        assert found[:2] == (places[3].log_offset, places[4].log_offset)
        assert "the body's CRC does not match" in found.reason
        assert f"log offset {places[3].log_offset}" in str(store.recovery)
        assert store.damage == (found,)
    # Kept as it is, and still known when nothing has to be replayed.
    assert segment_file(folder, places[3].log_offset).read_bytes() == damaged
    assert sorted(path.name for path in (folder / "commitlog").iterdir()) == segments
    with MessageStore.open(folder, config, ManualClock()) as store:
        assert store.recovery.clean
        assert not store.recovery.damage
        assert store.damage == (found,)


def test_a_log_that_lost_its_last_segments_gives_all_that_is_left(tmp_path: Path) -> None:
    folder = tmp_path / "s"
    with opened(folder) as store:
        places = [store.append([message(n)])[0] for n in range(100)]
    max((folder / "commitlog").iterdir()).unlink()
    end = len([*(folder / "commitlog").iterdir()]) * 8192
    with opened(folder) as store:
        lost = {n for n in range(100) if places[n].log_offset >= end}
        assert len(lost) > 1
        assert_holds_all_but(store, lost)
        assert store.damage == ()


def test_much_damage_is_gone_over_without_reading_the_log_again_and_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = tmp_path / "s"
    config = replace(CONFIG, segment_bytes=1 << 20, queue_file_entries=4000)
    with MessageStore.open(folder, config, ManualClock()) as store:
        places = store.append([NewMessage("t", 0, b"x" * 100) for _ in range(2000)])
    path = folder / "commitlog" / f"{0:020d}"
    raw = bytearray(path.read_bytes())
    for place in places[1::2]:
        raw[place.log_offset + 90] ^= 1
    path.write_bytes(raw)
    shutil.rmtree(folder / "consumequeue")
    read_bytes = 0
    read = Segment.read

    def counted(self: Segment, at: int, size: int) -> bytes:
        nonlocal read_bytes
        read_bytes += size
        return read(self, at, size)

    monkeypatch.setattr(Segment, "read", counted)
    with MessageStore.open(folder, config, ManualClock()) as store:
        assert store.recovery.records_replayed == store.recovery.damage_count == 1000
        assert len(store.damage) == 1000
    assert read_bytes < 5 << 20


def test_known_damage_is_forgotten_with_its_segment(tmp_path: Path) -> None:
    folder = tmp_path / "s"
    with opened(folder) as store:
        places = [store.append([message(n)])[0] for n in range(100)]
    flip(segment_file(folder, places[3].log_offset), places[3].log_offset % 8192 + 90)
    shutil.rmtree(folder / "consumequeue")
    with opened(folder) as store:
        assert len(store.damage) == 1
        store.retention.disk = lambda _: 86.0
        store.retain()
        assert store.log_min > places[3].log_offset
    with opened(folder) as store:
        assert store.damage == ()
        assert not (folder / "onelog-damage.json").exists()


def test_the_log_never_ends_below_what_the_checkpoint_calls_safe(tmp_path: Path) -> None:
    """Even if all that is left there is damage: new messages come behind it."""
    folder = tmp_path / "s"
    with opened(folder) as store:
        places = [store.append([message(n)])[0] for n in range(100)]
        safe = store.log_end
    last = places[-1].log_offset
    flip(segment_file(folder, last), last % 8192 + 90)
    shutil.rmtree(folder / "consumequeue")
    for _ in range(2):
        with opened(folder) as store:
            assert store.log_end == safe
            assert store.recovery.cut_bytes == 0
            assert [each.start for each in store.damage] == [last]
    with opened(folder) as store:
        (added,) = store.append([NewMessage("after", 0, b"goes on")])
        assert added.log_offset == safe
    shutil.rmtree(folder / "consumequeue")
    with opened(folder) as store:
        assert [bytes(m.body) for m in store.messages("after", 0, 0, 9)] == [b"goes on"]
        assert_holds_all_but(store, {99})


def test_records_behind_a_hole_are_kept_after_a_crash(crashed: Crashed, tmp_path: Path) -> None:
    """A machine that lost power wrote some pages of what was not flushed, and not others."""
    copy, offsets, _, ends = crashed
    folder = tmp_path / "s"
    shutil.copytree(copy, folder)
    overwrite(segment_file(folder, offsets[50]), offsets[50] % 8192, bytes(ends[52] - offsets[50]))
    with opened(folder) as store:
        assert_holds_all_but(store, {50, 51, 52})
        assert store.log_end == offsets[-1]


def test_a_whole_segment_of_zeros_does_not_take_the_later_ones_with_it(
    crashed: Crashed, tmp_path: Path
) -> None:
    copy, offsets, safe, _ = crashed
    folder = tmp_path / "s"
    shutil.copytree(copy, folder)
    lost = {n for n in range(100) if safe <= offsets[n] and offsets[n] // 8192 == safe // 8192 + 1}
    file = folder / "commitlog" / f"{(safe // 8192 + 1) * 8192:020d}"
    assert (folder / "commitlog" / f"{(safe // 8192 + 2) * 8192:020d}").exists()
    file.write_bytes(bytes(8192))
    with opened(folder) as store:
        assert len(lost) > 10
        assert_holds_all_but(store, lost)


def test_what_was_not_finished_is_cut_reported_and_put_aside(
    crashed: Crashed, tmp_path: Path
) -> None:
    copy, offsets, _, _ = crashed
    folder = tmp_path / "s"
    shutil.copytree(copy, folder)
    file = segment_file(folder, offsets[99])
    torn = file.read_bytes()[offsets[99] % 8192 :].rstrip(b"\0")[:-10]
    overwrite(file, offsets[99] % 8192 + len(torn), bytes(10))
    with opened(folder) as store:
        assert store.log_end == offsets[99]
        assert store.recovery.cut_bytes == len(torn)
        assert "ends in zeros" in store.recovery.cut_reason
        assert f"cut {store.recovery.cut_bytes} bytes" in str(store.recovery)
        assert not store.recovery.damage
    assert (folder / "onelog-cut" / f"{offsets[99]:020d}").read_bytes() == torn


def test_copies_of_what_was_cut_do_not_pile_up(crashed: Crashed, tmp_path: Path) -> None:
    folder = tmp_path / "s"
    shutil.copytree(crashed.folder, folder)
    (folder / "onelog-cut").mkdir()
    for number in range(150):
        (folder / "onelog-cut" / f"{number:020d}").write_bytes(b"old")
        os.utime(folder / "onelog-cut" / f"{number:020d}", (number, number))
    with opened(folder):
        pass
    assert len([*(folder / "onelog-cut").iterdir()]) == 150, "nothing was cut"
    (folder / "abort").touch()
    overwrite(segment_file(folder, crashed.offsets[-1]), crashed.offsets[-1] % 8192, b"half a list")
    with opened(folder) as store:
        assert store.recovery.cut_bytes == len(b"half a list")
    kept = sorted(path.name for path in (folder / "onelog-cut").iterdir())
    assert len(kept) == 100
    assert kept[-1] == f"{crashed.offsets[-1]:020d}"


def test_what_rocketmq_gave_up_after_a_crash_does_not_come_back(tmp_path: Path) -> None:
    """It leaves what it cuts where it is, and writes over it: whole records may stay behind."""
    folder = tmp_path / "s"
    clock = ManualClock()
    with MessageStore.open(folder, CONFIG, clock) as store:
        store.append([message(n) for n in range(20)])
        given_up = store.append([message(n) for n in range(20, 30)])
        clock.advance(10_000)
    with MessageStore.open(tmp_path / "again", CONFIG, clock) as store:
        store.append([message(n) for n in range(20)])
        anew = store.append([NewMessage("topic0", 0, b"body-1000-")])
        end = store.log_end
        record = bytes(store.record(anew[0].log_offset, anew[0].size))
    assert end < given_up[1].log_offset
    overwrite(segment_file(folder, given_up[0].log_offset), given_up[0].log_offset % 8192, record)
    shutil.rmtree(folder / "consumequeue")
    checkpoint = bytearray((folder / "checkpoint").read_bytes())
    checkpoint[64:96] = bytes(32)  # RocketMQ's own store has no part of ours.
    (folder / "checkpoint").write_bytes(checkpoint)
    with MessageStore.open(folder, CONFIG, clock) as store:
        assert store.log_end == end
        assert [bytes(m.body) for m in store.messages("topic0", 0, 0, 99)][-1] == b"body-1000-"
        assert store.recovery.cut_bytes > 0


def test_queues_and_index_may_be_of_any_age_after_a_power_cut(
    crashed: Crashed, tmp_path: Path
) -> None:
    """Maps reach the disk page by page in any order; only what was flushed counts."""
    copy = crashed.folder
    rng = random.Random(7)
    for round_number in range(20):
        folder = tmp_path / f"s{round_number}"
        shutil.copytree(copy, folder)
        for file in (folder / "consumequeue").rglob("0*"):
            if file.is_file():
                raw = bytearray(file.read_bytes())
                for entry in range(len(raw) // 20):
                    log_offset = int.from_bytes(raw[entry * 20 : entry * 20 + 8], "big")
                    if log_offset >= crashed[2] and rng.random() < 0.5:
                        raw[entry * 20 : entry * 20 + 20] = bytes(20)
                file.write_bytes(raw)
        newest = max((folder / "index").iterdir())
        raw = bytearray(newest.read_bytes())
        for slot in range(32):
            if rng.random() < 0.5:
                raw[40 + slot * 4 : 44 + slot * 4] = bytes(4)
        newest.write_bytes(raw)
        with opened(folder) as store:
            assert_holds_exactly(store, 100)


def test_lost_queues_are_rebuilt_from_the_whole_log(crashed: Crashed, tmp_path: Path) -> None:
    shutil.copytree(crashed[0], tmp_path / "s")
    shutil.rmtree(tmp_path / "s" / "consumequeue")
    shutil.rmtree(tmp_path / "s" / "index")
    with opened(tmp_path / "s") as store:
        assert store.recovery.records_replayed == 100
        assert_holds_exactly(store, 100)


def test_queues_rebuilt_from_a_log_without_its_beginning_go_on_counting(
    open_store: OpenStore, tmp_path: Path
) -> None:
    store = open_store(CONFIG)
    places = [store.append([message(n)])[0] for n in range(100)]
    store.retention.disk = lambda _: 86.0
    store.retain()
    store.append([message(n) for n in range(100, 160)])
    copy = crashed_copy(store, tmp_path / "copy")
    shutil.rmtree(copy / "consumequeue")
    with opened(copy) as again:
        for queue in store.queue_table:
            rebuilt = again.queue_table.find(queue.topic, queue.queue_id)
            assert rebuilt is not None
            assert (rebuilt.start, rebuilt.end) == (queue.start, queue.end)
        assert again.log_min > places[0].log_offset


def test_batches_and_shared_records_are_replayed_into_the_same_places(
    open_store: OpenStore, tmp_path: Path
) -> None:
    store = open_store(CONFIG)
    store.append([NewMessage("t", 0, b"a"), NewMessage("t", 0, b"b", inner_count=45)])
    store.append([NewMessage("t", 0, b"c", inner_count=3, extra_queues=("%LMQ%x", "t2"))])
    store.append([NewMessage("t", 0, b"half", sys_flag=4)])
    store.append([NewMessage("t", 0, b"d", extra_queues=("%LMQ%x",))])
    expected = {(q.topic, q.queue_id): list(q.entries(0, 999)) for q in store.queue_table if q.end}
    copy = crashed_copy(store, tmp_path / "copy")
    shutil.rmtree(copy / "consumequeue")
    with opened(copy) as again:
        assert expected == {
            (q.topic, q.queue_id): list(q.entries(0, 999)) for q in again.queue_table
        }


# -- the disk is full --------------------------------------------------------------------------

ON_A_FULL_DISK = """
import json, sys
from pathlib import Path
from onelog.config import StoreConfig
from onelog.errors import StoreFullError
from onelog.message import NewMessage
from onelog.store.message_store import MessageStore

folder = Path(sys.argv[1]) / "store"
config = StoreConfig(segment_bytes=256 * 1024, queue_file_entries=1000, index_slots=1000,
                     index_entries=5000)
store = MessageStore.open(folder, config)
kept, errors = 0, []
while not errors:
    try:
        store.append([NewMessage(f"t{kept % 7}", 0, b"%d-" % (kept + n) + b"x" * 700,
                                 b"KEYS\\x01k%d\\x02" % (kept + n)) for n in range(8)])
        kept += 8
    except StoreFullError as error:
        errors.append(str(error))
for _ in range(3):
    try:
        store.append([NewMessage("t0", 0, b"again" * 200)] * 30)
    except StoreFullError as error:
        errors.append(str(error))
    else:
        kept += 30
try:
    store.close()
except StoreFullError as error:
    errors.append(str(error))
(Path(sys.argv[1]) / "ballast").unlink()
with MessageStore.open(folder, config) as store:
    total = sum(store.max_offset(f"t{n}", 0) for n in range(7))
    store.append([NewMessage("t0", 0, b"room again")])
    readable = sum(len(store.messages(f"t{n}", 0, 0, 100_000)) for n in range(7))
print(json.dumps({"kept": kept, "total": total, "readable": readable, "errors": errors}))
"""


def test_a_full_disk_gives_a_clear_error_and_the_store_opens_fine_afterwards(
    tmp_path: Path,
) -> None:
    if shutil.which("unshare") is None:
        pytest.skip("needs unshare (util-linux) to mount a small disk")
    mount = "mount -t tmpfs -o size=6m tmpfs {0} && head -c 2000000 /dev/zero > {0}/ballast"
    script = mount.format(tmp_path) + ' && exec "$0" -c "$1" "$2"'
    arguments = [script, sys.executable, ON_A_FULL_DISK, str(tmp_path)]
    child = subprocess.run(
        ["unshare", "--mount", "--map-root-user", "sh", "-c", *arguments],
        capture_output=True,
        text=True,
        timeout=240,
    )
    if "Operation not permitted" in child.stderr and "unshare" in child.stderr:
        pytest.skip("this machine does not let a user mount a small disk")
    assert child.returncode == 0, child.stderr
    result = json.loads(child.stdout)
    assert "free some space" in result["errors"][0]
    assert result["total"] == result["kept"] > 1000
    assert result["readable"] == result["kept"] + 1
