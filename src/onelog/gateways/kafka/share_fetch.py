"""SHARE_FETCH and SHARE_ACKNOWLEDGE: messages for a while, and what became of them.

Taking is the core's (`core.queues.sharing`): it waits, counts and remembers. Here partitions, share
sessions and ranges of offsets are translated. An answer has whole batches, and says which of the
messages in them are the member's now.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from functools import partial
from itertools import chain

from onelog.core.cursors.forms import offset_in
from onelog.core.cursors.unpacking import ColdError
from onelog.core.queues.lease_ledger import Outcome
from onelog.core.queues.leases import LeasedPart
from onelog.core.queues.lending import Leased
from onelog.core.queues.sharing import ShareLimits, Taking
from onelog.errors import InvalidRequestError, OnelogError
from onelog.gateways.kafka import batches
from onelog.gateways.kafka.error_codes import error_code
from onelog.gateways.kafka.fetch import FETCH_BYTES_MAX
from onelog.gateways.kafka.groups.group_settings import limits_of
from onelog.gateways.kafka.names import require_topic
from onelog.gateways.kafka.session import Handler, KafkaSession, Request, Steps, leader_of
from onelog.gateways.kafka.share_sessions import (
    FINAL,
    NEW,
    PARTITIONS_MAX,
    PartitionKey,
    ShareSession,
)
from onelog.record.decode import decode_message, records_in
from onelog.wire.kafka.codes import ApiKey, ErrorCode
from onelog.wire.kafka.schema import Fields

RECORDS_MAX = 1_000
"""Messages of one answer, whatever is asked for, but for what makes the last batch whole."""
_CONVERTED_BYTES_MAX = 32 << 20
"""Unpacked, in one answer; or one record."""
_MEMBER_CHARS_MAX = 36
_TOLD_AT_ONCE = 1_000
"""Partitions of an answer that are put together in one go."""
_RENEW = 4
_OUTCOMES = {
    0: Outcome.DONE,  # There is no message.
    1: Outcome.DONE,
    2: Outcome.RETURNED,
    3: Outcome.DONE,  # It is useless. There are no dead letters.
    _RENEW: Outcome.KEPT,
}
_NO_LEADER = {"leader_id": -1, "leader_epoch": -1}


@dataclass(slots=True)
class _ShareFetchRequest:
    """One request on its way."""

    session: KafkaSession
    request: Request
    group: str
    member: str
    share_limits: ShareLimits
    acknowledged: dict[PartitionKey, ErrorCode] = field(default_factory=dict)
    """What came of what the request says of messages."""
    refused: dict[PartitionKey, ErrorCode] = field(default_factory=dict)
    partition_keys: dict[tuple[str, int], PartitionKey] = field(default_factory=dict)
    """The partitions of queues that are looked into."""
    converted: dict[tuple[str, int], list[list[bytes | memoryview]]] = field(default_factory=dict)
    """Of parts that have to be unpacked the batches of their first records."""


def share_fetch(session: KafkaSession, request: Request) -> Steps:
    """SHARE_FETCH: answered when there is something, or time is up."""
    fields = request.fields
    found = _begun(session, request)
    if isinstance(found, ErrorCode):
        return {"error_code": found}
    pending, share_session = found
    for topic in fields["topics"]:
        for each in topic["partitions"]:
            yield
            share_session.partitions[topic["topic_id"], each["partition_index"]] = None
        if len(share_session.partitions) > PARTITIONS_MAX:
            return {"error_code": ErrorCode.INVALID_REQUEST}
    for topic in fields["forgotten_topics_data"]:
        for partition in topic["partitions"]:
            share_session.partitions.pop((topic["topic_id"], partition), None)
    yield from _settle(pending)
    if fields["share_session_epoch"] == FINAL:
        session.broker.queues.sharing.release(session.principal, pending.group, pending.member)
    elif not fields.get("is_renew_ack") and fields["max_records"] > 0:
        yield from _aim(pending, share_session)
    if not pending.partition_keys:
        _answer_when_safe(pending, ())
        return None
    taking = Taking(
        pending.group,
        pending.member,
        list(pending.partition_keys),
        min(fields["max_records"], RECORDS_MAX),
        max(1, min(fields["max_bytes"], FETCH_BYTES_MAX)),
        not fields.get("share_acquire_mode"),
    )
    wait_ms = 0 if pending.refused else fields["max_wait_ms"]
    session.broker.queues.sharing.take(
        session.principal, taking, pending.share_limits, wait_ms, _taken, session, pending
    )
    return None


def share_acknowledge(session: KafkaSession, request: Request) -> Steps:
    """SHARE_ACKNOWLEDGE: answered when that is as safe as configured."""
    if request.fields["share_session_epoch"] == NEW:
        return {"error_code": ErrorCode.INVALID_SHARE_SESSION_EPOCH}
    found = _begun(session, request)
    if isinstance(found, ErrorCode):
        return {"error_code": found}
    pending, _ = found
    yield from _settle(pending)
    if request.fields["share_session_epoch"] == FINAL:
        session.broker.queues.sharing.release(session.principal, pending.group, pending.member)

    def safe(error: OnelogError | None) -> None:
        results = {
            partition_key: {"error_code": code}
            for partition_key, code in _settled(pending, error).items()
        }
        session.work(_told(pending, results))

    session.broker.queues.sharing.when_safe(safe)
    return None


def _begun(
    session: KafkaSession, request: Request
) -> tuple[_ShareFetchRequest, ShareSession] | ErrorCode:
    """Whose request it is, and the session that it is of; or what is wrong with it."""
    fields = request.fields
    group, member = fields["group_id"] or "", fields["member_id"] or ""
    if not group or not 0 < len(member) <= _MEMBER_CHARS_MAX:
        return ErrorCode.INVALID_REQUEST
    limits = ("max_bytes", "min_bytes", "max_records", "max_wait_ms")
    if fields.get("is_renew_ack") and any(fields.get(each) for each in limits):
        return ErrorCode.INVALID_REQUEST  # Looking for messages might take longer than the lock.
    epoch = fields["share_session_epoch"]
    found = session.gateway.share_sessions.of((group, member), epoch, session)
    if isinstance(found, ErrorCode):
        return found
    config = session.gateway.context.loaded.config.kafka
    share_limits = limits_of(session.broker.groups.find(session.principal, group), config)
    return _ShareFetchRequest(session, request, group, member, share_limits), found


# -- what became of messages -------------------------------------------------------------------


def _settle(pending: _ShareFetchRequest) -> Iterator[None]:
    """Take over what a request says of messages."""
    session, fields = pending.session, pending.request.fields
    for topic in fields["topics"]:
        for each in topic["partitions"]:
            yield
            if not each["acknowledgement_batches"]:
                continue
            partition_key = topic["topic_id"], each["partition_index"]
            queue = _queue(session, partition_key)
            if isinstance(queue, ErrorCode):
                pending.acknowledged[partition_key] = queue
                continue
            try:
                outcomes = _outcomes(each["acknowledgement_batches"], fields.get("is_renew_ack"))
                session.broker.queues.sharing.settle(
                    session.principal,
                    pending.group,
                    pending.member,
                    queue,
                    outcomes,
                    pending.share_limits,
                )
                pending.acknowledged[partition_key] = ErrorCode.NONE
            except OnelogError as error:
                pending.acknowledged[partition_key] = error_code(error)


def _outcomes(given: Sequence[Fields], is_renewed: bool | None) -> list[tuple[range, Outcome]]:
    """What a member says of ranges of messages: one word for all of a range, or one for each."""
    found: list[tuple[range, Outcome]] = []
    end = -1
    for each in given:
        first, last, kinds = each["first_offset"], each["last_offset"], each["acknowledge_types"]
        if not end <= first <= last or len(kinds) not in (1, last - first + 1):
            raise InvalidRequestError(f"{first} to {last} is no range for {len(kinds)} words")
        if any(kind not in _OUTCOMES or (kind == _RENEW and not is_renewed) for kind in kinds):
            raise InvalidRequestError(f"nobody knows what {kinds[:10]} means here")
        end = last + 1
        if len(kinds) == 1:
            found.append((range(first, end), _OUTCOMES[kinds[0]]))
        else:
            found += [(range(at, at + 1), _OUTCOMES[kind]) for at, kind in enumerate(kinds, first)]
    return found


def _settled(
    pending: _ShareFetchRequest, error: OnelogError | None
) -> dict[PartitionKey, ErrorCode]:
    """What is told of what was said; `error` if it could not be recorded."""
    if error is None:
        return pending.acknowledged
    return dict.fromkeys(pending.acknowledged, error_code(error))


# -- messages ----------------------------------------------------------------------------------


def _queue(session: KafkaSession, partition_key: PartitionKey) -> tuple[str, int] | ErrorCode:
    """The queue of a partition; or why there is none."""
    name = session.gateway.ids.name_of(partition_key[0])
    if name is None:
        return ErrorCode.UNKNOWN_TOPIC_ID
    try:
        topic = require_topic(session.broker, session.principal, name)
        return name, session.gateway.cluster.queue(topic, partition_key[1])
    except OnelogError as error:
        return error_code(error)


def _aim(pending: _ShareFetchRequest, share_session: ShareSession) -> Iterator[None]:
    """Find the queues of the session's partitions."""
    for partition_key in share_session.in_turn():
        yield
        queue = _queue(pending.session, partition_key)
        if isinstance(queue, ErrorCode):
            pending.refused[partition_key] = queue
        else:
            pending.partition_keys[queue] = partition_key


