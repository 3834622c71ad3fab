"""Clients that send, read, lease and commit, at whichever node takes their requests.

Every body is sent once and is never the same as another, so that what comes of it can be told from
the log alone. A request that fails may have been done all the same; only an answer is a promise.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

from onelog.core.access import SELF
from onelog.core.broker import Broker
from onelog.core.catalog.topics import TopicConfig
from onelog.core.cursors.fetch import Cursor, Result, allowed
from onelog.core.durable.waiting import ANY_QUEUE
from onelog.core.queues.lending import Leased
from onelog.core.transactions.transactional_ids import Incarnation
from onelog.errors import OnelogError, TopicExistsError, TopicNotFoundError
from onelog.message import Appended, NewMessage, NewRun, encode_properties
from onelog.record.decode import decode_messages
from onelog.rocketmq.sent_properties import intent_of
from tests.simulation.checks import OWN, TIMED_TOPIC, Promises
from tests.simulation.kernel import BrokenError, Kernel
from tests.simulation.node import Node

TOPIC, QUEUES = "orders", 2
GROUP, LEASERS, PRODUCERS = "readers", "leasers", "payers"
LEASE_MS = 11_000
TIMED_MS_MAX = 4_000
PAYERS, PAY_TOPIC = ("payer 1", "payer 2"), "payments"
"""Transactional ids, and where their markers go."""
PAY_MS = 400


@dataclass(frozen=True)
class Held:
    """A message that a consumer has leased."""

    node: str
    topic: str
    queue_id: int
    offset: int
    handle: int
    body: bytes


@dataclass(eq=False)
class Clients:
    """All clients of a cluster."""

    kernel: Kernel
    nodes: Sequence[Node]
    promises: Promises
    after: Callable[[Node], None]
    """To be called before an answer is compared with the settled log."""
    acknowledged: Callable[[Node, str], None] = lambda node, mastership: None
    """Told of every answer that is a promise, and as what the node was when it was asked."""
    pause_us: float = 8_000
    answers: int = 0
    refusals: int = 0
    _count: int = 0
    _held: list[Held] = field(default_factory=list)
    _halves: list[tuple[bytes, Appended]] = field(default_factory=list)
    _payers: dict[str, Incarnation] = field(default_factory=dict)
    _favourite: int = 0

    def __post_init__(self) -> None:
        self._works: list[tuple[Callable[[Node, Broker], None], int]] = [
            (self._send, 30),
            (self._send_many, 6),
            (self._send_timed, 8),
            (self._begin, 6),
            (self._end, 6),
            (self._fetch, 14),
            (self._lease, 12),
            (self._acknowledge, 14),
            (self._commit, 5),
            (self._ask_position, 3),
            (self._make_topic, 2),
            (self._pay, 12),
        ]
        self.is_quiet = False

    def begin(self) -> None:
        """Go on working, for ever."""
        self.kernel.after(
            self.kernel.random.expovariate(1) * self.pause_us, self.kernel.outside, self._work
        )

    def _work(self) -> None:
        self.begin()
        if self.is_quiet:
            return
        random = self.kernel.random
        number = self._favourite if random.random() < 0.85 else random.randrange(len(self.nodes))
        node = self.nodes[number]
        if not node.is_up or node.broker is None:
            self._favourite = random.randrange(len(self.nodes))
            return
        (work,) = random.choices(*zip(*self._works, strict=True))
        self.try_at(node, work)

    def try_at(self, node: Node, work: Callable[[Node, Broker], None]) -> None:
        """Have a node do something; it may refuse."""
        broker = node.broker
        assert broker is not None
        try:
            node.run(lambda: work(node, broker))
        except TopicNotFoundError:
            self._make_topics(node, broker)
        except OnelogError as error:
            self._refused(node, error)

    def _refused(self, node: Node, error: OnelogError) -> None:
        self.refusals += 1
        self._favourite = self.kernel.random.randrange(len(self.nodes))
        self.kernel.note(node.name, "refused", type(error).__name__, error)

    def _make_topics(self, node: Node, broker: Broker) -> None:
        def make() -> None:
            for name, queues in ((TOPIC, QUEUES), (TIMED_TOPIC, 1), (PAY_TOPIC, QUEUES)):
                if node.core.topics.get(name) is None:
                    broker.topics.create(SELF, TopicConfig(name, queues, queues))
            for group in (GROUP, LEASERS):
                node.core.groups.require(group)

        try:
            node.run(make)
        except OnelogError as error:
            self._refused(node, error)

    def _body(self, kind: str) -> bytes:
        self._count += 1
        size = self.kernel.random.choice((0, 10, 100, 100, 700))
        return b"%b%d;" % (kind.encode(), self._count) + b"x" * size

    def _told(
        self, node: Node, what: str, promise: Callable[[Any], None]
    ) -> Callable[[Any, Any, OnelogError | None], None]:
        """What becomes of the answer to a request."""
        mastership = node.mastership

        def on_stored(token: Any, appended: Any, error: OnelogError | None) -> None:
            if error is not None:
                self._refused(node, error)
                return
            self.answers += 1
            self.kernel.note(node.name, "acknowledged", what, appended)
            self.acknowledged(node, mastership)
            self.after(node)
            promise(appended)

        return on_stored

    # -- sending ---------------------------------------------------------------------------------

    def _message(
        self, node: Node, topic: str, queue_id: int, body: bytes, **properties: str
    ) -> NewMessage:
        flags = 4 if "TRAN_MSG" in properties else 0
        encoded = encode_properties({"UNIQ_KEY": body.partition(b";")[0].decode(), **properties})
        now_ms = node.wall.now_ms()
        return NewMessage(topic, queue_id, body, encoded, sys_flag=flags, born_ms=now_ms)

    def _publish(
        self, node: Node, broker: Broker, message: NewMessage, promise: Callable[[Any], None]
    ) -> None:
        what = bytes(message.body).partition(b";")[0].decode()
        self.kernel.note(node.name, "send", what)
        intent = intent_of(message.properties, node.wall)
        broker.publish.send(SELF, message, self._told(node, what, promise), None, intent)

    def _send(self, node: Node, broker: Broker) -> None:
        for _ in range(self.kernel.random.choice((1, 1, 2, 5))):
            queue_id, body = self.kernel.random.randrange(QUEUES), self._body("s")

            def promise(place: Appended, body: bytes = body, queue_id: int = queue_id) -> None:
                self.promises.was_sent(body, TOPIC, queue_id, place)

            self._publish(node, broker, self._message(node, TOPIC, queue_id, body), promise)

    def _send_many(self, node: Node, broker: Broker) -> None:
        bodies = [self._body("b") for _ in range(self.kernel.random.randrange(1, 8))]
        queue_id = self.kernel.random.randrange(QUEUES)
        run = NewRun(TOPIC, queue_id, [(0, body, b"") for body in bodies], b"".join(bodies))

        def promise(placed: Any) -> None:
            for number, (body, at) in enumerate(zip(bodies, placed.log_offsets, strict=True)):
                place = Appended(at, placed.queue_offset + number, 0)
                self.promises.was_sent(body, TOPIC, queue_id, place)

        what = f"{bodies[0][:9]!r} and {len(bodies) - 1} more"
        self.kernel.note(node.name, "send", what)
        broker.publish.send(SELF, run, self._told(node, what, promise))

    def _send_timed(self, node: Node, broker: Broker) -> None:
        body, delay_ms = self._body("t"), self.kernel.random.randrange(1, TIMED_MS_MAX)
        due_ms = node.wall.now_ms() + delay_ms

        def promise(place: Appended) -> None:
            self.promises.is_there(body, int(place.log_offset))
            self.promises.timed[body] = due_ms

        message = self._message(node, TIMED_TOPIC, 0, body, TIMER_DELAY_MS=str(delay_ms))
        self._publish(node, broker, message, promise)

    def _begin(self, node: Node, broker: Broker) -> None:
        body, queue_id = self._body("h"), self.kernel.random.randrange(QUEUES)
        message = self._message(node, TOPIC, queue_id, body, TRAN_MSG="true", PGROUP=PRODUCERS)

        def promise(place: Appended) -> None:
            self.promises.is_there(body, int(place.log_offset))
            self._halves.append((body, place))

        self._publish(node, broker, message, promise)

    def _end(self, node: Node, broker: Broker) -> None:
        if not self._halves:
            return
        which = self.kernel.random.randrange(len(self._halves))
        body, place = self._halves.pop(which)
        commits = self.kernel.random.random() < 0.7
        ended = self.promises.committed if commits else self.promises.rolled_back
        what = f"{'commit' if commits else 'roll back'} {body.partition(b';')[0].decode()}"
        self.kernel.note(node.name, "end", what)
        end = broker.transactions.commit_half if commits else broker.transactions.roll_back_half
        end(
            SELF,
            PRODUCERS,
            int(place.queue_offset),
            int(place.log_offset),
            self._told(node, what, lambda _: ended.add(body)),
        )

    def _pay(self, node: Node, broker: Broker) -> None:
        """Somebody takes a transactional id over, begins a transaction, or ends one."""
        random, in_place = self.kernel.random, broker.transactions.in_place
        if not node.mastership:
            return  # A follower tells of what has ended, and promises nothing.
        name = random.choice(PAYERS)
        mine = self._payers.get(name)
        if mine is None or random.random() < 0.2:
            mastership = node.mastership
            taken = in_place.begin(SELF, name, PAY_MS)

            def safe(error: OnelogError | None) -> None:
                if error is not None:
                    self._refused(node, error)
                    return
                self.answers += 1
                self.kernel.note(node.name, "acknowledged", name, taken)
                self.acknowledged(node, mastership)
                self._payers[name] = taken
                self.promises.was_taken_over(taken)

            broker.publish.when_durable(safe)
            return
        try:
            if random.random() < 0.6:
                in_place.add_queues(SELF, name, *mine, [(PAY_TOPIC, random.randrange(QUEUES))])
            else:
                told = self._told(node, f"the end of {name}", lambda _: None)
                in_place.end(
                    SELF,
                    name,
                    *mine,
                    random.random() < 0.7,
                    lambda producer, error: told(None, producer, error),
                )
        except OnelogError:
            self._payers.pop(name, None)  # It may be another's, or was open for too long.
            raise

    # -- reading ---------------------------------------------------------------------------------

    def _fetch(self, node: Node, broker: Broker) -> None:
        random = self.kernel.random
        topic, queue_id = random.choice(((TOPIC, 0), (TOPIC, 1), (TIMED_TOPIC, 0)))
        end = node.core.store.max_offset(topic, queue_id)
        offset = max(0, end - random.choice((0, 1, 5, 20, 10_000)))

        def fetched(token: Any, results: Sequence[Result]) -> None:
            self.after(node)
            for result in results:
                if isinstance(result, OnelogError):
                    self._refused(node, result)
                    continue
                for part in result.slices:
                    for message in decode_messages(part):
                        body, place = bytes(message.body), int(message.queue_offset)
                        self.promises.was_read(topic, queue_id, place, body)

        cursor = Cursor(GROUP, topic, queue_id, offset)
        limits = allowed(broker.admin.config, 16, 0, 0)
        broker.cursors.fetch(SELF, [cursor], limits, random.choice((0, 500)), fetched, self)

    def _lease(self, node: Node, broker: Broker) -> None:
        count = self.kernel.random.randrange(1, 10)

        def leased(token: Any, found: Leased | OnelogError) -> None:
            if isinstance(found, OnelogError):
                self._refused(node, found)
                return
            self.after(node)
            for part in found.parts:
                records = [each for one in part.records for each in decode_messages(one)]
                for offset, message in zip(part.offsets, records, strict=True):
                    body = bytes(message.body)
                    self.kernel.note(node.name, "leased", body[:9], part.topic, offset)
                    if node.decides:  # A follower lends in memory, to bridge the time.
                        place = (part.topic, part.queue_id, offset)
                        self.promises.was_leased(body, place, int(message.log_offset))
                    held = Held(node.name, part.topic, part.queue_id, offset, found.handle, body)
                    self._held.append(held)

        request = node.pop.request(LEASERS, TOPIC, ANY_QUEUE, count, LEASE_MS)
        broker.queues.lease(SELF, request, self.kernel.random.choice((0, 300)), leased, self)

    def _acknowledge(self, node: Node, broker: Broker) -> None:
        held, self._held = self._held[-20:], []
        mine: list[Held] = []
        for each in held:
            if self.kernel.random.random() < 0.15:
                continue  # Its time will be up.
            try:
                broker.queues.acknowledge(
                    SELF, LEASERS, each.topic, each.queue_id, each.offset, each.handle
                )
            except OnelogError as error:
                self._refused(node, error)
            else:
                mine.append(each)
        if not mine:
            return
        mastership = node.mastership

        def safe(error: OnelogError | None) -> None:
            if error is not None:
                self._refused(node, error)
                return
            self.answers += 1
            self.kernel.note(node.name, "done", *(each.body[:9] for each in mine))
            if node.decides:
                self.acknowledged(node, mastership)
                for each in mine:
                    place = (each.topic, each.queue_id, each.offset)
                    self.promises.was_done(each.body, place, node.log_end())

        broker.queues.when_leases_safe(safe)

    def _commit(self, node: Node, broker: Broker) -> None:
        queue_id = self.kernel.random.randrange(QUEUES)
        place = (GROUP, TOPIC, queue_id)
        known = broker.cursors.query(SELF, *place) or 0
        end = node.core.store.max_offset(TOPIC, queue_id)
        offset = self.kernel.random.randint(known, max(known, end))
        broker.cursors.commit(SELF, *place, offset)
        mastership = node.mastership
        if not mastership:
            return  # A follower keeps it in memory, and promises nothing.
        node.core.offsets.flush()

        def safe(error: OnelogError | None) -> None:
            if error is not None:
                self._refused(node, error)
                return
            self.answers += 1
            self.kernel.note(node.name, "committed", *place, offset)
            self.acknowledged(node, mastership)
            positions = self.promises.positions
            positions[place] = max(positions.get(place, 0), offset)

        broker.publish.when_durable(safe)

    def _ask_position(self, node: Node, broker: Broker) -> None:
        if not node.mastership or node.core.follows or not self.promises.strict:
            return
        for place, offset in self.promises.positions.items():
            found = broker.cursors.query(SELF, *place)
            if found is None or found < offset:
                raise BrokenError(
                    f"{node.name}: {place} was committed at {offset}, and is at {found}"
                )

    def _make_topic(self, node: Node, broker: Broker) -> None:
        name = f"extra{self.kernel.random.randrange(12)}"
        known = node.core.topics.get(name)
        try:
            broker.topics.create(SELF, TopicConfig(name, 1, 1))
        except TopicExistsError:
            return
        except OnelogError:
            if known is None and node.core.topics.get(name) is not None:
                raise BrokenError(
                    f"{node.name}: topic {name} is there, though it was refused"
                ) from None
            raise
        mastership = node.mastership

        def safe(error: OnelogError | None) -> None:
            if error is None and mastership:
                self.acknowledged(node, mastership)
                self.promises.topics.add(name)

        broker.publish.when_durable(safe)


assert all(len(each) == 1 for each in OWN)
