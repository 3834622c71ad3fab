"""A real etcd, where the machine has one."""

import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.ports import free_port


class RealEtcd:
    """An etcd process on ports of its own."""

    def __init__(self, folder: Path) -> None:
        program = shutil.which("etcd")
        if program is None:
            pytest.skip("no etcd on this machine (Debian: apt-get install etcd-server)")
        self._program = program
        self._folder = folder
        self.port = free_port()
        self.process: subprocess.Popen[bytes] | None = None

    @property
    def address(self) -> str:
        return f"127.0.0.1:{self.port}"

    def start(self) -> None:
        """Start it, again perhaps; it may take a moment until it answers."""
        client, peer = f"http://{self.address}", f"http://127.0.0.1:{self.port + 1}"
        self.process = subprocess.Popen(
            [
                *(self._program, "--name", "judge", "--data-dir", str(self._folder)),
                *("--listen-client-urls", client, "--advertise-client-urls", client),
                *("--listen-peer-urls", peer, "--initial-advertise-peer-urls", peer),
                *("--initial-cluster", f"judge={peer}", "--log-level", "error"),
            ],
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
        )

    def stop(self) -> None:
        if self.process is not None:
            self.process.kill()
            self.process.wait()
            self.process = None


@pytest.fixture
def real_etcd(tmp_path: Path) -> Iterator[RealEtcd]:
    etcd = RealEtcd(tmp_path / "etcd")
    etcd.start()
    yield etcd
    etcd.stop()
