"""Batches that a job prepares and its driver commits: OneLog's own requests (`prepared_batches`).

STAGE_MESSAGES   query, batch, attempt, topic, queueId, bornTimestamp, defaultTopic,
                 defaultTopicQueueNums, oneOff; the body is a batch as in SEND_BATCH_MESSAGE
                 -> offset (names the part in the commit), count
COMMIT_STAGED    query, batch, note, oneOff; the body is a JSON list of offsets
                 -> batch (the query's last), again (whether it was committed before)
QUERY_STAGED     query -> batch (-1 if the query has committed nothing here), note

`oneOff` ("true") may be left out: the query is a batch write, which has no batch but this one, so
that its name need not be remembered for long.
"""

from collections.abc import Callable
from operator import itemgetter
from typing import Annotated, Any

import msgspec

from onelog.core.transactions.staged import Committed, Part
from onelog.errors import (
    EmptyMessageError,
    InvalidRequestError,
    OnelogError,
    TopicNotFoundError,
)
from onelog.gateways.remoting.names import create_topic
from onelog.gateways.remoting.sending.send import checked_parts
from onelog.gateways.remoting.session import Answer, BrokerSession, Gateway, Handler
from onelog.message import Appended, NewRun
from onelog.rocketmq.names import DEFAULT_TOPIC
from onelog.wire.remoting import fields
from onelog.wire.remoting.codes import RequestCode
from onelog.wire.remoting.command import Command
from onelog.wire.remoting.send import BATCHED_BYTES, encode_batch, split_batch

_QUEUES = 4
"""Of a topic that is made for a part, unless its sender says how many."""
_ROOM_BYTES = 64
"""In the properties, for the store's checksum and a separator."""
# Of longer numbers, any many could be chosen that share a hash.
_offsets = msgspec.json.Decoder(
    list[Annotated[int, msgspec.Meta(ge=-fields.INT64_MAX, le=fields.INT64_MAX)]]
)


def unpacker(gateway: Gateway) -> Callable[[Part], NewRun]:
    """What makes messages of a part."""

    def unpack(part: Part) -> NewRun:
        source = bytes(part.body)
        return NewRun(  # Of what is checked already: nobody else can write where parts rest.
            part.topic, part.queue_id, split_batch(source), source, gateway.added_properties, 0,
            part.born_ms, part.born_host, gateway.store_host,
        )  # fmt: skip

    return unpack


def stage(session: BrokerSession, command: Command) -> None:
    """STAGE_MESSAGES."""
    ext = command.ext
    source = bytes(command.body)
    parts = checked_parts(source)
    bodies, properties = (list(map(len, map(itemgetter(at), parts))) for at in (1, 2))
    if not parts or not min(bodies):
        raise EmptyMessageError("a part without messages, or with one that has no body")
    # Now, because what is committed has to be published, whatever it is.
    added = len(session.gateway.added_properties) + _ROOM_BYTES
    session.broker.publisher.check_sizes(max(bodies), max(properties) + added)
    if len(source) > BATCHED_BYTES * len(parts) + sum(bodies) + sum(properties):
        source = encode_batch(parts)  # Without the properties that its sender may not set.
    part = Part(
        fields.text(ext, "query"), fields.number(ext, "batch"), ext.get("attempt", ""),
        fields.text(ext, "topic"), fields.int32(ext, "queueId"), len(parts), source,
        fields.number(ext, "bornTimestamp", session.gateway.clock.now_ms()), session.born_host,
    )  # fmt: skip
    broker, token = session.broker, (session, command, len(parts))
    one_off = fields.flag(ext, "oneOff")
    try:
        broker.prepared_batches.stage(part, _staged, token, one_off=one_off)
    except TopicNotFoundError:
        create_topic(
            broker,
            part.topic,
            ext.get("defaultTopic", DEFAULT_TOPIC),
            fields.int32(ext, "defaultTopicQueueNums", _QUEUES),
        )
        broker.prepared_batches.stage(part, _staged, token, one_off=one_off)


def _staged(
    token: tuple[BrokerSession, Command, int], where: Appended | None, error: OnelogError | None
) -> None:
    session, command, count = token
    if where is None or error is not None:
        assert error is not None
        session.fail(command, error)
    else:
        ext = {"offset": str(where.queue_offset), "count": str(count)}
        session.answer(command, Answer(ext))


def commit(session: BrokerSession, command: Command) -> None:
    """COMMIT_STAGED."""
    try:
        offsets = _offsets.decode(command.body)
    except msgspec.MsgspecError as error:
        raise InvalidRequestError(f"the body is no JSON list of offsets: {error}") from None
    session.broker.prepared_batches.commit(
        fields.text(command.ext, "query"),
        fields.number(command.ext, "batch"),
        offsets,
        _committed,
        (session, command),
        note=command.ext.get("note", ""),
        one_off=fields.flag(command.ext, "oneOff"),
    )


def _committed(token: Any, committed: Committed | None, error: OnelogError | None) -> None:
    session, command = token
    if error is not None:
        session.fail(command, error)
    elif committed is not None:
        again = "true" if committed.again else "false"
        session.answer(command, Answer({"batch": str(committed.batch), "again": again}))


def query(session: BrokerSession, command: Command) -> Answer:
    """QUERY_STAGED."""
    name, batches = fields.text(command.ext, "query"), session.broker.prepared_batches
    last = batches.last_batch(name)
    return Answer({"batch": str(-1 if last is None else last), "note": batches.note(name)})


HANDLERS: dict[int, Handler] = {
    RequestCode.STAGE_MESSAGES: stage,
    RequestCode.COMMIT_STAGED: commit,
    RequestCode.QUERY_STAGED: query,
}
