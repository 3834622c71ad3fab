"""What became of messages, and what is to: traces, delays, dead letters, open transactions."""

import asyncio
from typing import Annotated

from msgspec import Meta, Struct

from onelog.admin.broker.cluster_admin import admin_of
from onelog.admin.broker.documents import MessageDocument, clean, document
from onelog.admin.operations import Ask, Done, Listing, Operation, check
from onelog.client.admin.dead_letters import Letter
from onelog.core.schedule.records import REAL_TOPIC
from onelog.core.transactions.half_records import PRODUCER_GROUP
from onelog.errors import InvalidRequestError
from onelog.gateways.http.requests import called, looked_up
from onelog.message import Message, decode_properties
from onelog.names import DEAD_LETTER_PREFIX

LETTERS_MAX = 10_000
Id = Annotated[str, Meta(min_length=1, max_length=255)]


class TraceQuery(Struct, forbid_unknown_fields=True):
    """In which topic; not needed if the message was traced, or the id is a stored one's."""

    topic: Annotated[str, Meta(max_length=255)] = ""


class Step(Struct):
    """One thing that happened."""

    step: str
    at_ms: int
    since_born_ms: int
    group: str | None
    place: str | None
    retry: int | None
    took_ms: int | None
    note: str | None
    id: str | None


class Fate(Struct):
    """Where a message stands with a group."""

    group: str
    state: str
    at_ms: int | None
    deliveries: int


class Trace(Struct):
    """The story of a message."""

    unique_key: str
    topic: str
    id: str | None
    born_ms: int
    traced: bool
    steps: list[Step]
    groups: list[Fate]
    failures: list[str]


class DelayQuery(Struct, forbid_unknown_fields=True):
    """Which messages that wait."""

    topic: Annotated[str, Meta(max_length=255)] = ""
    limit: Annotated[int, Meta(ge=1, le=1_000)] = 100


class Waiting(Struct):
    """A message that waits for its time. Only with a handle it can be taken back."""

    due_ms: int
    broker: str
    topic: str
    queue: int
    id: str
    unique_key: str | None
    keys: list[str]
    tags: str | None
    born_ms: int
    body_bytes: int
    level: int | None
    handle: str | None


class Box(Struct):
    """The dead letters of a group."""

    group: str
    count: int
    kept: int
    updated_ms: int | None


class LetterQuery(Struct, forbid_unknown_fields=True):
    """How many letters, and whether also those that were dealt with."""

    limit: Annotated[int, Meta(ge=1, le=1_000)] = 100
    everything: bool = False


class DeadLetter(Struct):
    """A message that was given up."""

    message: MessageDocument
    origin_topic: str
    origin_id: str
    tries: int
    is_exhausted: bool
    is_resent: bool


class Resend(Struct, forbid_unknown_fields=True):
    """Which letters to send again; none named means all."""

    ids: Annotated[list[Id], Meta(max_length=1_000)] = []
    to_topic: Annotated[str, Meta(max_length=255)] = ""
    again: bool = False
    dry_run: bool = False


class Resent(Struct):
    """What was sent again, or would be."""

    resent: int
    already: int
    failures: list[str]
    ids: list[str]


class Transaction(Struct):
    """A transaction of Kafka's kind that is open, or was."""

    id: str
    producer_id: int
    epoch: int
    state: str
    timeout_ms: int
    begun_ms: int | None
    queues: list[str]
    is_overdue: bool


class HalfQuery(Struct, forbid_unknown_fields=True):
    """How many, the oldest first."""

    limit: Annotated[int, Meta(ge=1, le=1_000)] = 100


class HalfMessage(Struct):
    """A message of RocketMQ's kind of transaction, which its producer has not decided about."""

    id: str
    unique_key: str | None
    topic: str
    group: str
    born_ms: int
    checks: int
    """How often the producer was asked."""
    body_bytes: int


class Resumed(Struct, forbid_unknown_fields=True):
    """The id of a half message whose producer was asked too often."""

    id: Id


# -- traces ----------------------------------------------------------------------------------------


