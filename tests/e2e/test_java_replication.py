"""Pairs of OneLog and the real RocketMQ: a slave of either kind has the log, byte for byte.

E2E_REPLICATED_MESSAGES says how many messages each pair takes; a hundred thousand if it does not.
"""

import asyncio
import os
import signal
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from onelog.client import AsyncProducer, Message, SendStatus
from onelog.errors import OnelogError
from onelog.record.decode import decode_messages
from onelog.store.compare import compare
from onelog.wire.remoting.codes import RequestCode as Code
from onelog.wire.remoting.routes import KVTable
from tests.e2e.onelog_peer import OnelogPeer
from tests.e2e.processes import wait_until
from tests.e2e.remoting_probe import call, create_topic, is_answering
from tests.e2e.rocketmq_peer import RocketmqPeer

pytestmark = [pytest.mark.e2e_java, pytest.mark.timeout(1_500)]

COUNT = int(os.environ.get("E2E_REPLICATED_MESSAGES", "100000"))
TOPIC, QUEUES, AT_ONCE = "Replicated", 4, 200
PATIENCE_S = 300


class Sending:
    """Sends messages in a thread until enough are stored, whatever happens to brokers."""

    def __init__(self, nameservers: str) -> None:
        self.stored = 0
        self._nameservers = nameservers
        self._failure: BaseException | None = None
        self._thread = threading.Thread(target=self._run, daemon=True)
        self._thread.start()

    def _run(self) -> None:
        try:
            asyncio.run(self._send_all())
        except BaseException as error:
            self._failure = error

    async def _send_all(self) -> None:
        async with AsyncProducer("replicators", nameserver=self._nameservers) as producer:
            while self.stored < COUNT:
                sends = (
                    producer.send(Message(TOPIC, b"%d of a row" % number * 8, keys=[f"k{number}"]))
                    for number in range(self.stored, min(COUNT, self.stored + AT_ONCE))
                )
                results = await asyncio.gather(*sends, return_exceptions=True)
                for each in results:
                    if isinstance(each, BaseException):
                        assert isinstance(each, OnelogError), each
                    else:
                        self.stored += each.status is SendStatus.OK

    def reaches(self, share: float) -> None:
        """Wait until this share of the messages is stored."""
        wait_until(
            lambda: self.stored >= COUNT * share or self._failure is not None,
            f"{share:.0%} of the messages",
            PATIENCE_S,
        )
        assert self._failure is None, self._failure


@contextmanager
def pair(
    make_master: Callable[[], OnelogPeer | RocketmqPeer],
    make_slave: Callable[[str], OnelogPeer | RocketmqPeer],
) -> Iterator[tuple[OnelogPeer | RocketmqPeer, OnelogPeer | RocketmqPeer]]:
    """A master with its name server, and a slave; both running."""
    with make_master() as master:
        create_topic(master.broker_address, TOPIC, QUEUES)
        slave = make_slave(master.nameservers)
        try:
            slave.launch()
            yield master, slave
        finally:
            slave.close()


def log_end(peer: OnelogPeer | RocketmqPeer) -> int:
    """Where a broker's log ends; -1 if it does not answer."""
    try:
        answer = call(peer.broker_address, Code.GET_BROKER_RUNTIME_INFO)
    except OSError:
        return -1
    if answer.code != 0:  # It is still starting.
        return -1
    return int(KVTable.decode_answer(answer.body).table["commitLogMaxOffset"])


def in_step(master: OnelogPeer | RocketmqPeer, slave: OnelogPeer | RocketmqPeer) -> bool:
    return log_end(slave) == log_end(master) >= 0


def same_log(one: Path, two: Path) -> int:
    """How many bytes of two logs are equal, up to where either of them ends; they must be."""
    size = 0
    names = [sorted(path.name for path in folder.iterdir()) for folder in (one, two)]
    assert names[0] == names[1]
    for name in names[0]:
        with (one / name).open("rb") as first, (two / name).open("rb") as second:
            while mine := first.read(1 << 22):
                assert mine == second.read(1 << 22), f"{name} differs"
                size += len(mine)
    return size


