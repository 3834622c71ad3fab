"""`onelog delay`, as people use it."""

import msgspec
import pytest

from onelog.admin.history import Waiting
from onelog.admin.operations import ClusterListing
from onelog.commands.operations import shown
from onelog.commands.terminal import console
from tests.client.live_cluster import LiveCluster
from tests.commands.conftest import Run

HOUR_MS = 3_600_000


async def test_nothing_waits(onelog: Run) -> None:
    ended = await onelog("delay", "list", "--json")
    assert (ended.code, ended.document) == (
        0,
        {"items": [], "total": 0, "next": None, "failures": []},
    )
    assert "messages that wait: 0" in (await onelog("delay", "list")).out


async def test_waiting_messages_are_listed(onelog: Run, cluster: LiveCluster) -> None:
    await cluster.create_topic("orders")
    await cluster.create_topic("other")
    await cluster.send("orders", b"x", UNIQ_KEY="U1", KEYS="k1", TIMER_DELAY_MS=str(HOUR_MS))
    level = await cluster.send("orders", b"xyz", UNIQ_KEY="U2", DELAY="18")
    await cluster.send("other", b"x", UNIQ_KEY="U3", TIMER_DELAY_MS="600000")
    found = (await onelog("delay", "list", "--json", "--topic", "orders")).document
    assert found["total"] == 2
    timed, delayed = found["items"]
    assert (timed["unique_key"], timed["keys"], timed["level"]) == ("U1", ["k1"], None)
    assert (delayed["id"], delayed["level"], delayed["handle"]) == (level, 18, None)
    assert (delayed["body_bytes"], delayed["topic"], delayed["broker"]) == (3, "orders", "broker-a")
    shown = await onelog("delay", "list", "--limit", "2")
    assert (shown.code, shown.err) == (0, "")
    for text in ("messages that wait: 3", "U3", "U1", "k1", "and 1 more"):
        assert text in shown.out
    assert "U2" not in shown.out
    assert "18" in (await onelog("delay", "list")).out


async def test_a_message_is_cancelled(onelog: Run, cluster: LiveCluster) -> None:
    await cluster.create_topic("orders")
    for key in ("U1", "U2", "U3"):
        await cluster.send("orders", key.encode(), UNIQ_KEY=key, TIMER_DELAY_MS="600000")
    listed = (await onelog("delay", "list", "--json")).document["items"]
    ended = await onelog("delay", "cancel", "U2", "--yes", "--utc")
    assert (ended.code, ended.err) == (0, "")
    for text in ("U2", "orders", "due"):
        assert text in ended.out
    ended = await onelog("delay", "cancel", listed[0]["handle"], "--yes", "--json")
    assert ended.document == {
        "topic": "orders",
        "broker": "broker-a",
        "unique_key": "U1",
        "due_ms": listed[0]["due_ms"],
        "handle": listed[0]["handle"],
        "done": True,
    }
    left = (await onelog("delay", "list", "--json")).document["items"]
    assert [each["unique_key"] for each in left] == ["U3"]


async def test_nobody_is_asked_means_nothing_is_cancelled(
    onelog: Run, cluster: LiveCluster
) -> None:
    await cluster.create_topic("orders")
    await cluster.send("orders", b"x", UNIQ_KEY="U1", TIMER_DELAY_MS="600000")
    ended = await onelog("delay", "cancel", "U1")
    assert ended.code == 2
    assert "say --yes" in ended.err
    ended = await onelog("delay", "cancel", "U1", stdin="n\n")
    assert ended.code == 2
    (left,) = (await onelog("delay", "list", "--json")).document["items"]
    assert left["unique_key"] == "U1"


@pytest.mark.parametrize("which", ["U9", "nonsense", "7F000001" + "0" * 24])
async def test_what_is_not_there_ends_with_1(onelog: Run, which: str) -> None:
    ended = await onelog("delay", "cancel", which, "--yes")
    assert (ended.code, ended.out) == (1, "")
    assert which in ended.err


def test_texts_of_messages_cannot_drive_the_terminal() -> None:
    waiting = Waiting(
        due_ms=1,
        broker="b",
        topic="t",
        queue=0,
        id="I",
        unique_key="\x1b[31m",
        level=1,
        keys=["\x07"],
        tags=None,
        born_ms=0,
        body_bytes=1,
        handle=None,
    )
    screen = console()
    with screen.capture() as captured:
        found = msgspec.to_builtins(ClusterListing([waiting], 1))
        for view in shown("messages", ClusterListing[Waiting], found, utc=True):
            screen.print(view)
    assert "\x1b" not in captured.get()
    assert "\x07" not in captured.get()
