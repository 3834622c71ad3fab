"""Users and what they may do, by RocketMQ's requests for that (ACL 2.0), and `onelog user`.

    RocketMQ           here
    Pub, Sub           publish, consume
    Create, Delete     create, delete
    Update             alter
    Get, List          describe
    All, Any           admin
    Cluster            broker
    user type Super    the role admin

A policy of the type DEFAULT goes behind those of the type CUSTOM in RocketMQ; here all rules of a
user count at once, and one that denies goes before all others.
"""

from collections.abc import Iterable
from typing import cast

import msgspec

from onelog.core.users.passwords import Proofs, prove
from onelog.core.users.permissions import ANY, Effect, Match, Rule
from onelog.core.users.users import ADMIN_ROLE, Role, User
from onelog.errors import InvalidRequestError, UserNotFoundError
from onelog.gateways.remoting.session import BrokerSession, Handler, Success
from onelog.wire.remoting import fastjson, fields
from onelog.wire.remoting.codes import RequestCode
from onelog.wire.remoting.command import Command
from onelog.wire.remoting.users import AclInfo, PolicyEntry, PolicyInfo, UserInfo

_ACTIONS = {
    "Pub": "publish",
    "Sub": "consume",
    "Create": "create",
    "Delete": "delete",
    "Update": "alter",
    "Get": "describe",
    "List": "describe",
    "All": "admin",
    "Any": "admin",
}
_WORDS = {
    "publish": "Pub",
    "consume": "Sub",
    "create": "Create",
    "delete": "Delete",
    "alter": "Update",
    "describe": "Get",
    "admin": "All",
}
_KINDS = {
    "Topic": "topic",
    "Group": "group",
    "Cluster": "broker",
    "Exchange": "exchange",
    "Queue": "queue",
    "Vhost": "vhost",
    "Transaction": "transaction",
    "Mqtt": "mqtt",
    "Any": ANY,
}
_KIND_WORDS = {kind: word for word, kind in _KINDS.items()}
_PATTERN = "~"
"""Before a name with stars in other places than its end; RocketMQ has none."""
_REGEX = "^"
"""Before an expression of RabbitMQ's, with its vhost."""


# -- users ---------------------------------------------------------------------------------------


def _roles(info: UserInfo) -> tuple[str, ...] | None:
    roles = None if info.roles is None else tuple(dict.fromkeys(info.roles))
    if info.user_type is None:
        return roles
    if info.user_type.lower() not in ("super", "normal"):
        raise InvalidRequestError(f"a user is of the type Super or Normal, not {info.user_type!r}")
    others = tuple(each for each in roles or () if each != ADMIN_ROLE)
    return (ADMIN_ROLE, *others) if info.user_type.lower() == "super" else others


def _is_disabled(info: UserInfo) -> bool | None:
    return None if info.user_status is None else info.user_status.lower() == "disable"


def create_user(session: BrokerSession, command: Command) -> None:
    info = UserInfo.decode_request(command.body)
    name = fields.text(command.ext, "username")
    if not info.password:
        raise InvalidRequestError("a user needs a password")
    password, users, principal = info.password, session.broker.users, session.principal
    users.check(principal, "alter", ("broker", "users"))

    def made(proofs: Proofs) -> Success:
        users.create_user(principal, name, proofs, _roles(info) or ())
        if _is_disabled(info):
            users.change_user(principal, name, disabled=True)
        return Success()

    session.look_up(command, lambda: prove(password, signing=info.signing), made)


def update_user(session: BrokerSession, command: Command) -> Success | None:
    info = UserInfo.decode_request(command.body)
    name = fields.text(command.ext, "username")
    users, principal = session.broker.users, session.principal
    users.check(principal, "alter", ("broker", "users"))

    def change(proofs: Proofs | None) -> Success:
        roles, disabled = _roles(info), _is_disabled(info)
        users.change_user(principal, name, proofs=proofs, roles=roles, disabled=disabled)
        return Success()

    if not info.password:
        return change(None)
    password = info.password
    session.look_up(command, lambda: prove(password, signing=info.signing), change)
    return None


def delete_user(session: BrokerSession, command: Command) -> Success:
    session.broker.users.delete_user(session.principal, fields.text(command.ext, "username"))
    return Success()


def _info(user: User) -> UserInfo:
    return UserInfo(
        username=user.name,
        roles=[each for each in user.roles if each != ADMIN_ROLE],
        signing=bool(user.proofs.secret),
        user_type="Super" if ADMIN_ROLE in user.roles else "Normal",
        user_status="disable" if user.disabled else "enable",
    )


def get_user(session: BrokerSession, command: Command) -> Success:
    """AUTH_GET_USER. Of nobody the answer is empty, by which mqadmin's copyUser knows that."""
    name = fields.text(command.ext, "username")
    try:
        user = session.broker.users.user(session.principal, name)
    except UserNotFoundError:
        return Success()
    return Success(body=_info(user).encode())


def list_users(session: BrokerSession, command: Command) -> Success:
    wanted = command.ext.get("filter") or ""
    found = session.broker.users.all_users(session.principal)
    infos = [_info(user) for user in found if wanted in user.name]
    return Success(body=fastjson.dumps(infos))


# -- what they may do ----------------------------------------------------------------------------


def _holder(subject: str) -> str:
    kind, _, name = subject.partition(":")
    if kind not in ("User", "Role") or not name:
        raise InvalidRequestError(f"{subject!r}: User:name is expected, or Role:name")
    return name if kind == "User" else f"role:{name}"


