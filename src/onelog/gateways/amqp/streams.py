"""A consumer of a stream: it reads the stream's topic by a cursor, and empties nothing.

Where it begins is what `x-stream-offset` says: `first`, `last`, `next` (which is the default), an
offset, a time, or an interval before now. Each delivery has its offset in the header of that name.
An acknowledgement gives room for another message, and that is all.

A topic of another protocol is a stream, too, without being declared. If it has several queues they
are all read, each from where `x-stream-offset` says, and each delivery has its queue in the header
`x-stream-partition`.
"""

import re
from collections.abc import Sequence
from functools import partial
from typing import TYPE_CHECKING, NamedTuple

from onelog.core.cursors.fetch import Cursor, Limits, Result
from onelog.core.cursors.forms import is_of, offset_in
from onelog.core.cursors.unpacking import ColdError
from onelog.core.queues.log_source import bodies_in
from onelog.core.routing.names import queue_of, topic_of
from onelog.errors import OnelogError
from onelog.gateways.amqp.refusals import unmet
from onelog.message import Buffer
from onelog.record.decode import decode_messages
from onelog.record.forms.amqp import properties_at
from onelog.record.forms.amqp_fields import Table, Timestamp, Value, with_headers
from onelog.store.reader import Fetched
from onelog.wire.amqp.frame import DeliveryWriter

if TYPE_CHECKING:
    from onelog.gateways.amqp.channel import Channel
    from onelog.gateways.amqp.consuming import Consuming

WAIT_MS = 60_000
BATCH_MAX = 256
BYTES_MAX = 256 << 10
_INTERVAL = re.compile(r"(\d{1,9})([YMDhms])")
_SECONDS = {"Y": 31_536_000, "M": 2_592_000, "D": 86_400, "h": 3_600, "m": 60, "s": 1}


class Stream(NamedTuple):
    """A topic that is read as a stream: one that was declared so, or one of another protocol."""

    name: str
    topic: str
    queues: int
    is_declared: bool = False

    def count(self, channel: "Channel") -> int:
        """How many messages it has."""
        broker, principal = channel.broker, channel.principal
        return sum(
            broker.topics.max_offset(principal, self.topic, each)
            - broker.topics.min_offset(principal, self.topic, each)
            for each in range(self.queues)
        )


def find_stream(channel: "Channel", name: str) -> Stream | None:
    """The topic of that name, if it is one of other protocols, and nobody's queue."""
    topic = topic_of(channel.vhost, name)
    if queue_of(topic) != (channel.vhost, name) or not channel.broker.publish.routing.is_topic(
        topic
    ):
        return None
    return Stream(name, topic, channel.broker.topics.require(channel.principal, topic).read_queues)


