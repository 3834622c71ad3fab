"""A master and its slave as processes of their own: the slave is killed again and again."""

import asyncio
import signal
from pathlib import Path

import pytest

from onelog.client import AsyncProducer, Message, SendStatus
from onelog.store.compare import compare
from onelog.wire.remoting.codes import RequestCode as Code
from onelog.wire.remoting.routes import KVTable
from tests.e2e.onelog_peer import OnelogPeer
from tests.e2e.processes import wait_until
from tests.e2e.remoting_probe import call, create_topic

pytestmark = pytest.mark.timeout(300)

TOPIC, COUNT, ROUNDS = "Replicated", 2_000, 3
SMALL = {"ONELOG_STORE_SEGMENT_BYTES": str(1 << 20), "ONELOG_REPLICATION_REPLICAS": "2"}


async def send(nameservers: str, count: int) -> None:
    async with AsyncProducer("senders", nameserver=nameservers) as producer:
        receipts = await asyncio.gather(
            *(producer.send(Message(TOPIC, b"%d" % number * 50)) for number in range(count))
        )
    assert {receipt.status for receipt in receipts} == {SendStatus.OK}


def log_end(peer: OnelogPeer) -> int:
    try:
        answer = call(peer.broker_address, Code.GET_BROKER_RUNTIME_INFO)
    except OSError:
        return -1
    return int(KVTable.decode_answer(answer.body).table["commitLogMaxOffset"])


@pytest.mark.parametrize("flush", ["async", "sync"])
def test_a_slave_that_is_killed_has_the_same_log_in_the_end(tmp_path: Path, flush: str) -> None:
    settings = {**SMALL, "ONELOG_STORE_FLUSH": flush}
    with OnelogPeer(tmp_path / "master", settings=settings, may_stall=True) as master:
        create_topic(master.broker_address, TOPIC, 4)
        slave = OnelogPeer(
            tmp_path / "slave",
            nameservers=master.nameservers,
            may_stall=True,
            settings={**settings, "ONELOG_BROKER_BROKER_ID": "1"},
        )
        try:
            slave.launch()
            for _ in range(ROUNDS):
                asyncio.run(send(master.nameservers, COUNT))
                slave.restart(signal.SIGKILL)
            wait_until(lambda: log_end(slave) == log_end(master) > 0, "the same log", 60)
            slave.stop_broker()
            end = log_end(master)
            found = compare(tmp_path / "master" / "data" / "store", tmp_path / "slave" / "data")
            assert found.same, found
            assert found.end == end
        finally:
            slave.close()
