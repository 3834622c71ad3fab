"""Topics that hold records of other forms than RocketMQ's, and what RocketMQ's readers get of them.

A reader of the form in which a record was written gets its bytes. For RocketMQ's readers it is
converted when it is read (`record.forms.conversion`): each message in it becomes a record, from the
offset on that was asked for, within the limits of the pull, and if the subscription wants it.

Most topics have RocketMQ's form only, and their reads look at no record: whoever writes the first
record of another form into a topic marks it before.

    table     "forms": {topic: true if it may have batches of Kafka's, else false}

Invariant: a topic that is not marked has no record of another form.
"""

from collections import OrderedDict
from collections.abc import Iterable, Iterator, Sequence
from itertools import islice
from typing import Any, NamedTuple

from onelog.core.catalog.topics import TopicConfig, Topics
from onelog.core.cursors.unpacking import Unpacking, unpacking_one
from onelog.core.durable.tables import Tables
from onelog.errors import InvalidRequestError, WireError
from onelog.message import Message, QueueOffset
from onelog.names import COMPACTED_TOPIC
from onelog.record.decode import decode_message
from onelog.record.dispatch import targets
from onelog.record.encode import encode_stored
from onelog.record.forms import FORM_MASK, Form, form_of
from onelog.record.forms.unpacked import Unpacked
from onelog.store.outcomes import Aborted

_KEPT_BYTES_MAX = 8 << 20
"""Converted records that are kept: others read them, too."""
_NAMED_MAX, _NUMBER_DIGITS = 1_000, 11
_PIECE_BYTES = 300
"""What one takes beside its record."""


class MarkedTopics:
    """The table of topics that have records of other forms; `names` is what readers look at."""

    name = "forms"

    def __init__(self, tables: Tables, topics: Topics) -> None:
        self._tables = tables
        self.names: set[str] = set()
        self.batched: set[str] = set()
        """Those of them with batches, whose producers have to be known."""
        topics.on_change.append(self._topic_changed)

    def apply(self, key: str, value: Any) -> None:
        """Make one change."""
        if value is None:
            self.names.discard(key)
            self.batched.discard(key)
        else:
            self.names.add(key)
            if value:
                self.batched.add(key)

    def parts(self) -> list[dict[str, Any]]:
        return [{name: name in self.batched for name in self.names}]

    def mark(self, topic: str, *, batches: bool = True) -> None:
        """To be called before a record of another form is written into the topic."""
        if topic not in (self.batched if batches else self.names):
            self._tables.write([(self.name, topic, batches)])

    def _topic_changed(self, name: str, config: TopicConfig | None) -> None:
        if config is None and name in self.names:
            self._tables.write([(self.name, name, None)])


class ConvertedMessage(NamedTuple):
    """One message, and the record that a RocketMQ reader gets for it."""

    offset: int
    """In the queue that it is read from."""
    messages: int
    """How many messages that is: an inner batch of RocketMQ's own leaves whole."""
    message: Message
    record: bytes | memoryview


class Conversions:
    """Takes records apart, as far as they are wanted, and keeps the last messages that were."""

    def __init__(self, unpacking: Unpacking, bytes_max: int = _KEPT_BYTES_MAX) -> None:
        self._unpacking = unpacking
        self._bytes_max = bytes_max
        self._kept: OrderedDict[tuple[int, int, str, int, int], list[ConvertedMessage]] = (
            OrderedDict()
        )
        self._kept_bytes = 0

    def pieces(
        self,
        topic: str,
        queue_id: int,
        slices: Sequence[memoryview],
        aborted: Sequence[Aborted] = (),
        begin: int = 0,
    ) -> Iterator[ConvertedMessage]:
        """The messages in what was read from a queue, one by one, without aborted ones.

        Of what holds many, those from an offset on, and few before it. `ColdError` where a worker
        has to unpack the next record first.
        """
        for view in slices:
            at = 0
            while at < len(view):
                message = decode_message(view, at)
                record = view[at : at + message.size]
                at += message.size
                if message.sys_flag & FORM_MASK:
                    if aborted and is_of(message, aborted):
                        continue
                    yield from self._foreign(topic, queue_id, message, begin)
                else:
                    offset = offset_in(topic, queue_id, message)
                    yield ConvertedMessage(offset, message.inner_count, message, record)

    def _foreign(
        self, topic: str, queue_id: int, message: Message, begin: int
    ) -> Iterator[ConvertedMessage]:
        first = offset_in(topic, queue_id, message)
        if form_of(message.sys_flag) != Form.KAFKA:
            yield from self._run(topic, queue_id, message, first, None, 0)
            return
        try:
            unpacked = self._unpacking.of(message)
        except WireError as error:
            if begin <= first:  # Once, however many messages it claims.
                self._unpacking.pass_over(message, message.inner_count, str(error))
                yield _piece(topic, queue_id, first, message, message.queue_offset)
            return
        for number in unpacked.runs_from(begin - first):
            yield from self._run(topic, queue_id, message, first, unpacked, number)

    def _run(
        self,
        topic: str,
        queue_id: int,
        message: Message,
        first: int,
        unpacked: Unpacked | None,
        number: int,
    ) -> list[ConvertedMessage]:
        key = message.log_offset, message.store_ms, topic, queue_id, number
        pieces = self._kept.get(key)
        if pieces is not None:
            self._kept.move_to_end(key)
            return pieces
        # Only who has such records needs what reads them.
        from onelog.record.forms.conversion import as_rocketmq, in_rocketmq_form

        if unpacked is not None:
            found = self._unpacking.run(message, unpacked, number)
            converted: Iterable[Message] = as_rocketmq(message, found)
        else:
            try:
                converted = in_rocketmq_form(message)
            except WireError as error:
                self._unpacking.pass_over(message, 1, str(error))
                converted = [message]
        pieces = [_piece(topic, queue_id, first, each, message.queue_offset) for each in converted]
        self._keep(key, pieces)
        return pieces

    def _keep(self, key: tuple[int, int, str, int, int], pieces: list[ConvertedMessage]) -> None:
        self._kept[key] = pieces
        self._kept_bytes += _cost(pieces)
        while self._kept_bytes > self._bytes_max and self._kept:
            _, oldest = self._kept.popitem(last=False)
            self._kept_bytes -= _cost(oldest)


