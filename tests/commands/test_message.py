"""`onelog message`, as people use it."""

import asyncio
import base64
import json
import sys
import zlib
from pathlib import Path

import pytest

from onelog.client.admin.messages import Consumption, Found
from onelog.client.connection.address import Address
from onelog.commands.message import LONG_BYTES, document, line, show_message, show_messages
from onelog.commands.terminal import console
from onelog.message import NewMessage, encode_properties
from onelog.record.decode import decode_records
from onelog.record.encode import encode
from tests.client.admin.test_groups import commit
from tests.client.live_cluster import LiveCluster
from tests.commands.conftest import Run


async def test_a_message_by_its_id(onelog: Run, cluster: LiveCluster, tmp_path: Path) -> None:
    await cluster.create_topic("orders", 2)
    sent = await cluster.send(
        "orders", b"hello\nworld", queue=1, KEYS="k1 k2", TAGS="paid", colour="red"
    )
    found = (await onelog("message", "get", sent, "--json")).document
    assert (found["id"], found["topic"], found["queue"], found["offset"]) == (sent, "orders", 1, 0)
    assert (found["tags"], found["keys"], found["broker"]) == ("paid", ["k1", "k2"], "broker-a")
    assert (found["body"], found["body_encoding"]) == ("hello\nworld", "text")
    assert found["properties"]["colour"] == "red"
    assert found["store_host"] == cluster.brokers[0].address
    path = tmp_path / "body"
    shown = await onelog("message", "get", sent, "--body-to", str(path), "--utc")
    assert (shown.code, shown.err) == (0, "")
    assert path.read_bytes() == b"hello\nworld"
    assert shown.out.endswith("body:\nhello\nworld\n")
    for text in (sent, "broker-a", "k1 k2", "paid", "colour"):
        assert text in shown.out


async def test_an_id_may_be_a_unique_key_if_the_topic_is_known(
    onelog: Run, cluster: LiveCluster
) -> None:
    await cluster.create_topic("orders")
    unique = "7F0000010001" + "0" * 20
    sent = await cluster.send("orders", b"x", UNIQ_KEY=unique)
    for given in (unique, sent):
        found = await onelog("message", "get", given, "--topic", "orders", "--json")
        assert found.document["id"] == sent
    missing = await onelog("message", "get", unique)
    assert missing.code == 1
    assert "if this is a unique key, say --topic" in missing.err
    found = await onelog("message", "by-unique-key", "orders", unique, "--json")
    assert found.document["unique_key"] == unique


async def test_which_groups_are_past_it(onelog: Run, cluster: LiveCluster) -> None:
    await cluster.create_topic("orders", 1)
    sent = await cluster.send("orders", b"x")
    await onelog("group", "create", "readers")
    await commit(await cluster.client(), "readers", "orders", 0, 1)
    found = (await onelog("message", "get", sent, "--groups", "--json")).document
    assert found["groups"] == [{"group": "readers", "position": 1, "past": True}]
    assert "readers" in (await onelog("message", "get", sent, "--groups")).out


async def test_messages_by_key(onelog: Run, cluster: LiveCluster) -> None:
    await cluster.create_topic("orders")
    for number in range(4):
        await cluster.send("orders", b"%d" % number, KEYS="k")
    found = (await onelog("message", "by-key", "orders", "k", "--json")).document
    assert [each["body"] for each in found] == ["0", "1", "2", "3"]
    found = (await onelog("message", "by-key", "orders", "k", "--json", "--limit", "2")).document
    assert [each["body"] for each in found] == ["2", "3"]
    assert (await onelog("message", "by-key", "orders", "k", "--until", "1h")).code == 1
    assert "messages: 4" in (await onelog("message", "by-key", "orders", "k", "--since", "1h")).out


async def test_messages_by_offset(onelog: Run, cluster: LiveCluster) -> None:
    await cluster.create_topic("orders", 2)
    for number in range(4):
        await cluster.send("orders", b"%d" % number, queue=1)
    one = (await onelog("message", "by-offset", "orders", "1", "2", "--json")).document
    assert one["body"] == "2"
    several = await onelog("message", "by-offset", "orders", "1", "2", "--count", "9", "--json")
    assert [each["body"] for each in several.document] == ["2", "3"]
    missing = await onelog("message", "by-offset", "orders", "1", "4")
    assert missing.code == 1
    assert "has 0 up to 3" in missing.err


async def test_messages_by_time(onelog: Run, cluster: LiveCluster) -> None:
    await cluster.create_topic("orders", 2)
    for number in range(5):
        await cluster.send("orders", b"%d" % number, queue=number % 2)
        await asyncio.sleep(0.002)
    by_time = ("message", "by-time", "orders")
    assert [each["body"] for each in (await onelog(*by_time, "--json")).document] == list("01234")
    few = (await onelog(*by_time, "--json", "--limit", "2")).document
    assert [each["body"] for each in few] == ["0", "1"]
    since = str(few[1]["store_ms"] + 1)
    later = (await onelog(*by_time, "--json", "--since", since)).document
    assert [each["body"] for each in later] == ["2", "3", "4"]
    queue = (await onelog(*by_time, "--json", "--queue", "1")).document
    assert [each["body"] for each in queue] == ["1", "3"]
    assert (await onelog(*by_time, "--json", "--since", "2h", "--until", "1h")).document == []


