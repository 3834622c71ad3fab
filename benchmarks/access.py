"""What permissions cost on the send path: CPU time of a send without users, with users, and signed.

Three brokers in one process take turns, slice by slice, so that all meet the same moments of the
machine: one without users (`off`), one whose clients have permissions and need not log in (`on`:
what each message is asked about), and one whose requests are signed (`signed`: RocketMQ's way of
logging in, with each request).

    python -m benchmarks.access [ROUNDS]
"""

import asyncio
import hashlib
import hmac
import itertools
import json
import statistics
import sys
import tempfile
from base64 import b64encode
from collections.abc import Iterator
from contextlib import AsyncExitStack
from pathlib import Path

import uvloop

from benchmarks.in_process import (
    BODY,
    ON_THE_WAY,
    QUEUES,
    SEND,
    SETTINGS,
    SLICE,
    Client,
    Kind,
    frame,
    send_fields,
)
from onelog.config import load
from onelog.core.access import SELF
from onelog.core.catalog.topics import TopicConfig
from onelog.core.users.passwords import prove
from onelog.core.users.permissions import Rule
from onelog.core.users.users import ANONYMOUS_ROLE, Role
from onelog.server import running_broker

ROUNDS = 30
USER, SECRET = "shop", "secret"


def _signed(fields: dict[str, object]) -> dict[str, object]:
    texts = {**fields, "AccessKey": USER}
    content = "".join(str(texts[name]) for name in sorted(texts)).encode() + BODY
    signature = b64encode(hmac.digest(SECRET.encode(), content, hashlib.sha1)).decode()
    return {**texts, "Signature": signature}


def sends(signed: bool) -> Iterator[bytes]:
    """Windows of requests, again and again."""
    windows = []
    for first in range(0, 32 * ON_THE_WAY, ON_THE_WAY):
        requests = []
        for number in range(first, first + ON_THE_WAY):
            fields = send_fields("sends", number % QUEUES, number, False)
            requests.append(frame(SEND, _signed(fields) if signed else fields, BODY))
        windows.append(b"".join(requests))
    return itertools.cycle(windows)


async def main(rounds: int) -> None:
    """Measure, and print the medians."""
    loop = asyncio.get_running_loop()
    kinds: dict[str, Kind] = {}
    async with AsyncExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory()))
        for name in ("off", "on", "signed"):
            settings = {
                **SETTINGS, "broker.store_path": str(folder / name), "broker.name": "broker-a",
                "kafka.port": 0, "security.anonymous": name == "on",
            }  # fmt: skip
            server = await stack.enter_async_context(running_broker(load(overrides=settings)))
            server.broker.admin.create_topic(SELF, TopicConfig("sends", QUEUES, QUEUES))
            if name != "off":
                users = server.broker.users
                users.create_user(SELF, "root", prove("r"), ("admin",))
                users.create_user(SELF, USER, prove(SECRET, signing=True))
                rule = Rule(("publish",), "topic", "sends", "literal")
                users.set_rules(SELF, USER, (rule,))
                users.put_role(SELF, Role(ANONYMOUS_ROLE, (rule,)))
            port = server.config.broker.port
            _, client = await loop.create_connection(Client, "127.0.0.1", port)

            async def step(window: bytes, client: Client = client) -> object:
                return await client.ask(window, ON_THE_WAY)

            kinds[name] = Kind(sends(name == "signed"), ON_THE_WAY, step)
        costs: dict[str, list[float]] = {name: [] for name in kinds}
        for number in range(rounds):
            for name in (*kinds,) if number % 2 else reversed((*kinds,)):
                costs[name].append((await kinds[name].slice(SLICE["send"]))["cpu_us"])
    off = statistics.median(costs["off"])
    for name, each in costs.items():
        ratios = [one / other for one, other in zip(each, costs["off"], strict=True)]
        print(
            json.dumps(
                {
                    "access": name,
                    "cpu_us": round(statistics.median(each), 2),
                    "beside_off": round(statistics.median(ratios), 4),
                    "least_us": round(min(each), 2),
                    "off_us": round(off, 2),
                }
            )
        )


if __name__ == "__main__":
    uvloop.run(main(int(sys.argv[1]) if len(sys.argv) > 1 else ROUNDS))
