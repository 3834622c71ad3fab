"""Brokers, as Spark's processes ask and read them: plain calls, with connections that are kept.

Drivers ask where queues begin and end; workers pull ranges of queues, as the bytes of whole
records, megabytes at a time, with the next answer on its way while the last one is decoded. A
worker is used for many tasks, so there is one `Brokers` per process and cluster.

Invariants: a question that fails because nobody answers is asked again until `retryTimeoutMs` is
over, and then raises an error that names the option; reading a range gives all of its messages, in
their order, or raises or reports what is missing.
"""

import asyncio
import time
from collections.abc import Callable, Coroutine, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import Future
from typing import Any, TypeVar

from onelog.client.connection import background
from onelog.client.connection.instance import Instance
from onelog.client.connection.nodes import at_once
from onelog.client.connection.routes import Route
from onelog.client.message import Queue
from onelog.errors import (
    GroupNotFoundError,
    NameserversUnreachableError,
    OnelogError,
    PeerClosedError,
    PeerTimeoutError,
    TopicNotFoundError,
    TransactionOpenError,
    WireError,
)
from onelog.message import Buffer
from onelog.record.decode import decode_records
from onelog.rocketmq.names import TOOLS_GROUP
from onelog.spark.link import Link
from onelog.spark.read.offsets import Extent, QueueRange, Snapshot, lose, queue_name
from onelog.wire.remoting import fields
from onelog.wire.remoting.codes import RequestCode, ResponseCode
from onelog.wire.remoting.command import Command
from onelog.wire.remoting.fields import AS_STORED, BULK_BYTES, STABLE_ENDS, TOPIC_CREATED_MS
from onelog.wire.remoting.stats import QueueEntries, TopicStatsTable

PULL_BYTES = 2 << 20
PULL_COUNT_MAX = 1 << 16
SAMPLE_RECORDS = 64
PAUSE_SECONDS, PAUSE_SECONDS_MAX = 0.1, 2.0

_WITH_SUBSCRIPTION = 4
_PULL = {
    "sysFlag": str(_WITH_SUBSCRIPTION),
    "commitOffset": "0",
    "suspendTimeoutMillis": "0",
    "subVersion": "0",
    "expressionType": "TAG",
}
_UNREACHABLE = (PeerClosedError, PeerTimeoutError, NameserversUnreachableError)
_PULL_ANSWERS = frozenset(
    {
        ResponseCode.PULL_NOT_FOUND.value,
        ResponseCode.PULL_RETRY_IMMEDIATELY.value,
        ResponseCode.PULL_OFFSET_MOVED.value,
    }
)
_NO_POSITION = frozenset({ResponseCode.QUERY_NOT_FOUND.value})
_NO_QUEUE = frozenset({ResponseCode.SYSTEM_ERROR.value})
_OFFSET_RESET = "OFFSET_RESET"
_REMOVED = "MESSAGE_WAS_REMOVING"

T = TypeVar("T")


