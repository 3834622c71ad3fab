"""Attacks by messages and rows on those who read topics with Spark, and on those copied to."""

from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from onelog.errors import ConfigError, MessageError
from onelog.message import decode_properties
from onelog.record.columns.properties import PropertyColumns, texts_of
from onelog.record.inner_batch import split_batch
from onelog.spark.folders import local_folder
from onelog.spark.lake import tables as lake_tables
from onelog.spark.write.rows import RowEncoder
from tests.spark.lake_rows import rows, written

HEADERS = pa.list_(pa.struct([("key", pa.string()), ("value", pa.binary())]))


def properties(**columns: pa.Array) -> dict[str, str]:
    """Of the message that a row becomes."""
    batch = pa.record_batch({"body": pa.array([b"x"]), **columns})
    ((_, found),) = RowEncoder("orders", 1_000).rows(batch)
    return decode_properties(split_batch(found.column("message")[0].as_py())[0][2])


def header(name: str, value: bytes) -> pa.Array:
    return pa.array([[{"key": name, "value": value}]], HEADERS)


def test_a_key_with_separators_sets_no_property() -> None:
    found = properties(key=pa.array(["x\x02TAGS\x01evil"]))
    assert "TAGS" not in found
    assert found["__key"].startswith("=")


def test_a_header_with_separators_sets_no_property() -> None:
    found = properties(headers=header("a", b"1\x02DELAY\x013\x02"))
    assert "DELAY" not in found
    found = properties(headers=header("a\x01b\x02TAGS", b"evil"))
    assert "TAGS" not in found


@pytest.mark.parametrize("name", ["DELAY", "TIMER_DELAY_MS", "RETRY_TOPIC", "INNER_MULTI_DISPATCH"])
def test_a_header_named_like_an_order_to_the_broker_is_none(name: str) -> None:
    assert name not in properties(headers=header(name, b"3"))


def test_a_copied_header_cannot_take_the_place_of_the_message_s_id() -> None:
    assert properties(headers=header("UNIQ_KEY", b"mine"))["UNIQ_KEY"] != "mine"


def test_headers_without_end_are_refused_before_they_are_sent() -> None:
    with pytest.raises(MessageError, match="32767"):
        properties(headers=pa.array([[{"key": "a", "value": b"x" * 100}] * 1_000], HEADERS))


def test_garbage_in_properties_that_stand_for_something_is_only_text() -> None:
    hostile = b"__key\x01=%%%\x02__header.\x01=\x02__header.9.%ff%\x01=AA\x02__body\x01null"
    columns = PropertyColumns(pa.array([hostile] * 3, pa.binary()))
    assert texts_of(columns.keys()).to_pylist() == ["=%%%"] * 3
    columns.headers(HEADERS).validate(full=True)
    assert columns.null_bodies().all()


@pytest.mark.parametrize("value", [float("nan"), float("inf"), -1e308, 2.0**63, 0.1])
def test_one_poisonous_number_is_a_dead_letter_and_not_the_end_of_a_table(
    tmp_path: Path, value: Any
) -> None:
    lake_tables.commit(tmp_path, "delta", written(tmp_path, "delta", rows(0, amount=[1])))
    batch = rows(1, 2, errors=[None, None], amount=[value, 2.0])
    assert lake_tables.commit(tmp_path, "delta", written(tmp_path, "delta", batch)) == 2
    kind = lake_tables.types_of(tmp_path / "orders", "delta")
    assert kind is not None
    assert kind.field("amount").type == pa.int64()


def test_a_scheme_in_a_path_is_never_a_folder_here() -> None:
    for given in ("s3://b/../../etc", "S3A:///x", "file://evil/etc", Path("gs://b")):
        with pytest.raises(ConfigError, match="not supported"):
            local_folder("lake", given)
