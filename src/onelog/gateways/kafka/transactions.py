"""Requests of producers that number their batches, or send them in transactions."""

import logging
from collections.abc import Callable
from functools import partial

from onelog.core.cursors.offsets import REMOTE_QUEUES
from onelog.core.transactions.producers import Queue
from onelog.core.transactions.transactional_ids import Incarnation, TransactionState
from onelog.errors import OnelogError
from onelog.gateways.kafka.error_codes import error_code, error_code_in
from onelog.gateways.kafka.groups.members import member_of
from onelog.gateways.kafka.groups.positions import committed, failed, taken
from onelog.gateways.kafka.list_offsets import queue_of
from onelog.gateways.kafka.names import require_topic
from onelog.gateways.kafka.session import Handler, KafkaSession, Request, Steps, refusal_in, whole
from onelog.gateways.kafka.transaction_parts import join_transactions
from onelog.wire.kafka.codes import ApiKey, ErrorCode
from onelog.wire.kafka.schema import Fields

log = logging.getLogger(__name__)

_MEMBER_VERSION = 3
_BROKERS_VERSION = 4
"""From here on it is brokers that ask."""
_JOINING_VERSION = 5
"""From here on positions add their group to the transaction."""
_RENEWING_VERSION = 5
"""From here on every transaction has an epoch of its own."""
_ENDING = ErrorCode.CONCURRENT_TRANSACTIONS


def _code(request: Request, error: OnelogError) -> ErrorCode:
    return error_code_in(request.key, request.version, error)


def _settled(handle: Callable[[KafkaSession, Request], Fields | None]) -> Handler:
    """A handler that waits until other brokers know how the transaction before has ended."""

    def handler(session: KafkaSession, request: Request) -> Fields | None:
        spread = session.gateway.spread
        answer = handle(session, request)
        is_ending = answer is not None and answer["error_code"] == _ENDING
        if spread is None or not is_ending:
            return answer

        async def again() -> Fields | None:
            await spread.reported(request.fields["transactional_id"])
            return handle(session, request)

        session.later(request, again)
        return None

    return handler


def init_producer_id(session: KafkaSession, request: Request) -> Fields | None:
    """INIT_PRODUCER_ID: an id of its own, or the next epoch of a transactional id.

    Answered when that is as safe as configured: another master would give it to another producer.
    """
    fields, broker = request.fields, session.broker
    name = fields["transactional_id"]
    refused = {"producer_id": -1, "producer_epoch": -1}
    if fields.get("enable2_pc"):
        return {"error_code": ErrorCode.TRANSACTIONAL_ID_AUTHORIZATION_FAILED, **refused}
    if fields.get("keep_prepared_txn"):
        return {"error_code": ErrorCode.UNSUPPORTED_VERSION, **refused}
    try:
        if name is None:
            producer_id, epoch = broker.publish.new_producer_id(session.principal), 0
        else:
            producer_id, epoch = broker.transactions.in_place.begin(
                session.principal,
                name,
                fields["transaction_timeout_ms"],
                fields.get("producer_id", -1),
                fields.get("producer_epoch", -1),
            )
    except OnelogError as error:
        return {"error_code": _code(request, error), **refused}
    results = {"error_code": 0, "producer_id": producer_id, "producer_epoch": epoch}

    def safe(error: OnelogError | None) -> None:
        failed = error and {"error_code": _code(request, error), **refused}
        session.answer(request, failed or results)

    broker.publish.when_durable(safe)
    return None


def add_partitions_to_txn(session: KafkaSession, request: Request) -> Steps:
    """ADD_PARTITIONS_TO_TXN: all of them, or none."""
    if request.version >= _BROKERS_VERSION:
        return (yield from join_transactions(session, request))
    fields = request.fields
    codes: dict[Queue, ErrorCode] = {}
    queues: list[Queue] = []
    away: list[Queue] = []
    for topic in fields["v3_and_below_topics"]:
        for partition in topic["partitions"]:
            yield
            try:
                config = require_topic(session.broker, session.principal, topic["name"])
                queue_id = session.gateway.cluster.queue_id_of(config, partition)
                if queue_id < REMOTE_QUEUES:
                    queues.append((topic["name"], queue_id))
                else:
                    away.append((topic["name"], partition))
            except OnelogError as error:
                codes[topic["name"], partition] = error_code(error)
    others = ErrorCode.OPERATION_NOT_ATTEMPTED
    if not codes:
        others = ErrorCode.NONE
        producer = (
            fields["v3_and_below_transactional_id"],
            fields["v3_and_below_producer_id"],
            fields["v3_and_below_producer_epoch"],
        )
        try:
            session.broker.transactions.in_place.add_queues(session.principal, *producer, queues)
            spread = session.gateway.spread
            if away and spread is not None:
                session.broker.transactions.in_place.add_others(session.principal, *producer, away)

                async def tell() -> Fields:
                    try:
                        await spread.add(*producer, away)
                    except OnelogError as error:
                        log.info("a transaction of %r: %s", producer[0], error)
                        return whole(_added(fields, codes, ErrorCode.COORDINATOR_NOT_AVAILABLE))
                    return whole(_added(fields, codes, others))

                session.later(request, tell)
                return None
        except OnelogError as error:
            others = _code(request, error)
    return (yield from _added(fields, codes, others))