class Brokers:
    """The brokers of one cluster."""

    def __init__(self, link: Link) -> None:
        self.link = link
        self.instance = Instance(link.client_options())
        self._nodes = self.instance.nodes
        background.run(self.instance.start())

    @property
    def is_forked(self) -> bool:
        """Whether this was made before the process forked, and is of no use here."""
        return self.instance.is_forked

    def close(self) -> None:
        background.run(self.instance.close())

    # -- questions -----------------------------------------------------------------------------

    def topics(self) -> tuple[str, ...]:
        from onelog.client.admin.admin import AsyncAdmin
        from onelog.client.admin.topics import TopicKind

        async def ask() -> tuple[str, ...]:
            names = await AsyncAdmin(self._nodes).topics.names()
            return tuple(each.name for each in names if each.kind is TopicKind.USER)

        return self._ask(ask)

    def snapshot(self, topics: Sequence[str], *, missing_ok: bool = False) -> Snapshot:
        """What the readable queues of these topics hold."""

        async def ask() -> Snapshot:
            routes = await at_once(lambda topic: self._route(topic, missing_ok), topics)
            sources = [
                (route, broker)
                for route in routes
                if route is not None
                for broker in sorted({queue.broker for queue in route.read_queues})
            ]
            found = await at_once(lambda source: self._extents(*source), sources)
            extents: dict[Queue, Extent] = {}
            incarnations: dict[tuple[str, str], int] = {}
            written: dict[Queue, int] = {}
            for (route, broker), (held, stable, created_ms) in zip(sources, found, strict=True):
                for queue, (start, end) in held.items():
                    extents[queue] = Extent(start, max(start, min(end, stable.get(queue, end))))
                    if extents[queue].end < end:
                        written[queue] = end
                if created_ms:
                    incarnations[route.topic, broker] = created_ms
            return Snapshot(extents, incarnations, written=written)

        return self._ask(ask)

    def offsets_at(self, queues: Iterable[Queue], time_ms: int) -> dict[Queue, int]:
        """The first offset of each queue whose message was stored at a time or later."""

        async def at(queue: Queue) -> int:
            answer = await self.ask_about(
                queue, RequestCode.SEARCH_OFFSET_BY_TIMESTAMP, timestamp=str(time_ms)
            )
            return fields.number(answer.ext, "offset")

        return self._each(queues, at)

    def group_positions(self, group: str, queues: Iterable[Queue]) -> dict[Queue, int]:
        """Where a consumer group is; queues in which it has no position are left out."""

        async def position(queue: Queue) -> int:
            answer = await self.ask_about(
                queue,
                RequestCode.QUERY_CONSUMER_OFFSET,
                _NO_POSITION,
                consumerGroup=group,
                setZeroIfNotFound="false",
            )
            return fields.number(answer.ext, "offset", -1) if answer.code == 0 else -1

        return {
            queue: offset for queue, offset in self._each(queues, position).items() if offset >= 0
        }

    def record_bytes(self, starts: Mapping[Queue, int]) -> dict[Queue, float]:
        """About how many bytes one message has in each queue, from an offset on."""

        async def sample(queue: Queue) -> float:
            answer = await self.ask_about(
                queue,
                RequestCode.QUERY_CONSUME_QUEUE,
                _NO_QUEUE,
                index=str(starts[queue]),
                count=str(SAMPLE_RECORDS),
            )
            entries = QueueEntries.decode(answer.body).queue_data if answer.body else []
            records = {each.physic_offset: each.physic_size for each in entries}
            return sum(records.values()) / len(entries) if entries else 0.0

        return self._each(starts, sample)

    def store_times(self, positions: Mapping[Queue, int]) -> dict[Queue, int]:
        """When the first message of each queue from an offset on was stored, where there is one."""

        async def first(queue: Queue) -> int:
            answer = await self.ask_about(
                queue,
                RequestCode.PULL_MESSAGE,
                _PULL_ANSWERS,
                **_PULL,
                consumerGroup=TOOLS_GROUP,
                subscription="*",
                queueOffset=str(positions[queue]),
                maxMsgNums="1",
            )
            found = decode_records(answer.body) if answer.code == 0 else []
            return found[0].store_ms if found else -1

        return {queue: ms for queue, ms in self._each(positions, first).items() if ms >= 0}

    def commit(self, group: str, positions: Mapping[Queue, int]) -> None:
        """Tell the brokers how far a consumer group is."""

        async def write(queue: Queue) -> None:
            await self.ask_about(
                queue,
                RequestCode.UPDATE_CONSUMER_OFFSET,
                consumerGroup=group,
                commitOffset=str(positions[queue]),
            )

        try:
            self._each(positions, write)
        except GroupNotFoundError as error:
            raise _no_group(group, error) from None

    def _each(
        self, queues: Iterable[Queue], ask: Callable[[Queue], Coroutine[Any, Any, T]]
    ) -> dict[Queue, T]:
        wanted = list(queues)
        answers = self._ask(lambda: at_once(ask, wanted))
        return dict(zip(wanted, answers, strict=True))

    async def ask_about(
        self, queue: Queue, code: RequestCode, accept: frozenset[int] = frozenset(), **ext: str
    ) -> Command:
        """What the broker of a queue says to a request that is about it."""
        route = await self.instance.routes.get(queue.topic)
        about = {"topic": queue.topic, "queueId": str(queue.queue_id), **ext}
        return await self.instance.ask_reader(route, queue.broker, code, about, b"", accept)

    async def _route(self, topic: str, missing_ok: bool) -> Route | None:
        routes = self.instance.routes
        try:
            return await routes.refresh(topic)
        except NameserversUnreachableError:
            # Brokers outlive name servers: what is known already is good enough.
            known = routes.known(topic)
            if known is None:
                raise
            return known
        except TopicNotFoundError:
            if missing_ok:
                return None
            raise

    async def _extents(
        self, route: Route, broker: str
    ) -> tuple[dict[Queue, Extent], dict[Queue, int], int]:
        """What queues hold, where transactions are open in them, and when the topic was made."""
        code = RequestCode.GET_TOPIC_STATS_INFO
        answer = await self.instance.ask_reader(route, broker, code, {"topic": route.topic})
        readable = {queue.queue_id for queue in route.read_queues if queue.broker == broker}
        held = {
            Queue(route.topic, broker, queue.queue_id): Extent(
                max(0, found.min_offset), max(0, found.min_offset, found.max_offset)
            )
            for queue, found in TopicStatsTable.decode_answer(answer.body).offset_table.items()
            if queue.queue_id in readable
        }
        pairs = [each.split("=") for each in answer.ext.get(STABLE_ENDS, "").split(",") if each]
        stable = {Queue(route.topic, broker, int(queue_id)): int(end) for queue_id, end in pairs}
        return held, stable, fields.number(answer.ext, TOPIC_CREATED_MS, 0)

    def _ask(self, ask: Callable[[], Coroutine[Any, Any, T]]) -> T:
        return patiently(self.link, ask, _UNREACHABLE)

    # -- reading -------------------------------------------------------------------------------

    def read(
        self,
        wanted: QueueRange,
        *,
        group: str | None = None,
        tags: Iterable[str] | None = None,
        fail_on_data_loss: bool = True,
    ) -> Iterator[Buffer]:
        """The records of a range, whole ones; with `tags`, those that may have one of them.

        The first may begin before the range, the last end behind it.
        """
        expression = "||".join(tags) if tags is not None else "*"
        reading = _Reading(self, wanted, group or TOOLS_GROUP, expression, fail_on_data_loss)
        try:
            yield from reading.run()
        except GroupNotFoundError as error:
            raise _no_group(group or TOOLS_GROUP, error) from None
        finally:
            reading.close()


