"""A record is what RocketMQ writes, byte for byte, and `check` accepts nothing else."""

import zlib

import pytest
from hypothesis import given
from hypothesis import strategies as st

from onelog.errors import StoreCorruptError
from onelog.message import Message, NewMessage, SysFlag, encode_host, encode_properties
from onelog.record.decode import (
    Blank,
    Broken,
    check,
    decode_message,
    decode_messages,
    require_message,
    store_time_ms,
)
from onelog.record.encode import encode
from onelog.record.layout import BLANK, MAGIC_BLANK, MAGIC_V1, MAGIC_V2

HOSTS = st.sampled_from([encode_host("10.1.2.3", 10911), encode_host("2001:db8::7", 65535)])
MESSAGES = st.builds(
    NewMessage,
    topic=st.text(st.characters(categories=["L", "N"]), min_size=1, max_size=40)
    | st.just("long-" + "t" * 200),
    queue_id=st.integers(0, 65535),
    body=st.binary(max_size=200),
    properties=st.dictionaries(
        st.text(st.characters(categories=["L"]), min_size=1, max_size=8),
        st.text(st.characters(categories=["L", "N"]), min_size=1, max_size=8),
        max_size=4,
    ).map(encode_properties),
    flag=st.integers(-(1 << 31), (1 << 31) - 1),
    sys_flag=st.sampled_from([0, SysFlag.COMPRESSED, SysFlag.COMMITTED, SysFlag.MULTI_TAGS]),
    born_ms=st.integers(0, 1 << 45),
    born_host=HOSTS,
    store_host=HOSTS,
    reconsume_times=st.integers(0, 100),
    prepared_offset=st.integers(0, 1 << 50),
)


def record(message: NewMessage, at: int = 0, queue_offset: int = 0, crc: bool = False) -> bytes:
    head, body, tail, size = encode(message, queue_offset, at, 1_700_000_000_123, crc)
    assert size == len(head) + len(body) + len(tail)
    return head + bytes(body) + tail


def test_the_layout_is_rocketmqs_v1_between_ipv4_hosts() -> None:
    properties = encode_properties({"TAGS": "a"})
    message = NewMessage(
        "orders",
        3,
        b"hello",
        properties,
        7,
        0,
        11,
        encode_host("1.2.3.4", 5),
        encode_host("6.7.8.9", 10),
        12,
        13,
    )
    raw = record(message, at=4096, queue_offset=42)
    fields = {
        "total": raw[0:4],
        "magic": raw[4:8],
        "crc": raw[8:12],
        "queue": raw[12:16],
        "flag": raw[16:20],
        "queue offset": raw[20:28],
        "log offset": raw[28:36],
        "sys": raw[36:40],
        "born": raw[40:48],
        "stored": raw[56:64],
        "times": raw[72:76],
        "prepared": raw[76:84],
        "body length": raw[84:88],
    }
    numbers = {name: int.from_bytes(value, "big") for name, value in fields.items()}
    assert numbers == {
        "total": 91 + 5 + 6 + len(properties),
        "magic": MAGIC_V1,
        "crc": zlib.crc32(b"hello") & 0x7FFFFFFF,
        "queue": 3,
        "flag": 7,
        "queue offset": 42,
        "log offset": 4096,
        "sys": 0,
        "born": 11,
        "stored": 1_700_000_000_123,
        "times": 12,
        "prepared": 13,
        "body length": 5,
    }
    assert raw[48:56] == bytes([1, 2, 3, 4, 0, 0, 0, 5])
    assert raw[64:72] == bytes([6, 7, 8, 9, 0, 0, 0, 10])
    assert raw[88:93] == b"hello"
    assert raw[93:100] == b"\x06orders"
    assert raw[100:] == len(properties).to_bytes(2, "big") + properties


def test_a_topic_over_127_bytes_makes_a_v2_record_with_a_two_byte_length() -> None:
    raw = record(NewMessage("t" * 128, 0, b""))
    assert int.from_bytes(raw[4:8], "big") == MAGIC_V2
    assert raw[88:90] == (128).to_bytes(2, "big")


