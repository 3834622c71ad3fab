"""A broker in memory, clients with a line to it, and clients with frames only."""

import asyncio
import contextlib
from collections.abc import AsyncIterator
from dataclasses import dataclass, field
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from onelog.config import Value
from onelog.config_sources import load
from onelog.core.catalog.topics import PERM_WRITE, TopicConfig
from onelog.gateways import direct
from onelog.gateways.direct import Direct, DirectLine
from onelog.message import Message
from onelog.net.memory import MemoryListener, host_address
from onelog.net.peer import Peer
from onelog.server import BrokerServer
from onelog.wire.remoting.codes import RequestCode, ResponseCode
from tests.gateways.remoting.live import SMALL, Client, bodies, messages, remoting
from tests.waiting import eventually

BORN_MS = 1_700_000_000_000
UNIQUE = "UNIQ_KEY\x01ABC\x02"


@dataclass
class Live:
    server: BrokerServer
    direct: Direct
    line: DirectLine
    client: Client
    """Of the same connection as the line."""

    def send(self, body: bytes = b"body", properties: str = UNIQUE, queue: int = 0) -> int:
        sent = self.line.send("topic", queue, body, properties, 7, BORN_MS)
        assert sent is not None
        return sent[1]

    async def send_by_frame(self, body: bytes = b"body", queue: int = 0) -> None:
        answer = await self.client.send("topic", body, {"UNIQ_KEY": "ABC"}, e=queue)
        assert answer.code == 0, answer.remark

    def follow(self, offset: int | None = None, group: str = "group") -> "Seen":
        if offset is None:
            offset = self.server.store.max_offset("topic", 0)
        seen = Seen()
        seen.following = self.line.follow(group, "topic", 0, offset, seen.arrived)
        return seen


@dataclass
class Seen:
    """What a follower was told."""

    records: list[Message] = field(default_factory=list)
    ended: int = 0
    wants_more: bool = True
    fails: bool = False
    following: object = None

    def arrived(self, record: Message | None) -> bool:
        if self.fails:
            raise ZeroDivisionError
        if record is None:
            self.ended += 1
            return False
        self.records.append(record)
        return self.wants_more

    @property
    def bodies(self) -> list[bytes]:
        return [bytes(record.body) for record in self.records]


@contextlib.asynccontextmanager
async def broker(folder: Path, **changed: Value) -> AsyncIterator[Live]:
    overrides: dict[str, Value] = {
        **SMALL,
        "broker.host": host_address(800),
        "broker.port": 10911,
        "broker.store_path": str(folder / "store"),
        **{key.replace("__", "."): value for key, value in changed.items()},
    }
    server = BrokerServer(load(overrides=overrides), (MemoryListener,))
    await server.start()
    direct = Direct(server.broker, remoting(server), asyncio.get_running_loop().call_soon)
    (listener,) = server.listeners
    assert isinstance(listener, MemoryListener)
    listener.make_line = direct.line
    peer = await Peer.connect(host_address(800), 10911)
    try:
        line = peer.connection.line
        assert isinstance(line, DirectLine)
        live = Live(server, direct, line, Client(peer, []))
        await live.client.ask(
            RequestCode.UPDATE_AND_CREATE_TOPIC,
            topic="topic",
            defaultTopic="TBW102",
            readQueueNums=2,
            writeQueueNums=2,
            perm=6,
            topicFilterType="SINGLE_TAG",
            topicSysFlag=0,
            order="false",
        )
        await live.send_by_frame(b"first", queue=1)
        server.core.groups.require("group")
        yield live
    finally:
        await peer.close()
        await server.close()


@pytest.fixture
async def live(tmp_path: Path) -> AsyncIterator[Live]:
    async with broker(tmp_path) as running:
        yield running


# Sending.


