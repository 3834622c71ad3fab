"""Users and roles of this broker, and what they may do.

Passwords come in and never go out; they are hashed in a worker, because that is made to take long.
"""

from typing import Annotated, Literal

import msgspec
from msgspec import Meta, Struct

from onelog.admin.operations import Ask, Done, Limit, Listing, Name, Operation, paged
from onelog.core.users.passwords import PASSWORD_BYTES_MAX, Proofs, prove
from onelog.core.users.permissions import RULES_MAX, Rule
from onelog.core.users.users import ADMIN_ROLE, Role, User
from onelog.errors import InvalidRequestError, RoleNotFoundError
from onelog.gateways.http.requests import looked_up

Password = Annotated[str, Meta(min_length=1, max_length=PASSWORD_BYTES_MAX)]
Roles = Annotated[list[Name], Meta(max_length=100)]
Actions = Annotated[
    list[Literal["publish", "consume", "create", "alter", "delete", "describe", "admin"]],
    Meta(min_length=1, max_length=7),
]
Thing = Literal[
    "topic", "group", "exchange", "queue", "vhost", "broker", "transaction", "mqtt", "*"
]


class Permission(Struct, forbid_unknown_fields=True):
    """What may be done to things of a kind and name; one that denies goes before all others."""

    actions: Actions
    kind: Thing
    name: Name = "*"
    match: Literal["literal", "prefix", "pattern", "regex"] = "pattern"
    effect: Literal["allow", "deny"] = "allow"
    hosts: Annotated[list[Name], Meta(max_length=100)] = []
    """Only from these addresses; from all if there is none."""


Permissions = Annotated[list[Permission], Meta(max_length=RULES_MAX)]


class NameQuery(Struct, forbid_unknown_fields=True):
    """Which of them."""

    q: Annotated[str, Meta(max_length=255, description="Only names that have this in them.")] = ""
    limit: Limit = 100
    after: Annotated[str, Meta(max_length=255, description="The `next` of the last page.")] = ""


class UserDocument(Struct):
    """Somebody who can log in."""

    name: str
    roles: list[str]
    enabled: bool
    signing: bool
    """Whether RocketMQ's clients can sign as this user."""
    permissions: list[Permission]
    """Beside those of its roles."""


class UserSettings(Struct, forbid_unknown_fields=True):
    """What is to change; what is left out stays as it is."""

    password: Password | None = None
    signing: bool = True
    """With a password: keep it, because RocketMQ's clients sign with it."""
    roles: Roles | None = None
    enabled: bool | None = None
    permissions: Permissions | None = None


class NewUser(UserSettings, kw_only=True):
    """A user to create."""

    name: Name
    password: Password


class RoleDocument(Struct):
    """What several users may do."""

    name: str
    permissions: list[Permission]
    users: int
    """How many have it."""


class RoleSettings(Struct, forbid_unknown_fields=True):
    """What a role may do."""

    permissions: Permissions = []


class NewRole(RoleSettings, kw_only=True):
    """A role to create."""

    name: Name


def _permissions(rules: tuple[Rule, ...]) -> list[Permission]:
    return msgspec.convert(msgspec.to_builtins(rules), list[Permission])


def _rules(permissions: list[Permission]) -> tuple[Rule, ...]:
    return msgspec.convert(msgspec.to_builtins(permissions), tuple[Rule, ...])


def _user(user: User) -> UserDocument:
    return UserDocument(
        user.name,
        list(user.roles),
        not user.disabled,
        bool(user.proofs.secret),
        _permissions(user.rules),
    )


def _role(ask: Ask, role: Role) -> RoleDocument:
    users = ask.context.broker.users.users.known.values()
    holders = sum(role.name in each.roles for each in users)
    return RoleDocument(role.name, _permissions(role.rules), holders)


async def list_users(ask: Ask) -> Listing[UserDocument]:
    """Users by name."""
    query: NameQuery = ask.query
    users = {each.name: each for each in ask.context.broker.users.all_users(ask.principal)}
    names = [each for each in users if query.q.lower() in each.lower()]
    page, following = paged(names, query.limit, query.after)
    return Listing([_user(users[each]) for each in page], len(names), following)


async def get_user(ask: Ask) -> UserDocument:
    """One user."""
    return _user(ask.context.broker.users.user(ask.principal, ask.path["name"]))


async def create_user(ask: Ask) -> UserDocument:
    """The first one must have the role admin: from then on everybody logs in."""
    body: NewUser = ask.body
    users = ask.context.broker.users
    users.check(ask.principal, "alter", ("broker", "users"))
    rules = _rules(body.permissions or [])
    proofs = await _proofs(ask, body)
    assert proofs is not None
    users.create_user(ask.principal, body.name, proofs, tuple(dict.fromkeys(body.roles or ())))
    if rules:
        users.set_rules(ask.principal, body.name, rules)
    if body.enabled is False:
        users.change_user(ask.principal, body.name, disabled=True)
    return _user(users.users.known[body.name])