async def get_trace(ask: Ask) -> Trace:
    """The story of a message, by its id or unique key."""
    query: TraceQuery = ask.query
    check(ask, "describe", "names")
    found = await admin_of(ask).traces.trace(ask.path["id"], topic=query.topic or None)
    check(ask, "consume", found.topic, "topic")
    steps = [
        Step(
            each.kind.value,
            each.at_ms,
            each.at_ms - found.born_ms,
            each.group or None,
            each.place or None,
            each.retry if each.retry >= 0 else None,
            each.took_ms,
            each.note or None,
            each.message_id or None,
        )
        for each in found.steps
    ]
    return Trace(
        found.unique_key,
        found.topic,
        found.first.message_id if found.first else None,
        found.born_ms,
        found.traced,
        steps,
        [Fate(each.group, each.state, each.at_ms or None, each.deliveries) for each in found.fates],
        [str(each) for each in found.failures],
    )


# -- delays ----------------------------------------------------------------------------------------


async def list_delays(ask: Ask) -> Listing[Waiting]:
    """Messages that wait for their time, those that are due first."""
    query: DelayQuery = ask.query
    check(ask, "describe", "names")
    listing = await admin_of(ask).delays.waiting(query.topic or None, count_max=query.limit)
    items = [
        Waiting(
            each.due_ms,
            each.broker,
            each.topic,
            each.queue_id,
            each.message_id,
            each.unique_key,
            list(each.keys),
            each.tags,
            each.born_ms,
            each.body_bytes,
            each.level,
            each.handle,
        )
        for each in listing.messages
    ]
    return Listing(items, listing.count)


async def cancel_delay(ask: Ask) -> Done:
    """Take a message back, by its handle, id or unique key: it is never delivered."""
    delays = admin_of(ask).delays
    handle = await delays.find(ask.path["id"])
    check(ask, "publish", handle.topic, "topic")
    await delays.cancel(handle)
    return Done()


# -- dead letters ----------------------------------------------------------------------------------


async def list_boxes(ask: Ask) -> Listing[Box]:
    """Groups that have dead letters."""
    check(ask, "describe", "names")
    boxes = await admin_of(ask).dead_letters.boxes(with_empty=True)
    items = [Box(each.group, each.count, each.kept, each.updated_ms or None) for each in boxes]
    return Listing(items, len(items))


async def list_letters(ask: Ask) -> Listing[DeadLetter]:
    """Dead letters of a group."""
    query: LetterQuery = ask.query
    group = ask.path["group"]
    check(ask, "consume", DEAD_LETTER_PREFIX + group, "topic")
    dead = admin_of(ask).dead_letters
    box = await dead.box(group)
    items = []
    letters = dead.letters(group, everything=query.everything)
    try:
        async for letter in letters:
            items.append(_letter(letter))
            if len(items) >= query.limit:
                break
    finally:
        await letters.aclose()
    return Listing(items, box.kept if query.everything else box.count)


def _letter(letter: Letter) -> DeadLetter:
    return DeadLetter(
        document(letter.found.message),
        letter.origin_topic,
        letter.origin_id,
        letter.tries,
        letter.is_exhausted,
        letter.is_resent,
    )


async def resend_letters(ask: Ask) -> Resent:
    """Send dead letters again, to where they came from or elsewhere."""
    body: Resend = ask.body
    group = ask.path["group"]
    check(ask, "consume", DEAD_LETTER_PREFIX + group, "topic")
    if body.to_topic:
        check(ask, "publish", body.to_topic, "topic")
    dead = admin_of(ask).dead_letters
    to_topic = body.to_topic or None
    if body.ids:
        letters = [await dead.find(group, each) for each in body.ids]
        done = await dead.resend(letters, to_topic=to_topic, again=body.again, dry_run=body.dry_run)
        if not body.dry_run:
            await dead.settle(group)
    else:
        done = await dead.resend_all(
            group, to_topic=to_topic, again=body.again, dry_run=body.dry_run
        )
    failures = [f"{each.who}: {each.reason}" for each in done.failures]
    ids = [each.new_id or each.message_id for each in done.resent[:LETTERS_MAX]]
    return Resent(len(done.resent), done.already, failures, ids)


async def drop_letters(ask: Ask) -> Done:
    """Be done with the letters of a group that are there now, without sending them again."""
    group = ask.path["group"]
    check(ask, "delete", DEAD_LETTER_PREFIX + group, "topic")
    dead = admin_of(ask).dead_letters
    await dead.drop(await dead.box(group))
    return Done()


# -- transactions ----------------------------------------------------------------------------------


