"""Users and permissions by RabbitMQ's management API, as rules of OneLog's own users.

RabbitMQ's three patterns of a user and vhost are rules of the form `regex` on exchanges and queues:
configure is create, alter and delete, write is publish, read is consume; and one more lets the user
see the vhost. The tag `administrator` is the role `admin`; other tags are kept, and mean nothing.
Rules of other forms are not shown: three patterns cannot say them.
"""

from collections.abc import Iterable
from typing import Any
from urllib.parse import quote, unquote

from onelog.core.users.passwords import Proofs, prove
from onelog.core.users.permissions import Rule
from onelog.core.users.users import ADMIN_ROLE, User, Users
from onelog.errors import (
    InvalidRequestError,
    KeyNotFoundError,
    UserNotFoundError,
    VhostNotFoundError,
)
from onelog.gateways.http.management_call import Call
from onelog.gateways.http.requests import looked_up

Body = dict[str, Any]
_ADMINISTRATOR = "administrator"
_EVERYTHING = {"configure": ".*", "write": ".*", "read": ".*"}
_ACTIONS = {
    "configure": ("create", "alter", "delete"),
    "write": ("publish",),
    "read": ("consume",),
}


# -- users -----------------------------------------------------------------------------------------


def _shown(user: User) -> Body:
    tags = [_ADMINISTRATOR] if ADMIN_ROLE in user.roles else []
    return {
        "name": user.name,
        "password_hash": "",
        "hashing_algorithm": "rabbit_password_hashing_sha256",
        "tags": tags + [each for each in user.tags if each != _ADMINISTRATOR],
        "limits": {},
    }


_GUEST = User("guest", roles=(ADMIN_ROLE,))
"""Who everybody is while there are no users."""


def _all(call: Call) -> list[User]:
    users = call.broker.users
    return [_GUEST] if users.is_open else users.all_users(call.principal)


def _changed(call: Call) -> Users:
    """The users, for who may change them."""
    call.broker.users.check(call.principal, "alter", ("broker", "users"))
    return call.broker.users


def _named(call: Call) -> User:
    """The user that the path names."""
    for each in _all(call):
        if each.name == call.path["user"]:
            return each
    raise UserNotFoundError(f"there is no user {call.path['user']!r:.80}")


async def list_users(call: Call) -> list[Body]:
    """Who may log in."""
    return [_shown(each) for each in _all(call)]


async def get_user(call: Call) -> Body:
    return _shown(_named(call))


async def put_user(call: Call) -> bool:
    """Make a user, or give it another password and other tags; True if it was not there."""
    users, name = _changed(call), call.path["user"]
    known: User | None = users.users.known.get(name)
    tags = _tags(call.body)
    roles = tuple(each for each in (known.roles if known else ()) if each != ADMIN_ROLE)
    if _ADMINISTRATOR in tags:
        roles = (ADMIN_ROLE, *roles)
    tags = tuple(each for each in tags if each != _ADMINISTRATOR)
    if call.body.get("password_hash"):
        raise InvalidRequestError(
            "a password_hash of RabbitMQ's cannot be used here: give the password"
        )
    password = call.text("password")
    # Who signs with a password (RocketMQ's clients) goes on to: it is kept for that.
    signing = known is not None and bool(known.proofs.secret)
    proofs = Proofs()
    if password:
        proofs = await looked_up(call.context, lambda: prove(password, signing=signing))
    if known is None:
        users.create_user(call.principal, name, proofs, roles, tags)
    else:
        users.change_user(call.principal, name, proofs=proofs, roles=roles, tags=tags)
    return known is None


def _tags(body: Body) -> tuple[str, ...]:
    given = body.get("tags")
    if isinstance(given, str):
        given = given.split(",")
    if not isinstance(given, list) or not all(isinstance(each, str) for each in given):
        raise InvalidRequestError("tags_not_present: give tags, as a list or parted by commas")
    return tuple(dict.fromkeys(each.strip() for each in given if each.strip()))


async def delete_user(call: Call) -> None:
    call.broker.users.delete_user(call.principal, call.path["user"])


