"""The spark-kafka suite: the data source and Spark's Kafka connector read the same broker.

One Spark (local[2]) and one broker of OneLog's. One topic was written by Kafka's own client, the
other by OneLog's; both readers read both, in turns, so that they get the same JVM and the same
noise: key and body, or all columns. What a row costs Spark (with its workers) and the broker is
told apart. Then each writes: the sink commits exactly once, the connector writes at least once.
"""

import functools
import os
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from statistics import median
from typing import TYPE_CHECKING

import pyspark

from benchmarks.kafka_peer import JARS, connector_jars
from benchmarks.process_usage import cpu_seconds
from benchmarks.table import Options, Row, not_run
from benchmarks.timing import ROUNDS, Stopwatch
from onelog.client import Message, Producer, Queue
from onelog.spark import session
from tests.e2e.java_toolchain import JavaFailedError, JavaMissingError
from tests.e2e.onelog_peer import OnelogPeer
from tests.e2e.remoting_probe import create_topic

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

MESSAGES, MESSAGES_QUICK = 2_000_000, 200_000
QUEUES = 4
BODY_BYTES = 100
LIST_MESSAGES = 250
WARM_UP_ROUNDS = 2
CORES = 2
RATIO_MIN = {"by Kafka's client": 1.5, "by OneLog's client": 2.0}
TOPICS = {"by Kafka's client": "of-kafka", "by OneLog's client": "of-onelog"}
OURS, THEIRS = "data source", "Kafka connector"
OUT_TOPIC = "out"


@dataclass(frozen=True, slots=True)
class Cost:
    """What a job took."""

    rows: int
    wall_s: float
    spark_s: float
    broker_s: float

    @property
    def per_second(self) -> float:
        return self.rows / self.wall_s

    @property
    def spark_us(self) -> float:
        return self.spark_s / self.rows * 1e6

    @property
    def broker_us(self) -> float:
        return self.broker_s / self.rows * 1e6


Job = Callable[[], None]


def run(options: Options) -> list[Row]:
    """Measure."""
    try:
        jars = connector_jars(pyspark.__version__)
    except (JavaFailedError, JavaMissingError) as error:
        return [not_run("Spark's Kafka connector", f"{error}; {JARS} may name jars")]
    spark = session("benchmark", master=f"local[{CORES}]", conf={"spark.jars": ",".join(jars)})
    try:
        with _broker(options) as peer:
            return _Suite(spark, peer, options).rows()
    finally:
        spark.stop()


@contextmanager
def _broker(options: Options) -> Iterator[OnelogPeer]:
    peer = OnelogPeer(options.folder / "onelog", kafka=True)
    peer.start()
    try:
        yield peer
    finally:
        peer.close()


