"""One Spark for all tests, and clusters for it to read."""

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from onelog.config import Value
from onelog.spark import session
from onelog.spark.brokers import disconnect
from tests.spark.threaded_cluster import ThreadedCluster

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

StartCluster = Callable[..., ThreadedCluster]


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """On a machine that has much else to do, the first query of a JVM takes a minute."""
    for item in items:
        if "spark" in getattr(item, "fixturenames", ()):
            item.add_marker(pytest.mark.timeout(900))


@pytest.fixture(scope="session")
def spark(tmp_path_factory: pytest.TempPathFactory) -> "Iterator[SparkSession]":
    """A local session, made the way users make theirs."""
    warehouse = tmp_path_factory.mktemp("warehouse")
    made = session(master="local[2]", conf={"spark.sql.warehouse.dir": str(warehouse)})
    yield made
    made.stop()


@pytest.fixture
def start_cluster(tmp_path: Path) -> Iterator[StartCluster]:
    """Starts clusters that end with the test."""
    started: list[ThreadedCluster] = []

    def start(brokers: int = 1, **settings: Value) -> ThreadedCluster:
        folder = tmp_path / f"cluster-{len(started)}"
        folder.mkdir()
        started.append(ThreadedCluster(folder, brokers, settings).__enter__())
        return started[-1]

    yield start
    disconnect()
    for cluster in started:
        cluster.__exit__(None, None, None)


@pytest.fixture
def cluster(start_cluster: StartCluster) -> ThreadedCluster:
    """A name server and a broker."""
    return start_cluster()
