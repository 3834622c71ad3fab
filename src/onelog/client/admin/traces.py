"""What happened to a message, step by step: from its birth to its last consumer.

Three sources are put together. Stored copies, which all carry the unique key of the message, tell
of birth, storing, delays, retries and death, for every message. Traces, which clients write to a
topic of their own if they are told to, tell of sending, deliveries and how consumers ended. And the
positions of groups tell who is past the message at all.

Times are those of the machines that wrote them: a step may seem to be before its cause by as much
as clocks differ.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from enum import StrEnum

from onelog.client.admin.dead_letters import RESENT_FROM, origin_topic
from onelog.client.admin.messages import TIME_MAX, Found, Messages
from onelog.client.admin.topics import Topics
from onelog.client.connection.address import host_text
from onelog.client.connection.nodes import Failure, at_once
from onelog.client.synchronous import Part, waiting
from onelog.errors import (
    InvalidRequestError,
    MessageNotFoundError,
    OnelogError,
    TopicNotFoundError,
    WireError,
)
from onelog.message import Message, property_value
from onelog.names import DEAD_LETTER_PREFIX, HALF_TOPIC, RETRY_PREFIX, SCHEDULE_TOPIC, TIMER_TOPIC
from onelog.record.compression import unpacked_body
from onelog.rocketmq.names import TRACE_TOPIC
from onelog.wire.remoting.trace import (
    Consumed,
    Delivered,
    Outcome,
    Published,
    Recalled,
    TraceRecord,
    TransactionEnded,
    decode_trace,
)

_INNER_TOPICS = (SCHEDULE_TOPIC, TIMER_TOPIC, HALF_TOPIC)
"""Where messages wait that are not to be seen yet; REAL_TOPIC says where they go."""
_ANSWER_COUNT = 32
"""Messages in one answer by key, at the least; more may be left out."""
_ROUNDS_MAX = 64


class StepKind(StrEnum):
    """What happened. In the order in which steps of the same millisecond are shown."""

    BORN = "born"
    SENT = "sent"
    PREPARED = "prepared"
    DELAYED = "delayed"
    COMMITTED = "transaction ended"
    RECALLED = "recalled"
    STORED = "stored"
    DELIVERED = "delivered"
    CONSUMED = "consumed"
    FAILED = "failed"
    SENT_BACK = "sent back"
    RETRIED = "retried"
    DEAD = "dead"


_ORDER = {kind: number for number, kind in enumerate(StepKind)}


@dataclass(frozen=True, slots=True)
class Step:
    """One thing that happened. `retry` counts from 0, the first delivery; -1 where it does not
    matter. `took_ms` is None where nobody measured it."""

    kind: StepKind
    at_ms: int
    group: str = ""
    place: str = ""
    """The client's address, or broker/queue@offset."""
    retry: int = -1
    took_ms: int | None = None
    note: str = ""
    message_id: str = ""


@dataclass(frozen=True, slots=True)
class Fate:
    """Where a message stands with one consumer group. `at_ms` is when it came to that; 0 unknown.

    `deliveries` are those that were traced.
    """

    group: str
    state: str
    at_ms: int
    deliveries: int


@dataclass(frozen=True, slots=True)
class MessageTrace:
    """All that is known of one message."""

    unique_key: str
    topic: str
    first: Message | None
    """The message as it was stored first; None if the log has it no more."""
    born_ms: int
    steps: tuple[Step, ...]
    fates: tuple[Fate, ...]
    traced: bool
    """Whether clients wrote traces of it."""
    failures: tuple[Failure, ...]


@dataclass(frozen=True, slots=True)
class _Traced:
    """A record of a trace, and which client wrote it when."""

    record: TraceRecord
    client: str
    written_ms: int


