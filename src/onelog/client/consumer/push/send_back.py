"""Messages that a listener could not consume go back to the broker, which delivers them later.

The broker that has the message writes it again, to the group's retry topic with a delay that grows,
or to the dead letters when it failed too often. Where that cannot be (the record is gone, or holds
a whole batch), the message is sent to the retry topic as a new one.

Invariant: a message is given back once for each time it failed, or an error says that it is not.
"""

import logging
import random
from dataclasses import dataclass

from onelog.client.connection.instance import Instance
from onelog.client.message import ReceivedMessage
from onelog.errors import BrokerNotFoundError, NotPermittedError, RequestRefusedError
from onelog.message import SysFlag, encode_properties
from onelog.names import RETRY_PREFIX
from onelog.rocketmq.names import DEFAULT_TOPIC, INNER_PRODUCER
from onelog.wire.remoting.codes import RequestCode
from onelog.wire.remoting.send import SendTemplate

TIMEOUT_MS = 5_000
_FIRST_LEVEL = 3
_COMPRESSION = SysFlag.COMPRESSED.value | 0x700
_UNSENT = ("TRAN_MSG", "RECONSUME_TIME", "MAX_RECONSUME_TIMES", "DELAY", "POP_CK", "__CRC32#")
"""Properties of a message that are not those of the one that takes its place."""

log = logging.getLogger(__name__)


def retry_topic(group: str) -> str:
    """The topic in which messages come again that a group could not consume."""
    return RETRY_PREFIX + group


@dataclass(eq=False)
class SendBack:
    """Gives messages back for one group."""

    _instance: Instance
    _group: str
    _retries_max: int | None

    async def __call__(self, message: ReceivedMessage, delay_level: int = 0) -> None:
        """Give one back; level 0 leaves the delay to the broker, -1 makes it a dead letter."""
        if message.raw.sys_flag & SysFlag.INNER_BATCH:
            await self.send_anew(message, delay_level)
            return
        try:
            await self._send_back(message, delay_level)
        except (RequestRefusedError, NotPermittedError, BrokerNotFoundError) as error:
            log.warning("%s is sent to the retry topic as a new message: %s", message, error)
            await self.send_anew(message, delay_level)

    async def _send_back(self, message: ReceivedMessage, delay_level: int) -> None:
        route = await self._instance.routes.get(message.raw.topic)
        ext = {
            "offset": str(message.raw.log_offset),
            "group": self._group,
            "delayLevel": str(delay_level),
            "originMsgId": message.raw.message_id,
            "originTopic": message.raw.topic,
            "unitMode": "false",
            "bname": message.broker,
        }
        if self._retries_max is not None:
            ext["maxReconsumeTimes"] = str(self._retries_max)
        await self._instance.ask(
            route.address(message.broker),
            RequestCode.CONSUMER_SEND_MSG_BACK,
            ext,
            timeout_ms=TIMEOUT_MS,
        )

    async def send_anew(self, message: ReceivedMessage, delay_level: int = 0) -> None:
        """Send it to the retry topic; with no retries left, a broker makes it a dead letter."""
        topic = retry_topic(self._group)
        route = await self._instance.routes.get_for_sending(topic, 1)
        if not route.publish_queues:
            raise BrokerNotFoundError(f"no broker that has {topic} is a master now")
        queue = random.choice(route.publish_queues)
        raw = message.raw
        times = raw.reconsume_times + 1
        properties = {
            name: value for name, value in message.all_properties.items() if name not in _UNSENT
        }
        properties.setdefault("ORIGIN_MESSAGE_ID", raw.message_id)
        properties["RETRY_TOPIC"] = message.topic
        properties["DELAY"] = str(delay_level if delay_level > 0 else _FIRST_LEVEL + times - 1)
        template = SendTemplate(
            INNER_PRODUCER,
            topic,
            queue.queue_id,
            queue.broker,
            default_topic=DEFAULT_TOPIC,
            default_queues=1,
        )
        text = encode_properties(properties).decode()
        ext = template.message_fields(raw.sys_flag & _COMPRESSION, raw.born_ms, raw.flag, text)
        ext["j"] = str(times)
        if delay_level < 0:
            ext["l"] = "0"
        elif self._retries_max is not None:
            ext["l"] = str(self._retries_max)
        await self._instance.ask(
            route.address(queue.broker),
            RequestCode.SEND_MESSAGE_V2,
            ext,
            bytes(raw.body),
            timeout_ms=TIMEOUT_MS,
        )
