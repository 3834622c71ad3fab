"""Requests of producers that number their batches, or send them in transactions."""

from functools import partial

from onelog.core.transactions.producers import Queue
from onelog.errors import OnelogError, ProducerFencedError, TopicNotFoundError
from onelog.gateways.kafka.error_codes import error_code
from onelog.gateways.kafka.groups.members import member_of
from onelog.gateways.kafka.groups.positions import failed, taken
from onelog.gateways.kafka.names import require_topic
from onelog.gateways.kafka.session import Handler, KafkaSession, Request
from onelog.wire.kafka.codes import ApiKey, ErrorCode
from onelog.wire.kafka.schema import Fields

_FENCED_SINCE = {
    ApiKey.INIT_PRODUCER_ID: 4,
    ApiKey.ADD_PARTITIONS_TO_TXN: 2,
    ApiKey.ADD_OFFSETS_TO_TXN: 2,
    ApiKey.END_TXN: 2,
}
"""Versions that know the word for a producer that was fenced; others have an older one."""
_MEMBER_VERSION = 3


def _code(request: Request, error: OnelogError) -> ErrorCode:
    known = ErrorCode.PRODUCER_FENCED, ErrorCode.INVALID_PRODUCER_EPOCH
    if isinstance(error, ProducerFencedError):
        since = _FENCED_SINCE.get(ApiKey(request.key), 1 << 15)
        return known[0] if request.version >= since else known[1]
    return error_code(error)


def init_producer_id(session: KafkaSession, request: Request) -> Fields:
    """INIT_PRODUCER_ID: an id of its own, or the next epoch of a transactional id."""
    fields, broker = request.fields, session.broker
    name = fields["transactional_id"]
    try:
        if name is None:
            producer_id, epoch = broker.new_producer_id(session.principal), 0
        else:
            producer_id, epoch = broker.in_place.begin(
                session.principal, name, fields["transaction_timeout_ms"],
                fields.get("producer_id", -1), fields.get("producer_epoch", -1),
            )  # fmt: skip
    except OnelogError as error:
        return {"error_code": _code(request, error), "producer_id": -1, "producer_epoch": -1}
    return {"error_code": 0, "producer_id": producer_id, "producer_epoch": epoch}


def add_partitions_to_txn(session: KafkaSession, request: Request) -> Fields:
    """ADD_PARTITIONS_TO_TXN: all of them, or none."""
    fields = request.fields
    codes: dict[Queue, ErrorCode] = {}
    queues = [
        (topic["name"], partition)
        for topic in fields["v3_and_below_topics"]
        for partition in topic["partitions"]
    ]
    for topic, partition in queues:
        try:
            config = require_topic(session.broker, session.principal, topic)
            if not 0 <= partition < config.queues:
                raise TopicNotFoundError(f"topic {topic} has no partition {partition}")
        except OnelogError as error:
            codes[topic, partition] = error_code(error)
    others = ErrorCode.OPERATION_NOT_ATTEMPTED
    if not codes:
        others = ErrorCode.NONE
        try:
            session.broker.in_place.add_queues(
                session.principal, fields["v3_and_below_transactional_id"],
                fields["v3_and_below_producer_id"], fields["v3_and_below_producer_epoch"], queues,
            )  # fmt: skip
        except OnelogError as error:
            others = _code(request, error)
    return {
        "results_by_topic_v3_and_below": [
            {
                "name": topic["name"],
                "results_by_partition": [
                    {
                        "partition_index": each,
                        "partition_error_code": codes.get((topic["name"], each), others),
                    }
                    for each in topic["partitions"]
                ],
            }
            for topic in fields["v3_and_below_topics"]
        ]
    }


def add_offsets_to_txn(session: KafkaSession, request: Request) -> Fields:
    """ADD_OFFSETS_TO_TXN: a group whose positions belong to the transaction."""
    fields = request.fields
    try:
        session.broker.in_place.add_group(
            session.principal, fields["transactional_id"], fields["producer_id"],
            fields["producer_epoch"], fields["group_id"],
        )  # fmt: skip
    except OnelogError as error:
        return {"error_code": _code(request, error)}
    return {"error_code": 0}


def txn_offset_commit(session: KafkaSession, request: Request) -> Fields:
    """TXN_OFFSET_COMMIT: positions that count once the transaction is committed."""
    fields = request.fields
    positions, told = taken(session, fields["topics"])
    if request.version < _MEMBER_VERSION:
        fields |= {"generation_id": -1, "member_id": ""}
    try:
        session.broker.in_place.commit_offsets(
            session.principal, fields["transactional_id"], fields["producer_id"],
            fields["producer_epoch"], fields["group_id"], member_of(fields), positions,
        )  # fmt: skip
    except OnelogError as error:
        return {"topics": failed(told, _code(request, error))}
    return {"topics": told}


def end_txn(session: KafkaSession, request: Request) -> Fields | None:
    """END_TXN: answered when the end is as safe as configured."""
    fields = request.fields
    try:
        session.broker.in_place.end(
            session.principal, fields["transactional_id"], fields["producer_id"],
            fields["producer_epoch"], fields["committed"], partial(_ended, session, request),
        )  # fmt: skip
    except OnelogError as error:
        return {"error_code": _code(request, error)}
    return None


def _ended(session: KafkaSession, request: Request, error: OnelogError | None) -> None:
    session.answer(request, {"error_code": 0 if error is None else error_code(error)})


HANDLERS: dict[ApiKey, Handler] = {
    ApiKey.INIT_PRODUCER_ID: init_producer_id,
    ApiKey.ADD_PARTITIONS_TO_TXN: add_partitions_to_txn,
    ApiKey.ADD_OFFSETS_TO_TXN: add_offsets_to_txn,
    ApiKey.TXN_OFFSET_COMMIT: txn_offset_commit,
    ApiKey.END_TXN: end_txn,
}
