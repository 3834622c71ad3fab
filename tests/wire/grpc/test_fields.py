"""Fields written by hand are what protobuf's own library reads and writes."""

from hypothesis import given
from hypothesis import strategies as st

from onelog.wire.grpc import messages
from onelog.wire.grpc.fields import field, number, text, time

INT64 = st.integers(-(1 << 63), (1 << 63) - 1)
TEXTS = st.text(st.characters(codec="utf-8"), max_size=400)


@given(TEXTS, TEXTS, INT64)
def test_an_entry_reads_as_the_one_that_the_library_makes(
    message_id: str, transaction_id: str, offset: int
) -> None:
    status = messages.Status(code=20000, message=message_id)
    made = messages.SendResultEntry(
        status=status, message_id=message_id, transaction_id=transaction_id, offset=offset
    )
    written = field(b"\x0a", status.SerializeToString()) + text(b"\x12", message_id)
    written += text(b"\x1a", transaction_id) + number(b"\x20", offset)
    assert messages.SendResultEntry.FromString(written) == made


@given(st.integers(-62_135_596_800_000, 253_402_300_799_999))
def test_a_time_reads_as_the_milliseconds_that_were_written(time_ms: int) -> None:
    read = messages.SystemProperties.FromString(time(b"\x3a", time_ms))
    assert read.born_timestamp.ToMilliseconds() == time_ms