def test_ipv6_hosts_take_twenty_bytes_and_set_their_flags() -> None:
    host = encode_host("::1", 1)
    message = decode_message(memoryview(record(NewMessage("t", 0, b"b", b"", 0, 0, 0, host, host))))
    assert message.sys_flag == SysFlag.BORN_HOST_V6 | SysFlag.STORE_HOST_V6
    assert (message.born_host, message.store_host) == (host, host)


def test_ipv6_hosts_leave_the_other_flags_as_they_are() -> None:
    lz4 = SysFlag.COMPRESSED | 1 << 8
    sent = NewMessage("t", 0, b"b", sys_flag=int(lz4), store_host=encode_host("::1", 1))
    message = decode_message(memoryview(record(sent)))
    assert message.sys_flag == lz4 | SysFlag.STORE_HOST_V6


@given(MESSAGES, st.booleans())
def test_what_is_encoded_is_accepted_and_decodes_to_the_same(m: NewMessage, crc: bool) -> None:
    raw = memoryview(record(m, at=1000, queue_offset=9, crc=crc))
    found = check(raw, 0, 1000)
    assert isinstance(found, Message)
    assert (found.topic, found.queue_id, found.queue_offset) == (m.topic, m.queue_id, 9)
    assert bytes(found.body) == m.body
    assert found.properties.startswith(m.properties)
    assert (found.flag, found.born_ms, found.born_host) == (m.flag, m.born_ms, m.born_host)
    assert (found.store_host, found.reconsume_times) == (m.store_host, m.reconsume_times)
    assert found.prepared_offset == m.prepared_offset
    assert found.sys_flag & ~0x30 == m.sys_flag
    assert store_time_ms(raw) == found.store_ms == 1_700_000_000_123


@given(MESSAGES, st.data())
def test_with_a_record_crc_no_flipped_bit_goes_unnoticed(
    m: NewMessage, data: st.DataObject
) -> None:
    raw = bytearray(record(m, crc=True))
    bit = data.draw(st.integers(0, len(raw) * 8 - 1))
    raw[bit // 8] ^= 1 << bit % 8
    assert isinstance(check(memoryview(raw), 0, 0, require_crc=True), Broken)


@given(MESSAGES, st.data())
def test_a_cut_record_is_not_whole(m: NewMessage, data: st.DataObject) -> None:
    raw = record(m)
    cut = data.draw(st.integers(0, len(raw) - 1))
    padded = raw[:cut] + bytes(len(raw) - cut)
    if padded != raw:
        found = check(memoryview(padded), 0, 0)
        assert isinstance(found, Broken)


@given(st.binary(max_size=300))
def test_garbage_is_never_a_message(garbage: bytes) -> None:
    assert isinstance(check(memoryview(garbage), 0, 0), Broken | Blank)


def test_a_record_at_the_wrong_place_is_broken() -> None:
    found = check(memoryview(record(NewMessage("t", 0, b"x"), at=0)), 0, 4096)
    assert isinstance(found, Broken)
    assert "says it is at 0" in found.reason


def test_a_blank_record_must_reach_the_end_of_its_segment() -> None:
    good = BLANK.pack(100, MAGIC_BLANK) + bytes(92)
    assert check(memoryview(good), 0, 0) == Blank(100)
    assert isinstance(check(memoryview(good + bytes(1)), 0, 0), Broken)


def test_zeros_are_told_from_damage() -> None:
    found = check(memoryview(bytes(200)), 0, 0)
    assert isinstance(found, Broken)
    assert found.empty


def test_neighbouring_records_decode_one_after_the_other() -> None:
    run = b"".join(record(NewMessage("t", 0, b"%d" % n), queue_offset=n) for n in range(3))
    assert [bytes(m.body) for m in decode_messages(memoryview(run))] == [b"0", b"1", b"2"]


def test_bytes_that_are_no_run_of_records_are_told() -> None:
    whole = record(NewMessage("t", 0, b"x"))
    for bad in (bytes(200), whole + whole[:50], whole[:-1]):
        with pytest.raises(StoreCorruptError, match="record"):
            list(decode_messages(memoryview(bad)))


def test_requiring_a_message_names_the_place_and_the_reason() -> None:
    with pytest.raises(StoreCorruptError, match="log offset 77: nothing is written here"):
        require_message(check(memoryview(bytes(99)), 0, 77), 77)
    with pytest.raises(StoreCorruptError, match="closing blank record"):
        require_message(Blank(8), 5)
