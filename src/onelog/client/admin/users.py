"""Users, roles, and what they may do, on every broker of a cluster (RocketMQ: ACL 2.0).

Each broker keeps its own users, so changes go to all masters. A holder of permissions is a user
("alice") or a role ("role:ops"; OneLog only).
"""

import builtins
from typing import TypeVar

import msgspec

from onelog.client.admin.cluster import Clusters
from onelog.client.connection.nodes import Nodes
from onelog.client.synchronous import Part, waiting
from onelog.errors import WireError
from onelog.wire.remoting.body import Body
from onelog.wire.remoting.codes import RequestCode, ResponseCode
from onelog.wire.remoting.users import AclInfo, AuditEntry, PolicyEntry, PolicyInfo, UserInfo

B = TypeVar("B", bound=Body)


def subject_of(holder: str) -> str:
    """What the wire calls a holder of permissions."""
    return f"Role:{holder[5:]}" if holder.startswith("role:") else f"User:{holder}"


class Users:
    """Who may do what."""

    def __init__(self, nodes: Nodes, clusters: Clusters) -> None:
        self._nodes = nodes
        self._clusters = clusters

    async def _change(
        self, code: RequestCode, ext: dict[str, str], body: Body | None, cluster: str | None
    ) -> tuple[str, ...]:
        masters = await self._clusters.masters(cluster)
        data = b"" if body is None else body.encode()
        await self._nodes.change(masters, lambda each: self._nodes.ask(each, code, ext, data))
        return tuple(masters)

    async def _first(
        self, code: RequestCode, ext: dict[str, str], cluster: str | None, body: bytes = b""
    ) -> bytes:
        """What one of the masters says: they all have the same."""
        masters = await self._clusters.masters(cluster)
        address = masters[min(masters)]
        accept = frozenset({ResponseCode.POLICY_NOT_EXIST})
        answer = await self._nodes.ask(address, code, ext, body, accept=accept)
        return bytes(answer.body)

    async def create(
        self,
        name: str,
        password: str,
        *,
        roles: tuple[str, ...] = (),
        is_admin: bool = False,
        signing: bool = True,
        cluster: str | None = None,
    ) -> tuple[str, ...]:
        """Make a user; on which brokers. `signing`: RocketMQ's clients can sign as this user."""
        info = UserInfo(
            username=name,
            password=password,
            roles=list(roles),
            signing=signing,
            user_type="Super" if is_admin else "Normal",
            user_status="enable",
        )
        return await self._change(RequestCode.AUTH_CREATE_USER, {"username": name}, info, cluster)

    async def update(
        self,
        name: str,
        *,
        password: str | None = None,
        roles: tuple[str, ...] | None = None,
        is_admin: bool | None = None,
        enabled: bool | None = None,
        signing: bool = True,
        cluster: str | None = None,
    ) -> tuple[str, ...]:
        """Change a user; what is not named stays as it is."""
        kind = None if is_admin is None else ("Super" if is_admin else "Normal")
        if kind is None and roles is not None:
            found = {each.username: each for each in await self.list(cluster=cluster)}.get(name)
            kind = found.user_type if found else None
        elif kind is not None and roles is None:
            found = {each.username: each for each in await self.list(cluster=cluster)}.get(name)
            roles = tuple(found.roles or ()) if found else None
        info = UserInfo(
            username=name,
            password=password,
            signing=signing,
            user_type=kind,
            roles=None if roles is None else list(roles),
            user_status=None if enabled is None else ("enable" if enabled else "disable"),
        )
        return await self._change(RequestCode.AUTH_UPDATE_USER, {"username": name}, info, cluster)

    async def delete(self, name: str, *, cluster: str | None = None) -> tuple[str, ...]:
        """Delete a user."""
        return await self._change(RequestCode.AUTH_DELETE_USER, {"username": name}, None, cluster)

    async def list(self, *, cluster: str | None = None) -> builtins.list[UserInfo]:
        """All users."""
        body = await self._first(RequestCode.AUTH_LIST_USER, {}, cluster)
        return _decoded(body, UserInfo)

    async def grant(
        self, holder: str, entry: PolicyEntry, *, cluster: str | None = None
    ) -> tuple[str, ...]:
        """Let a user, or a role, do something to some things, or forbid it."""
        subject = subject_of(holder)
        info = AclInfo(
            subject=subject, policies=[PolicyInfo(policy_type="CUSTOM", entries=[entry])]
        )
        ext = {"subject": subject}
        return await self._change(RequestCode.AUTH_UPDATE_ACL, ext, info, cluster)

    async def put_role(self, name: str, *, cluster: str | None = None) -> tuple[str, ...]:
        """Make a role that may do nothing yet; one that exists stays as it is."""
        subject = subject_of(f"role:{name}")
        info = AclInfo(subject=subject)
        ext = {"subject": subject}
        return await self._change(RequestCode.AUTH_UPDATE_ACL, ext, info, cluster)

    async def revoke(
        self, holder: str, resource: str = "", *, cluster: str | None = None
    ) -> tuple[str, ...]:
        """Take away what was granted for one thing, or everything; of a role: the role itself."""
        ext = {"subject": subject_of(holder), "resource": resource, "policyType": "CUSTOM"}
        return await self._change(RequestCode.AUTH_DELETE_ACL, ext, None, cluster)

    async def permissions(self, *, cluster: str | None = None) -> builtins.list[AclInfo]:
        """What each user and role may do."""
        body = await self._first(RequestCode.AUTH_LIST_ACL, {}, cluster)
        return _decoded(body, AclInfo)

    async def audit(
        self, count: int = 100, user: str = "", *, cluster: str | None = None
    ) -> builtins.list[AuditEntry]:
        """What administrators did last, on the first broker, newest first."""
        asked = msgspec.json.encode({"limit": count, "user": user})
        code, ext = RequestCode.ASK_OPERATION, {"operation": "list_audit"}
        found = msgspec.json.decode(await self._first(code, ext, cluster, asked))
        return msgspec.convert(found["items"], builtins.list[AuditEntry])


def _decoded(body: bytes, kind: type[B]) -> builtins.list[B]:
    try:
        return msgspec.json.decode(body or b"[]", type=builtins.list[kind])  # type: ignore[valid-type]
    except msgspec.DecodeError as error:
        raise WireError(f"that is no list of users: {error}") from None


class SyncUsers(Part[Users]):
    """The same for threads."""

    audit = waiting(Users.audit)
    create = waiting(Users.create)
    delete = waiting(Users.delete)
    grant = waiting(Users.grant)
    list = waiting(Users.list)
    permissions = waiting(Users.permissions)
    put_role = waiting(Users.put_role)
    revoke = waiting(Users.revoke)
    update = waiting(Users.update)
