"""The HTTP port. What serves it is imported in a worker thread when the first client comes."""

from collections.abc import Callable
from typing import TYPE_CHECKING

from onelog.config_sources import Loaded
from onelog.gateways import GatewayContext
from onelog.gateways.http.session import HttpSession
from onelog.net.connection import Connection

if TYPE_CHECKING:
    from onelog.gateways.http.serving import Serving


class HttpGateway:
    """Its port, and what its sessions share once there is one."""

    def __init__(self, context: GatewayContext) -> None:
        self.context = context
        self._serving: Serving | None = None
        self._waiting: list[HttpSession] = []
        self._is_closed = False

    async def listen(self) -> None:
        """Open its port."""
        await self.context.listen(self.context.loaded.config.http.port, self._session)

    def _session(self, connection: Connection) -> HttpSession:
        session = HttpSession(connection)
        if self._serving is not None:
            session.start(self._serving.protocol)
        else:
            self._waiting.append(session)
            if len(self._waiting) == 1:
                self._load()
        return session

    def _load(self) -> None:
        """Import what serves, which takes a few tenths of a second, beside everything else."""
        made: list[Callable[[], Serving]] = []

        def work() -> None:
            from onelog.gateways.http.serving import prepare

            made.append(prepare(self.context))

        def then() -> None:
            waiting, self._waiting = self._waiting, []
            if made and not self._is_closed:
                self._serving = made[0]()
            for session in waiting:
                if self._serving is not None:
                    session.start(self._serving.protocol)
                else:
                    session.connection.abort()

        self.context.offload(work, then)

    def refresh(self, loaded: Loaded) -> None:
        """Settings are looked up where they are needed."""

    async def close(self) -> None:
        """Let requests that are being answered end, and cut long ones."""
        self._is_closed = True
        if self._serving is not None:
            await self._serving.close()
