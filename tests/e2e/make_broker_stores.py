"""Makes `tests/fixtures/onelog-store-VERSION.tar.xz`: stores as a version of OneLog wrote them.

    python -m tests.e2e.make_broker_stores VERSION

Two stores with something of every feature are in it: `crashed`, as it was on the disk while the
broker ran, and `clean`, as it was after the broker's end; and `facts.json`, what
`tests/gateways/test_older_stores.py` has to know to find everything again.
"""

import asyncio
import json
import shutil
import sys
import tarfile
import tempfile
import time
from pathlib import Path

from tests.gateways.remoting.live import broker
from tests.gateways.stored_features import SETTINGS, write_everything

FIXTURES = Path(__file__).resolve().parents[1] / "fixtures"


async def make(folder: Path) -> None:
    """Write both stores, and the facts."""
    async with broker(folder, **SETTINGS) as server:
        facts = await write_everything(server)
        await asyncio.sleep(2)  # What is written now and then is there, too.
        member, connection = facts.pop("share member"), facts.pop("amqp")
        shutil.copytree(folder / "store", folder / "crashed")
        facts["now_ms"] = time.time_ns() // 1_000_000
        await asyncio.to_thread(member.close)
    (folder / "store").rename(folder / "clean")
    del connection
    (folder / "facts.json").write_text(json.dumps(facts, indent=1))


if __name__ == "__main__":
    with tempfile.TemporaryDirectory() as scratch:
        asyncio.run(make(Path(scratch)))
        made = FIXTURES / f"onelog-store-{sys.argv[1]}.tar.xz"
        with tarfile.open(made, "w:xz", preset=9) as archive:
            for part in ("facts.json", "clean", "crashed"):
                archive.add(Path(scratch) / part, part)
        print(f"{made.name}: {made.stat().st_size // 1024} KiB")
