"""Requests of brokers that coordinate transactions, to those that have a part in them."""

from collections.abc import Generator
from functools import partial

from onelog.core.transactions.producers import Queue
from onelog.errors import OnelogError
from onelog.gateways.kafka.cluster.spread import POSITIONS_TOPIC
from onelog.gateways.kafka.error_codes import error_code
from onelog.gateways.kafka.list_offsets import queue_of
from onelog.gateways.kafka.session import Handler, KafkaSession, Request, Steps
from onelog.wire.kafka.codes import ApiKey
from onelog.wire.kafka.schema import Fields


def join_transactions(session: KafkaSession, request: Request) -> Steps:
    """ADD_PARTITIONS_TO_TXN from version 4 on: partitions here are in another broker's ones."""
    session.require_administrator()
    results = []
    for wanted in request.fields["transactions"]:
        code = 0
        topics: list[Fields] = []
        results.append({"transactional_id": wanted["transactional_id"], "topic_results": topics})
        try:
            queues: list[Queue] = []
            for topic in wanted["topics"]:
                for partition in topic["partitions"]:
                    yield
                    if topic["name"] != POSITIONS_TOPIC:
                        queues.append((topic["name"], queue_of(session, topic["name"], partition)))
            session.broker.transactions.branches.join(
                session.principal, wanted["producer_id"], wanted["producer_epoch"], queues
            )
        except OnelogError as error:
            code = error_code(error)
        for topic in wanted["topics"]:
            yield
            told = [
                {"partition_index": each, "partition_error_code": code}
                for each in topic["partitions"]
            ]
            topics.append({"name": topic["name"], "results_by_partition": told})
    return {"error_code": 0, "results_by_transaction": results}


def write_txn_markers(session: KafkaSession, request: Request) -> Steps:
    """WRITE_TXN_MARKERS: transactions have ended; answered when that is as safe as configured."""
    session.require_administrator()
    markers = request.fields["markers"]
    results = yield from _marked(markers)
    codes: dict[int, int] = {}
    left = [len(markers)]

    def ended(number: int, error: OnelogError | None) -> None:
        codes[number] = 0 if error is None else error_code(error)
        left[0] -= 1
        if not left[0]:
            for marker, marked in enumerate(results):
                for topic in marked["topics"]:
                    for each in topic["partitions"] if codes[marker] else ():
                        each["error_code"] = codes[marker]
            session.answer(request, {"markers": results})

    if not markers:
        return {"markers": []}
    for number, each in enumerate(markers):
        yield
        try:
            session.broker.transactions.branches.end(
                session.principal,
                each["producer_id"],
                each["producer_epoch"],
                each["transaction_result"],
                partial(ended, number),
            )
        except OnelogError as error:
            ended(number, error)
    return None


def _marked(markers: list[Fields]) -> Generator[None, None, list[Fields]]:
    """The answer, if nothing goes wrong."""
    results: list[Fields] = []
    for marker in markers:
        topics: list[Fields] = []
        results.append({"producer_id": marker["producer_id"], "topics": topics})
        for topic in marker["topics"]:
            yield
            numbers = topic["partition_indexes"]
            partitions = [{"partition_index": each, "error_code": 0} for each in numbers]
            topics.append({"name": topic["name"], "partitions": partitions})
    return results


HANDLERS: dict[ApiKey, Handler] = {ApiKey.WRITE_TXN_MARKERS: write_txn_markers}
