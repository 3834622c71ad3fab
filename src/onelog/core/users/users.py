"""Users and roles, and what they may do: the broker's `Access` once there is a user.

    tables   "users": {name: User}, "roles": {name: Role}; of the secrets that users sign with, only
             the encrypted ones (`keys`)

While there is no user, everybody may do everything (servers let only their own machine in then, see
`Logins`). From the first user on, whoever has not logged in may do nothing, unless the setting
`security.anonymous` lets them: then they have the rules of the role `anonymous`, and everything if
there is no such role. The role `admin` always exists, and may do everything.

Invariant: what is answered follows from the tables as they are now; answers are remembered until
one of them changes.
"""

import logging
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any

import msgspec

from onelog.core.access import SELF, Access, Action, Kind, Principal, Resource
from onelog.core.durable.tables import Change, Tables, in_parts
from onelog.core.users.audit import Audit, Entry
from onelog.core.users.keys import Keys
from onelog.core.users.passwords import Proofs
from onelog.core.users.permissions import (
    ANY,
    EVERYTHING,
    MQTT,
    RULES_MAX,
    Rule,
    decide,
    is_denied,
)
from onelog.errors import InvalidRequestError, RoleNotFoundError, UserExistsError, UserNotFoundError
from onelog.names import check_name

if TYPE_CHECKING:
    from onelog.core.users.logins import Logins

log = logging.getLogger(__name__)

ADMIN_ROLE = "admin"
ANONYMOUS_ROLE = "anonymous"
USERS_MAX = 100_000
_REMEMBERED_MAX = 100_000
_FREE = {("publish", "group"), ("publish", "broker"), ("describe", "broker")}
"""What every user may: senders' own names, and to begin what each message is asked about anyway."""
_NOT_FREE = ("users", "names")
"""What of the broker only those may see who may describe all of it: who there is, and what."""


@dataclass(frozen=True, slots=True)
class User:
    """Somebody who can log in."""

    name: str
    proofs: Proofs = field(default_factory=Proofs, repr=False)
    roles: tuple[str, ...] = ()
    rules: tuple[Rule, ...] = ()
    tags: tuple[str, ...] = ()
    """RabbitMQ's words for what a user is; they mean nothing here."""
    disabled: bool = False


@dataclass(frozen=True, slots=True)
class Role:
    """What several users may do."""

    name: str
    rules: tuple[Rule, ...] = ()


class _Table:
    """One table of named things."""

    def __init__(
        self,
        name: str,
        kind: type[Any],
        changed: Callable[[], None],
        opened: Callable[[Any], Any] = lambda value: value,
        closed: Callable[[Any], Any] = msgspec.to_builtins,
    ) -> None:
        """`closed` is what is stored of a thing, `opened` what that is in memory."""
        self.name = name
        self._kind = kind
        self._changed = changed
        self._opened, self._closed = opened, closed
        self.known: dict[str, Any] = {}
        self.unread: set[str] = set()
        """Those that are there, but cannot be read."""

    def apply(self, key: str, value: Any) -> None:
        """Make one change."""
        self.known.pop(key, None)
        self.unread.discard(key)
        try:
            if value is not None:
                self.known[key] = self._opened(msgspec.convert(value, self._kind))
        except msgspec.MsgspecError:
            self.unread.add(key)
            raise
        finally:
            self._changed()

    def parts(self) -> Iterator[dict[str, Any]]:
        for part in in_parts(self.known):
            yield {name: self._closed(each) for name, each in part}


