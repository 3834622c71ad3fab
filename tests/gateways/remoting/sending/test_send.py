"""Sending, as a producer sees it."""

import asyncio
from pathlib import Path

import pytest

from onelog.message import LOOPBACK, decode_properties, encode_properties
from onelog.record.inner_batch import encode_batch
from onelog.rocketmq.sent_properties import new_unique_key
from onelog.wire.remoting.codes import RequestCode, ResponseCode
from onelog.wire.remoting.command import Command
from tests.core.replicas import give_replicas
from tests.gateways.remoting.live import bodies, broker, client, messages, remoting


async def test_a_message_is_stored_and_its_place_is_told(tmp_path: Path) -> None:
    async with broker(tmp_path) as server, client(server) as producer:
        answer = await producer.send("orders", b"hello", {"UNIQ_KEY": "U1", "TAGS": "paid"})
        assert answer.code == ResponseCode.SUCCESS
        assert (answer.ext["queueId"], answer.ext["queueOffset"]) == ("0", "0")
        assert answer.ext["transactionId"] == "U1"
        assert (answer.ext["MSG_REGION"], answer.ext["TRACE_ON"]) == ("DefaultRegion", "true")
        (stored,) = messages(await producer.pull("orders", 0))
        assert stored.message_id == answer.ext["msgId"]
        assert (bytes(stored.body), stored.flag, stored.born_ms) == (b"hello", 7, 1_700_000_000_000)
        assert decode_properties(stored.properties) == {
            "UNIQ_KEY": "U1",
            "TAGS": "paid",
            "MSG_REGION": "DefaultRegion",
            "TRACE_ON": "true",
            "CLUSTER": "DefaultCluster",
        }


async def test_the_long_form_of_the_request_is_understood(tmp_path: Path) -> None:
    async with broker(tmp_path) as server, client(server) as producer:
        answer = await producer.ask(
            RequestCode.SEND_MESSAGE,
            b"x",
            producerGroup="g",
            topic="t",
            defaultTopic="TBW102",
            defaultTopicQueueNums=4,
            queueId=3,
            sysFlag=0,
            bornTimestamp=1,
            flag=0,
            properties="",
        )
        assert (answer.code, answer.ext["queueId"]) == (0, "3")
        assert server.core.topics.require("t").write_queues == 4


async def test_a_message_without_an_id_gets_one(tmp_path: Path) -> None:
    async with broker(tmp_path) as server, client(server) as producer:
        answer = await producer.send("t", b"x")
        (stored,) = messages(await producer.pull("t", 0))
        assert stored.unique_key == answer.ext["transactionId"]
        assert len(answer.ext["transactionId"]) == 32


FORMS = {
    "UNIQ_KEY\x01{key}": "{key}",
    "UNIQ_KEY\x01{key}\x02": "{key}",
    "A\x01b\x02UNIQ_KEY\x01{key}\x02WAIT\x01true": "{key}",
    "TAGS\x01t\x02UNIQ_KEY\x01{key}\x02WAIT\x01true\x02": "{key}",
    "XUNIQ_KEY\x01{key}\x02UNIQ_KEY\x01other\x02": "other",
    "UNIQ_KEY\x01{key}\x02INNER_NUM\x015\x02": "{key}",
    "UNIQ_KEY\x01{key}\x02UNIQ_KEY\x01second\x02": "{key}",
}


@pytest.mark.parametrize("form", FORMS)
async def test_messages_of_one_form_are_stored_alike_however_many_there_are(
    tmp_path: Path, form: str
) -> None:
    async with broker(tmp_path) as server, client(server) as producer:
        for number in range(32):
            key = f"K{number:03d}"
            answer = await producer.send("t", b"x", i=form.format(key=key))
            assert answer.ext["transactionId"] == FORMS[form].format(key=key)
        found = messages(await producer.pull("t", 0))
        for number, stored in enumerate(found):
            sent = form.format(key=f"K{number:03d}").rstrip("\x02").encode() + b"\x02"
            expected = sent.replace(b"INNER_NUM\x015\x02", b"") + remoting(server).added_properties
            assert stored.properties == expected
        assert len(found) == 32
    is_plain = form.count("UNIQ") == 1 and "INNER" not in form
    assert bool(remoting(server).plain_forms) == is_plain


