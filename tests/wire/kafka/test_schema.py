"""Every version of every request and answer, there and back."""

from collections.abc import Generator
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from onelog.errors import WireError
from onelog.wire.kafka import schema
from onelog.wire.kafka.schema import Fields

CASES = [
    (key, version, part)
    for key, api in schema.apis().items()
    for version in api.versions
    for part in ("request", "response")
]
NUMBERS = {
    "int8": st.integers(-(2**7), 2**7 - 1),
    "int16": st.integers(-(2**15), 2**15 - 1),
    "uint16": st.integers(0, 2**16 - 1),
    "int32": st.integers(-(2**31), 2**31 - 1),
    "uint32": st.integers(0, 2**32 - 1),
    "int64": st.integers(-(2**63), 2**63 - 1),
    "float64": st.floats(allow_nan=False),
    "bool": st.booleans(),
    "uuid": st.binary(min_size=16, max_size=16),
    "string": st.text(st.characters(exclude_categories=["Cs"]), max_size=8),
    "bytes": st.binary(max_size=8),
    "records": st.binary(max_size=8),
}


def values(each: Any, version: int) -> st.SearchStrategy[Any]:
    kind = structures(each.fields, version) if each.kind == "{}" else NUMBERS[each.kind]
    if each.is_array:
        kind = st.lists(kind, max_size=3)
    return st.none() | kind if version in each.nullable else kind


def structures(fields: list[Any], version: int) -> st.SearchStrategy[Fields]:
    return st.fixed_dictionaries(
        {each.name: values(each, version) for each in fields if version in each.versions}
    )


def plain(value: Any) -> Any:
    """As decoding gives it: lists, and bytes instead of views of them."""
    if isinstance(value, dict):
        return {name: plain(each) for name, each in value.items()}
    if isinstance(value, list | tuple):
        return [plain(each) for each in value]
    return bytes(value) if isinstance(value, memoryview) else value


@settings(max_examples=5)
@pytest.mark.parametrize("key", schema.apis())
@given(data=st.data())
def test_what_is_encoded_decodes_to_the_same(key: int, data: st.DataObject) -> None:
    api = schema.apis()[key]
    version = data.draw(st.sampled_from(api.versions))
    part = data.draw(st.sampled_from(["request", "response"]))
    fields = data.draw(structures(getattr(api, part), version))
    if part == "request":
        raw = b"".join(schema.encode_request(key, version, fields))
        assert plain(schema.decode_request(key, version, memoryview(raw))) == fields
    else:
        raw = b"".join(schema.encode_response(key, version, fields))
        assert plain(schema.decode_response(key, version, memoryview(raw))) == fields


@settings(max_examples=300)
@given(data=st.data())
def test_in_steps_the_same_is_read_and_written(data: st.DataObject) -> None:
    key, version, part = data.draw(st.sampled_from(CASES))
    fields = data.draw(structures(getattr(schema.apis()[key], part), version))
    if part == "request":
        raw = memoryview(b"".join(schema.encode_request(key, version, fields)))
        assert _whole(schema.decode_long_request(key, version, raw)) == schema.decode_request(
            key, version, raw
        )
    else:
        out: list[bytes | memoryview] = []
        for _ in schema.encode_long_response_to(key, version, fields, out):
            pass
        assert out == schema.encode_response(key, version, fields)


def _whole(steps: Generator[Any, None, schema.Fields]) -> schema.Fields:
    while True:
        try:
            next(steps)
        except StopIteration as end:
            found: schema.Fields = end.value
            return found


@given(case=st.sampled_from(CASES), garbage=st.binary(max_size=80))
def test_garbage_is_no_message(case: tuple[int, int, str], garbage: bytes) -> None:
    key, version, part = case
    decode = schema.decode_request if part == "request" else schema.decode_response
    try:
        decode(key, version, memoryview(garbage))
    except WireError:
        pass


def test_every_version_compiles_and_has_its_defaults() -> None:
    for key, version, _ in CASES:
        raw = memoryview(b"".join(schema.encode_response(key, version, {})))
        assert schema.decode_response(key, version, raw)


def test_a_version_has_the_fields_that_kafka_gives_it() -> None:
    old = schema.decode_request(18, 2, memoryview(b""))
    assert old == {}
    raw = b"\x0blibrdkafka\x062.0.2\x00"
    assert schema.decode_request(18, 3, memoryview(raw)) == {
        "client_software_name": "librdkafka",
        "client_software_version": "2.0.2",
    }


def test_records_may_be_pieces_that_are_sent_as_they_are() -> None:
    piece = memoryview(b"batch")
    partition = {"partition_index": 1, "records": [piece, piece]}
    answer = {"responses": [{"topic": "t", "partitions": [partition]}]}
    out = schema.encode_response(1, 11, answer)
    assert any(each is piece for each in out)
    raw = memoryview(b"".join(out))
    (found,) = schema.decode_response(1, 11, raw)["responses"][0]["partitions"]
    assert bytes(found["records"]) == b"batchbatch"


@pytest.mark.parametrize("count", [2**31 - 1, 1000, -2])
def test_an_array_is_never_longer_than_its_bytes(count: int) -> None:
    raw = count.to_bytes(4, "big", signed=True) + b"\0\1a"
    with pytest.raises(WireError):
        schema.decode_request(3, 0, memoryview(raw))
