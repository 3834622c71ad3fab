"""A real etcd, where the machine has one, and a set of brokers that it looks after."""

from collections.abc import AsyncIterator, Iterator
from pathlib import Path

import pytest

from onelog.config import Value
from onelog.config_sources import load
from onelog.server import running_nameserver
from tests.replication.live import LiveSet, RealEtcd


@pytest.fixture
def real_etcd(tmp_path: Path) -> Iterator[RealEtcd]:
    etcd = RealEtcd(tmp_path / "etcd")
    etcd.start()
    yield etcd
    etcd.stop()


@pytest.fixture
async def live(tmp_path: Path, real_etcd: RealEtcd) -> AsyncIterator[LiveSet]:
    settings: dict[str, Value] = {
        "nameserver.port": 0,
        "nameserver.kv_path": str(tmp_path / "kv.json"),
    }
    async with running_nameserver(load(overrides=settings)) as nameserver:
        live = LiveSet(tmp_path, real_etcd, nameserver)
        try:
            for number in range(3):
                live.start(number)
            await live.in_sync(0, 1, 2)
            yield live
        finally:
            for process in live.processes.values():
                process.kill()
                process.wait()
            await live.replicas.close()
