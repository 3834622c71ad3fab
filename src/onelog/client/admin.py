"""What an administrator does with a cluster, OneLog's or RocketMQ's, over the network.

    async with Admin.connect("127.0.0.1:9876") as admin:
        for queue in (await admin.topics.status("orders")).queues: ...

Nothing is connected before the first question; then connections are kept until the end.
"""

import ssl
from types import TracebackType
from typing import Self

from onelog.client.address import parse_addresses
from onelog.client.cluster import Clusters
from onelog.client.dead_letters import DeadLetters
from onelog.client.delays import Delays
from onelog.client.groups import Groups
from onelog.client.messages import Messages
from onelog.client.nodes import TIMEOUT_MS, Nodes
from onelog.client.positions import Positions
from onelog.client.topics import Topics
from onelog.client.traces import Traces
from onelog.clock import SystemClock


class Admin:
    """A client of one or more clusters that share their name servers. Its parts are public."""

    def __init__(self, nodes: Nodes) -> None:
        self.nodes = nodes
        self.clusters = Clusters(nodes)
        self.topics = Topics(nodes, self.clusters)
        self.groups = Groups(nodes, self.clusters, self.topics)
        self.positions = Positions(nodes, self.topics, self.groups)
        self.messages = Messages(nodes, self.clusters, self.topics, self.positions)
        self.dead_letters = DeadLetters(
            nodes, self.topics, self.groups, self.positions, self.messages
        )
        self.traces = Traces(self.topics, self.messages)
        self.delays = Delays(
            nodes, self.clusters, self.topics, self.positions, self.messages, SystemClock()
        )

    @staticmethod
    def connect(
        nameservers: str, *, timeout_ms: int = TIMEOUT_MS, tls: ssl.SSLContext | None = None
    ) -> "Admin":
        """A client of these name servers, `host:port` between semicolons."""
        return Admin(Nodes(parse_addresses(nameservers), timeout_ms=timeout_ms, tls=tls))

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        await self.close()

    async def close(self) -> None:
        """Close all connections."""
        await self.nodes.close()
