"""`onelog user`: who may log in."""

from typing import Annotated

import msgspec
import typer

from onelog.commands.options import Cluster, Yes
from onelog.commands.session import Session, Shown, command, confirm
from onelog.commands.terminal import table
from onelog.commands.times import show_time
from onelog.errors import InvalidRequestError
from onelog.wire.remoting.users import UserInfo

app = typer.Typer()

ADMIN_ROLE = "admin"
"""The role that may do everything; to brokers it is a kind of user."""

Name = Annotated[str, typer.Argument(metavar="USER", help="The user's name.")]
Password = Annotated[
    str | None,
    typer.Option(help="The password; asked for if it is not given.", envvar="ONELOG_PASSWORD"),
]
RoleNames = Annotated[list[str] | None, typer.Option("--role", "-r", help="A role. Repeatable.")]
Signing = Annotated[
    bool,
    typer.Option(
        "--signing/--no-signing",
        help="Whether RocketMQ's clients can sign as this user: the broker keeps the password "
        "itself then, because a signature is checked with it.",
    ),
]


def _prompted(password: str | None) -> str:
    if password:
        return password
    answer: str = typer.prompt("Password", hide_input=True, confirmation_prompt=True)
    return answer


@command(app, "create", "add")
async def create_user(
    session: Session,
    user: Name,
    password: Password = None,
    role: RoleNames = None,
    admin: Annotated[bool, typer.Option("--admin", help="May do everything.")] = False,
    signing: Signing = True,
    cluster: Cluster = None,
) -> None:
    """Create a user. The first one must be an administrator: from then on everybody logs in."""
    is_admin = admin or ADMIN_ROLE in (role or ())
    brokers = await session.admin.users.create(
        user,
        _prompted(password),
        roles=tuple(role or ()),
        is_admin=is_admin,
        signing=signing,
        cluster=cluster,
    )
    session.show_done("user", user, "created", brokers)


@command(app, "update")
async def update_user(
    session: Session,
    user: Name,
    password: Password = None,
    role: RoleNames = None,
    no_roles: Annotated[bool, typer.Option("--no-roles", help="Take all roles away.")] = False,
    admin: Annotated[
        bool | None, typer.Option("--admin/--no-admin", help="Whether it may do everything.")
    ] = None,
    enable: Annotated[
        bool | None, typer.Option("--enable/--disable", help="Whether it may log in.")
    ] = None,
    signing: Signing = True,
    cluster: Cluster = None,
) -> None:
    """Give a user another password or other roles; or let it in no more."""
    roles = () if no_roles else (tuple(role) if role else None)
    if password is None and roles is None and admin is None and enable is None:
        raise InvalidRequestError("nothing to change: name something, such as --password or --role")
    if admin is None and ADMIN_ROLE in (roles or ()):
        admin = True
    brokers = await session.admin.users.update(
        user,
        password=password,
        roles=roles,
        is_admin=admin,
        enabled=enable,
        signing=signing,
        cluster=cluster,
    )
    session.show_done("user", user, "changed", brokers)


@command(app, "delete")
async def delete_user(
    session: Session, user: Name, cluster: Cluster = None, yes: Yes = False
) -> None:
    """Delete a user. With the last one, nobody has to log in any more."""
    confirm(f"Delete user {user}?", yes)
    brokers = await session.admin.users.delete(user, cluster=cluster)
    session.show_done("user", user, "deleted", brokers)


@command(app, "list")
async def list_users(session: Session, cluster: Cluster = None) -> None:
    """List users with their roles."""
    session.show(*show_users(await session.admin.users.list(cluster=cluster)))


@command(app, "audit")
async def audit(
    session: Session,
    user: Annotated[str, typer.Argument(metavar="[USER]", help="Whose actions only.")] = "",
    count: Annotated[int, typer.Option("--count", "-n", min=1, max=1_000, help="How many.")] = 50,
    cluster: Cluster = None,
) -> None:
    """Show what administrators did last, and what others tried."""
    entries = await session.admin.users.audit(count, user, cluster=cluster)
    document = [msgspec.to_builtins(each) for each in entries]
    rows = [{**each, "time": show_time(each["time"])} for each in document]
    columns = "time, user, protocol, address, action, thing, result"
    session.show(document, table(f"actions: {len(entries)}", columns, rows=rows))


def show_users(users: list[UserInfo]) -> Shown:
    """Users as a table."""
    document = [
        {
            "user": each.username,
            "roles": [*([ADMIN_ROLE] if each.user_type == "Super" else []), *(each.roles or ())],
            "enabled": each.user_status == "enable",
            "signing": each.signing,
        }
        for each in users
    ]
    columns = "user, roles, may log in=enabled, may sign=signing"
    return document, table(f"users: {len(users)}", columns, rows=document)
