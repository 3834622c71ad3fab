"""Where a sync begins, without Spark: tables, and checkpoints as Spark writes them."""

import json
from pathlib import Path

import pytest

from onelog.errors import ConfigError, DataLossError
from onelog.spark.brokers import connect
from onelog.spark.lake import tables as lake_tables
from onelog.spark.lake.positions import Beginning, beginning, read_checkpoint
from onelog.spark.options import read_options
from onelog.spark.read.offsets import Offsets
from tests.spark.lake_rows import rows, written
from tests.spark.threaded_cluster import ThreadedCluster

NEW = Beginning(is_new=True)
GO_ON = Beginning(is_new=False)


class Lake:
    """A topic `orders` with two queues, and a folder for its table."""

    def __init__(self, cluster: ThreadedCluster, folder: Path) -> None:
        self.cluster = cluster
        self.folder = folder
        self.checkpoint = folder / "_checkpoints" / "x"

    def made(self) -> int:
        options = read_options({"nameserver": self.cluster.nameserver, "subscribe": "orders"})
        assert options.link is not None
        return connect(options.link).snapshot(["orders"]).incarnations["orders", "broker-a"]

    def add(self, *offsets: int, queue: int = 0) -> None:
        """Have the table take offsets, as a sync of whatever topics does."""
        batch = rows(*offsets, queue=queue, made=self.made(), broker="broker-a")
        lake_tables.commit(self.folder, "delta", written(self.folder, "delta", batch))

    def write(self, batch: int, *offsets: int, ended: bool = True, made: int = 0) -> None:
        """Put down a batch in the checkpoint; the end of each queue."""
        positions = {f"broker-a:{queue}": offset for queue, offset in enumerate(offsets)}
        content = {
            "incarnations": {"orders": {"broker-a": made or self.made()}},
            "offsets": {"orders": positions},
        }
        for name in ("offsets", "commits")[: 1 + ended]:
            (self.checkpoint / name).mkdir(parents=True, exist_ok=True)
            lines = ["v1", '{"batchWatermarkMs":0}', json.dumps(content)]
            (self.checkpoint / name / str(batch)).write_text("\n".join(lines))
            (self.checkpoint / name / f".{batch}.crc").write_bytes(b"")

    def beginning(self, **options: str) -> Beginning:
        given = {"nameserver": self.cluster.nameserver, "subscribe": "orders", **options}
        return beginning(self.folder, "delta", read_options(given), self.checkpoint)

    def offsets(self, **options: str) -> list[int]:
        found = self.beginning(**options)
        assert found.is_new
        assert found.offsets is not None
        queues = json.loads(found.offsets)["orders"]
        return [queues[f"broker-a:{queue}"] for queue in (0, 1)]


@pytest.fixture
def lake(cluster: ThreadedCluster, tmp_path: Path) -> Lake:
    cluster.topic("orders", 2)
    cluster.fill("orders", 20)
    return Lake(cluster, tmp_path / "lake")


def test_a_first_sync_begins_as_the_user_says(lake: Lake) -> None:
    assert lake.beginning() == NEW
    lake.checkpoint.mkdir(parents=True)  # Spark died before its first batch.
    assert lake.beginning() == NEW


def test_without_a_checkpoint_the_table_says_where_and_queues_that_it_does_not_know_are_new(
    lake: Lake,
) -> None:
    lake.add(0, 1, 2)
    for start in ("earliest", "latest"):
        assert lake.offsets(startingOffsets=start) == [3, 0]


def test_a_topic_that_is_new_to_the_lake_begins_as_the_user_says(lake: Lake) -> None:
    lake.cluster.topic("payments", 1)
    lake.cluster.send("payments", [b"1", b"2"])
    lake.add(0, 1, 2)
    found = lake.beginning(subscribe="orders,payments", startingOffsets="latest")
    assert found.offsets is not None
    assert json.loads(found.offsets)["payments"] == {"broker-a:0": 2}


def test_a_checkpoint_goes_on_while_no_table_is_further(lake: Lake) -> None:
    lake.write(0, 3, 1)
    assert lake.beginning() == GO_ON
    lake.add(0, 1, 2)
    assert lake.beginning() == GO_ON
    lake.write(1, 9, 9)  # Messages that were filtered out are in no table.
    assert lake.beginning() == GO_ON


def test_a_checkpoint_that_is_behind_a_table_is_replaced_queue_by_queue(lake: Lake) -> None:
    lake.write(0, 3, 7)
    lake.add(0, 1, 2, 3, 4)
    assert lake.offsets() == [5, 7]


def test_a_batch_that_did_not_end_is_run_again(lake: Lake) -> None:
    lake.write(0, 3, 1)
    lake.write(1, 4, 2, ended=False)
    lake.add(0, 1, 2, 3, 4)
    assert lake.beginning() == GO_ON


def test_a_topic_that_was_made_again_is_noticed(lake: Lake) -> None:
    lake.add(0, 1, 2)
    lake.write(0, 3, 0)
    before = lake.made()
    lake.cluster.delete_topic("orders")
    lake.cluster.topic("orders", 2)
    lake.cluster.fill("orders", 10)
    assert lake.beginning() == GO_ON  # The query itself finds out, from its offsets.
    (lake.checkpoint / "offsets" / "0").unlink()
    with pytest.raises(DataLossError, match="orders was deleted and made again"):
        lake.beginning()
    assert lake.offsets(failOnDataLoss="false") == [0, 0]
    # Another sync, which was let, has gone on with the new one.
    lake.add(0, 1)
    lake.write(0, 3, 0, made=before)
    assert lake.offsets() == [2, 0]


def test_a_checkpoint_tells_a_table_of_0_1_which_incarnation_it_has(lake: Lake) -> None:
    lake.add(0)
    lake.write(0, 3, 0)
    settled: list[object] = []
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(lake_tables, "settle_incarnations", lambda *given: settled.append(given))
        lake.beginning()
    assert settled == [(lake.folder, "delta", {("orders", "broker-a"): lake.made()})]


def test_what_is_no_checkpoint_is_named(tmp_path: Path) -> None:
    assert read_checkpoint(tmp_path / "nothing") is None
    (tmp_path / "offsets").mkdir()
    (tmp_path / "offsets" / "7").write_text('v1\n{}\n{"logOffset":3}')
    with pytest.raises(ConfigError, match="no checkpoint of a sync"):
        read_checkpoint(tmp_path)
    content = json.dumps(Offsets({}, {}).to_json())
    (tmp_path / "offsets" / "7").write_text(f"v1\n{{}}\n{content}")
    found = read_checkpoint(tmp_path)
    assert found is not None
    assert found.is_open
