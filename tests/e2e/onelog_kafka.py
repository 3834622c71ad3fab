"""OneLog as a process for Kafka's clients, on a port that it keeps when it is killed."""

import shutil
import signal
import socket
import sys
from collections.abc import Mapping
from pathlib import Path
from types import TracebackType
from typing import Self

from onelog.config import Value
from tests.e2e.processes import ChildError, log_tail, spawn, stop, wait_until
from tests.ports import free_port


class OnelogKafka:
    """`onelog broker` without a name server. Its topics have four partitions, unless told."""

    name = "onelog"

    def __init__(self, folder: Path, settings: Mapping[str, Value] | None = None) -> None:
        port = free_port()
        self._folder = folder
        self._kafka_port = port + 5
        self.bootstrap = f"127.0.0.1:{self._kafka_port}"
        self._settings: dict[str, Value] = {
            "broker.port": port,
            "broker.nameservers": "",
            "broker.store_path": str(folder / "data"),
            "kafka.port": self._kafka_port,
            "kafka.topic_partitions": 4,
            "kafka.initial_rebalance_delay_ms": 0,
            "store.segment_bytes": 64 << 20,
            "store.queue_file_entries": 20_000,
            **(settings or {}),
        }

    def start(self) -> None:
        """Start it; it is not ready yet when this returns."""
        command = [sys.executable, "-m", "onelog", "broker"]
        for key, value in self._settings.items():
            command += ["--set", f"{key}={value}"]
        self._child = spawn(command, self._folder / "onelog.log")

    def kill(self) -> None:
        """SIGKILL."""
        stop(self._child, signal.SIGKILL)

    def wait_until_ready(self) -> None:
        """Return when it listens."""
        try:
            wait_until(self._is_listening, "OneLog", 60)
        except ChildError as error:
            raise ChildError(f"{error}\n{log_tail(self._folder / 'onelog.log')}") from None

    def _is_listening(self) -> bool:
        if self._child.poll() is not None:
            raise ChildError("OneLog ended by itself")
        with socket.socket() as attempt:
            return attempt.connect_ex(("127.0.0.1", self._kafka_port)) == 0

    def __enter__(self) -> Self:
        self.start()
        self.wait_until_ready()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        stop(self._child)
        shutil.rmtree(self._folder / "data", ignore_errors=True)
