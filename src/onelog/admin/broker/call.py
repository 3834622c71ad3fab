"""Somebody asks a broker for an operation, over HTTP or as `onelog` does."""

import asyncio
from dataclasses import dataclass
from time import perf_counter

from onelog.core.access import Action, Kind, Principal
from onelog.core.broker import Broker
from onelog.gateways import GatewayContext


@dataclass(frozen=True, slots=True)
class Call:
    """Who asks, from where, and what they ask."""

    context: GatewayContext
    principal: Principal
    may_change: bool
    """Whether they may change anything at all."""
    origin: tuple[str, int]
    traced: dict[str, str]
    """The properties of a trace that the request belongs to: a message that it sends has them."""

    @property
    def broker(self) -> Broker:
        return self.context.broker

    def check(self, action: Action, name: str, kind: Kind = "broker") -> None:
        """`NotPermittedError` if they may not; for what no verb of the core looks after."""
        self.broker.users.check(self.principal, action, (kind, name))

    @property
    def knows_names(self) -> bool:
        """Whether they may know of everything that the broker has."""
        access = self.broker.users
        return access.is_open or access.may(self.principal, "describe", ("broker", "names"))


class Pace:
    """Lets others go on every now and then, in work that looks at very many things."""

    def __init__(self, seconds: float = 0.004) -> None:
        self._seconds = seconds
        self._began = perf_counter()

    async def give(self) -> None:
        """To be called often: it costs little when it is not time."""
        if perf_counter() - self._began > self._seconds:
            await asyncio.sleep(0)
            self._began = perf_counter()
