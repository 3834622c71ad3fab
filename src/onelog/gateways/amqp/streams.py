"""A consumer of a stream: it reads the stream's topic by a cursor, and empties nothing.

Where it begins is what `x-stream-offset` says: `first`, `last`, `next` (which is the default), an
offset, a time, or an interval before now. Each delivery has its offset in the header of that name.
An acknowledgement gives room for another message, and that is all.
"""

import re
from collections.abc import Sequence
from typing import TYPE_CHECKING

from onelog.core.cursors.fetch import Cursor, Limits, Result
from onelog.core.cursors.forms import place_in
from onelog.errors import OnelogError
from onelog.gateways.amqp.refusals import unmet
from onelog.message import Buffer
from onelog.record.decode import decode_messages
from onelog.record.forms.amqp import properties_at
from onelog.record.forms.amqp_fields import Timestamp, Value, with_headers
from onelog.record.forms.conversion import in_amqp_form
from onelog.wire.amqp.frame import DeliveryWriter

if TYPE_CHECKING:
    from onelog.core.workqueues.queue import WorkQueue
    from onelog.gateways.amqp.consuming import Consuming

WAIT_MS = 60_000
BATCH_MAX = 256
BYTES_MAX = 256 << 10
_INTERVAL = re.compile(r"(\d{1,9})([YMDhms])")
_SECONDS = {"Y": 31_536_000, "M": 2_592_000, "D": 86_400, "h": 3_600, "m": 60, "s": 1}


class StreamReader:
    """One consumer. It takes acknowledgements as a queue does."""

    def __init__(
        self, consuming: "Consuming", queue: "WorkQueue", tag: str, prefetch: int, start: Value
    ) -> None:
        self._consuming = consuming
        self._channel = consuming.channel
        self._broker = self._channel.broker
        self._who = self._channel.who
        self.queue = queue
        self._room = prefetch
        self._offset = self._first(start)
        self._is_reading = False
        self._is_stopped = False
        self._writer = DeliveryWriter(self._channel.number, tag, self._channel.session.frame_max)

    def _first(self, start: Value) -> int:
        broker, who, topic = self._broker, self._who, self.queue.topic
        if start is None or start == "next":
            return broker.max_offset(who, topic, 0)
        if start == "first":
            return broker.min_offset(who, topic, 0)
        if start == "last":
            return max(broker.min_offset(who, topic, 0), broker.max_offset(who, topic, 0) - 1)
        if isinstance(start, Timestamp):
            return broker.offset_by_time(who, topic, 0, int(start) * 1000)
        if isinstance(start, int) and not isinstance(start, bool) and start >= 0:
            return start
        found = _INTERVAL.fullmatch(start) if isinstance(start, str) else None
        if found is None:
            raise unmet(f"invalid arg 'x-stream-offset': {start!r}")
        seconds = int(found[1]) * _SECONDS[found[2]]
        now_ms = self._channel.gateway.clock.now_ms()
        return broker.offset_by_time(who, topic, 0, now_ms - seconds * 1000)

    # -- reading -------------------------------------------------------------------------------

    def start(self) -> None:
        """Read on, if there is room, and nothing is on its way."""
        session = self._channel.session
        if self._is_reading or self._is_stopped or self._room <= 0 or session.connection.congested:
            if session.connection.congested and not self._is_stopped:
                session.paused.add(self)
            return
        self._is_reading = True
        limits = Limits(min(self._room, BATCH_MAX), BYTES_MAX, BYTES_MAX, as_stored=True)
        cursor = Cursor(None, self.queue.topic, 0, self._offset)
        self._broker.fetch(self._who, [cursor], limits, WAIT_MS, self._fetched, self)

    resume = start

    def _fetched(self, _: object, results: Sequence[Result]) -> None:
        self._is_reading = False
        if self._is_stopped:
            return
        (fetched,) = results
        if isinstance(fetched, OnelogError):
            self._consuming.gone_stream(self)
            return
        items: list[tuple[int, bytes, bytes, Buffer]] = []
        topic, name, offset = self.queue.topic, self.queue.name, self._offset
        for view in fetched.slices:
            for message in decode_messages(view):
                first = place_in(topic, 0, message)
                for delta, body in in_amqp_form(message, name):
                    place = first + delta
                    if place < offset or len(items) >= self._room:
                        continue
                    begin, end = properties_at(body)
                    properties = with_headers(body[begin:end], {"x-stream-offset": place})
                    items.append((place, body[: begin - 4], properties, body[end:]))
        self._offset = items[-1][0] + 1 if items else max(offset, fetched.next_offset)
        self._room -= len(items)
        if items:
            self._consuming.deliver_from(self, self._writer, items)
        self._channel.gateway.call_soon(self.start)

    def stop(self) -> None:
        """Deliver nothing any more."""
        self._is_stopped = True
        self._channel.session.paused.discard(self)
        self._broker.channel_closed(self)

    # -- as a queue ----------------------------------------------------------------------------

    def ack(self, places: Sequence[int]) -> None:
        """There is room for others."""
        self._room += len(places)
        self.start()

    requeue = reject = ack

    def when_recorded(self, call: object) -> None:
        """Nothing is recorded."""
        assert callable(call)
        call(None)
