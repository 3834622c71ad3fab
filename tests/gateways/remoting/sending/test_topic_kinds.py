"""Topics that RocketMQ's tools give a kind: batches as one record, and compaction."""

from pathlib import Path

from onelog.core.access import SELF
from onelog.record.decode import decode_records
from onelog.record.inner_batch import encode_batch, unwrapped
from onelog.wire.remoting.codes import RequestCode
from onelog.wire.remoting.command import Command
from tests.gateways.remoting.live import Client, broker, client


async def create(admin: Client, topic: str, attributes: str) -> Command:
    """As `mqadmin updateTopic -a` does."""
    return await admin.ask(
        RequestCode.UPDATE_AND_CREATE_TOPIC,
        topic=topic,
        defaultTopic="TBW102",
        readQueueNums=1,
        writeQueueNums=1,
        perm=6,
        topicFilterType="SINGLE_TAG",
        topicSysFlag=0,
        order="false",
        attributes=attributes,
    )


async def test_a_batch_is_one_record_with_as_many_offsets(tmp_path: Path) -> None:
    async with broker(tmp_path) as server, client(server) as producer:
        assert (await create(producer, "batched", "+queue.type=BatchCQ")).code == 0
        parts = [(0, b"%d" % number, b"UNIQ_KEY\x01K%d\x02" % number) for number in range(5)]
        ext = {
            "a": "group",
            "b": "batched",
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
        for base in (0, 5):
            answer = await producer.ask(RequestCode.SEND_BATCH_MESSAGE, encode_batch(parts), **ext)
            assert answer.code == 0, answer.remark
            assert answer.ext["queueOffset"] == str(base)
            assert answer.ext["batchUniqId"]
        assert server.broker.topics.max_offset(SELF, "batched", 0) == 10
        pulled = await producer.pull("batched", 0)
        records = decode_records(pulled.body)
        assert len(records) == 2
        found = unwrapped(records)
        assert [bytes(each.body) for each in found] == [b"0", b"1", b"2", b"3", b"4"] * 2
        assert [each.queue_offset for each in found] == list(range(10))


async def test_a_compacted_topic_wants_keys(tmp_path: Path) -> None:
    async with broker(tmp_path) as server, client(server) as producer:
        assert (await create(producer, "compacted", "+cleanup.policy=COMPACTION")).code == 0
        answer = await producer.send("compacted", b"x", {"UNIQ_KEY": "K"})
        assert "key is missing" in (answer.remark or "")
        answer = await producer.send("compacted", b"x", {"UNIQ_KEY": "K", "KEYS": "one"})
        assert answer.code == 0
        assert server.broker.topics.require(SELF, "compacted").cleanup == ("compact",)