@pytest.mark.parametrize(
    ("words", "reason"),
    [
        (("get", "nonsense"), "32 or 56"),
        (("by-time", "orders", "--since", "1h", "--until", "2h"), "is after"),
        (("by-time", "orders", "--since", "someday"), "is no time"),
        (("by-time", "orders", "--follow", "--until", "now"), "--follow has no end"),
        (("by-time", "orders", "--queue", "9"), "no such queue"),
        (("by-offset", "orders", "0", "-1"), "-1"),
        (("by-offset", "orders", "0", "0", "--body-to", "no/such/folder/x"), "no/such/folder/x"),
    ],
)
async def test_what_cannot_be_done_ends_with_2_and_says_why(
    onelog: Run, cluster: LiveCluster, words: tuple[str, ...], reason: str
) -> None:
    await cluster.create_topic("orders")
    await cluster.send("orders", b"x")
    ended = await onelog("message", *words)
    assert (ended.code, ended.out) == (2, "")
    assert reason in ended.err


async def test_following_prints_messages_as_they_come(cluster: LiveCluster) -> None:
    await cluster.create_topic("orders", 1)
    await cluster.send("orders", b"old", TAGS="t")
    child = await asyncio.create_subprocess_exec(
        *(sys.executable, "-m", "onelog", "message", "by-time", "orders"),
        *("--follow", "--interval", "0.1", "--json", "-n", cluster.addresses),
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.PIPE,
    )
    assert child.stdout is not None
    async with asyncio.timeout(60):
        assert json.loads(await child.stdout.readline())["body"] == "old"
        await cluster.send("orders", b"new")
        assert json.loads(await child.stdout.readline())["body"] == "new"
        child.terminate()
        await child.communicate()


# How messages look.


def found(body: bytes, sys_flag: int = 0, **properties: str) -> Found:
    message = NewMessage("t", 3, body, encode_properties(properties), sys_flag=sys_flag)
    head, encoded_body, tail, _ = encode(message, 7, 0, 1_793_528_400_000, False)
    (decoded,) = decode_records(head + bytes(encoded_body) + tail)
    return Found("broker-a", Address("127.0.0.1", 1), decoded)


def shown(each: Found, consumption: list[Consumption] | None = None) -> str:
    out = console()
    with out.capture() as captured:
        for view in show_message(each, consumption, True)[1:]:
            out.print(view, soft_wrap=isinstance(view, str))
    return captured.get()


def test_a_body_that_is_no_text_is_shown_in_hex() -> None:
    assert "00000000  00 ff 41 42" in shown(found(b"\x00\xffAB"))
    made = document(found(b"\x00\xff"))
    assert (base64.b64decode(made["body"]), made["body_encoding"]) == (b"\x00\xff", "base64")
    assert "(2 B that are no text)" in line(found(b"\xff\xfe"), True)


def test_a_compressed_body_is_unpacked_or_the_reason_is_given() -> None:
    packed = found(zlib.compress(b"hello" * 10), sys_flag=0x301)
    assert "hellohello" in shown(packed)
    assert "compressed (zlib)" in shown(packed)
    assert document(packed)["body"] == "hello" * 10
    damaged = found(b"....", sys_flag=0x201)
    assert "said to be compressed, but: zstd" in shown(damaged)
    assert "zstd" in line(damaged, True)
    made = document(damaged)
    assert (made["body_encoding"], made["body"]) == ("text", "....")
    assert "zstd" in made["trouble"]


def test_a_long_body_is_cut_and_says_so() -> None:
    text = "ä" * LONG_BYTES
    cut = shown(found(text.encode()))
    assert "ä" * (LONG_BYTES // 2) in cut
    assert "more" in cut
    assert line(found(b"x" * 100), True).endswith("x" * 60 + "…")
    assert line(found(("x" + "ä" * 200).encode()), True).endswith("ä…")
    assert document(found(text.encode()))["body"] == text


def test_nothing_in_a_message_reaches_the_terminal_as_a_command() -> None:
    evil = found(b"\x1b[2J", TAGS="\x1b[31m", KEYS="\x07")
    out = console()
    with out.capture() as captured:
        out.print(show_messages([evil], True)[1])
    for text in (captured.get(), shown(evil), line(evil, True)):
        assert "\x1b" not in text
        assert "\x07" not in text


def test_a_transaction_and_lagging_groups_are_told() -> None:
    text = shown(found(b"x", sys_flag=8), [Consumption("slow", 5, False)])
    assert "committed" in text
    assert "slow" in text
