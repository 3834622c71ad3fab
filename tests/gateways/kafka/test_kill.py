"""The broker is killed at each step of a transactional copy and of a share group, and while a topic
is compacted."""

import contextlib
import signal
import socket
import sys
import threading
from pathlib import Path

import pytest
from confluent_kafka import (
    AcknowledgeType,
    Consumer,
    KafkaException,
    Message,
    Producer,
    ShareConsumer,
    TopicPartition,
)
from confluent_kafka.admin import AdminClient
from confluent_kafka.cimpl import NewTopic

from tests.e2e.processes import spawn, stop
from tests.gateways.kafka.live import SECONDS, consumer, produce, take
from tests.gateways.kafka.test_share_fetch import GROUP, set_group
from tests.gateways.remoting.live import SMALL

pytestmark = [pytest.mark.soak, pytest.mark.timeout(600)]

COUNT, STEP = 120, 10
KILLS = {2: "sent", 4: "moved", 6: "committing", 8: "committed"}
"""After which batch the broker dies, and how far its transaction is then."""


class Killable:
    """A broker process on ports that it keeps."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.ports = [free_port(), free_port()]
        self.at = f"127.0.0.1:{self.ports[1]}"
        self.start()

    def start(self) -> None:
        settings = {
            **SMALL,
            "broker.port": self.ports[0],
            "kafka.port": self.ports[1],
            "broker.store_path": str(self.folder / "store"),
            "store.segment_bytes": 4 << 20,
            "broker.compaction_interval_ms": 20,
        }
        command = [sys.executable, "-m", "onelog", "broker"]
        for key, value in settings.items():
            command += ["--set", f"{key}={value}"]
        self.child = spawn(command, self.folder / "broker.log")

    def kill(self) -> None:
        """SIGKILL, and start again."""
        self.die()
        self.start()

    def die(self) -> None:
        """SIGKILL. A thread that starts a broker takes it along when it ends: it must not."""
        stop(self.child, signal.SIGKILL)

    def close(self) -> None:
        stop(self.child)


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


class Copier:
    """Copies topic `orders` to topic `copies`, a few messages in each transaction."""

    def __init__(self, broker: Killable) -> None:
        self.broker = broker
        self.at = broker.at
        self.reader = consumer(
            self.at, "copiers", isolation_level="read_committed", reconnect_backoff_max_ms=200
        )
        self.producer = self.new_producer()
        self.kills = dict(KILLS)

    def new_producer(self) -> Producer:
        producer = Producer(
            {
                "bootstrap.servers": self.at,
                "transactional.id": "copier",
                # Else it forgets the broker that is gone, and waits for it all the same.
                "metadata.recovery.strategy": "none",
                "reconnect.backoff.max.ms": 200,
            }
        )
        producer.init_transactions(SECONDS)
        return producer

    def position(self) -> int:
        (place,) = self.reader.committed([TopicPartition("orders", 0)], SECONDS)
        return max(0, place.offset)

    def run(self) -> None:
        number = 0
        while (begin := self.position()) < COUNT:
            self.reader.assign([TopicPartition("orders", 0, begin)])
            try:
                self.copy(begin, self.kills.pop(number, ""))
            except KafkaException:
                with contextlib.suppress(KafkaException):
                    self.producer.abort_transaction(SECONDS)
                self.producer = self.new_producer()
            number += 1

    def copy(self, begin: int, dies: str) -> None:
        self.producer.begin_transaction()
        for message in take(self.reader, STEP):
            self.producer.produce("copies", message.value(), partition=0)
        self.producer.flush(SECONDS)
        if dies == "sent":
            self.broker.kill()
        place = TopicPartition("orders", 0, begin + STEP)
        metadata = self.reader.consumer_group_metadata()
        self.producer.send_offsets_to_transaction([place], metadata, SECONDS)
        if dies == "moved":
            self.broker.kill()
        killer = threading.Thread(target=self.broker.die)
        if dies == "committing":
            killer.start()
        try:
            self.producer.commit_transaction(SECONDS)
        finally:
            if dies == "committing":
                killer.join()
                self.broker.start()
        if dies == "committed":
            self.broker.kill()


def all_of(reader: Consumer, topic: str) -> list[bytes | None]:
    """Every message of a topic, and whatever comes in the second after them."""
    reader.assign([TopicPartition(topic, 0, 0)])
    found = [message.value() for message in take(reader, COUNT)]
    return found + [message.value() for message in reader.consume(10, 1.0)]


def test_every_message_is_copied_once_though_the_broker_dies(tmp_path: Path) -> None:
    broker = Killable(tmp_path)
    try:
        values: list[bytes | None] = [b"%d" % each for each in range(COUNT)]
        sent = produce(broker.at, "orders", values, enable_idempotence=True)
        assert len(sent.places) == COUNT
        copier = Copier(broker)
        copier.run()
        assert copier.kills == {}
        reader = consumer(broker.at, "checkers", isolation_level="read_committed")
        assert all_of(reader, "copies") == values
        reader.close()
        copier.reader.close()
    finally:
        broker.close()


class Sharer:
    """Takes the messages of topic `orders` for a share group, and acknowledges them in steps."""

    def __init__(self, broker: Killable) -> None:
        self.broker = broker
        self.done: set[bytes | None] = set()
        """What the broker has confirmed."""
        self.unsure: set[bytes | None] = set()
        """What it may have recorded, before it died without a word."""
        self.kills = {2: "taken", 4: "acknowledging", 6: "acknowledged"}
        self.reader = ShareConsumer(
            {
                "bootstrap.servers": broker.at,
                "group.id": GROUP,
                "share.acknowledgement.mode": "explicit",
                "max.poll.records": STEP,
                "reconnect.backoff.max.ms": 200,
                # Else it forgets the broker that is gone, and waits for it all the same.
                "metadata.recovery.strategy": "none",
            }
        )
        self.reader.subscribe(["orders"])

    def run(self) -> None:
        number = 0
        while len(self.done | self.unsure) < COUNT:
            taken = [each for each in self.reader.poll(1.0) if each.error() is None]
            if not taken:
                continue
            again = self.done & {each.value() for each in taken}
            assert not again, "what is confirmed does not come again"
            self.settle(taken, self.kills.pop(number, ""))
            number += 1

    def settle(self, taken: list[Message], dies: str) -> None:
        if dies == "taken":
            self.broker.kill()
        # The first of them comes again, unless it was returned before.
        first, *others = taken
        is_new = first.delivery_count() == 1
        kind = AcknowledgeType.RELEASE if is_new else AcknowledgeType.ACCEPT
        self.reader.acknowledge(first, kind)
        for each in others:
            self.reader.acknowledge(each)
        killer = threading.Thread(target=self.broker.die)
        if dies == "acknowledging":
            killer.start()
        try:
            results = self.reader.commit_sync(SECONDS)
        except KafkaException:
            results = {}
        finally:
            if dies == "acknowledging":
                killer.join()
                self.broker.start()
        settled = [each.value() for each in (others if is_new else taken)]
        is_confirmed = results and all(error is None for error in results.values())
        (self.done if is_confirmed else self.unsure).update(settled)
        if dies == "acknowledged":
            self.broker.kill()


def test_a_share_group_gets_all_and_nothing_twice_that_was_confirmed(tmp_path: Path) -> None:
    broker = Killable(tmp_path)
    try:
        values: list[bytes | None] = [b"%d" % each for each in range(COUNT)]
        set_group(broker.at, share_auto_offset_reset="earliest")
        produce(broker.at, "orders", values, batch_num_messages=7)
        sharer = Sharer(broker)
        sharer.run()
        assert sharer.kills == {}
        assert sharer.done | sharer.unsure == set(values)
        assert len(sharer.unsure) <= 2 * STEP
        sharer.reader.close()
    finally:
        broker.close()


def test_the_last_value_of_each_key_is_there_though_the_broker_dies(tmp_path: Path) -> None:
    broker = Killable(tmp_path)
    try:
        config = {
            "cleanup.policy": "compact",
            "segment.ms": "1",
            "min.cleanable.dirty.ratio": "0.01",
        }
        admin = AdminClient({"bootstrap.servers": broker.at})
        admin.create_topics([NewTopic("prices", 1, 1, config=config)])["prices"].result(SECONDS)
        producer = Producer(
            {
                "bootstrap.servers": broker.at,
                "enable.idempotence": True,
                "metadata.recovery.strategy": "none",
                "reconnect.backoff.max.ms": 200,
            }
        )
        expected: dict[bytes, bytes] = {}
        for kill in range(6):
            for number in range(3_000):
                key = b"k%d" % (number * 7 % 300)
                expected[key] = b"%d-%d" % (kill, number)
                producer.produce("prices", expected[key], key, partition=0)
                if number % 100 == 0:
                    producer.flush(SECONDS)
            broker.kill()
        assert producer.flush(SECONDS) == 0
        reader = consumer(broker.at, "checkers")
        found = everything(reader, "prices")
        values = {each.key(): each.value() for each in found}
        assert values == expected
        assert len(found) < 9_000
        reader.close()
    finally:
        broker.close()


def everything(reader: Consumer, topic: str) -> list[Message]:
    """All messages of a topic up to its end."""
    _, end = reader.get_watermark_offsets(TopicPartition(topic, 0), SECONDS)
    reader.assign([TopicPartition(topic, 0, 0)])
    found: list[Message] = []
    while not found or (found[-1].offset() or 0) < end - 1:
        found += take(reader, 1)
    return found
