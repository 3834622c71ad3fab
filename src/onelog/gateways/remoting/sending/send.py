"""Producers: messages, batches of messages, and messages that a consumer sends back.

The hottest request of all. A send costs one look at its fields, one tuple for the core and one
answer; everything that is rare (an unknown topic, a batch, a retry) leaves the straight way early.
"""

import functools
import itertools
import os
import struct
import time
from collections.abc import Callable
from operator import itemgetter

from onelog.core.catalog.topics import TopicConfig
from onelog.core.schedule.records import wanted_ms
from onelog.errors import (
    FlushTimeoutError,
    InvalidRequestError,
    MessageError,
    OnelogError,
    TopicNotFoundError,
)
from onelog.gateways.remoting.names import create_topic, usable_group
from onelog.gateways.remoting.session import Answer, BrokerSession, Handler, response_code
from onelog.message import (
    RECORD_CRC,
    UNIQUE_KEY,
    Appended,
    AppendedRun,
    NewMessage,
    NewRun,
    Part,
    property_bytes,
)
from onelog.names import RETRY_PREFIX
from onelog.wire.remoting import fields
from onelog.wire.remoting.codes import RequestCode
from onelog.wire.remoting.command import FLAG_ONEWAY, Command
from onelog.wire.remoting.recall_handle import encode_handle
from onelog.wire.remoting.send import (
    SendHeader,
    decode_send_header,
    encode_send_response,
    split_batch,
)

_UNIQUE_KEY_NEEDLE = UNIQUE_KEY.encode() + b"\x01"
_HALF_NEEDLE = b"TRAN_MSG\x01true"
_TIMED_NEEDLE = b"TIMER_DEL"
"""In TIMER_DELAY_MS, TIMER_DELAY_SEC, TIMER_DELIVER_MS and TIMER_DEL_UNIQKEY."""
_INNER_NEEDLE = b"INNER_"
"""How the properties begin that say into which queues, and how often, a record is entered. They are
the store's; from a client they would count at the next recovery."""
_POP_NEEDLE = b"POP_"
_CRC_NEEDLE = RECORD_CRC.encode()
_P, _HASH = _POP_NEEDLE[0], ord("#")
_RESERVED = frozenset((b"POP_CK", b"POP_CK_OFFSET", b"1ST_POP_TIME", _CRC_NEEDLE))
"""More that only brokers set. A message that was popped from one and is sent on to another brings
them along, and its next reader would take the old receipt for his."""
_PROPERTIES: Callable[[Part], bytes] = itemgetter(2)
CLIENT_FLAGS = 0x703
"""The bits of a sysFlag that are the client's to set: compression and its kind, and many tags."""
_counter = itertools.count()
_plain_forms: dict[tuple[bytes, bytes, bytes], bytes] = {}
"""What comes before the unique key in properties of messages that are just to be stored, whether it
is ended, what follows; and the end that is missing. Most messages differ in that key only, so one
look tells all about them."""
_FORMS_MAX = 1_024
_FORM_BYTES_MAX = 512
_MISSES_PER_FORM = 16
"""Learning one of so many keeps messages that are all different from filling the table."""
_misses = 0
_NOT_PLAIN = (
    _INNER_NEEDLE, _POP_NEEDLE, _CRC_NEEDLE, _TIMED_NEEDLE, b"TRAN_MSG", _UNIQUE_KEY_NEEDLE,
)  # fmt: skip
"""In the names of properties that are more than stored, beside those that `before_store` names."""

Token = tuple[BrokerSession, Command, int, str]
TimedReceipt = tuple[tuple[Token, str], int | None]
"""What `Timers.submit` gives back: the token with the topic, and when the message is due."""


