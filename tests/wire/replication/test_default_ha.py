"""RocketMQ's default replication: the same bytes of the log however they are cut."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from onelog.errors import WireError
from onelog.wire.replication.default_ha import (
    TRANSFER_BYTES_MAX,
    ReportReader,
    TransferReader,
    encode_header,
    encode_report,
)

PARTS = st.lists(st.binary(max_size=200), max_size=8)


def cuts(raw: bytes, data: st.DataObject) -> list[bytes]:
    found = []
    while raw:
        size = data.draw(st.integers(1, len(raw)))
        found.append(raw[:size])
        raw = raw[size:]
    return found


@given(parts=PARTS, start=st.integers(0, 1 << 62), data=st.data())
def test_any_cut_of_the_bytes_gives_the_same_log(
    parts: list[bytes], start: int, data: st.DataObject
) -> None:
    raw, at = b"", start
    for part in parts:
        raw += encode_header(at, len(part)) + part
        at += len(part)
    reader = TransferReader()
    log, beats, at = b"", 0, start
    for chunk in cuts(raw, data):
        for piece in reader.feed(chunk):
            assert piece.offset == at
            log += piece.data
            at += len(piece.data)
            beats += not piece.data
    assert log == b"".join(parts)
    assert beats == parts.count(b"")


@given(offsets=st.lists(st.integers(0, (1 << 63) - 1), max_size=8), data=st.data())
def test_the_last_report_counts(offsets: list[int], data: st.DataObject) -> None:
    raw = b"".join(map(encode_report, offsets))
    reader = ReportReader()
    found = [each for chunk in cuts(raw, data) if (each := reader.feed(chunk)) is not None]
    assert found[-1:] == offsets[-1:]
    assert set(found) <= set(offsets)


@given(raw=st.binary(max_size=300))
def test_garbage_is_a_wire_error_and_nothing_else(raw: bytes) -> None:
    try:
        list(TransferReader().feed(raw))
    except WireError:
        pass
    try:
        ReportReader().feed(raw)
    except WireError:
        pass


@pytest.mark.parametrize(
    "header",
    [encode_header(-1, 0), encode_header(0, -1), encode_header(0, TRANSFER_BYTES_MAX + 1)],
)
def test_what_no_master_sends_is_refused(header: bytes) -> None:
    with pytest.raises(WireError, match="no master sends that"):
        list(TransferReader().feed(header))


def test_a_report_below_zero_is_refused() -> None:
    with pytest.raises(WireError, match="no log ends there"):
        ReportReader().feed(encode_report(-5))


def test_the_bytes_are_those_of_rocketmq() -> None:
    assert encode_report(0x0102) == bytes([0, 0, 0, 0, 0, 0, 1, 2])
    assert encode_header(0x0102, 3) == bytes([0, 0, 0, 0, 0, 0, 1, 2, 0, 0, 0, 3])