async def test_messages_that_are_not_just_stored_are_never_taken_for_plain_ones(
    tmp_path: Path,
) -> None:
    async with broker(tmp_path) as server, client(server) as producer:
        for number in range(40):
            await producer.send("t", b"plain", {"UNIQ_KEY": f"P{number}", "WAIT": "true"})
            named = {"UNIQ_KEY": f"D{number}", "WAIT": "true", "DELAY": "18"}
            await producer.send("t", b"delayed", named)
            named = {"TIMER_DELAY_SEC": "900", "UNIQ_KEY": f"T{number}", "WAIT": "true"}
            assert "recallHandle" in (await producer.send("t", b"timed", named)).ext
            named = {"UNIQ_KEY": f"H{number}", "PGROUP": "g", "TRAN_MSG": "true"}
            await producer.send("t", b"half", named)
        assert set(bodies(await producer.pull("t", 0))) == {b"plain"}
        assert server.store.max_offset("t", 0) == 40


def test_made_ids_differ() -> None:
    assert len({new_unique_key(LOOPBACK) for _ in range(1000)}) == 1000


async def test_a_negative_queue_is_the_brokers_choice(tmp_path: Path) -> None:
    async with broker(tmp_path) as server, client(server) as producer:
        chosen = {(await producer.send("t", b"x", e=-1)).ext["queueId"] for _ in range(40)}
        assert chosen == {"0", "1", "2", "3"}


async def test_one_way_sends_are_stored_and_not_answered(tmp_path: Path) -> None:
    async with broker(tmp_path) as server, client(server) as producer:
        await producer.send("t", b"first")
        ext = {"a": "g", "b": "t", "c": "TBW102", "d": "4", "e": "0", "f": "0", "g": "1", "h": "0"}
        producer.peer.oneway(RequestCode.SEND_MESSAGE_V2, ext, b"second")
        assert (await producer.send("t", b"third")).ext["queueOffset"] == "2"
        assert bodies(await producer.pull("t", 0)) == [b"first", b"second", b"third"]


async def test_a_batch_is_stored_as_separate_messages(tmp_path: Path) -> None:
    async with broker(tmp_path) as server, client(server) as producer:
        batch = encode_batch(
            [(n, b"body-%d" % n, encode_properties({"KEYS": f"k{n}"})[:-1]) for n in range(5)]
        )
        ext = {
            "a": "g",
            "b": "t",
            "c": "TBW102",
            "d": 4,
            "e": 1,
            "f": 0,
            "g": 1,
            "h": 0,
            "m": "true",
        }
        answer = await producer.ask(RequestCode.SEND_BATCH_MESSAGE, batch, **ext)
        assert (answer.code, answer.ext["queueOffset"]) == (0, "0")
        ids = answer.ext["msgId"].split(",")
        stored = messages(await producer.pull("t", 0, queueId=1))
        assert [each.message_id for each in stored] == ids
        assert [bytes(each.body) for each in stored] == [b"body-%d" % n for n in range(5)]
        assert [(each.flag, each.keys) for each in stored] == [(n, [f"k{n}"]) for n in range(5)]


async def test_the_id_of_a_batch_is_not_that_of_its_messages(tmp_path: Path) -> None:
    async with broker(tmp_path) as server, client(server) as producer:
        batch = encode_batch(
            [(0, b"body", encode_properties({"UNIQ_KEY": f"own-{n}"})) for n in range(2)]
        )
        ext = {
            "a": "g",
            "b": "t",
            "c": "TBW102",
            "d": 4,
            "e": 0,
            "f": 0,
            "g": 1,
            "h": 0,
            "i": "WAIT\x01true\x02UNIQ_KEY\x01of-the-batch",
            "m": "true",
        }
        assert (await producer.ask(RequestCode.SEND_BATCH_MESSAGE, batch, **ext)).code == 0
        stored = messages(await producer.pull("t", 0))
        # Java takes the last of several properties with one name.
        properties = [decode_properties(each.properties) for each in stored]
        assert [(each["UNIQ_KEY"], each["WAIT"]) for each in properties] == [
            ("own-0", "true"),
            ("own-1", "true"),
        ]