class Patience:
    """How long to go on trying, with growing pauses."""

    def __init__(self, link: Link) -> None:
        self._link = link
        self._began = time.monotonic()
        self._pause = PAUSE_SECONDS

    def wait(self) -> bool:
        """Wait a moment; False, at once, if time is up."""
        limit = self._link.retry_timeout_ms / 1000
        if time.monotonic() - self._began + self._pause > limit:
            return False
        time.sleep(self._pause)
        self._pause = min(2 * self._pause, PAUSE_SECONDS_MAX)
        return True

    def wait_or_raise(self, error: OnelogError) -> None:
        """Wait a moment; or raise the error, with advice, if time is up."""
        if not self.wait():
            raise type(error)(
                f"{error}; given up after {self._link.retry_timeout_ms} ms (option "
                f"retryTimeoutMs). Start the brokers, or correct the option nameserver, which is "
                f"{self._link.nameserver}"
            ) from None


def patiently(
    link: Link, ask: Callable[[], Coroutine[Any, Any, T]], away: tuple[type[OnelogError], ...]
) -> T:
    """Ask until somebody answers, or `retryTimeoutMs` is over; `away`: nobody has answered."""
    patience = Patience(link)
    while True:
        try:
            return background.run(ask())
        except away as error:
            patience.wait_or_raise(error)


