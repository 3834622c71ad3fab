"""Being found: brokers can only ask a client that has shown itself to them.

A producer shows itself to the brokers that it sends to. That is not enough for one that any broker
may have to find: to be asked about another member's transaction, or to be handed a reply, which
comes through a broker of the replier's choice. Such a client is present at all masters.

Invariant: once `ensure` returned, and as often as `refresh` is called, there was an attempt to
connect to every master that the name servers know; those that cannot be reached keep nobody else
from being reached.
"""

import asyncio
import logging

from onelog.client.admin.cluster import Clusters
from onelog.client.connection.address import Address
from onelog.client.connection.nodes import Nodes, at_once
from onelog.errors import OnelogError

log = logging.getLogger(__name__)


class Presence:
    """The masters that a client is known to, whatever it sends to."""

    def __init__(self, nodes: Nodes) -> None:
        self.masters: tuple[Address, ...] = ()
        """To whom heartbeats go besides."""
        self._nodes = nodes
        self._clusters = Clusters(nodes)
        self._wanted = False
        self._first: asyncio.Task[None] | None = None

    async def ensure(self) -> None:
        """Be present from now on; returns when everybody was tried once."""
        self._wanted = True
        if self._first is None or (self._first.done() and not self.masters):
            self._first = asyncio.ensure_future(self.refresh())
        # One caller that gives up must not keep the others from being found.
        await asyncio.shield(self._first)

    async def refresh(self) -> None:
        """Find new masters, and connect to those that we lost; nothing unless it is wanted."""
        if not self._wanted:
            return
        try:
            brokers = await self._clusters.brokers()
        except OnelogError as error:
            log.info("the masters stay those that were known: %s", error)
        else:
            self.masters = tuple(each.master for each in brokers if each.master is not None)
        await at_once(self._connect, self.masters)

    async def close(self) -> None:
        """Stop trying."""
        if self._first is not None:
            self._first.cancel()
            await asyncio.gather(self._first, return_exceptions=True)

    async def _connect(self, address: Address) -> None:
        try:
            await self._nodes.peer(address)  # The heartbeat is the first request on it.
        except OnelogError as error:
            log.info("not present at a broker: %s", error)
