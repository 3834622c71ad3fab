"""Keys, bodies and headers as their senders had them, read from brokers and files, and copied."""

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import pika
import pytest
from confluent_kafka import Consumer, Producer, TopicPartition

import onelog
from onelog.client.message import Message
from onelog.embedded_broker import EmbeddedBroker
from onelog.errors import MessageError
from onelog.spark import lake
from onelog.spark.brokers import disconnect
from onelog.spark.columns.schema import spark_schema
from onelog.spark.jobs import copies, reconcile
from onelog.spark.jobs.queries import run
from onelog.spark.options import write_options
from onelog.spark.write.sink import OnelogWriter

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

SECONDS = 60
Header = tuple[str, bytes | None]


class Sent(NamedTuple):
    """A message as Kafka's clients have it."""

    key: bytes | None
    body: bytes | None
    headers: tuple[Header, ...] = ()


SENT = [
    Sent(b"a b", b"1"),
    Sent(b"a c", b"2", (("h", b"1"), ("h", b"2"), ("g", None), ("bin", b"\xff\x00"))),
    Sent(b"\xff\xfe", b"3", (("", b""), ("KEYS", b"x"), ("größe", b"7"))),
    Sent(b"", b""),
    Sent(None, None),
    Sent(b"gone", None, (("why", b"old"),)),
    Sent(b"one\x01two\x02", b"4"),
]


@pytest.fixture(scope="module")
def mq() -> Iterator[EmbeddedBroker]:
    """A broker of all protocols, with `SENT` in the topic `sent`: compressed, and not."""
    with onelog.embedded(port=0, kafka=True, amqp=True, mqtt=True) as made:
        made.create_topic("sent", 1)
        for codec in ("none", "gzip"):
            producer = Producer(
                {
                    "bootstrap.servers": made.bootstrap_servers,
                    "linger.ms": 20,
                    "compression.type": codec,
                }
            )
            for each in SENT:
                producer.produce("sent", each.body, each.key, 0, headers=[*each.headers])
            assert producer.flush(SECONDS) == 0
        yield made
        disconnect()


@pytest.fixture(params=["cluster", "store"])
def place(request: pytest.FixtureRequest, mq: EmbeddedBroker) -> dict[str, str]:
    """Where to read from."""
    if request.param == "store":
        return {"store": str(mq.folder / "store")}
    return {"nameserver": mq.nameserver}


def table(spark: "SparkSession", place: dict[str, str], topic: str, **options: str) -> "DataFrame":
    given = {**place, "subscribe": topic, **options}
    return spark.read.format("onelog").options(**given).load()


def rows(frame: "DataFrame") -> list[Any]:
    return sorted(frame.collect(), key=lambda row: int(row.offset))


def as_sent(row: Any) -> Sent:
    key = None if row.key_bytes is None else bytes(row.key_bytes)
    body = None if row.body is None else bytes(row.body)
    headers = [(h.key, None if h.value is None else bytes(h.value)) for h in row.headers]
    return Sent(key, body, tuple(headers))


def heard(mq: EmbeddedBroker, topic: str, count: int) -> list[Sent]:
    """What Kafka's consumers get; the id is the broker's, and its clients'."""
    consumer = Consumer({"bootstrap.servers": mq.bootstrap_servers, "group.id": "g"})
    with mq.admin() as admin:
        queues = len(admin.topics.status(topic).queues)
    consumer.assign([TopicPartition(topic, number, 0) for number in range(queues)])
    found: list[Sent] = []
    while len(found) < count:
        message = consumer.poll(SECONDS)
        assert message is not None
        assert message.error() is None
        headers: Any = message.headers() or ()
        own = tuple(each for each in headers if each[0] != "UNIQ_KEY")
        found.append(Sent(message.key(), message.value(), own))
    consumer.close()
    return found


def test_rows_have_what_was_sent(
    spark: "SparkSession", mq: EmbeddedBroker, place: dict[str, str]
) -> None:
    found = rows(table(spark, place, "sent"))
    assert [as_sent(row) for row in found] == SENT * 2
    texts = ["a b", "a c", None, "", None, "gone", "one\x01two\x02"]
    assert [row.key for row in found] == texts * 2
    for columns in ("offset,key", "offset,body", "offset,headers", "offset,key_bytes"):
        name = columns.split(",")[1]
        some = rows(table(spark, place, "sent", columns=columns))
        assert [row[name] for row in some] == [row[name] for row in found], columns


def test_tombstones_have_no_decoded_fields_and_no_error(
    spark: "SparkSession", mq: EmbeddedBroker, place: dict[str, str]
) -> None:
    found = rows(table(spark, place, "sent", decode="string", columns="offset"))
    assert [row.value for row in found[:7]] == ["1", "2", "3", "", None, None, "4"]
    assert all(row._error is None for row in found)


COPIES: "dict[str, Callable[[DataFrame], DataFrame]]" = {
    "everything": lambda frame: frame,
    "no properties": lambda frame: frame.drop("properties"),
    "no headers": lambda frame: frame.drop("headers"),
    "bytes only": lambda frame: frame.drop("properties", "key").withColumnRenamed(
        "key_bytes", "key"
    ),
}


