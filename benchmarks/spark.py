"""The spark suite: topics as tables, beside Spark's own connector for a real Kafka broker.

One Spark (local[2]) runs all jobs, while both brokers are up: each reads a topic of messages with
100 random letters in four queues, sums the lengths of the bodies, or writes offset, time and body
as Parquet. Rounds go from one source to the next, so that all of them get the same JVM, warm or
not, and the same noise. Kafka's topic is written by its own producer; OneLog's directly into its
store, before the broker starts, with the unique keys that clients give, in runs of 64 of a queue.
Then what the pieces do: decoding by itself, a trigger with next to nothing to do, and the
exactly-once sink.
"""

import contextlib
import functools
import os
import random
import shutil
import string
import time
from collections.abc import Callable, Iterable
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass
from multiprocessing import get_context
from pathlib import Path
from statistics import median
from typing import TYPE_CHECKING

import pyspark

from benchmarks.kafka_peer import JARS, PARTITIONS, KafkaPeer, connector_jars
from benchmarks.process_usage import cpu_seconds
from benchmarks.table import Options, Row, at_least, not_run, under
from benchmarks.timing import ROUNDS, Rate, Stopwatch, best
from benchmarks.traffic import unique_key
from onelog.message import NewMessage
from onelog.spark import session
from onelog.store.message_store import MessageStore
from tests.e2e.java_toolchain import JavaFailedError, JavaMissingError
from tests.e2e.onelog_peer import OnelogPeer
from tests.e2e.remoting_probe import create_topic
from tests.spark.fire import Cluster

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

MESSAGES, MESSAGES_QUICK = 5_000_000, 200_000
WRITTEN, WRITTEN_QUICK = 1_000_000, 200_000
BODY_BYTES = 100
LIST_MESSAGES = 64
TOPIC, MIXED_TOPIC, SMALL_TOPIC, OUT_TOPIC = "many", "mixed", "few", "out"
MIXED_MESSAGES = 100_000
SMALL_MESSAGES = 1_000
TRIGGER_ROWS = 10
WARM_UP_TRIGGERS = 20
"""The first stream of a JVM is slower at its beginning, until its code is compiled."""
CORES = 2
DECODED_BYTES = 64 << 20
DECODE_CHUNK_BYTES = 1 << 20
NETWORK_RATIO_MIN, DIRECT_RATIO_MIN = 0.8, 1.0
DECODE_MB_MIN, TRIGGER_MS_MAX, SINK_RATE_MIN = 400, 100, 150_000
KAFKA = "Spark's Kafka connector"
COLUMNS = ("offset", "store_time", "body")

Read = Callable[[tuple[str, ...]], "DataFrame"]


@dataclass(frozen=True, slots=True)
class Source:
    """Where a topic is read from, and who works for that besides Spark."""

    read: Read
    pids: list[int]


def run(options: Options) -> list[Row]:
    """Measure."""
    try:
        jars, missing = connector_jars(pyspark.__version__), ""
    except (JavaFailedError, JavaMissingError) as error:
        jars, missing = [], str(error)
    conf = {"spark.jars": ",".join(jars)} if jars else {}
    spark = session("benchmark", master=f"local[{CORES}]", conf=conf)
    try:
        with contextlib.ExitStack() as stack:
            suite = Suite(spark, options)
            theirs = {} if missing else suite.kafka(stack)
            rows = suite.onelog(stack, theirs)
    finally:
        spark.stop()
    return [*rows, *([not_run("Kafka's connector", missing)] if missing else [])]


