import struct
from collections.abc import Iterator

import pytest
from hypothesis import given
from hypothesis import strategies as st

from onelog.errors import WireError
from onelog.wire.remoting import frame as compact_header
from onelog.wire.remoting.frame import CompactHeaders, encode_compact_header

int16s = st.integers(-(2**15), 2**15 - 1)
int32s = st.integers(-(2**31), 2**31 - 1)
texts = st.text(st.characters(codec="utf-8"), max_size=40)
tables = st.dictionaries(texts, texts | st.integers(120, 2000).map("x".__mul__))


headers = CompactHeaders()


@pytest.fixture(autouse=True)
def no_layouts() -> Iterator[None]:
    headers.layouts.clear()
    yield
    headers.layouts.clear()


def fields(*pairs: tuple[bytes, bytes]) -> bytes:
    return b"".join(
        struct.pack(">H", len(key)) + key + struct.pack(">i", len(value)) + value
        for key, value in pairs
    )


def header_with(ext: bytes, ext_bytes: int | None = None, remark: bytes = b"") -> bytes:
    size = len(ext) if ext_bytes is None else ext_bytes
    fixed = struct.pack(">hbhiii", 310, 0, 513, 7, 0, len(remark))
    return fixed + remark + struct.pack(">i", size) + ext


@given(int16s, int16s, int32s, int32s, st.none() | texts, tables)
def test_a_header_survives_the_round_trip(
    code: int, version: int, opaque: int, flag: int, remark: str | None, ext: dict[str, str]
) -> None:
    header = encode_compact_header(code, "GO", version, opaque, flag, remark, ext)
    command = headers.decode(header, b"body")
    assert (command.code, command.version, command.opaque) == (code, version, opaque)
    # The form has no way to tell an empty remark from none.
    assert (command.flag, command.remark, command.ext) == (flag, remark or None, ext)
    assert (command.language, command.body, command.serialize) == ("GO", b"body", 1)


@given(st.lists(tables, min_size=1, max_size=4))
def test_layouts_change_nothing_but_the_speed(tables: list[dict[str, str]]) -> None:
    headers.layouts.clear()
    for ext in tables * 20:
        header = encode_compact_header(310, "JAVA", 513, 1, 0, None, ext)
        assert headers.decode(header, b"").ext == ext


def test_a_form_that_repeats_gets_a_layout_and_other_values_are_read_through_it() -> None:
    for number in range(40):
        ext = {"a": "group", "b": f"topic-{number:03}", "key": "é" if number % 2 else "xy"}
        header = encode_compact_header(310, "JAVA", 513, number, 0, None, ext)
        assert headers.decode(header, b"").ext == ext
    assert len(headers.layouts) == 1


def test_values_that_change_widen_the_layout_and_those_that_never_do_may_be_any_text() -> None:
    for number in range(100):
        ext = {"a": "grüppe", "b": "topic", "e": str(number % 10), "i": f"key-{number:04}"}
        header = encode_compact_header(310, "JAVA", 513, number, 0, None, ext)
        assert headers.decode(header, b"").ext == ext
    (layout,) = headers.layouts.values()
    assert [key for key, _ in layout.changing] == ["e", "i"]


def test_a_changing_value_that_is_no_longer_ascii_is_read_another_way() -> None:
    values = [f"key-{number:04}" for number in range(40)] + ["key-é23", "key-0123"]
    for value in values:
        ext = {"a": "group", "i": value}
        header = encode_compact_header(310, "JAVA", 513, 1, 0, None, ext)
        assert headers.decode(header, b"").ext == ext


def test_a_command_read_through_a_layout_owns_its_fields() -> None:
    header = header_with(fields((b"a", b"xy"), (b"b", b"z")))
    for _ in range(40):
        headers.decode(header, b"").ext["a"] = "changed"
    assert headers.decode(header, b"").ext == {"a": "xy", "b": "z"}


def test_a_header_of_the_same_size_but_other_form_is_not_read_through_the_layout() -> None:
    usual = {"a": "group", "b": "topic"}
    other = {"a": "grou", "b": "topics"}
    for ext in [usual] * 40 + [other]:
        header = encode_compact_header(310, "JAVA", 513, 1, 0, None, ext)
        assert headers.decode(header, b"").ext == ext


def test_a_form_with_a_key_that_comes_twice_gets_no_layout() -> None:
    header = header_with(fields((b"a", b"1"), (b"b", b"2"), (b"a", b"3")))
    for _ in range(40):
        assert headers.decode(header, b"").ext == {"a": "3", "b": "2"}
    assert not headers.layouts


def test_a_large_header_gets_no_layout() -> None:
    for number in range(40):
        header = header_with(fields((b"a", b"x" * 5_000), (b"b", b"%02d" % number)))
        headers.decode(header, b"")
    assert headers.layouts == {}


def test_layouts_are_bounded() -> None:
    for size in range(16 * 2 * compact_header._LAYOUTS_MAX):
        ext = {"a": "x" * (size // 16), "b": ""}
        headers.decode(encode_compact_header(310, "JAVA", 513, 1, 0, None, ext), b"")
    assert 0 < len(headers.layouts) <= compact_header._LAYOUTS_MAX


@pytest.mark.parametrize(
    ("header", "reason"),
    [
        (b"\0" * 16, "too short"),
        (b"\0" * 17, "remark"),
        (header_with(b"", remark=b"x")[:-5], "remark"),
        (header_with(b"", ext_bytes=1), "fields"),
        (header_with(b"", ext_bytes=-1), "fields"),
        (header_with(b"\0\1a\0\0\0"), "ends outside"),
        (header_with(b"\0\1a\0\0"), "cut off"),
        (header_with(b"\0\1a\0\0\0\5abcd"), "ends outside"),
        (header_with(b"\0\1a\xff\xff\xff\xff"), "ends outside"),
        (header_with(b"\xff\xffabcdefgh"), "cut off"),
        (header_with(fields((b"a", b"\xff"))), "UTF-8"),
        (header_with(fields((b"\xff", b"a"))), "UTF-8"),
        (header_with(fields((b"a\xff", b"a"))), "UTF-8"),
        (header_with(b"", remark=b"\xff"), "UTF-8"),
    ],
)
def test_what_is_no_header_is_refused_with_a_reason(header: bytes, reason: str) -> None:
    with pytest.raises(WireError, match=reason):
        headers.decode(header, b"")


def test_a_header_of_very_many_fields_is_refused() -> None:
    many = fields(*((b"%d" % number, b"") for number in range(5_000)))
    with pytest.raises(WireError, match="4096 fields or more"):
        headers.decode(header_with(many), b"")


def test_a_layout_checks_the_encoding_too() -> None:
    good = header_with(fields((b"a", b"xy"), (b"b", b"z")))
    for _ in range(40):
        headers.decode(good, b"")
    assert headers.layouts
    with pytest.raises(WireError, match="UTF-8"):
        headers.decode(good.replace(b"xy", b"x\xff"), b"")


@given(st.binary(max_size=80) | st.binary(max_size=60).map(header_with))
def test_garbage_raises_wire_error_and_nothing_else(header: bytes) -> None:
    try:
        headers.decode(header, b"")
    except WireError:
        pass


def test_unknown_languages_are_others() -> None:
    header = encode_compact_header(1, "KLINGON", 513, 1, 0, None, {})
    assert headers.decode(header, b"").language == "OTHER"
    assert headers.decode(header[:2] + b"\x63" + header[3:], b"").language == "OTHER"
