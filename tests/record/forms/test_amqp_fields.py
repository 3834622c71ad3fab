"""Field tables and content properties."""

from decimal import Decimal
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from onelog.errors import WireError
from onelog.record.forms.amqp_fields import (
    NO_PROPERTIES,
    REMOVE,
    Table,
    Timestamp,
    decode_properties,
    decode_table,
    encode_properties,
    encode_table,
    encode_value,
    headers_of,
    property_of,
    same,
    short_string,
    with_headers,
    with_properties,
)

NAMES = st.text(max_size=20).filter(lambda name: len(name.encode()) < 256)
SCALARS = st.one_of(
    st.none(),
    st.booleans(),
    st.integers(-(1 << 63), (1 << 63) - 1),
    st.floats(allow_nan=False),
    st.text(max_size=30),
    st.binary(max_size=30),
    st.integers(0, (1 << 64) - 1).map(Timestamp),
    st.builds(
        lambda number, scale: Decimal(number).scaleb(-scale),
        st.integers(-(1 << 31), (1 << 31) - 1),
        st.integers(0, 20),
    ),
)
VALUES = st.recursive(
    SCALARS,
    lambda inner: st.one_of(st.lists(inner, max_size=4), st.dictionaries(NAMES, inner, max_size=4)),
    max_leaves=12,
)
TABLES = st.dictionaries(NAMES, VALUES, max_size=6)
SHORT = st.text(max_size=30)
PROPERTIES = st.fixed_dictionaries(
    {},
    optional={
        "content_type": SHORT,
        "content_encoding": SHORT,
        "headers": TABLES,
        "delivery_mode": st.integers(0, 255),
        "priority": st.integers(0, 255),
        "correlation_id": SHORT,
        "reply_to": SHORT,
        "expiration": SHORT,
        "message_id": SHORT,
        "timestamp": st.integers(0, (1 << 64) - 1),
        "type": SHORT,
        "user_id": SHORT,
        "app_id": SHORT,
        "cluster_id": SHORT,
    },
)


@given(TABLES)
def test_a_table_comes_back_as_it_was(table: Table) -> None:
    assert decode_table(encode_table(table)) == table


@given(PROPERTIES)
def test_properties_come_back_as_they_were(properties: dict[str, Any]) -> None:
    raw = encode_properties(properties)
    assert decode_properties(raw) == properties
    assert headers_of(raw) == properties.get("headers", {})
    assert property_of(raw, "expiration") == properties.get("expiration")


@given(PROPERTIES, TABLES, SHORT)
def test_changed_headers_are_spliced_in(
    properties: dict[str, Any], changes: Table, expiration: str
) -> None:
    raw = with_headers(encode_properties(properties), changes, expiration=expiration)
    found = decode_properties(raw)
    assert found.pop("headers", {}) == {**properties.get("headers", {}), **changes}
    properties.pop("headers", None)
    assert found == {**properties, "expiration": expiration}


@given(PROPERTIES)
def test_what_is_removed_is_gone(properties: dict[str, Any]) -> None:
    raw = encode_properties(properties)
    names = dict.fromkeys(properties.get("headers", {}), REMOVE)
    bare = with_headers(raw, names, **dict.fromkeys(properties, REMOVE))
    assert bare == NO_PROPERTIES
    assert with_properties(raw, {}) == raw


@given(st.binary(max_size=200))
def test_garbage_is_a_wire_error(data: bytes) -> None:
    for read in (decode_table, decode_properties, headers_of):
        try:
            read(data)
        except WireError:
            pass


@given(TABLES, st.data())
def test_a_table_that_is_cut_off_is_a_wire_error_or_a_shorter_table(
    table: Table, data: st.DataObject
) -> None:
    whole = encode_table(table)
    cut = whole[: data.draw(st.integers(0, len(whole)))]
    try:
        assert len(decode_table(cut)) <= len(table)
    except WireError:
        pass


def test_every_type_of_rabbitmq_is_read() -> None:
    data = bytes.fromhex(
        "0174 74 01".replace(" ", "")
        + "0162 62 ff".replace(" ", "")
        + "0142 42 ff".replace(" ", "")
        + "0173 73 fffe".replace(" ", "")
        + "0175 75 fffe".replace(" ", "")
        + "0149 49 fffffffd".replace(" ", "")
        + "0169 69 fffffffd".replace(" ", "")
        + "016c 6c fffffffffffffffc".replace(" ", "")
        + "014c 4c fffffffffffffffc".replace(" ", "")
        + "0166 66 3fc00000".replace(" ", "")
        + "0164 64 3ff8000000000000".replace(" ", "")
        + "0154 54 0000000000000005".replace(" ", "")
        + "0144 44 02 0000007b".replace(" ", "")
        + "0156 56".replace(" ", "")
    )
    assert decode_table(data) == {
        "t": True,
        "b": -1,
        "B": 255,
        "s": -2,
        "u": 65534,
        "I": -3,
        "i": 4294967293,
        "l": -4,
        "L": -4,
        "f": 1.5,
        "d": 1.5,
        "T": 5,
        "D": Decimal("1.23"),
        "V": None,
    }


def test_tables_ten_thousand_deep_are_refused() -> None:
    data = b""
    for _ in range(10_000):
        data = b"\1aF" + len(data).to_bytes(4, "big") + data
    with pytest.raises(WireError, match="inside one another"):
        decode_table(data)
    raw = b"\x20\0" + len(data).to_bytes(4, "big") + data
    with pytest.raises(WireError, match="inside one another"):
        headers_of(raw)


def test_flags_of_no_property_are_refused() -> None:
    with pytest.raises(WireError, match="unknown flags"):
        decode_properties(b"\0\1\0\0")


def test_a_name_has_at_most_255_bytes() -> None:
    with pytest.raises(WireError, match="255"):
        short_string("x" * 256)


@pytest.mark.parametrize("number", [1 << 63, -(1 << 63) - 1])
def test_a_number_that_does_not_fit_is_refused(number: int) -> None:
    with pytest.raises(WireError, match="64 bits"):
        encode_table({"x": [{"y": number}]})


@given(TABLES)
def test_equal_values_are_the_same(table: Table) -> None:
    assert same(table, decode_table(encode_table(table)))
    assert not same({"a": [table, 1]}, {"a": [table, True]})


def test_strings_that_are_no_text_are_bytes() -> None:
    assert decode_table(b"\1aS\0\0\0\2\xff\xfe") == {"a": b"\xff\xfe"}
    assert encode_value(b"\xff") == b"x\0\0\0\1\xff"