def send_message(session: BrokerSession, command: Command) -> None:
    """SEND_MESSAGE and SEND_MESSAGE_V2."""
    header = decode_send_header(command)
    (_, topic, _, _, queue_id, sys_flag, born_ms, flag, text, times, _, _, batch) = header
    if batch:
        send_batch(session, command)
        return
    gateway = session.gateway
    properties = text.encode()
    before, _, rest = properties.partition(_UNIQUE_KEY_NEEDLE)
    unique, ended, after = rest.partition(b"\x02")
    missing = _plain_forms.get((before, ended, after))
    if missing is not None and unique:
        properties += missing
    else:
        properties, unique = _looked_through(session, properties)
    if queue_id < 0:
        queue_id = pick_queue(session, header)
    # What calling the class does, at half the price.
    message = tuple.__new__(
        NewMessage,
        (
            topic, queue_id, command.body, properties + gateway.added_properties, flag,
            sys_flag & CLIENT_FLAGS, born_ms, session.born_host, gateway.store_host, times, 0, 1,
            (),
        ),
    )  # fmt: skip
    token: Token = (session, command, queue_id, unique.decode("utf-8", "replace"))
    publisher = session.broker.publisher
    if missing is not None and publisher.submit_plain(message, _stored, token):
        return
    try:
        # Names of properties may be in values too: who takes the message looks closely.
        if (
            topic.startswith(RETRY_PREFIX)
            or properties.find(_TIMED_NEEDLE) >= 0  # Half the price of `in`.
            or properties.find(_HALF_NEEDLE) >= 0
        ):
            _submit(session, header, message, token)
        else:
            publisher.submit(message, _stored, token)
    except TopicNotFoundError:
        _create_topic(session, header)
        _submit(session, header, message, token)


def _looked_through(session: BrokerSession, properties: bytes) -> tuple[bytes, bytes]:
    """Properties as they may be stored, ended, and with a unique key; and that key."""
    global _misses
    sent = properties
    properties = without_reserved(properties)
    if properties and properties[-1] != 2:
        properties += b"\x02"
    unique = property_bytes(properties, _UNIQUE_KEY_NEEDLE)
    if unique is None:
        unique = new_unique_key(session.gateway.store_host).encode()
        return properties + _UNIQUE_KEY_NEEDLE + unique + b"\x02", unique
    _misses += 1
    if _misses % _MISSES_PER_FORM == 0:
        _learn_form(sent, [trigger for trigger, _ in session.broker.publisher.before_store])
    return properties, unique


def _learn_form(properties: bytes, triggers: list[bytes]) -> None:
    """Remember what surrounds the unique key, if nothing in it asks for more than storing."""
    before, _, rest = properties.partition(_UNIQUE_KEY_NEEDLE)
    unique, ended, after = rest.partition(b"\x02")
    around = before + b"\x02" + after
    if (
        unique
        and (not before or before[-1] == 2)
        and len(around) <= _FORM_BYTES_MAX
        and not any(around.find(needle) >= 0 for needle in (*_NOT_PLAIN, *triggers))
    ):
        if len(_plain_forms) >= _FORMS_MAX:
            _plain_forms.clear()
        _plain_forms[before, ended, after] = b"" if properties[-1] == 2 else b"\x02"


def without_reserved(properties: bytes) -> bytes:
    """The properties without those that only the broker may set."""
    if not _may_have_reserved(properties):
        return properties
    kept = []
    for each in properties.split(b"\x02"):
        name = each.partition(b"\x01")[0]
        if not name.startswith(_INNER_NEEDLE) and name not in _RESERVED:
            kept.append(each)
    return b"\x02".join(kept)


def _may_have_reserved(properties: bytes) -> bool:
    # Most properties lack even the one letter, and to know that costs a third of a needle.
    return (
        (_P in properties and properties.find(_POP_NEEDLE) >= 0)
        or (_HASH in properties and properties.find(_CRC_NEEDLE) >= 0)
        or bool(properties.partition(_INNER_NEEDLE)[1])
    )


def _submit(session: BrokerSession, header: SendHeader, message: NewMessage, token: Token) -> None:
    if header.topic.startswith(RETRY_PREFIX):
        usable_group(session.broker, header.topic.removeprefix(RETRY_PREFIX))
        most = header.reconsume_times_max
        session.broker.publisher.submit_retry(message, most, _stored, token)
    elif message.properties.find(_HALF_NEEDLE) >= 0:  # Half the price of `in`.
        session.broker.transactions.prepare(message, _stored, token)
    elif message.properties.find(_TIMED_NEEDLE) >= 0:
        session.broker.timers.submit(message, _timed_stored, (token, header.topic))
    else:
        session.broker.submit(message, _stored, token)


