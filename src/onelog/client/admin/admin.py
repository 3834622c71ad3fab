"""Administration: what an administrator does with a cluster, OneLog's or RocketMQ's.

    async with AsyncAdmin.connect("127.0.0.1:9876") as admin:
        for queue in (await admin.topics.status("orders")).queues: ...

    with Admin.connect("127.0.0.1:9876") as admin:
        for queue in admin.topics.status("orders").queues: ...

Nothing is connected before the first question; then connections are kept until the end. `Admin` is
for threads: each of its parts has the methods of the asyncio part of the same name.
"""

import ssl
from collections.abc import Coroutine
from typing import TYPE_CHECKING, Any, Self, TypeVar

from onelog.client.admin.cluster import Clusters, Operations, SyncClusters, SyncOperations
from onelog.client.admin.dead_letters import DeadLetters, SyncDeadLetters
from onelog.client.admin.delays import Delays, SyncDelays
from onelog.client.admin.groups import Groups, Positions, SyncGroups, SyncPositions
from onelog.client.admin.messages import Messages, SyncMessages
from onelog.client.admin.topics import Bindings, SyncBindings, SyncTopics, Topics
from onelog.client.admin.traces import SyncTraces, Traces
from onelog.client.admin.users import SyncUsers, Users
from onelog.client.connection.nodes import TIMEOUT_MS, Nodes
from onelog.client.options import client_settings
from onelog.client.synchronous import SyncClient
from onelog.clock import SystemClock

if TYPE_CHECKING:
    from onelog.client.credentials import Credentials

T = TypeVar("T")


class AsyncAdmin:
    """A client of one or more clusters that share their name servers.

    Its parts are `clusters`, `bindings`, `topics`, `groups`, `positions`, `messages`,
    `dead_letters`, `traces`, `delays`, `users` and `operations`.
    """

    def __init__(self, nodes: Nodes) -> None:
        self.nodes = nodes
        self.clusters = Clusters(nodes)
        self.bindings = Bindings(nodes, self.clusters)
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
        self.users = Users(nodes, self.clusters)
        self.operations = Operations(nodes, self.clusters)

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


class Admin(SyncClient[AsyncAdmin]):
    """An administrator for threads; `AsyncAdmin` is the same for an event loop.

    The methods of its parts take and return what those of `AsyncAdmin` do, and need no `await`.
    """

    def __init__(self, core: AsyncAdmin) -> None:
        super().__init__(core, "the administrator")
        self.clusters = SyncClusters(core.clusters, self)
        self.bindings = SyncBindings(core.bindings, self)
        self.topics = SyncTopics(core.topics, self)
        self.groups = SyncGroups(core.groups, self)
        self.positions = SyncPositions(core.positions, self)
        self.messages = SyncMessages(core.messages, self)
        self.dead_letters = SyncDeadLetters(core.dead_letters, self)
        self.traces = SyncTraces(core.traces, self)
        self.delays = SyncDelays(core.delays, self)
        self.users = SyncUsers(core.users, self)
        self.operations = SyncOperations(core.operations, self)

    @staticmethod
    def connect(
        nameserver: str = "",
        *,
        timeout_ms: int = TIMEOUT_MS,
        tls: bool | ssl.SSLContext | None = None,
        credentials: "Credentials | None" = None,
    ) -> "Admin":
        """A client of these name servers: see `AsyncAdmin.connect`."""
        core = AsyncAdmin.connect(
            nameserver, timeout_ms=timeout_ms, tls=tls, credentials=credentials
        )
        return Admin(core)

    def _begin(self) -> None:
        """Nothing is connected before the first question."""

    def _run(self, work: Coroutine[Any, Any, T]) -> T:
        if self._background is None and not self._is_closed:
            self.start()
        return super()._run(work)
