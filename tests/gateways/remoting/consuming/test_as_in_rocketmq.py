"""What RocketMQ's own integration tests expect, in short: see tests/e2e/test_java_originals.py."""

from pathlib import Path

from onelog.core.access import SELF
from onelog.core.catalog.topics import TopicConfig
from onelog.message import decode_properties
from onelog.record.inner_batch import encode_batch, unwrapped
from onelog.server import BrokerServer
from onelog.wire.remoting.codes import RequestCode
from tests.gateways.remoting.live import Client, broker, client, messages
from tests.gateways.remoting.popping import GROUP, TOPIC, Popper, popping
from tests.waiting import eventually

PRIORITY = "_SYS_MSG_PRIORITY_"


def make_topic(server: BrokerServer, queues: int, **attributes: str) -> None:
    named = {name.replace("_", "."): value for name, value in attributes.items()}
    server.broker.topics.create(SELF, TopicConfig(TOPIC, queues, queues, attributes=named))


async def send_batch(producer: Client, count: int) -> int:
    """The offset of the first of a batch."""
    parts = [(0, b"%d" % each, b"UNIQ_KEY\x01K%d\x02" % each) for each in range(count)]
    ext = {
        "a": "group",
        "b": TOPIC,
        "c": "TBW102",
        "d": 4,
        "e": 0,
        "f": 0,
        "g": 1_700_000_000_000,
        "h": 0,
        "i": "",
        "j": 0,
        "k": "false",
        "m": "true",
    }
    answer = await producer.ask(RequestCode.SEND_BATCH_MESSAGE, encode_batch(parts), **ext)
    assert answer.code == 0, answer.remark
    return int(answer.ext["queueOffset"])


async def test_a_popped_message_that_is_sent_on_has_a_receipt_of_its_own(tmp_path: Path) -> None:
    async with popping(tmp_path) as (server, member):
        server.broker.topics.create(SELF, TopicConfig("next", 1, 1))
        await member.send(b"x", UNIQ_KEY="K")
        (first,) = await member.pop()
        properties = {"UNIQ_KEY": "K", "POP_CK": first.receipt, "1ST_POP_TIME": "1"}
        assert (await member.words.send("next", b"x", properties)).code == 0
        (second,) = await member.pop(topic="next")
        assert "POP_CK" not in decode_properties(second.message.properties)
        assert (await member.ack(second)).code == 0
        assert (await member.ack(first)).code == 0


async def test_the_rest_of_an_ordered_batch_comes_with_the_one_whose_time_was_changed(
    tmp_path: Path,
) -> None:
    async with popping(tmp_path) as (_, member):
        for number in range(4):
            await member.send(b"%d" % number, UNIQ_KEY=f"K{number}")
        heard: list[tuple[bytes, int]] = []
        while len(heard) < 6:
            for each in await member.pop(order="true", maxMsgNums=3, pollTime=15_000):
                heard.append((each.body, each.message.reconsume_times))
                if heard == [(b"0", 0), (b"1", 0)]:
                    assert (await member.change(each, 300)).code == 0
                else:
                    assert (await member.ack(each)).code == 0
        bodies = [body for body, _ in heard]
        assert bodies == [b"0", b"1", b"2", b"1", b"2", b"3"]


async def test_messages_without_a_priority_go_to_any_queue_of_a_priority_topic(
    tmp_path: Path,
) -> None:
    async with broker(tmp_path) as server, client(server) as producer:
        make_topic(server, 4, message_type="PRIORITY")
        for queue_id in range(4):
            answer = await producer.send(TOPIC, b"x", {"UNIQ_KEY": "K"}, e=queue_id)
            assert answer.ext["queueId"] == str(queue_id)
            answer = await producer.send(TOPIC, b"x", {"UNIQ_KEY": "K", PRIORITY: "9"}, e=queue_id)
            assert answer.ext["queueId"] == "3"


