"""OneLog as a process for RabbitMQ's clients, on a port that it keeps when it is killed."""

import os
import signal
import socket
from collections.abc import Mapping
from pathlib import Path

from onelog.config import Value
from tests.e2e.onelog_kafka import OnelogKafka


class OnelogAmqp(OnelogKafka):
    """`onelog broker` with AMQP's port beside Kafka's."""

    def __init__(self, folder: Path, settings: Mapping[str, Value] | None = None) -> None:
        super().__init__(folder, settings)
        self.port = self._kafka_port + 1
        self.url = f"amqp://guest:guest@127.0.0.1:{self.port}/"
        self._settings["amqp.port"] = self.port

    def _is_listening(self) -> bool:
        with socket.socket() as attempt:
            is_open = attempt.connect_ex(("127.0.0.1", self.port)) == 0
        return super()._is_listening() and is_open

    def kill(self, how: signal.Signals = signal.SIGKILL) -> None:
        """End it without a word, or stop it in its tracks (SIGSTOP, SIGCONT)."""
        if how == signal.SIGKILL:
            super().kill()
        else:
            os.kill(self._child.pid, how)