class Suite:
    """The measurements of one run."""

    def __init__(self, spark: "SparkSession", options: Options) -> None:
        self._spark = spark
        self._folder = options.folder
        self._announce = options.announce
        self._count = MESSAGES_QUICK if options.quick else MESSAGES
        self._written = WRITTEN_QUICK if options.quick else WRITTEN

    def kafka(self, stack: contextlib.ExitStack) -> dict[str, Source]:
        """Spark's connector, with a topic to read."""
        self._announce("filling a topic of Kafka")
        peer = stack.enter_context(KafkaPeer(self._folder / "kafka"))
        peer.fill(TOPIC, self._count, BODY_BYTES)
        names = {"offset": "offset", "store_time": "timestamp", "body": "value"}

        def read(columns: tuple[str, ...]) -> "DataFrame":
            reader = self._spark.read.format("kafka").option("subscribe", TOPIC)
            rows = reader.option("kafka.bootstrap.servers", peer.bootstrap).load()
            return rows.selectExpr(*(f"{names[name]} as {name}" for name in columns))

        return {KAFKA: Source(read, peer.pids)}

    def onelog(self, stack: contextlib.ExitStack, theirs: dict[str, Source]) -> list[Row]:
        """Everything, beside what there is of Kafka."""
        self._announce("filling topics of OneLog")
        cluster = stack.enter_context(Cluster(self._folder / "onelog"))
        peer, store = cluster.broker, cluster.store
        for topic, queues in ((TOPIC, PARTITIONS), (SMALL_TOPIC, 1), (OUT_TOPIC, PARTITIONS)):
            create_topic(peer.broker_address, topic, queues)
        peer.stop_broker()
        fill(store, TOPIC, self._count, PARTITIONS)
        fill(store, MIXED_TOPIC, MIXED_MESSAGES, 1, mixed=True)
        fill(store, SMALL_TOPIC, SMALL_MESSAGES, 1)
        peer.start()
        sources = {
            **theirs,
            "network": Source(self._reader(nameserver=peer.nameservers), peer.broker_pids),
            "direct": Source(self._reader(store=str(store)), []),
        }
        rows = []
        for name, job in (("count", self._count_job), ("Parquet", self._parquet_job)):
            rows += _compared(name, self._rounds(f"topic -> {name}", job, sources))
        decoding = [
            self._decode(store, TOPIC, "decoding, two processes"),
            self._decode(store, MIXED_TOPIC, "decoding, bodies of 50 to 150 bytes"),
        ]
        return [*rows, *decoding, self._trigger(peer), self._sink(peer)]

    def _reader(self, **options: str) -> Read:
        def read(columns: tuple[str, ...]) -> "DataFrame":
            reader = self._spark.read.format("onelog").options(**options, subscribe=TOPIC)
            return reader.option("columns", ",".join(columns)).load()

        return read

    # -- jobs ----------------------------------------------------------------------------------

    def _rounds(
        self, name: str, job: Callable[[Read], None], sources: dict[str, Source]
    ) -> dict[str, Rate]:
        """The best of a few rounds of each source, after one that warms up."""
        found: dict[str, list[Rate]] = {how: [] for how in sources}
        for number in range(ROUNDS + 1):
            for how, source in sources.items():
                self._announce(f"{name}, {how}, round {number}")
                found[how].append(self._timed(source.pids, functools.partial(job, source.read)))
        return {how: best(iter(rates[1:]).__next__) for how, rates in found.items()}

    def _timed(self, pids: Iterable[int], job: Callable[[], None], count: int = 0) -> Rate:
        """A job, with the CPU time of Spark, its workers and the broker."""
        everybody = [os.getpid(), *pids]
        before = cpu_seconds(everybody)
        with Stopwatch() as watch:
            job()
        return Rate(count or self._count, watch.wall_s, cpu_seconds(everybody) - before)

    def _count_job(self, read: Read) -> None:
        rows = read(("body",)).selectExpr("count(*)", "sum(length(body))")
        found = tuple(rows.collect()[0])
        assert found == (self._count, self._count * BODY_BYTES), found

    def _parquet_job(self, read: Read) -> None:
        folder = self._folder / "parquet"
        read(COLUMNS).write.parquet(str(folder))
        shutil.rmtree(folder)

    def _sink(self, peer: OnelogPeer) -> Row:
        self._announce("OneLog: the exactly-once sink")
        rows = self._spark.range(0, self._written, 1, CORES).selectExpr(
            f"cast(lpad(cast(id as string), {BODY_BYTES}, 'x') as binary) body"
        )

        def write() -> None:
            writer = rows.write.format("onelog").mode("append")
            writer.options(nameserver=peer.nameservers, topic=OUT_TOPIC).save()

        rate = best(lambda: self._timed(peer.broker_pids, write, self._written))
        note = f"{self._written:,} messages, staged and committed"
        return at_least(
            "exactly-once sink", rate.per_second, "msg/s", SINK_RATE_MIN, rate.cpu_us, note
        )

    def _trigger(self, peer: OnelogPeer) -> Row:
        self._announce("OneLog: triggers")
        rows = (
            self._spark.readStream.format("onelog")
            .options(
                nameserver=peer.nameservers,
                subscribe=SMALL_TOPIC,
                startingOffsets="earliest",
                maxOffsetsPerTrigger=str(TRIGGER_ROWS),
            )
            .load()
        )
        checkpoint = self._folder / "triggers"
        query = (
            rows.writeStream.format("noop")
            .option("checkpointLocation", str(checkpoint))
            .trigger(availableNow=True)
            .start()
        )
        query.awaitTermination()
        times = [
            each["durationMs"]["triggerExecution"]
            for each in query.recentProgress
            if each["numInputRows"]
        ]
        cold, times = times[:WARM_UP_TRIGGERS], times[WARM_UP_TRIGGERS:]
        note = (
            f"{len(times)} triggers of {TRIGGER_ROWS} messages, no-op sink; best {min(times)} ms; "
            f"the {len(cold)} before them, with the JVM cold, {median(cold):.0f} ms"
        )
        return under("a trigger, median", median(times), "ms", TRIGGER_MS_MAX, note=note)

    def _decode(self, store: Path, topic: str, name: str) -> Row:
        self._announce(f"OneLog: decoding, {topic}")
        chunks = record_chunks(store, topic)
        rounds = max(1, DECODED_BYTES // sum(map(len, chunks)))
        with ProcessPoolExecutor(CORES, get_context("spawn")) as pool:
            results = [
                list(pool.map(decode_rate, [topic] * CORES, [chunks] * CORES, [rounds] * CORES))
                for _ in range(ROUNDS)
            ]
        wall, cpu, records = max(
            tuple(sum(values) for values in zip(*result, strict=True)) for result in results
        )
        note = f"bytes of bodies; of records {records:,.0f} MB/s; by CPU time {cpu:,.0f} MB/s"
        return at_least(name, wall, "MB/s", DECODE_MB_MIN, None, note)


def fill(store: Path, topic: str, count: int, queues: int, *, mixed: bool = False) -> None:
    """Put messages into the store of a broker that does not run; `mixed` ones differ in size."""
    chance = random.Random(count)
    letters = string.ascii_uppercase
    sizes = [chance.randint(50, 150) if mixed else BODY_BYTES for _ in range(997)]
    bodies = ["".join(chance.choices(letters, k=size)).encode() for size in sizes]
    now_ms = time.time_ns() // 1_000_000
    with MessageStore.open(store) as opened:
        for first in range(0, count, LIST_MESSAGES):
            opened.append(
                [
                    NewMessage(
                        topic,
                        first // LIST_MESSAGES % queues,
                        bodies[number % len(bodies)],
                        b"UNIQ_KEY\x01%b\x02" % unique_key(number).encode(),
                        born_ms=now_ms,
                    )
                    for number in range(first, min(first + LIST_MESSAGES, count))
                ]
            )


def record_chunks(store: Path, topic: str) -> list[bytes]:
    """Records as a pull answers them, about a megabyte each."""
    from onelog.store.readonly import open_readonly

    reader = open_readonly(store)
    chunks: list[bytes] = []
    offset = 0
    while len(chunks) < 16:
        found = reader.read(topic, 0, offset, 1 << 16, DECODE_CHUNK_BYTES)
        data = b"".join(found.slices)
        if not data:
            break
        chunks.append(data)
        offset = int(found.next_offset)
    return chunks


def decode_rate(topic: str, chunks: list[bytes], rounds: int) -> tuple[float, float, float]:
    """In a process of its own: MB of bodies a second, a CPU second; MB of records a second."""
    from pyspark.sql.pandas.types import to_arrow_schema

    from onelog.spark.columns.messages import RecordDecoder
    from onelog.spark.columns.schema import Selection, spark_schema

    decoder = RecordDecoder(COLUMNS, to_arrow_schema(spark_schema(COLUMNS), timezone="UTC"))
    selection = Selection("broker-a", topic)
    body_bytes = sum(
        batch.column("body").nbytes - 4 * batch.num_rows
        for chunk in chunks
        for batch in decoder.decode(chunk, selection)
    )
    with Stopwatch() as watch:
        for _ in range(rounds):
            for chunk in chunks:
                list(decoder.decode(chunk, selection))
    bodies, records = rounds * body_bytes / 1e6, rounds * sum(map(len, chunks)) / 1e6
    return bodies / watch.wall_s, bodies / watch.cpu_s, records / watch.wall_s


def _compared(job: str, rates: dict[str, Rate]) -> list[Row]:
    theirs = rates.get(KAFKA)
    note = "" if theirs is None else f"CPU with Kafka {theirs.cpu_us:.2f} us each"
    if theirs is not None and JARS in os.environ:
        note += f"; the connector is not Maven's, but what {JARS} names"
    return [
        Row(
            f"topic -> {job}, {how}",
            rates[how].per_second,
            "msg/s",
            None if theirs is None else theirs.per_second,
            KAFKA,
            ratio_min,
            cpu_us=rates[how].cpu_us,
            note=note,
        )
        for how, ratio_min in (("network", NETWORK_RATIO_MIN), ("direct", DIRECT_RATIO_MIN))
    ]
