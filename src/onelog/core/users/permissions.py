"""Permissions: what a user or a role may do to which things, and what they may not.

    effect   allow, deny; a rule that denies goes before all that allow. One that denies a topic is
             about the queue of that name, too
    actions  publish, consume, create, alter, delete, describe; "admin" stands for all of them
    kind     topic, group, exchange, queue, vhost, broker, transaction, mqtt; "*": all of them
    match    literal: that name; prefix: names that begin so; pattern: * is any run of characters;
             regex: VHOST~REGEX, an expression as RabbitMQ's permissions have them, which is found
             in the names of exchanges or queues of that vhost (in URL quotes)
    mqtt     a topic of MQTT, or a filter of them: `a/+/c`, `a/#`; what begins with `a/` is `a/#`

Whoever may do something to a thing may also describe it: clients have to find out what they work
with. To send, somebody needs the topic; the names that senders give themselves are free.

Whoever subscribes to a filter of MQTT asks for all that it can match at once: one rule must allow
all of it, and none may deny anything of it.
"""

import re
from collections.abc import Iterable
from dataclasses import dataclass, field
from functools import cached_property, lru_cache
from typing import Any, Literal, get_args
from urllib.parse import unquote

from onelog.core.access import Action, Resource
from onelog.core.routing.names import queue_of
from onelog.errors import InvalidRequestError

Effect = Literal["allow", "deny"]
Match = Literal["literal", "prefix", "pattern", "regex"]
ACTIONS = ("publish", "consume", "create", "alter", "delete", "describe")
MQTT = "mqtt"
KINDS = ("topic", "group", "exchange", "queue", "vhost", "broker", "transaction", MQTT)
ADMIN = "admin"
ANY = "*"
NAME_BYTES_MAX = 255
RULES_MAX = 1_000
"""Of one user or role."""
_REGEX_BYTES_MAX = 1 << 20
"""Of a compiled expression."""