class _Reading:
    """One range of one queue on its way."""

    def __init__(
        self, brokers: Brokers, wanted: QueueRange, group: str, expression: str, fail: bool
    ) -> None:
        self._brokers = brokers
        self._wanted = wanted
        self._fail = fail
        self._fixed = {
            **_PULL,
            "consumerGroup": group,
            "subscription": expression,
            BULK_BYTES: str(PULL_BYTES),
            AS_STORED: "true",
        }
        self._ahead: Future[Command] | None = None

    def close(self) -> None:
        """Forget the answer that nobody waits for any more."""
        if self._ahead is not None:
            self._ahead.cancel()

    def run(self) -> Iterator[Buffer]:
        offset, end = self._wanted.start, self._wanted.end
        undecided: Patience | None = None
        self._ask(offset)
        while offset < end:
            answer = self._answer(offset)
            if answer is None:
                return
            following = fields.number(answer.ext, "nextBeginOffset")
            found = answer.code == ResponseCode.SUCCESS
            if not found and self._is_undecided(answer, offset, following):
                undecided = undecided or Patience(self._brokers.link)
                if not undecided.wait():
                    raise self._open_transaction(answer, offset)
                following = offset
            elif not found:
                following = self._pass_over(answer, offset, following)
            elif following <= offset:
                raise WireError(f"after offset {offset} the broker wants to go on at {following}")
            if following < end:
                self._ask(following)
            if found:
                yield answer.body
            undecided = None if following > offset else undecided
            offset = following

    def _ask(self, offset: int) -> None:
        count = min(self._wanted.end - offset, PULL_COUNT_MAX)
        asking = self._brokers.ask_about(
            self._wanted.queue,
            RequestCode.PULL_MESSAGE,
            _PULL_ANSWERS,
            **self._fixed,
            queueOffset=str(offset),
            maxMsgNums=str(count),
        )
        self._ahead = asyncio.run_coroutine_threadsafe(asking, background.loop())

    def _answer(self, offset: int) -> Command | None:
        """What the broker says; None if the topic is gone, and that is accepted."""
        patience = Patience(self._brokers.link)
        while True:
            assert self._ahead is not None
            try:
                return self._ahead.result()
            except _UNREACHABLE as error:
                patience.wait_or_raise(error)
            except TopicNotFoundError as error:
                # A broker that is started again is away from the name servers for a moment.
                if not patience.wait():
                    topic = self._wanted.queue.topic
                    lose(f"topic {topic} was deleted while it was read: {error}", fail=self._fail)
                    return None
            background.run(self._brokers.instance.routes.refresh_quietly(self._wanted.queue.topic))
            self._ask(offset)

    def _is_undecided(self, answer: Command, offset: int, following: int) -> bool:
        """Whether the broker has the next message, and does not give it yet."""
        ext = answer.ext
        return (
            answer.code != ResponseCode.PULL_RETRY_IMMEDIATELY
            and answer.remark != _OFFSET_RESET
            and following == offset
            and fields.number(ext, "minOffset", 0) <= offset < fields.number(ext, "maxOffset", 0)
        )

    def _open_transaction(self, answer: Command, offset: int) -> TransactionOpenError:
        queue, ends = self._wanted.queue, self._wanted.end
        return TransactionOpenError(
            f"offset {offset} of queue {queue_name(queue)} of {queue.topic}, which was to be read "
            f"up to {ends}, is in a transaction that has not ended: nothing is lost. Run the query "
            "again when its producer has committed or aborted it"
        )

    def _pass_over(self, answer: Command, offset: int, following: int) -> int:
        """Where to go on after an answer without messages; raises if some are missing."""
        if answer.remark == _OFFSET_RESET:
            return offset  # Somebody moved the group; this query goes by its own offsets.
        if answer.code == ResponseCode.PULL_RETRY_IMMEDIATELY and answer.remark != _REMOVED:
            return max(following, offset + 1)  # None of them has one of the tags.
        end = self._wanted.end
        go_on = min(following, end) if following > offset else end
        lose(
            f"offsets {offset} to {go_on - 1} of queue {queue_name(self._wanted.queue)} of "
            f"{self._wanted.queue.topic} are gone; the broker has "
            f"{answer.ext.get('minOffset', '?')} to {answer.ext.get('maxOffset', '?')}",
            fail=self._fail,
        )
        return go_on


def _no_group(group: str, error: OnelogError) -> GroupNotFoundError:
    return GroupNotFoundError(
        f"option group: {error}. Create it (onelog group create {group}), or let brokers create "
        "groups that they do not know (broker.auto_create_groups)"
    )


_connected: dict[Link, Brokers] = {}


def connect(link: Link) -> Brokers:
    """The brokers of a cluster; connections are kept for as long as the process lives."""
    found = _connected.get(link)
    if found is None or found.is_forked:
        found = _connected[link] = Brokers(link)
    return found


def disconnect() -> None:
    """Close all connections of this process."""
    while _connected:
        _, brokers = _connected.popitem()
        if not brokers.is_forked:
            brokers.close()
