"""Gateways: a protocol each. They translate requests into the broker's verbs, and answers back.

A gateway is a class that takes a `House`, and has `listen`, `refresh` and `close`; `server` lists
them all. Gateways do not import each other: what two of them need is here, or in the core.
"""

from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from random import Random
from typing import Protocol

from onelog.clock import Clock
from onelog.config import Loaded
from onelog.core.broker import Broker
from onelog.errors import ConfigError, OnelogError
from onelog.net.connection import Connection, Session
from onelog.net.stall_watch import Stalls
from onelog.net.tls import Tls

Offload = Callable[[Callable[[], None], Callable[[], None]], None]
"""Runs the first function in a worker thread, then the second one in the loop."""
Changed = Callable[[ConfigError | None], None]
"""Called when settings were changed, or with the reason why not."""
MakeSession = Callable[[Connection], Session]


@dataclass(slots=True)
class House:
    """What a server gives to every gateway."""

    broker: Broker
    clock: Clock
    loaded: Loaded
    """The configuration, with where each value came from."""
    store_host: bytes
    """The address that clients reach this broker at, as records keep it."""
    offload: Offload
    look_up: Offload
    """The same, for what computes, too: few at a time."""
    random: Random
    reconfigure: Callable[[dict[str, str], Changed], None]
    """Changes settings of the running broker, then calls back; `ConfigError`, here or there, says
    that nothing has changed."""
    retain: Callable[[bool, Callable[[OnelogError | None], None]], None]
    """Makes a round of retention, at any hour if the first argument says so, and calls back."""
    listen: Callable[[int, MakeSession], Awaitable[None]]
    """Listens on a port until the server closes; `ListenError` if it is taken."""
    tls: Tls
    stalls: Stalls
    """How often the event loop was held."""


class Gateway(Protocol):
    """A protocol that is served."""

    async def listen(self) -> None:
        """Open its ports; `ListenError` if its usual one is taken. The broker is open by then."""
        ...

    def refresh(self, loaded: Loaded) -> None:
        """Take over settings that were changed."""
        ...

    async def close(self) -> None:
        """Say goodbye, before the broker closes; sessions end after it."""
        ...