def pulled(address: str, queue_id: int, offset: int) -> list[int]:
    """The queue offsets of what a pull gets from a broker."""
    fields = {
        "consumerGroup": "readers",
        "topic": TOPIC,
        "queueId": str(queue_id),
        "queueOffset": str(offset),
        "maxMsgNums": "32",
        "sysFlag": "4",
        "commitOffset": "0",
        "suspendTimeoutMillis": "0",
        "subscription": "*",
        "subVersion": "0",
    }
    answer = call(address, Code.PULL_MESSAGE, fields, timeout_s=10)
    return [int(each.queue_offset) for each in decode_messages(memoryview(answer.body))]


def disturb(
    sending: Sending, master: OnelogPeer | RocketmqPeer, slave: OnelogPeer | RocketmqPeer
) -> None:
    """Kill the slave, then the master, while messages come in; let both have all in the end."""
    sending.reaches(0.2)
    slave.restart(signal.SIGKILL)
    sending.reaches(0.4)
    wait_until(lambda: is_answering(slave.broker_address), "the slave", PATIENCE_S)
    master.restart(signal.SIGKILL)
    sending.reaches(0.7)
    slave.restart(signal.SIGKILL)
    sending.reaches(1)
    wait_until(lambda: in_step(master, slave), "the slave with the whole log", PATIENCE_S)


def test_a_onelog_slave_has_the_log_of_a_rocketmq_master_and_can_take_its_place(
    tmp_path: Path,
) -> None:
    settings = {"ONELOG_BROKER_BROKER_ID": "1", "ONELOG_REPLICATION_REPLICAS": "2"}
    with pair(
        lambda: RocketmqPeer(tmp_path / "rocketmq"),
        lambda names: OnelogPeer(
            tmp_path / "onelog", nameservers=names, settings=settings, may_stall=True
        ),
    ) as (master, slave):
        sending = Sending(master.nameservers)
        disturb(sending, master, slave)
        config = tmp_path / "onelog" / "data" / "config"
        wait_until(lambda: TOPIC in (config / "topics.json").read_text(), "its topics", PATIENCE_S)
        end = log_end(slave)
        slave.stop_broker(signal.SIGTERM)
        master.stop_broker(signal.SIGTERM)
        logs = tmp_path / "rocketmq" / "store" / "commitlog", slave.folder / "data" / "commitlog"
        assert same_log(*logs) >= end
        assert compare(logs[0].parent, logs[1].parent).same
        # The old master is gone for good: the slave goes on in its place.
        successor = OnelogPeer(tmp_path / "onelog", nameservers=master.nameservers)
        try:
            successor.start()
            found = sum(len(_all(successor.broker_address, queue)) for queue in range(QUEUES))
            assert found >= COUNT
        finally:
            successor.close()


def test_a_rocketmq_slave_has_the_log_of_a_onelog_master(tmp_path: Path) -> None:
    settings = {"ONELOG_REPLICATION_REPLICAS": "2"}
    with pair(
        lambda: OnelogPeer(tmp_path / "onelog", settings=settings, may_stall=True),
        lambda names: RocketmqPeer(tmp_path / "rocketmq", nameservers=names, broker_id=1),
    ) as (master, slave):
        sending = Sending(master.nameservers)
        disturb(sending, master, slave)
        # It knows the topic because it has asked for it, and finds its messages in its own queues.
        wait_until(lambda: len(pulled(slave.broker_address, 0, 0)) > 0, "its queues", PATIENCE_S)
        found = sum(len(_all(slave.broker_address, queue)) for queue in range(QUEUES))
        assert found >= COUNT
        slave.stop_broker(signal.SIGTERM)
        end = log_end(master)
        master.stop_broker(signal.SIGKILL)
        logs = (
            master.folder / "data" / "store" / "commitlog",
            tmp_path / "rocketmq" / "store" / "commitlog",
        )
        assert same_log(*logs) >= end
        assert compare(logs[0].parent, logs[1].parent).same


def _all(address: str, queue_id: int) -> list[int]:
    found: list[int] = []
    while fresh := pulled(address, queue_id, len(found)):
        found += fresh
    assert found == list(range(len(found)))
    return found