@dataclass(eq=False)
class Traces:
    """Questions about what happened to messages."""

    _topics: Topics
    _messages: Messages

    async def trace(
        self, message_id: str, *, topic: str | None = None, trace_topic: str = TRACE_TOPIC
    ) -> MessageTrace:
        """The story of a message by its id, or by its unique key.

        The topic need not be said if the message is traced, or the id is that of a stored copy.
        """
        found = await self._by_id(message_id)
        unique_key = (found.message.unique_key if found else None) or message_id
        traced, failures = await self._traced(unique_key, trace_topic)
        name = topic or (_first_topic(found.message) if found else "") or _topic_of(traced)
        if not name:
            raise MessageNotFoundError(
                f"no message has the id {message_id}, and nothing was traced under it "
                "(if it is a unique key, say the topic)"
            )
        copies, missed = await self._copies(unique_key, name, _groups(traced))
        if found is not None and not any(found.message == each.message for _, each in copies):
            copies.append(("", found))
        if not copies and not traced:
            raise MessageNotFoundError(
                f"no message of topic {name} has the unique key {unique_key}"
            )
        firsts = [each for _, each in copies if each.message.topic == name]
        first = min(firsts, key=lambda each: each.message.store_ms, default=None)
        found_steps = dict.fromkeys([*_stored_steps(copies), *_traced_steps(traced)])
        steps = sorted(found_steps, key=lambda step: (step.at_ms, _ORDER[step.kind]))
        past, past_retry = await self._past(first), await self._past_retries(copies)
        return MessageTrace(
            unique_key,
            name,
            first.message if first else None,
            next((step.at_ms for step in steps if step.kind is StepKind.BORN), steps[0].at_ms),
            tuple(steps),
            _fates(steps, past, past_retry),
            bool(traced),
            tuple(dict.fromkeys((*failures, *missed))),
        )

    async def _by_id(self, message_id: str) -> Found | None:
        try:
            return await self._messages.by_id(message_id)
        except (MessageNotFoundError, InvalidRequestError):
            return None

    # Traces.

    async def _traced(
        self, unique_key: str, trace_topic: str
    ) -> tuple[list[_Traced], tuple[Failure, ...]]:
        """The records about a message, with the clients that wrote them."""
        bodies: dict[str, Found] = {}
        failures: dict[Failure, None] = {}
        end_ms = TIME_MAX
        for _ in range(_ROUNDS_MAX):
            try:
                search = await self._messages.by_key(trace_topic, unique_key, end_ms=end_ms)
            except (MessageNotFoundError, TopicNotFoundError):
                break
            failures.update(dict.fromkeys(search.failures))
            fresh = [each for each in search.messages if each.message.message_id not in bodies]
            bodies.update((each.message.message_id, each) for each in fresh)
            if not fresh or len(search.messages) < _ANSWER_COUNT:
                break
            # Each broker tells its newest ones first, and has told all down to its oldest.
            oldest: dict[str, int] = {}
            for each in search.messages:
                oldest.setdefault(each.broker, each.message.store_ms)
            end_ms = max(oldest.values())
        traced = []
        for each in bodies.values():
            client, written_ms = host_text(each.message.born_host), each.message.born_ms
            try:
                records = decode_trace(unpacked_body(each.message))
            except WireError as error:
                failures[Failure(each.message.message_id, str(error))] = None
                continue
            traced += [
                _Traced(record, client, written_ms)
                for record in records
                if unique_key in record.message_id.split(",")
            ]
        return traced, tuple(failures)

    # Copies.

    async def _copies(
        self, unique_key: str, topic: str, groups: set[str]
    ) -> tuple[list[tuple[str, Found]], tuple[Failure, ...]]:
        """Everything in the log with the unique key, each with the consumer group it is for."""
        try:
            groups = groups | set(await self._topics.groups(topic))
        except TopicNotFoundError:
            pass  # It was deleted; what became of its messages is elsewhere.
        wanted = {topic: "", **dict.fromkeys(_INNER_TOPICS, "")}
        for group in sorted(groups):
            names = (
                RETRY_PREFIX + group,
                DEAD_LETTER_PREFIX + group,
                f"{RETRY_PREFIX}{group}_{topic}",
                f"{RETRY_PREFIX}{group}+{topic}",
            )
            wanted.update(dict.fromkeys(names, group))
        existing = {each.name for each in await self._topics.names()}

        async def search(name: str) -> tuple[list[tuple[str, Found]], tuple[Failure, ...]]:
            try:
                found = await self._messages.by_unique_key(name, unique_key)
            except (MessageNotFoundError, TopicNotFoundError):
                return [], ()
            except OnelogError as error:
                return [], (Failure(name, str(error)),)
            return [(wanted[name], each) for each in found.messages], found.failures

        results = await at_once(search, [name for name in wanted if name in existing])
        return (
            [copy for copies, _ in results for copy in copies],
            tuple(failure for _, failures in results for failure in failures),
        )

    async def _past_retries(self, copies: Iterable[tuple[str, Found]]) -> dict[str, bool]:
        """For each group that retried a message, whether it is past the last of its retries."""
        last = {
            _group(RETRY_PREFIX, group, each): each
            for group, each in copies
            if each.message.topic.startswith(RETRY_PREFIX)
        }
        return {group: (await self._past(each)).get(group, False) for group, each in last.items()}

    async def _past(self, found: Found | None) -> dict[str, bool]:
        """For each group that reads the topic of a copy, whether it is past it."""
        if found is None:
            return {}
        try:
            return {each.group: each.is_past for each in await self._messages.consumption(found)}
        except OnelogError:
            return {}  # Where groups are is the least of what is asked for here.


