import pytest
from hypothesis import given
from hypothesis import strategies as st

from onelog.errors import WireError
from onelog.wire.remoting.command import INT32_MAX, INT32_MIN
from onelog.wire.remoting.frame import decode_json_header, encode_json_header

int32s = st.integers(INT32_MIN, INT32_MAX)
texts = st.text(st.characters(codec="utf-8"), max_size=40)


def remark(text: str) -> bytes:
    return f'{{"remark":"{text}"}}'.encode()


@given(int32s, int32s, int32s, int32s, st.none() | texts, st.dictionaries(texts, texts))
def test_a_header_survives_the_round_trip(
    code: int, version: int, opaque: int, flag: int, remark: str | None, ext: dict[str, str]
) -> None:
    header = encode_json_header(code, "GO", version, opaque, flag, remark, ext)
    command = decode_json_header(header, b"body")
    assert (command.code, command.version, command.opaque) == (code, version, opaque)
    assert (command.flag, command.remark, command.ext) == (flag, remark, ext)
    assert (command.language, command.body, command.serialize) == ("GO", b"body", 0)


def test_nulls_and_empty_fields_are_not_written() -> None:
    header = encode_json_header(0, "JAVA", 513, 7, 1, None, {})
    assert header == (
        b'{"code":0,"flag":1,"language":"JAVA","opaque":7,"serializeTypeCurrentRPC":"JSON",'
        b'"version":513}'
    )


@pytest.mark.parametrize(
    ("header", "code", "ext", "language"),
    [
        (b'{"code":"105","language":9,"extFields":{"n":3}}', 105, {"n": "3"}, "GO"),
        (b'{"code":105,"extFields":{"b":true}}', 105, {"b": "true"}, "JAVA"),
        (b'{"code":105,"language":99,"extFields":null,"remark":null}', 105, {}, "OTHER"),
        (b'{"code":1,"extFields":{"a":null,"b":"x","c":[1]}}', 1, {"b": "x", "c": "[1]"}, "JAVA"),
        (b'{"code":1.0,"language":null,"remark":5}', 1, {}, "JAVA"),
        (b"{}", 0, {}, "JAVA"),
    ],
)
def test_loose_headers_are_forgiven(
    header: bytes, code: int, ext: dict[str, str], language: str
) -> None:
    command = decode_json_header(header, b"")
    assert (command.code, command.ext, command.language) == (code, ext, language)


@pytest.mark.parametrize(
    ("header", "reason"),
    [
        (b"", "not JSON"),
        (b"\xff\xfe", "not JSON"),
        (b"[]", "not an object"),
        (b'{"code":105,"extFields":[]}', "extFields"),
        (b'{"code":"x"}', "code is not a number"),
        (b'{"code":1,"opaque":2147483648}', "opaque does not fit"),
        (b'{"code":1e999}', "not JSON"),
        (b'{"code":{}}', "code is not a number"),
        (b'{"z":' + b"[" * 100_000, "not JSON"),
    ],
)
def test_what_is_no_header_is_refused_with_a_reason(header: bytes, reason: str) -> None:
    with pytest.raises(WireError, match=reason):
        decode_json_header(header, b"")


@given(st.binary(max_size=80) | st.text(st.sampled_from('\\u"d8cf09x'), max_size=40).map(remark))
def test_garbage_raises_wire_error_and_nothing_else(header: bytes) -> None:
    try:
        command = decode_json_header(header, b"")
    except WireError:
        return
    (command.remark or "").encode()
