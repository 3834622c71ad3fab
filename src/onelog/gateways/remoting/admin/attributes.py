"""Attributes of topics and groups: which there are, and how a request changes them.

A request says `+name=value` to set one and `-name` to take it away, as RocketMQ's tools do. Only
attributes and values that this broker acts on are taken: whoever sets another one would rely on
something that never happens. A store that RocketMQ wrote may bring more; they can be taken away.

Invariant: what `alter` adds has known names and allowed values only.
"""

from collections.abc import Mapping
from dataclasses import dataclass

from onelog.errors import InvalidRequestError
from onelog.rocketmq import message_types
from onelog.rocketmq.lite import EXPIRATION, EXPIRATION_MINUTES_MAX
from onelog.rocketmq.priorities import PRIORITY_FACTOR
from onelog.wire.remoting.fields import INT64_MAX


@dataclass(frozen=True, slots=True)
class Attribute:
    """What one attribute may be: one of some words, or a whole number."""

    words: frozenset[str] = frozenset()
    least: int = 0
    most: int = INT64_MAX
    fixed: bool = False
    """Whether it can only be given when the topic is created."""

    def check(self, name: str, value: str) -> None:
        """`InvalidRequestError` unless it may have this value."""
        if self.words and value not in self.words:
            raise InvalidRequestError(
                f"{name}={value}: this broker implements only {', '.join(sorted(self.words))}"
            )
        if not self.words and not self.least <= self._number(name, value) <= self.most:
            raise InvalidRequestError(
                f"{name}={value}: value is not in range({self.least}, {self.most})"
            )

    @staticmethod
    def _number(name: str, value: str) -> int:
        digits = value.removeprefix("-")
        if not digits.isdecimal() or not digits.isascii() or len(digits) > 20:
            raise InvalidRequestError(f"{name}={value}: value is not a number")
        return int(value)


TOPIC_ATTRIBUTES: dict[str, Attribute] = {
    "queue.type": Attribute(frozenset(("SimpleCQ", "BatchCQ")), fixed=True),
    "cleanup.policy": Attribute(frozenset(("DELETE", "COMPACTION")), fixed=True),
    # What the topic is for, which is checked when a message is sent there.
    message_types.ATTRIBUTE: Attribute(
        frozenset((message_types.UNSPECIFIED, message_types.MIXED, *message_types.TYPES))
    ),
    "reserve.time": Attribute(least=-1),
    EXPIRATION: Attribute(least=-1, most=EXPIRATION_MINUTES_MAX),
}
GROUP_ATTRIBUTES: dict[str, Attribute] = {PRIORITY_FACTOR: Attribute(most=100)}
"""RocketMQ's others are about lite topics whose members all get every message."""


def parse_changes(text: str | None) -> dict[str, str]:
    """The changes in `+name=value,-name`, by name with its sign; one taken away has no value."""
    changes: dict[str, str] = {}
    for part in (text or "").split(","):
        name, equals, value = part.partition("=")
        if not part:
            continue
        if equals and not (name.startswith("+") and value):
            raise InvalidRequestError(f"add/alter attribute format is wrong: {part}")
        if not equals and not name.startswith("-"):
            raise InvalidRequestError(f"delete attribute format is wrong: {part}")
        if name in changes:
            raise InvalidRequestError(f"key duplication: {name}")
        changes[name] = value
    return changes


def alter(
    known: Mapping[str, Attribute], current: Mapping[str, str] | None, changes: Mapping[str, str]
) -> dict[str, str]:
    """The attributes after the changes. `current` is None for what is created just now."""
    altered = dict(current or {})
    seen: set[str] = set()
    for signed, value in changes.items():
        sign, name = signed[:1], signed[1:]
        if sign not in ("+", "-"):
            raise InvalidRequestError(f"wrong format key: {signed}")
        if name in seen:
            raise InvalidRequestError(f"alter duplication key. key: {name}")
        seen.add(name)
        _check_change(known, current, sign, name)
        if sign == "+":
            known[name].check(name, value)
            altered[name] = value
        else:
            altered.pop(name, None)
    return altered


def _check_change(
    known: Mapping[str, Attribute], current: Mapping[str, str] | None, sign: str, name: str
) -> None:
    if name not in known and (sign == "+" or name not in (current or ())):
        raise InvalidRequestError(f"unsupported key: {name}: this broker does not implement it")
    if current is None:
        if sign == "-":
            raise InvalidRequestError(
                f"only add attribute is supported while creating topic. key: {name}"
            )
        return
    if sign == "-" and name not in current:
        raise InvalidRequestError(f"attempt to delete a nonexistent key: {name}")
    if name in known and known[name].fixed:
        raise InvalidRequestError(f"attempt to update an unchangeable attribute. key: {name}")
