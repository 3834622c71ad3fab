import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from onelog.errors import WireError
from onelog.wire.remoting.body import MessageQueue
from onelog.wire.remoting.fastjson import DEPTH_MAX, Allowance, dumps, loads
from onelog.wire.remoting.stats import TopicOffset

texts = st.text(st.characters(codec="utf-8"), max_size=12)
values = st.recursive(
    st.none() | st.booleans() | st.integers(-(2**63), 2**63) | texts,
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(texts, inner, max_size=4),
    max_leaves=12,
)
QUEUE = MessageQueue(broker_name="b", queue_id=0, topic="t")


@given(values)
def test_plain_json_is_read_as_any_parser_reads_it(value: Any) -> None:
    if isinstance(value, dict) and "$ref" in value:
        return
    assert loads(json.dumps(value).encode()) == value
    assert loads(json.dumps(value, ensure_ascii=False, indent=2)) == value


@given(st.recursive(st.integers(-9, 9) | texts, lambda i: st.lists(i) | st.dictionaries(texts, i)))
def test_what_is_written_is_plain_json_where_keys_are_texts(value: Any) -> None:
    assert json.loads(dumps(value)) == value


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("{0:17,1:4}", {"0": 17, "1": 4}),
        ("{-1:17}", {"-1": 17}),
        ("{name:'it''s'}", None),
        ("{name:'it\\'s'}", {"name": "it's"}),
        ('{"a":\'x\',b_1:"y"}', {"a": "x", "b_1": "y"}),
        ('"\\u00e9\\ud83d\\ude00\\x41\\n\\/"', "é😀A\n/"),
        ('"\\ud800"', "�"),
        ("[1L,2.5,-3e2,true,false,null]", [1, 2.5, -300.0, True, False, None]),
        (' { "a" : [ ] , "b" : { } } ', {"a": [], "b": {}}),
        ("tru", None),
        ("[1,]", None),
        ("{,}", None),
        ("{a}", None),
        ("[1 2]", None),
        ("1 2", None),
        ("", None),
        ("'open", None),
        ("{'a':1", None),
        ("9" * 20, int("9" * 20)),
        ("9" * 21, None),
        ("1." + "9" * 63, None),
        ("1e" + "9" * 63, None),
    ],
)
def test_fastjsons_dialect_is_read(text: str, value: Any) -> None:
    if value is None:
        with pytest.raises(WireError, match="no JSON"):
            loads(text)
    else:
        assert loads(text) == value


def test_objects_are_keys() -> None:
    text = b'{{"brokerName":"b","queueId":0,"topic":"t"}:{"maxOffset":3},"plain":1}'
    assert loads(text, MessageQueue.from_members) == {QUEUE: {"maxOffset": 3}, "plain": 1}
    assert loads(b'{{"a":1}:2}') == {(("a", 1),): 2}


@pytest.mark.parametrize("key", ['{"a":[1]}', '{"a":{}}'])
def test_an_object_that_cannot_be_a_key_is_refused(key: str) -> None:
    with pytest.raises(WireError, match="cannot be a key"):
        loads(f"{{{key}:1}}")


def test_a_queue_with_a_wrong_id_cannot_be_a_key() -> None:
    for wrong in ('"x"', "[1]", "1e999", "2147483648", "-2147483649"):
        with pytest.raises(WireError, match="cannot be a key"):
            loads(f'{{{{"queueId":{wrong}}}:1}}', MessageQueue.from_members)


def test_references_are_followed() -> None:
    text = '{"a":{"b":[1,2]},"c":{"$ref":"$.a.b"},"d":[{"$ref":"$.a.b[1]"}]}'
    assert loads(text) == {"a": {"b": [1, 2]}, "c": [1, 2], "d": [2]}


@pytest.mark.parametrize(
    "text",
    [
        '{"a":{"$ref":"$"}}',
        '{"a":{"$ref":".."}}',
        '{"a":{"$ref":"$.b"}}',
        '{"a":{"$ref":"$.b[9]"},"b":[1]}',
        '{"a":{"$ref":"$x"},"b":[1]}',
        '{"a":{"$ref":"$.b[0]"},"b":"text"}',
        '{"a":{"$ref":"$.b[0][0][0]"},"b":["text"]}',
        '{"a":1,"b":[{"$ref":"$.a"}],"c":[{"$ref":"$.b"},{"$ref":"$.b"}]}',
    ],
)
def test_references_that_lead_nowhere_in_circles_or_to_others_are_refused(text: str) -> None:
    with pytest.raises(WireError, match=r"\$ref"):
        loads(text)


