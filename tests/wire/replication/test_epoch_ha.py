"""Replication with epochs: the same messages however their bytes are cut."""

import struct

import pytest
from hypothesis import given
from hypothesis import strategies as st

from onelog.errors import WireError
from onelog.wire.replication.epoch_ha import (
    EPOCHS_MAX,
    TRANSFER_BYTES_MAX,
    FollowerReader,
    Greeting,
    History,
    LogChunk,
    MasterReader,
    Report,
    encode_greeting,
    encode_header,
    encode_history,
    encode_report,
)

PLACES = st.integers(0, 1 << 40)


def cuts(raw: bytes, data: st.DataObject) -> list[bytes]:
    found = []
    while raw:
        size = data.draw(st.integers(1, len(raw)))
        found.append(raw[:size])
        raw = raw[size:]
    return found


@given(
    greeting=st.builds(Greeting, st.integers(0, 1 << 40), st.booleans(), st.booleans()),
    offsets=st.lists(PLACES, max_size=5),
    data=st.data(),
)
def test_any_cut_gives_the_same_words_of_a_follower(
    greeting: Greeting, offsets: list[int], data: st.DataObject
) -> None:
    raw = encode_greeting(greeting) + b"".join(map(encode_report, offsets))
    reader = FollowerReader()
    found = [each for chunk in cuts(raw, data) for each in reader.feed(chunk)]
    assert found[0] == greeting
    assert found[1:][-1:] == [*map(Report, offsets)][-1:]


@given(
    epochs=st.dictionaries(st.integers(0, 1 << 30), PLACES, max_size=6),
    parts=st.lists(st.binary(max_size=100), max_size=6),
    data=st.data(),
)
def test_any_cut_gives_the_same_words_of_a_master(
    epochs: dict[int, int], parts: list[bytes], data: st.DataObject
) -> None:
    history = tuple(zip(sorted(epochs), sorted(epochs.values()), strict=True))
    end = max(epochs.values(), default=0) + 7
    raw, at = encode_history(end, 9, history), 1_000
    for part in parts:
        raw += encode_header(at, len(part), 9, 500, at) + part
        at += len(part)
    reader = MasterReader()
    log, beats = b"", 0
    first, *rest = [each for chunk in cuts(raw, data) for each in map(_kept, reader.feed(chunk))]
    assert first == History(end, 9, history)
    at = 1_000
    for piece in rest:
        assert isinstance(piece, LogChunk)
        assert (piece.offset, piece.epoch, piece.epoch_start) == (at, 9, 500)
        log += piece.data
        at += len(piece.data)
        beats += not piece.data
    assert log == b"".join(parts)
    assert beats == parts.count(b"")


def _kept(each: History | LogChunk) -> History | LogChunk:
    return each if isinstance(each, History) else each._replace(data=memoryview(bytes(each.data)))


@given(raw=st.binary(max_size=300))
def test_garbage_is_a_wire_error_and_nothing_else(raw: bytes) -> None:
    for state in (b"", struct.pack(">i", 1), struct.pack(">i", 2)):
        try:
            list(MasterReader().feed(state + raw))
        except WireError:
            pass
        try:
            FollowerReader().feed(state + raw)
        except WireError:
            pass


@pytest.mark.parametrize(
    "raw",
    [
        struct.pack(">iiqi", 7, 0, 0, 0),
        struct.pack(">iiqi", 1, 13, 0, 0),
        struct.pack(">iiqi", 1, (EPOCHS_MAX + 1) * 12, 0, 0),
        encode_history(10, 3, [(3, 0), (2, 5)]),
        encode_history(10, 3, [(2, 5), (3, 4)]),
        encode_history(10, 3, [(2, -5)]),
        encode_history(10, 3, [(2, 11)]),
        encode_history(-1, 3, []),
        encode_header(0, TRANSFER_BYTES_MAX + 1, 1, 0, 0),
        encode_header(0, -1, 1, 0, 0),
        encode_header(-1, 0, 1, 0, 0),
        encode_header(5, 1, 1, 6, 0),
        encode_header(5, 1, -1, 5, 0),
        encode_header(5, 1, 1, 5, -1),
    ],
)
def test_what_no_master_sends_is_refused(raw: bytes) -> None:
    with pytest.raises(WireError):
        list(MasterReader().feed(raw))


@pytest.mark.parametrize(
    "raw",
    [
        struct.pack(">iq", 0, 0),
        struct.pack(">iq", 5, 0),
        struct.pack(">ihhq", 1, 2, 0, 1),
        struct.pack(">ihhq", 1, 0, -1, 1),
        struct.pack(">ihhq", 1, 0, 0, -1),
        encode_report(-1),
    ],
)
def test_what_no_follower_says_is_refused(raw: bytes) -> None:
    with pytest.raises(WireError):
        FollowerReader().feed(raw)


def test_the_bytes_are_those_of_rocketmq() -> None:
    assert encode_greeting(Greeting(2, True)) == struct.pack(">ihhq", 1, 1, 0, 2)
    assert encode_report(77) == struct.pack(">iq", 2, 77)
    history = struct.pack(">iiqi", 1, 24, 100, 4) + struct.pack(">iqiq", 3, 0, 4, 60)
    assert encode_history(100, 4, [(3, 0), (4, 60)]) == history
    assert encode_header(70, 5, 4, 60, 65) == struct.pack(">iiqiqq", 2, 5, 70, 4, 60, 65)
