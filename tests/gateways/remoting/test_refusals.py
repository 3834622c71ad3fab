"""Refused requests, and what they leave in memory."""

import gc
from pathlib import Path

from onelog.errors import OnelogError
from onelog.wire.remoting.codes import RequestCode
from tests.gateways.remoting.live import broker, client
from tests.gateways.remoting.samples import SAMPLES

WAITS = {"suspendTimeoutMillis", "pollTime"}


async def test_what_was_refused_is_freed_at_once_and_not_left_to_the_collector(
    tmp_path: Path,
) -> None:
    async with broker(tmp_path, broker__name="broker-a") as server, client(server) as one:

        async def refused() -> None:
            for sample in SAMPLES:
                short = dict.fromkeys(WAITS & sample.ext.keys(), "10")
                for ext in ({}, dict.fromkeys(sample.ext, "nobody"), sample.ext | short):
                    await one.peer.ask(RequestCode(sample.code), ext, b"", 20_000)

        await refused()  # What is made once, is.
        gc.collect()
        gc.freeze()  # What other tests have left is not looked at.
        gc.disable()
        gc.set_debug(gc.DEBUG_SAVEALL)
        try:
            await refused()
            gc.collect()
            left = [each for each in gc.garbage if isinstance(each, OnelogError)]
        finally:
            gc.set_debug(0)
            gc.garbage.clear()
            gc.enable()
            gc.unfreeze()
    assert left == []