@pytest.mark.parametrize(
    ("changed", "code", "says"),
    [
        ({"e": 99}, ResponseCode.INVALID_PARAMETER, "99"),
        ({"e": "many"}, ResponseCode.SYSTEM_ERROR, "<e> is not a number"),
        ({"b": "../etc"}, ResponseCode.INVALID_PARAMETER, "illegal"),
        ({"b": "SCHEDULE_TOPIC_XXXX"}, ResponseCode.NO_PERMISSION, "forbidden"),
        ({"b": "unknown", "c": "NO_SUCH"}, ResponseCode.TOPIC_NOT_EXIST, "unknown"),
        ({"i": "x" * 40_000}, ResponseCode.MESSAGE_ILLEGAL, "32767"),
        ({"i": "TRAN_MSG\x01true\x02"}, ResponseCode.MESSAGE_ILLEGAL, "producer group"),
        ({"i": "TIMER_DELAY_MS\x01soon\x02"}, ResponseCode.MESSAGE_ILLEGAL, "timer"),
        ({"i": "TIMER_DELAY_SEC\x01999999999\x02"}, ResponseCode.MESSAGE_ILLEGAL, "max delay"),
    ],
)
async def test_a_bad_request_is_answered_with_its_code_and_the_next_one_works(
    tmp_path: Path, changed: dict[str, object], code: int, says: str
) -> None:
    async with broker(tmp_path) as server, client(server) as producer:
        await producer.send("t", b"first")
        answer = await producer.send("t", b"bad", **changed)
        assert answer.code == code
        assert says in (answer.remark or "")
        assert (await producer.send("t", b"good")).ext["queueOffset"] == "1"


async def test_clients_cannot_say_into_which_queues_a_record_goes(tmp_path: Path) -> None:
    async with broker(tmp_path) as server, client(server) as producer:
        trick = {"INNER_MULTI_DISPATCH": "victim", "INNER_MULTI_QUEUE_OFFSET": "999999999"}
        await producer.send("t", b"x", {**trick, "INNER_NUM": "1000000", "TAGS": "a"}, f=0xFC)
        batch = encode_batch([(0, b"y", encode_properties(trick))])
        ext = {"a": "g", "b": "t", "c": "TBW102", "d": 4, "e": 0, "f": 0xF0, "g": 1, "h": 0}
        assert (await producer.ask(RequestCode.SEND_BATCH_MESSAGE, batch, **ext)).code == 0
        for stored in messages(await producer.pull("t", 0)):
            assert stored.sys_flag == 0
            assert b"INNER_" not in stored.properties
        assert server.store.max_offset("t", 0) == 2


BROKERS_OWN = {
    "POP_CK": "0 1700000000000 60000 0 0 other-broker 0 0",
    "POP_CK_OFFSET": "0",
    "1ST_POP_TIME": "1700000000000",
    "__CRC32#": "0000000000",
    "INNER_NUM": "3",
}
"""What a message that was popped from one broker and is sent on to another may carry."""


async def test_what_only_the_broker_may_set_is_taken_out_of_messages_that_come_in(
    tmp_path: Path,
) -> None:
    kept = {"TAGS": "a", "KEYS": "POP_CK #1", "like POP_CK": "POP_CK", "POP_CK2": "x"}
    sent = {"POP_CK": "first", **kept, **BROKERS_OWN}
    ext = {"a": "g", "b": "t", "c": "TBW102", "d": 4, "e": 0, "f": 0, "g": 1, "h": 0}
    async with broker(tmp_path) as server, client(server) as producer:
        for _ in range(40):  # So often that their form would be learnt.
            await producer.send("t", b"x", {**sent, "UNIQ_KEY": "u"})
        await producer.send("t", b"x", {**sent, "TIMER_DELIVER_MS": "1", "UNIQ_KEY": "u"})
        batch = encode_batch([(0, b"y", encode_properties({"UNIQ_KEY": "u", **sent}))])
        await producer.ask(RequestCode.SEND_BATCH_MESSAGE, batch, **ext)
        batch = encode_batch([(0, b"z", encode_properties({"UNIQ_KEY": "u"}))])
        shared = encode_properties(sent).decode()
        await producer.ask(RequestCode.SEND_BATCH_MESSAGE, batch, **ext, i=shared)
        stored = messages(await producer.pull("t", 0, maxMsgNums=32))
        stored += messages(await producer.pull("t", 32, maxMsgNums=32))
        assert [bytes(each.body) for each in stored] == [b"x"] * 41 + [b"y", b"z"]
        for each in stored:
            named = decode_properties(each.properties)
            assert named.keys() & BROKERS_OWN.keys() == set()
            assert named["UNIQ_KEY"] == "u"
            assert kept.items() <= named.items()


async def test_bodies_that_are_empty_or_too_large_are_refused(tmp_path: Path) -> None:
    async with broker(tmp_path) as server, client(server) as producer:
        empty = await producer.send("t", b"")
        assert empty.code == ResponseCode.MESSAGE_ILLEGAL
        assert empty.remark == "the message has no body"
        ext = {"a": "g", "b": "t", "c": "TBW102", "d": 4, "e": 0, "f": 0, "g": 1, "h": 0}
        for bodies_sent in ([], [b"x", b""]):
            batch = encode_batch([(0, body, b"") for body in bodies_sent])
            refused = await producer.ask(RequestCode.SEND_BATCH_MESSAGE, batch, **ext)
            assert refused.code == ResponseCode.MESSAGE_ILLEGAL
            assert refused.remark == "a batch without messages, or with one that has no body"
        large = await producer.send("t", b"x" * 100_001)
        assert large.code == ResponseCode.MESSAGE_ILLEGAL
        assert "100000" in (large.remark or "")