class SyncTraces(Part[Traces]):
    """The same for threads."""

    trace = waiting(Traces.trace)


# -- where it is from ------------------------------------------------------------------------------


def _first_topic(message: Message) -> str:
    """The topic that a copy of a message was sent to in the beginning."""
    topic = message.topic
    if topic in _INNER_TOPICS:
        topic = property_value(message.properties, "REAL_TOPIC") or ""
    if topic.startswith((RETRY_PREFIX, DEAD_LETTER_PREFIX)):
        return origin_topic(message)
    return topic


def _topic_of(traced: Iterable[_Traced]) -> str:
    topics = (
        each.record.topic
        for each in traced
        if isinstance(each.record, (Published, TransactionEnded, Recalled))
    )
    return next((topic for topic in topics if topic), "")


def _groups(traced: Iterable[_Traced]) -> set[str]:
    records = (each.record for each in traced)
    return {record.group for record in records if isinstance(record, (Delivered, Consumed))} - {""}


# -- steps -----------------------------------------------------------------------------------------


def _stored_steps(copies: Sequence[tuple[str, Found]]) -> list[Step]:
    steps = []
    for group, found in copies:
        message = found.message
        if property_value(message.properties, "TIMER_ROLL_TIMES") is None:
            steps.append(_stored_step(group, found))
    if copies:
        # Copies keep the birth of the first; only a resent one is born where that was done.
        first = min((found.message for _, found in copies), key=lambda each: each.store_ms)
        steps.append(Step(StepKind.BORN, first.born_ms, place=host_text(first.born_host)))
    return steps


def _stored_step(group: str, found: Found) -> Step:
    message = found.message
    kind, note = StepKind.STORED, ""
    if message.topic in _INNER_TOPICS:
        kind, group, note = _inner_step(message)
    elif message.topic.startswith(RETRY_PREFIX):
        kind, group = StepKind.RETRIED, _group(RETRY_PREFIX, group, found)
    elif message.topic.startswith(DEAD_LETTER_PREFIX):
        kind, group = StepKind.DEAD, _group(DEAD_LETTER_PREFIX, group, found)
    resent_from = property_value(message.properties, RESENT_FROM)
    if resent_from is not None and kind in (StepKind.STORED, StepKind.RETRIED):
        note = f"resent from the dead letter {resent_from}"
    return Step(
        kind,
        message.store_ms,
        group,
        f"{found.broker}/{message.queue_id}@{message.queue_offset}",
        message.reconsume_times if kind not in (StepKind.STORED, StepKind.PREPARED) else -1,
        None,
        note,
        message.message_id,
    )


def _group(prefix: str, known: str, copy: Found) -> str:
    """The consumer group of a copy: as it was looked for, else by the name of its topic."""
    return known or copy.message.topic.removeprefix(prefix)