def test_a_member_that_is_only_called_ref_is_no_reference() -> None:
    assert loads('{"$ref":1,"b":2}') == {"$ref": 1, "b": 2}


def test_nesting_has_a_limit() -> None:
    assert loads("[" * DEPTH_MAX + "]" * DEPTH_MAX)
    for deep in ("[" * 100_000, "{" * 100_000, '{"a":' * 100_000, "[" * 66 + "]" * 66):
        with pytest.raises(WireError, match="nested too deeply"):
            loads(deep)


TOO_MUCH = "references counted as what they stand for: send less, or plain JSON"


@pytest.mark.parametrize(
    "text",
    [
        # 34 KB that took more than a second, and four times as long when twice as large.
        "{'a':[" + "1," * 9_999 + "1],'b':[" + '{"$ref":"$.a"},' * 999 + '{"$ref":"$.a"}]}',
        "{'a':'" + "x" * 100_000 + "','b':[" + '{"$ref":"$.a"},' * 19 + '{"$ref":"$.a"}]}',
        "{'a':{'" + "x" * 100_000 + "':1},'b':[" + '{"$ref":"$.a"},' * 19 + '{"$ref":"$.a"}]}',
        "[" + "1," * 20_000 + "1]",
        "{" + "a:1," * 10_000 + "a:1}",
        "{" + "{}:1," * 10_000 + "{}:1}",
        "'" + "\\n" * 20_001 + "'",
        "'" + "x" * 64 * 20_000 + "'",
        " " * 64 * 20_000 + "1",
        "'" + "x" * 64 * 20_000,
        "1" * (64 * 20_000 + 1),
    ],
)
def test_what_is_read_and_what_it_grows_to_has_a_limit(text: str) -> None:
    with pytest.raises(WireError, match=TOO_MUCH):
        loads(text, MessageQueue.from_members)


def test_several_texts_can_share_an_allowance() -> None:
    allowance = Allowance(10)
    assert loads("[1,2,3]", allowance=allowance) == [1, 2, 3]
    assert loads("{a:[1]}", allowance=allowance) == {"a": [1]}
    assert loads("'x'", allowance=allowance) == "x"
    with pytest.raises(WireError, match="more than 10 keys and values"):
        loads("[2]", allowance=allowance)


def test_one_allowance_is_enough_for_a_client_with_a_thousand_topics() -> None:
    each = (
        "{'classFilterMode':false,'codeSet':[],'expressionType':'TAG','subString':'*',"
        "'subVersion':1700000000000,'tagsSet':[],'topic':'orders'}"
    )
    assert len(loads("[" + ",".join([each] * 1_000) + "]")) == 1_000


@pytest.mark.parametrize(
    "text",
    [
        "{" + ",".join(f"{{'a':{1 + i * (2**61 - 1)}}}:0" for i in range(2_000)) + "}",
        "{" + ",".join(f"{{'queueId':{1 + i * (2**61 - 1)}}}:0" for i in range(2_000)) + "}",
    ],
)
@pytest.mark.parametrize("object_key", [None, MessageQueue.from_members])
def test_keys_that_would_share_a_hash_are_refused(text: str, object_key: Any) -> None:
    with pytest.raises(WireError, match=r"too many digits|cannot be a key"):
        loads(text, object_key)


dialect = st.text("{}[]:,'\"\\$refu0189.eE-LSB tnl", max_size=40).map(str.encode)


@given(st.binary(max_size=40) | dialect)
def test_garbage_raises_wire_error_and_nothing_else(data: bytes) -> None:
    try:
        value = loads(data, MessageQueue.from_members)
    except WireError:
        return
    dumps(value)


def test_structs_as_keys_are_written_as_objects() -> None:
    assert dumps({QUEUE: TopicOffset(max_offset=3), "n": {7: "x"}}) == (
        b'{{"brokerName":"b","queueId":0,"topic":"t"}:'
        b'{"lastUpdateTimestamp":0,"maxOffset":3,"minOffset":0},"n":{"7":"x"}}'
    )


def test_members_that_are_null_are_left_out() -> None:
    assert dumps({"a": None, "b": [None], "c": {"d": None}}) == b'{"b":[null],"c":{}}'