class _Suite:
    def __init__(self, spark: "SparkSession", peer: OnelogPeer, options: Options) -> None:
        self._spark = spark
        self._peer = peer
        self._announce = options.announce
        self._count = MESSAGES_QUICK if options.quick else MESSAGES
        self._rounds = options.rounds or ROUNDS

    def rows(self) -> list[Row]:
        for topic in (*TOPICS.values(), OUT_TOPIC):
            create_topic(self._peer.broker_address, topic, QUEUES)
        self._announce("filling topics")
        self._fill_by_kafka(TOPICS["by Kafka's client"])
        self._fill_by_onelog(TOPICS["by OneLog's client"])
        rows = []
        for written, topic in TOPICS.items():
            for columns in ("key, body", "all columns"):
                jobs = {
                    OURS: functools.partial(_read, self._ours(topic, columns)),
                    THEIRS: functools.partial(_read, self._theirs(topic, columns)),
                }
                costs = self._in_turns(f"{written}: {columns}", jobs)
                rows += _compared(f"{written}, {columns}", costs, RATIO_MIN[written])
        sinks = {OURS: self._write_ours, THEIRS: self._write_theirs}
        return [*rows, *_compared("writing", self._in_turns("writing", sinks), 1.0)]

    # -- topics ----------------------------------------------------------------------------------

    def _fill_by_kafka(self, topic: str) -> None:
        from confluent_kafka import Producer as KafkaProducer

        producer = KafkaProducer({"bootstrap.servers": self._peer.bootstrap, "linger.ms": 5})
        for number in range(self._count):
            while True:
                try:
                    producer.produce(
                        topic, _body(number), b"key-%d" % number, partition=number % QUEUES
                    )
                    break
                except BufferError:
                    producer.poll(1)
        assert producer.flush(60) == 0

    def _fill_by_onelog(self, topic: str) -> None:
        with Producer("benchmark", nameserver=self._peer.nameservers) as producer:
            for first in range(0, self._count, LIST_MESSAGES):
                queue = Queue(topic, self._peer.broker_name, first // LIST_MESSAGES % QUEUES)
                numbers = range(first, min(first + LIST_MESSAGES, self._count))
                some = [Message(topic, _body(each), keys=[f"key-{each}"]) for each in numbers]
                producer.send_batch(some, queue=queue)

    # -- jobs ------------------------------------------------------------------------------------

    def _ours(self, topic: str, columns: str) -> "DataFrame":
        reader = self._spark.read.format("onelog").option("subscribe", topic)
        if columns == "key, body":
            reader = reader.option("columns", "key,body")
        return reader.option("nameserver", self._peer.nameservers).load()

    def _theirs(self, topic: str, columns: str) -> "DataFrame":
        reader = self._spark.read.format("kafka").option("subscribe", topic)
        if columns == "all columns":
            reader = reader.option("includeHeaders", "true")
        rows = reader.option("kafka.bootstrap.servers", self._peer.bootstrap).load()
        return rows if columns == "all columns" else rows.selectExpr("key", "value as body")

    def _made(self) -> "DataFrame":
        return self._spark.range(0, self._count, 1, CORES).selectExpr(
            f"cast(lpad(cast(id as string), {BODY_BYTES}, 'x') as binary) body"
        )

    def _write_ours(self) -> None:
        writer = self._made().write.format("onelog").mode("append")
        writer.options(nameserver=self._peer.nameservers, topic=OUT_TOPIC).save()

    def _write_theirs(self) -> None:
        writer = self._made().selectExpr("body as value").write.format("kafka")
        bootstrap = {"kafka.bootstrap.servers": self._peer.bootstrap}
        writer.options(**bootstrap, topic=OUT_TOPIC).save()

    def _in_turns(self, name: str, jobs: Mapping[str, Job]) -> dict[str, list[Cost]]:
        found: dict[str, list[Cost]] = {who: [] for who in jobs}
        for number in range(WARM_UP_ROUNDS + self._rounds):
            for who, job in jobs.items():
                self._announce(f"{name}, {who}, round {number}")
                cost = self._cost(job)
                if number >= WARM_UP_ROUNDS:
                    found[who].append(cost)
        return found

    def _cost(self, job: Job) -> Cost:
        spark, broker = [os.getpid()], self._peer.broker_pids
        theirs, ours = cpu_seconds(spark), cpu_seconds(broker)
        with Stopwatch() as watch:
            job()
        # The broker is a child of this process, too.
        broker_s = cpu_seconds(broker) - ours
        return Cost(self._count, watch.wall_s, cpu_seconds(spark) - theirs - broker_s, broker_s)


def _body(number: int) -> bytes:
    return (b"%d " % number).ljust(BODY_BYTES, b"abcdefghij"[number % 10 :][:1])


def _read(rows: "DataFrame") -> None:
    rows.write.format("noop").mode("overwrite").save()


def _compared(job: str, costs: dict[str, list[Cost]], ratio_min: float) -> list[Row]:
    ours, theirs = costs[OURS], costs[THEIRS]
    spark_us, broker_us = (
        [median(getattr(each, what) for each in some) for some in (ours, theirs)]
        for what in ("spark_us", "broker_us")
    )
    return [
        Row(
            job,
            max(each.per_second for each in ours),
            "msg/s",
            max(each.per_second for each in theirs),
            THEIRS,
            ratio_min,
            cpu_us=spark_us[0] + broker_us[0],
            note=f"CPU of Spark {spark_us[0]:.2f} us each (connector {spark_us[1]:.2f}), of the "
            f"broker {broker_us[0]:.2f} ({broker_us[1]:.2f})",
        )
    ]
