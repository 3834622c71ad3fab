"""`onelog message trace`, as people use it."""

from tests.client.admin.test_traces import BORN_MS, KEY, delivery, published, write_trace
from tests.client.live_cluster import LiveCluster
from tests.commands.conftest import Run


async def test_the_story_of_a_message(onelog: Run, cluster: LiveCluster) -> None:
    await cluster.create_topic("orders", 1)
    sent = await cluster.send("orders", b"x", UNIQ_KEY=KEY, KEYS="k1", TAGS="paid")
    stored_ms = cluster.brokers[0].core.store.message_at(int(sent[16:], 16)).store_ms
    await write_trace(cluster, published(BORN_MS), *delivery(stored_ms + 480, 0, True))
    ended = await onelog("message", "trace", KEY, "--json")
    assert (ended.code, ended.err) == (0, "")
    story = ended.document
    assert (story["id"], story["topic"], story["traced"]) == (sent, "orders", True)
    assert (story["keys"], story["tags"], story["born_ms"]) == (["k1"], "paid", BORN_MS)
    assert [step["step"] for step in story["steps"]] == [
        "born",
        "sent",
        "stored",
        "delivered",
        "consumed",
    ]
    consumed = story["steps"][-1]
    assert consumed["at_ms"] == stored_ms + 500
    assert consumed["since_born_ms"] == stored_ms + 500 - BORN_MS
    assert (consumed["group"], consumed["retry"], consumed["took_ms"]) == ("readers", 0, 20)
    assert story["groups"] == [
        {
            "group": "readers",
            "state": "consumed",
            "at_ms": stored_ms + 500,
            "since_born_ms": stored_ms + 500 - BORN_MS,
            "deliveries": 1,
        }
    ]
    shown = (await onelog("message", "trace", sent, "--utc")).out
    for text in (
        KEY,
        "k1",
        "2023-11-14 22:13:20.000Z",
        "broker-a/0@0",
        "delivered",
        "readers",
        "consumed",
        "20 ms",
        "0 ms",
    ):
        assert text in shown
    assert "no client traced it" not in shown


async def test_a_delayed_message_that_is_not_traced(onelog: Run, cluster: LiveCluster) -> None:
    await cluster.create_topic("orders", 1)
    await cluster.send("orders", b"x", UNIQ_KEY=KEY, DELAY="4")
    shown = await onelog("message", "trace", KEY, "--topic", "orders")
    assert shown.code == 0
    for text in ("delay level 4", "no client traced it", "consumers cannot see it yet"):
        assert text in shown.out


async def test_an_id_that_nobody_knows(onelog: Run) -> None:
    ended = await onelog("message", "trace", KEY)
    assert (ended.code, ended.out) == (1, "")
    assert "say the topic" in ended.err


async def test_a_broken_trace_is_complained_about(onelog: Run, cluster: LiveCluster) -> None:
    await write_trace(cluster, published(BORN_MS))
    await cluster.send("RMQ_SYS_TRACE_TOPIC", b"Pub\x01no number\x02", KEYS=KEY)
    ended = await onelog("message", "trace", KEY, "--json")
    assert ended.code == 2
    assert [step["step"] for step in ended.document["steps"]] == ["sent"]
    assert "no Pub record of a trace" in ended.err
    shown = await onelog("message", "trace", KEY)
    assert "it is not in its topic: the log does not have it any more" in shown.out
