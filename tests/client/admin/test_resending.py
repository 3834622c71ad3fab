"""Messages are sent again as the ones they were, and not twice by mistake."""

import zlib
from pathlib import Path

import pytest

from onelog.client.admin.admin import AsyncAdmin
from onelog.client.admin.dead_letters import Resender
from onelog.client.admin.topics import TopicChange
from onelog.errors import BrokerNotFoundError, PartlyDoneError
from onelog.message import NewMessage, SysFlag, decode_properties, encode_properties
from onelog.record.compression import unpacked_body
from tests.client.live_cluster import LiveCluster, live_cluster


def resender(admin: AsyncAdmin, to_topic: str | None = None) -> Resender:
    return Resender(admin.nodes, admin.topics, admin.messages, to_topic)


async def test_what_others_wrote_into_a_message_on_its_way_is_gone(
    admin: AsyncAdmin, cluster: LiveCluster
) -> None:
    await cluster.create_topic("orders")
    await cluster.create_topic("copies")
    client = await cluster.client()
    properties = {
        "KEYS": "k",
        "UNIQ_KEY": "A" * 32,
        "colour": "blue",
        "WAIT": "true",
        "RETRY_TOPIC": "orders",
        "ORIGIN_MESSAGE_ID": "B" * 32,
        "PGROUP": "p",
        "POP_CK": "1 2 3",
        "REAL_TOPIC": "x",
        "REAL_QID": "7",
        "1ST_POP_TIME": "5",
        "MIN_OFFSET": "0",
        "DLQ_ORIGIN_TOPIC": "y",
    }
    packed = zlib.compress(b"x" * 5_000)
    flags = SysFlag.COMPRESSED | 0x300
    answer = await client.send("orders", packed, properties, f=int(flags), j=3)
    found = await admin.messages.by_id(answer.ext["msgId"])
    resent = await resender(admin, "copies").resend(found, again=False, dry_run=False)
    assert resent is not None
    copy = (await admin.messages.by_id(resent.new_id)).message
    assert unpacked_body(copy) == b"x" * 5_000
    assert (copy.sys_flag, copy.reconsume_times, copy.flag) == (flags, 0, 7)
    kept = decode_properties(copy.properties)
    assert {name: kept.get(name) for name in properties if name in kept} == {
        "KEYS": "k",
        "UNIQ_KEY": "A" * 32,
        "colour": "blue",
        "WAIT": "true",
    }
    assert kept["ONELOG_RESENT_FROM"] == answer.ext["msgId"]


async def test_the_flags_of_a_transaction_do_not_make_it_one_again(
    admin: AsyncAdmin, cluster: LiveCluster
) -> None:
    await cluster.create_topic("orders")
    properties = encode_properties({"UNIQ_KEY": "A" * 32, "TRAN_MSG": "true", "PGROUP": "p"})
    message = NewMessage("orders", 0, b"x", properties, sys_flag=int(SysFlag.COMMITTED))
    cluster.brokers[0].core.store.append([message])
    (found,) = await admin.messages.by_offset("orders", 0, 0)
    resent = await resender(admin, "orders").resend(found, again=False, dry_run=False)
    assert resent is not None
    copy = (await admin.messages.by_id(resent.new_id)).message
    assert copy.sys_flag == 0
    assert "TRAN_MSG" not in decode_properties(copy.properties)


async def test_a_message_without_a_unique_key_is_sent_as_often_as_asked(
    admin: AsyncAdmin, cluster: LiveCluster
) -> None:
    await cluster.create_topic("orders")
    cluster.brokers[0].core.store.append([NewMessage("orders", 0, b"x")])
    (found,) = await admin.messages.by_offset("orders", 0, 0)
    for _ in range(2):
        assert await resender(admin, "orders").resend(found, again=False, dry_run=False)


async def test_a_topic_that_takes_no_messages_is_said_so(
    admin: AsyncAdmin, cluster: LiveCluster
) -> None:
    await cluster.create_topic("orders")
    sent = await cluster.send("orders", b"x", UNIQ_KEY="A" * 32)
    await admin.topics.update("orders", TopicChange(perm=4))
    found = await admin.messages.by_id(sent)
    with pytest.raises(BrokerNotFoundError, match="takes messages for topic orders"):
        await resender(admin, "orders").resend(found, again=False, dry_run=False)


async def test_nothing_is_resent_while_a_broker_that_may_have_the_copy_is_silent(
    tmp_path: Path,
) -> None:
    async with live_cluster(tmp_path, brokers=2) as cluster, cluster.admin() as admin:
        for broker in (0, 1):
            await cluster.create_topic("orders", broker=broker)
        sent = await cluster.send("orders", b"x", UNIQ_KEY="A" * 32)
        found = await admin.messages.by_id(sent)
        for listener in cluster.brokers[1]._listeners:
            await listener.close()
        with pytest.raises(PartlyDoneError, match="whether it was resent already"):
            await resender(admin, "orders").resend(found, again=False, dry_run=False)
        assert await resender(admin, "orders").resend(found, again=True, dry_run=False)
        assert await resender(admin, "orders").is_resent(found, "orders")