def _added(fields: Fields, codes: dict[Queue, ErrorCode], others: ErrorCode) -> Steps:
    results: list[Fields] = []
    for topic in fields["v3_and_below_topics"]:
        name = topic["name"]
        partitions: list[Fields] = []
        results.append({"name": name, "results_by_partition": partitions})
        for each in topic["partitions"]:
            yield
            code = codes.get((name, each), others)
            partitions.append({"partition_index": each, "partition_error_code": code})
    return {"results_by_topic_v3_and_below": results}


def add_offsets_to_txn(session: KafkaSession, request: Request) -> Fields | None:
    """ADD_OFFSETS_TO_TXN: a group whose positions belong to the transaction."""
    fields, cluster = request.fields, session.gateway.cluster
    if cluster.coordinator(fields["group_id"]) != cluster.node_id:
        session.later(request, lambda: _add_group_of_others(session, request))
        return None
    try:
        session.broker.transactions.in_place.add_group(
            session.principal,
            fields["transactional_id"],
            fields["producer_id"],
            fields["producer_epoch"],
            fields["group_id"],
        )
    except OnelogError as error:
        return {"error_code": _code(request, error)}
    return {"error_code": 0}


async def _add_group_of_others(session: KafkaSession, request: Request) -> Fields:
    """The same, for a group that another broker looks after."""
    fields, spread = request.fields, session.gateway.spread
    assert spread is not None
    producer = fields["transactional_id"], fields["producer_id"], fields["producer_epoch"]
    try:
        slot = await spread.slot(fields["group_id"])
        if spread.node_of(slot) == session.gateway.cluster.node_id:
            in_place = session.broker.transactions.in_place
            in_place.add_group(session.principal, *producer, fields["group_id"])
            return {"error_code": 0}
        session.broker.transactions.in_place.add_others(session.principal, *producer, [slot])
    except OnelogError as error:
        return {"error_code": _code(request, error)}
    try:
        await spread.add(*producer, [slot])
    except OnelogError as error:
        log.info("a transaction of %r: %s", producer[0], error)
        return {"error_code": ErrorCode.COORDINATOR_NOT_AVAILABLE}
    return {"error_code": 0}


def txn_offset_commit(session: KafkaSession, request: Request) -> Steps:
    """TXN_OFFSET_COMMIT: positions that count once the transaction is committed.

    Answered when they are as safe as configured: the commit would go without them.
    """
    fields = request.fields
    positions, results = yield from taken(session, fields["topics"])
    if request.version < _MEMBER_VERSION:
        fields |= {"generation_id": -1, "member_id": ""}
    cluster, name = session.gateway.cluster, fields["transactional_id"]
    try:
        cluster.require_coordinator(fields["group_id"])
        if cluster.coordinator(name) != cluster.node_id:
            session.broker.transactions.branches.commit_offsets(
                session.principal,
                fields["producer_id"],
                fields["producer_epoch"],
                fields["group_id"],
                member_of(fields),
                positions,
            )
        else:
            session.broker.transactions.in_place.commit_offsets(
                session.principal,
                name,
                fields["producer_id"],
                fields["producer_epoch"],
                fields["group_id"],
                member_of(fields),
                positions,
                joins=request.version >= _JOINING_VERSION,
            )
    except OnelogError as error:
        return {"topics": failed(results, _code(request, error))}
    session.broker.publish.when_durable(partial(committed, session, request, results))
    return None


def end_txn(session: KafkaSession, request: Request) -> Fields | None:
    """END_TXN: answered when the end is as safe as configured."""
    fields = request.fields
    try:
        session.broker.transactions.in_place.end(
            session.principal,
            fields["transactional_id"],
            fields["producer_id"],
            fields["producer_epoch"],
            fields["committed"],
            partial(_ended, session, request),
            renews=request.version >= _RENEWING_VERSION,
        )
    except OnelogError as error:
        return {"error_code": _code(request, error)}
    return None


