"""Administration: what an administrator does with a cluster, OneLog's or RocketMQ's.

    async with AsyncAdmin.connect("127.0.0.1:9876") as admin:
        for queue in (await admin.topics.status("orders")).queues: ...

Nothing is connected before the first question; then connections are kept until the end. `Admin`
(see `synchronous`) is the same for threads.
"""

import ssl
from typing import TYPE_CHECKING, Self

from onelog.client.admin.cluster import Clusters
from onelog.client.admin.dead_letters import DeadLetters
from onelog.client.admin.delays import Delays
from onelog.client.admin.groups import Groups
from onelog.client.admin.messages import Messages
from onelog.client.admin.positions import Positions
from onelog.client.admin.topics import Topics
from onelog.client.admin.traces import Traces
from onelog.client.connection.nodes import TIMEOUT_MS, Nodes
from onelog.client.options import client_settings
from onelog.clock import SystemClock

if TYPE_CHECKING:
    from onelog.client.credentials import Credentials


class AsyncAdmin:
    """A client of one or more clusters that share their name servers.

    Its parts are `clusters`, `topics`, `groups`, `positions`, `messages`, `dead_letters`, `traces`
    and `delays`.
    """

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
        nameserver: str = "",
        *,
        timeout_ms: int = TIMEOUT_MS,
        tls: bool | ssl.SSLContext | None = None,
        credentials: "Credentials | None" = None,
    ) -> "AsyncAdmin":
        """A client of these name servers, `host:port` between semicolons.

        Without any, those of ONELOG_NAMESERVER or NAMESRV_ADDR in the environment, else
        127.0.0.1:9876. `tls=True` encrypts, but takes any certificate; a context verifies as it
        says. With `credentials` all requests are signed.
        """
        settings = client_settings({"nameserver": nameserver, "tls": tls or False})
        sign = None if credentials is None else credentials.sign
        return AsyncAdmin(
            Nodes(settings.nameservers, timeout_ms=timeout_ms, tls=settings.tls, sign=sign)
        )

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *raised: object) -> None:
        await self.close()

    async def close(self) -> None:
        """Close all connections."""
        await self.nodes.close()