async def list_transactions(ask: Ask) -> Listing[Transaction]:
    """Transactions of Kafka's kind; those that hang are overdue."""
    now_ms = ask.context.clock.now_ms()
    items = []
    for number, each in enumerate(ask.context.broker.in_place.transactions(ask.principal), 1):
        is_open = each.state.value == "Ongoing"
        items.append(
            Transaction(
                each.name,
                each.producer_id,
                each.epoch,
                each.state.value,
                each.timeout_ms,
                each.begun_ms or None,
                sorted(f"{topic}/{queue}" for topic, queue in each.queues),
                is_open and now_ms - each.begun_ms > each.timeout_ms,
            )
        )
        if number % 200 == 0:
            await asyncio.sleep(0)
    return Listing(items, len(items))


async def abort_transaction(ask: Ask) -> Done:
    """Put an end to a transaction that hangs; its producer is told so when it comes back."""
    name = ask.path["id"]
    broker = ask.context.broker
    found = {each.name: each for each in broker.in_place.transactions(ask.principal)}.get(name)
    if found is None or found.state.value != "Ongoing":
        raise InvalidRequestError(f"there is no open transaction {name!r:.80}")
    _, error = await called(
        lambda done: broker.in_place.end(
            ask.principal, name, found.producer_id, found.epoch, False, done
        )
    )
    if error is not None:
        raise error
    return Done()


async def list_halves(ask: Ask) -> Listing[HalfMessage]:
    """Half messages that are open, the oldest first."""
    query: HalfQuery = ask.query
    admin = ask.context.broker.admin
    offsets = admin.half_offsets(ask.principal)
    first = offsets[: query.limit]
    found = await looked_up(ask.context, lambda: admin.open_halves(ask.principal, first))
    return Listing([_half(message, checks) for message, checks in found], len(offsets))


def _half(message: Message, checks: int) -> HalfMessage:
    properties = decode_properties(message.properties)
    return HalfMessage(
        message.message_id,
        clean(message.unique_key),
        clean(properties.get(REAL_TOPIC, "")),
        clean(properties.get(PRODUCER_GROUP, "")),
        message.born_ms,
        checks,
        len(message.body),
    )


async def resume_half(ask: Ask) -> Done:
    """Ask again about a half message that was put away because nobody answered."""
    body: Resumed = ask.body
    broker = ask.context.broker
    await looked_up(ask.context, lambda: broker.admin.find_given_up(ask.principal, body.id))
    _, _, error = await called(lambda done: broker.admin.resume_check(ask.principal, body.id, done))
    if error is not None:
        raise error
    return Done()


OPERATIONS = [
    Operation(
        "GET", "/v1/messages/{id}/trace", "What happened to a message", get_trace, Trace, TraceQuery
    ),
    Operation(
        "GET",
        "/v1/delays",
        "List messages that wait for their time",
        list_delays,
        Listing[Waiting],
        DelayQuery,
    ),
    Operation("DELETE", "/v1/delays/{id}", "Take a timed message back", cancel_delay, Done),
    Operation("GET", "/v1/dead-letters", "List groups with dead letters", list_boxes, Listing[Box]),
    Operation(
        "GET",
        "/v1/dead-letters/{group}",
        "List dead letters of a group",
        list_letters,
        Listing[DeadLetter],
        LetterQuery,
    ),
    Operation(
        "DELETE", "/v1/dead-letters/{group}", "Be done with dead letters", drop_letters, Done
    ),
    Operation(
        "POST",
        "/v1/dead-letters/{group}/resend",
        "Send dead letters again",
        resend_letters,
        Resent,
        body=Resend,
        example={"ids": [], "dry_run": True},
    ),
    Operation(
        "GET", "/v1/transactions", "List transactions", list_transactions, Listing[Transaction]
    ),
    Operation(
        "DELETE", "/v1/transactions/{id}", "Abort a transaction that hangs", abort_transaction, Done
    ),
    Operation(
        "GET",
        "/v1/half-messages",
        "List half messages that are open",
        list_halves,
        Listing[HalfMessage],
        HalfQuery,
    ),
    Operation(
        "POST",
        "/v1/half-messages/resume",
        "Ask again about a half message",
        resume_half,
        Done,
        body=Resumed,
        example={"id": "7F00000100002A9F0000000000000000"},
    ),
]
