from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from onelog.errors import WireError
from onelog.message import PROPERTIES_BYTES_MAX, property_value
from onelog.record.compression import Method, pack
from onelog.record.forms import Form, amqp, form_of, kafka, mqtt, rocketmq
from onelog.record.forms.amqp_fields import Timestamp, decode_properties, encode_properties
from onelog.record.forms.kafka import Codec
from onelog.record.forms.neutral import Neutral

NAMES = (
    st.binary(max_size=12).map(lambda raw: raw.decode("utf-8", "surrogateescape"))
    | (st.text(st.characters(exclude_categories=["Cs"]), max_size=12))
    | st.sampled_from(
        [
            "KEYS",
            "TAGS",
            "UNIQ_KEY",
            "__key",
            "__body",
            "__header.0.a",
            "CLUSTER",
            "DELAY",
            "a",
            "mqtt.topic",
            "content-type",
            "reply-to",
            "correlation-id",
            "mqtt.expiry",
            "__header",
        ]
    )
    | st.sampled_from(
        ["amqp.type", "amqp.priority", "amqp.exchange", "amqp.timestamp", "amqp.header-types"]
    )
    | st.sampled_from(["x-onelog-key", "x-onelog-body", "x-onelog-header.0", "x" * 300])
)
VALUES = (
    st.none()
    | st.binary(max_size=20)
    | st.text(max_size=12).map(lambda text: text.encode("utf-8", "replace"))
    | st.sampled_from([b"5", b"05", b"-", b"I", b"true", b"x" * 300])
)
MESSAGES = st.builds(
    Neutral,
    key=VALUES,
    body=VALUES,
    headers=st.lists(st.tuples(NAMES, VALUES), max_size=5).map(tuple),
    time_ms=st.integers(0, 2**62),
)


def through_rocketmq(messages: list[Neutral]) -> list[Neutral]:
    return [
        rocketmq.to_neutral(*rocketmq.from_neutral(message), message.time_ms)
        for message in messages
    ]


def through_kafka(messages: list[Neutral]) -> list[Neutral]:
    return kafka.to_neutral(kafka.from_neutral(messages))


def through_mqtt(messages: list[Neutral]) -> list[Neutral]:
    return [mqtt.to_neutral(mqtt.from_neutral(message)) for message in messages]


def through_amqp(messages: list[Neutral]) -> list[Neutral]:
    return [amqp.to_neutral(amqp.from_neutral(message), message.time_ms) for message in messages]


FORMS = {
    "rocketmq": through_rocketmq,
    "kafka": through_kafka,
    "amqp": through_amqp,
    "mqtt": through_mqtt,
}


@pytest.mark.parametrize("first", FORMS)
@pytest.mark.parametrize("second", FORMS)
@given(messages=st.lists(MESSAGES, min_size=1, max_size=4))
def test_a_message_is_the_same_after_any_two_forms(
    first: str, second: str, messages: list[Neutral]
) -> None:
    assert FORMS[second](FORMS[first](messages)) == messages


@given(messages=st.lists(MESSAGES, min_size=1, max_size=4), codec=st.sampled_from(Codec))
def test_a_batch_is_read_back_whatever_its_codec(messages: list[Neutral], codec: Codec) -> None:
    batch = kafka.from_neutral(messages, 7, codec)
    head = kafka.read_head(batch)
    assert (head.base_offset, head.records, head.size) == (7, len(messages), len(batch))
    assert head.crc == kafka.crc_of(batch)
    assert kafka.to_neutral(batch) == messages


@given(st.binary(max_size=200), st.sampled_from(Codec))
def test_garbage_is_no_batch(garbage: bytes, codec: Codec) -> None:
    batch = bytearray(kafka.from_neutral([Neutral(b"k", b"v")], 0, codec))
    batch[kafka.HEAD.size :] = garbage
    batch[kafka.LENGTH_AT : kafka.EPOCH_AT] = (len(batch) - 12).to_bytes(4, "big")
    try:
        kafka.to_neutral(bytes(batch))
    except WireError:
        pass


def test_a_plain_message_has_the_same_names_in_every_form() -> None:
    message = Neutral(b"4711", b"three lamps", (("TAGS", b"paid"), ("shop", b"north")), 1_000)
    assert rocketmq.from_neutral(message) == (
        b"three lamps",
        b"KEYS\x014711\x02TAGS\x01paid\x02shop\x01north\x02",
    )


def test_what_the_broker_added_is_no_header() -> None:
    properties = b"a\x011\x02MSG_REGION\x01DefaultRegion\x02TRACE_ON\x01true\x02CLUSTER\x01c\x02"
    assert rocketmq.to_neutral(b"body", properties, 5) == Neutral(None, b"body", (("a", b"1"),), 5)


def test_a_control_batch_holds_no_messages() -> None:
    batch = bytearray(kafka.from_neutral([Neutral(b"k", b"v")]))
    batch[kafka.ATTRIBUTES_AT + 1] |= kafka.Attribute.CONTROL
    assert kafka.to_neutral(bytes(batch)) == []


@pytest.mark.parametrize("codec", [Codec.GZIP, Codec.LZ4, Codec.ZSTD, Codec.SNAPPY])
def test_records_that_unpack_to_more_than_the_limit_are_refused(codec: Codec) -> None:
    batch = kafka.from_neutral([Neutral(None, bytes(1 << 20))], 0, codec)
    with pytest.raises(WireError):
        kafka.to_neutral(batch, bytes_max=1 << 16)