def _reason(error: Exception) -> str:
    said = error.args[0] if error.args else ""
    return said.decode("utf-8", "replace") if isinstance(said, bytes) else str(said)


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
        if self.match not in get_args(Match):
            raise InvalidRequestError(f"{self.match!r}: {', '.join(get_args(Match))} is expected")
        if self.match == "regex":
            if self.kind not in ("exchange", "queue"):
                raise InvalidRequestError("only exchanges and queues have rules of RabbitMQ's form")
            _ = self._regex
        if self.effect not in ("allow", "deny"):
            raise InvalidRequestError(f"{self.effect!r}: allow or deny is expected")
        if self.kind == MQTT and not _is_filter(self._levels or self.name.split("/"), self._levels):
            raise InvalidRequestError(
                f"{self.name!r}: + is a whole level of a topic, # the last one, and stars in other "
                "places than the end go with neither"
            )

    @cached_property
    def _regex(self) -> Any:
        import re2  # Few brokers have users with rules of RabbitMQ's.

        options = re2.Options()
        options.max_mem, options.log_errors = _REGEX_BYTES_MAX, False
        try:
            return re2.compile(self.name.partition("~")[2], options=options)
        except (re2.error, UnicodeEncodeError) as error:
            raise InvalidRequestError(f"{self.name!r:.200}: {_reason(error)}") from None

    @cached_property
    def _pattern(self) -> re.Pattern[str]:
        # What was found for one part is not tried elsewhere: that would take for ever.
        first, *others = map(re.escape, self.name.split(ANY))
        middle = "".join(f"(?>.*?{each})" for each in others[:-1])
        return re.compile(f"{first}{middle}{f'.*{others[-1]}' if others else ''}", re.DOTALL)

    @cached_property
    def _levels(self) -> list[str] | None:
        """Its name as a filter of MQTT; None if that says less than the name."""
        name = self.name + ANY if self.match == "prefix" else self.name
        if (self.match == "literal" and name != ANY) or ANY not in name:
            return name.split("/")
        if name.endswith("/*") and name.count(ANY) == 1:
            return [*name[:-2].split("/"), "#"]
        return None

    def _covers(self, wanted: str) -> bool:
        """Whether it names all topics that a filter of MQTT can match."""
        if self._levels is not None:
            return _covers(self._levels, _split(wanted))
        # What is a wildcard there only a star matches. What ends in /# is also the level before.
        return self.names(wanted) and (wanted[-2:] != "/#" or self.names(wanted[:-2]))

    def _touches(self, wanted: str) -> bool:
        """Whether it may name one of them."""
        if self._levels is not None:
            return _meet(self._levels, _split(wanted))
        lead = re.split(r"/?#|\+", wanted, maxsplit=1)[0]
        own = self.name.split(ANY)[0]
        is_many = lead != wanted
        return (is_many and (own.startswith(lead) or lead.startswith(own))) or self.names(wanted)

    def names(self, name: str) -> bool:
        """Whether it is about things of that name."""
        if self.match == "literal":
            return self.name in (name, ANY)
        if self.match == "prefix":
            return name.startswith(self.name)
        if self.match == "regex":
            vhost, plain = queue_of(name)
            is_here = vhost == unquote(self.name.partition("~")[0])
            return is_here and self._regex.search(plain.encode("utf-8", "replace")) is not None
        return self._pattern.fullmatch(name) is not None

    def _hides(self, kind: str) -> bool:
        """A topic that somebody may not have, he does not get as the queue of that name."""
        return self.effect == "deny" and self.kind == "topic" and kind == "queue"

    def is_about(self, action: Action, resource: Resource, host: str) -> bool:
        """Whether it says something about that action."""
        kind, name = resource
        if self.kind not in (kind, ANY) and not self._hides(kind):
            return False
        if kind == MQTT:
            is_named = self._covers(name) if self.effect == "allow" else self._touches(name)
        else:
            is_named = self.names(name)
        if not is_named:
            return False
        if self.hosts and host not in self.hosts:
            return False
        if action in self.actions or ADMIN in self.actions:
            return True
        return action == "describe" and self.effect == "allow"


_split = lru_cache(8)(lambda text: text.split("/"))
"""The levels of a topic or filter, which is asked of every rule of a user."""


def _is_filter(levels: list[str], parsed: list[str] | None) -> bool:
    if parsed is None:
        return not {"+", "#"} & {sign for level in levels for sign in level}
    return "#" not in "".join(levels[:-1]) and all(
        len(level) == 1 or not {"+", "#"} & set(level) for level in levels
    )


def _starts_apart(levels: list[str], others: list[str]) -> bool:
    """Whether one begins with a wildcard, which does not match the other's `$` (4.7.2)."""
    return others[0][:1] == "$" and levels[0] in ("+", "#")


def _covers(levels: list[str], wanted: list[str]) -> bool:
    """Whether a filter matches all that another one, or a topic, can stand for."""
    if _starts_apart(levels, wanted):
        return False
    for at, level in enumerate(levels):
        if level == "#":
            return True
        if at == len(wanted) or wanted[at] == "#" or level not in ("+", wanted[at]):
            return False
    return len(levels) == len(wanted)


def _meet(levels: list[str], others: list[str]) -> bool:
    """Whether there can be a topic that two filters match."""
    if _starts_apart(levels, others) or _starts_apart(others, levels):
        return False
    for mine, its in zip(levels, others, strict=False):
        if "#" in (mine, its):
            return True
        if mine != its and "+" not in (mine, its):
            return False
    shorter, longer = sorted((levels, others), key=len)
    return len(shorter) == len(longer) or longer[len(shorter)] == "#"


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


def is_denied(rules: Iterable[Rule], action: Action, resource: Resource, host: str) -> bool:
    """Whether one of these rules denies it."""
    return any(rule.effect == "deny" and rule.is_about(action, resource, host) for rule in rules)