async def test_a_priority_topic_that_gets_more_queues_serves_them_before_what_came_back(
    tmp_path: Path,
) -> None:
    settings = {"broker__pop_separate_retry": True, "broker__priority_retry_percent": 0}
    async with (
        broker(tmp_path, broker__name="broker-a", **settings) as server,
        client(server) as words,
    ):
        make_topic(server, 2, message_type="PRIORITY")
        server.core.groups.require(GROUP)
        member = Popper(words)
        for number in range(2):
            await words.send(TOPIC, b"%d" % number, {"UNIQ_KEY": "K", PRIORITY: str(number)})
        assert len(await member.pop(invisibleTime=100)) == 2
        await eventually(lambda: not server.core.leases)
        make_topic(server, 4, message_type="PRIORITY")
        for number in range(2, 4):
            await words.send(TOPIC, b"%d" % number, {"UNIQ_KEY": "K", PRIORITY: str(number)})
        got = await member.pop()
        assert [each.body for each in got] == [b"3", b"2", b"1", b"0"]
        last = got[-1].message
        assert (last.queue_id, last.queue_offset, last.reconsume_times) == (0, 0, 1)


async def test_a_queue_of_batches_has_no_first_offset_before_its_first_batch(
    tmp_path: Path,
) -> None:
    async with broker(tmp_path) as server, client(server) as producer:
        make_topic(server, 1, queue_type="BatchCQ")
        server.broker.topics.create(SELF, TopicConfig("plain", 1, 1))

        async def ends(topic: str) -> tuple[str, str]:
            codes = (RequestCode.GET_MIN_OFFSET, RequestCode.GET_MAX_OFFSET)
            first, last = [await producer.ask(code, topic=topic, queueId=0) for code in codes]
            return first.ext["offset"], last.ext["offset"]

        assert await ends(TOPIC) == ("-1", "0")
        assert await ends("plain") == ("0", "0")
        assert await send_batch(producer, 10) == 0
        assert await ends(TOPIC) == ("0", "10")


async def test_a_pull_inside_a_batch_gets_the_whole_batch_and_one_of_messages_only_the_rest(
    tmp_path: Path,
) -> None:
    async with broker(tmp_path, broker__pull_count_max=1024) as server, client(server) as producer:
        for kind, expected in (("BatchCQ", 100), ("SimpleCQ", 95)):
            make_topic(server, 1, queue_type=kind)
            assert [await send_batch(producer, 10) for _ in range(10)] == list(range(0, 100, 10))
            answer = await producer.pull(TOPIC, 5, maxMsgNums=100)
            assert (answer.ext["minOffset"], answer.ext["maxOffset"]) == ("0", "100")
            found = unwrapped(messages(answer))
            assert [each.queue_offset for each in found] == list(range(100 - expected, 100))
            server.broker.topics.delete(SELF, TOPIC)


async def test_a_reset_of_one_queue_drops_its_leases_and_leaves_the_others(tmp_path: Path) -> None:
    async with popping(tmp_path, queues=2) as (server, member):
        for queue_id in (0, 1):
            for number in range(10):
                await member.send(b"%d" % number, queue_id, UNIQ_KEY=f"K{number}")
        old = await member.pop(order="true", queueId=0)
        assert len(old) == 10
        assert len(await member.pop(order="true", queueId=1)) == 10
        answer = await member.words.ask(
            RequestCode.INVOKE_BROKER_TO_RESET_OFFSET,
            topic=TOPIC,
            group=GROUP,
            timestamp=-1,
            force="true",
            queueId=0,
            offset=4,
        )
        assert answer.code == 0, answer.remark
        new = await member.pop(order="true", queueId=0)
        assert [each.body for each in new] == [b"%d" % each for each in range(4, 10)]
        assert await member.pop(order="true", queueId=1) == []
        for each in old:
            await member.ack(each)
        assert await member.pop(order="true", queueId=0) == []
        for each in new:
            assert (await member.ack(each)).code == 0
        assert server.core.offsets.get(GROUP, TOPIC, 0) == 10
        assert server.core.offsets.get(GROUP, TOPIC, 1) == 0
