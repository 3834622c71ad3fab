"""Every test of sockets runs on both event loops; listeners are closed after it."""

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from pathlib import Path
from typing import Any

import pytest
import uvloop

from onelog.clock import ManualClock
from onelog.net.listener import Listener
from onelog.net.tls import write_self_signed

Listen = Callable[..., Awaitable[Listener]]


def pytest_asyncio_loop_factories(
    config: pytest.Config, item: pytest.Item
) -> dict[str, Callable[[], asyncio.AbstractEventLoop]]:
    return {"asyncio": asyncio.new_event_loop, "uvloop": uvloop.new_event_loop}


@pytest.fixture
def clock() -> ManualClock:
    return ManualClock()


@pytest.fixture
def certificate(tmp_path: Path) -> tuple[Path, Path]:
    """A certificate of one's own, and its key."""
    return write_self_signed(tmp_path, ("localhost", "broker.example"))


@pytest.fixture
async def listen(clock: ManualClock) -> AsyncIterator[Listen]:
    listeners: list[Listener] = []

    async def open_listener(make_session: Any, **options: Any) -> Listener:
        host = options.pop("host", "127.0.0.1")
        listeners.append(
            await Listener.open(host, options.pop("port", 0), make_session, clock=clock, **options)
        )
        return listeners[-1]

    yield open_listener
    for listener in listeners:
        await listener.close()
