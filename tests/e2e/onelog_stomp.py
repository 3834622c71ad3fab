"""OneLog and ActiveMQ as processes for STOMP's clients."""

import os
import shutil
import socket
import subprocess
from collections.abc import Mapping
from pathlib import Path
from types import TracebackType
from typing import Self

from onelog.config import Value
from tests.e2e.onelog_kafka import OnelogKafka
from tests.e2e.onelog_mqtt import NO_PORTS
from tests.e2e.processes import spawn, stop, wait_until
from tests.ports import free_port

JARS = "ACTIVEMQ_JARS"
"""Names the folder with ActiveMQ's jars, if that is not where Debian has them."""

_SETTINGS = """\
<beans xmlns="http://www.springframework.org/schema/beans"
 xmlns:xsi="http://www.w3.org/2001/XMLSchema-instance"
 xsi:schemaLocation="http://www.springframework.org/schema/beans
 http://www.springframework.org/schema/beans/spring-beans.xsd
 http://activemq.apache.org/schema/core
 http://activemq.apache.org/schema/core/activemq-core.xsd">
 <broker xmlns="http://activemq.apache.org/schema/core" brokerName="localhost"
  dataDirectory="{folder}/data" schedulerSupport="true" useJmx="false">
  <persistenceAdapter>
   <kahaDB directory="{folder}/data/kahadb" enableJournalDiskSyncs="{syncs}"/>
  </persistenceAdapter>
  <transportConnectors>
   <transportConnector name="stomp" uri="stomp://127.0.0.1:{port}"/>
  </transportConnectors>
 </broker>
</beans>
"""


class OnelogStomp(OnelogKafka):
    """`onelog broker` with a port of STOMP."""

    def __init__(self, folder: Path, settings: Mapping[str, Value] | None = None) -> None:
        super().__init__(folder, settings)
        self.port = self._kafka_port
        self._settings |= {**NO_PORTS, "stomp.port": self.port}


class ActiveMq:
    """Debian's ActiveMQ; with `syncs`, as it is by default, each message is on disk when told."""

    name = "activemq"

    def __init__(self, folder: Path, *, syncs: bool = True) -> None:
        self.port = free_port()
        self._folder = folder
        self._syncs = syncs

    @staticmethod
    def jars() -> Path | None:
        """Where they are, if it is installed."""
        folder = Path(os.environ.get(JARS, "/usr/share/java"))
        is_here = shutil.which("java") and (folder / "activemq-broker.jar").exists()
        return folder if is_here else None

    def __enter__(self) -> Self:
        conf = self._folder / "conf"
        conf.mkdir(parents=True, exist_ok=True)
        syncs = "true" if self._syncs else "false"
        (conf / "activemq.xml").write_text(
            _SETTINGS.format(folder=self._folder, port=self.port, syncs=syncs)
        )
        home = [f"-Dactivemq.{name}={self._folder}" for name in ("home", "base")]
        command = ["java", "-Xmx512m", *home, "-cp", f"{self.jars()}/*"]
        command += ["org.apache.activemq.console.command.ShellCommand", "start"]
        command += [f"xbean:file:{conf}/activemq.xml"]
        self._child: subprocess.Popen[bytes] = spawn(command, self._folder / "activemq.log")
        wait_until(self._is_listening, "ActiveMQ", 60)
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