async def test_a_batch_that_is_larger_than_a_message_may_be_is_refused(tmp_path: Path) -> None:
    async with broker(tmp_path) as server, client(server) as producer:
        ext = {"a": "g", "b": "t", "c": "TBW102", "d": 4, "e": 0, "f": 0, "g": 1, "h": 0}

        async def send(*sizes: int, **changed: object) -> Command:
            batch = encode_batch([(0, b"x" * size, b"") for size in sizes])
            return await producer.ask(RequestCode.SEND_BATCH_MESSAGE, batch, **{**ext, **changed})

        assert (await send(*[10_000 - 22] * 10)).code == ResponseCode.SUCCESS
        large = await send(*[10_000 - 22] * 9, 10_000 - 21)
        assert large.code == ResponseCode.MESSAGE_ILLEGAL
        assert large.remark == "a body of 100001 bytes is over the limit of 100000"
        assert (await send(1, i="p" * 32_768)).code == ResponseCode.MESSAGE_ILLEGAL
        assert server.store.max_offset("t", 0) == 10


async def test_unknown_topics_are_refused_when_they_may_not_be_created(tmp_path: Path) -> None:
    async with broker(tmp_path, broker__auto_create_topics=False) as server:
        async with client(server) as producer:
            answer = await producer.send("new", b"x")
            assert answer.code == ResponseCode.TOPIC_NOT_EXIST


async def test_with_sync_flush_the_answer_means_on_disk(tmp_path: Path) -> None:
    async with broker(tmp_path, store__flush="sync") as server, client(server) as producer:
        answers = await asyncio.gather(*(producer.send("t", b"x") for _ in range(50)))
        assert [answer.code for answer in answers] == [0] * 50
        assert (
            server.store.log.flushed
            >= server.store.message_at(int(answers[-1].ext["msgId"][16:], 16)).log_offset
        )


async def test_a_stored_message_that_replicas_lack_has_a_status_of_its_own(tmp_path: Path) -> None:
    async with broker(tmp_path) as server, client(server) as producer:
        await producer.send("t", b"first")
        replicas = give_replicas(server.core.durability)
        late = await producer.send("t", b"late")
        assert (late.code, late.ext["queueOffset"]) == (ResponseCode.FLUSH_SLAVE_TIMEOUT, "1")
        replicas.in_sync = 1
        alone = await producer.send("t", b"alone")
        assert (alone.code, alone.ext["queueOffset"]) == (ResponseCode.SLAVE_NOT_AVAILABLE, "2")
        assert alone.ext["msgId"]
        assert bodies(await producer.pull("t", 0)) == [b"first", b"late", b"alone"]
        server.core.fence()
        refused = await producer.send("t", b"refused")
        assert refused.code == ResponseCode.SERVICE_NOT_AVAILABLE


async def test_a_message_that_failed_comes_back_to_its_group_later(tmp_path: Path) -> None:
    async with broker(tmp_path, store__delay_levels="1s 1s 1s 1s") as server:
        async with client(server) as consumer:
            await consumer.heartbeat("c1", "g", "t")
            sent = await consumer.send("t", b"failed")
            (stored,) = messages(await consumer.pull("t", 0))
            answer = await consumer.ask(
                RequestCode.CONSUMER_SEND_MSG_BACK,
                offset=int(stored.log_offset),
                group="g",
                delayLevel=0,
                originMsgId=sent.ext["msgId"],
                originTopic="t",
            )
            assert answer.code == ResponseCode.SUCCESS
            again = await consumer.pull(
                "%RETRY%g", 0, consumerGroup="g", sysFlag=6, suspendTimeoutMillis=5_000
            )
            (retried,) = messages(again)
            assert (bytes(retried.body), retried.reconsume_times) == (b"failed", 1)
            assert decode_properties(retried.properties)["RETRY_TOPIC"] == "t"


async def test_sending_back_what_is_not_there_is_refused(tmp_path: Path) -> None:
    async with broker(tmp_path) as server, client(server) as consumer:
        await consumer.heartbeat("c1", "g", "t")
        for offset in (-5, 1 << 40):
            answer = await consumer.ask(
                RequestCode.CONSUMER_SEND_MSG_BACK, offset=offset, group="g", delayLevel=0
            )
            assert answer.code == ResponseCode.SYSTEM_ERROR
