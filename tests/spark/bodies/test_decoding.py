"""Bodies become typed columns beside those of the message, or say why not."""

import json
import pickle
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from pyspark.sql.types import StructType

from onelog.errors import ConfigError, UndecodableError
from onelog.message import NewMessage
from onelog.spark.bodies import decoding
from onelog.spark.bodies.decoding import BodyFormat, json_format, message_columns
from onelog.spark.columns.messages import RecordDecoder
from onelog.spark.columns.schema import Selection, spark_schema
from onelog.spark.options import Decode, Form
from tests.spark.bodies.test_avro import container, written
from tests.spark.record_samples import encoded, rows_of, to_arrow
from tests.spark.shop_protobuf import descriptor_set, order

AVRO = {
    "type": "record",
    "name": "r",
    "fields": [
        {"name": "id", "type": "int"},
        {"name": "name", "type": ["null", "string"]},
    ],
}


def body_format(form: Form, sample: Iterable[bytes] = (), **options: Any) -> BodyFormat:
    return decoding.body_format(Decode(form, **options), sample)


def rows(found: BodyFormat, *bodies: bytes, names: tuple[str, ...] = ("offset",)) -> list[object]:
    """The rows of messages with these bodies, of all columns there are."""
    schema = StructType([*spark_schema(names).fields, *found.schema.fields])
    arrow = to_arrow(schema)
    decoder = RecordDecoder(names, arrow, bodies=found.reader(arrow))
    data = b"".join(encoded(NewMessage("t", 3, body), row) for row, body in enumerate(bodies))
    batches = list(decoder.decode(data, Selection("b")))
    for batch in batches:
        assert batch.schema == arrow
    return [tuple(row.values()) for row in rows_of(batches)]


def test_json_with_a_ddl_schema() -> None:
    found = body_format("json", schema="id BIGINT NOT NULL, name STRING")
    assert found.schema.simpleString() == "struct<id:bigint,name:string,_error:string>"
    assert rows(found, b'{"id": 1, "name": "a"}', b"{", b'{"id": 2}') == [
        (0, 1, "a", None),
        (1, None, None, "Input data was truncated"),
        (2, 2, None, None),
    ]


def test_json_with_a_schema_of_spark_s_own() -> None:
    schema = StructType.fromJson(body_format("json", schema="id BIGINT").schema.jsonValue())
    found = body_format("json", schema=StructType(schema.fields[:1]).json())
    assert found.fields.simpleString() == "struct<id:bigint>"


def test_json_with_a_schema_from_a_sample() -> None:
    bodies = [b'{"id": 1}', b"nothing", b'{"price": 2.5}']
    found = body_format("json", sample=bodies)
    assert found.schema.simpleString() == "struct<id:bigint,price:double,_error:string>"
    assert [row[1:3] for row in rows(found, *bodies)] == [(1, None), (None, None), (None, 2.5)]  # type: ignore[index]


def test_json_with_a_schema_that_was_inferred_before() -> None:
    inferred = body_format("json", sample=[b'{"id": 1}'])
    assert json_format(inferred.schema) == inferred
    assert Decode("json").needs_sample
    assert not Decode("json", "id INT").needs_sample
    assert not Decode("avro", None, "r.avsc").needs_sample
    assert not Decode("string").needs_sample


def test_avro_with_a_schema_from_a_file(tmp_path: Path) -> None:
    file = tmp_path / "r.avsc"
    file.write_text(json.dumps(AVRO))
    found = body_format("avro", schema_file=str(file))
    bodies = [written(AVRO, {"id": 5, "name": "x"}), b""]
    assert rows(found, *bodies) == [
        (0, 5, "x", None),
        (1, None, None, "no Avro record of this schema: EOFError"),
    ]


def test_avro_container_files_bring_their_schema() -> None:
    body = container(AVRO, {"id": 5, "name": None})
    found = body_format("avro", sample=[body])
    assert rows(found, body) == [(0, 5, None, None)]


def test_protobuf_with_a_descriptor_set(tmp_path: Path) -> None:
    file = tmp_path / "shop.desc"
    file.write_bytes(descriptor_set())
    found = body_format("protobuf", schema_file=str(file), message_type="Order.Item")
    item = order(items=[{"sku": "abc"}])
    inner = item[-5:]
    good, bad = rows(found, inner, b"\xff")
    assert good == (0, "abc", "NEW", None)
    assert "no Protobuf message of this type" in bad[3]  # type: ignore[index]


def test_text() -> None:
    found = body_format("string")
    assert found.schema.simpleString() == "struct<value:string,_error:string>"
    (good, bad) = rows(found, "Größe".encode(), b"\xff")
    assert good == (0, "Größe", None)
    assert bad[:2] == (1, None)  # type: ignore[index]
    assert "can't decode byte 0xff" in bad[2]  # type: ignore[index]
    assert rows(found, b"a", b"b") == [(0, "a", None), (1, "b", None)]


