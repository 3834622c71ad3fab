"""Spark that is not local: a Connect server, and a standalone master with two workers."""

import json
import os
import random
import socket
import subprocess
import sys
import zlib
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pyspark
import pytest
from deltalake import DeltaTable

from onelog.spark.java import java_home
from tests.e2e.processes import ChildError, free_ports, log_tail, spawn, stop, wait_until
from tests.spark.cluster_job import Job
from tests.spark.fire import ROOT, Cluster

SPARK_HOME = Path(pyspark.__file__).parent
CONNECT = "org.apache.spark.sql.connect.service.SparkConnectServer"
DEPLOY = "org.apache.spark.deploy"
COUNT = 20_000
START_SECONDS, JOB_SECONDS = 180, 400

pytestmark = [pytest.mark.soak, pytest.mark.timeout(1_500)]


@contextmanager
def program(folder: Path, name: str, *command: str) -> Iterator[Path]:
    """One of Spark's programs, while it is needed; its log."""
    log = folder / f"{name}.log"
    environment = {
        "JAVA_HOME": str(java_home()),
        "SPARK_HOME": str(SPARK_HOME),
        "SPARK_LOCAL_IP": "127.0.0.1",
        "PYSPARK_PYTHON": sys.executable,
    }
    child = spawn([str(SPARK_HOME / "bin" / command[0]), *command[1:]], log, environment)
    try:
        yield log
    finally:
        stop(child)


def run(job: Job) -> dict[str, int]:
    """The job in a process of its own, as its user would run it."""
    ended = subprocess.run(
        [sys.executable, "-m", "tests.spark.cluster_job", job.text()],
        env={**os.environ, "PYTHONPATH": str(ROOT), "PYSPARK_PYTHON": sys.executable},
        capture_output=True,
        text=True,
        timeout=JOB_SECONDS,
        check=False,
    )
    assert ended.returncode == 0, ended.stderr[-6000:]
    found: dict[str, int] = json.loads(job.found.read_text())
    return found


def work(cluster: Cluster, job: Job) -> None:
    """Run the job twice, with more messages the second time, and check all that it did."""
    chance = random.Random(COUNT)
    cluster.create(job.source)
    cluster.create(job.target)
    sent: list[bytes] = []
    for _ in range(2):
        more = cluster.fill(job.source, COUNT, chance)
        sent += more
        found = run(job)
        assert found["count"] == len(sent)
        assert found["checksum"] == sum(map(zlib.crc32, sent))
        assert found["synced"] == len(more)
        assert sorted(cluster.bodies(job.target)) == sorted(sent)
    table = DeltaTable(Path(job.folder) / "lake" / job.source).to_pyarrow_table(columns=["body"])
    assert sorted(table.column("body").to_pylist()) == sorted(sent)


@pytest.fixture
def fired(tmp_path: Path) -> Iterator[Cluster]:
    """A broker in a process of its own."""
    with Cluster(tmp_path) as cluster:
        yield cluster


def test_a_plain_session_finds_the_source_in_an_environment_that_is_not_activated(
    fired: Cluster,
) -> None:
    fired.create("in")
    fired.fill("in", 10, random.Random(1))
    code = (
        "import onelog.client\n"
        "from pyspark.sql import SparkSession\n"
        "spark = SparkSession.builder.master('local[1]').getOrCreate()\n"
        f"options = dict(nameserver={fired.nameservers!r}, subscribe='in')\n"
        "print(spark.read.format('onelog').options(**options).load().count())\n"
    )
    ended = subprocess.run(
        [sys.executable, "-c", code],
        capture_output=True,
        text=True,
        check=False,
        timeout=JOB_SECONDS,
        env={"PATH": "/usr/bin:/bin", "JAVA_HOME": str(java_home())},
    )
    assert ended.stdout.split()[-1:] == ["10"], ended.stderr[-6000:]


def test_a_spark_connect_server_reads_and_writes_topics(fired: Cluster, tmp_path: Path) -> None:
    port, _ = free_ports()
    server = (
        "spark-submit",
        "--master",
        "local[2]",
        "--class",
        CONNECT,
        "--conf",
        f"spark.connect.grpc.binding.port={port}",
        "--conf",
        "spark.ui.enabled=false",
        "spark-internal",
    )
    with program(tmp_path, "connect", *server) as log:
        wait(f"127.0.0.1:{port}", log)
        remote = f"sc://127.0.0.1:{port}"
        work(fired, Job(fired.nameservers, "in", "out", str(tmp_path), remote=remote))


def test_a_standalone_cluster_of_two_workers_reads_and_writes_topics(
    fired: Cluster, tmp_path: Path
) -> None:
    port, web = free_ports()
    master = f"spark://127.0.0.1:{port}"
    with program(
        tmp_path,
        "master",
        "spark-class",
        f"{DEPLOY}.master.Master",
        "--host",
        "127.0.0.1",
        "--port",
        str(port),
        "--webui-port",
        str(web),
    ) as log:
        wait(f"127.0.0.1:{port}", log)
        with worker(tmp_path, 0, master), worker(tmp_path, 1, master):
            conf = {
                "spark.executor.memory": "600m",
                "spark.executor.cores": "1",
                "spark.cores.max": "2",
                "spark.driver.host": "127.0.0.1",
                "spark.ui.enabled": "false",
                "spark.scheduler.minRegisteredResourcesRatio": "1.0",
                "spark.scheduler.maxRegisteredResourcesWaitingTime": "120s",
            }
            work(
                fired,
                Job(fired.nameservers, "in", "out", str(tmp_path), master=master, conf=conf),
            )
    for number in range(2):
        executors = list((tmp_path / f"worker-{number}").glob("app-*/*"))
        assert executors, f"worker {number} had nothing to do"


@contextmanager
def worker(folder: Path, number: int, master: str) -> Iterator[None]:
    """A worker with one core, which the master knows."""
    with program(
        folder,
        f"worker-{number}",
        "spark-class",
        f"{DEPLOY}.worker.Worker",
        "--host",
        "127.0.0.1",
        "--webui-port",
        "0",
        "--cores",
        "1",
        "--memory",
        "1g",
        "--work-dir",
        str(folder / f"worker-{number}"),
        master,
    ) as log:
        wait_until(
            lambda: "Successfully registered with master" in log.read_text(),
            f"worker {number}",
            START_SECONDS,
        )
        yield


def wait(address: str, log: Path) -> None:
    """Until somebody listens there."""
    try:
        wait_until(lambda: _is_listening(address), f"somebody at {address}", START_SECONDS)
    except ChildError as error:
        raise ChildError(f"{error}\n{log_tail(log)}") from None


def _is_listening(address: str) -> bool:
    host, port = address.split(":")
    with socket.socket() as attempt:
        return attempt.connect_ex((host, int(port))) == 0
