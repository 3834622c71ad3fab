"""A toy protocol on the core: its messages and RocketMQ's are the same messages."""

import asyncio
from pathlib import Path

from onelog.message import decode_properties
from tests.gateways.remoting.live import broker, client, messages
from tests.gateways.toy import ToyClient
from tests.waiting import eventually


async def test_rocketmq_reads_what_the_toy_puts_and_the_toy_what_rocketmq_sends(
    tmp_path: Path,
) -> None:
    async with broker(tmp_path) as server, client(server) as rocketmq:
        await rocketmq.send("orders", b"from-rocketmq", {"KEYS": "k1", "DELAY": "0"})
        toy = await ToyClient.connect(server)
        assert await toy.say("PUT orders k2 from-toy") == "OK 1"
        assert await toy.say("PUT orders - -") == "OK 2"
        found = messages(await rocketmq.pull("orders", 0))
        assert [bytes(each.body) for each in found] == [b"from-rocketmq", b"from-toy", b""]
        assert decode_properties(found[1].properties)["KEYS"] == "k2"
        assert decode_properties(found[2].properties)["__body"] == "null"
        got = [(await toy.say("GET readers orders 0")).split() for _ in range(4)]
        assert [words[4:] for words in got] == [
            ["k1", "from-rocketmq"],
            ["k2", "from-toy"],
            ["-", "-"],
            [],
        ]
        assert got[3] == ["NONE"]
        toy.writer.close()


async def test_what_the_toy_acknowledged_is_done_and_the_rest_comes_again_after_a_restart(
    tmp_path: Path,
) -> None:
    async with broker(tmp_path) as server, client(server) as rocketmq:
        await rocketmq.send("orders", b"first")
        await rocketmq.send("orders", b"second")
        toy = await ToyClient.connect(server)
        _, queue_id, offset, handle, _, body = (await toy.say("GET readers orders 0")).split()
        assert body == "first"
        assert await toy.say(f"ACK readers orders {queue_id} {offset} {handle}") == "OK"
        again = await toy.say(f"ACK readers orders {queue_id} {offset} {handle}")
        assert again.startswith("ERR")
        assert "acknowledged" in again
        toy.writer.close()
    async with broker(tmp_path) as server:
        toy = await ToyClient.connect(server)
        assert (await toy.say("GET readers orders 0")).endswith("second")
        toy.writer.close()


async def test_the_toy_waits_for_a_message_in_the_core(tmp_path: Path) -> None:
    async with broker(tmp_path) as server, client(server) as rocketmq:
        await rocketmq.send("orders", b"first")
        toy = await ToyClient.connect(server)
        await toy.say("GET readers orders 0")
        waiting = asyncio.ensure_future(toy.say("GET readers orders 20000"))
        await eventually(lambda: len(server.core.waiting) == 1, "held")
        await rocketmq.send("orders", b"late")
        assert (await waiting).endswith("late")
        assert await toy.say("GET readers orders 10") == "NONE"
        toy.writer.close()


async def test_names_of_rocketmqs_features_mean_nothing_in_the_toys_messages(
    tmp_path: Path,
) -> None:
    async with broker(tmp_path) as server, client(server) as rocketmq:
        await rocketmq.send("orders", b"first")
        toy = await ToyClient.connect(server)
        assert await toy.say("PUT orders DELAY\x013 now") == "OK 1", "a key, and no delay"
        assert (await toy.say("PUT nowhere k x")).startswith("ERR")
        assert (await toy.say("SHOUT")).startswith("ERR")
        toy.writer.close()
