"""Sessions: made here, or somebody else's."""

import os
import subprocess
import sys
from collections.abc import Iterable, Iterator

import pyarrow as pa
import pytest
from pyspark.sql import SparkSession

from onelog.errors import ConfigError
from onelog.spark import session


def in_another_process(code: str, **environment: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-W", "ignore", "-c", code],
        capture_output=True,
        text=True,
        check=False,
        timeout=240,
        env={**os.environ, **environment},
    )


def test_nobody_pays_for_spark_who_does_not_use_it() -> None:
    ran = in_another_process(
        "import sys, onelog, onelog.cli, onelog.spark\n"
        "loaded = {name.partition('.')[0] for name in sys.modules}\n"
        "print(sorted(loaded & {'pyspark', 'pyarrow', 'pandas', 'deltalake', 'py4j'}))"
    )
    assert ran.stdout.strip() == "[]", ran.stderr


@pytest.mark.parametrize(
    ("environment", "chosen"),
    [
        ({"PATH": "/usr/bin:/bin"}, sys.executable),
        ({"PATH": os.path.dirname(sys.executable)}, None),
        ({"PATH": "/usr/bin:/bin", "PYSPARK_PYTHON": "python3.11"}, "python3.11"),
        ({"PATH": "/usr/bin:/bin", "PYSPARK_DRIVER_PYTHON": "ipython"}, None),
        ({"PATH": "/usr/bin:/bin", "PYSPARK_GATEWAY_PORT": "1"}, None),
    ],
    ids=["not activated", "activated", "chosen", "driver chosen", "JVM runs"],
)
def test_who_imports_onelog_has_spark_run_the_same_python_unless_another_is_chosen(
    environment: dict[str, str], chosen: str | None
) -> None:
    ran = subprocess.run(
        [sys.executable, "-c", "import onelog.errors, os; print(os.environ.get('PYSPARK_PYTHON'))"],
        capture_output=True,
        text=True,
        check=True,
        timeout=240,
        env=environment,
    )
    assert ran.stdout.strip() == str(chosen)


def test_where_there_is_no_spark_nothing_is_said_to_it() -> None:
    ran = subprocess.run(
        [
            sys.executable,
            "-c",
            "import sys; sys.modules['pyspark'] = None\n"
            "import importlib.util as util; find = util.find_spec\n"
            "util.find_spec = lambda name: None if name == 'pyspark' else find(name)\n"
            "import onelog, os; print(os.environ.get('PYSPARK_PYTHON'))",
        ],
        capture_output=True,
        text=True,
        check=True,
        timeout=240,
        env={"PATH": "/usr/bin:/bin"},
    )
    assert ran.stdout.strip() == "None"


def test_the_session_that_is_there_is_used(spark: SparkSession) -> None:
    # Spark may wrap its session anew; it is the application that must be the same.
    assert session().sparkContext.applicationId == spark.sparkContext.applicationId
    assert session("another name").sparkContext.applicationId == spark.sparkContext.applicationId


def test_a_local_session_is_tuned_for_one_machine(spark: SparkSession) -> None:
    conf = spark.conf
    assert conf.get("spark.sql.session.timeZone") == "UTC"
    assert conf.get("spark.sql.shuffle.partitions") == "2"
    assert conf.get("spark.python.unix.domain.socket.enabled") == "true"
    assert conf.get("spark.ui.enabled") == "false"
    manager = conf.get("spark.sql.streaming.checkpointFileManagerClass")
    assert manager is not None
    # The class is named by its place, and a wrong name would show only in the first stream.
    jvm = spark.sparkContext._jvm
    assert jvm is not None
    assert jvm.java.lang.Class.forName(manager).getName() == manager


def test_what_the_caller_sets_goes_first(spark: SparkSession) -> None:
    warehouse = spark.conf.get("spark.sql.warehouse.dir")
    assert warehouse is not None
    assert "warehouse" in warehouse


def test_workers_run_the_same_python(spark: SparkSession) -> None:
    found = spark.range(1).mapInArrow(_executables, "path string").collect()
    assert found[0].path == sys.executable


def _executables(batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    for _ in batches:
        yield pa.RecordBatch.from_pydict({"path": [sys.executable]})


def test_a_master_and_a_server_exclude_each_other() -> None:
    with pytest.raises(ConfigError, match="master and remote exclude each other"):
        session(master="local[1]", remote="sc://127.0.0.1:1")


def test_without_the_packages_of_connect_the_message_says_what_to_install() -> None:
    ran = in_another_process(
        "import sys\nsys.modules['grpc'] = None\nimport onelog.spark\nonelog.spark.session()",
        SPARK_REMOTE="sc://127.0.0.1:1",
    )
    assert "pip install 'onelog[connect]'" in ran.stderr
    assert ran.returncode != 0
