"""Records as they are stored, for bulk readers: the rows are those of what a broker converts."""

import logging
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from onelog.core.transactions.in_place import Stamp
from onelog.errors import WireError
from onelog.message import NewMessage, SysFlag, encode_properties
from onelog.record.compression import Compression, compress
from onelog.record.decode import decode_records
from onelog.record.forms import FORM_MASK, Form, amqp, kafka, mqtt
from onelog.record.forms.kafka import Codec
from onelog.record.forms.neutral import Neutral
from onelog.record.inner_batch import encode_batch
from onelog.spark.columns.messages import RecordDecoder
from onelog.spark.columns.schema import ALL, EVERY_ROW, RowFilters, Selection
from onelog.store.reader import FetchStatus
from tests.core.compaction import queues as compacted
from tests.core.world import World
from tests.record.forms.samples import kafka_batch, neutrals
from tests.spark.record_samples import arrow_schema, rows_of

BULK = 1 << 20
Rows = list[dict[str, object]]


@pytest.fixture
def world(tmp_path: Path) -> Iterator[World]:
    opened = World(tmp_path / "store")
    opened.topic("orders", 2)
    opened.core.groups.require("readers")
    yield opened
    opened.close()


def read(
    world: World,
    *,
    unconverted: bool,
    topic: str = "orders",
    begin: int = 0,
    bytes_max: int = BULK,
    filters: RowFilters = EVERY_ROW,
    skip: bool = False,
) -> Rows:
    """The rows of a queue, as Spark makes them of pulls."""
    decoder = RecordDecoder(ALL, arrow_schema(ALL), on_corruption="skip" if skip else "fail")
    selection = Selection("b", topic, begin, world.store.max_offset(topic, 0), filters)
    rows: Rows = []
    offset = begin
    while True:
        how = {"bulk_bytes": bytes_max, "count_max": 1 << 16, "unconverted": unconverted}
        result = world.pull(offset, topic, **how)
        if result.next_offset <= offset:
            return rows
        if result.status is FetchStatus.FOUND:
            rows += rows_of(decoder.decode(b"".join(result.slices), selection))
        offset = result.next_offset


def forms_in(world: World, topic: str = "orders") -> set[int]:
    """The forms of records that a bulk reader gets."""
    result = world.pull(0, topic, bulk_bytes=BULK, count_max=1 << 16, unconverted=True)
    return {each.sys_flag & FORM_MASK for part in result.slices for each in decode_records(part)}


def plain() -> list[NewMessage]:
    tagged = encode_properties({"TAGS": "even", "KEYS": "k 1"})
    return [NewMessage("orders", 0, b"%d" % number, tagged) for number in range(5)]


def packed() -> list[NewMessage]:
    body = compress(b"x" * 5_000, Compression.ZLIB)
    return [NewMessage("orders", 0, body, sys_flag=int(Compression.ZLIB.sys_flag))]


def inner() -> list[NewMessage]:
    parts = [(number, b"part %d" % number, b"KEYS\x01k\x02") for number in range(7)]
    flags = SysFlag.INNER_BATCH | SysFlag.NEED_UNWRAP
    body = encode_batch(parts)
    return [NewMessage("orders", 0, body, sys_flag=int(flags), inner_count=len(parts))]


def batches(codec: Codec) -> Callable[[], list[NewMessage]]:
    simple = [Neutral(b"k%d" % number, b"v" * number, (), 7_000) for number in range(50)]
    return lambda: [
        kafka_batch(simple, codec=codec),
        kafka_batch(neutrals(30), codec=codec),
        kafka_batch([Neutral(b"a b\xff", None, (), 1)], codec=codec),
    ]


def of_amqp() -> list[NewMessage]:
    return [
        NewMessage("orders", 0, amqp.from_neutral(each, key="q"), sys_flag=Form.AMQP.sys_flag)
        for each in neutrals(5)
    ]


def of_mqtt() -> list[NewMessage]:
    return [
        NewMessage("orders", 0, mqtt.from_neutral(each), sys_flag=Form.MQTT.sys_flag)
        for each in neutrals(5)
    ]


FORMS: dict[str, Callable[[], list[NewMessage]]] = {
    "plain": plain,
    "compressed": packed,
    "inner batch": inner,
    "amqp": of_amqp,
    "mqtt": of_mqtt,
    **{f"kafka {codec.name.lower()}": batches(codec) for codec in Codec},
}


def put(world: World, messages: list[NewMessage]) -> None:
    if any(each.sys_flag & FORM_MASK for each in messages):
        world.core.marked.mark("orders")
    for each in messages:
        world.store.append([each])


@pytest.mark.parametrize("form", FORMS)
def test_rows_are_the_same_in_every_form(world: World, form: str) -> None:
    put(world, FORMS[form]())
    rows = read(world, unconverted=True)
    assert rows == read(world, unconverted=False)
    assert [row["offset"] for row in rows] == list(range(world.store.max_offset("orders", 0)))
    is_foreign = form.partition(" ")[0] in ("kafka", "amqp", "mqtt")
    assert (forms_in(world) != {0}) == is_foreign


