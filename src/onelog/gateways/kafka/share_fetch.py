"""SHARE_FETCH and SHARE_ACKNOWLEDGE: messages for a while, and what became of them.

Taking is the core's (`core.leases.sharing`): it waits, counts and remembers. Here partitions, share
sessions and ranges of offsets are translated. An answer has whole batches, and says which of the
messages in them are the member's now.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from functools import partial
from itertools import chain

from onelog.core.cursors.forms import place_in
from onelog.core.cursors.unpacking import ColdError
from onelog.core.leases.leases import LeasedPart
from onelog.core.leases.lending import Leased
from onelog.core.leases.queue import Outcome
from onelog.core.leases.sharing import Taking, Terms
from onelog.errors import InvalidRequestError, OnelogError
from onelog.gateways.kafka import batches
from onelog.gateways.kafka.error_codes import error_code
from onelog.gateways.kafka.fetch import FETCH_BYTES_MAX
from onelog.gateways.kafka.groups.group_settings import terms_of
from onelog.gateways.kafka.names import require_topic
from onelog.gateways.kafka.session import Handler, KafkaSession, Request, leader_of
from onelog.gateways.kafka.share_sessions import FINAL, NEW, Place, ShareSession
from onelog.record.decode import decode_message
from onelog.wire.kafka.codes import ApiKey, ErrorCode
from onelog.wire.kafka.schema import Fields

RECORDS_MAX = 1_000
"""Messages of one answer, whatever is asked for, but for what makes the last batch whole."""
_CONVERTED_BYTES_MAX = 32 << 20
"""Unpacked, in one answer; or one record."""
_MEMBER_CHARS_MAX = 36
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
class _Asked:
    """One request on its way."""

    session: KafkaSession
    request: Request
    group: str
    member: str
    terms: Terms
    acknowledged: dict[Place, ErrorCode] = field(default_factory=dict)
    """What came of what the request says of messages."""
    refused: dict[Place, ErrorCode] = field(default_factory=dict)
    places: dict[tuple[str, int], Place] = field(default_factory=dict)
    """The partitions of queues that are looked into."""
    converted: dict[tuple[str, int], list[list[bytes | memoryview]]] = field(default_factory=dict)
    """Of parts that have to be unpacked the batches of their first records."""


def share_fetch(session: KafkaSession, request: Request) -> Fields | None:
    """SHARE_FETCH: answered when there is something, or time is up."""
    fields = request.fields
    found = _begun(session, request)
    if isinstance(found, ErrorCode):
        return {"error_code": found}
    asked, share_session = found
    for topic in fields["topics"]:
        for each in topic["partitions"]:
            share_session.partitions[topic["topic_id"], each["partition_index"]] = None
    for topic in fields["forgotten_topics_data"]:
        for partition in topic["partitions"]:
            share_session.partitions.pop((topic["topic_id"], partition), None)
    _settle(asked)
    if fields["share_session_epoch"] == FINAL:
        session.broker.sharing.release(session.principal, asked.group, asked.member)
    elif not fields.get("is_renew_ack") and fields["max_records"] > 0:
        _aim(asked, share_session)
    if not asked.places:
        _answer_when_safe(asked, ())
        return None
    taking = Taking(
        asked.group, asked.member, list(asked.places),
        min(fields["max_records"], RECORDS_MAX), max(1, min(fields["max_bytes"], FETCH_BYTES_MAX)),
        not fields.get("share_acquire_mode"),
    )  # fmt: skip
    wait_ms = 0 if asked.refused else fields["max_wait_ms"]
    session.broker.sharing.take(
        session.principal, taking, asked.terms, wait_ms, _taken, session, asked
    )
    return None


def share_acknowledge(session: KafkaSession, request: Request) -> Fields | None:
    """SHARE_ACKNOWLEDGE: answered when that is as safe as configured."""
    if request.fields["share_session_epoch"] == NEW:
        return {"error_code": ErrorCode.INVALID_SHARE_SESSION_EPOCH}
    found = _begun(session, request)
    if isinstance(found, ErrorCode):
        return {"error_code": found}
    asked, _ = found
    _settle(asked)
    if request.fields["share_session_epoch"] == FINAL:
        session.broker.sharing.release(session.principal, asked.group, asked.member)

    def safe(error: OnelogError | None) -> None:
        told = {place: {"error_code": code} for place, code in _settled(asked, error).items()}
        session.answer(request, _answer(asked, told))

    session.broker.sharing.when_safe(safe)
    return None


def _begun(session: KafkaSession, request: Request) -> tuple[_Asked, ShareSession] | ErrorCode:
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
    config = session.gateway.house.loaded.config.kafka
    terms = terms_of(session.broker.find_group(session.principal, group), config)
    return _Asked(session, request, group, member, terms), found


# -- what became of messages -------------------------------------------------------------------


def _settle(asked: _Asked) -> None:
    """Take over what a request says of messages."""
    session, fields = asked.session, asked.request.fields
    for topic in fields["topics"]:
        for each in topic["partitions"]:
            if not each["acknowledgement_batches"]:
                continue
            place = topic["topic_id"], each["partition_index"]
            queue = _queue(session, place)
            if isinstance(queue, ErrorCode):
                asked.acknowledged[place] = queue
                continue
            try:
                outcomes = _outcomes(each["acknowledgement_batches"], fields.get("is_renew_ack"))
                session.broker.sharing.settle(
                    session.principal, asked.group, asked.member, queue, outcomes,
                    asked.terms,
                )  # fmt: skip
                asked.acknowledged[place] = ErrorCode.NONE
            except OnelogError as error:
                asked.acknowledged[place] = error_code(error)


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


def _settled(asked: _Asked, error: OnelogError | None) -> dict[Place, ErrorCode]:
    """What is told of what was said; `error` if it could not be recorded."""
    if error is None:
        return asked.acknowledged
    return dict.fromkeys(asked.acknowledged, error_code(error))


# -- messages ----------------------------------------------------------------------------------


def _queue(session: KafkaSession, place: Place) -> tuple[str, int] | ErrorCode:
    """The queue of a partition; or why there is none."""
    name = session.gateway.ids.name_of(place[0])
    if name is None:
        return ErrorCode.UNKNOWN_TOPIC_ID
    try:
        topic = require_topic(session.broker, session.principal, name)
        return name, session.gateway.cluster.queue(topic, place[1])
    except OnelogError as error:
        return error_code(error)


def _aim(asked: _Asked, share_session: ShareSession) -> None:
    """Find the queues of the session's partitions."""
    for place in share_session.in_turn():
        queue = _queue(asked.session, place)
        if isinstance(queue, ErrorCode):
            asked.refused[place] = queue
        else:
            asked.places[queue] = place


