"""Namespaces: a prefix that keeps apart what several tenants of one cluster call by the same name.

`orders` in namespace `shop` is `shop%orders` on the wire; the marks of retry and dead-letter topics
stay in front: `%RETRY%shop%billing`. What belongs to the system has no namespace. These are the
rules of RocketMQ's clients. Invariant: `unwrapped(space, wrapped(space, name))` is the name.
"""

_MARKS = ("%RETRY%", "%DLQ%")
_SYSTEM = frozenset(
    """
    TBW102 SCHEDULE_TOPIC_XXXX BenchmarkTest RMQ_SYS_TRANS_HALF_TOPIC RMQ_SYS_TRACE_TOPIC
    RMQ_SYS_TRANS_OP_HALF_TOPIC TRANS_CHECK_MAX_TIME_TOPIC SELF_TEST_TOPIC OFFSET_MOVED_EVENT
    """.split()
)
_SYSTEM_PREFIXES = ("rmq_sys_", "CID_RMQ_SYS_")
_REPLY_SUFFIX = "_REPLY_TOPIC"


def wrapped(namespace: str, name: str) -> str:
    """A topic or group as the brokers know it."""
    mark, plain = _split(name)
    if not namespace or plain in _SYSTEM or plain.startswith(_SYSTEM_PREFIXES):
        return name
    if plain.endswith(_REPLY_SUFFIX):
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
