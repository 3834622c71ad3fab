"""`onelog role`: what several users may do."""

from typing import Annotated

import typer

from onelog.commands.options import Cluster, Yes
from onelog.commands.permission import show_permissions
from onelog.commands.session import Session, command, confirm

app = typer.Typer()

Name = Annotated[str, typer.Argument(metavar="ROLE", help="The role's name.")]


@command(app, "create")
async def create_role(session: Session, role: Name, cluster: Cluster = None) -> None:
    """Create a role that may do nothing yet: see `onelog permission grant role:NAME ...`."""
    brokers = await session.admin.users.put_role(role, cluster=cluster)
    session.show_done("role", role, "created", brokers)


@command(app, "delete")
async def delete_role(
    session: Session, role: Name, cluster: Cluster = None, yes: Yes = False
) -> None:
    """Delete a role; users who have it have it no more."""
    confirm(f"Delete role {role}?", yes)
    brokers = await session.admin.users.revoke(f"role:{role}", cluster=cluster)
    session.show_done("role", role, "deleted", brokers)


@command(app, "list")
async def list_roles(session: Session, cluster: Cluster = None) -> None:
    """List roles with what they may do."""
    found = await session.admin.users.permissions(cluster=cluster)
    roles = [each for each in found if each.subject.startswith("Role:")]
    session.show(*show_permissions(roles))
