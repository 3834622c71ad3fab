"""The key index: what goes in is found, newest first, in every file."""

import os
from collections.abc import Callable
from pathlib import Path

import numpy as np
import numpy.typing as npt
import pytest
from hypothesis import given
from hypothesis import strategies as st

from onelog.errors import StoreVersionError
from onelog.message import (
    Appended,
    LogOffset,
    NewMessage,
    QueueOffset,
    encode_properties,
    java_hash,
)
from onelog.store.keyindex import (
    HEADER,
    KeyIndex,
    key_hash,
    key_hashes,
    message_keys,
    pending_of,
)

ALWAYS = (0, 1 << 60)


def new_index(folder: Path, entries: int = 100, slots: int = 16) -> KeyIndex:
    return KeyIndex(folder, slots, entries)


def add(index: KeyIndex, log_offset: int, keys: str, store_ms: int = 5_000) -> None:
    message = NewMessage("t", 0, b"", encode_properties({"KEYS": keys}))
    place = Appended(LogOffset(log_offset), QueueOffset(0), 100)
    index.add(pending_of([message], [place], store_ms))


@given(st.lists(st.text(min_size=1, max_size=40), min_size=1, max_size=30))
def test_hashing_many_keys_at_once_gives_javas_hash_of_each(keys: list[str]) -> None:
    encodable = [k for k in keys if k.isprintable()] or ["x"]
    expected = [abs(java_hash(key)) & 0x7FFFFFFF for key in encodable]
    assert key_hashes([key.encode() for key in encodable]).tolist() == expected


def test_the_one_hash_without_a_positive_is_zero() -> None:
    text = "polygenelubricants"
    assert java_hash(text) == -(1 << 31)
    assert key_hash(text) == 0
    assert key_hashes([text.encode()]).tolist() == [0]


def test_keys_are_the_unique_id_and_the_space_separated_tokens() -> None:
    properties = encode_properties({"KEYS": "a  b\tc", "UNIQ_KEY": "U", "XKEYS": "no"})
    assert message_keys(properties) == [b"U", b"a", b"b\tc"]
    assert message_keys(encode_properties({"TAGS": "x"})) == []


def test_a_key_is_found_newest_first(tmp_path: Path) -> None:
    index = new_index(tmp_path)
    for number in range(40):
        add(index, number * 100, f"k{number % 4} all")
    assert list(index.find("t", "k3", *ALWAYS)) == [n * 100 for n in range(39, -1, -4)]
    assert len(list(index.find("t", "all", *ALWAYS))) == 40
    assert list(index.find("other", "k3", *ALWAYS)) == []


def test_look_ups_go_over_all_files(tmp_path: Path) -> None:
    index = new_index(tmp_path, entries=10)
    for number in range(50):
        add(index, number, "same", store_ms=number * 1000)
    assert list(index.find("t", "same", *ALWAYS)) == list(range(49, -1, -1))
    assert len(index.files) == 6
    assert len({file.path.name for file in index.files}) == 6
    assert all(len(file.path.name) == 17 for file in index.files)


def test_a_clock_that_is_set_back_begins_a_file_with_its_own_times(tmp_path: Path) -> None:
    year_ms = 365 * 86_400_000
    index = new_index(tmp_path)
    add(index, 0, "k", store_ms=2 * year_ms)
    index.build()
    add(index, 1, "k", store_ms=year_ms)
    add(index, 2, "k", store_ms=year_ms + 1_000)
    assert list(index.find("t", "k", year_ms - 1_000, year_ms + 9_000)) == [2, 1]
    assert list(index.find("t", "k", *ALWAYS)) == [2, 1, 0]
    assert [file.path for file in index.files] == sorted(file.path for file in index.files)
    assert len(index.files) == 2


def test_a_clock_that_is_set_back_among_messages_that_are_indexed_together(tmp_path: Path) -> None:
    index = new_index(tmp_path)
    times = np.array([90_000, 95_000, 4_000, 5_000, 99_000], np.int64)
    hashes = np.full(len(times), key_hash("t#k"), np.int64)
    index.enter(hashes, np.arange(len(times), dtype=np.int64) * 100, times)
    assert [(file.first_ms, file.last_ms) for file in index.files] == [
        (90_000, 95_000),
        (4_000, 99_000),
    ]
    assert list(index.find("t", "k", 0, 9_000)) == [300, 200]


def test_an_entry_that_was_torn_by_a_loss_of_power_is_cut(tmp_path: Path) -> None:
    index = new_index(tmp_path)
    for number in range(1, 6):
        add(index, number * 100, "k")
    index.build()
    (file,) = index.files
    with file.path.open("r+b") as raw:
        raw.seek(HEADER.size + 16 * 4 + 5 * 20 + 4)
        raw.write(bytes(16))  # Of the fifth entry only the hash came to the disk.
    index.truncate(500)
    assert list(index.find("t", "k", *ALWAYS)) == [400, 300, 200, 100]


def test_a_time_range_is_kept_to_the_second(tmp_path: Path) -> None:
    index = new_index(tmp_path)
    for number in range(10):
        add(index, number, "k", store_ms=100_000 + number * 10_000)
    assert list(index.find("t", "k", 120_000, 150_500)) == [5, 4, 3, 2]
    assert list(index.find("t", "k", 0, 99_000)) == []
    assert list(index.find("t", "k", 300_000, 400_000)) == []