async def delete_users(call: Call) -> bool:
    """Forget those that the body names, as far as they are there."""
    users, given = _changed(call), call.body.get("users")
    if not isinstance(given, list) or not all(isinstance(each, str) for each in given):
        raise InvalidRequestError("users must be a list of names")
    for name in given:
        if name in users.users.known:
            users.delete_user(call.principal, name)
    return False


# -- permissions -----------------------------------------------------------------------------------


def _is_of(rule: Rule, vhost: str) -> bool:
    """Whether a rule is one of those that a permission for a vhost is made of."""
    if rule.kind == "vhost":
        return rule == _entrance(vhost)
    is_ours = rule.match == "regex" and rule.effect == "allow"
    return is_ours and rule.name.partition("~")[0] == quote(vhost, safe="")


def _entrance(vhost: str) -> Rule:
    return Rule(("describe",), "vhost", vhost, "literal")


def _of_user(call: Call, user: User) -> list[Body]:
    """The permissions of a user, by vhost."""
    if ADMIN_ROLE in user.roles:
        return [{"user": user.name, "vhost": each, **_EVERYTHING} for each in call.vhosts]
    found: dict[str, Body] = {}
    for rule in user.rules:
        if rule.kind == "vhost" and rule == _entrance(rule.name):
            vhost, patterns = rule.name, {}
        elif rule.match == "regex" and rule.effect == "allow":
            quoted, _, pattern = rule.name.partition("~")
            vhost = unquote(quoted)
            patterns = {
                name: pattern for name, actions in _ACTIONS.items() if rule.actions == actions
            }
        else:
            continue
        none = dict.fromkeys(_ACTIONS, "")
        found.setdefault(vhost, {"user": user.name, "vhost": vhost, **none}).update(patterns)
    return [each for vhost, each in found.items() if vhost in call.vhosts]


async def list_permissions(call: Call) -> list[Body]:
    """Who may what, in all vhosts, in one, or of one user."""
    users: Iterable[User] = [_named(call)] if "user" in call.path else _all(call)
    return [each for user in users for each in _of_user(call, user)]


async def get_permission(call: Call) -> Body:
    """What one user may in one vhost."""
    for each in await list_permissions(call):
        return each
    raise KeyNotFoundError(f"user {call.path['user']!r:.80} has no permissions there")


async def without_permissions(call: Call) -> list[Body]:
    """Users who may do nothing."""
    return [_shown(each) for each in _all(call) if not each.rules and not each.roles]


async def put_permission(call: Call) -> bool:
    """Say what a user may do in a vhost; True if nothing was said before."""
    users = _changed(call)
    try:
        vhost, user = call.vhosts[0], users.user(call.principal, call.path["user"])
    except (VhostNotFoundError, UserNotFoundError) as error:
        raise InvalidRequestError(f"vhost_or_user_not_found: {error}") from None
    missing = [name for name in _ACTIONS if name not in call.body]
    if missing:
        raise InvalidRequestError(f"these are missing: {', '.join(missing)}")
    rules = [_entrance(vhost)]
    for name, actions in _ACTIONS.items():
        pattern = call.text(name)
        if pattern:  # An empty one is for nothing.
            pattern_name = f"{quote(vhost, safe='')}~{pattern}"
            rules += [Rule(actions, kind, pattern_name, "regex") for kind in ("exchange", "queue")]
    kept = [each for each in user.rules if not _is_of(each, vhost)]
    users.set_rules(call.principal, user.name, (*kept, *rules))
    return len(kept) == len(user.rules)


async def delete_permission(call: Call) -> None:
    """Take that back."""
    users, vhost = _changed(call), call.vhosts[0]
    user = users.user(call.principal, call.path["user"])
    kept = tuple(each for each in user.rules if not _is_of(each, vhost))
    if len(kept) == len(user.rules):
        raise KeyNotFoundError(f"user {user.name!r:.80} has no permissions in vhost {vhost!r:.80}")
    users.set_rules(call.principal, user.name, kept)


async def nothing_of_user(call: Call) -> list[Body]:
    """Topic permissions: nobody has any."""
    _named(call)
    return []
