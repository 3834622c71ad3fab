"""Administration from threads.

    with Admin.connect("127.0.0.1:9876") as admin:
        for queue in admin.topics.status("orders").queues: ...

Each part has the methods of the asyncio part of the same name, with the same arguments and results.
"""

import ssl
from collections.abc import Coroutine
from typing import TYPE_CHECKING, Any, TypeVar

from onelog.client.admin.asynchronous import AsyncAdmin
from onelog.client.admin.cluster import SyncClusters
from onelog.client.admin.dead_letters import SyncDeadLetters
from onelog.client.admin.delays import SyncDelays
from onelog.client.admin.groups import SyncGroups
from onelog.client.admin.messages import SyncMessages
from onelog.client.admin.positions import SyncPositions
from onelog.client.admin.topics import SyncTopics
from onelog.client.admin.traces import SyncTraces
from onelog.client.connection.nodes import TIMEOUT_MS
from onelog.client.synchronous import SyncClient

if TYPE_CHECKING:
    from onelog.client.credentials import Credentials

T = TypeVar("T")


class Admin(SyncClient[AsyncAdmin]):
    """An administrator for threads; `AsyncAdmin` is the same for an event loop.

    The methods of its parts take and return what those of `AsyncAdmin` do, and need no `await`.
    """

    def __init__(self, core: AsyncAdmin) -> None:
        super().__init__(core, "the administrator")
        self.clusters = SyncClusters(core.clusters, self)
        self.topics = SyncTopics(core.topics, self)
        self.groups = SyncGroups(core.groups, self)
        self.positions = SyncPositions(core.positions, self)
        self.messages = SyncMessages(core.messages, self)
        self.dead_letters = SyncDeadLetters(core.dead_letters, self)
        self.traces = SyncTraces(core.traces, self)
        self.delays = SyncDelays(core.delays, self)

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
        if self._home is None and not self._is_closed:
            self.start()
        return super()._run(work)
