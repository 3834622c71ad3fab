"""FETCH: the next batches of some partitions, and where partitions begin and end.

A fetch is the core's fetch with a cursor for each partition; waiting, limits and reading from disk
are the core's. Fetch sessions are told only what is new to them.
"""

from collections.abc import Generator, Iterator, Sequence
from functools import partial
from typing import NamedTuple

from onelog.core.catalog.topics import TopicConfig
from onelog.core.cursors.fetch import Cursor, Limits, Result
from onelog.core.cursors.unpacking import ColdError
from onelog.errors import OnelogError
from onelog.gateways.kafka import batches, message_sets
from onelog.gateways.kafka.cluster.view import Cluster
from onelog.gateways.kafka.error_codes import error_code
from onelog.gateways.kafka.fetch_sessions import (
    NO_SESSION,
    FetchPartition,
    FetchSession,
    PartitionKey,
)
from onelog.gateways.kafka.names import NO_ID, require_readable
from onelog.gateways.kafka.session import (
    LONG_STEPS,
    Handler,
    KafkaSession,
    Request,
    Steps,
    leader_of,
)
from onelog.names import VIEW_TOPICS
from onelog.record.decode import records_in
from onelog.record.forms.kafka import Codec
from onelog.record.forms.neutral import Neutral
from onelog.store.outcomes import Aborted
from onelog.store.reader import Fetched, FetchStatus
from onelog.wire.kafka.codes import ApiKey, ErrorCode
from onelog.wire.kafka.schema import Fields

FETCH_BYTES_MAX = 8 << 20
"""In one answer, whatever is asked for: more would wait in memory for a slow reader."""
PARTITIONS_MAX, OTHERS_WAIT_MS = 1_000, 50
"""So many partitions are looked at for one fetch, and then waited for, if there are others: those
have their turn in the next fetches."""
_COUNT_MAX = 1 << 30
_AT_ONCE = 1_000
"""Partitions that are told of, or asked for, in one step."""
_ZSTD_FETCH_VERSION = 10
_BATCH_VERSION, _TIME_VERSION = 4, 2
"""From here on consumers read batches; or message sets, with times."""
_ZSTD_BIT = 1 << Codec.ZSTD
_READ_COMMITTED = 1
_NOTHING = (
    FetchStatus.OFFSET_OVERFLOW_ONE,
    FetchStatus.FULL,
    FetchStatus.NO_MATCHED_LOGIC_QUEUE,
    FetchStatus.NO_MESSAGE_IN_QUEUE,
)
_EMPTY = (FetchStatus.NO_MATCHED_LOGIC_QUEUE, FetchStatus.NO_MESSAGE_IN_QUEUE)
_GAPS = (FetchStatus.MESSAGE_WAS_REMOVING, FetchStatus.NO_MATCHED_MESSAGE)
"""What is not there any more, by damage or compaction, and never will be."""


class _Fetching(NamedTuple):
    """One fetch on its way."""

    session: KafkaSession
    request: Request
    fetch_session: FetchSession | None
    partition_keys: list[PartitionKey]
    """Of the cursors, in their order."""
    cursors: list[Cursor]
    refused: dict[PartitionKey, ErrorCode]
    is_full: bool
    """Whether all partitions are told, also those without news."""


def fetch(session: KafkaSession, request: Request) -> Steps:
    fields = request.fields
    wanted = yield from _wanted(fields)
    fetch_session: FetchSession | None = None
    is_full = True
    if request.version >= 7:
        found = session.gateway.fetch_sessions.of(fields["session_id"], fields["session_epoch"])
        if isinstance(found, ErrorCode):
            return {"error_code": found, "session_id": NO_SESSION}
        if found is not None:
            forgotten = [
                (_topic_key(topic), partition)
                for topic in fields["forgotten_topics_data"]
                for partition in topic["partitions"]
            ]
            found.update(wanted, forgotten)
            session.gateway.fetch_sessions.bound(found)
            wanted = list(found.partitions.items())
            is_full = fields["session_epoch"] == 0
            fetch_session = found
    fetching = _Fetching(session, request, fetch_session, [], [], {}, is_full)
    yield from _aim(fetching, _some(session, fetching.refused, wanted))
    bytes_max = max(1, min(fields.get("max_bytes", FETCH_BYTES_MAX), FETCH_BYTES_MAX))
    cursor_bytes = max((each.bytes_max for _, each in wanted), default=1)
    limits = Limits(
        _COUNT_MAX,
        max(1, cursor_bytes),
        bytes_max,
        min(fields["min_bytes"], bytes_max),
        True,
        True,
        fields.get("isolation_level") == _READ_COMMITTED,
    )
    wait_ms = (
        fields["max_wait_ms"] if fetching.cursors and not any(fetching.refused.values()) else 0
    )
    if len(wanted) > PARTITIONS_MAX:
        wait_ms = min(wait_ms, OTHERS_WAIT_MS)
    session.broker.cursors.fetch(
        session.principal, fetching.cursors, limits, wait_ms, _fetched, session, fetching
    )
    return None


