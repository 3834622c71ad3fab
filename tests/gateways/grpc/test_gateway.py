"""What serves gRPC is imported for the first client, and others need not wait for that."""

import subprocess
import sys
from pathlib import Path

_PROGRAM = """
import asyncio, sys, threading
from importlib.abc import MetaPathFinder
from pathlib import Path
from onelog.wire.grpc.http2 import PREFACE
from tests.gateways.remoting.live import broker

importers = {}

class Watch(MetaPathFinder):
    def find_spec(self, name, path, target=None):
        importers[name] = threading.current_thread() is threading.main_thread()

async def greeting(port):
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    writer.write(PREFACE + bytes([0, 0, 0, 4, 0, 0, 0, 0, 0]))
    async with asyncio.timeout(60):
        head = await reader.readexactly(9)
    writer.close()
    return head[3]

async def main():
    async with broker(Path(sys.argv[1]), grpc__port=-1) as server:
        assert "google.protobuf" not in sys.modules
        sys.meta_path.insert(0, Watch())
        port = server.config.grpc.port
        assert await asyncio.gather(*(greeting(port) for _ in range(3))) == [4, 4, 4]
        assert await greeting(port) == 4
        print(sorted(name for name, is_main in importers.items() if is_main and "." in name))
        assert importers["google.protobuf"] is False

asyncio.run(main())
"""


def test_the_first_client_has_everything_imported_beside_the_loop(tmp_path: Path) -> None:
    ended = subprocess.run(
        [sys.executable, "-c", _PROGRAM, str(tmp_path)],
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert ended.returncode == 0, ended.stderr
    assert "protobuf" not in ended.stdout
    assert "grpc" not in ended.stdout
