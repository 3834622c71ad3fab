"""Folders that are somewhere else are refused by name, and nothing is made here."""

from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from onelog.config_sources import load
from onelog.errors import ConfigError
from onelog.spark import lake, pipelines
from onelog.spark.columns.schema import ALL, spark_schema
from onelog.spark.folders import local_folder
from onelog.spark.jobs import topics
from onelog.spark.lake import LakeSink
from onelog.spark.lake import tables as lake_tables
from onelog.spark.options import read_options
from tests.spark.threaded_cluster import ThreadedCluster

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

ELSEWHERE = [
    "s3://bucket/lake",
    "s3a://bucket",
    "hdfs://host:9000/x",
    "gs://bucket/x",
    "dbfs:/mnt/x",
    "abfss://c@a.dfs.core.windows.net/x",
    "S3://bucket/x",
    "https://host/x",
    "file://host/x",
    "memory:///x",
    "gs:bucket",
    "s3:",
    "file:lake",
]


@pytest.mark.parametrize("given", ELSEWHERE)
def test_a_scheme_is_refused_by_name_also_behind_pathlib(given: str) -> None:
    scheme = given.split(":")[0]
    for each in (given, Path(given)):
        if given.startswith("file:") and isinstance(each, Path):
            continue  # Without its second slash the host is a folder.
        with pytest.raises(ConfigError, match=f"{scheme}:// is not supported"):
            local_folder("lake", each)


def test_a_blank_before_a_scheme_does_not_make_it_a_folder() -> None:
    with pytest.raises(ConfigError, match="s3:// is not supported"):
        local_folder("lake", " s3://bucket")


@pytest.mark.parametrize(
    ("given", "path"),
    [
        ("lake", "lake"),
        ("/lake", "/lake"),
        ("./s3:/x", "s3:/x"),
        ("a/s3://x", "a/s3:/x"),
        ("file:///lake/a%20b", "/lake/a b"),
        ("file:/lake", "/lake"),
        ("C:/lake", "C:/lake"),
        ("file://localhost/lake", "/lake"),
    ],
)
def test_folders_of_this_machine_are_paths(given: str, path: str) -> None:
    assert local_folder("lake", given) == Path(path)
    if "localhost" not in given and not given.startswith("./"):
        assert local_folder("lake", Path(given)) == Path(path)


def test_wherever_a_folder_is_named_nothing_is_made_of_a_scheme(
    spark: "SparkSession",
    cluster: ThreadedCluster,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.chdir(tmp_path)
    cluster.topic("orders", 1)
    link = {"nameserver": cluster.nameserver}
    url = "s3://bucket/x"

    def copy() -> object:
        frame = topics.follow(spark, link, "orders", ["body"])
        return topics.start(frame, link, "copy", Path(url), None, topic="orders")

    attempts: list[Callable[[], object]] = [
        lambda: lake.sync(["orders"], url, spark=spark, options=link),
        lambda: lake.sync(["orders"], Path(url), spark=spark, options=link),
        lambda: lake.start(["orders"], Path(url), spark=spark, options=link),
        lambda: lake.read(spark, url),
        lambda: list(lake_tables.tables(Path(url))),
        lambda: LakeSink({"path": url}).streamWriter(spark_schema(ALL), False),
        lambda: read_options({"store": url}),
        copy,
        lambda: pipelines.init(Path(url)),
        lambda: pipelines.command(Path(url)),
        lambda: load(overrides={"broker.store_path": url}),
    ]
    for attempt in attempts:
        with pytest.raises(ConfigError, match=r"s3:|store is a folder"):
            attempt()
    assert list(tmp_path.glob("s3*")) == []
