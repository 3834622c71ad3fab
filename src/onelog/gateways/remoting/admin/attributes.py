"""Attributes of topics and groups: which there are, and how a request changes them.

A request says `+name=value` to set one and `-name` to take it away, as RocketMQ's tools do. Names
and values are RocketMQ 5.5's.

Invariant: what `alter` returns has known names and allowed values only, if that is true of what is
there already.
"""

from collections.abc import Mapping
from dataclasses import dataclass

from onelog.core.catalog.topics import alter_attributes
from onelog.errors import InvalidRequestError
from onelog.wire.remoting.fields import INT64_MAX

MESSAGE_TYPE = "message.type"


@dataclass(frozen=True, slots=True)
class Attribute:
    """What one attribute may be: one of some words, a number in a range, or any text."""

    words: frozenset[str] = frozenset()
    least: int | None = None
    most: int = INT64_MAX
    fixed: bool = False
    """Whether it can only be given when the topic is created."""

    def check(self, name: str, value: str) -> None:
        """`InvalidRequestError` unless it may have this value."""
        if self.words and value not in self.words:
            raise InvalidRequestError(f"{name}={value}: value is not in set: {sorted(self.words)}")
        if self.least is not None and not self.least <= self._number(name, value) <= self.most:
            raise InvalidRequestError(
                f"{name}={value}: value is not in range({self.least}, {self.most})"
            )

    @staticmethod
    def _number(name: str, value: str) -> int:
        digits = value.removeprefix("-")
        if not digits.isdecimal() or not digits.isascii() or len(digits) > 20:
            raise InvalidRequestError(f"{name}={value}: value is not a number")
        return int(value)


_BOOLEAN = Attribute(frozenset(("true", "false")))

TOPIC_ATTRIBUTES: dict[str, Attribute] = {
    "queue.type": Attribute(frozenset(("BatchCQ", "SimpleCQ")), fixed=True),
    "cleanup.policy": Attribute(frozenset(("DELETE", "COMPACTION")), fixed=True),
    MESSAGE_TYPE: Attribute(
        frozenset("UNSPECIFIED NORMAL FIFO DELAY TRANSACTION PRIORITY LITE MIXED".split())
    ),
    "reserve.time": Attribute(least=-1),
    "lite.topic.expiration": Attribute(least=-1, most=30 * 24 * 60),
}

GROUP_ATTRIBUTES: dict[str, Attribute] = {
    "priority.factor": Attribute(least=0, most=100),
    "lite.bind.topic": Attribute(),
    "lite.sub.model": Attribute(frozenset(("Shared", "Exclusive"))),
    "lite.sub.reset.offset.exclusive": _BOOLEAN,
    "lite.sub.reset.offset.unsubscribe": _BOOLEAN,
    "lite.sub.client.quota": Attribute(least=-1),
    "lite.sub.client.max.event.cnt": Attribute(least=10),
    "lite.sub.wildcard": Attribute(),
}


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
    altered: dict[str, str | None] = {}
    for signed, value in changes.items():
        sign, name = signed[:1], signed[1:]
        if sign not in ("+", "-"):
            raise InvalidRequestError(f"wrong format key: {signed}")
        if name in altered:
            raise InvalidRequestError(f"alter duplication key. key: {name}")
        _check_change(known, current, sign, name)
        if sign == "+":
            known[name].check(name, value)
        altered[name] = value if sign == "+" else None
    return alter_attributes(current or {}, altered)


def _check_change(
    known: Mapping[str, Attribute], current: Mapping[str, str] | None, sign: str, name: str
) -> None:
    if name not in known:
        raise InvalidRequestError(f"unsupported key: {name}")
    if current is None:
        if sign == "-":
            raise InvalidRequestError(
                f"only add attribute is supported while creating topic. key: {name}"
            )
        return
    if sign == "-" and name not in current:
        raise InvalidRequestError(f"attempt to delete a nonexistent key: {name}")
    if known[name].fixed:
        raise InvalidRequestError(f"attempt to update an unchangeable attribute. key: {name}")
