"""Operations on what happens to messages: traces, delays, dead letters, open transactions."""

from typing import Annotated, ClassVar

from msgspec import Struct, field

from onelog.admin.operations import (
    Arguments,
    Done,
    Id,
    Identified,
    Limit,
    Moment,
    OfGroup,
    Text,
    about,
    declared,
)
from onelog.admin.topics import MessageDocument
from onelog.rocketmq.names import TRACE_TOPIC

OfWhatTopic = Annotated[Text, about("Only messages to this topic.", "--topic", "-t")]
DryRun = Annotated[bool, about("Only show what would be done.", "--dry-run")]
_TO_TOPIC = (
    "Not to their own topics, all of whose groups get them; %RETRY%GROUP is this group's alone."
)
_SINCE = "Given up from this time on: 2026-05-01 10:30:00, or how long ago: 2h."


class TraceQuery(Identified):
    """In which topic; not needed if the message was traced, or the id is a stored one's."""

    id: Annotated[Id, about("The message's unique key, or its id.")]
    topic: Annotated[
        Text, about("Its topic, if ID is the key of an untraced message.", "--topic", "-t")
    ] = ""
    trace_topic: Annotated[Text, about("Where clients that trace (enableMsgTrace) write it.")] = (
        TRACE_TOPIC
    )


class Step(Struct):
    """One thing that happened."""

    columns: ClassVar[str] = (
        "time=at_ms, ~since birth=since_born_ms, step, group, where=place, >retry, ~took=took_ms, "
        "note, id"
    )
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

    columns: ClassVar[str] = (
        "consumer group=group, state, since=at_ms, ~after=since_born_ms, >deliveries"
    )
    group: str
    state: str
    at_ms: int | None
    since_born_ms: int | None
    deliveries: int
    """Those that were traced."""


class Trace(Struct):
    """The history of a message."""

    unique_key: str
    topic: str
    id: str | None
    keys: list[str]
    tags: str | None
    born_ms: int
    traced: bool
    remarks: list[str]
    """What is not known, and why."""
    steps: list[Step]
    groups: list[GroupOutcome]
    failures: list[str]


class DelayQuery(Arguments):
    """Which messages that wait."""

    topic: OfWhatTopic = ""
    limit: Annotated[
        Limit,
        about("At most so many, those that are due first.", command={"max": 1_000_000}),
    ] = 100
    cluster: Annotated[Text, about("Only in this cluster.")] = ""


class Waiting(Struct):
    """A message that waits, for its time or a level. Only with a handle it can be taken back."""

    columns: ClassVar[str] = (
        "due=due_ms, >delay level=level, topic, >queue, broker, keys, unique key, id, "
        ">size=body_bytes"
    )
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


class Cancel(Identified):
    """Which message; one that waits for a delay level cannot be taken back."""

    id: Annotated[Id, about("Of a timed message: its recall handle, its id or its unique key.")]


class Cancelled(Done):
    """A message that will not be delivered, and when it was due."""

    topic: str = ""
    broker: str = ""
    unique_key: str = ""
    due_ms: int = 0
    handle: str = ""


class BoxQuery(Arguments):
    """Which groups."""

    everything: Annotated[
        bool,
        about(
            "Also groups whose letters are all done with.",
            "--all",
            "-a",
            command={"default": False},
        ),
    ] = True


class BoxQueue(Struct):
    """A queue of dead letters; before `mark`, all are done with."""

    broker: str
    queue: int
    min_offset: int
    max_offset: int
    mark: int


class Box(Struct):
    """The dead letters of a group."""

    columns: ClassVar[str] = "group, #letters=count, #kept, last one=updated_ms, brokers"
    group: str
    topic: str
    count: int
    """Those that nobody has dealt with."""
    kept: int
    """All that the log still has."""
    updated_ms: int | None
    brokers: list[str]
    queues: list[BoxQueue]


class LetterQuery(OfGroup):
    """How many letters, and whether also those that were dealt with."""

    limit: Annotated[
        Limit, about("At most so many.", "--count", command={"default": 32, "max": 1_000_000})
    ] = 100
    everything: Annotated[bool, about("Also those that were resent or dropped.", "--all", "-a")] = (
        False
    )
    begin: (
        Annotated[int, about("From this offset on, done with or not.", "--from", ge=0)] | None
    ) = None
    since_ms: Annotated[Moment, about(_SINCE, "--since", command={"is_time": True})] | None = None


class DeadLetter(Struct):
    """A message that was given up."""

    columns: ClassVar[str] = (
        "given up=message.store_ms, >offset=message.offset, from topic=origin_topic, >tries, "
        "all tries=is_exhausted, resent=is_resent, born=message.born_ms, keys=message.keys, "
        "id=message.id, body=message.body"
    )
    message: MessageDocument
    origin_topic: str
    origin_id: str
    tries: int
    is_exhausted: bool
    """Whether these are all that its group allows; else its consumer gave it up before."""
    is_resent: bool


class Resend(OfGroup):
    """Which letters to send again; none named means all that nobody has dealt with."""

    ids: Annotated[
        list[Id],
        about("This letter: its id or unique key. May be repeated.", "--id", max_length=1_000),
    ] = field(default_factory=list)
    key: Annotated[Text, about("All letters with this key.")] = ""
    everything: Annotated[bool, about("All that were not resent or dropped yet.", "--all")] = False
    to_topic: Annotated[Text, about(_TO_TOPIC)] = ""
    again: Annotated[
        bool, about("Also those that were resent: else it is done once.", "--again")
    ] = False
    dry_run: DryRun = False


class ResentLetter(Struct):
    """Where a letter went."""

    columns: ClassVar[str] = "letter=id, to topic=topic, new id"
    id: str
    topic: str
    new_id: str | None


class Resent(Struct):
    """What was sent again, or would be."""

    group: str
    dry_run: bool
    resent: int
    already: int
    failures: list[str]
    ids: list[str]
    letters: list[ResentLetter]


class Drop(OfGroup):
    """Which letters to be done with: all that are there now, or those from before a time."""

    until_ms: (
        Annotated[
            Moment,
            about("Only what was given up before this time.", "--until", command={"is_time": True}),
        ]
        | None
    ) = None
    undo: Annotated[bool, about("Count everything again that the log still has.", "--undo")] = False
    dry_run: DryRun = False


class Dropped(Done):
    """How many letters that were, or would be."""

    group: str = ""
    dry_run: bool = False
    undo: bool = False
    letters: int = 0


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
        cluster get_trace(TraceQuery) -> Trace: What happened to a message
    GET /v1/delays = delay list
        cluster list_delays(DelayQuery) -> ClusterListing[Waiting]: List messages that wait
    DELETE /v1/delays/{id} = delay cancel
        cluster cancel_delay(Cancel) -> Cancelled: Take a timed message back, before it is delivered
    GET /v1/dead-letters = dlq list
        cluster list_boxes(BoxQuery) -> ClusterListing[Box]: List groups with dead letters
    GET /v1/dead-letters/{group} = dlq show
        cluster list_letters(LetterQuery) -> Listing[DeadLetter]: List dead letters of a group
    DELETE /v1/dead-letters/{group} = dlq drop
        cluster drop_letters(Drop) -> Dropped: Be done with dead letters, which stay until retention
    POST /v1/dead-letters/{group}/resend = dlq resend
        cluster resend_letters(Resend) -> Resent: Send dead letters again
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
