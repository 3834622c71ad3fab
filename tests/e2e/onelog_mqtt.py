"""OneLog and Mosquitto as processes for MQTT's clients."""

import shutil
import socket
import subprocess
from collections.abc import Mapping
from pathlib import Path
from types import TracebackType
from typing import Self

from onelog.config import Value
from tests.e2e.onelog_kafka import OnelogKafka
from tests.e2e.processes import spawn, stop, wait_until
from tests.ports import free_port

NO_PORTS: dict[str, Value] = dict.fromkeys(
    ("kafka.port", "http.port", "amqp.port", "stomp.port", "mqtt.port", "grpc.port"), 0
)
"""Of protocols that a test does not need."""


class OnelogMqtt(OnelogKafka):
    """`onelog broker` on a port of MQTT that it keeps when it is killed."""

    def __init__(self, folder: Path, settings: Mapping[str, Value] | None = None) -> None:
        super().__init__(folder, settings)
        self.port = self._kafka_port
        self._settings |= {**NO_PORTS, "mqtt.port": self.port}


class Mosquitto:
    """Debian's Mosquitto, with persistence on; `lines` are more of its settings."""

    name = "mosquitto"

    def __init__(self, folder: Path, lines: str = "") -> None:
        self.port = free_port()
        self._folder = folder
        self._lines = lines

    @staticmethod
    def program() -> str | None:
        """Where it is, if it is installed."""
        return shutil.which("mosquitto", path="/usr/sbin:/usr/bin:/usr/local/sbin:/usr/local/bin")

    def __enter__(self) -> Self:
        self._folder.mkdir(parents=True, exist_ok=True)
        settings = self._folder / "mosquitto.conf"
        settings.write_text(
            f"listener {self.port} 127.0.0.1\nallow_anonymous true\npersistence true\n"
            f"persistence_location {self._folder}/\nuser root\nmax_queued_messages 100000\n"
            f"{self._lines}\n"
        )
        program = self.program()
        assert program is not None
        command = [program, "-c", str(settings)]
        self._child: subprocess.Popen[bytes] = spawn(command, self._folder / "mosquitto.log")
        wait_until(self._is_listening, "Mosquitto", 30)
        return self

    def _is_listening(self) -> bool:
        with socket.socket() as attempt:
            return attempt.connect_ex(("127.0.0.1", self.port)) == 0

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        stop(self._child)