def _taken(asked: _Asked, leased: Leased | OnelogError) -> None:
    if isinstance(leased, OnelogError):
        asked.session.refuse(asked.request, leased)
    else:
        _answer_when_safe(asked, leased.parts)


def _answer_when_safe(asked: _Asked, parts: Sequence[LeasedPart]) -> None:
    """Answer; if the request said something of messages, when that is safe."""

    def safe(error: OnelogError | None) -> None:
        told: dict[Place, Fields] = {
            place: {"acknowledge_error_code": code}
            for place, code in _settled(asked, error).items()
        }
        for place, code in asked.refused.items():
            told.setdefault(place, {})["error_code"] = code
        _tell(asked, list(parts), told)

    if asked.acknowledged:
        asked.session.broker.sharing.when_safe(safe)
    else:
        safe(None)


def _tell(asked: _Asked, parts: list[LeasedPart], told: dict[Place, Fields]) -> None:
    """Answer, with the records of these parts; when they are unpacked, where they have to be."""
    while parts:
        part = parts[0]
        try:
            records = _records(asked, part)
        except ColdError as cold:
            asked.session.broker.prepare(cold, partial(_tell, asked, parts, told))
            return
        place = asked.places[part.topic, part.queue_id]
        part = records[1]
        acquired = {"acquired_records": list(_acquired(part.offsets, part.times))}
        told.setdefault(place, {}).update({"records": records[0], **acquired})
        del parts[0]
    asked.session.answer(asked.request, _answer(asked, told))


def _records(asked: _Asked, part: LeasedPart) -> tuple[list[bytes | memoryview], LeasedPart]:
    """The batches of a part, and the part: all that was handed out has to be there."""
    place = part.topic, part.queue_id
    done = asked.converted.setdefault(place, [])
    # One after the other, since to unpack the next may take the place of the last.
    records = [record for record, _ in batches.records_of(part.records)]
    broker, budget = asked.session.broker, batches.Budget(1 << 30, 1 << 40, True)
    try:
        if not done:
            return batches.pieces_of(*place, 0, records, broker.messages_in, budget)[0], part
    except ColdError:
        pass
    for record in records[len(done) :]:
        if sum(map(len, chain.from_iterable(done))) > _CONVERTED_BYTES_MAX:
            part = _without_rest(asked, part, place_in(*place, decode_message(record)))
            break
        done.append(batches.pieces_of(*place, 0, [record], broker.messages_in, budget)[0])
    return [*chain.from_iterable(asked.converted.pop(place))], part


def _without_rest(asked: _Asked, part: LeasedPart, end: int) -> LeasedPart:
    """A part up to an offset; what follows others may have."""
    count = sum(offset < end for offset in part.offsets)
    untold = [(range(offset, offset + 1), Outcome.UNTOLD) for offset in part.offsets[count:]]
    asked.session.broker.sharing.settle(
        asked.session.principal, asked.group, asked.member, (part.topic, part.queue_id), untold,
        asked.terms,
    )  # fmt: skip
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


def _answer(asked: _Asked, told: dict[Place, Fields]) -> Fields:
    topics: dict[bytes, list[Fields]] = {}
    is_moved = False
    for (topic, partition), answer in told.items():
        leader = _NO_LEADER
        if ErrorCode.NOT_LEADER_OR_FOLLOWER in answer.values():
            leader, is_moved = _leader(asked.session, topic, partition), True
        topics.setdefault(topic, []).append(
            {"partition_index": partition, "current_leader": leader, "records": b"", **answer}
        )
    return {
        "acquisition_lock_timeout_ms": asked.terms.lock_ms,
        "node_endpoints": asked.session.gateway.cluster.endpoints() if is_moved else [],
        "responses": [
            {"topic_id": topic, "partitions": partitions} for topic, partitions in topics.items()
        ],
    }


def _leader(session: KafkaSession, topic: bytes, partition: int) -> Fields:
    name = session.gateway.ids.name_of(topic)
    config = None if name is None else session.broker.find_topic(session.principal, name)
    return _NO_LEADER if config is None else leader_of(session, config, partition)


HANDLERS: dict[ApiKey, Handler] = {
    ApiKey.SHARE_FETCH: share_fetch,
    ApiKey.SHARE_ACKNOWLEDGE: share_acknowledge,
}
