"""The cluster under test: three brokers that are one replica set, three name servers, and etcd.

Each is a process on a machine of its own (`network`), started as people start it. A broker has its
own disk and clock. Who is master is asked of etcd, and only to choose whom a fault shall hit: what
came of it is for the checker to say.
"""

import base64
import http.client
import json
import shutil
import signal
import subprocess
from collections.abc import Callable, Mapping
from functools import cache, partial
from pathlib import Path
from types import TracebackType
from typing import Self

from tests.e2e.faults import machine, network
from tests.e2e.faults.machine import Clock, Disk
from tests.e2e.faults.network import Network
from tests.e2e.onelog_peer import COMMAND
from tests.e2e.processes import ChildError, log_tail, spawn, stop, wait_until
from tests.e2e.remoting_probe import create_topic, has_route

BROKERS = ("broker0", "broker1", "broker2")
NAMESERVERS = ("names0", "names1", "names2")
ETCD, CLIENTS = "etcd", "clients"
BROKER_NAME = "broker-a"
CLUSTER = "DefaultCluster"
BROKER_PORT, NAMESERVER_PORT, KAFKA_PORT, ETCD_PORT = 10911, 9876, 9092, 2379
SETTINGS = {
    # Small files, so that there are many of them on a small disk.
    "store.segment_bytes": 4 << 20,
    "store.queue_file_entries": 5_000,
    "store.index_slots": 10_000,
    "store.index_entries": 40_000,
    # What retention deletes on a disk that is nearly full would look like a loss.
    "store.disk_clean_percent": 100,
    "store.disk_force_percent": 100,
    "store.disk_refuse_percent": 100,
    "broker.register_timeout_ms": 1_000,
    "kafka.session_min_ms": 1_000,
    "kafka.initial_rebalance_delay_ms": 0,
}


ONE_FILE = {"store.segment_bytes": 512 << 20}
"""With a full disk, too, retention deletes nothing of a log that is one file."""


@cache
def why_not() -> str:
    """Why there can be no such cluster here; empty if there can."""
    if shutil.which("etcd") is None:
        return "there is no etcd here (Debian: etcd-server)"
    return network.why_not() or machine.why_no_disk()


class Server:
    """A process that can be killed, stopped and started again."""

    def __init__(self, net: Network, where: str, argv: list[str], log: Path) -> None:
        self.where = where
        self.argv = argv
        self.log = log
        self.environment: Mapping[str, str] = {}
        self._net = net
        self._child: subprocess.Popen[bytes] | None = None

    def start(self) -> None:
        """Start it; it is not ready yet when this returns."""
        assert self._child is None, f"{self.where} runs already"
        self._child = spawn(self._net.command(self.where, self.argv), self.log, self.environment)

    def kill(self, how: signal.Signals = signal.SIGKILL) -> None:
        """End it, if it runs."""
        if self._child is not None:
            stop(self._child, how)
            self._child = None

    def send_signal(self, what: signal.Signals) -> None:
        """SIGSTOP and SIGCONT."""
        if self._child is not None:
            self._child.send_signal(what)

    @property
    def is_running(self) -> bool:
        """Whether it has been started and has not ended by itself."""
        return self._child is not None and self._child.poll() is None


class Broker(Server):
    """One replica, with its disk and its clock."""

    def __init__(
        self, net: Network, folder: Path, number: int, settings: Mapping[str, object]
    ) -> None:
        where = BROKERS[number]
        self.address = f"{net.address(where)}:{BROKER_PORT}"
        self.disk = Disk(folder / where)
        self.clock = Clock(folder / f"{where}.clock")
        self.data = self.disk.folder / "data"
        argv = [
            str(COMMAND),
            "broker",
            "--name",
            BROKER_NAME,
            "--cluster",
            CLUSTER,
            "--host",
            net.address(where),
            "--port",
            str(BROKER_PORT),
            "--data",
            str(self.data),
            "--nameservers",
            addresses(net),
        ]
        own = {
            "broker.broker_id": number,
            "kafka.port": KAFKA_PORT,
            "replication.etcd": f"{net.address(ETCD)}:{ETCD_PORT}",
            "replication.replicas": len(BROKERS),
            "replication.ack": "majority",
            "security.anonymous": "true",
            **SETTINGS,
            **settings,
        }
        for key, value in own.items():
            argv += ["--set", f"{key}={value}"]
        super().__init__(net, where, argv, folder / f"{where}.log")
        self.environment = self.clock.environment()


def addresses(net: Network) -> str:
    """The name servers, as clients and brokers want to be told."""
    return ";".join(f"{net.address(where)}:{NAMESERVER_PORT}" for where in NAMESERVERS)