def _rules(info: AclInfo) -> list[Rule]:
    return [_rule(entry) for policy in info.policies for entry in policy.entries]


def _rule(entry: PolicyEntry) -> Rule:
    word, _, name = entry.resource.partition(":")
    kind = _KINDS.get("Any" if entry.resource == ANY else word)
    unknown = [each for each in entry.actions if each not in _ACTIONS]
    if kind is None or unknown or not entry.actions:
        raise InvalidRequestError(
            f"{entry.resource} {','.join(entry.actions)}: a thing is Topic:name, Group:name or "
            f"Cluster:name, and actions are {', '.join(_ACTIONS)}"
        )
    name = name or ANY
    match = "literal"
    if name.startswith(_PATTERN):
        name, match = name[len(_PATTERN) :], "pattern"
    elif name.startswith(_REGEX) and "~" in name and kind in ("exchange", "queue"):
        name, match = name[len(_REGEX) :], "regex"
    elif name == ANY:
        match = "pattern"
    elif name.endswith(ANY):
        name, match = name[:-1], "prefix"
    if kind == "broker":
        name, match = ANY, "pattern"
    actions = tuple(dict.fromkeys(_ACTIONS[each] for each in entry.actions))
    effect = cast(Effect, entry.decision.lower())
    return Rule(actions, kind, name, cast(Match, match), effect, tuple(entry.source_ips or ()))


def _entry(rule: Rule) -> PolicyEntry:
    name = rule.name
    if rule.match == "prefix":
        name += ANY
    elif rule.match == "pattern" and name != ANY:
        name = _PATTERN + name
    elif rule.match == "regex":
        name = _REGEX + name
    word = _KIND_WORDS[rule.kind]
    return PolicyEntry(
        resource=ANY if word == "Any" and name == ANY else f"{word}:{name}",
        actions=[_WORDS[each] for each in rule.actions],
        decision=rule.effect.capitalize(),
        source_ips=list(rule.hosts) or None,
    )


def _acl(subject: str, rules: Iterable[Rule]) -> AclInfo:
    entries = [_entry(rule) for rule in rules]
    return AclInfo(subject=subject, policies=[PolicyInfo(policy_type="CUSTOM", entries=entries)])


def put_acl(session: BrokerSession, command: Command) -> Success:
    """AUTH_CREATE_ACL, AUTH_UPDATE_ACL: rules for things that had others replace those."""
    info = AclInfo.decode_request(command.body)
    holder = _holder(command.ext.get("subject") or info.subject)
    users, principal = session.broker.users, session.principal
    added = _rules(info)
    kind, _, name = holder.rpartition(":")
    if kind == "role" and name not in {role.name for role in users.all_roles(principal)}:
        users.put_role(principal, Role(name))
    things = {(each.kind, each.name, each.match) for each in added}
    kept = [
        each
        for each in users.rules(principal, holder)
        if (each.kind, each.name, each.match) not in things
    ]
    users.set_rules(principal, holder, (*kept, *added))
    return Success()


def delete_acl(session: BrokerSession, command: Command) -> Success:
    """AUTH_DELETE_ACL: of one thing, or all; a role that is left without any is gone."""
    holder = _holder(fields.text(command.ext, "subject"))
    users, principal = session.broker.users, session.principal
    resource = command.ext.get("resource")
    kept: tuple[Rule, ...] = ()
    if resource:
        gone = _rule(PolicyEntry(resource=resource, actions=["All"]))
        thing = gone.kind, gone.name, gone.match
        rules = users.rules(principal, holder)
        kept = tuple(each for each in rules if (each.kind, each.name, each.match) != thing)
    elif holder.startswith("role:"):
        users.delete_role(principal, holder.removeprefix("role:"))
        return Success()
    users.set_rules(principal, holder, kept)
    return Success()


def get_acl(session: BrokerSession, command: Command) -> Success:
    """AUTH_GET_ACL; what there is not is told as AUTH_GET_USER tells it."""
    subject = fields.text(command.ext, "subject")
    rules = session.broker.users.rules(session.principal, _holder(subject))
    return Success(body=_acl(subject, rules).encode()) if rules else Success()


def list_acls(session: BrokerSession, command: Command) -> Success:
    subject = command.ext.get("subjectFilter") or ""
    resource = command.ext.get("resourceFilter") or ""
    users, principal = session.broker.users, session.principal
    holders = [(f"User:{each.name}", each.rules) for each in users.all_users(principal)]
    holders += [
        (f"Role:{each.name}", each.rules)
        for each in users.all_roles(principal)
        if each.name != ADMIN_ROLE
    ]
    found = []
    for name, rules in holders:
        wanted = [rule for rule in rules if resource in _entry(rule).resource]
        is_role = name.startswith("Role:")
        if subject in name and (wanted or (is_role and not resource)):
            found.append(_acl(name, wanted))
    return Success(body=msgspec.json.encode(found))


HANDLERS: dict[int, Handler] = {
    RequestCode.AUTH_CREATE_USER: create_user,
    RequestCode.AUTH_UPDATE_USER: update_user,
    RequestCode.AUTH_DELETE_USER: delete_user,
    RequestCode.AUTH_GET_USER: get_user,
    RequestCode.AUTH_LIST_USER: list_users,
    RequestCode.AUTH_CREATE_ACL: put_acl,
    RequestCode.AUTH_UPDATE_ACL: put_acl,
    RequestCode.AUTH_DELETE_ACL: delete_acl,
    RequestCode.AUTH_GET_ACL: get_acl,
    RequestCode.AUTH_LIST_ACL: list_acls,
}
