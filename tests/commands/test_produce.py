"""`onelog produce`, as people use it."""

import asyncio
import base64
import json
import signal
import sys
import time
from asyncio.subprocess import PIPE
from pathlib import Path

import pytest

from onelog.commands.produce import sending
from onelog.message import Message, decode_properties
from tests.client.live_cluster import LiveCluster
from tests.client.scripted import ScriptedNode, knowing, refusing, route_data, scripted
from tests.client.watching import bodies, stored
from tests.commands.conftest import Run
from tests.commands.running import Ended, run_beside
from tests.waiting import eventually


async def only_message(cluster: LiveCluster, topic: str) -> Message:
    (message,) = await stored(cluster, topic)
    return message


async def test_lines_of_stdin_become_messages(onelog: Run, cluster: LiveCluster) -> None:
    await cluster.create_topic("orders", queues=1)
    ended = await onelog("produce", "orders", stdin="one\n\ntwo\r\nthree")
    assert (ended.code, ended.err) == (0, "")
    assert ended.out.startswith("3 sent (11 B) in ")
    assert await bodies(cluster, "orders", queues=1) == [b"one", b"two", b"three"]


async def test_lines_of_files_and_of_stdin_in_their_order(
    onelog: Run, cluster: LiveCluster, tmp_path: Path
) -> None:
    await cluster.create_topic("orders", queues=1)
    (tmp_path / "a").write_bytes(b"a1\na2\n")
    (tmp_path / "b").write_bytes(b"b1\n")
    arguments = (str(tmp_path / "a"), "-", str(tmp_path / "b"))
    assert (await onelog("produce", "orders", *arguments, stdin="in\n")).code == 0
    assert await bodies(cluster, "orders", queues=1) == [b"a1", b"a2", b"in", b"b1"]


async def test_a_file_is_a_message_as_it_is(
    onelog: Run, cluster: LiveCluster, tmp_path: Path
) -> None:
    await cluster.create_topic("orders")
    (tmp_path / "picture").write_bytes(b"\x89PNG\r\n\x00\n")
    ended = await onelog("produce", "orders", "--as", "files", str(tmp_path / "picture"))
    assert ended.code == 0
    assert await bodies(cluster, "orders") == [b"\x89PNG\r\n\x00\n"]


async def test_options_are_given_to_every_message(onelog: Run, cluster: LiveCluster) -> None:
    await cluster.create_topic("orders")
    ended = await onelog(
        *("produce", "orders", "-b", "text", "--tag", "paid", "--key", "k1", "--key", "k2"),
        *("--property", "colour=blue=green", "--json"),
    )
    message = await only_message(cluster, "orders")
    assert (message.tags, message.keys) == ("paid", ["k1", "k2"])
    assert decode_properties(message.properties)["colour"] == "blue=green"
    said = ended.document
    assert (said["sent"], said["failed"], said["body_bytes"]) == (1, 0, 4)
    receipt = said["receipt"]
    assert (receipt["id"], receipt["offset"]) == (message.unique_key, message.queue_offset)
    assert (receipt["topic"], receipt["broker"], receipt["status"]) == ("orders", "broker-a", "ok")


async def test_json_lines_say_everything_about_a_message(onelog: Run, cluster: LiveCluster) -> None:
    await cluster.create_topic("orders", queues=1)
    await cluster.create_topic("others", queues=1)
    lines = [
        {"body": "text", "tags": "paid", "keys": "k1", "properties": {"a": "b"}, "flag": 7},
        {"body": {"price": 3.50, "name": "Grün"}, "keys": ["k2", "k3"]},
        {"body": base64.b64encode(b"\xff\x00").decode(), "body_encoding": "base64"},
        {"body": [1, 2], "topic": "others", "order_key": "42"},
    ]
    *first_three, last = lines
    stdin = "\n".join(map(json.dumps, first_three))
    ended = await onelog("produce", "orders", "--as", "json", "--property", "c=d", stdin=stdin)
    assert (ended.code, ended.err) == (0, "")
    assert (await onelog("produce", "-", "--as", "json", stdin=json.dumps(last))).code == 0
    first, second, third = await stored(cluster, "orders", queues=1)
    assert (bytes(first.body), first.tags, first.keys, first.flag) == (b"text", "paid", ["k1"], 7)
    properties = decode_properties(first.properties)
    assert (properties["a"], properties["c"]) == ("b", "d")
    assert json.loads(bytes(second.body)) == {"price": 3.5, "name": "Grün"}
    assert second.keys == ["k2", "k3"]
    assert bytes(third.body) == b"\xff\x00"
    assert await bodies(cluster, "others", queues=1) == [b"[1, 2]"]