class Cluster:
    """Everything, on a network of its own."""

    def __init__(self, folder: Path, settings: Mapping[str, object] | None = None) -> None:
        self.folder = folder
        self.net = Network((*BROKERS, *NAMESERVERS, ETCD, CLIENTS))
        self.nameservers = addresses(self.net)
        self.bootstrap = ",".join(f"{self.net.address(name)}:{KAFKA_PORT}" for name in BROKERS)
        folder.mkdir(parents=True, exist_ok=True)
        self.brokers = {
            name: Broker(self.net, folder, number, settings or {})
            for number, name in enumerate(BROKERS)
        }
        self.names = {
            name: Server(self.net, name, self._nameserver(name), folder / f"{name}.log")
            for name in NAMESERVERS
        }
        self.etcd = Server(self.net, ETCD, self._etcd(), folder / "etcd.log")

    def _nameserver(self, where: str) -> list[str]:
        host = self.net.address(where)
        data = ["--data", str(self.folder / where)]
        return [str(COMMAND), "nameserver", "--host", host, "--port", str(NAMESERVER_PORT), *data]

    def _etcd(self) -> list[str]:
        at = f"http://{self.net.address(ETCD)}"
        here, peers = f"{at}:{ETCD_PORT}", f"{at}:{ETCD_PORT + 1}"
        return [
            "etcd",
            "--name",
            "one",
            "--data-dir",
            str(self.folder / "etcd"),
            "--listen-client-urls",
            here,
            "--advertise-client-urls",
            here,
            "--listen-peer-urls",
            peers,
            "--initial-advertise-peer-urls",
            peers,
            "--initial-cluster",
            f"one={peers}",
            "--logger",
            "zap",
            "--log-level",
            "warn",
        ]

    @property
    def servers(self) -> list[Server]:
        """All processes, in the order in which they are started."""
        return [self.etcd, *self.names.values(), *self.brokers.values()]

    def start(self) -> None:
        """Start everything, and return when a client could work with it."""
        for server in self.servers:
            if isinstance(server, Broker):
                server.disk.mount()
            server.start()
        self.wait_for("a master with a route", self._is_ready)

    def wait_for(self, what: str, condition: Callable[[], bool], timeout_s: float = 60) -> None:
        """Poll; if it does not come true, tell what the servers said last."""

        def check() -> bool:
            for server in self.servers:
                if not server.is_running:
                    raise ChildError(f"{server.where} ended by itself, on the way to {what}")
            return condition()

        try:
            wait_until(check, what, timeout_s)
        except ChildError as error:
            logs = [f"-- {each.where}\n{log_tail(each.log, 12)}" for each in self.servers]
            raise ChildError("\n".join([str(error), *logs])) from None

    def _is_ready(self) -> bool:
        return self.master() is not None and all(
            self.net.inside(CLIENTS, partial(has_route, address))
            for address in self.nameservers.split(";")
        )

    def create_topic(self, topic: str, queues: int) -> None:
        """Create a topic at whoever is master, as soon as there is one."""

        def create() -> bool:
            master = self.master()
            if master is None:
                return False
            address = self.brokers[master].address
            try:
                # From there: it takes such orders from its own machine only.
                self.net.inside(master, partial(create_topic, address, topic, queues))
            except OSError:
                return False
            return True

        self.wait_for(f"the topic {topic}", create)

    def ask_etcd(self, key: str) -> dict[str, object] | None:
        """The value of a key of the replica set, if it has one and etcd answers."""
        full = f"/onelog/{CLUSTER}/{BROKER_NAME}/{key}".encode()
        body = json.dumps({"key": base64.b64encode(full).decode()})

        def ask() -> dict[str, object] | None:
            etcd = http.client.HTTPConnection(self.net.address(ETCD), ETCD_PORT, timeout=2)
            try:
                etcd.request("POST", "/v3/kv/range", body)
                found = json.loads(etcd.getresponse().read()).get("kvs")
            except OSError:
                return None
            finally:
                etcd.close()
            return dict(json.loads(base64.b64decode(found[0]["value"]))) if found else None

        return self.net.inside(CLIENTS, ask)

    def master(self) -> str | None:
        """The machine of the master, as etcd has it."""
        found = self.ask_etcd("master")
        return BROKERS[int(str(found["id"]))] if found else None

    def in_sync(self) -> set[str]:
        """The machines whose logs have everything, as etcd has it."""
        found = self.ask_etcd("state")
        members = found.get("in_sync") if found else None
        return {BROKERS[int(number)] for number in members} if isinstance(members, list) else set()

    def is_whole(self) -> bool:
        """Whether there is a master and all replicas are in sync, as etcd has it."""
        return self.master() is not None and self.in_sync() == set(BROKERS)

    def wait_until_whole(self, timeout_s: float = 60) -> None:
        """Return when it is."""
        self.wait_for("three replicas in sync", self.is_whole, timeout_s)

    def __enter__(self) -> Self:
        self.net.__enter__()
        try:
            self.start()
        except BaseException:
            self.close()
            raise
        return self

    def close(self) -> None:
        """End everything; logs and histories stay, data goes."""
        for server in reversed(self.servers):
            server.send_signal(signal.SIGCONT)
            server.kill()
        for broker in self.brokers.values():
            broker.disk.unmount()
        self.net.__exit__(None, None, None)

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()