def _cost(pieces: list[ConvertedMessage]) -> int:
    return sum(len(piece.record) for piece in pieces) + _PIECE_BYTES * (len(pieces) + 1)


def _piece(topic: str, queue_id: int, first: int, message: Message, base: int) -> ConvertedMessage:
    offset = first + message.queue_offset - base
    moved = message._replace(topic=topic, queue_id=queue_id, queue_offset=QueueOffset(offset))
    return ConvertedMessage(offset, 1, moved, encode_stored(moved))


def is_of(message: Message, aborted: Sequence[Aborted]) -> bool:
    """Whether a record holds a batch of one of these transactions."""
    if form_of(message.sys_flag) != Form.KAFKA:
        return False
    from onelog.record.forms import kafka

    batch = kafka.read_head(message.body)
    return bool(batch.attributes & kafka.Attribute.TRANSACTIONAL) and any(
        each.producer_id == batch.producer_id
        and each.first_offset <= message.queue_offset <= each.last_offset
        for each in aborted
    )


def own_records(
    topic: str, queue_id: int, slices: Sequence[memoryview], aborted: Sequence[Aborted]
) -> Iterator[memoryview]:
    """The records that were read from a queue, as its own, without aborted ones."""
    for view in slices:
        at = 0
        while at < len(view):
            message = decode_message(view, at)
            record = view[at : at + message.size]
            at += message.size
            if aborted and is_of(message, aborted):
                continue
            if message.topic == COMPACTED_TOPIC:
                record = memoryview(encode_stored(message._replace(topic=topic, queue_id=queue_id)))
            yield record


def offset_in(topic: str, queue_id: int, message: Message) -> int:
    """The offset of a record in the queue that it was read from, which may not be its own."""
    if message.topic != topic:
        for target in targets(message):
            if (target.topic, target.queue_id) == (topic, queue_id):
                return target.queue_offset
    return message.queue_offset


def records_of(message: Message, count_max: int, key: str = "") -> list[memoryview]:
    """What RocketMQ's readers get for a stored message that was found by its place or a key; of a
    batch some messages, those with the key. For a worker: to take much apart takes a while."""
    if not message.sys_flag & FORM_MASK:
        return [memoryview(encode_stored(message))]
    from onelog.record.forms.conversion import rocketmq_messages

    found = (
        each
        for each in rocketmq_messages(message)
        if not key or key in message.keys or key in each.keys or key == each.unique_key
    )
    with unpacking_one:
        try:
            return [memoryview(encode_stored(each)) for each in islice(found, count_max)]
        except WireError:
            return [memoryview(encode_stored(message))]


def named_by(record: Message, unique_key: str, unpacking: Unpacking) -> Message:
    """The message that a consumer names by the place of its record and a unique key.

    `ColdError` if a worker has to unpack it first.
    """
    if not record.sys_flag & FORM_MASK:
        return record
    from onelog.record.forms.conversion import as_rocketmq

    # Keys that we gave end with the number; for senders' own some are gone through.
    own = f"{record.message_id}-"
    number = unique_key.removeprefix(own)
    is_ours = unique_key.startswith(own) and number.isdecimal() and len(number) < _NUMBER_DIGITS
    begin = int(number) if is_ours else 0
    messages = islice(unpacking.messages(record, begin), 1 if is_ours else _NAMED_MAX)
    for message in as_rocketmq(record, messages):
        if message.unique_key == unique_key:
            return message
    raise InvalidRequestError(
        f"the record at {record.log_offset} holds many messages, and none of them is {unique_key!r}"
    )
