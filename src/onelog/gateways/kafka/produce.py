"""PRODUCE: batches from producers into the log.

A request has a batch for each of some partitions, and is answered as a whole: when the last of
them is as safe as configured, with acks 1 as far as this broker goes. With acks 0 there is no
answer, and an error closes the connection.
"""

from collections.abc import Callable
from functools import partial
from typing import Literal, TypeVar

from onelog.core.durable.durability import Acks
from onelog.core.transactions.in_place import Stamp
from onelog.errors import NotLeaderError, OnelogError, ReplicasMissingError
from onelog.gateways.kafka import batches, message_sets
from onelog.gateways.kafka.batches import BatchError
from onelog.gateways.kafka.configs import ProduceTarget
from onelog.gateways.kafka.error_codes import error_code_in
from onelog.gateways.kafka.names import NO_ID, require_topic
from onelog.gateways.kafka.session import Handler, KafkaSession, Request, Steps, leader_of
from onelog.message import Appended, NewMessage
from onelog.record.forms import Form
from onelog.record.forms.kafka import Batch
from onelog.wire.kafka.codes import ApiKey, ErrorCode
from onelog.wire.kafka.schema import Fields

_Found = TypeVar("_Found")
_ERRORS_TOLD = 100
"""Records of a batch of which a producer is told what is wrong with each."""

ALL = -1
"""The acks of who waits for replicas."""
_KAFKA_FORM = Form.KAFKA.sys_flag
_BATCH_VERSION = 3
"""From here on producers send batches; before that, message sets."""
_ADDING_VERSION = 12
"""From here on batches add their partitions to their producer's transaction."""


class _Producing:
    """One request on its way: how many of its partitions have no answer yet."""

    __slots__ = ("added", "answer", "failed", "left", "request", "session")

    def __init__(self, session: KafkaSession, request: Request) -> None:
        self.session = session
        self.request = request
        self.left = 1  # The request itself, until all of it was looked at.
        self.answer: list[Fields] = []
        self.failed = False
        self.added: OnelogError | Literal["not yet"] | None = "not yet"
        """How it went to add the request's partitions to a transaction."""

    def done(self) -> None:
        self.left -= 1
        if self.left:
            return
        session, request = self.session, self.request
        if request.fields["acks"] != 0:
            answer: Fields = {"responses": self.answer}
            if self.failed and not session.gateway.cluster.is_alone:
                answer["node_endpoints"] = session.gateway.cluster.endpoints()
            session.answer(request, answer)
        elif self.failed:
            session.connection.close()
        else:
            session.drop(request)

    def add_to_transaction(self, stamp: Stamp) -> None:
        """Add all partitions of the request, once: each time is a record."""
        session, fields = self.session, self.request.fields
        if self.added == "not yet":
            queues = [
                (topic["name"], each["index"])
                for topic in fields["topic_data"]
                for each in topic["partition_data"]
            ]
            name, self.added = fields["transactional_id"] or "", None
            try:
                session.broker.transactions.in_place.add_queues(
                    session.principal, name, stamp.producer_id, stamp.epoch, queues
                )
            except OnelogError as error:
                self.added = error
        if self.added is not None:
            raise self.added

    def fail(self, partition: Fields, error: OnelogError) -> None:
        """A batch was not stored: the broker's own error."""
        code = error_code_in(self.request.key, self.request.version, error)
        self.refuse(partition, code, str(error))

    def refuse(self, partition: Fields, code: ErrorCode, reason: str) -> None:
        """A batch was not stored."""
        partition |= {"error_code": code, "error_message": reason, "base_offset": -1}
        self.failed = True


def produce(session: KafkaSession, request: Request) -> Steps:
    fields = request.fields
    producing = _Producing(session, request)
    for topic in fields["topic_data"]:
        result: list[Fields] = []
        name = topic.get("name")
        target: ProduceTarget | None = None
        if name is None:
            name = session.gateway.ids.name_of(topic["topic_id"]) or ""
        try:
            target = _target(session, name)
        except OnelogError as error:
            failure = error
        for each in topic["partition_data"]:
            partition: Fields = {"index": each["index"], "error_code": 0, "base_offset": -1}
            result.append(partition)
            producing.left += 1
            try:
                if fields["acks"] not in (-1, 0, 1):
                    reason = f"acks is {fields['acks']}; it is 0, 1 or -1"
                    raise BatchError(ErrorCode.INVALID_REQUIRED_ACKS, reason)
                if target is None:
                    raise failure
                if fields["acks"] == ALL:
                    session.broker.publish.require_replicas(session.principal, target.in_sync_min)
                _publish(producing, target, each, partition)
            except BatchError as error:
                producing.refuse(partition, error.code, str(error))
                producing.done()
            except OnelogError as error:
                producing.fail(partition, error)
                if target is not None and isinstance(error, NotLeaderError):
                    partition["current_leader"] = leader_of(session, target.topic, each["index"])
                producing.done()
            yield
        producing.answer.append(
            {"name": name, "topic_id": topic.get("topic_id", NO_ID), "partition_responses": result}
        )
    producing.done()
    return None


def _target(session: KafkaSession, name: str) -> ProduceTarget:
    """A topic that is produced to, and that they may know of."""
    targets = session.gateway.targets
    target = targets.get(name)
    if target is None or not session.broker.users.is_open:
        topic = require_topic(session.broker, session.principal, name)
        target = target or targets.add(topic)
    return target