def _topic_key(topic: Fields) -> str | bytes:
    key: str | bytes = topic["topic_id"] if "topic_id" in topic else topic["topic"]
    return key


def _wanted(
    fields: Fields,
) -> Generator[None, None, list[tuple[PartitionKey, FetchPartition]]]:
    wanted: list[tuple[PartitionKey, FetchPartition]] = []
    for topic in fields["topics"]:
        key = _topic_key(topic)
        partitions = topic["partitions"]
        for at in range(0, len(partitions), _AT_ONCE):
            if wanted:
                yield
            wanted += [
                (
                    (key, each["partition"]),
                    FetchPartition(
                        each["fetch_offset"],
                        each["partition_max_bytes"],
                        each.get("current_leader_epoch", -1),
                    ),
                )
                for each in partitions[at : at + _AT_ONCE]
            ]
    return wanted


def _some(
    session: KafkaSession,
    others: dict[PartitionKey, ErrorCode],
    wanted: Sequence[tuple[PartitionKey, FetchPartition]],
) -> Sequence[tuple[PartitionKey, FetchPartition]]:
    """The partitions that are looked at: of very many, those whose turn it is; for the others it
    is said that nothing is there."""
    if len(wanted) <= PARTITIONS_MAX:
        return wanted
    begin = session.fetched % len(wanted)
    session.fetched = begin + PARTITIONS_MAX
    some = [*wanted[begin : session.fetched], *wanted[: max(0, session.fetched - len(wanted))]]
    others |= dict.fromkeys((partition_key for partition_key, _ in wanted), ErrorCode.NONE)
    for partition_key, _ in some:
        others.pop(partition_key, None)
    return some


def _aim(
    fetching: _Fetching, wanted: Sequence[tuple[PartitionKey, FetchPartition]]
) -> Iterator[None]:
    """Find the queues of partitions; what cannot be read is refused."""
    session = fetching.session
    names: dict[str | bytes, TopicConfig | ErrorCode] = {}
    cluster = session.gateway.cluster
    for partition_key, (offset, _, leader_epoch) in wanted:
        key = partition_key[0]
        name = names.get(key)
        if name is None:
            name = names[key] = _name(session, key)
        if isinstance(name, ErrorCode):
            fetching.refused[partition_key] = name
        elif (refused := epoch_error(cluster, leader_epoch)) is not None:
            fetching.refused[partition_key] = refused
        else:
            queue_id = partition_key[1]
            if not cluster.is_alone:
                try:
                    queue_id = cluster.queue(name, queue_id)
                except OnelogError as error:
                    fetching.refused[partition_key] = error_code(error)
                    continue
            fetching.partition_keys.append(partition_key)
            fetching.cursors.append(Cursor(None, name.name, queue_id, offset))
        yield


def _name(session: KafkaSession, key: str | bytes) -> TopicConfig | ErrorCode:
    name = session.gateway.ids.name_of(key) if isinstance(key, bytes) else key
    if name is None:
        return ErrorCode.UNKNOWN_TOPIC_ID
    try:
        found = require_readable(session.broker, session.principal, name)
        # Else the core refuses the whole fetch, with the topics that they may read.
        session.broker.users.check(session.principal, "consume", ("topic", name))
        return found
    except OnelogError as error:
        return error_code(error)


def epoch_error(cluster: Cluster, leader_epoch: int) -> ErrorCode | None:
    """What is wrong with the epoch that a client believes a leader to have."""
    if leader_epoch > cluster.leader_epoch:
        return ErrorCode.UNKNOWN_LEADER_EPOCH
    is_old = -1 < leader_epoch < cluster.leader_epoch
    return ErrorCode.FENCED_LEADER_EPOCH if is_old else None


def _fetched(fetching: _Fetching, results: Sequence[Result]) -> None:
    session = fetching.session
    fetching.request.is_long = len(results) + len(fetching.refused) >= LONG_STEPS
    budget = batches.Budget()
    answers: list[tuple[PartitionKey, Fields]] = []
    for partition_key, cursor, result in zip(
        fetching.partition_keys, fetching.cursors, results, strict=True
    ):
        try:
            answers.append(
                (partition_key, _partition(fetching, partition_key[1], cursor, result, budget))
            )
        except ColdError as cold:
            session.broker.cursors.prepare(cold, partial(_fetched, fetching, results))
            return
    session.work(_told(fetching, answers))


def _told(fetching: _Fetching, answers: list[tuple[PartitionKey, Fields]]) -> Iterator[None]:
    """Answer, with what was read and what was refused."""
    session, request, fetch_session = fetching.session, fetching.request, fetching.fetch_session
    by_topic: dict[str | bytes, list[Fields]] = {}
    moved: Fields = {}
    if fetching.refused:
        refused: list[tuple[PartitionKey, Fields]] = []
        for partition_key, code in fetching.refused.items():
            refused.append((partition_key, _refused(partition_key[1], code)))
            if not len(refused) % _AT_ONCE:
                yield
        moved = _send_on(session, refused)
        answers = refused + answers
    for number, (partition_key, partition) in enumerate(answers, 1):
        if not number % _AT_ONCE:
            yield
        if fetch_session is not None:
            is_news = fetch_session.is_news(partition_key, partition)
            if not is_news and not fetching.is_full:
                continue
        by_topic.setdefault(partition_key[0], []).append(partition)
    session.answer(
        request,
        {
            "session_id": NO_SESSION if fetch_session is None else fetch_session.number,
            "responses": [
                {
                    "topic": key if isinstance(key, str) else "",
                    "topic_id": key if isinstance(key, bytes) else NO_ID,
                    "partitions": partitions,
                }
                for key, partitions in by_topic.items()
            ],
            **moved,
        },
    )