def test_the_header_counts_as_rocketmq_counts(tmp_path: Path) -> None:
    index = new_index(tmp_path)
    add(index, 700, "a b a", store_ms=5_000)
    add(index, 900, "a", store_ms=9_000)
    index.build()
    raw = index.files[0].path.read_bytes()
    assert len(raw) == 40 + 16 * 4 + 100 * 20
    first_ms, last_ms, first_log, last_log, used, following = HEADER.unpack_from(raw)
    assert (first_ms, last_ms, first_log, last_log) == (5_000, 9_000, 700, 900)
    slots = {key_hash(f"t#{key}") % 16 for key in "ab"}
    assert (used, following) == (len(slots), 5)


def test_it_is_all_there_after_reopening(tmp_path: Path) -> None:
    index = new_index(tmp_path)
    for number in range(30):
        add(index, number, f"k{number}")
    index.build()
    index.flush()
    again = new_index(tmp_path)
    assert [list(again.find("t", f"k{n}", *ALWAYS)) for n in range(30)] == [[n] for n in range(30)]
    add(again, 30, "k7")
    assert list(again.find("t", "k7", *ALWAYS)) == [30, 7]


@given(st.integers(0, 60), st.booleans())
def test_truncating_relinks_what_is_kept(
    tmp_path_factory: pytest.TempPathFactory, cut: int, spoil_slots: bool
) -> None:
    folder = tmp_path_factory.mktemp("index")
    index = new_index(folder, entries=25, slots=7)
    for number in range(50):
        add(index, number, f"k{number % 5}")
    index.build()
    if spoil_slots:  # After a power cut the slots and the header may be of any age.
        for file in index.files[-1:]:
            raw = bytearray(file.path.read_bytes())
            raw[32:68] = bytes(36)
            file.path.write_bytes(raw)
        index = new_index(folder, entries=25, slots=7)
    index.truncate(cut)
    for key in range(5):
        expected = [n for n in range(min(cut, 50) - 1, -1, -1) if n % 5 == key]
        assert list(index.find("t", f"k{key}", *ALWAYS)) == expected
    add(index, 1000, "k0")
    assert next(index.find("t", "k0", *ALWAYS)) == 1000


def test_whoever_dies_while_truncating_leaves_files_that_open_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    index = new_index(tmp_path)
    for number in range(30):
        add(index, number, f"k{number}")
    index.build()

    def die_after(change: Callable[..., int | None]) -> Callable[..., None]:
        def changed(*arguments: object) -> None:
            change(*arguments)
            raise KeyboardInterrupt

        return changed

    for name in ("ftruncate", "pwrite"):
        monkeypatch.setattr(os, name, die_after(getattr(os, name)))
    with pytest.raises(KeyboardInterrupt):
        index.truncate(10)
    monkeypatch.undo()
    again = new_index(tmp_path)
    file = again.files[0]
    assert all(file._entry(number)[0] for number in range(1, file.next_entry))
    again.truncate(10)
    assert [n for n in range(30) if list(again.find("t", f"k{n}", *ALWAYS))] == list(range(10))


class Dying:
    """Entries of an index file, of which one column is written and no more."""

    def __init__(self, entries: npt.NDArray[np.void]) -> None:
        self._entries = entries

    def __getitem__(self, part: slice) -> "Dying":
        return Dying(self._entries[part])

    def __setitem__(self, column: str, values: object) -> None:
        self._entries[column] = values
        raise KeyboardInterrupt


def test_entries_that_somebody_did_not_come_to_finish_are_cut(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    index = new_index(tmp_path)
    for number in range(10):
        add(index, 1000 + number, f"k{number}")
    index.build()
    monkeypatch.setattr(index.files[0], "_entries", Dying(index.files[0]._entries))
    for number in range(10, 20):
        add(index, 1000 + number, f"k{number}")
    with pytest.raises(KeyboardInterrupt):
        index.build()
    again = new_index(tmp_path)
    again.truncate(1010)
    assert again.files[0].next_entry == 11
    assert [n for n in range(20) if list(again.find("t", f"k{n}", *ALWAYS))] == list(range(10))


def test_files_whose_messages_are_gone_are_deleted(tmp_path: Path) -> None:
    index = new_index(tmp_path, entries=10)
    for number in range(50):
        add(index, number, "k", store_ms=number)
    index.build()
    assert index.delete_before(20, Path.unlink) > 0
    assert list(index.find("t", "k", *ALWAYS))[-1] == 18
    assert len(list(tmp_path.iterdir())) == len(index.files) == 4


def test_another_geometry_is_refused(tmp_path: Path) -> None:
    index = new_index(tmp_path)
    add(index, 0, "k")
    index.build()
    with pytest.raises(StoreVersionError, match="index_slots"):
        new_index(tmp_path, entries=101)


def test_a_file_without_content_is_not_an_index_file(tmp_path: Path) -> None:
    index = new_index(tmp_path)
    add(index, 0, "k")
    index.build()
    (tmp_path / "29991231235959999").touch()
    again = new_index(tmp_path)
    assert list(again.find("t", "k", *ALWAYS)) == [0]
    assert len(list(tmp_path.iterdir())) == 1


def test_one_very_long_key_does_not_make_the_others_long() -> None:
    keys = [b"k%d" % n for n in range(2000)] + [b"x" * 30_000]
    assert key_hashes(keys).tolist() == [key_hash(key.decode()) for key in keys]
