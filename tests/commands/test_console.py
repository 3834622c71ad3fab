"""`onelog console`: where it is."""

import subprocess
import sys
from pathlib import Path

from tests.gateways.http.live import http

COMMAND = Path(sys.executable).parent / "onelog"


def run(*arguments: str) -> tuple[int, str, str]:
    """Run it."""
    done = subprocess.run(
        [COMMAND, "console", *arguments], capture_output=True, text=True, timeout=60, check=False
    )
    return done.returncode, done.stdout, done.stderr


async def test_it_says_where_the_console_is(tmp_path: Path) -> None:
    import asyncio

    async with http(tmp_path) as (server, _):
        port = server.config.http.port
        code, out, _ = await asyncio.to_thread(run, "--port", str(port))
        assert (code, out) == (0, f"http://127.0.0.1:{port}/\n")
    code, _, error = await asyncio.to_thread(run, "--port", str(port))
    assert code == 2
    assert "onelog up" in error
