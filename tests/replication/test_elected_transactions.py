"""Kafka's transactional producers, over a master that is killed and one that goes as planned."""

import asyncio
import signal
import threading
import time
from collections.abc import Callable
from typing import Any

import pytest
from confluent_kafka import KafkaError, KafkaException, Producer, TopicPartition
from confluent_kafka.admin import AdminClient
from confluent_kafka.cimpl import NewTopic

from onelog.wire.kafka.codes import ApiKey
from tests.gateways.kafka.live import SECONDS, consumer
from tests.gateways.kafka.raw import raw
from tests.replication.test_elected_kafka import KafkaSet, live

__all__ = ["live"]

PRODUCERS, QUIET = 4, 3
QUIET_MS = 10_000
"""The time-out of the one that does nothing while masters change."""
LOST = (KafkaError._FENCED, KafkaError.PRODUCER_FENCED, KafkaError.INVALID_PRODUCER_EPOCH)
"""What says that another has the id, where none has."""


class Sender:
    """One transactional producer; counts what it has committed, and what it was told."""

    def __init__(self, servers: str, number: int) -> None:
        self.name = f"sender-{number}"
        self.producer = Producer(
            {
                "bootstrap.servers": servers,
                "transactional.id": self.name,
                "transaction.timeout.ms": QUIET_MS if number == QUIET else 60_000,
                "socket.timeout.ms": 10_000,
            }
        )
        self.committed: list[bytes] = []
        self.aborted: list[bytes] = []
        self.unknown: list[bytes] = []
        self.fenced: list[str] = []
        self.count = 0
        self.producer.init_transactions(2 * SECONDS)

    def again(self, act: Callable[[float], Any]) -> None:
        """As the documentation says: what can be tried again is."""
        while True:
            try:
                act(SECONDS)
                return
            except KafkaException as error:
                if not error.args[0].retriable():
                    raise

    def one(self, *, commits: bool = True) -> None:
        """A transaction of two messages."""
        bodies = [b"%s %d %d" % (self.name.encode(), self.count, part) for part in range(2)]
        self.count += 1
        try:
            self.producer.begin_transaction()
            for body in bodies:
                self.producer.produce("orders", body, partition=self.count % 2)
            if commits:
                self.again(self.producer.commit_transaction)
            else:
                self.again(self.producer.flush)
                self.again(self.producer.abort_transaction)
            (self.committed if commits else self.aborted).extend(bodies)
        except KafkaException as error:
            told = error.args[0]
            if told.code() in LOST or told.fatal():
                self.fenced.append(str(told))
                raise
            self.again(self.producer.abort_transaction)
            self.aborted.extend(bodies)


def read_committed(servers: str, until: set[bytes]) -> list[bytes]:
    reader = consumer(servers, "readers", **{"isolation.level": "read_committed"})
    reader.assign([TopicPartition("orders", each, 0) for each in range(2)])
    found: list[bytes] = []
    idle = 0
    while idle < 100:
        got = [each for each in reader.consume(1_000, 0.3) if each.error() is None]
        found += [each.value() or b"" for each in got]
        if not got and until <= set(found):
            break
        idle = 0 if got else idle + 1
    reader.close()
    return found


async def described(servers: str) -> dict[str, tuple[int, int, str]]:
    """Of each transactional id its producer id, its epoch, and how its last transaction stands."""

    async with raw(servers) as client:
        names = [f"sender-{number}" for number in range(PRODUCERS)]
        answer = await client.ask(ApiKey.DESCRIBE_TRANSACTIONS, 0, {"transactional_ids": names})
        return {
            each["transactional_id"]: (
                each["producer_id"],
                each["producer_epoch"],
                each["transaction_state"],
            )
            for each in answer["transaction_states"]
        }


async def change(live: KafkaSet, how: str, master: int) -> None:
    """Another node becomes master."""
    if how == "killed":
        live.signal(master, signal.SIGKILL)
    else:
        live.signal(master, signal.SIGTERM)  # It hands over before it goes.
    await live.another_master_than(master)
    live.end(master)


@pytest.mark.parametrize("how", ["killed", "demoted"])
async def test_transactions_go_on_with_the_next_master(live: KafkaSet, how: str) -> None:
    servers = ",".join(live.at(number) for number in range(3))

    def make() -> list[Sender]:
        admin = AdminClient({"bootstrap.servers": servers})
        admin.create_topics([NewTopic("orders", 2, 3)])["orders"].result(SECONDS)
        return [Sender(servers, number) for number in range(PRODUCERS)]

    def work(sender: Sender, times: int) -> None:
        for turn in range(times):
            sender.one(commits=turn % 3 != 2)

    is_over = threading.Event()

    def keep_working(sender: Sender) -> None:
        while not is_over.is_set():
            work(sender, 3)

    senders = await asyncio.to_thread(make)
    await asyncio.gather(*(asyncio.to_thread(work, each, 5) for each in senders))
    ended = time.monotonic()
    master = await live.master()
    before = await described(live.at(master))
    under_way = [asyncio.create_task(asyncio.to_thread(keep_working, each)) for each in senders[:3]]
    # Its transactions would be overdue if the next master did not know that they have ended.
    await asyncio.sleep(ended + QUIET_MS / 1_000 + 1 - time.monotonic())
    await change(live, how, master)
    known = [each.count for each in senders[:3]]
    while any(each.count < count + 4 for each, count in zip(senders[:3], known, strict=True)):  # noqa: ASYNC110
        await asyncio.sleep(0.1)
    is_over.set()
    await asyncio.gather(*under_way)
    assert [each.fenced for each in senders] == [[]] * PRODUCERS
    new = await live.master()
    after = await described(live.at(new))
    assert len({producer_id for producer_id, _, _ in after.values()}) == PRODUCERS
    assert all(after[name][0] == before[name][0] for name in before)
    assert after[f"sender-{QUIET}"] == before[f"sender-{QUIET}"]
    # Ids that are new get what nobody has, nor had.
    late = [await asyncio.to_thread(Sender, servers, PRODUCERS + each) for each in range(2)]
    await asyncio.gather(*(asyncio.to_thread(work, each, 3) for each in [*senders, *late]))
    assert [each.fenced for each in [*senders, *late]] == [[]] * (PRODUCERS + 2)
    everybody = [*senders, *late]
    committed = {body for each in everybody for body in each.committed}
    aborted = {body for each in everybody for body in each.aborted}
    found = await asyncio.to_thread(read_committed, live.at(new), committed)
    assert sorted(found) == sorted(set(found)), "something came twice"
    assert committed <= set(found)
    assert not aborted & set(found)
    states = await described(live.at(new))
    assert {state for _, _, state in states.values()} <= {"CompleteCommit", "CompleteAbort"}
