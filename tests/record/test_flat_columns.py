"""Records that are not one plain message each become records that are."""

import numpy as np
import pytest
from hypothesis import given

from onelog.errors import WireError
from onelog.message import Message, NewMessage, SysFlag, encode_properties
from onelog.record.columns import Layout, find_records
from onelog.record.columns import flat as module
from onelog.record.columns.flat import flatten, needs_flattening
from onelog.record.columns.kafka import WantedColumns
from onelog.record.columns.pieces import bodies
from onelog.record.compression import Compression, compress, unpacked_body
from onelog.record.decode import decode_records
from onelog.record.forms.kafka import Codec
from onelog.record.forms.neutral import Neutral
from onelog.record.inner_batch import encode_batch, unwrapped
from tests.record.forms.samples import kafka_batch, neutrals
from tests.spark.record_samples import IPV6, QUICK, any_messages, encoded, records

EVERYTHING = WantedColumns(names=True, any=True, keys=True, ids=True)
BATCH = int(SysFlag.INNER_BATCH | SysFlag.NEED_UNWRAP)


def fail(error: WireError) -> None:
    raise error


def laid_out(data: bytes) -> Layout:
    layout = find_records(np.frombuffer(data, np.uint8))
    assert layout is not None
    return layout


def flat(data: bytes, topic: str | None = None, *, with_bodies: bool = True) -> list[Message]:
    layout = laid_out(data)
    unusual = needs_flattening(layout, topic, with_bodies)
    return [
        message
        for layout in flatten(layout, unusual, topic, with_bodies, EVERYTHING, fail)
        for at, end in zip(layout.at.tolist(), layout.end.tolist(), strict=True)
        for message in decode_records(layout.raw[at:end].tobytes())
    ]


@QUICK
@given(records(any_messages()))
def test_flat_records_are_the_messages_that_were_in_the_others(data: bytes) -> None:
    found, expected = flat(data), unwrapped(decode_records(data))
    assert len(found) == len(expected)
    for one, other in zip(found, expected, strict=True):
        assert bytes(one.body) == unpacked_body(other)
        for field in (
            "topic",
            "queue_id",
            "queue_offset",
            "log_offset",
            "properties",
            "flag",
            "born_ms",
            "born_host",
            "store_ms",
            "store_host",
            "reconsume_times",
            "prepared_offset",
        ):
            assert getattr(one, field) == getattr(other, field)


@QUICK
@given(records(any_messages()))
def test_flat_records_need_nothing_more(data: bytes) -> None:
    layout = laid_out(data)
    unusual = needs_flattening(layout, None, True)
    for found in flatten(layout, unusual, None, True, EVERYTHING, fail):
        assert not needs_flattening(found, None, True).any()


def test_a_body_that_nobody_wants_stays_compressed() -> None:
    body = compress(b"body", Compression.LZ4)
    data = encoded(NewMessage("t", 0, body, sys_flag=Compression.LZ4.sys_flag))
    (message,) = flat(data, with_bodies=False)
    assert bytes(message.body) == body
    assert bytes(flat(data)[0].body) == b"body"


def test_a_compressed_batch_between_ipv6_hosts_is_taken_apart() -> None:
    body = compress(encode_batch([(1, b"a", b"x\x01y\x02"), (2, b"b", b"")]), Compression.ZSTD)
    flags = BATCH | Compression.ZSTD.sys_flag
    data = encoded(NewMessage("t", 5, body, sys_flag=flags, born_host=IPV6, store_host=IPV6), 40, 9)
    found = flat(data)
    assert [(m.queue_offset, m.flag, bytes(m.body), m.properties) for m in found] == [
        (40, 1, b"a", b"x\x01y\x02"),
        (41, 2, b"b", b""),
    ]
    assert {(m.queue_id, m.log_offset, m.store_host) for m in found} == {(5, 9, IPV6)}


def test_a_kafka_batch_becomes_its_messages() -> None:
    sent = neutrals(7)
    found = flat(encoded(kafka_batch(sent, "t", 5), 40, 9), "t")
    assert [each.queue_offset for each in found] == list(range(40, 47))
    assert [bytes(each.body) for each in found] == [each.body or b"" for each in sent]
    assert [each.tags for each in found] == ["even", "odd", "even", "odd", "even", "odd", "even"]
    assert [each.born_ms for each in found] == [each.time_ms for each in sent]
    assert {each.sys_flag for each in found} == {0}


def test_a_topic_is_taken_for_what_it_is_whatever_its_length() -> None:
    properties = encode_properties(
        {"INNER_MULTI_DISPATCH": "x" * 200, "INNER_MULTI_QUEUE_OFFSET": "3"}
    )
    data = encoded(NewMessage("t", 5, b"body", properties), 40)
    (message,) = flat(data, "x" * 200)
    assert (message.topic, message.queue_id, message.queue_offset) == ("x" * 200, 5, 3)


@pytest.mark.parametrize(
    ("message", "complaint"),
    [
        (NewMessage("t", 0, b"no batch", sys_flag=BATCH), "message 0 of the batch"),
        (NewMessage("t", 0, b"no zlib", sys_flag=1), "said to be compressed"),
        (NewMessage("t", 0, b"no zlib", sys_flag=BATCH | 1), "said to be compressed"),
    ],
)
def test_what_cannot_be_taken_apart_is_reported_with_its_place(
    message: NewMessage, complaint: str
) -> None:
    with pytest.raises(WireError, match=f"log offset 4711: .*{complaint}"):
        flat(encoded(message, 0, 4711))


def test_the_rest_stays_when_what_is_damaged_is_left_out() -> None:
    good = encoded(NewMessage("t", 0, b"good"), 1)
    layout = laid_out(good + encoded(NewMessage("t", 0, b"bad", sys_flag=1), 2) + good)
    told: list[WireError] = []
    (left,) = flatten(
        layout, needs_flattening(layout, None, True), None, True, EVERYTHING, told.append
    )
    assert bodies(left).to_pylist() == [b"good", b"good"]
    assert len(told) == 1


@pytest.mark.parametrize("codec", [Codec.NONE, Codec.ZSTD])
def test_what_unpacks_to_much_is_handed_over_in_parts(
    codec: Codec, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "_FLAT_BYTES_MAX", 20_000)
    monkeypatch.setattr(module, "_TOGETHER_BYTES_MAX", 1_000)
    batch = kafka_batch([Neutral(None, b"x" * 1_000, (), 1)] * 10, "t", codec=codec)
    data = b"".join(encoded(batch, 10 * number, number) for number in range(20))
    layout = laid_out(data)
    unusual = needs_flattening(layout, "t", True)
    parts = [*flatten(layout, unusual, "t", True, EVERYTHING, fail)]
    assert len(parts) > 4
    assert max(len(each.raw) for each in parts) < 100_000
    offsets = [offset for each in parts for offset in each.queue_offset.tolist()]
    assert offsets == list(range(200))