async def test_the_topics_of_lines_count_only_where_no_other_is_named(
    onelog: Run, cluster: LiveCluster
) -> None:
    for topic in ("orders", "copies"):
        await cluster.create_topic(topic)
    line = '{"topic":"orders","body":"x"}'
    assert (await onelog("produce", "copies", "--as", "json", stdin=line)).code == 0
    assert await bodies(cluster, "copies") == [b"x"]
    assert await bodies(cluster, "orders") == []
    ended = await onelog("produce", "-", "--as", "json", stdin='{"body":"x"}')
    assert ended.code == 2
    assert "stdin, line 1: it names no topic" in ended.err
    ended = await onelog("produce", "-", "-b", "x")
    assert (ended.code, "only JSON lines" in ended.err) == (2, True)


async def test_messages_can_be_sent_for_later(onelog: Run, cluster: LiveCluster) -> None:
    await cluster.create_topic("orders")
    at = time.strftime("%Y-%m-%d %H:%M:%S", time.gmtime(time.time() + 3600))
    assert (await onelog("produce", "orders", "-b", "x", "--delay", "1h30m")).code == 0
    assert (await onelog("produce", "orders", "-b", "y", "--at", at, "--utc")).code == 0
    lines = '{"body":"z","delay":"2h"}\n{"body":"v","delay":0.5}\n{"body":"w","delay_level":18}'
    assert (await onelog("produce", "orders", "--as", "json", stdin=lines)).code == 0
    waiting = (await onelog("delay", "list", "--json")).document["items"]
    now_ms = time.time() * 1000
    due_hours = [round((each["due_ms"] - now_ms) / 3_600_000, 1) for each in waiting]
    assert [due for due in due_hours if due > 0.1] == [1.0, 1.5, 2.0, 2.0]
    await eventually(lambda: has_arrived(cluster), "the message of half a second")


async def has_arrived(cluster: LiveCluster) -> bool:
    return await bodies(cluster, "orders") == [b"v"]


async def test_an_order_key_keeps_messages_in_one_queue_and_in_order(
    onelog: Run, cluster: LiveCluster
) -> None:
    await cluster.create_topic("orders", queues=4)
    stdin = "".join(f"{number}\n" for number in range(50))
    assert (await onelog("produce", "orders", "--order-key", "42", stdin=stdin)).code == 0
    messages = await stored(cluster, "orders")
    assert len({message.queue_id for message in messages}) == 1
    by_offset = sorted(messages, key=lambda message: message.queue_offset)
    assert [int(bytes(message.body)) for message in by_offset] == list(range(50))


async def test_receipts_are_lines_and_the_summary_is_not_among_them(
    onelog: Run, cluster: LiveCluster
) -> None:
    await cluster.create_topic("orders")
    ended = await onelog("produce", "orders", "--receipts", "--json", stdin="a\nb\nc\n")
    ids = {json.loads(line)["id"] for line in ended.out.splitlines()}
    assert ids == {message.unique_key for message in await stored(cluster, "orders")}
    assert ended.err.startswith("3 sent")
    shown = await onelog("produce", "orders", "--receipts", "-b", "x")
    assert " orders broker-a/" in shown.out


async def test_it_stops_after_so_many(onelog: Run, cluster: LiveCluster) -> None:
    await cluster.create_topic("orders", queues=1)
    ended = await onelog("produce", "orders", "--count", "2", stdin="a\nb\nc\n")
    assert ended.code == 0
    assert await bodies(cluster, "orders", queues=1) == [b"a", b"b"]


async def test_a_rate_is_kept(onelog: Run, cluster: LiveCluster) -> None:
    await cluster.create_topic("orders")
    ended = await onelog("produce", "orders", "--rate", "20", "--json", stdin="x\n" * 11)
    assert ended.document["sent"] == 11
    assert ended.document["seconds"] >= 0.5


async def test_input_that_is_no_message_ends_it_unless_it_is_to_keep_going(
    onelog: Run, cluster: LiveCluster
) -> None:
    await cluster.create_topic("orders", queues=1)
    stdin = '{"body":"a"}\n{"bodies":"b"}\n{"body":"c"}\n'
    ended = await onelog("produce", "orders", "--as", "json", stdin=stdin)
    assert ended.code == 2
    assert "stdin, line 2: Object contains unknown field `bodies`" in ended.err
    assert "1 sent" in ended.out
    assert await bodies(cluster, "orders", queues=1) == [b"a"]
    ended = await onelog("produce", "orders", "--as", "json", "--keep-going", stdin=stdin)
    assert ended.code == 2
    assert "2 sent" in ended.out
    assert "1 could not be sent" in ended.out
    assert await bodies(cluster, "orders", queues=1) == [b"a", b"a", b"c"]


