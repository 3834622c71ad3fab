"""Operations on what happens to messages: traces, delays, dead letters, open transactions."""

from typing import Annotated

from msgspec import Meta, Struct, field

from onelog.admin.operations import Arguments, Id, Identified, Limit, OfGroup, Text, declared
from onelog.admin.topics import MessageDocument


class TraceQuery(Identified):
    """In which topic; not needed if the message was traced, or the id is a stored one's."""

    topic: Text = ""


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


class GroupOutcome(Struct):
    """Where a message stands with a group."""

    group: str
    state: str
    at_ms: int | None
    deliveries: int


class Trace(Struct):
    """The history of a message."""

    unique_key: str
    topic: str
    id: str | None
    born_ms: int
    traced: bool
    steps: list[Step]
    groups: list[GroupOutcome]
    failures: list[str]


class DelayQuery(Arguments):
    """Which messages that wait."""

    topic: Text = ""
    limit: Limit = 100


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


class LetterQuery(OfGroup):
    """How many letters, and whether also those that were dealt with."""

    limit: Limit = 100
    everything: bool = False


class DeadLetter(Struct):
    """A message that was given up."""

    message: MessageDocument
    origin_topic: str
    origin_id: str
    tries: int
    is_exhausted: bool
    is_resent: bool


class Resend(OfGroup):
    """Which letters to send again; none named means all."""

    ids: Annotated[list[Id], Meta(max_length=1_000)] = field(default_factory=list)
    to_topic: Text = ""
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


class HalfQuery(Arguments):
    """How many, the oldest first."""

    limit: Limit = 100


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


OPERATIONS = declared(
    globals(),
    """
    GET /v1/messages/{id}/trace = message trace
        get_trace(TraceQuery) -> Trace: What happened to a message
    GET /v1/delays = delay list
        list_delays(DelayQuery) -> Listing[Waiting]: List messages that wait for their time
    DELETE /v1/delays/{id} = delay cancel
        cancel_delay(Identified) -> Done: Take a timed message back
    GET /v1/dead-letters = dlq list
        list_boxes() -> Listing[Box]: List groups with dead letters
    GET /v1/dead-letters/{group} = dlq show
        list_letters(LetterQuery) -> Listing[DeadLetter]: List dead letters of a group
    DELETE /v1/dead-letters/{group} = dlq drop
        drop_letters(OfGroup) -> Done: Be done with dead letters
    POST /v1/dead-letters/{group}/resend = dlq resend
        resend_letters(Resend) -> Resent: Send dead letters again
    GET /v1/transactions = transaction list
        list_transactions() -> Listing[Transaction]: List transactions
    DELETE /v1/transactions/{id} = transaction abort
        abort_transaction(Identified) -> Done: Abort a transaction that hangs
    GET /v1/half-messages = transaction half-messages
        list_halves(HalfQuery) -> Listing[HalfMessage]: List half messages that are open
    POST /v1/half-messages/resume = transaction resume
        resume_half(Identified) -> Done: Ask again about a half message
    """,
)
