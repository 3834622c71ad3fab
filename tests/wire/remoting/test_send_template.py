"""The request that sends a message: the fast way writes what the slow way writes."""

from hypothesis import given
from hypothesis import strategies as st

from onelog.wire.remoting.codes import RequestCode
from onelog.wire.remoting.command import FLAG_ONEWAY, INT32_MAX, INT32_MIN, Command
from onelog.wire.remoting.frame import RemotingFrameReader, encode_request
from onelog.wire.remoting.send import SendTemplate, decode_send_header

texts = st.text(st.characters(blacklist_categories=["Cs"]), max_size=30)
int32s = st.integers(INT32_MIN, INT32_MAX)


def template(group: str = "group", topic: str = "orders", broker: str = "broker-a") -> SendTemplate:
    return SendTemplate(group, topic, 3, broker, default_topic="TBW102", default_queues=4)


def read(data: bytes) -> Command:
    reader = RemotingFrameReader()
    reader.feed(data)
    (command,) = reader.commands()
    assert reader.unread_bytes == 0
    return command


@given(
    texts,
    texts,
    texts,
    texts,
    st.binary(max_size=50),
    int32s,
    int32s,
    st.integers(0, 2**53),
    st.integers(0, INT32_MAX),
    st.booleans(),
)
def test_a_filled_template_is_what_the_plain_way_writes(
    group: str,
    topic: str,
    broker: str,
    properties: str,
    body: bytes,
    sys_flag: int,
    flag: int,
    born_ms: int,
    opaque: int,
    oneway: bool,
) -> None:
    made = template(group, topic, broker)
    head = made.head(opaque, sys_flag, born_ms, flag, properties, len(body), oneway)
    fields = made.message_fields(sys_flag, born_ms, flag, properties)
    plain = encode_request(
        RequestCode.SEND_MESSAGE_V2, opaque, fields, body, oneway=oneway, language="PYTHON"
    )
    assert read(head + body) == read(b"".join(plain))


def test_the_broker_reads_what_was_meant() -> None:
    command = read(template("%RETRY%g").head(7, 1, 99, 5, "a\x01b\x02", 2) + b"hi")
    header = decode_send_header(command)
    assert (header.producer_group, header.topic, header.queue_id) == ("%RETRY%g", "orders", 3)
    assert (header.sys_flag, header.flag, header.born_ms) == (1, 5, 99)
    assert (header.properties, header.batch, command.body) == ("a\x01b\x02", False, b"hi")
    assert (command.opaque, command.language, command.flag) == (7, "PYTHON", 0)


def test_one_way_requests_say_so() -> None:
    assert read(template().head(7, 0, 99, 0, "", 0, oneway=True)).flag == FLAG_ONEWAY


def test_a_batch_is_another_request_to_the_same_queue() -> None:
    plain = template()
    batch = plain.with_code(RequestCode.SEND_BATCH_MESSAGE)
    assert batch is plain.with_code(RequestCode.SEND_BATCH_MESSAGE)
    command = read(batch.head(7, 0, 99, 0, "", 0))
    assert command.code == RequestCode.SEND_BATCH_MESSAGE
    assert decode_send_header(command).batch
    reply = plain.with_code(RequestCode.SEND_REPLY_MESSAGE_V2)
    assert not decode_send_header(read(reply.head(7, 0, 99, 0, "", 0))).batch
