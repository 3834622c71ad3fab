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

from functools import partial
from typing import Annotated, Any

import msgspec

from onelog.core.transactions.prepared_batches import Committed
from onelog.errors import (
    EmptyMessageError,
    InvalidRequestError,
    OnelogError,
    TopicNotFoundError,
)
from onelog.gateways.remoting.names import create_topic
from onelog.gateways.remoting.sending.send import checked_parts
from onelog.gateways.remoting.session import BrokerSession, Handler, Success
from onelog.message import Appended, NewRun
from onelog.rocketmq.names import DEFAULT_TOPIC
from onelog.wire.remoting import fields
from onelog.wire.remoting.codes import RequestCode
from onelog.wire.remoting.command import Command

_QUEUES = 4
"""Of a topic that is made for a part, unless its sender says how many."""
# Of longer numbers, any many could be chosen that share a hash.
_offsets = msgspec.json.Decoder(
    list[Annotated[int, msgspec.Meta(ge=-fields.INT64_MAX, le=fields.INT64_MAX)]]
)


def stage(session: BrokerSession, command: Command) -> None:
    ext, gateway = command.ext, session.gateway
    source = bytes(command.body)
    parts = checked_parts(source)
    if not parts:
        raise EmptyMessageError("a part without messages")
    run = NewRun(
        fields.text(ext, "topic"),
        fields.int32(ext, "queueId"),
        parts,
        source,
        gateway.added_properties,
        0,
        fields.number(ext, "bornTimestamp", gateway.clock.now_ms()),
        session.born_host,
        gateway.store_host,
    )
    stage_run = partial(
        session.broker.stage_batch,
        session.principal,
        fields.text(ext, "query"),
        fields.number(ext, "batch"),
        ext.get("attempt", ""),
        run,
        _staged,
        (session, command, len(parts)),
        one_off=fields.flag(ext, "oneOff"),
    )
    try:
        stage_run()
    except TopicNotFoundError:
        queues = fields.int32(ext, "defaultTopicQueueNums", _QUEUES)
        default_topic = ext.get("defaultTopic", DEFAULT_TOPIC)
        create_topic(session.broker, session.principal, run.topic, default_topic, queues)
        stage_run()


def _staged(
    token: tuple[BrokerSession, Command, int], where: Appended | None, error: OnelogError | None
) -> None:
    session, command, count = token
    if where is None or error is not None:
        assert error is not None
        session.fail(command, error)
    else:
        ext = {"offset": str(where.queue_offset), "count": str(count)}
        session.answer(command, Success(ext))


def commit(session: BrokerSession, command: Command) -> None:
    try:
        offsets = _offsets.decode(command.body)
    except msgspec.MsgspecError as error:
        raise InvalidRequestError(f"the body is no JSON list of offsets: {error}") from None
    session.broker.commit_batch(
        session.principal,
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
        session.answer(command, Success({"batch": str(committed.batch), "again": again}))


def query(session: BrokerSession, command: Command) -> Success:
    name = fields.text(command.ext, "query")
    last, note = session.broker.last_batch(session.principal, name)
    return Success({"batch": str(-1 if last is None else last), "note": note})


HANDLERS: dict[int, Handler] = {
    RequestCode.STAGE_MESSAGES: stage,
    RequestCode.COMMIT_STAGED: commit,
    RequestCode.QUERY_STAGED: query,
}
