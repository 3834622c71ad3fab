"""Folders of declared pipelines; running one is in tests/e2e."""

import ast
import sys
from pathlib import Path

import pytest

from onelog.errors import ConfigError
from onelog.spark import pipelines


def test_a_new_pipeline_is_complete_and_knows_its_place(tmp_path: Path) -> None:
    folder = tmp_path / "shop"
    written = {path.relative_to(folder).as_posix() for path in pipelines.init(folder)}
    assert written == {
        "spark-pipeline.yml",
        "transformations/orders.py",
        "transformations/sales.sql",
    }
    spec = (folder / pipelines.SPEC).read_text()
    assert "name: shop" in spec
    assert f"storage: {(folder / 'storage').as_uri()}" in spec
    assert "{{" not in spec
    ast.parse((folder / "transformations" / "orders.py").read_text())
    with pytest.raises(ConfigError, match="not empty"):
        pipelines.init(folder)
    with pytest.raises(ConfigError, match="letters, digits"):
        pipelines.init(tmp_path / "a b")


def test_a_run_is_on_this_machine_or_on_a_connect_server(tmp_path: Path) -> None:
    pipelines.init(tmp_path / "shop")
    words = pipelines.command(tmp_path / "shop", full_refresh=True, master="local[2]")
    assert Path(words[0]).is_file()
    assert words[1:5] == ["run", "--spec", pipelines.SPEC, "--full-refresh-all"]
    assert words[5:] == ["--remote", "local[2]"]
    assert pipelines.command(tmp_path / "shop", dry_run=True)[1] == "dry-run"
    assert pipelines.command(tmp_path / "shop", remote="sc://host")[-1] == "sc://host"


def test_a_run_is_told_where_everything_is() -> None:
    before = {"PATH": "x", "ONELOG_NAMESERVER": "other", "ONELOG_SECRET_KEY_FILE": "y"}
    link = {"nameserver": "host:9876", "requestTimeoutMs": "5", "accessKey": "me", "secretKey": "s"}
    found = pipelines.environment(before, link)
    assert found["ONELOG_NAMESERVER"] == "host:9876"
    assert (found["ONELOG_ACCESS_KEY"], found["ONELOG_SECRET_KEY"]) == ("me", "s")
    assert "ONELOG_SECRET_KEY_FILE" not in found
    assert "--conf spark.sql.catalogImplementation=hive" in found["PYSPARK_SUBMIT_ARGS"]
    assert (found["PATH"], found["PYSPARK_PYTHON"]) == ("x", sys.executable)
    assert (Path(found["JAVA_HOME"]) / "bin" / "java").exists()
    assert (Path(found["SPARK_HOME"]) / "bin" / "spark-pipelines").is_file()


def test_forgetting_leaves_the_definitions(tmp_path: Path) -> None:
    folder = tmp_path / "shop"
    pipelines.init(folder)
    for name in (pipelines.WAREHOUSE, "metastore_db", pipelines.STORAGE):
        (folder / name / "x").mkdir(parents=True)
    pipelines.forget(folder)
    left = sorted(path.relative_to(folder).as_posix() for path in folder.glob("*"))
    assert left == ["spark-pipeline.yml", "storage", "transformations"]
    assert list((folder / pipelines.STORAGE).iterdir()) == []


def test_mistakes_are_named(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="onelog pipeline init"):
        pipelines.command(tmp_path)
    pipelines.init(tmp_path / "shop")
    with pytest.raises(ConfigError, match="exclude each other"):
        pipelines.command(tmp_path / "shop", master="local", remote="sc://host")
    with pytest.raises(ConfigError, match="Connect server"):
        pipelines.command(tmp_path / "shop", master="spark://host:7077")
