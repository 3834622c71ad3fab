"""RocketMQ's rules for names, and every name that has a meaning to it.

The names of topics that its store has to find, whoever writes it, are taken from `onelog.names`.
"""

import re

from onelog.errors import InvalidGroupError, InvalidTopicError
from onelog.names import (
    CHECKED_OUT_TOPIC,
    CHECKER_GROUP,
    DEAD_LETTER_PREFIX,
    HALF_TOPIC,
    NAME_BYTES_MAX,
    OP_HALF_TOPIC,
    OWN_PREFIX,
    RETRY_PREFIX,
    SCHEDULE_TOPIC,
    SYSTEM_PREFIX,
)

DEFAULT_TOPIC = "TBW102"
SELF_TEST_TOPIC = "SELF_TEST_TOPIC"
BENCHMARK_TOPIC = "BenchmarkTest"
OFFSET_MOVED_TOPIC = "OFFSET_MOVED_EVENT"
TRACE_TOPIC = "RMQ_SYS_TRACE_TOPIC"
REPLY_SUFFIX = "_REPLY_TOPIC"
REVIVE_PREFIX = f"{SYSTEM_PREFIX}REVIVE_LOG_"
MEMBER_TOPIC_PREFIX = f"{SYSTEM_PREFIX}SYNC_BROKER_MEMBER_"
UPPER_SYSTEM_PREFIX = "RMQ_SYS_"
SYSTEM_TOPICS = frozenset(
    (
        DEFAULT_TOPIC,
        SCHEDULE_TOPIC,
        BENCHMARK_TOPIC,
        HALF_TOPIC,
        TRACE_TOPIC,
        OP_HALF_TOPIC,
        CHECKED_OUT_TOPIC,
        SELF_TEST_TOPIC,
        OFFSET_MOVED_TOPIC,
    )
)
"""Of every cluster; there are more that have a cluster's or a broker's name in theirs."""

SYSTEM_GROUP_PREFIX = "CID_RMQ_SYS_"
TOOLS_GROUP = "TOOLS_CONSUMER"
REVIVE_GROUP = f"{SYSTEM_GROUP_PREFIX}REVIVE_GROUP"
INNER_PRODUCER = "CLIENT_INNER_PRODUCER"
SYSTEM_GROUPS = (
    TOOLS_GROUP,
    "FILTERSRV_CONSUMER",
    "SELF_TEST_C_GROUP",
    "CID_ONS-HTTP-PROXY",
    "CID_ONSAPI_PULL",
    "CID_ONSAPI_PERMISSION",
    "CID_ONSAPI_OWNER",
    CHECKER_GROUP,
)
GROUPS_ON_DEMAND = frozenset(("DEFAULT_CONSUMER", "SCHEDULE_CONSUMER", "__MONITOR_CONSUMER"))

_NAME = re.compile(r"[%|a-zA-Z0-9_-]+")
TOPIC_CHARACTERS_MAX = 127
GROUP_CHARACTERS_MAX = 120
"""Short enough for `%RETRY%group` and `%DLQ%group` to be topics."""


def is_system_topic(name: str) -> bool:
    """Whether the topic is a broker's own, whichever cluster that is in."""
    return name in SYSTEM_TOPICS or name.startswith((SYSTEM_PREFIX, OWN_PREFIX))


def is_system_group(name: str) -> bool:
    return name in SYSTEM_GROUPS or name.startswith(SYSTEM_GROUP_PREFIX)


def check_topic(name: str) -> None:
    """`InvalidTopicError` unless RocketMQ's clients may call a topic so."""
    if not name.strip():
        raise InvalidTopicError("the specified topic is blank")
    if not _NAME.fullmatch(name):
        raise InvalidTopicError(
            f"the specified topic {name!r} contains illegal characters, allowing only "
            "^[%|a-zA-Z0-9_-]+$"
        )
    # Retry and dead-letter topics contain a group's name.
    derived = name.startswith((RETRY_PREFIX, DEAD_LETTER_PREFIX))
    limit = NAME_BYTES_MAX if derived else TOPIC_CHARACTERS_MAX
    if len(name) > limit:
        raise InvalidTopicError(
            f"the specified topic {name[:40]!r}... has {len(name)} characters, is longer than "
            f"topic max length {limit}"
        )


def check_group(name: str) -> None:
    """`InvalidGroupError` unless RocketMQ's clients may call a group so."""
    if not name.strip():
        raise InvalidGroupError("the specified group is blank")
    if not _NAME.fullmatch(name):
        raise InvalidGroupError(
            f"the specified group {name!r} contains illegal characters, allowing only "
            "^[%|a-zA-Z0-9_-]+$"
        )
    if len(name) > GROUP_CHARACTERS_MAX:
        raise InvalidGroupError(
            f"the specified group {name[:40]!r}... has {len(name)} characters, is longer than "
            f"group max length {GROUP_CHARACTERS_MAX}"
        )
