"""Operations on consumer groups: who is in them, how far they are, and moving them."""

from typing import Annotated, Any, Literal

from msgspec import Struct

from onelog.admin.operations import Name, OfGroup, Paged, Time, about, declared


class GroupQuery(Paged):
    """Which groups."""

    sort: Literal["name", "lag"] = "name"


class GroupState(Struct):
    """A group in a few words."""

    name: str
    protocol: str
    """rocketmq, or what Kafka calls it: classic, consumer, share."""
    state: str
    members: int
    topics: list[str]
    lag: int


class Member(Struct):
    """A client that consumes."""

    client_id: str
    address: str
    language: str | None
    topics: list[str]


class Progress(Struct):
    """How far a group is in a queue."""

    topic: str
    queue: int
    position: int
    end: int
    lag: int
    in_flight: int
    consumed_ms: int | None


class GroupSettings(Struct, forbid_unknown_fields=True, kw_only=True):
    """What is set for a group; what is left out stays as it is."""

    consume_enable: (
        Annotated[bool, about("Whether it may consume at all.", "--enable/--disable")] | None
    ) = None
    consume_broadcast_enable: (
        Annotated[
            bool, about("Whether members may get all messages each.", "--broadcast/--no-broadcast")
        ]
        | None
    ) = None
    consume_message_orderly: (
        Annotated[bool, about("Whether it consumes in order.", "--orderly/--no-orderly")] | None
    ) = None
    retry_queues: Annotated[int, about("Queues of its retry topic.", ge=0, le=65_535)] | None = None
    retry_times_max: (
        Annotated[
            int, about("Tries before a message is given up.", "--retries", ge=-1, le=1_000_000)
        ]
        | None
    ) = None
    consume_timeout_minutes: (
        Annotated[int, about("Minutes for one message.", "--consume-timeout", ge=1, le=100_000)]
        | None
    ) = None
    attributes: dict[str, str] | None = None


class NewGroup(GroupSettings):
    """A group to create."""

    name: Name


class ChangedGroup(GroupSettings):
    """A group, and what to change."""

    group: Name


class GroupDescription(Struct):
    """All about a group."""

    name: str
    protocol: str
    state: str
    lag: int
    get_per_second: float
    consume_type: str | None
    message_model: str | None
    subscriptions: dict[str, str]
    members: list[Member]
    queues: list[Progress]
    settings: dict[str, Any]
    is_mismatched: bool
    """Members subscribe differently."""


class Reset(OfGroup):
    """Where a group is to go: to a time, or to one of the ends."""

    topic: Name
    to: Literal["earliest", "latest"] | None = None
    to_ms: Time | None = None
    dry_run: bool = False


class Move(Struct):
    """Where a group was in a queue, and where it goes."""

    queue: int
    before: int
    after: int


class Moves(Struct):
    """What moving means, in messages."""

    group: str
    topic: str
    dry_run: bool
    read_again: int
    skipped: int
    queues: list[Move]


class Clone(OfGroup):
    """Which group's positions to take over, in all topics or in one."""

    source: Name
    topic: Name | None = None


class Cloned(Struct):
    """How many queues a group was moved in, on all brokers, and what went wrong."""

    group: str
    queues: int
    failures: list[str]


OPERATIONS = declared(
    globals(),
    """
    GET /v1/groups = group list
        list_groups(GroupQuery) -> Listing[GroupState]: List consumer groups
    POST /v1/groups = group create
        create_group(NewGroup) -> GroupDescription 201: Create a consumer group
    GET /v1/groups/{group} = group describe
        get_group(OfGroup) -> GroupDescription: Show a group
    PATCH /v1/groups/{group} = group update
        update_group(ChangedGroup) -> GroupDescription: Change a group
    DELETE /v1/groups/{group} = group delete
        delete_group(OfGroup) -> Done: Delete a group and its positions
    POST /v1/groups/{group}/reset = group reset, group skip
        reset_group(Reset) -> Moves: Move a group, or see what that would mean
    POST /v1/groups/{group}/clone = group clone
        clone_group(Clone) -> Cloned: Put a group where another one is
    """,
)
