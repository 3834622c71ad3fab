import zlib

import pytest
from hypothesis import given
from hypothesis import strategies as st

from onelog.errors import WireError
from onelog.wire.remoting import registration
from onelog.wire.remoting.frame import RemotingFrameReader
from onelog.wire.remoting.registration import (
    DataVersion,
    RegisterBrokerBody,
    TopicConfig,
    TopicConfigList,
    TopicTable,
    decode_registration,
    encode_registration,
)
from tests.wire.remoting import captured

names = st.text("abcXYZ%_-019", min_size=1, max_size=20)
topics = st.builds(
    TopicConfig,
    topic_name=names,
    read_queue_nums=st.integers(0, 1024),
    write_queue_nums=st.integers(0, 1024),
    perm=st.integers(0, 7),
    attributes=st.dictionaries(names, names, max_size=2),
)
bodies = st.builds(
    lambda topics, version, servers: RegisterBrokerBody(
        filter_server_list=servers,
        topic_config_serialize_wrapper=TopicTable(
            data_version=version,
            topic_config_table={topic.topic_name: topic for topic in topics},
            topic_queue_mapping_info_map={},
        ),
    ),
    st.lists(topics, max_size=5),
    st.builds(DataVersion, counter=st.integers(0, 9), timestamp=st.integers(0, 2**45)),
    st.lists(names, max_size=2),
)
BODY = RegisterBrokerBody(
    topic_config_serialize_wrapper=TopicTable(
        topic_config_table={"a": TopicConfig(topic_name="a"), "b": TopicConfig(topic_name="b")}
    )
)


@given(bodies, st.booleans())
def test_a_registration_survives_the_round_trip(body: RegisterBrokerBody, compressed: bool) -> None:
    assert decode_registration(encode_registration(body, compressed), compressed) == body


def test_before_5_0_the_compressed_form_has_no_mappings() -> None:
    old = encode_registration(BODY, compressed=True, version=409)
    table = decode_registration(old, True, 409).topic_config_serialize_wrapper
    assert table.topic_config_table.keys() == {"a", "b"}
    with pytest.raises(WireError, match="ends early"):
        decode_registration(old, True, 413)


def test_mappings_of_static_topics_come_through() -> None:
    table = TopicTable(topic_queue_mapping_info_map={"s": {"topic": "s", "bname": "b"}})
    body = RegisterBrokerBody(topic_config_serialize_wrapper=table)
    decoded = decode_registration(encode_registration(body, True), True)
    mappings = decoded.topic_config_serialize_wrapper.topic_queue_mapping_info_map
    assert mappings == {"s": {"topic": "s", "bname": "b"}}


def test_before_3_0_11_the_body_is_only_the_topics() -> None:
    table = BODY.topic_config_serialize_wrapper
    assert decode_registration(table.encode(), False, 36) == BODY


def test_no_body_is_a_broker_without_topics() -> None:
    assert decode_registration(b"") == RegisterBrokerBody()


def test_a_topic_is_a_line_in_the_compressed_form() -> None:
    topic = TopicConfig(
        topic_name="a", read_queue_nums=4, write_queue_nums=8, perm=6, attributes={"+k": "v"}
    )
    assert topic.to_line() == 'a 4 8 6 SINGLE_TAG {"+k":"v"}'
    assert TopicConfig.from_line(topic.to_line()) == topic
    assert TopicConfig.from_line("a 4 8 6 MULTI_TAG").topic_filter_type == "MULTI_TAG"
    assert TopicConfig.from_line("a 4 8 6 SINGLE_TAG {broken").attributes == {}
    assert TopicConfig.from_line("a 4 8 6 SINGLE_TAG []").attributes == {}


@pytest.mark.parametrize("line", ["", "a 4 8 6", "a x 8 6 SINGLE_TAG"])
def test_a_line_that_is_no_topic_is_refused(line: str) -> None:
    with pytest.raises(WireError, match="topic"):
        TopicConfig.from_line(line)


@pytest.mark.parametrize(
    ("content", "reason"),
    [
        (b"", "ends early"),
        (b"\0\0\0\2{", "ends early"),
        (b"\xff\xff\xff\xff", "negative"),
        (b"\0\0\0\2{}" + b"\0\0\0\1" + b"\0\0\0\1\xff", "UTF-8"),
        (b"\0\0\0\2{}" + b"\0\0\0\0" + b"\0\0\0\2[]" + b"\0\0\0\1" + b"\0\0\0\1" + b"7", "object"),
    ],
)
def test_a_compressed_registration_with_wrong_pieces_is_refused(
    content: bytes, reason: str
) -> None:
    with pytest.raises(WireError, match=reason):
        decode_registration(zlib.compress(content), True)


def test_a_stream_that_is_cut_off_or_no_stream_is_refused() -> None:
    with pytest.raises(WireError, match="not compressed"):
        decode_registration(b"not zlib", True)
    with pytest.raises(WireError, match="cut off"):
        decode_registration(encode_registration(BODY, True)[:-6], True)


def test_a_bomb_does_not_go_off(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(registration, "INFLATED_BYTES_MAX", 1000)
    with pytest.raises(WireError, match="too large"):
        decode_registration(zlib.compress(bytes(1_000_000)), True)


@pytest.mark.parametrize("compressed", [False, True])
def test_the_topics_of_a_registration_are_counted(
    monkeypatch: pytest.MonkeyPatch, compressed: bool
) -> None:
    body = encode_registration(BODY, compressed)
    monkeypatch.setattr(registration, "TOPICS_MAX", 2)
    assert decode_registration(body, compressed)
    monkeypatch.setattr(registration, "TOPICS_MAX", 1)
    with pytest.raises(WireError, match="registration of 2 topics; the limit is 1"):
        decode_registration(body, compressed)


def test_static_topics_share_one_allowance() -> None:
    mapping = b"{'topic':'s','currIdMap':{" + b",".join(b"%d:0" % i for i in range(9_000)) + b"}}"
    sized = len(mapping).to_bytes(4, "big") + mapping
    head = b"\0\0\0\2{}" + b"\0\0\0\0" + b"\0\0\0\2[]"
    for count, is_read in ((5, True), (6, False)):
        body = zlib.compress(head + count.to_bytes(4, "big") + sized * count)
        if is_read:
            assert decode_registration(body, True)
        else:
            with pytest.raises(WireError, match="more than 100000 keys and values"):
                decode_registration(body, True)


@given(st.binary(max_size=60), st.booleans(), st.sampled_from([0, 36, 409, 513]))
def test_garbage_raises_wire_error_and_nothing_else(
    body: bytes, compressed: bool, version: int
) -> None:
    for candidate in (body, zlib.compress(body)):
        try:
            decode_registration(candidate, compressed, version)
        except WireError:
            pass


def test_what_a_real_broker_registers_is_read_and_written_the_same() -> None:
    reader = RemotingFrameReader()
    reader.feed(captured.REGISTER_JSON_550)
    (command,) = reader.commands()
    body = decode_registration(command.body, False, command.version)
    (topic,) = body.topic_config_serialize_wrapper.topic_config_table.values()
    assert (topic.topic_name, topic.read_queue_nums, topic.order) == ("orders", 8, True)
    assert zlib.crc32(command.body) & 0x7FFFFFFF == int(command.ext["bodyCrc32"])
    assert encode_registration(body) == command.body


def test_lists_of_topics_are_read() -> None:
    topics = TopicConfigList.decode(b'{"topicConfigList":[{"topicName":"a"}]}')
    assert topics.topic_config_list == [TopicConfig(topic_name="a")]