def _send_on(session: KafkaSession, answers: list[tuple[PartitionKey, Fields]]) -> Fields:
    """Say in some answers who has their partitions; and where those are."""
    is_moved = False
    for (key, partition), answer in answers:
        if answer["error_code"] == ErrorCode.NOT_LEADER_OR_FOLLOWER:
            topic = _name(session, key)
            if isinstance(topic, TopicConfig):
                answer["current_leader"] = leader_of(session, topic, partition)
                is_moved = True
    return {"node_endpoints": session.gateway.cluster.endpoints()} if is_moved else {}


def _refused(partition: int, code: ErrorCode) -> Fields:
    return {
        "partition_index": partition,
        "error_code": code,
        "high_watermark": -1,
        "last_stable_offset": -1,
        "log_start_offset": -1,
        "aborted_transactions": None,
        "records": b"",
    }


def _partition(
    fetching: _Fetching, partition: int, cursor: Cursor, result: Result, budget: batches.Budget
) -> Fields:
    session, request = fetching.session, fetching.request
    if isinstance(result, OnelogError):
        return _refused(partition, error_code(result))
    stable, aborted = result.max_offset, list[Aborted]()
    if cursor.topic not in VIEW_TOPICS:
        stable, aborted = session.broker.cursors.settled(
            session.principal, cursor.topic, cursor.queue_id, cursor.offset, result.next_offset
        )
    is_committed = request.fields.get("isolation_level") == _READ_COMMITTED
    answer: Fields = {
        "partition_index": partition,
        "error_code": 0,
        "high_watermark": result.max_offset,
        "last_stable_offset": stable,
        "log_start_offset": result.min_offset,
        "aborted_transactions": [
            {"producer_id": each.producer_id, "first_offset": each.first_offset} for each in aborted
        ]
        if is_committed
        else None,
        "records": b"",
    }
    code = _read(fetching, cursor, result, answer, budget)
    return answer if code is None else _refused(partition, code)


def _read(
    fetching: _Fetching, cursor: Cursor, result: Fetched, answer: Fields, budget: batches.Budget
) -> ErrorCode | None:
    """Put the batches into an answer; or what is wrong."""
    status, version = result.status, fetching.request.version
    if status is FetchStatus.FOUND:
        messages_in = fetching.session.broker.cursors.messages_in
        pieces: list[bytes | memoryview] = list(result.slices)
        codecs = 0
        if cursor.topic in VIEW_TOPICS:
            if version < _BATCH_VERSION:
                return ErrorCode.UNSUPPORTED_VERSION
        elif version < _BATCH_VERSION:
            answer["records"] = [_message_set(fetching, cursor, result)]
            return None
        else:
            pieces, codecs = batches.pieces_of(
                cursor.topic,
                cursor.queue_id,
                cursor.offset,
                result.slices,
                messages_in,
                budget,
                fetching.session.gateway.cluster.leader_epoch,
            )
        if codecs & _ZSTD_BIT and version < _ZSTD_FETCH_VERSION:
            return ErrorCode.UNSUPPORTED_COMPRESSION_TYPE
        answer["records"] = pieces
    elif status in _GAPS:
        answer["records"] = [batches.gap(cursor.offset, result.next_offset)]
    elif status not in _NOTHING or (status in _EMPTY and cursor.offset):
        return ErrorCode.OFFSET_OUT_OF_RANGE
    return None


def _message_set(fetching: _Fetching, cursor: Cursor, result: Fetched) -> bytes:
    """What was read, for a consumer from before there were batches."""
    topic, queue_id, begin = cursor.topic, cursor.queue_id, cursor.offset
    magic = 1 if fetching.request.version >= _TIME_VERSION else 0
    messages_in = fetching.session.broker.cursors.messages_in
    wanted = (each for topic in fetching.request.fields["topics"] for each in topic["partitions"])
    bytes_max = min(FETCH_BYTES_MAX, max(each["partition_max_bytes"] for each in wanted))
    found = message_sets.from_messages(
        (
            each
            for record, _ in records_in(result.slices)
            for each in batches.with_offsets(topic, queue_id, begin, record, messages_in)
        ),
        magic,
        bytes_max,
    )
    if found or result.next_offset >= result.max_offset:
        return found
    # Nothing of it can be read: an empty message in its place, or the consumer would not get on.
    empty = result.next_offset - 1, Neutral(None, None, (), fetching.session.gateway.clock.now_ms())
    return message_sets.from_messages([empty], magic, 0)


HANDLERS: dict[ApiKey, Handler] = {ApiKey.FETCH: fetch}