@pytest.mark.parametrize("bytes_max", [1, 3_000, BULK])
@pytest.mark.parametrize("begin", [0, 3, 40])
def test_rows_are_the_same_of_all_forms_together(world: World, begin: int, bytes_max: int) -> None:
    for _ in range(2):
        for made in FORMS.values():
            put(world, made())
    rows = read(world, unconverted=True, begin=begin, bytes_max=bytes_max)
    assert rows == read(world, unconverted=False, begin=begin)
    assert [row["offset"] for row in rows] == list(
        range(begin, world.store.max_offset("orders", 0))
    )


def test_tags_are_chosen_by_the_reader(world: World) -> None:
    put(world, [*plain(), *batches(Codec.LZ4)(), *of_amqp()])
    filters = RowFilters(frozenset({"even"}))
    rows = read(world, unconverted=True, filters=filters)
    assert rows == read(world, unconverted=False, filters=filters)
    assert 0 < len(rows) < world.store.max_offset("orders", 0)


TX = compacted.TOPIC


def ended(world: World, producer: int, *, kept: bool) -> None:
    """The end of a transaction, as its marker says it."""
    body = kafka.control_batch(producer, 0, world.clock.now_ms(), commit=kept)
    marker = NewMessage(TX, 0, body, sys_flag=Form.KAFKA.sys_flag)
    (place,) = world.store.append([marker])
    world.core.batch_producers.ended((TX, 0), producer, 0, place.queue_offset, kept=kept)


def in_transaction(world: World, producer: int, *pairs: compacted.Pair) -> None:
    stamp = Stamp(producer, 0, 0, len(pairs), True)
    world.core.batch_producers.covers = lambda stamp, queue: None
    compacted.send(world, *pairs, stamp=stamp)


def bodies(rows: Rows) -> list[object]:
    return [row["body"] for row in rows]


def test_of_transactions_only_what_is_committed_is_read(world: World) -> None:
    world.topic(TX, 1)
    compacted.send(world, (b"a", b"before"))
    in_transaction(world, 7, (b"b", b"aborted"), (b"c", b"aborted"))
    in_transaction(world, 8, (b"d", b"kept"))
    in_transaction(world, 9, (b"e", b"open"))
    compacted.send(world, (b"f", b"behind"))
    ended(world, 7, kept=False)
    ended(world, 8, kept=True)
    for last in ([], [b"behind"]):
        rows = read(world, topic=TX, unconverted=True)
        assert rows == read(world, topic=TX, unconverted=False)
        assert bodies(rows) == [b"before", b"kept", *last]
        ended(world, 9, kept=False)


def test_bytes_of_aborted_messages_do_not_leave_the_broker(world: World) -> None:
    world.topic(TX, 1)
    in_transaction(world, 7, (b"a", b"a secret"))
    ended(world, 7, kept=False)
    result = world.pull(0, TX, bulk_bytes=BULK, unconverted=True)
    assert b"a secret" not in b"".join(result.slices)
    assert result.next_offset == 2


@pytest.mark.parametrize("codec", Codec)
def test_rows_are_those_that_compaction_leaves(world: World, codec: Codec) -> None:
    compacted.make(world)
    for number in range(60):
        pairs = [(b"k%d" % (number % 7), b"%d" % number), (b"x", b"last %d" % number)]
        compacted.send(world, *pairs, codec=codec)
    compacted.compact(world)
    compacted.send(world, (b"new", b"1"))
    for begin in (0, 100, 119):
        rows = read(world, topic=TX, unconverted=True, begin=begin)
        assert rows == read(world, topic=TX, unconverted=False, begin=begin)
        assert rows[-1]["body"] == b"1"
    assert len(read(world, topic=TX, unconverted=True)) < 20


def test_what_no_one_can_read_is_damage_to_both(world: World) -> None:
    world.core.marked.mark("orders")
    good = kafka_batch(neutrals(3))
    world.store.append([good])
    world.store.append([NewMessage("orders", 0, b"no batch", sys_flag=Form.KAFKA.sys_flag)])
    world.store.append([NewMessage("orders", 0, b"no table", sys_flag=Form.AMQP.sys_flag)])
    world.store.append([good])
    for unconverted in (True, False):
        with pytest.raises(WireError):
            read(world, unconverted=unconverted)
    rows = read(world, unconverted=True, skip=True)
    assert rows == read(world, unconverted=False, skip=True)
    assert [row["offset"] for row in rows] == [0, 1, 2, 5, 6, 7]


def test_a_message_of_a_batch_that_cannot_be_read_is_left_out_and_said(
    world: World, caplog: pytest.LogCaptureFixture
) -> None:
    world.core.marked.mark("orders")
    batch = kafka_batch([Neutral(b"k", b"v", (("h", b"x"),), 1)] * 4, codec=Codec.NONE)
    body = bytearray(batch.body)
    at = body.index(b"\x02h", kafka.HEAD.size)
    body[at] = 0x7E  # The name of a header claims to be 63 bytes long.
    world.store.append([batch._replace(body=kafka.with_crc(bytes(body)))])
    with caplog.at_level(logging.WARNING):
        rows = read(world, unconverted=True)
    assert "1 messages of the record at log offset" in caplog.text
    assert rows == read(world, unconverted=False)
    assert [row["offset"] for row in rows] == [1, 2, 3]
