"""REST can do what the command line can."""

from collections.abc import Iterator
from typing import Any

import typer

from onelog.admin.table import OPERATIONS
from onelog.cli import app
from onelog.gateways.http.consuming import routes as consuming
from onelog.gateways.http.producing import routes as producing

ELSEWHERE = "runs where it is called: it starts a program, or looks at files"
SPARK = "runs on Spark, which is not the broker"
WAYS: dict[str, str | tuple[str, ...]] = {
    "up": ELSEWHERE,
    "broker": ELSEWHERE,
    "nameserver": ELSEWHERE,
    "bench": ELSEWHERE,
    "demo": ELSEWHERE,
    "console": ELSEWHERE,
    "store inspect": ELSEWHERE,
    "store verify": ELSEWHERE,
    "store compare": ELSEWHERE,
    "store dump": ELSEWHERE,
    "store export-config": ELSEWHERE,
    "lake sync": SPARK,
    "lake list": SPARK,
    "lake compact": SPARK,
    "lake vacuum": SPARK,
    "lake retain": SPARK,
    "job sales-board": SPARK,
    "job redistribute": SPARK,
    "job deduplicate": SPARK,
    "job reconcile": SPARK,
    "job clean-logs": SPARK,
    "job trace-latency": SPARK,
    "job triage": SPARK,
    "pipeline init": SPARK,
    "pipeline run": SPARK,
    "pipeline show": SPARK,
    "produce": ("POST /v1/topics/{topic}/produce", "POST /v1/topics/{topic}/produce-json"),
    "consume": ("GET /v1/topics/{topic}/messages",),
    "bind": ("POST /v1/bindings", "GET /v1/bindings"),
    "config": ("GET /v1/config", "PATCH /v1/config"),
    "topic list": ("GET /v1/topics",),
    "topic describe": ("GET /v1/topics/{topic}", "GET /v1/topics/{topic}/groups"),
    "topic route": ("GET /v1/topics/{topic}/route",),
    "topic status": ("GET /v1/topics/{topic}/queues",),
    "topic create": ("POST /v1/topics",),
    "topic update": ("PATCH /v1/topics/{topic}",),
    "topic delete": ("DELETE /v1/topics/{topic}",),
    "group list": ("GET /v1/groups",),
    "group describe": ("GET /v1/groups/{group}",),
    "group create": ("POST /v1/groups",),
    "group update": ("PATCH /v1/groups/{group}",),
    "group delete": ("DELETE /v1/groups/{group}",),
    "group reset": ("POST /v1/groups/{group}/reset",),
    "group skip": ("POST /v1/groups/{group}/reset",),
    "group clone": ("POST /v1/groups/{group}/clone",),
    "message get": ("GET /v1/messages/{id}",),
    "message by-key": ("GET /v1/topics/{topic}/messages",),
    "message by-unique-key": ("GET /v1/topics/{topic}/messages",),
    "message by-offset": ("GET /v1/topics/{topic}/messages",),
    "message by-time": ("GET /v1/topics/{topic}/messages",),
    "message trace": ("GET /v1/messages/{id}/trace",),
    "dlq list": ("GET /v1/dead-letters",),
    "dlq show": ("GET /v1/dead-letters/{group}",),
    "dlq resend": ("POST /v1/dead-letters/{group}/resend",),
    "dlq drop": ("DELETE /v1/dead-letters/{group}",),
    "delay list": ("GET /v1/delays",),
    "delay cancel": ("DELETE /v1/delays/{id}",),
    "cluster list": ("GET /v1/cluster",),
    "cluster brokers": ("GET /v1/cluster",),
    "cluster status": ("GET /v1/cluster", "GET /v1/cluster/replicas"),
    "cluster promote": ("POST /v1/cluster/promote",),
    "cluster demote": ("POST /v1/cluster/promote",),
    "cluster drain": ("POST /v1/cluster/drain",),
    "cluster elect": ("POST /v1/cluster/elect",),
    "cluster truncate": ("POST /v1/cluster/truncate",),
    "cluster join": ("POST /v1/cluster/join",),
    "user create": ("POST /v1/users",),
    "user add": ("POST /v1/users",),
    "user update": ("PATCH /v1/users/{name}",),
    "user delete": ("DELETE /v1/users/{name}",),
    "user list": ("GET /v1/users",),
    "user audit": ("GET /v1/audit",),
    "role create": ("POST /v1/roles",),
    "role delete": ("DELETE /v1/roles/{name}",),
    "role list": ("GET /v1/roles",),
    "permission grant": ("PATCH /v1/users/{name}", "PATCH /v1/roles/{name}"),
    "permission revoke": ("PATCH /v1/users/{name}", "PATCH /v1/roles/{name}"),
    "permission list": ("GET /v1/users", "GET /v1/roles"),
}


def commands(command: Any, path: tuple[str, ...] = ()) -> Iterator[str]:
    """All commands, with the groups that they are in."""
    inside = getattr(command, "commands", None)
    if inside is None:
        yield " ".join(path)
        return
    for name, each in inside.items():
        yield from commands(each, (*path, name))


def test_every_command_has_its_way_in_rest() -> None:
    found = set(commands(typer.main.get_command(app)))
    assert found == WAYS.keys()
    there = {f"{each.method} {each.path}" for each in OPERATIONS}
    for module in (consuming, producing):
        for route in module(None):  # type: ignore[arg-type]
            there |= {f"{method} {route.path}" for method in route.methods}  # type: ignore[attr-defined]
    for command, ways in WAYS.items():
        if isinstance(ways, tuple):
            assert set(ways) <= there, (command, set(ways) - there)
