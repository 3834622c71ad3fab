"""What users cost on the send path: CPU time of a send without them, with them, and signed.

One broker, whose users come and go between slices, so that all kinds meet the same memory and the
same moments of the machine: `off`, no users; `on`, users, and clients that have permissions and
need not log in (what each message is asked about); `signed`, RocketMQ's way of logging in, with
each request. Beside the slices, which a busy machine disturbs, there is what a message is asked by
itself: the broker's door with nothing behind it, with users and without, the quickest of many runs
in turns. Both are held against the cheapest slice of sends.

A signature is an HMAC-SHA1 of the request, for which nothing can be put in place; how
long that takes by itself, with the key in it already, is told beside it.
"""

import asyncio
import hashlib
import hmac
import itertools
import statistics
import timeit
from base64 import b64encode
from collections.abc import Iterator
from functools import partial
from typing import Any, cast

import uvloop

from benchmarks.in_process import (
    BODY,
    ON_THE_WAY,
    QUEUES,
    SEND,
    SETTINGS,
    Client,
    Kind,
    frame,
    send_fields,
)
from benchmarks.table import Options, Row, under
from onelog.config import Value
from onelog.config_sources import load
from onelog.core.access import SELF, Principal
from onelog.core.catalog.topics import TopicConfig
from onelog.core.users.passwords import Proofs
from onelog.core.users.permissions import Rule
from onelog.core.users.users import ANONYMOUS_ROLE, Role
from onelog.message import NewMessage
from onelog.server import BrokerServer, running_broker

ROUNDS = 60
SLICE = 6_400
USER, SECRET = "shop", "secret"
TOPIC = "sends"


def run(options: Options) -> list[Row]:
    """All kinds, in turns."""
    return uvloop.run(_measured(options))


def _content(fields: dict[str, object]) -> bytes:
    return "".join(str(fields[name]) for name in sorted(fields)).encode() + BODY


def _signed(fields: dict[str, object]) -> dict[str, object]:
    texts = {**fields, "AccessKey": USER}
    signature = hmac.digest(SECRET.encode(), _content(texts), hashlib.sha1)
    return {**texts, "Signature": b64encode(signature).decode()}


def _sends(signed: bool) -> Iterator[bytes]:
    """Windows of requests, again and again."""
    windows = []
    for first in range(0, 32 * ON_THE_WAY, ON_THE_WAY):
        requests = []
        for number in range(first, first + ON_THE_WAY):
            fields = send_fields(TOPIC, number % QUEUES, number, False)
            requests.append(frame(SEND, _signed(fields) if signed else fields, BODY))
        windows.append(b"".join(requests))
    return itertools.cycle(windows)


async def _measured(options: Options) -> list[Row]:
    settings: dict[str, Value] = {
        **SETTINGS, "broker.store_path": str(options.folder / "store"), "broker.name": "broker-a",
        "security.anonymous": True,
        **dict.fromkeys(("kafka.port", "amqp.port", "stomp.port", "mqtt.port", "grpc.port"), 0),
    }  # fmt: skip
    async with running_broker(load(overrides=settings)) as server:
        _let_in(server)
        address = ("127.0.0.1", server.config.broker.port)
        _, client = await asyncio.get_running_loop().create_connection(Client, *address)
        kinds = {
            (signed, users): Kind(
                _sends(signed), ON_THE_WAY, lambda window: client.ask(window, ON_THE_WAY)
            )
            for signed, users in itertools.product((False, True), (False, True))
        }
        options.announce("sends without users, with users, and signed")
        known = server.broker.users.users.known
        costs: dict[tuple[bool, bool], list[float]] = {each: [] for each in kinds}
        for number in range(8 if options.quick else ROUNDS):
            for signed, users in (*kinds,) if number % 2 else reversed((*kinds,)):
                server.broker.users.users.known = known if users else {}
                server.broker.users._forget()
                kind = kinds[signed, users]
                costs[signed, users].append((await kind.slice(SLICE))["cpu_us"])
        server.broker.users.users.known = known
        server.broker.users._forget()
        asked_us = _asked_us(server)
    off = statistics.median(costs[False, False])
    plain_us = _difference(costs[False, True], costs[False, False])
    signed_us = _difference(costs[True, True], costs[True, False])
    hmac_us = _hmac_us()
    best = min(costs[False, False])
    of = f"of a send's {off:.2f} us; medians of paired slices of {SLICE:,} sends"
    return [
        under("permissions, of the send path's CPU time", max(0.0, plain_us / off * 100), "%", 1.0,
              off, f"{plain_us * 1_000:.0f} ns {of}"),
        under("what a message is asked, by itself", asked_us / best * 100, "%", 1.0, best,
              f"{asked_us * 1_000:.0f} ns of {best:.2f} us, the cheapest slice"),
        Row("signatures, of the send path's CPU time", signed_us / off * 100, "%",
            hmac_us / off * 100, "HMAC-SHA1 alone", less_is_better=True, cpu_us=off + signed_us,
            note=f"{signed_us * 1_000:.0f} ns {of}; the HMAC alone: {hmac_us * 1_000:.0f} ns"),
    ]  # fmt: skip


def _let_in(server: BrokerServer) -> None:
    """Make a topic, and users who may send to it; the one without a name, too."""
    server.broker.topics.create(SELF, TopicConfig(TOPIC, QUEUES, QUEUES))
    users = server.broker.users
    users.create_user(SELF, "root", Proofs(), ("admin",))
    users.create_user(SELF, USER, Proofs(secret=SECRET))
    rule = Rule(("publish",), "topic", TOPIC, "literal")
    users.set_rules(SELF, USER, (rule,))
    users.put_role(SELF, Role(ANONYMOUS_ROLE, (rule,)))


def _asked_us(server: BrokerServer) -> float:
    """What a message costs more at the broker's door because there are users."""
    broker, principal = server.broker, Principal(USER, "test", "127.0.0.1:5")
    message = NewMessage(TOPIC, 0, BODY)
    publish = cast(Any, broker.publish)
    put, publish._put = publish._put, _ignored
    runs: dict[bool, list[float]] = {False: [], True: []}
    for _ in range(101):
        for guarded in (False, True):
            broker.users.is_open = not guarded
            send = partial(broker.publish.send, principal, message, _ignored)
            runs[guarded].append(timeit.timeit(send, number=2_000) / 2_000 * 1e6)
    publish._put, broker.users.is_open = put, False
    return min(runs[True]) - min(runs[False])


def _ignored(*_: object) -> None:
    """Nobody is told."""


def _difference(some: list[float], others: list[float]) -> float:
    return statistics.median(one - other for one, other in zip(some, others, strict=True))


def _hmac_us() -> float:
    """What an HMAC-SHA1 of a request's content takes, from hashes that have the key in them."""
    fields = send_fields(TOPIC, 0, 0, False)
    content = _content({**fields, "AccessKey": USER})
    key = SECRET.encode().ljust(64, b"\0")
    inner, outer = (hashlib.sha1(bytes(each ^ pad for each in key)) for pad in (0x36, 0x5C))

    def once() -> None:
        one = inner.copy()
        one.update(content)
        other = outer.copy()
        other.update(one.digest())
        other.digest()

    return min(timeit.repeat(once, number=20_000, repeat=9)) / 20_000 * 1e6
