"""Names of topics and groups: which there may be, how they are joined into keys, and those that
say where in a store messages wait.

Any text without control characters may be a name, up to 255 bytes of UTF-8; what a protocol allows
is narrower, and its gateway's business. What needs a separator that no name has takes a control
character, or escapes:

    key of a table   names with an @ between them; in a name ~ becomes ~0 and @ becomes ~1

The constants are a part of the format of a store, which is RocketMQ's: its Java code looks for
delayed, timed and half messages in these topics, and finds a group's retries by these prefixes.
That is why they are down here, where the store knows them, too. All other names that RocketMQ has
a meaning for are in `rocketmq.names`.
"""

import hashlib
import re

from onelog.errors import InvalidTopicError, OnelogError

NAME_BYTES_MAX = 255

SCHEDULE_TOPIC = "SCHEDULE_TOPIC_XXXX"
"""Where messages with a delay level wait."""
TIMER_TOPIC = "rmq_sys_wheel_timer"
"""Where messages wait that have a time."""
HALF_TOPIC = "RMQ_SYS_TRANS_HALF_TOPIC"
OP_HALF_TOPIC = "RMQ_SYS_TRANS_OP_HALF_TOPIC"
CHECKED_OUT_TOPIC = "TRANS_CHECK_MAX_TIME_TOPIC"
"""Where half messages wait; what was decided about them; those that nobody decides about."""
CHECKER_GROUP = "CID_RMQ_SYS_TRANS"
"""Whose positions say which half messages are decided."""
RETRY_PREFIX = "%RETRY%"
DEAD_LETTER_PREFIX = "%DLQ%"
LIGHT_QUEUE_PREFIX = "%LMQ%"
SYSTEM_PREFIX = "rmq_sys_"
OWN_PREFIX = "onelog_sys_"
"""Of topics in which OneLog keeps what RocketMQ does not have."""
INTERNAL_PREFIXES = (OWN_PREFIX, SYSTEM_PREFIX, HALF_TOPIC, OP_HALF_TOPIC)
"""Of topics whose records are the broker's notes, or messages that nobody is to see yet."""
TABLES_TOPIC = "onelog_sys_tables"
TABLES_FILE = "onelog-tables.json"
"""Where a broker writes down what it must remember, and the snapshot of that in `config`."""
COMPACTED_TOPIC = OWN_PREFIX + "compacted"
"""Where the messages are that are left of compacted queues."""
OFFSETS_TOPIC = "__consumer_offsets"
VIEW_TOPICS = frozenset((OFFSETS_TOPIC, "__transaction_state", "__share_group_state"))
"""Topics in which Kafka keeps what is in the tables here. Its clients read them as views; nobody
can make them, or write there."""
VIEW_PARTITIONS = 50

_CONTROL = re.compile(r"[\x00-\x1f\x7f-\x9f]")
_TO_ESCAPE = re.compile(r"[~@]")
_ESCAPED = re.compile(r"~([01])")


def check_name(
    name: str, what: str = "topic", error: type[OnelogError] = InvalidTopicError
) -> bytes:
    """The name's UTF-8 bytes, or the error if nothing may be called so."""
    try:
        encoded = name.encode()
    except UnicodeEncodeError:
        raise error(f"{what} name {name!r:.60} is not valid text") from None
    if not encoded:
        raise error(f"the {what} name is empty")
    if len(encoded) > NAME_BYTES_MAX:
        raise error(
            f"{what} name {name[:40]!r}... has {len(encoded)} bytes; the limit is {NAME_BYTES_MAX}"
        )
    if _CONTROL.search(name):
        raise error(f"{what} name {name!r} has a control character")
    return encoded


def fitting(name: str) -> str:
    """The name of a topic that is derived from others; of one too long, its begin and a digest."""
    encoded = name.encode()
    if len(encoded) <= NAME_BYTES_MAX:
        return name
    digest = hashlib.blake2b(encoded, digest_size=8).hexdigest()
    begin = encoded[: NAME_BYTES_MAX - len(digest) - 1].decode(errors="ignore")
    return f"{begin}~{digest}"


def join_key(*names: str) -> str:
    """One key for several names. Those that RocketMQ allows are in it as they are."""
    key = "@".join(names)
    if key.count("@") == len(names) - 1 and "~" not in key:
        return key
    return "@".join(
        _TO_ESCAPE.sub(lambda found: "~0" if found[0] == "~" else "~1", name) for name in names
    )


def split_key(key: str, count: int = 2) -> list[str]:
    """The inverse of `join_key`. An @ too many, as in keys of old, is the last name's."""
    names = key.split("@", count - 1)
    if "~" in key:
        names = [_ESCAPED.sub(lambda found: "~@"[int(found[1])], name) for name in names]
    return names


STARTED = "ONELOG_STARTED"
"""The variable of the environment in which a server finds its command line, read already."""
