"""Users and roles of this broker, and what they may do.

Passwords come in and never go out; they are hashed in a worker, because that is made to take long.
"""

import msgspec

from onelog.admin.broker.call import Call
from onelog.admin.operations import Done, Listing, Named, Paged, fill, listed
from onelog.admin.users import (
    AuditEntry,
    AuditQuery,
    ChangedUser,
    NewRole,
    NewUser,
    Permission,
    RoleDocument,
    UserDocument,
    UserSettings,
)
from onelog.core.users.passwords import Proofs, prove
from onelog.core.users.permissions import Rule
from onelog.core.users.users import Role, User
from onelog.errors import InvalidRequestError, RoleNotFoundError
from onelog.gateways.http.requests import looked_up


def _permissions(rules: tuple[Rule, ...]) -> list[Permission]:
    return msgspec.convert(msgspec.to_builtins(rules), list[Permission])


def _rules(permissions: list[Permission]) -> tuple[Rule, ...]:
    return msgspec.convert(msgspec.to_builtins(permissions), tuple[Rule, ...])


def _user(user: User) -> UserDocument:
    return UserDocument(
        name=user.name,
        roles=list(user.roles),
        enabled=not user.disabled,
        signing=bool(user.proofs.secret),
        permissions=_permissions(user.rules),
    )


def _role(call: Call, role: Role) -> RoleDocument:
    users = call.broker.users.users.known.values()
    holders = sum(role.name in each.roles for each in users)
    return RoleDocument(role.name, _permissions(role.rules), holders)


async def list_users(call: Call, given: Paged) -> Listing[UserDocument]:
    """Users by name."""
    return listed(call.broker.users.all_users(call.principal), given, _user)


async def get_user(call: Call, given: Named) -> UserDocument:
    """One user."""
    return _user(call.broker.users.user(call.principal, given.name))


async def create_user(call: Call, given: NewUser) -> UserDocument:
    """The first one must have the role admin: from then on everybody logs in."""
    users = call.broker.users
    users.check(call.principal, "alter", ("broker", "users"))
    rules = _rules(given.permissions or [])
    proofs = await _proofs(call, given)
    assert proofs is not None
    users.create_user(call.principal, given.name, proofs, tuple(dict.fromkeys(given.roles or ())))
    if rules:
        users.set_rules(call.principal, given.name, rules)
    if given.enabled is False:
        users.change_user(call.principal, given.name, disabled=True)
    return _user(users.users.known[given.name])


async def update_user(call: Call, given: ChangedUser) -> UserDocument:
    """Another password, other roles or permissions; or let it in no more."""
    users, name = call.broker.users, given.name
    users.check(call.principal, "alter", ("broker", "users"))
    users.user(call.principal, name)
    rules = None if given.permissions is None else _rules(given.permissions)
    proofs = await _proofs(call, given)
    if proofs is not None or given.roles is not None or given.enabled is not None:
        roles = None if given.roles is None else tuple(dict.fromkeys(given.roles))
        disabled = None if given.enabled is None else not given.enabled
        users.change_user(call.principal, name, proofs=proofs, roles=roles, disabled=disabled)
    if rules is not None:
        users.set_rules(call.principal, name, rules)
    return _user(users.user(call.principal, name))


async def _proofs(call: Call, given: UserSettings) -> Proofs | None:
    password = given.password
    if password is None:
        return None
    return await looked_up(call.context, lambda: prove(password, signing=given.signing))


async def delete_user(call: Call, given: Named) -> Done:
    """With the last one, nobody has to log in any more."""
    call.broker.users.delete_user(call.principal, given.name)
    return Done()


async def list_roles(call: Call, given: Paged) -> Listing[RoleDocument]:
    """Roles by name, with the one that always exists."""
    roles = call.broker.users.all_roles(call.principal)
    return listed(roles, given, lambda role: _role(call, role))


def _found(call: Call, name: str) -> Role:
    for each in call.broker.users.all_roles(call.principal):
        if each.name == name:
            return each
    raise RoleNotFoundError(f"there is no role {name!r:.80}")


async def get_role(call: Call, given: Named) -> RoleDocument:
    """One role."""
    return _role(call, _found(call, given.name))


async def create_role(call: Call, given: NewRole) -> RoleDocument:
    """A new role."""
    users = call.broker.users
    if any(each.name == given.name for each in users.all_roles(call.principal)):
        raise InvalidRequestError(f"there is a role {given.name!r} already")
    users.put_role(call.principal, Role(given.name, _rules(given.permissions)))
    return _role(call, _found(call, given.name))


async def update_role(call: Call, given: NewRole) -> RoleDocument:
    """Other permissions, instead of those that it has."""
    name = _found(call, given.name).name
    call.broker.users.put_role(call.principal, Role(name, _rules(given.permissions)))
    return _role(call, _found(call, name))


async def delete_role(call: Call, given: Named) -> Done:
    """Users who have it have it no more."""
    call.broker.users.delete_role(call.principal, given.name)
    return Done()


async def list_audit(call: Call, given: AuditQuery) -> Listing[AuditEntry]:
    """The last ones, newest first."""
    users = call.broker.users
    found = await looked_up(
        call.context, lambda: users.audited(call.principal, given.limit, given.user)
    )
    return Listing([fill(AuditEntry, each) for each in found], len(found))