@pytest.mark.parametrize("what", COPIES)
@pytest.mark.parametrize("delivery", ["exactly-once", "at-least-once"])
def test_a_copy_is_what_was_sent(
    spark: "SparkSession", mq: EmbeddedBroker, what: str, delivery: str
) -> None:
    topic = f"copy-{what.replace(' ', '-')}-{delivery}"
    mq.create_topic(topic, 1)
    frame = table(spark, {"nameserver": mq.nameserver}, "sent")
    copied = COPIES[what](frame).drop("topic", "queue", "broker").coalesce(1)
    copied.write.format("onelog").mode("append").options(
        nameserver=mq.nameserver, topic=topic, delivery=delivery
    ).save()
    assert sorted(map(repr, heard(mq, topic, 14))) == sorted(map(repr, SENT * 2))


def test_jobs_keep_all_of_it(spark: "SparkSession", mq: EmbeddedBroker, tmp_path: Path) -> None:
    link = {"nameserver": mq.nameserver}
    mq.create_topic("once", 1)
    run(copies.deduplicate(spark, link, "sent", "once", tmp_path / "once"))
    keyless = [each for each in SENT if each.key is None]
    assert sorted(map(repr, heard(mq, "once", 8))) == sorted(map(repr, SENT + keyless))
    run(copies.redistribute(spark, link, "sent", "wide", tmp_path / "wide", times=2))
    assert sorted(map(repr, heard(mq, "wide", 14))) == sorted(map(repr, SENT * 2))
    assert reconcile.reconcile(spark, link, "sent", "wide").is_same
    different = reconcile.reconcile(spark, link, "sent", "once")
    assert different.counts["different"] == 6
    assert {each.key for each in different.samples} >= {"a b", "a c", "0xFFFE", "gone"}


def test_lake_tables_keep_all_of_it(
    spark: "SparkSession", mq: EmbeddedBroker, tmp_path: Path
) -> None:
    lake.sync(["sent"], tmp_path, spark=spark, options={"nameserver": mq.nameserver})
    found = rows(lake.read(spark, tmp_path / "sent"))
    assert [as_sent(row) for row in found] == SENT * 2


def test_headers_of_amqp_and_of_rocketmq_can_be_read(
    spark: "SparkSession", mq: EmbeddedBroker, place: dict[str, str]
) -> None:
    topic = "mixed-" + next(iter(place))
    mq.create_topic(topic, 1)
    with mq.producer("senders") as producer:
        producer.send(Message(topic, b"x", keys=["k1", "k2"], tags="t", properties={"p": "1"}))
    with mq.admin() as admin:
        admin.bindings.change(f"to/{topic}", topic, back=False)
    properties = pika.BasicProperties(
        message_id="id 1", headers={"n": 7, "list": [1, "x"], "s": "text", "no": None}
    )
    with pika.BlockingConnection(pika.URLParameters(mq.amqp_url)) as amqp:
        channel = amqp.channel()
        channel.confirm_delivery()
        channel.basic_publish("amq.topic", f"to.{topic}", b"body", properties)
    plain, typed = rows(table(spark, place, topic))
    assert (plain.key, plain.tags) == ("k1 k2", "t")
    assert {h.key: bytes(h.value) for h in plain.headers} == {"TAGS": b"t", "p": b"1"}
    assert typed.key == "id 1"
    found = {h.key: h.value if h.value is None else bytes(h.value) for h in typed.headers}
    assert found["amqp.routing-key"] == f"to.{topic}".encode()
    assert found | {"n": b"7", "list": b'[1, "x"]', "s": b"text", "no": None} == found


def test_too_large_a_row_is_refused_before_anything_is_sent(
    spark: "SparkSession", mq: EmbeddedBroker
) -> None:
    mq.create_topic("limits", 1)
    given = {"nameserver": mq.nameserver, "topic": "limits", "delivery": "at-least-once"}
    writer = OnelogWriter(write_options({**given, "maxBodyBytes": "1000"}), spark_schema(["body"]))
    frame = (
        spark.range(3000)
        .selectExpr("case when id < 2999 then repeat('x', 900) else repeat('x', 1001) end body")
        .coalesce(1)
    )
    with pytest.raises(MessageError, match="limit is 1000"):
        writer.write(iter(frame.toArrow().to_batches(max_chunksize=500)))
    assert table(spark, {"nameserver": mq.nameserver}, "limits").count() == 0


def test_bodies_of_some_megabytes_are_written_once(
    spark: "SparkSession", mq: EmbeddedBroker
) -> None:
    mq.create_topic("large", 1)
    frame = spark.range(4).selectExpr("repeat('x', cast(1 + id * 1000000 as int)) body")
    frame.coalesce(1).write.format("onelog").mode("append").options(
        nameserver=mq.nameserver, topic="large"
    ).save()
    sizes = [len(each.body or b"") for each in heard(mq, "large", 4)]
    assert sizes == [1, 1_000_001, 2_000_001, 3_000_001]