@pytest.mark.parametrize(
    ("arguments", "told"),
    [
        (("--property", "colour"), "write it as name=value"),
        (("--property", "KEYS=a"), "reserved"),
        (("--delay", "soon"), "no span of time"),
        (("--at", "soon"), "no time"),
        (("--delay", "1s", "--at", "now"), "exclude one another"),
        (("--key", "a b"), "space"),
        (("nowhere.txt",), "nowhere.txt: No such file"),
        (("nowhere.txt", "-b", "x"), "exclude one another"),
        (("--access-key", "a"), "need each other"),
    ],
)
async def test_what_cannot_be_is_refused_before_anything_is_sent(
    onelog: Run, cluster: LiveCluster, arguments: tuple[str, ...], told: str
) -> None:
    await cluster.create_topic("orders")
    body = () if "nowhere.txt" in arguments else ("-b", "x")
    ended = await onelog("produce", "orders", *body, *arguments)
    assert ended.code == 2
    assert told in ended.err
    assert await bodies(cluster, "orders") == []


@pytest.mark.parametrize(
    ("line", "told"),
    [
        ("nonsense", "JSON is malformed"),
        ("{}", "missing required field `body`"),
        ('{"body":""}', "empty body"),
        ('{"body":"?","body_encoding":"base64"}', "no base64"),
        ('{"body":"?","body_encoding":"latin-1"}', "utf-8 or base64"),
        ('{"body":"a","delay":1e300}', "a delay cannot be"),
        ('{"body":"a","deliver_at":99999999999999999}', "is no time"),
        ('{"body":"a","properties":{"a":1}}', "Expected `str`"),
    ],
)
async def test_json_lines_are_checked(
    onelog: Run, cluster: LiveCluster, line: str, told: str
) -> None:
    ended = await onelog("produce", "orders", "--as", "json", stdin=line)
    assert ended.code == 2
    assert "stdin, line 1: " in ended.err
    assert told in ended.err


async def test_what_no_broker_takes_is_told_with_its_place() -> None:
    async with scripted(refusing(1, "disk is full")) as broker:
        routes = {"orders": route_data({"broker-a": broker.address})}
        async with scripted(knowing(routes)) as nameserver:
            ended = await send_to(nameserver, "--keep-going", stdin="a\nb\n")
    assert ended.code == 2
    assert "onelog: stdin, line 1: " in ended.err
    assert "onelog: stdin, line 2: " in ended.err
    assert "disk is full" in ended.err
    assert "0 sent" in ended.out


async def send_to(nameserver: ScriptedNode, *arguments: str, stdin: str) -> Ended:
    return await run_beside(
        "produce", "orders", "-n", str(nameserver.address), *arguments, stdin=stdin
    )


async def test_no_name_server_ends_it_with_the_address() -> None:
    ended = await run_beside("produce", "orders", "-n", "127.0.0.1:1", "-b", "x")
    assert ended.code == 2
    assert "no connection to 127.0.0.1:1" in ended.err


async def test_more_messages_than_may_be_on_their_way(onelog: Run, cluster: LiveCluster) -> None:
    await cluster.create_topic("orders")
    count = 3 * sending.ON_THE_WAY_MAX
    lines = "".join(
        json.dumps({"body": str(number), "order_key": str(number)}) + "\n"
        for number in range(count)
    )
    ended = await onelog("produce", "orders", "--as", "json", stdin=lines)
    assert ended.out.startswith(f"{count} sent")
    assert sorted(map(int, await bodies(cluster, "orders"))) == list(range(count))


async def test_ctrl_c_ends_it_after_what_is_on_its_way(cluster: LiveCluster) -> None:
    await cluster.create_topic("orders")
    program = await asyncio.create_subprocess_exec(
        *(sys.executable, "-m", "onelog", "produce", "orders", "-n", cluster.addresses),
        stdin=PIPE,
        stdout=PIPE,
        stderr=PIPE,
    )
    assert program.stdin is not None
    program.stdin.write(b"first\nsecond\n")

    async def are_there() -> bool:
        return len(await bodies(cluster, "orders")) == 2

    await eventually(are_there, "both messages")
    program.send_signal(signal.SIGINT)
    # Its input stays open: it does not end because of that.
    await asyncio.wait_for(program.wait(), 60)
    out, err = await program.communicate()
    assert (program.returncode, err) == (130, b"")
    assert out.startswith(b"2 sent")
