"""Transactions of version 2, with the broker killed between any two of their requests."""

import asyncio
import contextlib
from pathlib import Path

import pytest

from onelog.wire.kafka.codes import ApiKey
from tests.gateways.kafka.live import SECONDS
from tests.gateways.kafka.raw import RawClient
from tests.gateways.kafka.test_kill import Killable
from tests.gateways.kafka.test_transactions import committed, position
from tests.gateways.kafka.test_transactions_2 import NewTeller

pytestmark = [pytest.mark.soak, pytest.mark.timeout(300)]

STEPS = ["begun", "sent", "moved", "ending", "ended", "answered"]


async def connected(broker: Killable, stack: contextlib.ExitStack) -> RawClient:
    """A client, as soon as the broker listens; the stack closes it."""
    host, _, port = broker.at.partition(":")
    async with asyncio.timeout(SECONDS):
        while True:
            try:
                client = RawClient(*await asyncio.open_connection(host, int(port)))
            except ConnectionError:
                await asyncio.sleep(0.05)
            else:
                stack.callback(client.writer.close)
                return client


@pytest.mark.parametrize("commit", [True, False])
@pytest.mark.parametrize("dies", STEPS)
async def test_a_producer_goes_on_where_it_was(tmp_path: Path, dies: str, commit: bool) -> None:
    """What was not answered is asked again, as clients do."""
    broker = await asyncio.to_thread(Killable, tmp_path)
    clients = contextlib.ExitStack()
    try:
        client = await connected(broker, clients)
        await client.make_topic("orders")
        teller = NewTeller(client)
        await teller.begin()

        async def step(name: str) -> None:
            if name == dies:
                await asyncio.to_thread(broker.kill)
                clients.close()
                teller.client = await connected(broker, clients)

        await step("begun")
        assert await teller.send(b"one", b"two") == 0
        await step("sent")
        assert await teller.send(b"three") == 0
        assert await teller.move(3) == 0
        await step("moved")
        ending = {
            "transactional_id": teller.name,
            "producer_id": teller.id,
            "producer_epoch": teller.epoch,
            "committed": commit,
        }
        teller.client.tell(ApiKey.END_TXN, 5, ending)
        await teller.client.writer.drain()
        await step("ending")
        if dies != "ending":
            await teller.client.hear(ApiKey.END_TXN, 5)
        told = await teller.told_at_end(commit)
        await step("ended")
        assert await teller.told_at_end(commit) == told
        assert (told["error_code"], told["producer_epoch"]) == (0, teller.epoch + 1)
        teller.become(told)
        await step("answered")
        assert await teller.send(b"next") == 0
        assert await teller.end(commit=True) == 0
        seen = [b"one", b"two", b"three"] if commit else []
        assert await committed(teller.client) == [*seen, b"next"]
        assert await position(teller.client, stable=True) == (0, 3 if commit else -1)
    finally:
        clients.close()
        await asyncio.to_thread(broker.close)
