"""Positions of groups: committing them, fetching them, and forgetting them."""

import contextlib
from collections.abc import Generator
from functools import partial

from onelog.core.cursors.offset_notes import Note
from onelog.core.membership.coordinator import CommittingMember, Position
from onelog.errors import GroupNotFoundError, OnelogError, TopicNotFoundError
from onelog.gateways.kafka.error_codes import coordinator_code, error_code, error_code_in
from onelog.gateways.kafka.groups.members import member_of
from onelog.gateways.kafka.names import require_readable
from onelog.gateways.kafka.session import Handler, KafkaSession, Request, Steps, refusal_in
from onelog.wire.kafka.codes import ApiKey, ErrorCode
from onelog.wire.kafka.schema import Fields

METADATA_BYTES_MAX = 4096


def taken(
    session: KafkaSession, topics: list[Fields]
) -> Generator[None, None, tuple[dict[str, dict[int, Position]], list[Fields]]]:
    """The positions in a request that can be committed, and an answer with a code for each."""
    positions: dict[str, dict[int, Position]] = {}
    results: list[Fields] = []
    for topic in topics:
        name = topic["name"]
        partitions: list[Fields] = []
        for each in topic["partitions"]:
            partition, text = each["partition_index"], each["committed_metadata"] or ""
            code = 0
            try:
                config = require_readable(session.broker, session.principal, name)
                queue_id = session.gateway.cluster.queue_id_of(config, partition)
                if len(text.encode()) > METADATA_BYTES_MAX:
                    code = ErrorCode.OFFSET_METADATA_TOO_LARGE
                elif each["committed_offset"] < 0:
                    code = ErrorCode.OFFSET_OUT_OF_RANGE
                else:
                    note = Note(each.get("committed_leader_epoch", -1), text)
                    position = Position(each["committed_offset"], note)
                    positions.setdefault(name, {})[queue_id] = position
            except OnelogError as error:
                code = error_code(error)
            partitions.append({"partition_index": partition, "error_code": code})
            yield
        results.append({"name": name, "partitions": partitions})
    return positions, results


def offset_commit(session: KafkaSession, request: Request) -> Steps:
    """OFFSET_COMMIT: answered when the positions are as safe as configured."""
    fields = request.fields
    positions, results = yield from taken(session, fields["topics"])
    member = member_of(fields, "generation_id_or_member_epoch")
    try:
        session.broker.groups.coordinator.commit(
            session.principal,
            fields["group_id"],
            member,
            positions,
            partial(committed, session, request, results),
        )
    except OnelogError as error:
        return {"topics": failed(results, error_code_in(request.key, request.version, error))}
    return None


def committed(
    session: KafkaSession, request: Request, results: list[Fields], error: OnelogError | None
) -> None:
    """Answer a commit that is as safe as configured, or cannot be."""
    if error is not None:
        results = failed(results, error_code_in(request.key, request.version, error))
    session.answer(request, {"topics": results})


def failed(results: list[Fields], code: ErrorCode) -> list[Fields]:
    """The answer to a commit of which nothing came."""
    for topic in results:
        for each in topic["partitions"]:
            each["error_code"] = code
    return results


def offset_fetch(session: KafkaSession, request: Request) -> Steps:
    """OFFSET_FETCH, for one group or for many."""
    fields = request.fields
    if request.version >= 8:
        groups: list[Fields] = []
        for each in fields["groups"]:
            found = yield from _fetched(session, each, fields)
            groups.append(found)
        return {"groups": groups}
    return (yield from _fetched(session, fields, fields))


def _fetched(
    session: KafkaSession, wanted: Fields, fields: Fields
) -> Generator[None, None, Fields]:
    group, topics = wanted["group_id"], wanted["topics"]
    coordinator, principal = session.broker.groups.coordinator, session.principal
    named: dict[str, list[int]] | None = None
    yield
    if topics is not None:
        named = {}
        for each in topics:
            queue_ids = named[each["name"]] = []
            for partition in each["partition_indexes"]:
                queue_ids.append(_queue_id(session, each["name"], partition))
                yield
    try:
        if wanted.get("member_id") and wanted.get("member_epoch", -1) >= 0:
            coordinator.check_member(
                principal, group, CommittingMember(wanted["member_id"], wanted["member_epoch"])
            )
        found = coordinator.positions(principal, group, named)
    except OnelogError as error:
        return {"group_id": group, "topics": [], "error_code": coordinator_code(error)}
    results: list[Fields] = []
    for topic, queues in found:
        partitions: list[Fields] = []
        results.append({"name": topic, "partitions": partitions})
        yield
        for queue_id, position in queues:
            yield
            at = _partition(session, topic, queue_id)
            if at is not None:
                partitions.append(_told(at, position, fields.get("require_stable", False)))
    return {"group_id": group, "error_code": 0, "topics": results}


def _queue_id(session: KafkaSession, topic: str, partition: int) -> int:
    """Where the position in a partition is kept; of one that is not there, where nothing is."""
    with contextlib.suppress(TopicNotFoundError):
        config = require_readable(session.broker, session.principal, topic)
        return session.gateway.cluster.queue_id_of(config, partition)
    return -1 - partition


def _partition(session: KafkaSession, topic: str, queue_id: int) -> int | None:
    return -1 - queue_id if queue_id < 0 else session.gateway.cluster.partition(topic, queue_id)


def _told(queue_id: int, position: Position, require_stable: bool) -> Fields:
    offset, note, is_pending = position
    if is_pending and require_stable:
        code = ErrorCode.UNSTABLE_OFFSET_COMMIT
        return {"partition_index": queue_id, "committed_offset": -1, "error_code": code}
    return {
        "partition_index": queue_id,
        "committed_offset": offset,
        "error_code": 0,
        "committed_leader_epoch": note.epoch,
        "metadata": note.text,
    }


def offset_delete(session: KafkaSession, request: Request) -> Steps:
    """OFFSET_DELETE: forget where a group is, in topics that no member reads."""
    session.require_administrator()
    fields = request.fields
    group, coordinator, principal = (
        fields["group_id"],
        session.broker.groups.coordinator,
        session.principal,
    )
    known = (
        coordinator.classic_group(principal, group),
        coordinator.consumer_group(principal, group),
    )
    if not any(known) and not coordinator.has_positions(principal, group):
        raise GroupNotFoundError(f"there is no group {group!r}")
    read = coordinator.topics_read(principal, group)
    results = []
    for topic in fields["topics"]:
        name = topic["name"]
        partitions = []
        for each in topic["partitions"]:
            yield
            answer: Fields = {"partition_index": each["partition_index"], "error_code": 0}
            with refusal_in(answer):
                queue_id = session.gateway.cluster.queue_id_of(
                    require_readable(session.broker, principal, name), each["partition_index"]
                )
                if read is None or name in read:
                    answer["error_code"] = ErrorCode.GROUP_SUBSCRIBED_TO_TOPIC
                else:
                    coordinator.forget_position(principal, group, name, queue_id)
            partitions.append(answer)
        results.append({"name": name, "partitions": partitions})
    return {"error_code": 0, "topics": results}


HANDLERS: dict[ApiKey, Handler] = {
    ApiKey.OFFSET_COMMIT: offset_commit,
    ApiKey.OFFSET_FETCH: offset_fetch,
    ApiKey.OFFSET_DELETE: offset_delete,
}
