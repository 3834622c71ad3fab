"""Requests of brokers that coordinate transactions, to those that have a part in them."""

from functools import partial

from onelog.core.transactions.producers import Queue
from onelog.errors import OnelogError
from onelog.gateways.kafka.cluster.spread import POSITIONS_TOPIC
from onelog.gateways.kafka.error_codes import error_code
from onelog.gateways.kafka.list_offsets import queue_of
from onelog.gateways.kafka.session import Handler, KafkaSession, Request
from onelog.wire.kafka.codes import ApiKey
from onelog.wire.kafka.schema import Fields


def join_transactions(session: KafkaSession, request: Request) -> Fields:
    """ADD_PARTITIONS_TO_TXN from version 4 on: partitions here are in another broker's ones."""
    session.require_administrator()
    results = []
    for wanted in request.fields["transactions"]:
        code = 0
        try:
            queues: list[Queue] = [
                (topic["name"], queue_of(session, topic["name"], partition))
                for topic in wanted["topics"]
                if topic["name"] != POSITIONS_TOPIC
                for partition in topic["partitions"]
            ]
            session.broker.transactions.branches.join(
                session.principal, wanted["producer_id"], wanted["producer_epoch"], queues
            )
        except OnelogError as error:
            code = error_code(error)
        results.append(
            {
                "transactional_id": wanted["transactional_id"],
                "topic_results": [
                    {
                        "name": topic["name"],
                        "results_by_partition": [
                            {"partition_index": each, "partition_error_code": code}
                            for each in topic["partitions"]
                        ],
                    }
                    for topic in wanted["topics"]
                ],
            }
        )
    return {"error_code": 0, "results_by_transaction": results}


def write_txn_markers(session: KafkaSession, request: Request) -> Fields | None:
    """WRITE_TXN_MARKERS: transactions have ended; answered when that is as safe as configured."""
    session.require_administrator()
    markers = request.fields["markers"]
    codes: dict[int, int] = {}
    left = [len(markers)]

    def ended(number: int, error: OnelogError | None) -> None:
        codes[number] = 0 if error is None else error_code(error)
        left[0] -= 1
        if not left[0]:
            session.answer(request, _marked(markers, codes))

    if not markers:
        return {"markers": []}
    for number, each in enumerate(markers):
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


def _marked(markers: list[Fields], codes: dict[int, int]) -> Fields:
    return {
        "markers": [
            {
                "producer_id": marker["producer_id"],
                "topics": [
                    {
                        "name": topic["name"],
                        "partitions": [
                            {"partition_index": each, "error_code": codes[number]}
                            for each in topic["partition_indexes"]
                        ],
                    }
                    for topic in marker["topics"]
                ],
            }
            for number, marker in enumerate(markers)
        ]
    }


HANDLERS: dict[ApiKey, Handler] = {ApiKey.WRITE_TXN_MARKERS: write_txn_markers}