def _taken(pending: _ShareFetchRequest, leased: Leased | OnelogError) -> None:
    if isinstance(leased, OnelogError):
        pending.session.refuse(pending.request, leased)
    else:
        _answer_when_safe(pending, leased.parts)


def _answer_when_safe(pending: _ShareFetchRequest, parts: Sequence[LeasedPart]) -> None:
    """Answer; if the request said something of messages, when that is safe."""

    def safe(error: OnelogError | None) -> None:
        results: dict[PartitionKey, Fields] = {
            partition_key: {"acknowledge_error_code": code}
            for partition_key, code in _settled(pending, error).items()
        }
        for partition_key, code in pending.refused.items():
            results.setdefault(partition_key, {})["error_code"] = code
        _tell(pending, list(parts), results)

    if pending.acknowledged:
        pending.session.broker.queues.sharing.when_safe(safe)
    else:
        safe(None)


def _tell(
    pending: _ShareFetchRequest, parts: list[LeasedPart], results: dict[PartitionKey, Fields]
) -> None:
    """Answer, with the records of these parts; when they are unpacked, where they have to be."""
    while parts:
        part = parts[0]
        try:
            records = _records(pending, part)
        except ColdError as cold:
            pending.session.broker.cursors.prepare(cold, partial(_tell, pending, parts, results))
            return
        partition_key = pending.partition_keys[part.topic, part.queue_id]
        part = records[1]
        acquired = {"acquired_records": list(_acquired(part.offsets, part.times))}
        results.setdefault(partition_key, {}).update({"records": records[0], **acquired})
        del parts[0]
    pending.session.work(_told(pending, results))


