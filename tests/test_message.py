import pytest
from hypothesis import given
from hypothesis import strategies as st

from onelog.message import (
    LOOPBACK,
    TAGS,
    LogOffset,
    Message,
    QueueOffset,
    decode_host,
    decode_properties,
    encode_host,
    encode_properties,
    java_hash,
    message_id,
    parse_message_id,
    property_value,
    tags_code,
)

# Text that UTF-8 can carry and that does not contain the two separators.
texts = st.text(st.characters(exclude_characters="\x01\x02", exclude_categories=["Cs"]), min_size=1)
properties_dicts = st.dictionaries(texts, texts, max_size=8)


@given(properties_dicts)
def test_properties_survive_encoding(properties: dict[str, str]) -> None:
    assert decode_properties(encode_properties(properties)) == properties


@given(properties_dicts)
def test_each_property_is_found_alone(properties: dict[str, str]) -> None:
    encoded = encode_properties(properties)
    assert {name: property_value(encoded, name) for name in properties} == properties


@given(properties_dicts, texts)
def test_a_property_that_is_not_there_is_none(properties: dict[str, str], name: str) -> None:
    properties.pop(name, None)
    assert property_value(encode_properties(properties), name) is None


def test_properties_without_the_last_separator_are_read_too() -> None:
    # RocketMQ 4.9 omits the last 0x02, 5.x writes it.
    old = b"TAGS\x01TagA\x02KEYS\x01k1 k2"
    assert decode_properties(old) == {"TAGS": "TagA", "KEYS": "k1 k2"}
    assert decode_properties(memoryview(old)) == decode_properties(old + b"\x02")
    assert property_value(old, "KEYS") == property_value(old + b"\x02", "KEYS") == "k1 k2"


@pytest.mark.parametrize("encoded", [b"", b"\x02", b"A\x01\x02", b"A\x02", b"A", b"\x02\x02A\x01"])
def test_entries_without_a_value_are_dropped(encoded: bytes) -> None:
    assert decode_properties(encoded) == {}


def test_broken_utf8_in_properties_does_not_stop_a_reader() -> None:
    assert decode_properties(b"A\x01\xff\x02B\x012\x02") == {"A": "�", "B": "2"}
    assert property_value(b"A\x01\xff\x02B\x012\x02", "A") == "�"


def test_a_property_is_not_confused_with_one_whose_name_ends_alike() -> None:
    encoded = encode_properties(
        {"MY_TAGS": "wrong", "TAGS2": "wrong", "X": "TAGS", "TAGS": "right"}
    )
    assert property_value(encoded, TAGS) == "right"
    assert property_value(encode_properties({"MY_TAGS": "wrong", "XTAGS": "wrong"}), TAGS) is None


def test_a_property_is_not_found_inside_a_value() -> None:
    assert property_value(b"A\x01TAGS\x02B\x01x\x02", "TAGS") is None


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("", 0),
        ("a", 97),
        ("hello", 99162322),
        ("TagA", 2598919),
        ("polygenelubricants", -(2**31)),  # the well-known string with the smallest hash
        ("\u00e9", 233),
        ("\u4f60\u597d", 20320 * 31 + 22909),
        # A character beyond the basic plane counts as its two UTF-16 units.
        ("\U0001f600", 0xD83D * 31 + 0xDE00),
        ("\ud83d", 0xD83D),  # half of a pair, as a careless client may send
    ],
)
def test_hashes_are_those_of_java(text: str, expected: int) -> None:
    assert java_hash(text) == expected


@given(st.text())
def test_hashes_fit_java_int_and_follow_its_recurrence(text: str) -> None:
    units = text.encode("utf-16-le", "surrogatepass")
    value = 0
    for at in range(0, len(units), 2):
        value = value * 31 + int.from_bytes(units[at : at + 2], "little")
    assert java_hash(text) == (value + 2**31) % 2**32 - 2**31
    assert tags_code(text) == java_hash(text)


@given(st.ip_addresses().map(str), st.integers(0, 65_535))
def test_hosts_survive_encoding(host: str, port: int) -> None:
    encoded = encode_host(host, port)
    assert len(encoded) == (20 if ":" in host else 8)
    assert decode_host(memoryview(encoded)) == (host, port)


@given(st.ip_addresses().map(str), st.integers(0, 65_535), st.integers(0, 2**63 - 1))
def test_message_ids_survive_printing(host: str, port: int, offset: int) -> None:
    encoded = encode_host(host, port)
    text = message_id(encoded, offset)
    assert len(text) == (56 if ":" in host else 32)
    assert parse_message_id(text) == (encoded, offset)
    assert parse_message_id(text.lower()) == (encoded, offset)


def test_a_message_id_looks_as_rocketmq_prints_it() -> None:
    assert message_id(encode_host("10.0.0.1", 10911), 0x1234) == "0A00000100002A9F0000000000001234"


@pytest.mark.parametrize("text", ["", "00", "0A" * 15, "0A" * 17, "zz" * 16, "0A" * 16 + "0"])
def test_what_is_no_message_id_is_refused(text: str) -> None:
    with pytest.raises(ValueError, match=r"message id|hexadecimal"):
        parse_message_id(text)


def stored_message(properties: dict[str, str]) -> Message:
    return Message(
        topic="orders",
        queue_id=0,
        queue_offset=QueueOffset(7),
        log_offset=LogOffset(0x1234),
        body=memoryview(b"body"),
        properties=encode_properties(properties),
        flag=0,
        sys_flag=0,
        born_ms=1,
        born_host=LOOPBACK,
        store_ms=2,
        store_host=encode_host("10.0.0.1", 10911),
        reconsume_times=0,
        prepared_offset=0,
        body_crc=0,
        size=0,
    )


def test_a_message_shows_its_tags_keys_and_ids() -> None:
    message = stored_message({"TAGS": "TagA", "KEYS": "k1  k2", "UNIQ_KEY": "U"})
    assert (message.tags, message.keys, message.unique_key) == ("TagA", ["k1", "k2"], "U")
    assert message.message_id == "0A00000100002A9F0000000000001234"


def test_a_bare_message_has_no_tags_keys_or_unique_key() -> None:
    message = stored_message({})
    assert (message.tags, message.keys, message.unique_key) == (None, [], None)