def pick_queue(session: BrokerSession, header: SendHeader) -> int:
    """Any queue that can be written to, for a client that leaves the choice to the broker."""
    config = session.broker.topics.get(header.topic) or _create_topic(session, header)
    return session.gateway.random.randrange(config.write_queues) if config.write_queues else -1


def _create_topic(session: BrokerSession, header: SendHeader) -> TopicConfig:
    return create_topic(
        session.broker, header.topic, header.default_topic, header.default_topic_queues
    )


def _stored(token: Token, appended: Appended | None, error: OnelogError | None) -> None:
    """The fate of a message is known: tell its sender."""
    session, command, queue_id, unique = token
    if appended is None:
        assert error is not None
        session.fail(command, error)
    elif not command.flag & FLAG_ONEWAY:
        gateway = session.gateway
        message_id = f"{gateway.id_prefix}{appended.log_offset:016X}"
        if error is None:
            session.connection.write(
                encode_send_response(
                    command.opaque, message_id, queue_id, appended.queue_offset, unique,
                    gateway.region, gateway.trace, command.serialize,
                )
            )  # fmt: skip
        else:
            _answer_late(session, command, error, message_id, queue_id, appended.queue_offset)


def _timed_stored(
    receipt: TimedReceipt, appended: Appended | None, error: OnelogError | None
) -> None:
    """The fate of a message that may have to wait is known: tell its sender."""
    (token, topic), due_ms = receipt
    if appended is None or error is not None or due_ms is None:
        _stored(token, appended, error)
        return
    session, command, queue_id, unique = token
    if not command.flag & FLAG_ONEWAY:
        gateway = session.gateway
        message_id = f"{gateway.id_prefix}{appended.log_offset:016X}"
        handle = encode_handle(topic, session.broker.config.name, due_ms + 1, unique)
        session.connection.write(
            encode_send_response(
                command.opaque, message_id, queue_id, appended.queue_offset, unique,
                gateway.region, gateway.trace, command.serialize, handle,
            )
        )  # fmt: skip


def _answer_late(
    session: BrokerSession,
    command: Command,
    error: OnelogError,
    message_id: str,
    queue_id: int,
    queue_offset: int,
) -> None:
    """The message is stored, but not yet as safely as it should be."""
    assert isinstance(error, FlushTimeoutError)
    gateway = session.gateway
    ext = {
        "msgId": message_id,
        "queueId": str(queue_id),
        "queueOffset": str(queue_offset),
        "MSG_REGION": gateway.region,
        "TRACE_ON": "true" if gateway.trace else "false",
    }
    session.reply(command, response_code(error), ext, str(error))


# -- batches -----------------------------------------------------------------------------------


def send_batch(session: BrokerSession, command: Command) -> None:
    """SEND_BATCH_MESSAGE: many messages of one queue, acknowledged together."""
    header = decode_send_header(command)
    gateway = session.gateway
    body = command.body
    # As in RocketMQ, a batch may be as large as a message. Before it is taken apart, or kept.
    session.broker.publisher.check_sizes(len(body), len(header.properties))
    queue_id = header.queue_id
    if queue_id < 0:
        queue_id = pick_queue(session, header)
    source = body if isinstance(body, bytes) else bytes(body)
    run = NewRun(
        header.topic, queue_id, checked_parts(source), source,
        _shared(header.properties) + gateway.added_properties, header.sys_flag & CLIENT_FLAGS,
        header.born_ms, session.born_host, gateway.store_host, header.reconsume_times,
    )  # fmt: skip
    token = (session, command, queue_id, "")
    try:
        session.broker.submit_run(run, _batch_stored, token)
    except TopicNotFoundError:
        _create_topic(session, header)
        session.broker.submit_run(run, _batch_stored, token)


