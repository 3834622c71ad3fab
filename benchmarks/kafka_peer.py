"""A real Kafka broker beside OneLog, and the jars of Spark's own connector for it.

Both come through Maven (`tests/e2e/java/kafka`). Where a registry lacks a jar of the connector,
KAFKA_CONNECTOR_JARS names jars to use instead, between colons: say, built from Spark's sources.

Invariant: everything Kafka writes is below the folder that it was given, and it ends with the
`with` block.
"""

import os
import re
import shutil
import socket
import subprocess
from collections.abc import Mapping
from pathlib import Path
from types import TracebackType
from typing import Self

from tests.e2e.java_toolchain import BUILD_TIMEOUT_S, PROJECTS, JavaFailedError, JavaMissingError
from tests.e2e.processes import ChildError, free_ports, log_tail, spawn, stop, wait_until

JARS = "KAFKA_CONNECTOR_JARS"
PARTITIONS = 4
FILL_TIMEOUT_S = 600
_CLASSPATH = "org.apache.maven.plugins:maven-dependency-plugin:3.8.1:build-classpath"
_QUIET = "-Dorg.slf4j.simpleLogger.defaultLogLevel=warn"
_SETTINGS = """\
process.roles=broker,controller
node.id=0
controller.quorum.voters=0@127.0.0.1:{controller}
listeners=PLAINTEXT://127.0.0.1:{broker},CONTROLLER://127.0.0.1:{controller}
advertised.listeners=PLAINTEXT://127.0.0.1:{broker}
controller.listener.names=CONTROLLER
inter.broker.listener.name=PLAINTEXT
listener.security.protocol.map=CONTROLLER:PLAINTEXT,PLAINTEXT:PLAINTEXT
log.dirs={data}
num.partitions={partitions}
offsets.topic.replication.factor=1
offsets.topic.num.partitions=1
transaction.state.log.replication.factor=1
transaction.state.log.min.isr=1
share.coordinator.state.topic.replication.factor=1
share.coordinator.state.topic.min.isr=1
group.initial.rebalance.delay.ms=0
auto.create.topics.enable=true
"""


def connector_jars(spark_version: str) -> list[str]:
    """The jars that Spark's Kafka connector needs besides Spark; `JavaFailedError` without them."""
    given = os.environ.get(JARS)
    if given:
        return given.split(":")
    return _classpath("connector", spark_version).split(":")


def _classpath(profile: str, spark_version: str = "") -> str:
    for tool in ("java", "mvn"):
        if shutil.which(tool) is None:
            raise JavaMissingError(f"{tool} is not installed")
    folder = PROJECTS / "kafka"
    kept = folder / "target" / f"{profile}{spark_version}" / "classpath.txt"
    if kept.exists() and kept.stat().st_mtime >= (folder / "pom.xml").stat().st_mtime:
        return kept.read_text().strip()
    version = [f"-Dspark.version={spark_version}"] if spark_version else []
    command = ["mvn", "--quiet", "--batch-mode", f"-P{profile}", *version, _CLASSPATH]
    ended = subprocess.run(
        [*command, f"-Dmdep.outputFile={kept}"],
        cwd=folder,
        capture_output=True,
        text=True,
        timeout=BUILD_TIMEOUT_S,
        check=False,
    )
    if ended.returncode != 0 or not kept.exists():
        reason = next((line for line in ended.stdout.splitlines() if "ERROR" in line), "")
        raise JavaFailedError(f"mvn found no jars for {profile}: {reason[-300:]}")
    return kept.read_text().strip()


def producer_performance(bootstrap: str, topic: str, count: int, body_bytes: int) -> float:
    """Have kafka-producer-perf-test write so many random messages; how many in a second."""
    said = _run(
        [
            *("java", "-Xmx512m", _QUIET, "-cp", _classpath("broker")),
            "org.apache.kafka.tools.ProducerPerformance",
            *("--topic", topic, "--num-records", str(count), "--record-size", str(body_bytes)),
            *("--throughput", "-1", "--producer-props", f"bootstrap.servers={bootstrap}"),
            *("acks=1", "linger.ms=5", "batch.size=65536"),
        ]
    )
    return float(re.findall(r"([\d.]+) records/sec", said)[-1])


def _run(command: list[str]) -> str:
    ended = subprocess.run(
        command, capture_output=True, text=True, timeout=FILL_TIMEOUT_S, check=False
    )
    if ended.returncode != 0:
        raise JavaFailedError(f"{command} ended with {ended.returncode}: {ended.stderr[-2000:]}")
    return ended.stdout


class KafkaPeer:
    """Kafka in KRaft mode, alone; its topics have four partitions."""

    def __init__(
        self, folder: Path, heap: str = "1g", settings: Mapping[str, str] | None = None
    ) -> None:
        self._folder = folder
        self._settings = settings or {}
        self._controller_port, self._broker_port = free_ports()
        self.bootstrap = f"127.0.0.1:{self._broker_port}"
        self._java = ["java", f"-Xmx{heap}", _QUIET, f"-Duser.home={folder}", "-cp"]
        self._child: subprocess.Popen[bytes] | None = None

    @property
    def pids(self) -> list[int]:
        """The broker's process."""
        return [] if self._child is None else [self._child.pid]

    def prepare(self) -> None:
        """Write the settings, and format the folder."""
        self._java.append(_classpath("broker"))
        self._folder.mkdir(parents=True, exist_ok=True)
        settings = self._folder / "server.properties"
        settings.write_text(
            _SETTINGS.format(
                controller=self._controller_port,
                broker=self._broker_port,
                data=self._folder / "data",
                partitions=PARTITIONS,
            )
            + "".join(f"{name}={value}\n" for name, value in self._settings.items())
        )
        tool = "kafka.tools.StorageTool"
        identity = self._run(tool, "random-uuid").strip()
        self._run(tool, "format", "-t", identity, "-c", str(settings))

    @property
    def _log(self) -> Path:
        return self._folder / "kafka.log"

    def launch(self) -> None:
        """Start it; it is not ready yet when this returns."""
        settings = self._folder / "server.properties"
        self._child = spawn([*self._java, "kafka.Kafka", str(settings)], self._log)

    def __enter__(self) -> Self:
        self.prepare()
        self.launch()
        try:
            wait_until(self._is_listening, "Kafka", 120)
        except ChildError as error:
            self.close()
            raise ChildError(f"{error}\n{log_tail(self._log)}") from None
        return self

    def close(self) -> None:
        """Stop it and remove what it wrote."""
        if self._child is not None:
            stop(self._child)
            self._child = None
        shutil.rmtree(self._folder / "data", ignore_errors=True)

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()

    def fill(self, topic: str, count: int, body_bytes: int) -> None:
        """Have Kafka's own producer write so many random messages."""
        producer_performance(self.bootstrap, topic, count, body_bytes)

    def _run(self, main: str, *arguments: str) -> str:
        return _run([*self._java, main, *arguments])

    def _is_listening(self) -> bool:
        if self._child is not None and self._child.poll() is not None:
            raise ChildError("Kafka ended by itself")
        with socket.socket() as attempt:
            return attempt.connect_ex(("127.0.0.1", self._broker_port)) == 0