def _ended(
    session: KafkaSession, request: Request, producer: Incarnation, error: OnelogError | None
) -> None:
    if error is not None:
        session.answer(request, {"error_code": _code(request, error)})
        return
    producer_id, epoch = producer
    results = {"error_code": 0, "producer_id": producer_id, "producer_epoch": epoch}
    session.answer(request, results)


# -- what administrators ask -------------------------------------------------------------------


def list_transactions(session: KafkaSession, request: Request) -> Steps:
    """LIST_TRANSACTIONS, of some states or producers if the request says so."""
    fields = request.fields
    known = {each.value for each in TransactionState}
    states, producers = set(fields["state_filters"]), set(fields["producer_id_filters"])
    least_ms = fields.get("duration_filter", -1)
    now_ms = session.gateway.clock.now_ms()
    found: list[Fields] = []
    for each in session.broker.transactions.in_place.transactions(session.principal):
        yield
        if (
            (not states or each.state.value in states)
            and (not producers or each.producer_id in producers)
            and (least_ms < 0 or (each.begun_ms and now_ms - each.begun_ms > least_ms))
        ):
            state = {"producer_id": each.producer_id, "transaction_state": each.state.value}
            found.append({"transactional_id": each.name, **state})
    unknown = sorted(states - known)
    return {"error_code": 0, "unknown_state_filters": unknown, "transaction_states": found}


def describe_transactions(session: KafkaSession, request: Request) -> Steps:
    found = {
        each.name: each
        for each in session.broker.transactions.in_place.transactions(session.principal)
    }
    results: list[Fields] = []
    for name in request.fields["transactional_ids"]:
        yield
        each = found.get(name)
        if each is None:
            code = ErrorCode.TRANSACTIONAL_ID_NOT_FOUND
            cluster = session.gateway.cluster
            if cluster.coordinator(name) not in (None, cluster.node_id):
                code = ErrorCode.NOT_COORDINATOR
            results.append({"error_code": code, "transactional_id": name})
            continue
        topics: dict[str, list[int]] = {}
        for topic, queue_id in sorted(each.queues):
            partition = session.gateway.cluster.partition(topic, queue_id)
            topics.setdefault(topic, []).append(queue_id if partition is None else partition)
        for topic, partition in sorted(each.others):
            topics.setdefault(topic, []).append(partition)
        results.append(
            {
                "transactional_id": name,
                "transaction_state": each.state.value,
                "transaction_timeout_ms": each.timeout_ms,
                "transaction_start_time_ms": each.begun_ms or -1,
                "producer_id": each.producer_id,
                "producer_epoch": each.epoch,
                "topics": [
                    {"topic": topic, "partitions": numbers} for topic, numbers in topics.items()
                ],
            }
        )
    return {"transaction_states": results}


def describe_producers(session: KafkaSession, request: Request) -> Steps:
    """DESCRIBE_PRODUCERS: who numbers batches in some partitions."""
    broker, principal = session.broker, session.principal
    results = []
    for topic in request.fields["topics"]:
        name = topic["name"]
        partitions: list[Fields] = []
        for partition in topic["partition_indexes"]:
            yield
            answer: Fields = {"partition_index": partition, "error_code": 0}
            with refusal_in(answer):
                queue_id = queue_of(session, name, partition)
                answer["active_producers"] = [
                    {
                        "producer_id": producer_id,
                        "producer_epoch": each.epoch,
                        "last_sequence": each.sent[-1].last if each.sent else -1,
                        "last_timestamp": each.seen_ms,
                        "coordinator_epoch": 0,
                        "current_txn_start_offset": begun,
                    }
                    for producer_id, each, begun in broker.transactions.producers_of(
                        principal, name, queue_id
                    )
                ]
            partitions.append(answer)
        results.append({"name": name, "partitions": partitions})
    return {"topics": results}


HANDLERS: dict[ApiKey, Handler] = {
    ApiKey.INIT_PRODUCER_ID: _settled(init_producer_id),
    ApiKey.ADD_PARTITIONS_TO_TXN: add_partitions_to_txn,
    ApiKey.ADD_OFFSETS_TO_TXN: add_offsets_to_txn,
    ApiKey.TXN_OFFSET_COMMIT: txn_offset_commit,
    ApiKey.END_TXN: _settled(end_txn),
    ApiKey.LIST_TRANSACTIONS: list_transactions,
    ApiKey.DESCRIBE_TRANSACTIONS: describe_transactions,
    ApiKey.DESCRIBE_PRODUCERS: describe_producers,
}
