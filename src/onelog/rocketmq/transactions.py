"""The verbs of transactions and of timed messages, for every protocol of RocketMQ's clients.

A half message comes like any other. Its producer ends it, and names the places that it was told; a
broker that hears nothing asks any producer of the group. A timed message can be taken back by the
handle that its sender was given.

Each verb answers by a callback, once; before that it may have to wait for the disk: `look_up` runs
the first of its arguments in a worker, and the second in the loop, with what was found.
"""

from collections.abc import Callable
from functools import partial
from typing import Any, TypeVar

from onelog.clock import Clock
from onelog.config import BrokerConfig
from onelog.core.access import SELF, Principal
from onelog.core.broker import Broker
from onelog.errors import OnelogError, RecallError, TopicNotFoundError, WireError
from onelog.message import Appended, NewMessage
from onelog.rocketmq.sent_properties import intent_of
from onelog.wire.remoting.recall_handle import RecallHandle

Token = TypeVar("Token")
Ended = Callable[[Token, Appended | None, OnelogError | None], None]
Recalled = Callable[[str, OnelogError | None], None]
"""Called with the unique key of the message; no error means that it will not be delivered."""
LookUp = Callable[[Callable[[], Any], Callable[[Any], None]], object]


def end_half(
    broker: Broker,
    principal: Principal,
    group: str,
    half_offset: int,
    log_offset: int,
    ended: Ended[Token],
    token: Token,
    *,
    commits: bool,
    checked: bool,
    clock: Clock,
    look_up: LookUp,
) -> None:
    """Commit a half message, or roll it back; `checked` if the broker had asked.

    What a committed message is to become, its sender said in its properties.
    """
    end = broker.transactions.roll_back_half
    if commits:
        intent = lambda message: intent_of(message.properties, clock)  # noqa: E731
        end = partial(broker.transactions.commit_half, intent_of=intent)

    def act(_: object = None) -> None:
        end(principal, group, half_offset, log_offset, ended, token, checked=checked)

    if broker.topics.is_warm(log_offset):
        act()
    else:
        look_up(lambda: broker.topics.message_at(SELF, log_offset), act)


def may_be_asked(broker: Broker, principal: Principal, message: NewMessage) -> bool:
    """Whether a producer may be asked about a half message: the name of its group is free, and who
    is asked sees the message."""
    return broker.users.may(principal, "publish", ("topic", message.topic))


def recall(
    broker: Broker,
    principal: Principal,
    topic: str,
    text: str,
    group: str,
    recalled: Recalled,
    *,
    now_ms: int,
    look_up: LookUp,
) -> None:
    """Take back the message of a handle.

    It is also a success where nothing is scheduled and the handle's time has not come: the message
    was recalled before, or never sent.
    """
    if broker.topics.find(principal, topic) is None:
        raise TopicNotFoundError(f"recall failed, the topic[{topic}] not exist")
    key = _checked_handle(broker.admin.config, topic, text, now_ms).unique_key

    def act(_: object) -> None:
        if not broker.publish.recall(principal, topic, key, done, key, group=group):
            recalled(key, None)

    def done(key: str, _: Appended | None, error: OnelogError | None) -> None:
        recalled(key, error)

    # What is found is looked for again in the loop, where nothing comes between; then in memory.
    look_up(lambda: broker.publish.find_scheduled(principal, topic, key), act)


def _checked_handle(config: BrokerConfig, topic: str, text: str, now_ms: int) -> RecallHandle:
    """The handle in a text, if it can be of a message that waits here; else `RecallError`."""
    try:
        handle = RecallHandle.decode(text)
    except WireError as error:
        raise RecallError(str(error)) from None
    if handle.topic != topic:
        raise RecallError(f"recall failed, topic not match: the handle is for {handle.topic}")
    if handle.broker != config.name:
        raise RecallError(
            f"recall failed, the message is on broker {handle.broker}, not on {config.name}"
        )
    if not 0 < handle.time_ms - now_ms <= config.timer_delay_max_ms + 1:
        raise RecallError("recall failed, timestamp invalid: it is past, or too far away")
    return handle
