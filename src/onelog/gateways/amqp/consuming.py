"""Consuming on a channel: consumers, deliveries, and what becomes of them.

A channel is a consumer session. Acknowledgements that arrive together on any of a connection's are
handed to their queues together (`AmqpSession.flush_acknowledgements`).

A stream is read, not emptied: what is delivered from one is acknowledged to its reader, which has
the same three verbs as a queue (`streams`).
"""

from collections.abc import Iterator, Sequence
from struct import Struct
from typing import TYPE_CHECKING, Any

from onelog.core.queues.consumers import Consumer, Window
from onelog.core.queues.deliveries import AMQP_FLAG, in_amqp_form
from onelog.core.queues.queue import WorkQueue
from onelog.core.queues.session import ConsumerSession, Settlement, settle
from onelog.errors import OnelogError, QueueNotFoundError
from onelog.gateways.amqp.refusals import (
    not_allowed,
    not_found,
    not_implemented,
    unmet,
)
from onelog.gateways.amqp.replies import REPLY_TO
from onelog.gateways.amqp.streams import Stream, StreamReader, find_stream
from onelog.message import Buffer
from onelog.record.forms.amqp_fields import Long, Table, with_headers
from onelog.wire.amqp.frame import DeliveryWriter, content_frames
from onelog.wire.amqp.methods import ENCODERS, NUMBERS

if TYPE_CHECKING:
    from onelog.gateways.amqp.channel import Channel

_U32 = Struct(">I")
_COUNT = "x-delivery-count"
CONSUMERS_MAX = 10_000
"""Of one channel."""

_GET_OK = ENCODERS["basic.get-ok"]
_GET = NUMBERS["basic.get"]