def test_the_raw_body_is_kept_if_it_is_asked_for() -> None:
    found = body_format("json", schema="id INT")
    assert rows(found, b"[]", names=("body", "queue")) == [(b"[]", 3, None, "[] is no JSON object")]


def test_failfast_names_the_message_and_has_no_column_for_errors() -> None:
    found = body_format("json", schema="id INT", mode="failfast")
    assert found.schema.names == ["id"]
    assert rows(found, b'{"id": 1}') == [(0, 1)]
    with pytest.raises(
        UndecodableError, match=r"at offset 1 of queue 3 of t, 2 bytes, .*permissive"
    ):
        rows(found, b"{}", b"[]", b"x")


def test_confluent_s_header_is_taken_off() -> None:
    head = b"\0\0\0\0\7"
    found = body_format("avro", schema=json.dumps(AVRO), framing="confluent")
    body = written(AVRO, {"id": 5, "name": None})
    assert rows(found, head + body, body) == [
        (0, 5, None, None),
        (1, None, None, "it does not begin with a zero and the number of a schema"),
    ]


@pytest.mark.parametrize("steps", [b"\0", b"\2\0", b"\4\2\x80\1"])
def test_confluent_s_steps_to_a_protobuf_type_are_taken_off(steps: bytes, tmp_path: Path) -> None:
    file = tmp_path / "shop.desc"
    file.write_bytes(descriptor_set())
    found = body_format(
        "protobuf", schema_file=str(file), message_type="Order.Item", framing="confluent"
    )
    body = b"\0\0\0\0\7" + steps + order(items=[{"sku": "abc"}])[-5:]
    cut_off = b"\0\0\0\0\7\x80"
    assert rows(found, body, cut_off) == [
        (0, "abc", "NEW", None),
        (1, None, None, "the steps to the type of the message are cut off"),
    ]


def test_only_the_typed_columns_of_the_table_are_decoded() -> None:
    found = body_format("json", schema="a INT, b INT")
    arrow = pa.schema([("b", pa.int32())])
    decoder = RecordDecoder([], arrow, bodies=found.reader(arrow))
    batches = list(
        decoder.decode(encoded(NewMessage("t", 0, b'{"a": "no int", "b": 5}')), Selection("b"))
    )
    assert rows_of(batches) == [{"b": 5}]


def test_a_format_can_be_sent_to_workers() -> None:
    found = body_format("avro", schema=json.dumps(AVRO))
    assert pickle.loads(pickle.dumps(found)) == found


def test_message_columns_give_way_to_typed_ones_unless_they_are_asked_for() -> None:
    typed = body_format("json", schema="key STRING, id INT").schema
    names = message_columns(None, typed)
    assert "key" not in names
    assert "body" not in names
    assert {"topic", "queue", "offset", "store_time"} < set(names)
    assert message_columns(["offset", "body"], typed) == ("offset", "body")
    with pytest.raises(ConfigError, match="key is in the bodies, too"):
        message_columns(["offset", "key"], typed)


@pytest.mark.parametrize(
    ("options", "complaint"),
    [
        ({"form": "json", "schema": "id"}, "a type is expected"),
        ({"form": "json", "schema": '{"type": "x"}'}, "neither DDL nor a Spark schema"),
        ({"form": "json", "schema": "struct<>"}, "it has no fields"),
        ({"form": "json", "schema": "id INT, ID INT"}, "the field 'id' twice"),
        ({"form": "json", "schema": "_error INT"}, "the column for errors"),
        ({"form": "json"}, "no schema can be inferred"),
        ({"form": "avro"}, "give their schema"),
        ({"form": "avro", "schema": "id INT"}, "no Avro schema"),
        ({"form": "protobuf"}, "needs the option schemaFile"),
        ({"form": "protobuf", "schema": "x"}, "needs the option schemaFile"),
        ({"form": "json", "schema_file": "no/such/file"}, "no/such/file cannot be read: No such"),
    ],
)
def test_options_that_describe_no_format_are_refused(
    options: dict[str, str], complaint: str
) -> None:
    with pytest.raises(ConfigError, match=complaint):
        body_format(**options)  # type: ignore[arg-type]


def test_a_schema_file_that_is_no_schema_is_refused(tmp_path: Path) -> None:
    file = tmp_path / "schema"
    for content, complaint in ((b" \n", "empty"), (b"\xff\xfe", "no text")):
        file.write_bytes(content)
        with pytest.raises(ConfigError, match=complaint):
            body_format("json", schema_file=str(file))
