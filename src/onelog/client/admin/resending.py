"""Sending a stored message again, as the one it was: to its own topic, or to another one.

Body, flag, tags, keys, unique key and the properties of its sender stay; what brokers and consumers
wrote into it on its way (retries, delays, transactions, leases) goes, and its tries are counted
from 0 again. `RESENT_FROM` names the message that it is a copy of.

Invariant: a message is resent to a topic once, as long as its copy there can be found, unless that
is asked for.
"""

import asyncio
from dataclasses import dataclass

from onelog.client.admin.messages import Found, Messages
from onelog.client.admin.topics import Topics
from onelog.client.connection.address import Address
from onelog.client.connection.nodes import Nodes
from onelog.errors import (
    BrokerNotFoundError,
    InvalidRequestError,
    MessageNotFoundError,
    PartlyDoneError,
    TopicNotFoundError,
)
from onelog.message import (
    Message,
    SysFlag,
    decode_properties,
    encode_properties,
    property_value,
)
from onelog.names import RETRY_PREFIX
from onelog.rocketmq.names import DEFAULT_TOPIC
from onelog.wire.remoting.codes import RequestCode, ResponseCode

RESENT_FROM = "ONELOG_RESENT_FROM"
"""The property with the id of the message that was sent again."""
PRODUCER_GROUP = "onelog_tools"
RETRY_TOPIC = "RETRY_TOPIC"
_ORIGIN_TOPICS = (RETRY_TOPIC, "DLQ_ORIGIN_TOPIC")
_PERM_WRITE = 2

_DROPPED = frozenset(
    (
        "RETRY_TOPIC ORIGIN_MESSAGE_ID ORIGIN_GROUP DLQ_ORIGIN_TOPIC DLQ_ORIGIN_MESSAGE_ID "
        "RECONSUME_TIME MAX_RECONSUME_TIMES CONSUME_START_TIME MIN_OFFSET MAX_OFFSET "
        "REAL_TOPIC REAL_QID DELAY TIMER_DELAY_SEC TIMER_DELAY_MS TIMER_DELIVER_MS "
        "TIMER_ENQUEUE_MS TIMER_DEQUEUE_MS TIMER_ROLL_TIMES TIMER_OUT_MS TIMER_DEL_UNIQKEY "
        "TRAN_MSG PGROUP TRAN_PREPARED_QUEUE_OFFSET TRANSACTION_CHECK_TIMES __transactionId__ "
        "CHECK_IMMUNITY_TIME_IN_SECONDS POP_CK 1ST_POP_TIME ARRIVE_TIME PUSH_REPLY_TIME "
        "INNER_NUM INNER_BASE INNER_MULTI_DISPATCH INNER_MULTI_QUEUE_OFFSET DUP_INFO "
        "MSG_REGION TRACE_ON CLUSTER __CRC32#"
    ).split()
)
_KEPT_FLAGS = SysFlag.COMPRESSED | SysFlag.MULTI_TAGS | 0x700
"""How the body is compressed. The other flags are about what a broker did with the message."""
_STORED = frozenset(
    {
        ResponseCode.FLUSH_DISK_TIMEOUT.value,
        ResponseCode.SLAVE_NOT_AVAILABLE.value,
        ResponseCode.FLUSH_SLAVE_TIMEOUT.value,
    }
)
"""The message is in the log; only its safety could not be confirmed in time."""


@dataclass(frozen=True, slots=True)
class Resent:
    """A message that was sent again. `new_id` is empty if it only would be."""

    message_id: str
    topic: str
    new_id: str


@dataclass(frozen=True, slots=True)
class _Target:
    """A topic to send to: the masters that take messages for it, by their names."""

    topic: str
    masters: dict[str, tuple[Address, int]]


class Resender:
    """Sends messages again, all to one topic if that is given, else each to its own."""

    def __init__(
        self, nodes: Nodes, topics: Topics, messages: Messages, to_topic: str | None = None
    ) -> None:
        self._nodes = nodes
        self._topics = topics
        self._messages = messages
        self._to_topic = to_topic
        self._targets: dict[str, _Target] = {}
        self._looking = asyncio.Lock()

    async def resend(self, found: Found, *, again: bool, dry_run: bool) -> Resent | None:
        """Send a message again; None if that was done before."""
        message = found.message
        topic = self._to_topic or origin_topic(message)
        if not topic:
            raise InvalidRequestError("the message does not tell its topic: say where it is to go")
        target = await self._target(topic)
        if not again and await self.is_resent(found, topic):
            return None
        if dry_run:
            return Resent(message.message_id, topic, "")
        # To its own broker if that has the topic: a cluster's brokers may be far from each other.
        address, queues = target.masters.get(found.broker) or next(iter(target.masters.values()))
        answer = await self._nodes.ask(
            address,
            RequestCode.SEND_MESSAGE_V2,
            _request(message, topic, queues),
            bytes(message.body),
            accept=_STORED,
        )
        return Resent(message.message_id, topic, answer.ext.get("msgId", ""))

    async def is_resent(self, found: Found, topic: str) -> bool:
        """Whether a copy of a message is in a topic.

        `PartlyDoneError` if it was not found and there are brokers that could not be asked.
        """
        message = found.message
        if message.unique_key is None:
            return False
        try:
            search = await self._messages.by_unique_key(topic, message.unique_key)
        except (MessageNotFoundError, TopicNotFoundError):
            return False
        copies = (property_value(each.message.properties, RESENT_FROM) for each in search.messages)
        if message.message_id in copies:
            return True
        if search.failures:
            reasons = "; ".join(failure.reason for failure in search.failures)
            raise PartlyDoneError(f"nobody knows whether it was resent already: {reasons}")
        return False

    async def _target(self, topic: str) -> _Target:
        async with self._looking:
            target = self._targets.get(topic)
            if target is None:
                target = self._targets[topic] = await self._look_up(topic)
            return target

    async def _look_up(self, topic: str) -> _Target:
        route = await self._topics.route(topic)
        masters = {
            each.brokers.name: (each.brokers.master, each.write_queues)
            for each in route.brokers
            if each.brokers.master and each.write_queues and each.perm & _PERM_WRITE
        }
        if not masters:
            raise BrokerNotFoundError(f"no broker takes messages for topic {topic} now")
        return _Target(topic, masters)


def origin_topic(message: Message) -> str:
    """The topic that a message was sent to first; empty if it does not tell."""
    values = (property_value(message.properties, name) for name in _ORIGIN_TOPICS)
    return next((value for value in values if value), "")


def _request(message: Message, topic: str, queues: int) -> dict[str, str]:
    properties = {
        name: value
        for name, value in decode_properties(message.properties).items()
        if name not in _DROPPED
    }
    properties[RESENT_FROM] = message.message_id
    if topic.startswith(RETRY_PREFIX):
        # A consumer shows its messages of this topic under the one that they were sent to.
        properties[RETRY_TOPIC] = origin_topic(message)
    return {
        "a": PRODUCER_GROUP,
        "b": topic,
        "c": DEFAULT_TOPIC,
        "d": str(queues),
        "e": "-1",  # Any queue, of the broker's choice.
        "f": str(message.sys_flag & _KEPT_FLAGS),
        "g": str(message.born_ms),
        "h": str(message.flag),
        "i": encode_properties(properties).decode(),
        "j": "0",
        "k": "false",
        "m": "false",
    }
