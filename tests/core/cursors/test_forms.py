"""Messages of other forms reach RocketMQ's readers one by one, wherever a read begins."""

from pathlib import Path

import pytest

from onelog.core.access import SELF
from onelog.core.filters.tags import subscribe
from onelog.errors import InvalidRequestError
from onelog.message import Message, NewMessage
from onelog.record.decode import decode_records
from onelog.record.forms import FORM_CODE, Form, rocketmq
from onelog.record.forms.neutral import Neutral
from onelog.store.reader import Fetched, FetchStatus
from onelog.store.verify import verify
from tests.core.leasing import GROUP, LEASE_MS, TICK_MS, TOPIC, bodies, reading
from tests.core.world import World
from tests.record.forms.samples import kafka_batch, neutrals


@pytest.fixture
def orders(world: World) -> World:
    """A plain message, a batch of ten, another plain one."""
    world.topic("orders", 4)
    world.core.marked.mark("orders")
    world.send(body=b"first", TAGS="odd")
    world.store.append([kafka_batch(neutrals(10))])
    world.send(body=b"last", TAGS="even")
    return world


def found(result: Fetched) -> list[Message]:
    return [each for part in result.slices for each in decode_records(part)]


def as_neutral(message: Message) -> Neutral:
    """The message without the unique key that the conversion adds."""
    read = rocketmq.to_neutral(bytes(message.body), message.properties, message.born_ms)
    headers = tuple(header for header in read.headers if header[0] != "UNIQ_KEY")
    return read._replace(headers=headers)


def test_each_message_of_a_batch_has_an_offset_and_a_record_of_its_own(orders: World) -> None:
    result = orders.pull(0)
    messages = found(result)
    assert (result.status, result.next_offset, result.messages) == (FetchStatus.FOUND, 12, 12)
    assert [each.queue_offset for each in messages] == list(range(12))
    assert [bytes(messages[at].body) for at in (0, 11)] == [b"first", b"last"]
    assert [as_neutral(each) for each in messages[1:11]] == neutrals(10)
    assert len({each.unique_key for each in messages[1:11]}) == 10


@pytest.mark.parametrize("begin", range(12))
def test_a_read_begins_and_ends_inside_a_batch(orders: World, begin: int) -> None:
    offsets: list[int] = []
    at = begin
    while at < 12:
        result = orders.pull(at, count_max=3)
        offsets += [each.queue_offset for each in found(result)]
        at = result.next_offset
    assert offsets == list(range(begin, 12))


def test_a_read_of_few_bytes_goes_on_inside_a_batch(orders: World) -> None:
    result = orders.pull(1, bytes_max=300)
    assert 1 <= len(found(result)) < 10
    assert result.next_offset == 1 + len(found(result))


def test_tags_are_those_of_the_messages(orders: World) -> None:
    result = orders.pull(0, subscription=subscribe("orders", "even"))
    assert [each.queue_offset for each in found(result)] == [1, 3, 5, 7, 9, 11]
    assert result.offsets == [1, 3, 5, 7, 9, 11]
    assert orders.pull(0, subscription=subscribe("orders", "x")).next_offset == 12


def test_conditions_are_about_the_messages(orders: World) -> None:
    condition = subscribe("orders", "KEYS = 'key-4' OR TAGS = 'x'", "SQL92")
    assert [each.queue_offset for each in found(orders.pull(0, subscription=condition))] == [5]


def test_a_reader_of_the_same_form_gets_the_bytes_as_they_are(orders: World) -> None:
    batch = kafka_batch(neutrals(10))
    result = orders.core.reader.read("orders", 0, 1, 32, 1 << 20, as_stored=True)
    assert bytes(found(result)[0].body) == batch.body
    assert found(result)[0].inner_count == 10


def test_a_mark_lasts_as_long_as_its_topic(orders: World) -> None:
    orders.restart()
    assert orders.core.marked.names == {"orders"}
    orders.crash()
    assert len(found(orders.pull(3))) == 9
    orders.broker.topics.delete(SELF, "orders")
    assert orders.core.marked.names == set()


def test_what_cannot_be_read_is_delivered_as_it_is(orders: World) -> None:
    orders.store.append([NewMessage("orders", 1, b"no batch", sys_flag=Form.KAFKA.sys_flag)])
    assert [bytes(each.body) for each in found(orders.pull(0, queue_id=1))] == [b"no batch"]


def test_entries_of_other_forms_are_the_same_after_recovery(orders: World) -> None:
    before = [orders.store.entry_at("orders", 0, offset) for offset in range(12)]
    assert [entry[2] == FORM_CODE for entry in before if entry] == [False, *[True] * 10, False]
    orders.close()
    (orders.folder / "checkpoint").unlink()
    for path in (orders.folder / "consumequeue" / "orders").rglob("*"):
        if path.is_file():
            path.unlink()
    orders.start()
    assert [orders.store.entry_at("orders", 0, offset) for offset in range(12)] == before
    orders.close()
    assert verify(orders.folder).problems_total == 0
    orders.start()


def test_one_message_of_a_batch_is_sent_back_alone(orders: World) -> None:
    orders.core.groups.require("readers")
    failed = found(orders.pull(0))[4]
    assert failed.unique_key is not None
    orders.broker.publish.send_back(
        SELF, "readers", failed.log_offset, -1, orders.on_stored, unique_key=failed.unique_key
    )
    orders.end_tick()
    (dead,) = orders.messages("%DLQ%readers")
    assert bytes(dead.body) == bytes(failed.body) == b"body-3"
    assert as_neutral(dead).key is None
    with pytest.raises(InvalidRequestError):
        orders.broker.publish.send_back(
            SELF, "readers", failed.log_offset, -1, orders.on_stored, unique_key="another"
        )


def test_messages_of_a_batch_are_leased_and_come_back_one_by_one(
    tmp_path: Path,
) -> None:
    reader = reading(tmp_path)
    reader.world.core.marked.mark(TOPIC)
    reader.world.store.append([kafka_batch(neutrals(10), TOPIC)])
    first = reader.pop(4)
    assert [each.offset for each in first] == [0, 1, 2, 3]
    assert bodies(first) == [b"", b"body-1", b"body-2", b"body-3"]
    odd = reader.pop(tags="odd")
    assert [each.offset for each in odd] == [5, 7, 9]
    reader.ack(*first[:2], *odd)
    reader.world.advance(LEASE_MS + TICK_MS)
    again = reader.pop()
    assert sorted(bodies(again)) == [b"body-2", b"body-3"]
    assert all(each.topic == f"%RETRY%{GROUP}_{TOPIC}" for each in again)
