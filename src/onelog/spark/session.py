"""Spark sessions: the one that is there, or one that is tuned for reading and writing topics.

    spark = onelog.spark.session()                          a local one, on all cores
    spark = onelog.spark.session(master="spark://host:7077")
    spark = onelog.spark.session(remote="sc://host:15002")  or SPARK_REMOTE: Connect

Invariant: a session that somebody else made is used as it is; what the caller sets in `conf` goes
before everything that is set here.
"""

import importlib
import os
import re
import sys
from collections.abc import Mapping
from typing import TYPE_CHECKING

from onelog.errors import ConfigError
from onelog.spark.java import java_home

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

_LOCAL = re.compile(r"local(?:\[(\d+|\*)(?:,\s*\d+)?\])?", re.ASCII)
_CHECKPOINTS = "org.apache.spark.sql.execution.streaming{}.FileSystemBasedCheckpointFileManager"

EVERYWHERE = {
    "spark.sql.session.timeZone": "UTC",
    "spark.sql.execution.arrow.pyspark.enabled": "true",
    # Off by default; a source that is told to (option pushdown) then reads less where a query
    # filters.
    "spark.sql.python.filterPushdown.enabled": "true",
}
"""What holds on any Spark."""

CLASSIC = {
    # 40 ms less for every task than a TCP connection to its Python worker.
    "spark.python.unix.domain.socket.enabled": "true",
    "spark.python.worker.faulthandler.enabled": "true",
}
"""What only who starts the driver can set."""

LOCAL = {
    "spark.ui.enabled": "false",
    "spark.ui.showConsoleProgress": "false",
    "spark.log.level": "ERROR",
    "spark.driver.host": "127.0.0.1",
    "spark.driver.bindAddress": "127.0.0.1",
    "spark.driver.memory": "2g",
}
"""What suits one machine."""


def session(
    app_name: str = "onelog",
    *,
    master: str | None = None,
    remote: str | None = None,
    conf: Mapping[str, str] | None = None,
) -> "SparkSession":
    """The active session if there is one and nothing else is asked for, else a new one."""
    from pyspark.sql import SparkSession

    if master is not None and remote is not None:
        raise ConfigError("master and remote exclude each other: keep one of them")
    remote = remote or (os.environ.get("SPARK_REMOTE") if master is None else None)
    active = SparkSession.getActiveSession()
    if active is not None and master is None and remote is None:
        return active
    builder = SparkSession.builder.appName(app_name)
    if remote is not None:
        _prepare_remote(remote)
        builder, settings = builder.remote(remote), EVERYWHERE
    elif "PYSPARK_GATEWAY_PORT" in os.environ:
        # Started by spark-submit, which knows the master and has its JVM running.
        settings = EVERYWHERE
    else:
        master = master or os.environ.get("MASTER") or "local[*]"
        builder = builder.master(master)
        settings = _settings(master)
        _prepare(master)
    for key, value in {**settings, **(conf or {})}.items():
        builder = builder.config(key, value)
    return builder.getOrCreate()


def _prepare_remote(remote: str) -> None:
    for package in ("grpc", "grpc_status", "google.rpc", "pandas", "pyarrow"):
        # Without one of them PySpark ends the process, and calls that a success.
        try:
            importlib.import_module(package)
        except ImportError as error:
            raise ConfigError(
                f"remote={remote} needs the packages of Spark Connect: "
                f"pip install 'onelog[connect]' ({error})"
            ) from None
    if remote.startswith("local"):
        _prepare(remote)


def _settings(master: str) -> dict[str, str]:
    settings = {**EVERYWHERE, **CLASSIC}
    local = _LOCAL.fullmatch(master)
    if local is not None:
        settings |= LOCAL
        settings["spark.sql.shuffle.partitions"] = str(_cores(local.group(1)))
        # Its files need no chmod each, which is half of a small trigger's time.
        settings["spark.sql.streaming.checkpointFileManagerClass"] = _checkpoints()
    return settings


def _cores(given: str | None) -> int:
    if given is None:
        return 1
    return (os.cpu_count() or 1) if given == "*" else int(given)


def _checkpoints() -> str:
    import pyspark

    before_4_1 = pyspark.__version__.startswith("4.0.")
    return _CHECKPOINTS.format("" if before_4_1 else ".checkpointing")


def _prepare(master: str) -> None:
    """What the JVM and the workers that it starts find in their environment."""
    os.environ["JAVA_HOME"] = str(java_home())
    if master.startswith("local"):
        # Without it, workers run whatever python3 is on the path.
        os.environ.setdefault("PYSPARK_PYTHON", sys.executable)
        os.environ.setdefault("SPARK_LOCAL_IP", "127.0.0.1")
