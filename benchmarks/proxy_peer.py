"""The real RocketMQ 5.5.0 with its gRPC proxy: a name server, and proxy and broker in one JVM.

That is the proxy's local mode, in which a gRPC request reaches the broker by a call instead of
over one more connection; clients of the remoting protocol use the same broker at its own port.

Invariant: everything it writes is below the folder that it was given, and it listens where it was
told, also for the remoting protocol that the proxy serves besides gRPC.
"""

import json
import socket
from functools import cache
from pathlib import Path

from tests.e2e.java_clients import PEER_VERSION, jvm
from tests.e2e.java_toolchain import build
from tests.e2e.processes import free_ports, spawn, wait_until
from tests.e2e.rocketmq_peer import PEER_BROKER_HEAP, RocketmqPeer

BROKER = "broker.BrokerStartup"
START_TIMEOUT_S = 60


@cache
def proxy_classpath() -> str:
    """The class path of proxy and broker."""
    return build("proxy", PEER_VERSION, "", Path()).classpath


class ProxyPeer(RocketmqPeer):
    """The real RocketMQ, whose broker is one with a proxy that answers at `endpoints`."""

    def __init__(self, folder: Path) -> None:
        super().__init__(folder, heap=PEER_BROKER_HEAP)
        self._remoting_port, self._grpc_port = free_ports()
        self.endpoints = f"127.0.0.1:{self._grpc_port}"

    def _spawn(self, main: str, config: Path, options: tuple[str, ...]) -> None:
        if main != BROKER:
            super()._spawn(main, config, options)
            return
        settings = self.folder / "rmq-proxy.json"
        settings.write_text(
            json.dumps(
                {
                    "rocketMQClusterName": self.cluster,
                    "namesrvAddr": self.nameservers,
                    "localServeAddr": "127.0.0.1",
                    "grpcServerPort": self._grpc_port,
                    "remotingListenPort": self._remoting_port,
                }
            )
        )
        command = jvm(
            self.folder,
            proxy_classpath(),
            "org.apache.rocketmq.proxy.ProxyStartup",
            *("-pm", "local", "-bc", str(config), "-pc", str(settings)),
            options=options,
        )
        self._children[main] = spawn(command, self._log(main))

    def wait_until_ready(self, timeout_s: float = START_TIMEOUT_S) -> None:
        """Return when the name server knows the broker and the proxy listens."""
        super().wait_until_ready(timeout_s)
        wait_until(self._is_listening, "the proxy", timeout_s)

    def _is_listening(self) -> bool:
        with socket.socket() as attempt:
            return attempt.connect_ex(("127.0.0.1", self._grpc_port)) == 0
