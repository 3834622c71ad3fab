"""Namespaces: a prefix that keeps apart what several tenants of one cluster call by the same name.

`orders` in namespace `shop` is `shop%orders` on the wire; the marks of retry and dead-letter topics
stay in front: `%RETRY%shop%billing`. What belongs to the system has no namespace. These are the
rules of RocketMQ's clients. Invariant: `unwrapped(space, wrapped(space, name))` is the name.
"""

from onelog.names import DEAD_LETTER_PREFIX, RETRY_PREFIX, SYSTEM_PREFIX
from onelog.rocketmq.names import REPLY_SUFFIX, SYSTEM_GROUP_PREFIX, SYSTEM_TOPICS

_MARKS = (RETRY_PREFIX, DEAD_LETTER_PREFIX)
_SYSTEM_PREFIXES = (SYSTEM_PREFIX, SYSTEM_GROUP_PREFIX)


def wrapped(namespace: str, name: str) -> str:
    """A topic or group as the brokers know it."""
    mark, plain = _split(name)
    if not namespace or plain in SYSTEM_TOPICS or plain.startswith(_SYSTEM_PREFIXES):
        return name
    if plain.endswith(REPLY_SUFFIX):
        return name  # Each cluster has one, and it is the broker's.
    return name if plain.startswith(f"{namespace}%") else f"{mark}{namespace}%{plain}"


def unwrapped(namespace: str, name: str) -> str:
    """A topic or group as the users of the namespace know it."""
    mark, plain = _split(name)
    return mark + plain.removeprefix(f"{namespace}%") if namespace else name


def _split(name: str) -> tuple[str, str]:
    for mark in _MARKS:
        if name.startswith(mark):
            return mark, name[len(mark) :]
    return "", name
