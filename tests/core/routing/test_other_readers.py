"""A queue of AMQP's is a topic to everybody else, and a topic's messages reach its consumers."""

from pathlib import Path

import pytest

from onelog.core.access import SELF
from onelog.core.catalog.topics import TopicConfig
from onelog.core.cursors.forms import records_of
from onelog.core.transactions.in_place import UNNUMBERED
from onelog.gateways.kafka import batches
from onelog.gateways.kafka.batches import Budget
from onelog.message import Message, decode_properties
from onelog.record.decode import decode_messages, decode_records
from onelog.record.forms import amqp, kafka
from onelog.record.forms.amqp_fields import decode_properties as decode_content_properties
from onelog.record.forms.conversion import in_amqp_form
from onelog.record.forms.neutral import Neutral
from onelog.store.verify import verify
from tests.core.leasing import Reader, bodies, reading
from tests.core.queues.yard import Yard, body_of
from tests.core.routing.queues import Routed
from tests.record.forms.samples import kafka_batch, neutrals
from tests.spark.store_rows import all_ranges, rows_from_files

HEADERS = {"count": 3, "text": "lamp", "raw": b"\xff", "none": None}


@pytest.fixture
def sales(routed: Routed) -> Routed:
    """Two queues with the same two messages."""
    for name in ("north", "south"):
        routed.queue(name)
        routed.bind("amq.topic", name, "#")
    routed.publish("amq.topic", "a.b", b"first", message_id="4711", headers=HEADERS, priority=5)
    routed.publish("amq.topic", "a.c", b"second")
    return routed


def pulled(routed: Routed, topic: str) -> list[Message]:
    result = routed.world.pull(0, topic)
    return [each for part in result.slices for each in decode_records(part)]


@pytest.mark.parametrize("topic", ["north", "south"])
def test_rocketmq_pulls_them_with_properties(sales: Routed, topic: str) -> None:
    first, second = pulled(sales, topic)
    assert [bytes(first.body), bytes(second.body)] == [b"first", b"second"]
    assert [(each.topic, each.queue_offset) for each in (first, second)] == [(topic, 0), (topic, 1)]
    properties = decode_properties(first.properties)
    assert first.keys == ["4711"]
    assert properties["amqp.exchange"] == "amq.topic"
    assert properties["amqp.routing-key"] == "a.b"
    assert properties["amqp.priority"] == "5"
    assert (properties["count"], properties["text"]) == ("3", "lamp")
    assert first.unique_key != second.unique_key
    assert decode_properties(second.properties)["amqp.routing-key"] == "a.c"


@pytest.mark.parametrize("topic", ["north", "south"])
def test_kafka_fetches_them_as_batches(sales: Routed, topic: str) -> None:
    store = sales.world.store
    read = store.read_now(topic, 0, 0, 10, 1 << 20)
    pieces, _ = batches.pieces_of(
        topic, 0, 0, read.slices, sales.world.broker.cursors.messages_in, Budget()
    )
    data = b"".join(pieces)
    assert kafka.read_head(data).base_offset == 0
    first, second = kafka.to_neutral(data)
    assert (first.key, first.body) == (b"4711", b"first")
    assert dict(first.headers)["raw"] == b"\xff"
    assert dict(first.headers)["amqp.header-types"] == b"I---"
    assert (second.key, second.body) == (None, b"second")
    # What Kafka's readers get is what was published, and can be published again.
    assert (
        amqp.read(amqp.from_neutral(first)).properties
        == amqp.read(store.messages(topic, 0, 0, 1)[0].body).properties
    )


def test_a_message_that_was_looked_up_is_converted(sales: Routed) -> None:
    (stored, _) = sales.world.messages("north")
    (record,) = records_of(stored, 10)
    (message,) = decode_messages(record)
    assert bytes(message.body) == b"first"


def test_pop_leases_them(tmp_path: Path) -> None:
    reader: Reader = reading(tmp_path)
    routed = Routed(reader.world)
    routed.world.core.topics.ensure(TopicConfig(reader.topic, 1, 1))
    routed.queue(reader.topic)
    for body in (b"one", b"two"):
        routed.publish("", reader.topic, body)
    found = reader.pop()
    assert bodies(found) == [b"one", b"two"]
    reader.ack(*found)
    assert reader.pop() == []


def test_spark_reads_them_from_the_files(sales: Routed) -> None:
    world = sales.world
    world.close()
    assert verify(world.folder).problems_total == 0
    rows = rows_from_files(world.folder, all_ranges(world.folder, ["north", "south"]))
    world.start()
    assert [(row["topic"], row["offset"], row["key"], row["body"]) for row in rows] == [
        (topic, offset, key, body)
        for topic in ("north", "south")
        for offset, key, body in ((0, "4711", b"first"), (1, None, b"second"))
    ]
    properties = rows[0]["properties"]
    assert isinstance(properties, dict | list)
    assert dict(properties)["amqp.routing-key"] == "a.b"


def test_a_queue_is_the_same_after_its_entries_were_lost(sales: Routed) -> None:
    world = sales.world
    before = [world.store.entry_at("south", 0, offset) for offset in range(2)]
    world.close()
    (world.folder / "checkpoint").unlink()
    for path in (world.folder / "consumequeue").rglob("*"):
        if path.is_file():
            path.unlink()
    world.start()
    assert [world.store.entry_at("south", 0, offset) for offset in range(2)] == before


# -- the other way round --------------------------------------------------------------------------


def test_consumers_get_what_rocketmq_and_kafka_sent_to_the_queue(tmp_path: Path) -> None:
    yard = Yard(tmp_path / "store")
    yard.queue("orders")
    yard.send("orders", 0, b"by rocketmq", KEYS="k1", colour="red")
    yard.core.marked.mark("orders")
    batch = kafka_batch([Neutral(b"k2", b"by kafka", (("h", b"\x00\xff"),)), *neutrals(2)])
    yard.broker.publish.send(SELF, batch, yard.on_stored, stamp=UNNUMBERED)
    yard.settle()
    yard.put_all(b"by amqp", key="orders")
    taker = yard.consume("orders")
    assert taker.bodies == [b"by rocketmq", b"by kafka", b"", b"body-1", b"by amqp"]
    first, second = (amqp.read(each[2]) for each in taker.got[:2])
    assert (first.exchange, first.key) == ("", "orders")
    assert decode_content_properties(first.properties) == {
        "message_id": "k1",
        "headers": {"colour": "red"},
    }
    assert decode_content_properties(second.properties) == {
        "message_id": "k2",
        "headers": {"h": b"\x00\xff"},
    }
    yard.find("orders").ack(taker.places)
    yard.record()
    yard.restart()
    assert yard.counts("orders") == (0, 0)
    yard.close()


def test_what_is_amqps_comes_out_as_it_is(sales: Routed) -> None:
    (stored, _) = sales.world.messages("south")
    assert in_amqp_form(stored, "south") == [(0, bytes(stored.body))]
    assert body_of((0, 0, bytes(stored.body), 0, 0, 0)) == b"first"
