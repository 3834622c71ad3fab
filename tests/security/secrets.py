"""A broker with every port, an administrator, secrets, and somebody who has no business there.

Whatever there is on it is called `SECRET`, or has that in its name. `ABSENT` is a name of the same
length that nothing has: whoever cannot tell the two apart has learned nothing.
"""

import asyncio
import contextlib
from collections.abc import AsyncIterator
from pathlib import Path

from onelog.config import Value
from onelog.core.access import SELF
from onelog.core.catalog.groups import GroupConfig
from onelog.core.catalog.topics import TopicConfig
from onelog.core.users.passwords import prove
from onelog.core.users.permissions import Rule
from onelog.core.users.users import Role
from onelog.message import NewMessage
from onelog.server import BrokerServer
from tests.gateways.remoting.live import broker, client

SECRET, ABSENT = "zqhidden", "zzabsent"
TRACE = b"zqhid"
"""What nobody may see who has no permission."""
PORTS: dict[str, Value] = {
    f"{each}__port": -1 for each in ("kafka", "http", "amqp", "stomp", "mqtt", "grpc")
}
ADMIN, NOBODY, OWNER = ("ann", "secret"), ("nobody", "n"), ("mallory", "m")
"""Name and password: of who may everything, of who may nothing, and of who may do everything with
what is called `own...`, and sees if that can be used to get at other things."""


def people(server: BrokerServer) -> None:
    """Make the users."""
    users = server.broker.users
    users.create_user(SELF, ADMIN[0], prove(ADMIN[1], signing=True), ("admin",))
    for name, password in (NOBODY, OWNER):
        users.create_user(SELF, name, prove(password, signing=True))
    kinds = ("topic", "group", "exchange", "queue", "vhost", "transaction")
    own = tuple(Rule(("admin",), kind, "own", "prefix") for kind in kinds)
    root = Rule(("describe",), "vhost", "/", "literal")
    users.set_rules(SELF, OWNER[0], (*own, root))


def secrets(server: BrokerServer, stored: asyncio.Event) -> None:
    """Make one of everything, and messages, which are there a moment later."""
    broker = server.broker
    for name in (SECRET, "own"):
        broker.topics.create(SELF, TopicConfig(name, 1, 1))
        broker.groups.put(SELF, GroupConfig(name))
        broker.publish.routing.declare_exchange(SELF, "/", name, "topic")
        broker.queues.declared.declare(SELF, "/", f"{name}.queue", durable=True)
        broker.publish.routing.bind(SELF, "/", name, "queue", f"{name}.queue", "#")
        broker.publish.routing.declare_vhost(SELF, name)
    broker.transactions.in_place.begin(SELF, SECRET, 60_000)
    broker.users.create_user(SELF, SECRET, prove("x"))
    broker.users.put_role(SELF, Role(SECRET))
    properties = f"KEYS\x01{SECRET}\x02UNIQ_KEY\x01{SECRET}\x02".encode()
    message = NewMessage(SECRET, 0, SECRET.encode(), properties)
    for _ in range(3):
        broker.publish.send(SELF, message, lambda *_: stored.set())


@contextlib.asynccontextmanager
async def context(folder: Path, **settings: Value) -> AsyncIterator[BrokerServer]:
    """The broker. Somebody consumes there, too."""
    async with broker(folder, **{**PORTS, **settings}) as server, client(server) as consumer:
        await consumer.heartbeat(SECRET, SECRET, SECRET)
        people(server)
        stored = asyncio.Event()
        secrets(server, stored)
        for offset in (1, 2):
            server.broker.cursors.commit(SELF, SECRET, SECRET, 0, offset)
        await stored.wait()
        yield server


def state(server: BrokerServer) -> dict[str, object]:
    """Everything that nobody but an administrator can have changed."""
    broker = server.broker
    vhosts = broker.publish.routing.vhosts(SELF)
    return {
        "topics": [each for each in broker.topics.all(SELF)[1] if SECRET in each.name],
        "groups": [each for each in broker.groups.all(SELF)[1] if "own" not in each.name],
        "users": broker.users.all_users(SELF),
        "roles": broker.users.all_roles(SELF),
        "vhosts": [each.name for each in vhosts],
        "exchanges": [
            (each.name, sorted(map(repr, each.bindings)))
            for vhost in vhosts
            for each in broker.publish.routing.exchanges(SELF, vhost.name)
            if each.name != "own" and "own" not in each.name
        ],
        "queues": [
            (each.name, each.ready)
            for each in broker.queues.declared.queues(SELF)
            if SECRET in each.name
        ],
        "messages": broker.topics.max_offset(SELF, SECRET, 0),
        "begin": broker.topics.min_offset(SELF, SECRET, 0),
        "position": broker.cursors.query(SELF, SECRET, SECRET, 0),
        "absent": broker.topics.find(SELF, ABSENT) or broker.groups.find(SELF, ABSENT),
    }


def hidden(text: bytes, name: str) -> bytes:
    """An answer about a name, without the name."""
    return text.replace(name.encode(), b"NAME")
