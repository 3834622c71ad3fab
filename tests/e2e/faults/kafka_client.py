"""The load of a Kafka client (librdkafka): an idempotent producer and a group, with histories.

    python -m tests.e2e.faults.kafka_client BOOTSTRAP TOPIC KEYS FOLDER

A key is a partition. For each a message is sent again until it is acknowledged, and only then the
next one. When there is a file `enough` the producer ends and makes a file `kafka.sent`; the
consumer ends with the process.
"""

import sys
import threading
import time
from pathlib import Path

from confluent_kafka import Consumer, KafkaError, Message, Producer

from tests.e2e.faults.history import History, message_id, now_ns
from tests.e2e.faults.sdk_client import PAUSE_S, TIMEOUT_S, parsed

FAST = {
    # Meet a new master soon, as one who cares about fail-over would say it.
    "metadata.max.age.ms": 2_000,
    "topic.metadata.refresh.interval.ms": 1_000,
    "topic.metadata.refresh.fast.interval.ms": 100,
    "reconnect.backoff.ms": 50,
    "reconnect.backoff.max.ms": 500,
    "socket.connection.setup.timeout.ms": 1_000,
    "socket.timeout.ms": 3_000,
}


class Sender(threading.Thread):
    """Sends the messages of a key, one after the other."""

    def __init__(
        self, producer: Producer, topic: str, partition: int, history: History, enough: Path
    ) -> None:
        super().__init__(daemon=True)
        self._producer = producer
        self._topic = topic
        self._partition = partition
        self._history = history
        self._enough = enough

    def run(self) -> None:
        """Until it is enough."""
        number = 0
        while not self._enough.exists():
            number += self._send(number)
            time.sleep(PAUSE_S)

    def _send(self, number: int) -> bool:
        key = f"k{self._partition}"
        name = message_id("kafka", key, number)
        about = {"id": name, "key": key, "number": number, "begin": now_ns()}
        ended = threading.Event()
        said: list[bool] = []

        def on_delivery(error: KafkaError | None, message: Message) -> None:
            said.append(error is None)
            more: dict[str, object] = {"result": "failed", "error": str(error)}
            if error is None:
                more = {"result": "ok", "queue": message.partition(), "offset": message.offset()}
            self._history.add("send", **about, end=now_ns(), **more)
            ended.set()

        self._producer.produce(
            self._topic, name.encode(), key, partition=self._partition, on_delivery=on_delivery
        )
        ended.wait()
        return said[0]


def consume(bootstrap: str, topic: str, history: History) -> None:
    """Take messages until this process ends."""
    consumer = Consumer(
        {
            "bootstrap.servers": bootstrap,
            "group.id": f"{topic}-group",
            "auto.offset.reset": "earliest",
            "session.timeout.ms": 6_000,
            **FAST,
        }
    )
    consumer.subscribe([topic])
    while True:
        message = consumer.poll(1.0)
        if message is None or message.error() is not None:
            continue
        at, body = now_ns(), message.value()
        assert isinstance(body, bytes)
        history.add(
            "receive",
            **parsed(body),
            begin=at,
            end=at,
            queue=message.partition(),
            offset=message.offset(),
        )


def main(bootstrap: str, topic: str, keys: int, folder: Path) -> None:
    """Send until it is enough, consume until this process ends."""
    own = {"kind": "kafka", "topic": topic, "name": "kafka"}
    sent = History(folder / "kafka-producer.jsonl", role="producer", **own)
    seen = History(
        folder / "kafka-consumer.jsonl",
        role="consumer",
        group=f"{topic}-group",
        ordered=True,
        **own,
    )
    producer = Producer(
        {
            "bootstrap.servers": bootstrap,
            "enable.idempotence": True,
            "linger.ms": 0,
            "message.timeout.ms": 60_000,
            "request.timeout.ms": int(TIMEOUT_S * 1000),
            "retry.backoff.ms": 50,
            **FAST,
        }
    )
    threading.Thread(target=consume, args=(bootstrap, topic, seen), daemon=True).start()
    senders = [
        Sender(producer, topic, partition, sent, folder / "enough") for partition in range(keys)
    ]
    for sender in senders:
        sender.start()
    while any(sender.is_alive() for sender in senders):
        producer.poll(0.1)
    (folder / "kafka.sent").touch()
    threading.Event().wait()


if __name__ == "__main__":
    main(sys.argv[1], sys.argv[2], int(sys.argv[3]), Path(sys.argv[4]))