class StreamReader:
    """One consumer. It takes acknowledgements as a queue does."""

    def __init__(
        self, consuming: "Consuming", stream: Stream, tag: str, prefetch: int, start: Value
    ) -> None:
        self._consuming = consuming
        self._channel = consuming.channel
        self._broker = self._channel.broker
        self._principal = self._channel.principal
        self.queue = stream
        self._room = prefetch
        self._offsets = [self._first(start, queue_id) for queue_id in range(stream.queues)]
        self._turn = 0
        """The queue that is first in the next fetch."""
        self._is_reading = False
        self._is_stopped = False
        self._writer = DeliveryWriter(self._channel.number, tag, self._channel.session.frame_max)

    def _first(self, start: Value, queue_id: int) -> int:
        broker, principal, address = self._broker, self._principal, (self.queue.topic, queue_id)
        if start is None or start == "next":
            return broker.topics.max_offset(principal, *address)
        if start == "first":
            return broker.topics.min_offset(principal, *address)
        if start == "last":
            return max(
                broker.topics.min_offset(principal, *address),
                broker.topics.max_offset(principal, *address) - 1,
            )
        if isinstance(start, Timestamp):
            return broker.topics.offset_by_time(principal, *address, int(start) * 1000)
        if isinstance(start, int) and not isinstance(start, bool) and start >= 0:
            return start
        found = _INTERVAL.fullmatch(start) if isinstance(start, str) else None
        if found is None:
            raise unmet(f"invalid arg 'x-stream-offset': {start!r}")
        seconds = int(found[1]) * _SECONDS[found[2]]
        now_ms = self._channel.gateway.clock.now_ms()
        return broker.topics.offset_by_time(principal, *address, now_ms - seconds * 1000)

    # -- reading -------------------------------------------------------------------------------

    def start(self) -> None:
        """Read on, if there is room, and nothing is on its way."""
        session = self._channel.session
        if self._is_reading or self._is_stopped or self._room <= 0 or session.connection.congested:
            if session.connection.congested and not self._is_stopped:
                session.paused.add(self)
            return
        self._is_reading = True
        limits = Limits(
            min(self._room, BATCH_MAX), BYTES_MAX, BYTES_MAX, as_stored=True, committed=True
        )
        topic, count = self.queue.topic, len(self._offsets)
        order = [(self._turn + number) % count for number in range(count)]
        cursors = [Cursor(None, topic, each, self._offsets[each]) for each in order]
        self._broker.cursors.fetch(
            self._principal, cursors, limits, WAIT_MS, partial(self._fetched, order), self
        )

    resume = start

    def _fetched(self, order: Sequence[int], token: object, results: Sequence[Result]) -> None:
        self._is_reading = False
        if self._is_stopped:
            return
        items: list[tuple[int, bytes, bytes, Buffer]] = []
        for queue_id, fetched in zip(order, results, strict=True):
            if isinstance(fetched, OnelogError):
                self._consuming.gone_stream(self)
                return
            if len(items) < self._room:
                try:
                    self._take(queue_id, fetched, items)
                except ColdError as cold:
                    if not items:
                        self._is_reading = True
                        self._broker.cursors.prepare(
                            cold, partial(self._fetched, order, token, results)
                        )
                        return
                    break
                self._turn = queue_id + 1
        self._room -= len(items)
        if items:
            self._consuming.deliver_from(self, self._writer, items)
        self._channel.gateway.call_soon(self.start)

    def _take(
        self, queue_id: int, fetched: Fetched, items: list[tuple[int, bytes, bytes, Buffer]]
    ) -> None:
        """The messages that were read of a queue, as far as there is room for them."""
        topic, name, offset = self.queue.topic, self.queue.name, self._offsets[queue_id]
        _, aborted = self._broker.cursors.settled(
            self._principal, topic, queue_id, offset, fetched.next_offset
        )
        size = 0
        for message in (each for view in fetched.slices for each in decode_messages(view)):
            if aborted and is_of(message, aborted):
                continue
            first = offset_in(topic, queue_id, message)
            messages_in = self._broker.cursors.messages_in
            for delta, body in bodies_in(message, name, max(0, offset - first), messages_in):
                address = first + delta
                if len(items) >= self._room or size > BYTES_MAX:
                    self._offsets[queue_id] = address
                    return
                begin, end = properties_at(body)
                headers: Table = {"x-stream-offset": address}
                if self.queue.queues > 1:
                    headers["x-stream-partition"] = queue_id
                properties = with_headers(body[begin:end], headers)
                items.append((address, body[: begin - 4], properties, body[end:]))
                self._offsets[queue_id] = address + 1
                size += len(body)
        self._offsets[queue_id] = max(offset, fetched.next_offset)

    def stop(self) -> None:
        """Deliver nothing any more."""
        self._is_stopped = True
        self._channel.session.paused.discard(self)
        self._broker.groups.channel_closed(self)

    # -- as a queue ----------------------------------------------------------------------------

    def ack(self, places: Sequence[int]) -> None:
        """There is room for others."""
        self._room += len(places)
        self.start()

    reject = ack

    def requeue(self, places: Sequence[int], *, counted: bool = True) -> None:
        self.ack(places)

    def when_recorded(self, call: object) -> None:
        assert callable(call)
        call(None)