async def test_a_message_sent_by_line_is_stored_as_one_sent_by_frame(live: Live) -> None:
    await live.send_by_frame(b"hello")
    sent = live.line.send("topic", 0, b"hello", UNIQUE, 7, BORN_MS)
    framed, lined = messages(await live.client.pull("topic", 0))
    assert sent == (lined.message_id, 1)
    assert lined._replace(body=framed.body, body_crc=framed.body_crc, size=framed.size) == (
        framed._replace(
            queue_offset=lined.queue_offset, log_offset=lined.log_offset, store_ms=lined.store_ms
        )
    )
    assert bytes(lined.body) == b"hello"
    assert lined.body_crc == framed.body_crc


async def test_messages_sent_by_line_and_by_frame_share_a_queue(live: Live) -> None:
    for number in range(5):
        live.send(b"line %d" % number)
        await live.send_by_frame(b"frame %d" % number)
    expected = [b"%s %d" % (way, n) for n in range(5) for way in (b"line", b"frame")]
    assert bodies(await live.client.pull("topic", 0)) == expected


@pytest.mark.parametrize(
    ("topic", "queue_id", "body", "properties"),
    [
        ("unknown", 0, b"x", UNIQUE),
        ("topic", 2, b"x", UNIQUE),
        ("topic", -1, b"x", UNIQUE),
        ("topic", 0, b"", UNIQUE),
        ("topic", 0, bytes(100_001), UNIQUE),
        ("topic", 0, b"x", UNIQUE + "A\x01" + "b" * 33_000 + "\x02"),
        ("topic", 0, b"x", UNIQUE + "DELAY\x013\x02"),
        ("topic", 0, b"x", UNIQUE + "TIMER_DELAY_MS\x011000\x02"),
        ("topic", 0, b"x", UNIQUE + "TRAN_MSG\x01true\x02PGROUP\x01g\x02"),
        ("topic", 0, b"x", UNIQUE + "INNER_NUM\x012\x02"),
        ("topic", 0, b"x", UNIQUE + "POP_CK\x010 1 2 3 0 b 0 0\x02"),
        ("topic", 0, b"x", UNIQUE + "__CRC32#\x010000000000\x02"),
        ("%RETRY%group", 0, b"x", UNIQUE),
        ("SCHEDULE_TOPIC_XXXX", 0, b"x", UNIQUE),
    ],
)
async def test_what_is_not_plain_is_declined_and_leaves_no_trace(
    live: Live, topic: str, queue_id: int, body: bytes, properties: str
) -> None:
    end = live.server.store.log_end
    assert live.line.send(topic, queue_id, body, properties, 0, BORN_MS) is None
    assert live.server.store.log_end == end


async def test_nothing_overtakes_what_the_tick_has_taken_already(live: Live) -> None:
    asking = asyncio.create_task(live.send_by_frame(b"first"))
    writer = live.server.core.writer
    # It is so for one round of the loop only.
    while not writer.messages:  # noqa: ASYNC110
        await asyncio.sleep(0)
    assert live.line.send("topic", 0, b"second", UNIQUE, 0, BORN_MS) is None
    await asking
    assert live.send(b"second") == 1


async def test_with_sync_flush_nothing_is_sent_by_line(tmp_path: Path) -> None:
    async with broker(tmp_path, store__flush="sync") as live:
        assert live.line.send("topic", 0, b"x", UNIQUE, 0, BORN_MS) is None


async def test_a_store_that_refuses_is_for_the_request_to_report(live: Live) -> None:
    live.server.store.close()
    assert live.line.send("topic", 0, b"x", UNIQUE, 0, BORN_MS) is None
    answer = await live.client.send("topic", b"x")
    assert answer.code == ResponseCode.SERVICE_NOT_AVAILABLE


async def test_a_topic_that_loses_its_permission_is_declined(live: Live) -> None:
    live.send()
    topics = live.server.core.topics
    config = topics.get("topic")
    assert config is not None
    topics.put(TopicConfig("topic", 2, 2, perm=config.perm & ~PERM_WRITE))
    assert live.line.send("topic", 0, b"x", UNIQUE, 0, BORN_MS) is None


async def test_a_pull_that_waits_is_woken_by_a_line(live: Live) -> None:
    pulling = asyncio.create_task(
        live.client.pull("topic", 0, sysFlag=6, suspendTimeoutMillis=15_000)
    )
    await eventually(lambda: live.server.core.waiting.keys)
    live.send(b"wake up")
    assert bodies(await pulling) == [b"wake up"]


