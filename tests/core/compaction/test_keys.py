"""The last offset of each key."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from onelog.core.compaction import run
from onelog.core.compaction.run import LastOffsets


@given(st.lists(st.binary(max_size=2), max_size=60), st.lists(st.binary(max_size=2), max_size=20))
def test_a_message_is_superseded_if_its_key_comes_again(
    written: list[bytes], asked: list[bytes]
) -> None:
    known = LastOffsets(8)
    for offset, key in enumerate(written):
        known.add(key, offset)
        assert known.is_full or len(set(written[: offset + 1])) < 16
    last = {key: offset for offset, key in enumerate(written)}
    for offset in (0, 5, 60):
        found = known.superseded(asked, [offset] * len(asked))
        assert found == [last.get(key, -1) > offset for key in asked]


def test_keys_whose_hashes_begin_alike_are_kept_apart(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(run, "_digest", lambda key: bytes(8) + key.rjust(8, b"\0"))
    known = LastOffsets(8)
    known.add(b"a", 5)
    known.add(b"b", 7)
    assert known.superseded([b"a", b"b", b"c"], [5, 7, 0]) == [False] * 3
    assert known.superseded([b"a"], [4]) == [True]


def test_it_is_full_with_as_many_keys_as_may_be() -> None:
    known = LastOffsets(3)
    for offset in range(100):
        known.add(b"%d" % (offset % 2), offset)
        assert not known.is_full
    known.add(b"x", 100)
    known.add(b"y", 101)
    known.add(b"z", 102)
    known.add(b"z", 103)
    assert known.is_full
