"""A batch with some of its records only."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from onelog.errors import WireError
from onelog.record.forms import kafka
from onelog.record.forms.kafka import HEAD, Attribute, Codec
from onelog.record.forms.neutral import Neutral

MESSAGES = st.lists(
    st.builds(
        Neutral,
        st.one_of(st.none(), st.binary(max_size=300)),
        st.one_of(st.none(), st.binary(max_size=300)),
        st.lists(st.tuples(st.text(max_size=3), st.one_of(st.none(), st.binary(max_size=3)))).map(
            tuple
        ),
        st.integers(0, 1 << 40),
    ),
    min_size=1,
    max_size=6,
)


@given(MESSAGES, st.sampled_from(list(Codec)), st.sets(st.integers(0, 5)), st.integers(0, 1 << 40))
def test_what_is_kept_keeps_its_offset_and_its_time(
    messages: list[Neutral], codec: Codec, wanted: set[int], base_offset: int
) -> None:
    data = kafka.from_neutral(messages, codec=codec)
    batch, raw, spans = kafka.spans(data)
    assert [(each.key, each.is_tombstone) for each in spans] == [
        (each.key, each.body is None) for each in messages
    ]
    assert kafka.keyless(data) == [at for at, each in enumerate(messages) if each.key is None]
    kept = [span for span in spans if span.offset_delta in wanted]
    if not kept:
        return
    part = kafka.with_only(data, batch, raw, kept, base_offset)
    head = kafka.read_head(part)
    assert head.crc == kafka.crc_of(part)
    assert (head.base_offset, head.last_offset_delta) == (base_offset, len(messages) - 1)
    numbers = sorted(wanted & set(range(len(messages))))
    assert kafka.records(part) == [(each, messages[each]) for each in numbers]
    assert head.max_ms == max(messages[each].time_ms for each in numbers)


def test_a_part_is_of_no_transaction() -> None:
    data = bytearray(kafka.from_neutral([Neutral(b"a", b"1"), Neutral(b"b", b"2")]))
    data[kafka.ATTRIBUTES_AT + 1] |= Attribute.TRANSACTIONAL
    batch, raw, spans = kafka.spans(kafka.with_crc(bytes(data)))
    head = kafka.read_head(kafka.with_only(bytes(data), batch, raw, spans, 7))
    assert (head.attributes, head.producer_id, head.records) == (0, -1, 2)


@pytest.mark.parametrize("change", [2, 60, -2])
def test_records_that_are_not_as_long_as_they_say_are_refused(change: int) -> None:
    data = bytearray(kafka.from_neutral([Neutral(b"a" * 10, b"1" * 20)]))
    data[HEAD.size] += change
    with pytest.raises(WireError):
        kafka.spans(kafka.with_crc(bytes(data)))
    with pytest.raises(WireError):
        kafka.keyless(kafka.with_crc(bytes(data)))
    with pytest.raises(WireError):
        kafka.spans(bytes(data[: HEAD.size + 10]))
