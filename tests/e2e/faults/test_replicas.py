"""Replicas that come back in a bad state: each ends in sync, or says what to do.

One cluster goes through all of it and is whole again after each test; that stores are equal is
proven by `onelog store compare`.
"""

import shutil
import signal
import subprocess
import sys
from collections.abc import Iterator
from functools import partial
from pathlib import Path

import pytest

from benchmarks.replication import log_end, onelog_pair
from tests.e2e.faults import servers
from tests.e2e.faults.filler import fill
from tests.e2e.faults.servers import BROKERS, CLIENTS, Broker, Cluster
from tests.e2e.onelog_peer import COMMAND
from tests.e2e.processes import wait_until

ROOT = Path(__file__).resolve().parents[3]
MIB = 64
EPOCHS = "epochFileCheckpoint"

pytestmark = [
    pytest.mark.skipif(bool(servers.why_not()), reason=servers.why_not() or "-"),
    pytest.mark.timeout(600),
]


@pytest.fixture(scope="module")
def running(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    with Cluster(tmp_path_factory.mktemp("replicas")) as cluster:
        cluster.wait_until_whole()
        cluster.create_topic("Filled", 4)
        yield cluster


@pytest.fixture
def cluster(running: Cluster) -> Cluster:
    running.wait_until_whole()
    return running


def filled(cluster: Cluster, mib: int) -> None:
    command = [sys.executable, "-m", "tests.e2e.faults.filler", cluster.nameservers, "Filled"]
    subprocess.run(
        cluster.net.command(CLIENTS, [*command, str(mib)]), cwd=ROOT, check=True, timeout=300
    )


def follower(cluster: Cluster) -> Broker:
    master = cluster.master()
    return next(broker for name, broker in cluster.brokers.items() if name != master)


def compared(one: Path, other: Path) -> tuple[int, str]:
    """What `onelog store compare` says of two stores that nobody has open."""
    ended = subprocess.run(
        [str(COMMAND), "store", "compare", str(one), str(other)],
        capture_output=True,
        text=True,
        check=False,
    )
    return ended.returncode, ended.stdout + ended.stderr


def check_equal(cluster: Cluster) -> None:
    """Stop all, followers first; compare each with the first; start all again."""
    master = cluster.master()
    for name in sorted(BROKERS, key=lambda name: name == master):
        cluster.brokers[name].kill(signal.SIGTERM)
    first, *others = (broker.data for broker in cluster.brokers.values())
    for other in others:
        status, said = compared(first, other)
        assert status == 0, said
    for broker in cluster.brokers.values():
        broker.start()
    cluster.wait_until_whole()


def said_by(broker: Broker, words: str) -> bool:
    return words in broker.log.read_text(errors="replace")


def segments(broker: Broker) -> list[Path]:
    return sorted((broker.data / "commitlog").glob("0*"))


def damage(path: Path, at: int, count: int = 4096) -> None:
    with path.open("r+b") as file:
        file.seek(at)
        kept = file.read(count)
        file.seek(at)
        file.write(bytes(byte ^ 0x5A for byte in kept))


def begin_anew(cluster: Cluster, broker: Broker) -> None:
    """What a message about a store that cannot go on says: set it aside, and get everything."""
    broker.kill()
    shutil.rmtree(broker.data)
    broker.start()
    cluster.wait_until_whole(120)


def test_one_that_was_away_for_long_gets_what_it_missed(cluster: Cluster) -> None:
    away = follower(cluster)
    away.kill(signal.SIGTERM)
    filled(cluster, MIB)
    away.start()
    cluster.wait_until_whole(120)
    check_equal(cluster)


def test_one_with_a_damaged_end_is_cut_there_and_gets_the_rest_again(cluster: Cluster) -> None:
    filled(cluster, 2)
    victim = follower(cluster)
    victim.kill(signal.SIGKILL)
    last = segments(victim)[-1]
    end = max(at for at in range(0, last.stat().st_size, 4096) if _has_bytes(last, at))
    damage(last, end)
    victim.start()
    cluster.wait_until_whole(120)
    check_equal(cluster)


def _has_bytes(path: Path, at: int) -> bool:
    with path.open("rb") as file:
        file.seek(at)
        return any(file.read(4096))


def test_one_with_a_damaged_segment_is_found_out_and_begins_anew(cluster: Cluster) -> None:
    filled(cluster, 16)
    victim = follower(cluster)
    victim.kill(signal.SIGTERM)
    damage(segments(victim)[1], 1 << 20)
    other = next(each for each in cluster.brokers.values() if each not in (victim,))
    status, said = compared(other.data, victim.data)
    assert status != 0
    assert "differ" in said
    begin_anew(cluster, victim)
    check_equal(cluster)


def test_one_with_a_foreign_epoch_list_is_refused_and_told_what_to_do(cluster: Cluster) -> None:
    stranger = follower(cluster)
    stranger.kill(signal.SIGTERM)
    epochs = stranger.data / EPOCHS
    before = epochs.read_bytes()
    epochs.write_text("1\n0\n777-0\n")
    stranger.start()
    cluster.wait_for("words about the epochs", partial(said_by, stranger, "epoch"), 60)
    assert stranger.where not in cluster.in_sync()
    assert epochs.read_bytes() != before
    begin_anew(cluster, stranger)
    check_equal(cluster)


def test_one_whose_disk_is_full_goes_on_when_there_is_room(cluster: Cluster) -> None:
    full = follower(cluster)
    full.disk.fill()
    filled(cluster, 16)
    cluster.wait_for("two in sync", lambda: len(cluster.in_sync()) == 2, 60)
    assert full.where not in cluster.in_sync()
    full.disk.empty()
    cluster.wait_until_whole(120)
    check_equal(cluster)


@pytest.mark.soak
@pytest.mark.timeout(3600)
def test_one_that_was_away_for_ten_gibibytes_gets_them(tmp_path: Path) -> None:
    if shutil.disk_usage(tmp_path).free < 26 << 30:
        pytest.skip("two stores of 10 GiB want 26 GiB of disk")
    with onelog_pair(tmp_path, "local") as pair:
        fill(pair.master.nameservers, "Filled", 10 << 10)
        size = log_end(pair.master)
        pair.start_slave()
        wait_until(lambda: log_end(pair.slave) >= size, "all of it", 1200)
        assert pair.slave is not None
        pair.slave.stop_broker()
        pair.master.stop_broker()
        status, said = compared(tmp_path / "master" / "data" / "store", tmp_path / "slave" / "data")
        assert status == 0, said
