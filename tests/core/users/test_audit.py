"""The audit log: who did what, in files that have limits, without secrets."""

from pathlib import Path

import msgspec
import pytest

from onelog.clock import ManualClock
from onelog.core.access import SELF, Principal
from onelog.core.catalog.topics import TopicConfig
from onelog.core.users import audit as audit_module
from onelog.core.users.audit import Audit, Entry
from onelog.core.users.passwords import prove
from onelog.errors import NotPermittedError
from tests.core.world import World

ANN, BOB = Principal("ann", "kafka", "10.0.0.7:1"), Principal("bob", "amqp", "10.0.0.8:2")


def lines(world: World) -> list[tuple[str, str, str, str]]:
    found = reversed(world.broker.users.audit.last(1_000))
    return [(each.user, each.action, each.thing, each.result) for each in found]


def test_what_administrators_do_is_noted_and_what_others_try(world: World) -> None:
    broker = world.broker
    broker.users.create_user(ANN, "ann", prove("secret"), ("admin",))
    broker.users.create_user(ANN, "bob", prove("hidden"))
    broker.topics.create(ANN, TopicConfig("orders", 1, 1))
    with pytest.raises(NotPermittedError):
        broker.topics.delete(BOB, "orders")
    broker.topics.delete(ANN, "orders")
    broker.topics.create(SELF, TopicConfig("the broker's own business", 1, 1))
    assert lines(world) == [
        ("ann", "alter", "broker:users", "allowed"),
        ("ann", "alter", "user ann created", "done"),
        ("ann", "alter", "broker:users", "allowed"),
        ("ann", "alter", "user bob created", "done"),
        ("ann", "create", "topic:orders", "allowed"),
        ("bob", "delete", "topic:orders", "refused"),
        ("ann", "delete", "topic:orders", "allowed"),
    ]
    (last,) = broker.users.audit.last(1)
    assert (last.protocol, last.address) == ("kafka", "10.0.0.7:1")
    assert [each.user for each in broker.users.audited(ANN, 9, "bob")] == ["bob"]
    with pytest.raises(NotPermittedError):
        broker.users.audited(BOB, 9)
    for path in (world.core.store.folder / "audit").iterdir():
        assert path.stat().st_mode & 0o077 == 0
        assert not {b"secret", b"hidden"} & set(path.read_bytes().split(b'"'))


def test_what_clients_declare_again_and_again_is_noted_once(world: World) -> None:
    world.broker.users.create_user(SELF, "ann", prove("secret"), ("admin",))
    world.broker.users.create_user(SELF, "bob", prove("b"), ("admin",))
    for _ in range(3):
        world.broker.publish.routing.declare_exchange(BOB, "/", "events", "topic")
    world.broker.users.check(BOB, "delete", ("exchange", "events"))
    world.broker.users.check(BOB, "create", ("exchange", "events"))
    world.broker.users.check(BOB, "create", ("exchange", "events"))
    assert [action for _, action, _, _ in lines(world)] == ["create", "delete", "create"]


def test_files_are_turned_and_the_oldest_go(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(audit_module, "FILE_BYTES_MAX", 1_000)
    monkeypatch.setattr(audit_module, "FILES_MAX", 3)
    audit = Audit(tmp_path / "audit", ManualClock(), lambda work: work())
    for number in range(100):
        audit.note(ANN, "alter", str(number), "done")
    assert len(list((tmp_path / "audit").iterdir())) == 3
    assert sum(each.stat().st_size for each in (tmp_path / "audit").iterdir()) <= 3_000
    found = [int(each.thing) for each in audit.last(1_000)]
    assert found == list(range(99, 99 - len(found), -1))
    assert 10 < len(found) < 40


def test_too_many_at_a_time_are_counted_and_half_a_line_is_passed_over(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(audit_module, "WAITING_MAX", 5)
    work: list[object] = []
    audit = Audit(tmp_path, ManualClock(), work.append)
    for number in range(8):
        audit.note(ANN, "alter", str(number), "done")
    assert len(work) == 1
    audit._write()
    with (tmp_path / "audit.jsonl").open("ab") as file:
        file.write(msgspec.json.encode(Entry(1, "", "", "", "", "half", ""))[:20])
    found = [(each.action, each.thing) for each in audit.last(9)]
    assert found == [("lost", "3 lines"), *(("alter", str(each)) for each in range(4, -1, -1))]
