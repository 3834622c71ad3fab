"""Entries of tables that this version cannot read: named, kept, and nobody else's trouble."""

import base64
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import msgspec
import pytest

from onelog.core.access import SELF, Principal
from onelog.core.durable.tables import SET_ASIDE, UNREADABLE, Tables
from onelog.core.routing import topology
from onelog.core.routing.exchanges import matcher_of
from onelog.core.users.users import Users
from onelog.errors import NotPermittedError, PreconditionFailedError
from onelog.message import NewMessage
from onelog.names import TABLES_TOPIC, split_key
from tests.core.queues.yard import Yard, numbered
from tests.core.replicas import Follower, Master
from tests.core.world import World

ODD: dict[str, tuple[str, Any]] = {
    "users": ("alice", {"name": "alice", "rules": 7}),
    "roles": ("clerks", {"rules": "everything"}),
    "versions": ("topics", {"counter": "x"}),
    "topics": ("newer", {"name": 5}),
    "groups": ("newer", ["not", "a", "dictionary"]),
    "offsets": ("orders@readers", {"first": "not a number"}),
    "delay": ("first", 1),
    "timers": ("progress", {}),
    "transactions": ("x", 1),
    "request_modes": ("orders@readers", {"mode": 7, "count": "x"}),
    "staged": ("commit", {"parts": 1}),
    "prepared_batches": ("commit:q", {"batch": "x"}),
    "producers": ("orders@0", 5),
    "group_protocols": ("readers", {"kind": "classic", "members": 5}),
    "offset_notes": ("orders@readers", {"0": 5}),
    "group_uses": ("readers", {"x": 1}),
    "in_place": ("payments", {"producer_id": 1}),
    "queue_starts": ("orders@x", 5),
    "compacted": ("orders@0", 5),
    "placements": ("orders", 5),
    "schemas": ("orders", 5),
    "branches": ("no number", {}),
    "vhosts": ("shop", {"tags": 4}),
    "exchanges": ("/@newer", {"kind": "quantum", "arguments": {}}),
    "bindings": ("/@amq.topic@queue@q@#@", {"no": "arguments"}),
    "workqueues": ("/@newer", {"auto_delete": False, "arguments": "AAAA!"}),
    "policies": ("policy@/@long", {"pattern": "(", "definition": {}}),
    "schedules": ("00ff", {"vhost": "/"}),
    "schedule_times": ("00ff", 5),
    "sessions": ("client", {"expiry_s": "never"}),
    "subscriptions": ("client\0a/#", 9),
    "retained": ("a/b", 9),
    "leases": ("group@orders@0", {"position": "x", "out": 5}),
    "packet_ids": ("client", 5),
    "shelves": ("orders@0", 5),
}
FREE = {"forms", "kafka_settings", "outflows", "subscriptions"}
"""Texts of any kind; and of the last, one without a session is nobody's."""


@pytest.fixture
def yard(tmp_path: Path) -> Iterator[Yard]:
    made = Yard(tmp_path / "store")
    yield made
    made.close()


def tables_of(world: World, table: str) -> Tables:
    leases = world.core.lease_tables
    return leases if table in leases._tables else world.core.tables


def record(world: World, *rows: tuple[str, str, Any]) -> None:
    """As another version would."""
    tables = tables_of(world, rows[0][0])
    world.core.writer.write_now([], tables.record(rows))


def recorded(world: World, table: str) -> dict[str, Any]:
    """What a snapshot of this moment says of a table."""
    tables = tables_of(world, table)
    tables.snapshot(wait=True)
    data = (world.folder / "config" / tables.file).read_bytes()
    found: dict[str, dict[str, Any]] = msgspec.json.decode(data)["tables"]
    return found.get(table, {}) | {
        key: value
        for (name, key), value in map_keys(found.get(SET_ASIDE, {})).items()
        if name == table
    }


def map_keys(aside: dict[str, Any]) -> dict[tuple[str, str], Any]:
    return {(split_key(key)[0], split_key(key)[1]): value for key, value in aside.items()}


def test_every_table_has_an_odd_entry_here(world: World) -> None:
    names = {*world.core.tables._tables, *world.core.lease_tables._tables}
    assert names - ODD.keys() <= FREE


@pytest.mark.parametrize("table", [each for each in ODD if each not in FREE])
def test_one_odd_entry_of_any_table_is_set_aside_and_the_rest_serves(
    world: World, table: str, caplog: pytest.LogCaptureFixture
) -> None:
    world.topic("orders", 1)
    world.send("orders", body=b"before")
    key, value = ODD[table]
    record(world, (table, key, value))
    for start in (world.crash, world.crash, world.restart):  # From the records, and a snapshot.
        start()
        assert b"before" in world.bodies("orders")
        world.send("orders", body=b"after")
        (told,) = tables_of(world, table).aside()
        assert told.startswith(f"{table} {key}: ")
        assert f"of table {table} cannot be read" in caplog.text
        assert told in world.broker.admin.state(SELF).set_aside
        assert recorded(world, table)[key] == value


def test_an_entry_that_is_made_anew_or_deleted_is_set_aside_no_more(world: World) -> None:
    record(world, ("topics", "newer", {"name": 5}), ("topics", "other", 5))
    world.crash()
    assert len(world.core.tables.aside()) == 2
    world.topic("newer", 2)
    record(world, ("topics", "other", None))
    world.crash()
    assert world.core.tables.aside() == []
    assert "other" not in recorded(world, "topics")
    assert world.core.topics.require("newer").queues == 2


