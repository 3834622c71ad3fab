"""Records read many at a time must be the ones that `record.check` accepts one at a time."""

import tempfile
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from onelog.config import StoreConfig
from onelog.message import Message, NewMessage, encode_properties
from onelog.record.decode import Blank, Broken
from onelog.record.dispatch import TagsCodes, targets
from onelog.store.commitlog import CommitLog
from onelog.store.keyindex import key_hash, message_keys
from onelog.store.message_store import MessageStore
from onelog.store.segment import Segment
from onelog.store.walk import QueueEntryColumns, RecordWalk, Stretch, TopicNumbers
from tests.store.log_records import scan_log
from tests.store.samples import sample_messages

BYTES = 64 * 1024
CODES = TagsCodes(StoreConfig().delay_levels)


@pytest.fixture(scope="module", params=[False, True], ids=["plain", "record-crc"])
def written(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> bytes:
    """One segment with records of every kind."""
    folder = tmp_path_factory.mktemp("columns")
    config = StoreConfig(
        segment_bytes=BYTES, index_slots=64, index_entries=2000, record_crc=request.param
    )
    with MessageStore.open(folder, config) as store:
        for message in sample_messages(100):
            store.append([message])
        assert len(store.log.segments) == 1
    return (folder / "commitlog" / f"{0:020d}").read_bytes()


def walk(folder: Path) -> tuple[list[Stretch], TopicNumbers, Blank | Broken | None]:
    segment = Segment(folder / f"{0:020d}", 0, BYTES, writable=False)
    topics = TopicNumbers()
    records = RecordWalk(CODES, topics)
    stretches, at, stop = [], 0, None
    while at < BYTES and stop is None:
        stretch, at, stop = records.read(segment, at, BYTES)
        if stretch is not None:
            stretches.append(stretch)
    return stretches, topics, stop


def scan(folder: Path) -> tuple[list[Message], Broken | None]:
    messages: list[Message] = []
    for found in scan_log(CommitLog(folder, BYTES, writable=False), 0):
        if isinstance(found, Broken):
            return messages, found
        messages.append(found)
    return messages, None


def test_the_columns_say_what_the_records_say(written: bytes, tmp_path: Path) -> None:
    (tmp_path / f"{0:020d}").write_bytes(written)
    messages, _ = scan(tmp_path)
    stretches, topics, stop = walk(tmp_path)
    assert isinstance(stop, Broken)
    assert stop.empty
    assert len(messages) > 90

    logs = [log for stretch in stretches for log in stretch.log.tolist()]
    assert logs == [message.log_offset for message in messages]
    times = [ms for stretch in stretches for ms in stretch.store_ms.tolist()]
    assert times == [message.store_ms for message in messages]

    places = [
        (topics.names[queue >> 32], queue & 0xFFFFFFFF, *row)
        for stretch in stretches
        for queue, *row in rows_of(stretch.entries)
    ]
    expected = [
        (
            t.topic,
            t.queue_id,
            t.queue_offset + n,
            m.log_offset,
            m.size,
            CODES.of(m.topic, m.properties, m.store_ms),
        )
        for m in messages
        for t in targets(m)
        for n in range(t.entries)
    ]
    assert sorted(places) == sorted(expected)

    hashes = [
        (int(stretch.log[row]), hashed)
        for stretch in stretches
        for row, hashed in zip(stretch.key_row.tolist(), stretch.key_hash.tolist(), strict=True)
    ]
    assert hashes == [
        (message.log_offset, key_hash(f"{message.topic}#{key.decode()}"))
        for message in messages
        if message.sys_flag & 12 != 12
        for key in message_keys(message.properties)
    ]


def test_many_records_that_are_nearly_alike_give_what_each_of_them_says(tmp_path: Path) -> None:
    texts = [
        {"UNIQ_KEY": "7F00%06d", "TAGS": "Tag%d"},
        {"TAGS": "abcd", "UNIQ_KEY": "7F%08d"},
        {"TAGS": "", "UNIQ_KEY": "7F00%06d"},
        {"KEYS": "k%06d other"},
        {"TAGS": "äö%04d"},
        {},
        {"MYTAGS": "no%04d"},
        {"UNIQ_KEY": "7F00%06d", "XTAGS": "u", "TAGS": "v"},
    ]
    messages = []
    for number in range(380):
        # First mixed, then many of each kind, which are looked at together.
        chosen = texts[number % 8 if number < 60 else (number - 60) // 40]
        properties = {name: text % number if "%" in text else text for name, text in chosen.items()}
        messages.append(
            NewMessage(
                f"t{number % 3 if number < 60 else 0}",
                0,
                b"%d" % number,
                encode_properties(properties),
                sys_flag=12 if number % 97 == 0 else 0,
                extra_queues=("more",) if number % 101 == 5 else (),
            )
        )
    with MessageStore.open(tmp_path / "store", StoreConfig(segment_bytes=BYTES)) as store:
        store.append(messages)
        written = bytes(store.tail.read_raw(0, BYTES)).ljust(BYTES, b"\0")
    test_the_columns_say_what_the_records_say(written, tmp_path)


def rows_of(places: QueueEntryColumns) -> list[tuple[int, ...]]:
    columns = (places.queue, places.offset, places.log, places.size, places.code)
    return [*zip(*(column.tolist() for column in columns), strict=True)]


@settings(max_examples=300, deadline=None)
@given(data=st.data())
def test_damage_stops_both_at_the_same_place(data: st.DataObject, written: bytes) -> None:
    used = len(written.rstrip(b"\0"))
    damaged = bytearray(written)
    for _ in range(data.draw(st.integers(1, 3))):
        at = data.draw(st.integers(0, used))
        damaged[at] = data.draw(st.integers(0, 255))
    with tempfile.TemporaryDirectory() as folder:
        (Path(folder) / f"{0:020d}").write_bytes(damaged)
        messages, broken = scan(Path(folder))
        stretches, _, stop = walk(Path(folder))
    logs = [log for stretch in stretches for log in stretch.log.tolist()]
    assert logs == [message.log_offset for message in messages]
    assert stop == broken


def test_a_record_larger_than_what_is_read_at_once(tmp_path: Path) -> None:
    config = StoreConfig(
        segment_bytes=32 << 20, index_slots=64, index_entries=200, body_bytes_max=20 << 20
    )
    with MessageStore.open(tmp_path, config) as store:
        store.append([NewMessage("big", 0, bytes(n << 20)) for n in (1, 12, 9, 1)])
    segment = Segment(tmp_path / "commitlog" / f"{0:020d}", 0, 32 << 20, writable=False)
    records = RecordWalk(CODES, TopicNumbers())
    sizes, at = [], 0
    while True:
        stretch, at, stop = records.read(segment, at, segment.size)
        if stretch is None:
            break
        sizes += (stretch.entries.size // (1 << 20)).tolist()
    assert sizes == [1, 12, 9, 1]
    assert isinstance(stop, Broken)
    assert stop.empty