def test_a_sys_flag_names_the_form() -> None:
    assert form_of(Form.KAFKA.sys_flag | 0x80) == Form.KAFKA
    assert form_of(0x783) == Form.ROCKETMQ


def test_headers_that_no_properties_can_hold_are_left_out_and_counted() -> None:
    headers = tuple((f"h{number}", bytes(9_000)) for number in range(5))
    body, properties = rocketmq.from_neutral(Neutral(b"k", b"v", headers))
    assert len(properties) <= PROPERTIES_BYTES_MAX
    read = rocketmq.to_neutral(body, properties, 0)
    assert (read.key, read.headers) == (b"k", headers[:3])
    assert property_value(properties, "__left_out") == "2"


def test_a_header_may_not_pass_for_a_receipt() -> None:
    message = Neutral(None, b"v", (("POP_CK", b"0 1 2"),))
    body, properties = rocketmq.from_neutral(message)
    assert property_value(properties, "POP_CK") is None
    assert rocketmq.to_neutral(body, properties, 0) == message


def test_snappy_blocks_as_javas_clients_frame_them_are_read() -> None:
    plain = kafka.from_neutral(MANY)
    block = pack(plain[kafka.HEAD.size :], Method.SNAPPY)
    framed = b"\x82SNAPPY\x00" + bytes(8) + len(block).to_bytes(4, "big") + block
    batch = bytearray(plain[: kafka.HEAD.size] + framed)
    batch[kafka.LENGTH_AT : kafka.EPOCH_AT] = (len(batch) - 12).to_bytes(4, "big")
    batch[kafka.ATTRIBUTES_AT + 1] = Codec.SNAPPY
    assert kafka.to_neutral(bytes(batch)) == MANY
    with pytest.raises(WireError):
        kafka.to_neutral(bytes(batch[:-1]) + b"")


MANY = [Neutral(b"k%d" % number, b"v" * 50) for number in range(20)]


# -- AMQP's own ---------------------------------------------------------------------------------

TEXTS = st.text(st.characters(exclude_categories=["Cs"]), max_size=12)
FIELDS = st.recursive(
    st.none()
    | st.booleans()
    | st.integers(-(2**63), 2**63 - 1)
    | TEXTS
    | st.binary(max_size=8)
    | st.floats(allow_nan=False)
    | st.integers(0, 2**60).map(Timestamp),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(TEXTS, inner, max_size=3),
    max_leaves=6,
)
PROPERTIES = st.fixed_dictionaries(
    {},
    optional={
        "content_type": TEXTS,
        "content_encoding": TEXTS,
        "headers": st.dictionaries(TEXTS, FIELDS, min_size=1, max_size=5),
        "delivery_mode": st.integers(0, 255),
        "priority": st.integers(0, 255),
        "correlation_id": TEXTS,
        "reply_to": TEXTS,
        "expiration": TEXTS,
        "message_id": TEXTS,
        "timestamp": st.integers(0, 2**64 - 1),
        "type": TEXTS,
        "user_id": TEXTS,
        "app_id": TEXTS,
        "cluster_id": TEXTS,
    },
)


@given(TEXTS, TEXTS, PROPERTIES, st.binary(max_size=20), st.sampled_from(["kafka", "rocketmq"]))
def test_amqp_content_is_the_same_after_another_form(
    exchange: str, key: str, properties: dict[str, Any], body: bytes, other: str
) -> None:
    record = amqp.encode(exchange, key, encode_properties(properties), body)
    (neutral,) = FORMS[other]([amqp.to_neutral(record, 7)])
    assert amqp.from_neutral(neutral) == record


def test_what_an_amqp_client_sent_is_readable_elsewhere() -> None:
    raw = encode_properties(
        {
            "content_type": "text/plain",
            "message_id": "4711",
            "priority": 5,
            "app_id": "shop",
            "headers": {"count": 3, "paid": True, "name": "lamp", "gone": None},
        }
    )
    record = amqp.encode("sales", "north.lamps", raw, b"three lamps")
    assert amqp.to_neutral(record, 1_000) == Neutral(
        b"4711",
        b"three lamps",
        (
            ("amqp.exchange", b"sales"),
            ("amqp.routing-key", b"north.lamps"),
            ("amqp.content-type", b"text/plain"),
            ("amqp.priority", b"5"),
            ("amqp.app-id", b"shop"),
            ("amqp.header-types", b"It--"),
            ("count", b"3"),
            ("paid", b"true"),
            ("name", b"lamp"),
            ("gone", None),
        ),
        1_000,
    )


def test_a_kafka_message_has_a_message_id_and_headers_for_amqp_clients() -> None:
    message = Neutral(b"key", b"value", (("text", b"a"), ("raw", b"\xff")), 1_000)
    content = amqp.read(amqp.from_neutral(message, key="queue"))
    assert (content.exchange, content.key, content.body) == ("", "queue", b"value")
    assert decode_properties(content.properties) == {
        "message_id": "key",
        "headers": {"text": "a", "raw": b"\xff"},
    }


@given(st.binary(max_size=60))
def test_garbage_is_no_content(garbage: bytes) -> None:
    try:
        amqp.to_neutral(garbage, 0)
    except WireError:
        pass