@functools.lru_cache(maxsize=256)
def _shared(properties: str) -> bytes:
    """Properties of a whole batch, as each of its messages gets them: its id is not theirs."""
    kept = without_reserved(properties.encode()).split(b"\x02")
    return b"".join(
        each + b"\x02" for each in kept if each and not each.startswith(_UNIQUE_KEY_NEEDLE)
    )


def checked_parts(source: bytes) -> list[Part]:
    """The messages of a batch, without properties that are not their sender's to set."""
    parts = split_batch(source)
    # One look at all properties tells that no message has such a one. At theirs only: bodies are
    # long, and searched slowly.
    properties = b"\x02".join(map(_PROPERTIES, parts))
    if _may_have_reserved(properties) or properties.find(_TIMED_NEEDLE) >= 0:
        parts = [(flag, body, _checked(properties)) for flag, body, properties in parts]
    return parts


def _checked(properties: bytes) -> bytes:
    properties = without_reserved(properties)
    if properties.find(_TIMED_NEEDLE) >= 0 and wanted_ms(properties, 0) is not None:
        raise MessageError("a message of a batch cannot be timed: send it by itself")
    return properties


def _batch_stored(token: Token, appended: AppendedRun | None, error: OnelogError | None) -> None:
    session, command, queue_id, _ = token
    if appended is None:
        assert error is not None
        session.fail(command, error)
        return
    gateway = session.gateway
    _, first, _, log_offsets = appended
    # Each offset in 16 digits, with what all ids begin with before it.
    digits = struct.pack(f">{len(log_offsets)}q", *log_offsets).hex(",", 8).upper()
    message_ids = gateway.id_prefix + digits.replace(",", f",{gateway.id_prefix}")
    if error is not None:
        _answer_late(session, command, error, message_ids, queue_id, first)
    elif not command.flag & FLAG_ONEWAY:
        session.connection.write(
            encode_send_response(
                command.opaque, message_ids, queue_id, first, "", gateway.region, gateway.trace,
                command.serialize,
            )
        )  # fmt: skip


# -- back from a consumer ----------------------------------------------------------------------


def send_back(session: BrokerSession, command: Command) -> Answer | None:
    """CONSUMER_SEND_MSG_BACK: a message that a consumer could not handle."""
    ext = command.ext
    offset = fields.number(ext, "offset")
    if offset < 0:
        raise InvalidRequestError(f"the custom field <offset> is negative: {offset}")
    times = fields.int32(ext, "maxReconsumeTimes", -1)

    def act() -> None:
        session.broker.send_back(
            usable_group(session.broker, fields.text(ext, "group")),
            offset,
            fields.int32(ext, "delayLevel"),
            _sent_back,
            (session, command),
            retries_max=times if times >= 0 else None,
            unit_mode=fields.flag(ext, "unitMode"),
        )

    return session.when_warm(command, offset, act)


def _sent_back(
    token: tuple[BrokerSession, Command], _: Appended | None, error: OnelogError | None
) -> None:
    session, command = token
    if error is None or isinstance(error, FlushTimeoutError):
        session.answer(command, Answer())
    else:
        session.fail(command, error)


# -- ids ---------------------------------------------------------------------------------------


def new_unique_key(host: bytes) -> str:
    """An id as RocketMQ's clients make it, for a message whose sender gave it none."""
    now_ms = time.time_ns() // 1_000_000
    month = time.strftime("%Y-%m-01", time.localtime(now_ms / 1000))
    month_ms = int(time.mktime(time.strptime(month, "%Y-%m-%d"))) * 1000
    return (
        (
            host[:-4]
            + (os.getpid() & 0xFFFF).to_bytes(2, "big")
            + (id(_counter) & 0xFFFFFFFF).to_bytes(4, "big")
            + (now_ms - month_ms & 0xFFFFFFFF).to_bytes(4, "big")
            + (next(_counter) & 0xFFFF).to_bytes(2, "big")
        )
        .hex()
        .upper()
    )


HANDLERS: dict[int, Handler] = {
    RequestCode.SEND_MESSAGE: send_message,
    RequestCode.SEND_MESSAGE_V2: send_message,
    RequestCode.SEND_BATCH_MESSAGE: send_batch,
    RequestCode.CONSUMER_SEND_MSG_BACK: send_back,
}
