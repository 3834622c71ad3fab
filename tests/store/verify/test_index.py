"""Damage to the key index is reported at the entry, slot or header that has it."""

import os
from pathlib import Path

import pytest

from onelog.message import NewMessage, encode_properties
from onelog.store.message_store import MessageStore
from onelog.store.verify import verify
from tests.store.samples import SAMPLE, flip, overwrite, write_sample
from tests.store.verify.findings import lines, only_line, verify_sample

ENTRIES_AT = 40 + SAMPLE.index_slots * 4


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    write_sample(tmp_path / "store")
    return tmp_path / "store"


@pytest.mark.parametrize(
    ("at", "bit", "reasons"),
    [
        (0, 0x10, ["which no key of the record at log offset"]),
        (3, 0x01, ["which no key of the record at log offset", "the entry before it in its slot"]),
        (11, 0x01, ["points at log offset"]),
        (15, 0x40, ["s after the file's first message"]),
        (19, 0x08, ["says that the entry before it in its slot is"]),
    ],
    ids=["hash", "hash and slot", "log offset", "seconds", "chain"],
)
def test_a_flipped_bit_in_an_index_entry(
    folder: Path, at: int, bit: int, reasons: list[str]
) -> None:
    path = sorted((folder / "index").iterdir())[0]
    flip(path, ENTRIES_AT + 30 * 20 + at, bit)
    found = lines(verify_sample(folder))
    for reason in reasons:
        assert any(
            line.startswith(f"index/{path.name} entry 30: ") and reason in line for line in found
        ), found


def test_a_flipped_bit_in_an_index_slot(folder: Path) -> None:
    path = sorted((folder / "index").iterdir())[0]
    slot = next(n for n in range(64) if any(path.read_bytes()[40 + n * 4 : 44 + n * 4]))
    flip(path, 40 + slot * 4 + 3, 0x01)
    line = only_line(verify_sample(folder))
    assert line.startswith(f"index/{path.name} slot {slot}: leads to entry")
    assert only_line(verify(folder)).startswith("index: the index files in")


@pytest.mark.parametrize(
    ("at", "name"),
    [(15, "last store time"), (23, "first log offset"), (31, "last log offset"), (35, "slots")],
)
def test_a_flipped_bit_in_an_index_header(folder: Path, at: int, name: str) -> None:
    path = sorted((folder / "index").iterdir())[0]
    flip(path, at - (3 if at == 15 else 0), 0x01)
    line = only_line(verify_sample(folder))
    assert line.startswith(f"index/{path.name} header: the ")
    assert name in line


def test_an_index_file_that_claims_too_many_entries(folder: Path) -> None:
    path = sorted((folder / "index").iterdir())[0]
    overwrite(path, 36, (10_000).to_bytes(4, "big"))
    line = only_line(verify_sample(folder))
    assert line == f"index/{path.name}: claims 10000 entries; there is room for 200"


def test_a_truncated_index_file(folder: Path) -> None:
    os.truncate(sorted((folder / "index").iterdir())[0], 4000)
    geometry = verify_sample if len([*(folder / "index").iterdir()]) > 2 else verify
    line = lines(geometry(folder))[0]
    assert line.startswith("index")


def test_missing_keys_are_noted_not_called_wrong(folder: Path) -> None:
    sorted((folder / "index").iterdir())[1].unlink()
    found = verify(folder)
    assert found.clean
    assert any("keys are in no index file" in note for note in found.notes)


def test_keys_longer_than_usual_and_not_ascii_are_found(tmp_path: Path) -> None:
    with MessageStore.open(tmp_path, SAMPLE) as store:
        for key in ("k" * 3000, "ключ", "🔑" * 40, "plain"):
            store.append([NewMessage("Orders", 0, b"x", encode_properties({"KEYS": key}))])
    found = verify(tmp_path)
    assert lines(found) == []
    assert found.index_entries == 4
    assert found.notes == ()