# Following.


async def test_a_follower_gets_what_reading_back_would_give(live: Live) -> None:
    seen = live.follow()
    live.send(b"one", UNIQUE + "TAGS\x01t\x02")
    live.send(b"two", "")
    assert seen.bodies == [b"one", b"two"]
    read = messages(await live.client.pull("topic", 0))
    assert seen.records == read
    assert (seen.ended, seen.wants_more) == (0, True)


async def test_a_message_is_in_the_log_before_a_follower_has_it(live: Live) -> None:
    ends: list[int] = []
    store = live.server.store

    def arrived(record: Message | None) -> bool:
        assert record is not None
        assert store.max_offset("topic", 0) == record.queue_offset + 1
        ends.append(store.log_end)
        return True

    assert live.line.follow("group", "topic", 0, 0, arrived) is not None
    live.send()
    assert ends == [store.log_end]


async def test_one_that_wants_no_more_gets_no_more(live: Live) -> None:
    seen = live.follow()
    seen.wants_more = False
    live.send(b"one")
    live.send(b"two")
    assert (seen.bodies, seen.ended) == ([b"one"], 0)
    assert not live.direct.followers
    assert live.follow(1).following is None
    assert live.follow(2).following is not None


async def test_one_that_stops_is_forgotten(live: Live) -> None:
    seen, other = live.follow(), live.follow(group="other-group")
    assert other.following is None
    live.server.core.groups.require("other-group")
    other = live.follow(group="other-group")
    assert seen.following is not None
    seen.following.stop()  # type: ignore[attr-defined]
    seen.following.stop()  # type: ignore[attr-defined]
    live.send(b"x")
    assert (seen.bodies, other.bodies) == ([], [b"x"])
    assert len(live.server.core.waiting) == 1


async def test_what_comes_by_another_way_has_to_be_pulled(live: Live) -> None:
    seen = live.follow()
    await live.send_by_frame(b"one")
    assert (seen.bodies, seen.ended) == ([], 1)
    assert live.follow(0).following is None
    live.send(b"two")
    assert (seen.bodies, seen.ended) == ([], 1)


async def test_messages_to_other_queues_do_not_end_following(live: Live) -> None:
    seen = live.follow()
    await live.send_by_frame(b"elsewhere", queue=1)
    live.send(b"elsewhere", queue=1)
    live.send(b"here")
    assert (seen.bodies, seen.ended) == ([b"here"], 0)


async def test_a_topic_that_changes_ends_following(live: Live) -> None:
    seen = live.follow()
    live.server.core.topics.put(TopicConfig("topic", 4, 4))
    assert seen.ended == 1
    assert live.follow().following is not None
    live.server.core.topics.put(TopicConfig("topic", 4, 4, perm=PERM_WRITE))
    assert live.follow().following is None


async def test_a_group_that_may_not_consume_any_more_gets_nothing(live: Live) -> None:
    seen = live.follow()
    groups = live.server.core.groups
    config = groups.get("group")
    assert config is not None
    groups.put(type(config)("group", consume_enable=False))
    live.send(b"x")
    assert (seen.bodies, seen.ended) == ([], 1)
    assert live.follow().following is None


async def test_a_group_that_is_sent_elsewhere_has_to_pull(live: Live) -> None:
    live.send(b"old")
    live.server.core.groups.require("other-group")
    seen, other = live.follow(), live.follow(group="other-group")
    live.server.core.offsets.reset("group", "topic", {0: 0})
    assert (seen.ended, other.ended) == (1, 0)
    live.send(b"new")
    assert (seen.bodies, other.bodies) == ([], [b"new"])
    assert live.follow(2).following is None
    live.server.core.offsets.take_reset("group", "topic", 0)
    assert live.follow(2).following is not None


