"""`onelog permission`: what users and roles may do to which topics, groups and other things."""

from typing import Annotated, Any

import typer

from onelog.commands.options import Cluster, Yes
from onelog.commands.session import Session, Shown, command, confirm
from onelog.commands.terminal import table
from onelog.errors import InvalidRequestError
from onelog.wire.remoting.users import AclInfo, PolicyEntry

app = typer.Typer()

Holder = Annotated[
    str, typer.Argument(metavar="HOLDER", help="A user's name, or role:NAME for a role.")
]
Thing = Annotated[
    str,
    typer.Argument(
        metavar="THING",
        help="topic:NAME, group:NAME, exchange:NAME, queue:NAME, vhost:NAME, transaction:NAME, "
        "mqtt:TOPIC, broker, or '*'. A name may have stars, a topic of MQTT + and #.",
    ),
]
_ACTIONS = {
    "publish": "Pub",
    "consume": "Sub",
    "subscribe": "Sub",
    "create": "Create",
    "delete": "Delete",
    "alter": "Update",
    "describe": "Get",
    "admin": "All",
}


def _resource(thing: str) -> str:
    """What the wire calls a thing."""
    kind, _, name = thing.partition(":")
    kind = kind.lower()
    if thing == "*":
        return "*"
    words = {"topic", "group", "exchange", "queue", "vhost", "transaction", "mqtt"}
    if kind == "broker":
        return "Cluster:*"
    if kind not in words or not name:
        known = ", ".join(f"{each}:NAME" for each in sorted(words))
        raise InvalidRequestError(f"{thing!r} is no thing: there are {known}, broker and '*'")
    if "*" in name[:-1]:
        name = f"~{name}"
    return f"{kind.capitalize()}:{name}"


def _thing(resource: str) -> str:
    """The same as people write it, and `grant` and `revoke` take it."""
    kind, _, name = resource.partition(":")
    if kind == "Cluster":
        return "broker"
    return f"{kind.lower()}:{name.removeprefix('~')}" if name else resource


@command(app, "grant")
async def grant(
    session: Session,
    holder: Holder,
    thing: Thing,
    actions: Annotated[
        str,
        typer.Argument(help="publish, consume, create, delete, alter, describe, admin; by commas."),
    ],
    deny: Annotated[bool, typer.Option("--deny", help="Forbid it: goes before all else.")] = False,
    host: Annotated[
        list[str] | None, typer.Option("--host", help="Only from this address. Repeatable.")
    ] = None,
    cluster: Cluster = None,
) -> None:
    """Let a user or a role do something; what it could do to that very thing before is replaced."""
    wanted = [each.strip() for each in actions.split(",") if each.strip()]
    unknown = [each for each in wanted if each not in _ACTIONS]
    if unknown or not wanted:
        raise InvalidRequestError(f"{', '.join(unknown)}: actions are {', '.join(_ACTIONS)}")
    entry = PolicyEntry(
        resource=_resource(thing),
        actions=[_ACTIONS[each] for each in wanted],
        decision="Deny" if deny else "Allow",
        source_ips=host,
    )
    brokers = await session.admin.users.grant(holder, entry, cluster=cluster)
    session.show_done("permissions of", holder, "changed", brokers)


@command(app, "revoke")
async def revoke(
    session: Session, holder: Holder, thing: Thing, cluster: Cluster = None, yes: Yes = False
) -> None:
    """Take away what was granted, or forbidden, for one thing."""
    confirm(f"Take the permissions on {thing} from {holder}?", yes)
    brokers = await session.admin.users.revoke(holder, _resource(thing), cluster=cluster)
    session.show_done("permissions of", holder, "changed", brokers)


@command(app, "list")
async def list_permissions(
    session: Session,
    holder: Annotated[str | None, typer.Argument(help="Only of this user or role.")] = None,
    cluster: Cluster = None,
) -> None:
    """List what users and roles may do."""
    from onelog.client.admin.users import subject_of

    every = await session.admin.users.permissions(cluster=cluster)
    found = [each for each in every if holder is None or each.subject == subject_of(holder)]
    session.show(*show_permissions(found))


def show_permissions(found: list[AclInfo]) -> Shown:
    """Permissions as a table."""
    words = {word: name for name, word in _ACTIONS.items() if name != "subscribe"}
    document: list[dict[str, Any]] = []
    for info in found:
        kind, _, name = info.subject.partition(":")
        principal = f"role:{name}" if kind == "Role" else name
        entries = [entry for policy in info.policies for entry in policy.entries]
        document += [
            {
                "who": principal,
                "rule": each.decision.lower(),
                "thing": _thing(each.resource),
                "actions": [words.get(action, action) for action in each.actions],
                "hosts": each.source_ips or [],
            }
            for each in entries
        ] or [{"who": principal, "rule": "", "thing": "", "actions": [], "hosts": []}]
    return document, table("permissions", "who, rule, actions, thing, hosts", rows=document)