def _inner_step(message: Message) -> tuple[StepKind, str, str]:
    """What a copy in a topic means that only brokers read; whom it is for; what it says."""
    if property_value(message.properties, "TIMER_DEL_UNIQKEY") is not None:
        return StepKind.RECALLED, "", ""
    if message.topic == HALF_TOPIC:
        checks = property_value(message.properties, "TRANSACTION_CHECK_TIMES")
        return StepKind.PREPARED, "", f"checked {checks} times" if checks else ""
    due = (property_value(message.properties, "TIMER_OUT_MS") or "").lstrip("0")
    level = property_value(message.properties, "DELAY")
    note = f"until {due}" if due.isdecimal() else f"delay level {level}"
    target = property_value(message.properties, "REAL_TOPIC") or ""
    if target.startswith(RETRY_PREFIX):
        return StepKind.SENT_BACK, target.removeprefix(RETRY_PREFIX), note
    return StepKind.DELAYED, "", note


def _traced_steps(traced: Sequence[_Traced]) -> list[Step]:
    deliveries = {
        each.record.request_id: each for each in traced if isinstance(each.record, Delivered)
    }
    return [_traced_step(each, deliveries) for each in traced]


def _traced_step(each: _Traced, deliveries: dict[str, _Traced]) -> Step:
    match each.record:
        case Published() as sent:
            note = "" if sent.success else "failed"
            return Step(
                StepKind.SENT,
                sent.time_ms,
                sent.group,
                each.client,
                -1,
                sent.cost_ms,
                note,
                sent.offset_id,
            )
        case Delivered() as given:
            return Step(
                StepKind.DELIVERED, given.time_ms, given.group, each.client, given.retry_times
            )
        case Consumed() as done:
            return _consumed_step(done, each, deliveries.get(done.request_id))
        case TransactionEnded() as ended:
            note = ended.state + (", when asked" if ended.from_check else "")
            return Step(StepKind.COMMITTED, ended.time_ms, ended.group, each.client, note=note)
        case Recalled() as back:
            note = "" if back.success else "failed"
            return Step(StepKind.RECALLED, back.time_ms, back.group, each.client, note=note)


def _consumed_step(done: Consumed, each: _Traced, delivery: _Traced | None) -> Step:
    at_ms, group, retry = done.time_ms, done.group, -1
    if delivery is not None and isinstance(delivery.record, Delivered):
        # Not every client writes when that was, and for whom.
        began = delivery.record
        at_ms, group, retry = (
            at_ms or began.time_ms + done.cost_ms,
            group or began.group,
            began.retry_times,
        )
    # What is no plain success or failure is worth a word.
    telling = done.outcome in (Outcome.TIME_OUT, Outcome.EXCEPTION, Outcome.RETURNED_NULL)
    note = Outcome(done.outcome).name.lower().replace("_", " ") if telling else ""
    kind = StepKind.CONSUMED if done.success else StepKind.FAILED
    return Step(kind, at_ms or each.written_ms, group, each.client, retry, done.cost_ms, note)


# -- results per group ----------------------------------------------------------------------------


_STATES = {
    StepKind.DELIVERED: "being consumed",
    StepKind.CONSUMED: "consumed",
    StepKind.FAILED: "failed",
    StepKind.SENT_BACK: "waits to be retried",
    StepKind.RETRIED: "is to be retried",
    StepKind.DEAD: "dead letter",
}


def _fates(
    steps: Sequence[Step], past: dict[str, bool], past_retry: dict[str, bool]
) -> tuple[Fate, ...]:
    """Where the message stands with each group: what happened last.

    A group whose members do not trace may be past the message, or past its last retry; whether that
    went well, nobody knows.
    """
    last: dict[str, Step] = {}
    deliveries: dict[str, int] = {}
    for step in steps:
        if step.kind in _STATES and step.group:
            last[step.group] = step
            deliveries[step.group] = deliveries.get(step.group, 0) + (
                step.kind is StepKind.DELIVERED
            )
    fates = []
    for group, step in last.items():
        state, at_ms = _STATES[step.kind], step.at_ms
        if step.kind is StepKind.RETRIED and past_retry.get(group):
            state, at_ms = "is past its last retry", 0
        fates.append(Fate(group, state, at_ms, deliveries[group]))
    for group, is_past in past.items():
        if group not in last:
            fates.append(Fate(group, "is past it" if is_past else "has yet to come to it", 0, 0))
    return tuple(sorted(fates, key=lambda fate: fate.group))