def _records(
    pending: _ShareFetchRequest, part: LeasedPart
) -> tuple[list[bytes | memoryview], LeasedPart]:
    """The batches of a part, and the part: all that was handed out has to be there."""
    partition_key = part.topic, part.queue_id
    done = pending.converted.setdefault(partition_key, [])
    # One after the other, since to unpack the next may take the place of the last.
    records = [record for record, _ in records_in(part.records)]
    broker, budget = pending.session.broker, batches.Budget(1 << 30, 1 << 40, True, 1 << 30)
    try:
        if not done:
            return batches.pieces_of(
                *partition_key, 0, records, broker.cursors.messages_in, budget
            )[0], part
    except ColdError:
        pass
    for record in records[len(done) :]:
        if sum(map(len, chain.from_iterable(done))) > _CONVERTED_BYTES_MAX:
            part = _without_rest(pending, part, offset_in(*partition_key, decode_message(record)))
            break
        done.append(
            batches.pieces_of(*partition_key, 0, [record], broker.cursors.messages_in, budget)[0]
        )
    return [*chain.from_iterable(pending.converted.pop(partition_key))], part


def _without_rest(pending: _ShareFetchRequest, part: LeasedPart, end: int) -> LeasedPart:
    """A part up to an offset; what follows others may have."""
    count = sum(offset < end for offset in part.offsets)
    unsent = [(range(offset, offset + 1), Outcome.UNTOLD) for offset in part.offsets[count:]]
    pending.session.broker.queues.sharing.settle(
        pending.session.principal,
        pending.group,
        pending.member,
        (part.topic, part.queue_id),
        unsent,
        pending.share_limits,
    )
    return part._replace(offsets=part.offsets[:count], times=part.times[:count])


def _acquired(offsets: Sequence[int], times: Sequence[int]) -> Iterator[Fields]:
    """Ranges of messages that were handed out equally often."""
    begin = 0
    for end in range(1, len(offsets) + 1):
        if (
            end == len(offsets)
            or offsets[end] != offsets[end - 1] + 1
            or times[end] != times[begin]
        ):
            yield {
                "first_offset": offsets[begin],
                "last_offset": offsets[end - 1],
                "delivery_count": times[begin] + 1,
            }
            begin = end


def _told(pending: _ShareFetchRequest, results: dict[PartitionKey, Fields]) -> Iterator[None]:
    """Answer, with what there is to say of each partition."""
    topics: dict[bytes, list[Fields]] = {}
    is_moved = False
    for number, ((topic, partition), answer) in enumerate(results.items(), 1):
        leader = _NO_LEADER
        if ErrorCode.NOT_LEADER_OR_FOLLOWER in answer.values():
            leader, is_moved = _leader(pending.session, topic, partition), True
        topics.setdefault(topic, []).append(
            {"partition_index": partition, "current_leader": leader, "records": b"", **answer}
        )
        if not number % _TOLD_AT_ONCE:
            yield
    answer = {
        "acquisition_lock_timeout_ms": pending.share_limits.lock_ms,
        "node_endpoints": pending.session.gateway.cluster.endpoints() if is_moved else [],
        "responses": [
            {"topic_id": topic, "partitions": partitions} for topic, partitions in topics.items()
        ],
    }
    pending.session.answer(pending.request, answer)


def _leader(session: KafkaSession, topic: bytes, partition: int) -> Fields:
    name = session.gateway.ids.name_of(topic)
    config = None if name is None else session.broker.topics.find(session.principal, name)
    return _NO_LEADER if config is None else leader_of(session, config, partition)


HANDLERS: dict[ApiKey, Handler] = {
    ApiKey.SHARE_FETCH: share_fetch,
    ApiKey.SHARE_ACKNOWLEDGE: share_acknowledge,
}
