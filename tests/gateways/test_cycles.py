"""What a connection leaves behind is freed at once: it is no work for the cycle collector.

The collector stops everybody while it frees 30,000 objects, which takes up to 25 ms.
"""

import asyncio
import contextlib
import gc
import itertools
from collections import Counter
from pathlib import Path
from typing import Any

import pytest

from onelog.config_sources import load
from onelog.net.capacity import Capacity
from onelog.server import running_broker
from tests.e2e.mutated_bytes import words
from tests.e2e.watched_broker import ALL_PORTS
from tests.gateways.remoting.live import SMALL
from tests.ports import free_port
from tests.waiting import eventually

FEW = 2
"""Objects of each kind that may be left: what is made once, and what the test leaves itself."""


@pytest.mark.parametrize("section", ALL_PORTS)
async def test_connections_leave_no_cycles_whatever_was_said_on_them(
    tmp_path: Path, section: str
) -> None:
    said = words(section)
    capacity = Capacity()
    overrides = {**SMALL, "broker.store_path": str(tmp_path), f"{section}.port": free_port()}
    async with running_broker(load(overrides=overrides), capacity) as server:
        port = getattr(server.config, section).port
        await _say(port, [said.hellos[0]])  # What the first client finds missing is imported.
        gc.collect()
        gc.freeze()
        gc.disable()
        gc.set_debug(gc.DEBUG_SAVEALL)
        try:
            async with asyncio.TaskGroup() as group:
                for hello, frame in itertools.product(said.hellos, said.frames):
                    group.create_task(_say(port, [hello, frame, frame]))
                    group.create_task(_say(port, [hello, *said.frames]))
            await eventually(lambda: not any(each.open_count for each in capacity.listeners))
            gc.collect()
            found = Counter(_kind(each) for each in gc.garbage)
        finally:
            gc.set_debug(0)
            gc.garbage.clear()
            gc.enable()
            gc.unfreeze()
    # The client here is asyncio's, and leaves some of its own.
    ours = {kind: count for kind, count in found.items() if kind.startswith(("onelog", "uvicorn"))}
    assert {kind: count for kind, count in ours.items() if count > FEW} == {}


async def _say(port: int, frames: list[bytes]) -> None:
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    with contextlib.suppress(ConnectionError):
        writer.write(b"".join(frames))
        writer.write_eof()
        await reader.read()
    writer.close()


def _kind(found: Any) -> str:
    return f"{type(found).__module__}.{type(found).__qualname__}"
