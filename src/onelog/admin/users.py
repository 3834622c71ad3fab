"""Operations on users and roles, what they may do, and what administrators did."""

from typing import Annotated, Literal

from msgspec import Meta, Struct, field

from onelog.admin.operations import Arguments, Limit, Name, about, declared

PASSWORD_BYTES_MAX = 1_024
RULES_MAX = 1_000
Password = Annotated[str, Meta(min_length=1, max_length=PASSWORD_BYTES_MAX)]
Roles = Annotated[list[Name], about("A role. Repeatable.", "--role", "-r", max_length=100)]
Action = Literal["publish", "consume", "create", "alter", "delete", "describe", "admin"]
Thing = Literal[
    "topic", "group", "exchange", "queue", "vhost", "broker", "transaction", "mqtt", "*"
]


class Permission(Struct, forbid_unknown_fields=True):
    """What may be done to things of a kind and name; one that denies goes before all others."""

    actions: Annotated[list[Action], Meta(min_length=1, max_length=7)]
    kind: Thing
    name: Name = "*"
    match: Literal["literal", "prefix", "pattern", "regex"] = "pattern"
    effect: Literal["allow", "deny"] = "allow"
    hosts: Annotated[list[Name], Meta(max_length=100)] = []
    """Only from these addresses; from all if there is none."""


Permissions = Annotated[list[Permission], Meta(max_length=RULES_MAX)]


class UserDocument(Struct):
    """A user, who can log in."""

    name: str
    roles: list[str]
    enabled: bool
    signing: bool
    """Whether RocketMQ's clients can sign as this user."""
    permissions: list[Permission]
    """Beside those of its roles."""


class UserSettings(Struct, forbid_unknown_fields=True, kw_only=True):
    """What is to change; what is left out stays as it is."""

    password: Password | None = None
    signing: bool = True
    """With a password: keep it, because RocketMQ's clients sign with it."""
    roles: Roles | None = None
    enabled: bool | None = None
    permissions: Permissions | None = None


class NewUser(UserSettings):
    """A user to create."""

    name: Name
    password: Password


class ChangedUser(UserSettings):
    """A user, and what to change."""

    name: Name


class RoleDocument(Struct):
    """What several users may do."""

    name: str
    permissions: list[Permission]
    users: int
    """How many have it."""


class NewRole(Arguments):
    """A role, and what it may do."""

    name: Name
    permissions: Annotated[Permissions, about('As JSON: {"actions": ["publish"], ...}.')] = field(
        default_factory=list
    )


class AuditQuery(Arguments):
    """How many, and whose."""

    limit: Limit = 100
    user: Annotated[str, about("Whose actions only.", max_length=255)] = ""


class AuditEntry(Struct):
    """What was done, or tried."""

    time: int
    user: str
    protocol: str
    address: str
    action: str
    thing: str
    result: str


_EXAMPLE = [{"actions": ["publish"], "kind": "topic", "name": "orders"}]


OPERATIONS = declared(
    globals(),
    """
    GET /v1/audit = user audit
        list_audit(AuditQuery) -> Listing[AuditEntry]: What administrators did, newest first
    GET /v1/users = user list
        list_users(Paged) -> Listing[UserDocument]: List users
    POST /v1/users = user create, user add
        create_user(NewUser) -> UserDocument 201: Create a user
    GET /v1/users/{name} = user show
        get_user(Named) -> UserDocument: Show a user
    PATCH /v1/users/{name} = user update, permission grant, permission revoke
        update_user(ChangedUser) -> UserDocument: Change a user
    DELETE /v1/users/{name} = user delete
        delete_user(Named) -> Done: Delete a user
    GET /v1/roles = role list, permission list
        list_roles(Paged) -> Listing[RoleDocument]: List roles
    POST /v1/roles = role create
        create_role(NewRole) -> RoleDocument 201: Create a role
    GET /v1/roles/{name} = role show
        get_role(Named) -> RoleDocument: Show a role
    PATCH /v1/roles/{name} = role update
        update_role(NewRole) -> RoleDocument: Change what a role may do
    DELETE /v1/roles/{name} = role delete
        delete_role(Named) -> Done: Delete a role
    """,
)
