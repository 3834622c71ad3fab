"""Kafka's own Java client and Kafka Streams against OneLog, also while it is killed."""

from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import pytest
from confluent_kafka import OFFSET_BEGINNING, Consumer, KafkaError, TopicPartition
from confluent_kafka.admin import AdminClient
from confluent_kafka.cimpl import NewTopic

from tests.e2e.kafka_java import CLIENT_VERSIONS, kafka_client
from tests.e2e.onelog_kafka import OnelogKafka
from tests.gateways.kafka.live import consumer, produce

pytestmark = [pytest.mark.e2e_java, pytest.mark.timeout(600)]

PROTOCOLS = ("classic", "consumer")
PARTITIONS = 4
PATIENCE_S = 120
"""How long anything may take to come, on a machine that is busy."""


@pytest.fixture
def broker(tmp_path: Path) -> Iterator[OnelogKafka]:
    with OnelogKafka(tmp_path / "onelog") as running:
        yield running


@pytest.mark.parametrize("protocol", PROTOCOLS)
@pytest.mark.parametrize("version", CLIENT_VERSIONS)
def test_what_is_sent_is_read_by_a_group_once(
    broker: OnelogKafka, tmp_path: Path, version: str, protocol: str
) -> None:
    with kafka_client(
        tmp_path, version, "RoundTrip", broker.bootstrap, "orders", protocol, "500"
    ) as client:
        told = client.next_line()
    assert told is not None
    assert told["first"] >= 250
    assert told["first"] + told["second"] == told["distinct"] == told["committed"] == 500


@pytest.mark.parametrize("protocol", PROTOCOLS)
@pytest.mark.parametrize("version", CLIENT_VERSIONS)
def test_a_transactional_copy_is_exact_though_the_broker_is_killed(
    broker: OnelogKafka, tmp_path: Path, version: str, protocol: str
) -> None:
    numbers = [str(each).encode() for each in range(600)]
    for partition in range(PARTITIONS):
        at = numbers[partition * 150 : (partition + 1) * 150]
        produce(broker.bootstrap, "orders", list(at), partition=partition)
    with kafka_client(
        tmp_path, version, "Copy", broker.bootstrap, "orders", "copies", protocol, "600"
    ) as copier:
        for event in ("committed", "prepared", "committed", "prepared"):
            copier.wait_for(event, 3)
            broker.kill()
            broker.start()
        while copier.next_line() is not None:
            pass
    assert sorted(read_committed(broker, "copies")) == sorted(numbers)


def careful_reader(broker: OnelogKafka, topic: str, partitions: int) -> Consumer:
    """A consumer in no group: none of its own affairs sends it back to where it began."""
    reader = consumer(
        broker.bootstrap, "nobody", isolation_level="read_committed", enable_partition_eof=True
    )
    places = [TopicPartition(topic, each, OFFSET_BEGINNING) for each in range(partitions)]
    reader.assign(places)
    return reader


def read_committed(broker: OnelogKafka, topic: str) -> list[bytes]:
    """Everything that a careful reader sees, up to the ends of the partitions as they are now."""
    reader = careful_reader(broker, topic, PARTITIONS)
    found: list[bytes] = []
    ended: set[int | None] = set()
    while len(ended) < PARTITIONS:
        message = reader.poll(PATIENCE_S)
        assert message is not None
        if message.error() is not None:
            ended.add(message.partition())
        else:
            found.append(message.value() or b"")
    reader.close()
    return found


def next_count(reader: Consumer) -> tuple[str, int]:
    """The next word, and how often it was counted."""
    while True:
        message = reader.poll(PATIENCE_S)
        assert message is not None, "no counts come"
        error = message.error()
        if error is None:
            break
        assert error.code() == KafkaError._PARTITION_EOF, error
    return (message.key() or b"").decode(), int(message.value() or b"")


@pytest.mark.parametrize("version", CLIENT_VERSIONS)
def test_streams_counts_words_exactly_once_though_the_broker_is_killed(
    broker: OnelogKafka, tmp_path: Path, version: str
) -> None:
    lines = [b"one two three", b"two three", b"three"] * 40
    admin = AdminClient({"bootstrap.servers": broker.bootstrap})
    for made in admin.create_topics([NewTopic("lines", 2), NewTopic("counts", 2)]).values():
        made.result()
    produce(broker.bootstrap, "lines", list(lines))
    reader = careful_reader(broker, "counts", 2)
    arguments = [broker.bootstrap, "lines", "counts", str(tmp_path / "state"), "compact"]
    seen: Counter[str] = Counter()

    def read_until(**counts: int) -> None:
        while not all(seen[word] == count for word, count in counts.items()):
            word, count = next_count(reader)
            assert count > seen[word], "a word was counted again"
            seen[word] = count

    with kafka_client(tmp_path, version, "WordCount", *arguments) as streams:
        streams.wait_for("RUNNING")
        read_until(one=40, two=80, three=120)
        broker.kill()
        broker.start()
        broker.wait_until_ready()
        produce(broker.bootstrap, "lines", list(lines))
        read_until(one=80, two=160, three=240)
    reader.close()
    with kafka_client(tmp_path, version, "WordCount", *arguments) as streams:
        streams.wait_for("RUNNING")
        produce(broker.bootstrap, "lines", [b"one"])
        again = careful_reader(broker, "counts", 2)
        while (found := next_count(again)) != ("one", 81):
            assert found[1] <= 240, "a word was counted again"
        again.close()
