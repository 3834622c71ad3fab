"""Permissions: what a user or a role may do to which things, and what they may not.

    effect   allow, deny; a rule that denies goes before all that allow
    actions  publish, consume, create, alter, delete, describe; "admin" stands for all of them
    kind     topic, group, exchange, queue, vhost, broker, transaction; "*" stands for all of them
    match    literal: that name; prefix: names that begin so; pattern: * is any run of characters

Whoever may do something to a thing may also describe it: clients have to find out what they work
with. To send, somebody needs the topic; the names that senders give themselves are free.
"""

import re
from collections.abc import Iterable
from dataclasses import dataclass, field
from functools import cached_property
from typing import Literal

from onelog.core.access import Action, Resource
from onelog.errors import InvalidRequestError

Effect = Literal["allow", "deny"]
Match = Literal["literal", "prefix", "pattern"]
ACTIONS = ("publish", "consume", "create", "alter", "delete", "describe")
KINDS = ("topic", "group", "exchange", "queue", "vhost", "broker", "transaction")
ADMIN = "admin"
ANY = "*"
NAME_BYTES_MAX = 255
RULES_MAX = 1_000
"""Of one user or role."""


@dataclass(frozen=True)
class Rule:
    """One permission."""

    actions: tuple[str, ...]
    kind: str
    name: str = ANY
    match: Match = "pattern"
    effect: Effect = "allow"
    hosts: tuple[str, ...] = field(default=())
    """Addresses that it is for; for all if there is none."""

    def __post_init__(self) -> None:
        unknown = [each for each in self.actions if each not in (*ACTIONS, ADMIN)]
        if unknown or not self.actions:
            raise InvalidRequestError(
                f"{', '.join(unknown) or 'nothing'} is no action: there are "
                f"{', '.join((*ACTIONS, ADMIN))}"
            )
        if self.kind not in (*KINDS, ANY):
            raise InvalidRequestError(f"{self.kind!r} is no kind of thing: {', '.join(KINDS)}, *")
        if not 1 <= len(self.name.encode()) <= NAME_BYTES_MAX or len(self.hosts) > 100:
            raise InvalidRequestError(f"a name has 1 to {NAME_BYTES_MAX} bytes")
        if self.match not in ("literal", "prefix", "pattern"):
            raise InvalidRequestError(f"{self.match!r}: literal, prefix or pattern is expected")
        if self.effect not in ("allow", "deny"):
            raise InvalidRequestError(f"{self.effect!r}: allow or deny is expected")

    @cached_property
    def _pattern(self) -> re.Pattern[str]:
        return re.compile(".*".join(map(re.escape, self.name.split(ANY))), re.DOTALL)

    def names(self, name: str) -> bool:
        """Whether it is about things of that name."""
        if self.match == "literal":
            return self.name in (name, ANY)
        if self.match == "prefix":
            return name.startswith(self.name)
        return self._pattern.fullmatch(name) is not None

    def is_about(self, action: Action, resource: Resource, host: str) -> bool:
        """Whether it says something about that action."""
        kind, name = resource
        if self.kind not in (kind, ANY) or not self.names(name):
            return False
        if self.hosts and host not in self.hosts:
            return False
        if action in self.actions or ADMIN in self.actions:
            return True
        return action == "describe" and self.effect == "allow"


EVERYTHING = Rule((ADMIN,), ANY)


def decide(rules: Iterable[Rule], action: Action, resource: Resource, host: str) -> bool:
    """Whether somebody with these rules may; one that denies goes before all others."""
    allowed = False
    for rule in rules:
        if rule.is_about(action, resource, host):
            if rule.effect == "deny":
                return False
            allowed = True
    return allowed