class Consuming(ConsumerSession):
    """The consumers of a channel, and what was delivered on it."""

    def __init__(self, channel: "Channel") -> None:
        super().__init__()
        self.channel = channel
        self.session = channel.session
        self.queues = channel.broker.queues.declared
        self.consumers: dict[str, Consumer | StreamReader] = {}
        self.window = Window(0)
        self.prefetch = 0
        """Of consumers that come from now on."""
        self.reply_name: str | None = None
        self._reply_tag = ""

    # -- consumers -----------------------------------------------------------------------------

    def qos(self, size: int, count: int, is_global: bool) -> None:
        if size:
            raise not_implemented(f"prefetch_size!=0 ({size})")
        if is_global:
            self.window.set_limit(count)
        else:
            self.prefetch = count
        self.channel.reply("basic.qos-ok")

    def consume(
        self,
        name: str,
        tag: str,
        no_local: bool,
        no_ack: bool,
        exclusive: bool,
        nowait: bool,
        arguments: Table,
    ) -> None:
        channel = self.channel
        if tag and (tag in self.consumers or tag == self._reply_tag):
            raise not_allowed(f"attempt to reuse consumer tag '{tag}'")
        if len(self.consumers) >= CONSUMERS_MAX:
            raise not_allowed(f"a channel has {CONSUMERS_MAX} consumers at most")
        tag = tag or f"amq.ctag-{self.session.random_name()}"
        if name == REPLY_TO:
            self._consume_replies(tag, no_ack, nowait)
            return
        name = self.named(name)
        priority = arguments.get("x-priority", 0)
        if not isinstance(priority, int):
            raise unmet(f"invalid arg 'x-priority' for queue '{name}': {priority!r}")
        stream = self.stream(name)
        if stream is not None:
            self._read_stream(stream, tag, no_ack, nowait, arguments)
            return
        consumer = self.queues.consume(
            channel.principal,
            channel.vhost,
            name,
            self._deliver,
            self._cancelled,
            tag=tag,
            no_ack=no_ack,
            on_bodies=self._deliver_bodies,
            exclusive=exclusive,
            priority=priority,
            prefetch=self.prefetch,
            window=self.window,
            arguments=arguments,
            owner=self.session,
        )
        consumer.data = DeliveryWriter(channel.number, tag, self.session.frame_max)
        self.consumers[tag] = consumer
        channel.answer(nowait, "basic.consume-ok", tag)
        if self.session.connection.congested:
            self.session.pause()

    def stream(self, name: str) -> Stream | None:
        """What a queue is that is read and not emptied; None if it is no such queue."""
        channel = self.channel
        try:
            queue = self.queues.find(channel.principal, channel.vhost, name, self.session)
        except QueueNotFoundError:
            found = find_stream(channel, name)
            if found is None:
                raise
            return found
        return Stream(name, queue.topic, 1, True) if queue.is_stream else None

    def _read_stream(
        self, queue: Stream, tag: str, no_ack: bool, nowait: bool, arguments: Table
    ) -> None:
        channel = self.channel
        limit = self.prefetch or self.window.limit
        if no_ack:
            raise not_implemented(
                f"automatic acknowledgement not supported by stream '{queue.name}'"
            )
        if not limit:
            raise unmet(f"consumer prefetch count is not set for 'stream queue '{queue.name}''")
        reader = StreamReader(self, queue, tag, limit, arguments.get("x-stream-offset"))
        self.consumers[tag] = reader
        channel.answer(nowait, "basic.consume-ok", tag)
        reader.start()

    def _consume_replies(self, tag: str, no_ack: bool, nowait: bool) -> None:
        if self.reply_name is not None:
            raise unmet("reply consumer already set")
        if not no_ack:
            raise unmet("reply consumer cannot acknowledge")
        self._reply_tag = tag
        self.reply_name = self.channel.gateway.replies.open(self.channel, tag)
        self.channel.answer(nowait, "basic.consume-ok", tag)

    def cancel(self, tag: str, nowait: bool) -> None:
        """basic.cancel; of one that is not there, too."""
        consumer = self.consumers.pop(tag, None)
        if consumer is not None:
            self._stop(consumer)
        elif tag == self._reply_tag:
            self._end_replies()
        self.channel.answer(nowait, "basic.cancel-ok", tag)

    def _stop(self, consumer: Consumer | StreamReader) -> None:
        if isinstance(consumer, StreamReader):
            consumer.stop()
        else:
            self.session.paused.discard(consumer)
            self.queues.cancel(consumer)

    def _end_replies(self) -> None:
        if self.reply_name is not None:
            self.channel.gateway.replies.close(self.reply_name)
            self.reply_name, self._reply_tag = None, ""

    def _cancelled(self, consumer: Consumer, reason: str) -> None:
        """The broker cancels a consumer: its queue is gone, or it took too long."""
        self.gone(consumer.tag)
        if reason == "timeout":
            text = f"delivery acknowledgement on channel {self.channel.number} timed out"
            self.channel.fail(unmet(text), 0)

    def gone_stream(self, reader: StreamReader) -> None:
        """A stream cannot be read any more."""
        for tag, consumer in self.consumers.items():
            if consumer is reader:
                self.gone(tag)
                return

    def gone(self, tag: str) -> None:
        """A consumer is no more; its client is told, if it understands that."""
        consumer = self.consumers.pop(tag, None)
        if isinstance(consumer, Consumer):
            self.session.paused.discard(consumer)
        if consumer is not None and self.session.can("consumer_cancel_notify"):
            # After the answer to who deleted the queue: that may be the same client.
            self.channel.gateway.call_soon(self._tell_gone, tag)

    def _tell_gone(self, tag: str) -> None:
        if not self.channel.is_closing:
            self.channel.reply("basic.cancel", tag, True)

    def named(self, name: str) -> str:
        """A queue's name; none is that of the queue that was declared last."""
        name = name or self.channel.queue
        if not name:
            raise not_found("no previously declared queue")
        return name

    # -- deliveries ----------------------------------------------------------------------------

    def unknown(self, tag: int) -> OnelogError:
        return unmet(f"unknown delivery tag {tag}")

    def _deliver(self, consumer: Consumer, deliveries: list[Any]) -> None:
        """basic.deliver, for each of these."""
        out: list[Buffer] = []
        writer: DeliveryWriter = consumer.data
        queue = consumer.queue
        first = tag = self.last_tag + 1
        is_counted = queue.kind == "quorum"
        add = out.append
        lead, size, like = writer.like
        for _, times, body, form, _, _ in deliveries:
            if len(body) == size and not times and form == AMQP_FLAG and body.startswith(lead):
                add(like(tag, body[len(lead) :]))
            else:
                self._put(out, writer, tag, times, body, form, is_counted=is_counted)
                lead, size, like = writer.like
            tag += 1
        self.last_tag = tag - 1
        if not consumer.no_ack:
            entries = [(queue, each[0]) for each in deliveries]
            self.unacked.update(zip(range(first, tag), entries, strict=True))
        self._send(out)

    def _deliver_bodies(
        self, consumer: Consumer, bodies: Sequence[bytes], forms: Sequence[int]
    ) -> None:
        """The same for new messages that are not acknowledged."""
        out: list[Buffer] = []
        writer: DeliveryWriter = consumer.data
        lead, size, like = writer.like
        skip, add = len(lead), out.append
        for tag, (body, form) in enumerate(zip(bodies, forms, strict=True), self.last_tag + 1):
            if len(body) == size and form == AMQP_FLAG and body.startswith(lead):
                add(like(tag, body[skip:]))
            else:
                self._put(out, writer, tag, 0, body, form)
                lead, size, like = writer.like
                skip = len(lead)
        self.last_tag += len(bodies)
        self._send(out)

    def _send(self, out: list[Buffer]) -> None:
        connection = self.session.connection
        connection.send(out)
        if connection.congested:
            self.session.pause()

    def _put(
        self,
        out: list[Buffer],
        writer: DeliveryWriter,
        tag: int,
        times: int,
        body: bytes,
        form: int,
        *,
        is_counted: bool = False,
    ) -> None:
        if form != AMQP_FLAG:
            body = bytes(in_amqp_form(body, form))
        # See record/forms/amqp: exchange and key are as they are delivered.
        at = 1 + body[0]
        at += 1 + body[at]
        begin = at + 4
        end = begin + _U32.unpack_from(body, at)[0]
        properties = body[begin:end]
        if times and is_counted:
            properties = with_headers(bytes(properties), {_COUNT: Long(times)})
        writer.put(out, tag, times > 0, body[:at], properties, body[end:])
        if not times and form == AMQP_FLAG:
            writer.expect(body[:end], body[:at], properties, len(body))

    def deliver_from(
        self,
        reader: StreamReader,
        writer: DeliveryWriter,
        items: list[tuple[int, bytes, bytes, Buffer]],
    ) -> None:
        """The same from a stream: offset, exchange and key, properties and body of each."""
        out: list[Buffer] = []
        for offset, position, properties, body in items:
            self.last_tag += 1
            writer.put(out, self.last_tag, False, position, properties, body)
            self.unacked[self.last_tag] = (reader, offset)
        self.session.connection.send(out)

    def get(self, name: str, no_ack: bool) -> None:
        channel = self.channel
        name = self.named(name)
        channel.wait()
        self.queues.get(
            channel.principal,
            channel.vhost,
            name,
            self._got,
            no_ack,
            no_ack=no_ack,
            owner=self.session,
        )

    def _got(
        self, no_ack: bool, delivery: Any, queue: WorkQueue, left: int, error: OnelogError | None
    ) -> None:
        channel = self.channel
        if channel.waiting is None:  # The channel has ended.
            if delivery is not None and not no_ack:
                queue.requeue([delivery[0]])
            return
        if error is not None:
            channel.waiting = None
            channel.fail(error, _GET)
            return
        if delivery is None:
            channel.reply("basic.get-empty")
        else:
            self._send_got(no_ack, delivery, queue, left)
        channel.resume()

    def _send_got(self, no_ack: bool, delivery: Any, queue: WorkQueue, left: int) -> None:
        position, times, data, form, _, _ = delivery
        data = bytes(in_amqp_form(data, form))
        at = 1 + data[0]
        exchange = data[1:at].decode()
        end = at + 1 + data[at]
        key = data[at + 1 : end].decode()
        begin = end + 4
        end = begin + int(_U32.unpack_from(data, end)[0])
        properties = data[begin:end]
        if queue.kind == "quorum":  # Who gets is told zero, too; a consumer is not.
            properties = with_headers(properties, {_COUNT: Long(times)})
        tag = self.next_tag()
        if not no_ack:
            self.unacked[tag] = (queue, position)
        payload = _GET_OK(tag, times > 0, exchange, key, left)
        number, frame_max = self.channel.number, self.session.frame_max
        self.session.connection.send(
            content_frames(number, payload, properties, memoryview(data)[end:], frame_max)
        )

    # -- what becomes of them ------------------------------------------------------------------

    def ack(self, tag: int, multiple: bool) -> None:
        if self.channel.publishing.mode == "tx":
            self._settle("ack", tag, multiple)
            return
        acknowledged = self.session.acknowledgements.waiting
        if multiple:
            for queue, position in self.ended(tag, True):
                if queue in acknowledged:
                    acknowledged[queue].append(position)
                else:
                    acknowledged[queue] = [position]
            return
        try:
            queue, position = self.unacked.pop(tag)
        except KeyError:
            raise self.unknown(tag) from None
        acknowledged.setdefault(queue, []).append(position)

    def nack(self, tag: int, multiple: bool, requeue: bool) -> None:
        found = self.unacked.get(tag)
        if found is not None and isinstance(found[0], StreamReader):
            raise not_implemented(
                "basic.nack and basic.reject not supported by stream queues queue "
                f"'{found[0].queue.name}' in vhost '{self.channel.vhost}'"
            )
        self._settle("requeue" if requeue else "reject", tag, multiple)

    def reject(self, tag: int, requeue: bool) -> None:
        self.nack(tag, False, requeue)

    def recover(self, requeue: bool) -> None:
        """basic.recover, basic.recover-async."""
        if not requeue:
            raise not_implemented("requeue=false")
        settle("requeue", self.ended(0, True))

    def _settle(self, how: Settlement, tag: int, multiple: bool) -> None:
        """Now, or with the transaction."""
        publishing = self.channel.publishing
        if publishing.mode == "tx":
            publishing.settling.append((how, self.taken(tag, multiple)))
        else:
            settle(how, self.ended(tag, multiple))

    def ending(self) -> Iterator[None]:
        """The channel is gone: cancel its consumers, and give back what was not acknowledged."""
        self._end_replies()
        consumers, self.consumers = self.consumers, {}
        for consumer in consumers.values():
            self._stop(consumer)
            yield
        yield from self.giving_back(counted=True)
