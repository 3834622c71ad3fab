"""Transactions over partitions, and groups, of several brokers: the coordinator tells the others.

    add         recorded here (`InPlaceTransaction.others`), then sent to the partitions' brokers
    end         decided and recorded here, then told to them, again and again until all know it;
                only then it is carried out here, and answered

In both it is Kafka's own requests that brokers send each other. Where positions of a group go is,
as in Kafka, a partition of a topic: the slot that the group falls into.

Invariant: a broker that has a part in a transaction is known to the coordinator, durably.
"""

import asyncio
import contextlib
import logging
from collections.abc import Iterable

from onelog.core.access import SELF
from onelog.core.broker import Broker
from onelog.core.transactions.producers import Queue
from onelog.core.transactions.transactional_ids import InPlaceTransaction, TransactionState
from onelog.errors import NotCoordinatorError, OnelogError
from onelog.gateways.kafka.cluster.agreement import Agreement
from onelog.gateways.kafka.cluster.view import slot_of
from onelog.wire.kafka.codes import ApiKey
from onelog.wire.kafka.schema import Fields

log = logging.getLogger(__name__)

POSITIONS_TOPIC = "__consumer_offsets"
"""Its partitions are slots; there is no such topic."""
RETRY_SECONDS = 0.5
WAIT_SECONDS = 10.0
ADD_VERSION, END_VERSION = 4, 1
"""Of the requests that brokers send each other."""

_End = tuple[str, int, int, TransactionState]


class Spread:
    """The transactions that this broker coordinates, and others have a part in."""

    def __init__(self, agreement: Agreement, broker: Broker) -> None:
        self._agreement = agreement
        self._cluster = agreement.cluster
        self._broker = broker
        self._telling: dict[_End, asyncio.Event] = {}
        """Ends that others are being told of."""
        self._reported: set[_End] = set()
        cluster = self._cluster
        broker.admin.join_cluster(
            cluster.node_id, cluster.require_coordinator, cluster.partitions, self._tell_others
        )

    def node_of(self, queue: Queue) -> int:
        """The broker that has a part in a transaction."""
        topic, partition = queue
        if topic == POSITIONS_TOPIC:
            node = self._cluster.coordinator_of_slot(partition)
            if node is None:
                raise NotCoordinatorError(f"nobody looks after slot {partition}")
            return node
        placed = self._cluster.placed.get(topic)
        nodes = [] if placed is None else placed.nodes
        # A topic that was deleted is nobody's any more.
        return nodes[partition] if partition < len(nodes) else self._cluster.node_id

    def _by_node(self, queues: Iterable[Queue]) -> dict[int, dict[str, list[int]]]:
        found: dict[int, dict[str, list[int]]] = {}
        for queue in sorted(queues):
            node = self.node_of(queue)
            if node != self._cluster.node_id:
                found.setdefault(node, {}).setdefault(queue[0], []).append(queue[1])
        return found

    # -- adding --------------------------------------------------------------------------------

    async def slot(self, group: str) -> Queue:
        """Where positions of a group go, after somebody was found to look after it."""
        cluster = self._cluster
        if cluster.coordinator(group) is None:

            def propose() -> Fields:
                cluster.propose_coordinator(group, {})
                return {}

            await self._agreement.agree(propose, again=False)
        return POSITIONS_TOPIC, slot_of(group)

    async def add(self, name: str, producer_id: int, epoch: int, queues: Iterable[Queue]) -> None:
        """Tell the brokers of partitions that they are in a transaction; raises if one refuses."""
        requests = [
            self._agreement.peers.ask(
                node,
                ApiKey.ADD_PARTITIONS_TO_TXN,
                ADD_VERSION,
                {
                    "transactions": [
                        {
                            "transactional_id": name,
                            "producer_id": producer_id,
                            "producer_epoch": epoch,
                            "verify_only": False,
                            "topics": [
                                {"name": topic, "partitions": numbers}
                                for topic, numbers in topics.items()
                            ],
                        }
                    ]
                },
            )
            for node, topics in self._by_node(queues).items()
        ]
        for answer in await asyncio.gather(*requests):
            for transaction in answer["results_by_transaction"]:
                for topic in transaction["topic_results"]:
                    for each in topic["results_by_partition"]:
                        if code := each["partition_error_code"]:
                            raise NotCoordinatorError(f"a broker has no part in it: error {code}")

    # -- ending --------------------------------------------------------------------------------

    def _tell_others(self, transaction: InPlaceTransaction) -> bool:
        end = transaction.name, transaction.producer_id, transaction.epoch, transaction.state
        if end in self._reported:
            self._reported.discard(end)
            return False
        if end not in self._telling:
            self._telling[end] = asyncio.Event()
            self._agreement.spawn(self._tell(transaction, end))
        return True

    async def _tell(self, transaction: InPlaceTransaction, end: _End) -> None:
        """Tell all that have a part in a transaction how it ended, however long that takes."""
        left = transaction.others
        try:
            while True:
                try:
                    await self._decided()
                    parts = self._by_node(left)
                    requests = (self._mark(node, transaction, each) for node, each in parts.items())
                    if all(await asyncio.gather(*requests)):
                        break
                except OnelogError as error:
                    log.info("the end of %r is told again: %s", transaction.name, error)
                await asyncio.sleep(RETRY_SECONDS)
            self._reported.add(end)
            self._broker.transactions.in_place.finish(SELF, transaction.name)
        except OnelogError as error:
            log.error("the end of %r: %s", transaction.name, error)
        finally:
            self._telling.pop(end).set()

    async def _decided(self) -> None:
        """Wait until an end cannot be forgotten: who is told of it keeps to it."""
        decided: asyncio.Future[OnelogError | None] = asyncio.get_running_loop().create_future()
        self._broker.publish.when_durable(
            lambda error: None if decided.done() else decided.set_result(error)
        )
        if (error := await decided) is not None:
            raise error

    async def _mark(
        self, node: int, transaction: InPlaceTransaction, topics: dict[str, list[int]]
    ) -> bool:
        """Tell one broker; whether it knows now."""
        marker: Fields = {
            "producer_id": transaction.producer_id,
            "producer_epoch": transaction.epoch,
            "transaction_result": transaction.state is TransactionState.COMMITTING,
            "topics": [
                {"name": topic, "partition_indexes": numbers} for topic, numbers in topics.items()
            ],
            "coordinator_epoch": 0,
        }
        try:
            answer = await self._agreement.peers.ask(
                node, ApiKey.WRITE_TXN_MARKERS, END_VERSION, {"markers": [marker]}
            )
        except OnelogError as error:
            log.info("broker %d does not know the end of %r: %s", node, transaction.name, error)
            return False
        return not any(
            each["error_code"]
            for marked in answer["markers"]
            for topic in marked["topics"]
            for each in topic["partitions"]
        )

    async def reported(self, name: str) -> None:
        """Wait until all know how a transaction ended; not for ever, if one of them is away."""
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(WAIT_SECONDS):
                for done in [done for end, done in self._telling.items() if end[0] == name]:
                    await done.wait()