def test_what_an_entry_was_before_serves_until_it_can_be_read(world: World) -> None:
    world.topic("orders", 3)
    world.commit("readers", "orders", 0, 0)
    world.fill("orders", 0, 9)
    world.commit("readers", "orders", 0, 7)
    world.core.offsets.flush()
    record(world, ("topics", "orders", {"name": 5}), ("offsets", "orders@readers", {"x": 1}))
    for start in (world.crash, world.restart, world.restart):
        start()
        assert len(world.core.tables.aside()) == 2
        assert world.core.topics.require("orders").queues == 3
        assert world.broker.cursors.query(SELF, "readers", "orders", 0) == 7


def test_a_newer_version_has_what_this_one_set_aside(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    key, value = (
        "/@later",
        {
            "kind": "later",
            "durable": True,
            "auto_delete": False,
            "internal": False,
            "arguments": {},
        },
    )
    record(world, ("exchanges", key, value), ("bindings", f"{key}@queue@q@#@", {"arguments": {}}))
    world.crash()
    world.restart()
    assert len(world.core.tables.aside()) == 2
    monkeypatch.setattr(
        topology,
        "matcher_of",
        lambda kind, *others: matcher_of("topic" if kind == "later" else kind, *others),
    )
    world.restart()
    assert world.core.tables.aside() == []
    exchange = world.broker.publish.routing.exchange(SELF, "/", "later")
    assert [each.destination for each in exchange.bindings.values()] == ["q"]


def test_what_was_set_aside_is_told_to_replicas_again_with_the_rest(tmp_path: Path) -> None:
    master = Master.at(tmp_path / "master", quick=True)
    record(master, ("topics", "newer", {"name": 5}))
    master.confirm()
    follower = Follower.at(tmp_path / "follower", clock=master.clock)
    follower.receive(master.store)
    assert len(follower.core.tables.aside()) == 1
    follower.promote()
    begin = int(follower.store.max_offset(TABLES_TOPIC, 0))
    while follower.core.tables.restate_some(anyway=True):
        follower.confirm_all()
    follower.confirm_all()
    again = follower.store.messages(TABLES_TOPIC, 0, begin, 10_000)
    assert any(b'["topics","newer",{"name":5}]' in bytes(each.body) for each in again)
    follower.close()
    master.close()


@pytest.mark.parametrize("body", [b"", b"{", b"[5]", b'[["topics",5,{}]]', b"\xff" * 100])
def test_a_record_that_is_none_is_left_out_and_kept(world: World, body: bytes) -> None:
    world.store.append_own([NewMessage(TABLES_TOPIC, 0, body)])
    world.topic("orders", 1)
    at = int(world.store.max_offset(TABLES_TOPIC, 0))
    world.crash()
    assert world.core.topics.get("orders") is not None
    (told,) = world.core.tables.aside()
    assert told.startswith(f"record {TABLES_TOPIC} ")
    assert at
    (kept,) = recorded(world, UNREADABLE).values()
    assert base64.b64decode(kept) == body
    world.restart()
    assert len(world.core.tables.aside()) == 1


# -- nothing is opened, and nothing is lost, by what cannot be read --------------------------------


def test_a_broker_whose_only_user_cannot_be_read_is_not_open_to_everybody(world: World) -> None:
    record(world, ("users", "alice", {"name": "alice", "rules": 7}))
    world.crash()
    assert not world.broker.users.is_open
    with pytest.raises(NotPermittedError):
        world.broker.users.check(Principal("mallory", "10.0.0.9:1"), "publish", ("topic", "t"))


def test_who_has_a_role_that_cannot_be_read_may_not_do_what_it_denies(world: World) -> None:
    rule = {"effect": "allow", "kind": "*", "name": "*", "actions": ["all"]}
    users = world.broker.users
    assert isinstance(users, Users)
    alice = {"name": "alice", "roles": ["clerks"], "rules": []}
    record(world, ("users", "alice", alice), ("roles", "clerks", {"rules": rule}))
    world.crash()
    assert not world.broker.users.may(Principal("alice", "h:1"), "publish", ("topic", "secret"))


def test_messages_of_a_queue_that_cannot_be_read_wait_for_it(yard: Yard) -> None:
    queue = yard.queue("newer")
    yard.queue("plain")
    taker = yard.consume("newer", prefetch=2)
    yard.put_all(*numbered(5), key="newer")
    queue.ack(taker.places[:1])
    yard.record()
    odd = {"auto_delete": False, "arguments": "AAAA!"}
    record(yard, ("workqueues", "/@newer", odd))
    for _ in range(2):
        yard.crash()
        yard.put_all(b"x", key="plain")
        assert [each.name for each in yard.works.queues(SELF)] == ["plain"]
    again = yard.queue("newer")  # Who declares it anew has all that was in it.
    assert yard.core.tables.aside() == []
    assert (again.ready, again.unacked) == (4, 0)
    yard.crash()
    assert yard.consume("newer").bodies == numbered(4, 1)


def test_messages_of_a_queue_whose_topic_cannot_be_read_are_not_deleted(yard: Yard) -> None:
    yard.queue("newer")
    yard.put_all(*numbered(5), key="newer")
    odd = {"name": "newer", "read_queues": "many"}
    record(yard, ("topics", "newer", None), ("topics", "newer", odd))
    yard.crash()
    assert yard.works.queues(SELF) == []
    with pytest.raises(PreconditionFailedError, match="settings cannot be read"):
        yard.queue("newer")
    assert int(yard.store.max_offset("newer", 0)) == 5
    yard.topic("newer", 1)
    yard.crash()
    assert yard.consume("newer").bodies == numbered(5)