class Users(Access):
    """All users and roles of one broker."""

    audit: Audit
    logins: "Logins"
    """How users prove who they are."""

    def __init__(self) -> None:
        super().__init__()
        self.is_open = True
        self.anonymous = False
        """Whether who has not logged in may do something once there are users."""
        self.on_change: list[Callable[[], None]] = []
        self._tables: Tables | None = None
        self._keys: Keys | None = None
        self.users = _Table("users", User, self._forget, self._opened, _stored)
        self.roles = _Table("roles", Role, self._forget)
        self._answers: dict[tuple[str, str, Action, Resource], bool] = {}
        self.refused = 0
        """How often somebody was not allowed something."""

    def use(self, tables: Tables, keys: Keys) -> None:
        """Keep users in these tables, and their secrets under these keys."""
        self._tables, self._keys = tables, keys
        tables.add(self.users)
        tables.add(self.roles)

    def forget_answers(self) -> None:
        """Decide everything anew."""
        self._answers.clear()
        self.senders.forget()

    def _forget(self) -> None:
        self.forget_answers()
        # What cannot be read opens nothing: neither the broker, nor what a role denies.
        self.is_open = not (self.users.known or self.users.unread)
        for listener in self.on_change:
            listener()

    # -- may they ------------------------------------------------------------------------------

    def permits(self, principal: Principal, action: Action, resource: Resource) -> bool:
        """What permissions say of it; where there are no users, all is permitted."""
        if principal is SELF or self.is_open:
            return True
        host = principal.address.rpartition(":")[0]
        key = principal.name, host, action, resource
        answer = self._answers.get(key)
        if resource[0] == MQTT:
            # There are too many, and too long ones; who has a session remembers its own.
            answer = self._decide(principal.name, action, resource, host)
        elif answer is None:
            if len(self._answers) >= _REMEMBERED_MAX:
                self._answers.clear()
            answer = self._answers[key] = self._decide(principal.name, action, resource, host)
        if not answer:
            self.refused += 1
        return answer

    def forbids(self, principal: Principal, action: Action, resource: Resource) -> bool:
        """Whether a permission denies it, whatever others allow."""
        if principal is SELF or self.is_open:
            return False
        rules = self._rules(principal.name) or ()
        return is_denied(rules, action, resource, principal.address.rpartition(":")[0])

    def _decide(self, name: str, action: Action, resource: Resource, host: str) -> bool:
        rules = self._rules(name)
        if rules is None:
            return False
        if name and (action, resource[0]) in _FREE and resource[1] not in _NOT_FREE:
            return True
        return decide(rules, action, resource, host)

    def _rules(self, name: str) -> tuple[Rule, ...] | None:
        """Those of a user, or of who has not logged in; None if they may not even ask."""
        if not name:
            role: Role | None = self.roles.known.get(ANONYMOUS_ROLE)
            if ANONYMOUS_ROLE in self.roles.unread:
                return None
            return (role.rules if role else (EVERYTHING,)) if self.anonymous else None
        user: User | None = self.users.known.get(name)
        if user is None or user.disabled:
            return None
        found = list(user.rules)
        for each in user.roles:
            if each in self.roles.unread:
                return None
            if each == ADMIN_ROLE:
                found.append(EVERYTHING)
            elif (role := self.roles.known.get(each)) is not None:
                found += role.rules
        return tuple(found)

    @property
    def _is_closed(self) -> bool:
        """Whether who has not logged in may not change users, once there are some."""
        return not self.anonymous or ANONYMOUS_ROLE in self.roles.known

    @property
    def needs_admin(self) -> bool:
        """Whether the next user must be an administrator, or nobody would be one."""
        return self.is_open and self._is_closed

    def may_some(self, principal: Principal, kinds: Sequence[Kind]) -> bool:
        """Whether they may do anything to things of these kinds."""
        if principal is SELF or self.is_open:
            return True
        rules = self._rules(principal.name) or ()
        return any(each.effect == "allow" and each.kind in (*kinds, ANY) for each in rules)

    def is_gone(self, name: str) -> bool:
        """Whether a user may not log in any more; where there are no users, nobody may or need."""
        user: User | None = self.users.known.get(name)
        return not self.is_open and (user is None or user.disabled)

    def is_admin(self, principal: Principal) -> bool:
        """Whether they may change what others may do."""
        return self.may(principal, "alter", ("broker", "users"))

    def audited(self, principal: Principal, count: int, user: str = "") -> list[Entry]:
        """What administrators did last, all or one, newest first; for a worker to ask."""
        self.check(principal, "describe", ("broker", "users"))
        return self.audit.last(count, lambda entry: user in ("", entry.user))

    # -- changing ------------------------------------------------------------------------------

    def _write(self, principal: Principal, changes: list[Change], said: str) -> None:
        assert self._tables is not None
        self._tables.write(changes)
        log.info(
            "%r (%s, %s): %s",
            principal.name or "anonymous",
            principal.protocol,
            principal.address,
            said,
        )
        if self.audit is not None and principal is not SELF:
            self.audit.note(principal, "alter", said, "done")

    def _put_user(self, principal: Principal, user: User, said: str) -> None:
        self._write(principal, [self._change(user)], said)

    def _change(self, user: User) -> Change:
        """What is to be recorded of a user, whose secret is encrypted first."""
        proofs = user.proofs
        if proofs.secret and not proofs.sealed:
            assert self._keys is not None
            sealed = self._keys.seal(user.name, proofs.secret)
            user = replace(user, proofs=replace(proofs, sealed=sealed))
        return self.users.name, user.name, _stored(user)

    def _opened(self, user: User) -> User:
        """A stored user with the secret that he signs with."""
        proofs = user.proofs
        if proofs.secret or not proofs.sealed:
            return user
        assert self._keys is not None
        secret = self._keys.open(user.name, proofs.sealed)
        if not secret:
            log.error(
                "user %r cannot sign in here: the secret was encrypted with another key than that "
                "in %s; copy the file from where the user was made, or set the password anew",
                user.name,
                self._keys.path,
            )
        return replace(user, proofs=replace(proofs, secret=secret))

    def encrypt_secrets(self) -> bool:
        """Encrypt the secrets that an earlier version, or an older key, has left; are there any?

        Records that were written before stay in the log until its retention deletes them.
        """
        assert self._tables is not None
        assert self._keys is not None
        changes: list[Change] = []
        for user in self.users.known.values():
            proofs = user.proofs
            if proofs.secret and not (proofs.sealed and self._keys.is_current(proofs.sealed)):
                changes.append(self._change(replace(user, proofs=replace(proofs, sealed=""))))
        if changes:
            self._tables.write(changes)
            log.warning(
                "the secrets of %d users are encrypted with the key in %s from now on; old records "
                "of them are in the log until its retention deletes these files",
                len(changes),
                self._keys.path,
            )
        return bool(changes)

    def user(self, principal: Principal, name: str) -> User:
        """A user; `UserNotFoundError` if there is none."""
        self.check(principal, "describe", ("broker", "users"))
        found: User | None = self.users.known.get(name)
        if found is None:
            raise UserNotFoundError(f"there is no user {name!r}")
        return found

    def all_users(self, principal: Principal) -> list[User]:
        """All users, by name."""
        self.check(principal, "describe", ("broker", "users"))
        return sorted(self.users.known.values(), key=lambda each: each.name)

    def all_roles(self, principal: Principal) -> list[Role]:
        """All roles, by name, with the one that always exists."""
        self.check(principal, "describe", ("broker", "users"))
        roles = {ADMIN_ROLE: Role(ADMIN_ROLE, (EVERYTHING,)), **self.roles.known}
        return sorted(roles.values(), key=lambda each: each.name)

    def create_user(
        self,
        principal: Principal,
        name: str,
        proofs: Proofs,
        roles: tuple[str, ...] = (),
        tags: tuple[str, ...] = (),
    ) -> None:
        """Make a user; the first one must be an administrator, or nobody would be one."""
        self.check(principal, "alter", ("broker", "users"))
        check_name(name, "user", InvalidRequestError)
        if name in self.users.known:
            raise UserExistsError(f"there is a user {name!r} already")
        if len(self.users.known) >= USERS_MAX:
            raise InvalidRequestError(f"there are {USERS_MAX} users already, which is the limit")
        if self.needs_admin and ADMIN_ROLE not in roles:
            raise InvalidRequestError(
                f"the first user must have the role {ADMIN_ROLE}: from then on nobody may do "
                "anything without a permission"
            )
        self._check_roles(roles)
        self._put_user(principal, User(name, proofs, roles, tags=tags), f"user {name} created")

    def _check_roles(self, roles: tuple[str, ...]) -> None:
        for each in roles:
            if each != ADMIN_ROLE and each not in self.roles.known:
                raise RoleNotFoundError(f"there is no role {each!r}")

    def change_user(
        self,
        principal: Principal,
        name: str,
        *,
        proofs: Proofs | None = None,
        roles: tuple[str, ...] | None = None,
        tags: tuple[str, ...] | None = None,
        disabled: bool | None = None,
    ) -> None:
        """Give a user another password, other roles; or let him in no more."""
        self.check(principal, "alter", ("broker", "users"))
        user = self.user(SELF, name)
        if roles is not None:
            self._check_roles(roles)
        changed = replace(
            user,
            proofs=user.proofs if proofs is None else proofs,
            roles=user.roles if roles is None else roles,
            tags=user.tags if tags is None else tags,
            disabled=user.disabled if disabled is None else disabled,
        )
        self._require_admin_left(changed)
        self._put_user(principal, changed, f"user {name} changed")

    def _require_admin_left(self, changed: User) -> None:
        """Somebody must be left who can change users, unless no user is left."""
        others = [each for each in self.users.known.values() if each.name != changed.name]
        is_admin = any(
            ADMIN_ROLE in each.roles and not each.disabled for each in (*others, changed)
        )
        if self._is_closed and not is_admin and (others or changed.roles or changed.disabled):
            raise InvalidRequestError(
                f"{changed.name} is the last user with the role {ADMIN_ROLE}: give it to another "
                "one first"
            )

    def delete_user(self, principal: Principal, name: str) -> None:
        """Forget a user. With the last one, everything is open again."""
        self.check(principal, "alter", ("broker", "users"))
        user = self.user(SELF, name)
        if len(self.users.known) > 1:
            self._require_admin_left(replace(user, roles=(), disabled=True))
        self._write(principal, [(self.users.name, name, None)], f"user {name} deleted")

    def put_role(self, principal: Principal, role: Role) -> None:
        """Make a role, or change what it may do."""
        self.check(principal, "alter", ("broker", "users"))
        check_name(role.name, "role", InvalidRequestError)
        if role.name == ADMIN_ROLE:
            raise InvalidRequestError(f"the role {ADMIN_ROLE} may do everything; make another one")
        _check_rules(role.rules)
        value = msgspec.to_builtins(role)
        self._write(principal, [(self.roles.name, role.name, value)], f"role {role.name} changed")

    def delete_role(self, principal: Principal, name: str) -> None:
        """Forget a role; users who have it have it no more."""
        self.check(principal, "alter", ("broker", "users"))
        if name not in self.roles.known:
            raise RoleNotFoundError(f"there is no role {name!r}")
        changes: list[Change] = [(self.roles.name, name, None)]
        for user in self.users.known.values():
            if name in user.roles:
                left = replace(user, roles=tuple(each for each in user.roles if each != name))
                changes.append(self._change(left))
        self._write(principal, changes, f"role {name} deleted")

    def set_rules(self, principal: Principal, holder: str, rules: tuple[Rule, ...]) -> None:
        """What a user ("name"), or a role ("role:name"), may do, beside what its roles may."""
        self.check(principal, "alter", ("broker", "users"))
        _check_rules(rules)
        kind, _, name = holder.rpartition(":")
        if kind == "role":
            if name not in self.roles.known:
                raise RoleNotFoundError(f"there is no role {name!r}: onelog role create {name}")
            self.put_role(principal, Role(name, rules))
        else:
            user = replace(self.user(SELF, holder), rules=rules)
            self._put_user(principal, user, f"permissions of user {holder} changed")

    def rules(self, principal: Principal, holder: str) -> tuple[Rule, ...]:
        """The permissions of a user or of a role, as `set_rules` takes them."""
        self.check(principal, "describe", ("broker", "users"))
        kind, _, name = holder.rpartition(":")
        if kind != "role":
            return self.user(SELF, holder).rules
        role: Role | None = self.roles.known.get(name)
        if role is None:
            raise RoleNotFoundError(f"there is no role {name!r}")
        return role.rules


def _stored(user: User) -> Any:
    """What is stored of a user: the secret only as it is encrypted, if it is."""
    if user.proofs.sealed:
        user = replace(user, proofs=replace(user.proofs, secret=""))
    return msgspec.to_builtins(user)


def _check_rules(rules: tuple[Rule, ...]) -> None:
    if len(rules) > RULES_MAX:
        raise InvalidRequestError(f"{len(rules)} permissions; the limit is {RULES_MAX}")