def _publish(producing: _Producing, target: ProduceTarget, wanted: Fields, result: Fields) -> None:
    session, request = producing.session, producing.request
    data, queue_id = wanted["records"], wanted["index"]
    if not 0 <= queue_id < target.partitions:
        queue_id = session.gateway.cluster.queue(target.topic, queue_id)
    if request.version < _BATCH_VERSION:
        now_ms = session.gateway.clock.now_ms()
        if not message_sets.is_little(data):
            rest = partial(_converted, producing, target, queue_id, result)
            session.read_apart(lambda: message_sets.to_batch_apart(data, now_ms), rest)
            return
        data = memoryview(message_sets.to_batch(data, now_ms))
    _check(producing, target, queue_id, data, result)


def _check(
    producing: _Producing, target: ProduceTarget, queue_id: int, data: memoryview, result: Fields
) -> None:
    """Append a batch that is as it should be; if that takes a while to see, later."""
    batch = batches.checked(data, producing.request.version, target.message_bytes_max)
    needs_keys = target.needs_keys
    if batches.is_to_look_into(batch, needs_keys):
        keyless = batches.look_into(data, batch)
        if keyless is None:
            rest = partial(_looked_into, producing, target, queue_id, data, batch, result)
            producing.session.read_apart(lambda: batches.look_into_much(data), rest)
            return
        if needs_keys:
            _require_keys(keyless, result)
    _append(producing, target, queue_id, data, batch, result)


def _converted(
    producing: _Producing,
    target: ProduceTarget,
    queue_id: int,
    result: Fields,
    found: bytes | BatchError | None,
) -> None:
    """A worker has made a batch of an old producer's messages."""

    def go_on() -> None:
        _check(producing, target, queue_id, memoryview(_found(found)), result)

    _go_on(producing, result, go_on)


def _looked_into(
    producing: _Producing,
    target: ProduceTarget,
    queue_id: int,
    data: memoryview,
    batch: Batch,
    result: Fields,
    found: list[int] | BatchError | None,
) -> None:
    """A worker has counted the records of a batch."""

    def go_on() -> None:
        keyless = _found(found)
        if target.needs_keys:
            _require_keys(keyless, result)
        _append(producing, target, queue_id, data, batch, result)

    _go_on(producing, result, go_on)


def _found(found: _Found | BatchError | None) -> _Found:
    if found is None:
        reason = "the records could not be looked into; the broker's log says why"
        raise BatchError(ErrorCode.UNKNOWN_SERVER_ERROR, reason)
    if isinstance(found, BatchError):
        raise found
    return found


def _go_on(producing: _Producing, result: Fields, go_on: Callable[[], None]) -> None:
    try:
        go_on()
    except BatchError as error:
        producing.refuse(result, error.code, str(error))
    except OnelogError as error:
        producing.fail(result, error)
    else:
        return
    producing.done()


def _append(
    producing: _Producing,
    target: ProduceTarget,
    queue_id: int,
    data: memoryview | bytes,
    batch: Batch,
    result: Fields,
) -> None:
    session, request = producing.session, producing.request
    if target.appends_time:
        now_ms = session.gateway.clock.now_ms()
        data = batches.with_append_time(memoryview(data), now_ms)
        result["log_append_time_ms"] = now_ms
    message = NewMessage(
        target.topic.name,
        queue_id,
        data,
        sys_flag=_KAFKA_FORM,
        born_ms=batch.max_ms,
        born_host=session.born_host,
        store_host=session.gateway.store_host,
        inner_count=batch.records,
    )
    stamp = batches.stamp_of(batch)
    if stamp.transactional and request.version >= _ADDING_VERSION:
        producing.add_to_transaction(stamp)
    session.broker.publish.send(
        session.principal,
        message,
        _stored,
        (producing, target.topic.name, queue_id, result),
        stamp=stamp,
        acks=Acks.DURABLE if request.fields["acks"] == ALL else Acks.MASTER,
    )


def _require_keys(keyless: list[int], result: Fields) -> None:
    """In a topic that is compacted, messages without a key would be lost; `BatchError`."""
    if keyless:
        reason = "a compacted topic takes no message without a key"
        result["record_errors"] = [
            {"batch_index": number, "batch_index_error_message": reason}
            for number in keyless[:_ERRORS_TOLD]
        ]
        raise BatchError(ErrorCode.INVALID_RECORD, reason)


def _stored(
    token: tuple[_Producing, str, int, Fields],
    appended: Appended | None,
    error: OnelogError | None,
) -> None:
    producing, topic, queue_id, result = token
    if isinstance(error, ReplicasMissingError):
        producing.refuse(result, ErrorCode.NOT_ENOUGH_REPLICAS_AFTER_APPEND, str(error))
    elif error is not None:
        producing.fail(result, error)
    else:
        assert appended is not None
        session = producing.session
        result["base_offset"] = appended.queue_offset
        result["log_start_offset"] = session.broker.topics.min_offset(
            session.principal, topic, queue_id
        )
    producing.done()


HANDLERS: dict[ApiKey, Handler] = {ApiKey.PRODUCE: produce}