async def update_user(ask: Ask) -> UserDocument:
    """Another password, other roles or permissions; or let it in no more."""
    body: UserSettings = ask.body
    users, name = ask.context.broker.users, ask.path["name"]
    users.check(ask.principal, "alter", ("broker", "users"))
    users.user(ask.principal, name)
    rules = None if body.permissions is None else _rules(body.permissions)
    proofs = await _proofs(ask, body)
    if proofs is not None or body.roles is not None or body.enabled is not None:
        roles = None if body.roles is None else tuple(dict.fromkeys(body.roles))
        disabled = None if body.enabled is None else not body.enabled
        users.change_user(ask.principal, name, proofs=proofs, roles=roles, disabled=disabled)
    if rules is not None:
        users.set_rules(ask.principal, name, rules)
    return _user(users.user(ask.principal, name))


async def _proofs(ask: Ask, body: UserSettings) -> Proofs | None:
    password = body.password
    if password is None:
        return None
    return await looked_up(ask.context, lambda: prove(password, signing=body.signing))


async def delete_user(ask: Ask) -> Done:
    """With the last one, nobody has to log in any more."""
    ask.context.broker.users.delete_user(ask.principal, ask.path["name"])
    return Done()


async def list_roles(ask: Ask) -> Listing[RoleDocument]:
    """Roles by name, with the one that always exists."""
    query: NameQuery = ask.query
    roles = {each.name: each for each in ask.context.broker.users.all_roles(ask.principal)}
    names = [each for each in roles if query.q.lower() in each.lower()]
    page, following = paged(names, query.limit, query.after)
    return Listing([_role(ask, roles[each]) for each in page], len(names), following)


def _found(ask: Ask, name: str) -> Role:
    for each in ask.context.broker.users.all_roles(ask.principal):
        if each.name == name:
            return each
    raise RoleNotFoundError(f"there is no role {name!r:.80}")


async def get_role(ask: Ask) -> RoleDocument:
    """One role."""
    return _role(ask, _found(ask, ask.path["name"]))


async def create_role(ask: Ask) -> RoleDocument:
    """A new role."""
    body: NewRole = ask.body
    users = ask.context.broker.users
    if any(each.name == body.name for each in users.all_roles(ask.principal)):
        raise InvalidRequestError(f"there is a role {body.name!r} already")
    users.put_role(ask.principal, Role(body.name, _rules(body.permissions)))
    return _role(ask, _found(ask, body.name))


async def update_role(ask: Ask) -> RoleDocument:
    """Other permissions, instead of those that it has."""
    body: RoleSettings = ask.body
    name = _found(ask, ask.path["name"]).name
    ask.context.broker.users.put_role(ask.principal, Role(name, _rules(body.permissions)))
    return _role(ask, _found(ask, name))


async def delete_role(ask: Ask) -> Done:
    """Users who have it have it no more."""
    ask.context.broker.users.delete_role(ask.principal, ask.path["name"])
    return Done()


_EXAMPLE = [{"actions": ["publish"], "kind": "topic", "name": "orders"}]
OPERATIONS = [
    Operation("GET", "/v1/users", "List users", list_users, Listing[UserDocument], NameQuery),
    Operation(
        "POST",
        "/v1/users",
        "Create a user",
        create_user,
        UserDocument,
        body=NewUser,
        status=201,
        example={"name": "ann", "password": "correct horse", "roles": [ADMIN_ROLE]},
    ),
    Operation("GET", "/v1/users/{name}", "Show a user", get_user, UserDocument),
    Operation(
        "PATCH",
        "/v1/users/{name}",
        "Change a user",
        update_user,
        UserDocument,
        body=UserSettings,
        example={"permissions": _EXAMPLE},
    ),
    Operation("DELETE", "/v1/users/{name}", "Delete a user", delete_user, Done),
    Operation("GET", "/v1/roles", "List roles", list_roles, Listing[RoleDocument], NameQuery),
    Operation(
        "POST",
        "/v1/roles",
        "Create a role",
        create_role,
        RoleDocument,
        body=NewRole,
        status=201,
        example={"name": "senders", "permissions": _EXAMPLE},
    ),
    Operation("GET", "/v1/roles/{name}", "Show a role", get_role, RoleDocument),
    Operation(
        "PATCH",
        "/v1/roles/{name}",
        "Change what a role may do",
        update_role,
        RoleDocument,
        body=RoleSettings,
        example={"permissions": _EXAMPLE},
    ),
    Operation("DELETE", "/v1/roles/{name}", "Delete a role", delete_role, Done),
]
