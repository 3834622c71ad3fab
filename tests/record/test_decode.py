"""Records in answers are read whole and checked, whatever a broker sends."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from onelog.errors import CompressionError, WireError
from onelog.message import NewMessage, SysFlag, decode_host, decode_properties, encode_host
from onelog.record.compression import Compression, compress, unpacked_body
from onelog.record.decode import decode_messages, decode_records
from onelog.record.encode import encode
from onelog.record.layout import HEADS

HOSTS = st.sampled_from([encode_host("10.1.2.3", 10911), encode_host("2001:db8::7", 65535)])
MESSAGES = st.builds(
    NewMessage,
    topic=st.text(st.characters(categories=["L", "N"]), min_size=1, max_size=40)
    | st.just("long-" + "t" * 200),
    queue_id=st.integers(0, 65535),
    body=st.binary(max_size=200),
    properties=st.binary(max_size=60),
    flag=st.integers(-(1 << 31), (1 << 31) - 1),
    sys_flag=st.sampled_from([0, SysFlag.COMMITTED, SysFlag.MULTI_TAGS, SysFlag.INNER_BATCH]),
    born_ms=st.integers(0, 1 << 45),
    born_host=HOSTS,
    store_host=HOSTS,
    reconsume_times=st.integers(0, 100),
    prepared_offset=st.integers(0, 1 << 50),
)

# What VIEW_MESSAGE_BY_ID of a RocketMQ 5.5.0 answered, for a body of b"body 3".
CAPTURED = bytes.fromhex(
    "000000ecdaa320a72aac99510000000300000000000000000000000000000000000002c400000000000001a1"
    "e03d93a27f0000010000d930000001a1e03d93a97f00000100005b9c00000000000000000000000000000006"
    "626f64792033106f726465727331373934373633343933007b4d53475f524547494f4e0144656661756c7452"
    "6567696f6e02554e49515f4b4559013030303030303030303030303030303030303030303030303030303030"
    "30303302434c55535445520144656661756c74436c757374657202544147530161024b455953016b3320616c"
    "6c0254524143455f4f4e017472756502"
)


def encoded(message: NewMessage, queue_offset: int = 0, log_offset: int = 0) -> bytes:
    head, body, tail, _ = encode(message, queue_offset, log_offset, 1_700_000_000_123, False)
    return head + bytes(body) + tail


@given(st.lists(MESSAGES, max_size=5), st.sampled_from([bytes, bytearray, memoryview]))
def test_what_the_store_writes_is_read_as_the_store_reads_it(
    messages: list[NewMessage], kind: type
) -> None:
    raw = b"".join(encoded(message, 7 * n, 1000 * n) for n, message in enumerate(messages))
    assert decode_records(kind(raw)) == list(decode_messages(memoryview(raw)))


def test_a_record_of_a_real_broker() -> None:
    (message,) = decode_records(CAPTURED)
    assert (message.topic, message.queue_id, message.queue_offset) == ("orders1794763493", 3, 0)
    assert (message.log_offset, message.size, bytes(message.body)) == (708, 236, b"body 3")
    assert decode_host(message.store_host) == ("127.0.0.1", 23452)
    assert (message.tags, message.keys) == ("a", ["k3", "all"])
    assert message.unique_key == "00000000000000000000000000000003"
    assert decode_properties(message.properties)["CLUSTER"] == "DefaultCluster"
    assert message.message_id == "7F00000100005B9C00000000000002C4"


def test_no_bytes_are_no_records() -> None:
    assert decode_records(b"") == []


@given(MESSAGES, st.data())
def test_a_record_that_is_cut_off_is_refused(message: NewMessage, data: st.DataObject) -> None:
    raw = encoded(message)
    length = data.draw(st.integers(1, len(raw) - 1))
    with pytest.raises(WireError):
        decode_records(raw[:length])
    with pytest.raises(WireError):
        decode_records(raw + raw[:length])


@given(MESSAGES, st.data())
def test_a_changed_body_is_refused(message: NewMessage, data: st.DataObject) -> None:
    message = message._replace(body=bytes(message.body) or b"x")
    raw = bytearray(encoded(message))
    length = len(message.body)
    start = HEADS[raw[39] >> 4 & 3].size
    raw[start + data.draw(st.integers(0, length - 1))] ^= data.draw(st.integers(1, 255))
    with pytest.raises(WireError, match="has another CRC"):
        decode_records(raw)


@given(st.binary(max_size=300) | MESSAGES.map(encoded), st.data())
def test_any_other_bytes_give_records_or_a_wire_error(raw: bytes, data: st.DataObject) -> None:
    mutated = bytearray(raw)
    for _ in range(data.draw(st.integers(0, 4)) if raw else 0):
        mutated[data.draw(st.integers(0, len(raw) - 1))] = data.draw(st.integers(0, 255))
    try:
        messages = decode_records(mutated)
    except WireError:
        return
    assert sum(message.size for message in messages) == len(mutated)


@pytest.mark.parametrize(
    ("at", "value", "reason"),
    [
        (0, 0xFFFFFFFF, "claims 4294967295 bytes"),
        (0, 80, "claims 80 bytes"),
        (4, 0xCBD43194, "a blank record"),
        (84, 0x7FFFFFFF, "does not fit its record"),
        (84, 16, "do not add up|topic does not fit|has another CRC"),
    ],
)
def test_a_wrong_field_is_named(at: int, value: int, reason: str) -> None:
    raw = bytearray(encoded(NewMessage("t", 0, b"hello, world", b"A\x01b\x02")))
    raw[at : at + 4] = value.to_bytes(4, "big")
    with pytest.raises(WireError, match=reason):
        decode_records(raw)


def test_a_topic_longer_than_its_record_is_refused() -> None:
    raw = bytearray(encoded(NewMessage("t", 0, b"x", b"A\x01b\x02")))
    raw[89] = 255
    with pytest.raises(WireError, match="topic does not fit"):
        decode_records(raw)


@pytest.mark.parametrize("form", list(Compression))
def test_a_compressed_body_is_unpacked(form: Compression) -> None:
    message = NewMessage("t", 0, compress(b"x" * 9000, form), b"", sys_flag=form.sys_flag)
    (found,) = decode_records(encoded(message))
    assert unpacked_body(found) == b"x" * 9000


def test_a_body_that_was_not_compressed_stays_as_it_is() -> None:
    (found,) = decode_records(encoded(NewMessage("t", 0, b"\x78\x9c plain", b"")))
    assert unpacked_body(found) == b"\x78\x9c plain"


@pytest.mark.parametrize(
    ("body", "sys_flag", "reason"),
    [
        (b"no zlib", 0x001, "is said to be compressed"),
        (b"...", 0x701, "in form 7"),
    ],
)
def test_a_body_that_cannot_be_unpacked_says_why(body: bytes, sys_flag: int, reason: str) -> None:
    (found,) = decode_records(encoded(NewMessage("t", 0, body, b"", sys_flag=sys_flag)))
    with pytest.raises(CompressionError, match=reason):
        unpacked_body(found)
