"""The real RocketMQ 5.5.0 from Maven: a name server and a broker, each a JVM, on loopback ports.

It is what OneLog is compared with, so it runs with its own defaults, save for a smaller heap, the
loopback address, SQL filters switched on, and a folder of the test instead of the user's home.
"""

import shutil
import signal
import subprocess
from collections.abc import Mapping
from pathlib import Path
from types import TracebackType
from typing import Self

from tests.e2e.java_clients import jvm, peer_classpath
from tests.e2e.processes import ChildError, free_ports, log_tail, spawn, stop, wait_until
from tests.e2e.remoting_probe import has_route

NAMESERVER_HEAP = ("-Xms64m", "-Xmx512m")
SMALL_BROKER_HEAP = ("-Xms512m", "-Xmx1g", "-XX:MaxDirectMemorySize=1g")
PEER_BROKER_HEAP = ("-Xms4g", "-Xmx4g", "-XX:+UseG1GC", "-XX:MaxDirectMemorySize=4g")
# The broker unmaps files through a class that newer JDKs keep to themselves.
_EXPORTS = ("--add-exports=java.base/jdk.internal.ref=ALL-UNNAMED",)


class RocketmqPeer:
    """A name server and a broker; `nameservers` makes the broker register elsewhere instead."""

    name = "rocketmq"
    cluster = "DefaultCluster"
    broker_name = "broker-a"

    def __init__(
        self,
        folder: Path,
        *,
        heap: tuple[str, ...] = SMALL_BROKER_HEAP,
        sync_flush: bool = False,
        nameservers: str | None = None,
        delay_levels: str | None = None,
        broker_id: int = 0,
        settings: Mapping[str, object] | None = None,
    ) -> None:
        """With a `broker_id` above 0 it is a slave of the broker with the same name."""
        self.folder = folder
        self._broker_id = broker_id
        self._settings = settings or {}
        self._heap = heap
        self._sync_flush = sync_flush
        self._nameserver_port, self._broker_port = free_ports()
        self._delay_levels = delay_levels
        self._own_nameserver = nameservers is None
        self.nameservers = nameservers or f"127.0.0.1:{self._nameserver_port}"
        self.broker_address = f"127.0.0.1:{self._broker_port}"
        self._children: dict[str, subprocess.Popen[bytes]] = {}

    def start(self) -> None:
        """Start both, and return when a client could work with them."""
        if self._own_nameserver:
            self.start_nameserver()
        self.launch()
        self.wait_until_ready()

    def start_nameserver(self) -> None:
        """Start the name server only."""
        config = self._write("namesrv.conf", {"listenPort": self._nameserver_port})
        self._spawn("namesrv.NamesrvStartup", config, NAMESERVER_HEAP)

    def launch(self) -> None:
        """Start the broker only; it is not ready yet when this returns."""
        store = self.folder / "store"
        settings: dict[str, object] = {
            "brokerClusterName": self.cluster,
            "brokerName": self.broker_name,
            "brokerId": self._broker_id,
            "brokerRole": "SLAVE" if self._broker_id else "ASYNC_MASTER",
            "haListenPort": self._broker_port + 1,
            "slaveReadEnable": "true",
            "namesrvAddr": self.nameservers,
            "brokerIP1": "127.0.0.1",
            "brokerIP2": "127.0.0.1",
            "listenPort": self._broker_port,
            "storePathRootDir": store,
            "storePathCommitLog": store / "commitlog",
            "autoCreateTopicEnable": "true",
            "flushDiskType": "SYNC_FLUSH" if self._sync_flush else "ASYNC_FLUSH",
            "enablePropertyFilter": "true",
        }
        if self._delay_levels is not None:
            settings["messageDelayLevel"] = self._delay_levels
        config = self._write("broker.conf", settings | dict(self._settings))
        self._spawn("broker.BrokerStartup", config, (*self._heap, *_EXPORTS))

    def _write(self, name: str, settings: dict[str, object]) -> Path:
        self.folder.mkdir(parents=True, exist_ok=True)
        path = self.folder / name
        path.write_text("".join(f"{key}={value}\n" for key, value in settings.items()))
        return path

    def _spawn(self, main: str, config: Path, options: tuple[str, ...]) -> None:
        command = jvm(
            self.folder,
            peer_classpath(),
            f"org.apache.rocketmq.{main}",
            "-c",
            str(config),
            options=options,
        )
        self._children[main] = spawn(command, self._log(main))

    def _log(self, main: str) -> Path:
        return self.folder / f"{main.split('.')[0]}.log"

    def wait_until_ready(self, timeout_s: float = 180) -> None:
        """Return when the name server knows the broker."""
        try:
            wait_until(lambda: has_route(self.nameservers), "a route to the real broker", timeout_s)
        except ChildError as error:
            logs = [log_tail(self._log(main)) for main in self._children]
            raise ChildError("\n".join([str(error), *logs])) from None

    @property
    def broker_pids(self) -> list[int]:
        """The processes that do the broker's work."""
        return [self._children["broker.BrokerStartup"].pid]

    def restart(self, how: signal.Signals = signal.SIGTERM) -> None:
        """End the broker with a signal and start it again on the same store and port."""
        self.stop_broker(how)
        self.launch()

    def stop_broker(self, how: signal.Signals = signal.SIGTERM) -> None:
        """End the broker with a signal; its store stays."""
        stop(self._children.pop("broker.BrokerStartup"), how)

    def close(self) -> None:
        """Stop everything and remove the store, which is why nothing has to end well."""
        for main in reversed(list(self._children)):
            stop(self._children.pop(main), signal.SIGKILL)
        shutil.rmtree(self.folder / "store", ignore_errors=True)

    def __enter__(self) -> Self:
        try:
            self.start()
        except BaseException:
            self.close()
            raise
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()