async def test_a_follower_looks_around_also_when_nothing_arrives(
    live: Live, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(direct, "LOOK_MS", 1)
    seen = live.follow()
    waiting = live.server.core.waiting
    (first,) = next(iter(waiting.keys.values()))
    await eventually(lambda: waiting.keys and first not in next(iter(waiting.keys.values())))
    assert seen.ended == 0
    live.server.core.groups.delete("group", [])
    await eventually(lambda: seen.ended)


async def test_when_too_many_wait_nobody_follows(live: Live) -> None:
    waiting = live.server.core.waiting
    waiting._waits_max = 0
    assert live.follow().following is None
    waiting._waits_max = 1
    seen = live.follow()
    waiting._waits_max = 0
    waiting.end_all()
    assert seen.ended == 1
    assert not live.direct.followers


@pytest.mark.parametrize(("topic", "queue_id"), [("unknown", 0), ("topic", 2), ("topic", -1)])
async def test_what_cannot_be_pulled_cannot_be_followed(
    live: Live, topic: str, queue_id: int
) -> None:
    assert live.line.follow("group", topic, queue_id, 0, lambda _: True) is None


async def test_the_end_of_the_connection_ends_following(live: Live) -> None:
    seen = live.follow()
    await live.client.peer.close()
    assert seen.ended == 1
    assert not live.direct.followers
    assert len(live.server.core.waiting) == 0


async def test_a_follower_that_fails_is_ended_and_hurts_nobody(
    live: Live, caplog: pytest.LogCaptureFixture
) -> None:
    live.server.core.groups.require("other-group")
    bad, good = live.follow(), live.follow(group="other-group")
    bad.fails = True
    live.send(b"x")
    assert good.bodies == [b"x"]
    assert "could not be handed over" in caplog.text
    assert "could not be sent away" in caplog.text
    live.send(b"y")
    assert good.bodies == [b"x", b"y"]


async def test_everything_is_counted(live: Live) -> None:
    put, got = live.server.core.stats.totals.put_count, live.server.core.stats.totals.get_count
    live.follow()
    live.send()
    live.send()
    await asyncio.sleep(0)
    assert live.server.core.stats.totals.put_count == put + 2
    assert live.server.core.stats.totals.get_count == got + 2
    assert live.server.core.offsets.pulled_up_to("group", "topic", 0) == 2


STEPS = st.lists(
    st.sampled_from(["line", "line", "frame", "tick", "refuse", "accept"]), max_size=40
)


@settings(
    max_examples=40, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture]
)
@given(steps=STEPS)
def test_following_and_pulling_in_turns_every_message_comes_once_and_in_order(
    tmp_path_factory: pytest.TempPathFactory, steps: list[str]
) -> None:
    class Consumer:
        """Follows, and pulls when it is told to, as the SDK's consumers do."""

        def __init__(self, live: Live) -> None:
            self.live = live
            self.got: list[bytes] = []
            self.next = 0
            self.wants_more = True
            self.is_following = False

        def arrived(self, record: Message | None) -> bool:
            if record is None:
                self.is_following = False
                return False
            assert record.queue_offset == self.next
            self.got.append(bytes(record.body))
            self.next += 1
            self.is_following = self.wants_more
            return self.wants_more

        async def go_on(self) -> None:
            while not self.is_following and self.wants_more:
                found = self.live.line.follow("group", "topic", 0, self.next, self.arrived)
                self.is_following = found is not None
                if not self.is_following:
                    answer = await self.live.client.pull("topic", self.next)
                    self.got += bodies(answer)
                    self.next = int(answer.ext["nextBeginOffset"])

    async def run() -> None:
        async with broker(tmp_path_factory.mktemp("broker")) as live:
            consumer = Consumer(live)
            for number, step in enumerate(steps):
                if step == "line":
                    live.send(b"%d" % number)
                elif step == "frame":
                    await live.send_by_frame(b"%d" % number)
                elif step == "tick":
                    await consumer.go_on()
                else:
                    consumer.wants_more = step == "accept"
            consumer.wants_more = True
            await consumer.go_on()
            sent = [b"%d" % n for n, step in enumerate(steps) if step in ("line", "frame")]
            assert consumer.got == sent

    asyncio.run(run())
