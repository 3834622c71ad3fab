"""What requests may name: topics, groups, tags, keys; and the namespace that they are in.

A resource in a namespace is called `namespace%name`, as RocketMQ's remoting clients call it, so
both kinds of clients meet in one. (RocketMQ's proxy drops the namespace.)
"""

import re
from functools import lru_cache
from typing import Any

from onelog.core.access import SELF
from onelog.core.broker import Broker
from onelog.core.filters.tags import Subscription, subscribe
from onelog.errors import InvalidGroupError, InvalidTopicError
from onelog.gateways import RefusedError
from onelog.rocketmq.names import check_group, check_topic, is_system_group, is_system_topic
from onelog.wire.grpc.codes import Code, FilterType

CONTROL = re.compile(r"[\x00-\x1f\x7f-\x9f]")
MESSAGE_GROUP_BYTES_MAX = 64


def full_name(resource: Any) -> str:
    """The name of a resource, with its namespace."""
    namespace: str = resource.resource_namespace
    name: str = resource.name
    return f"{namespace}%{name}" if namespace else name


def topic_name(broker: Broker, resource: Any) -> str:
    """The name of a topic that clients may use, whether or not it is there."""
    name = full_name(resource)
    if broker.topics.find(SELF, name) is None:
        check_topic(name)
    _refuse_system_topic(name)
    return name


@lru_cache(1024)
def _refuse_system_topic(name: str) -> None:
    if is_system_topic(name):
        raise InvalidTopicError("cannot access system topic")


def group_name(resource: Any) -> str:
    """The name of a group that clients may use."""
    name = full_name(resource)
    _check_group(name)
    return name


@lru_cache(1024)
def _check_group(name: str) -> None:
    check_group(name)
    if is_system_group(name):
        raise InvalidGroupError("cannot use system consumer group")


def check_text(what: str, text: str, code: Code, *, without: str = "", bytes_max: int = 0) -> None:
    """Text that clients have chosen: not blank, and nothing that somebody could take for two."""
    if not text.strip():
        problem = "cannot be the char sequence of whitespace"
    elif without and without in text:
        problem = f"cannot contain {without!r}"
    elif bytes_max and len(text.encode()) >= bytes_max:
        problem = f"exceed the max size {bytes_max}"
    elif CONTROL.search(text):
        problem = "cannot contain control character"
    else:
        return
    raise RefusedError(code, f"{what} {problem}")


def subscription_of(topic: str, expression: Any) -> Subscription:
    """What a consumer wants of a topic."""
    kind = "SQL92" if expression.type == FilterType.SQL else "TAG"
    return subscribe(topic, expression.expression or "*", kind)


def milliseconds(time: Any) -> int:
    """A Duration or Timestamp."""
    return int(time.seconds * 1000 + time.nanos // 1_000_000)
