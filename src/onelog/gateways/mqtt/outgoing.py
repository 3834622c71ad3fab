"""What is on its way to one client: packet ids, the client's window, and what it has answered.

Messages come from three sides. The client's own queue in the log (a durable session) hands out
places, and a place is the packet id: `position % 32767 + 1`, so that a message has the same id when
it comes again, after a reconnect or a restart, without a record for each. Queues of shared filters
hand out places too; those get a free id from 32768 on. What is for a session without a queue comes
at once, and waits here in memory while the window is full.

    QoS 1    PUBLISH -> PUBACK: the place is acknowledged
    QoS 2    PUBLISH -> PUBREC: the place is acknowledged, and it is recorded that the client has
             the message; then PUBREL -> PUBCOMP: the record goes
             of a shared filter, in a durable session: it is recorded before the PUBLISH that the
             message is this client's, with its id; the place is done before the PUBREL

Invariants: at most `window` packet ids are in use, and none twice. A client of a durable session is
told to forget an id only when it is recorded that it has the message.
"""

from collections import deque
from collections.abc import Iterator
from typing import NamedTuple, Protocol

from onelog.core.queues.session import Acknowledgements, ConsumedQueue, by_queue
from onelog.gateways.mqtt.encoded_publish import NO_PUBLISH, EncodedPublish, Halves
from onelog.wire.mqtt.codes import PACKET_ID_MAX, V5, Packet, Reason
from onelog.wire.mqtt.packets import encode_answer

DUPLICATE = 8
OWN_IDS = 32_767
"""Packet ids of messages of the client's own queue; those above are for others."""
WAITING_MAX = 10_000
WAITING_BYTES_MAX = 32 << 20
"""What waits in memory for a client whose window is full; more is dropped, and counted."""


class Wire(Protocol):
    """A connection, as far as it is used here."""

    congested: bool

    def write(self, data: bytes) -> None:
        """Send it at the end of the tick."""

    def turn_is_over(self) -> bool:
        """Whether others are to have their turn."""


class Recorder(Protocol):
    """Records for a durable session what a restart of the broker must not forget."""

    def assign(self, packet_id: int, sent: "UnacknowledgedPublish") -> None:
        """That a message of a shared queue is this client's; then `Outgoing.assigned` is called."""

    def release(self, packet_id: int, sent: "UnacknowledgedPublish") -> None:
        """That the client has a message; then `Outgoing.released` is called."""

    def complete(self, packet_id: int, sent: "UnacknowledgedPublish") -> None:
        """That the packet id is free."""


class UnacknowledgedPublish(NamedTuple):
    """A message that the client has not answered for."""

    publish: EncodedPublish | None
    """None once the client has it, and only its packet id is in use."""
    qos: int
    halves: Halves
    queue: ConsumedQueue | None
    """Where its place is; None for what is in memory only."""
    position: int
    is_shared: bool


_LIVE = [UnacknowledgedPublish(NO_PUBLISH, qos, (b"", b""), None, 0, True) for qos in range(3)]
"""What is in memory only is not sent again: no more is known of it."""


class Grant(NamedTuple):
    """How the messages of a topic come to a client."""

    qos: int
    keeps_retain: bool
    ids: tuple[int, ...]
    is_plain: bool = True
    """Whether nothing of it shows in a packet but the QoS."""


class Outgoing:
    """The messages on their way to one connected client."""

    __slots__ = (
        "_alias_max _aliases _bytes_max _connection held _held_bytes _is_plain _last_id "
        "_level acknowledge acknowledgements dropped in_flight recorder send settle window"
    ).split()

    def __init__(
        self,
        level: int,
        connection: Wire,
        window: int,
        bytes_max: int,
        alias_max: int,
    ) -> None:
        self._level = level
        self._connection = connection
        self.send = connection.write
        self.window = min(window, OWN_IDS)
        self._bytes_max = bytes_max
        self._alias_max = alias_max
        self._aliases: dict[bytes, int] = {}
        self.recorder: Recorder | None = None
        """Of a durable session."""
        self.in_flight: dict[int, UnacknowledgedPublish] = {}
        self.held: (
            deque[tuple[EncodedPublish, Grant, ConsumedQueue | None, int, bool, bool]] | None
        ) = None
        self._held_bytes = 0
        self.acknowledgements = Acknowledgements()
        self.acknowledge = self.acknowledgements.add
        self.settle = self.acknowledgements.flush
        self._last_id = OWN_IDS
        self._is_plain = not bytes_max and not alias_max
        """Whether packets are the same for all who have no wishes of their own."""
        self.dropped = 0

    # -- to the client -------------------------------------------------------------------------

    def offer(self, publish: EncodedPublish, grant: Grant, now_ms: int) -> None:
        """A message for a session without a queue, or one that is not worth keeping."""
        connection = self._connection
        if grant.qos == 0 or publish.qos == 0:
            if connection.congested:
                self.dropped += 1
                return
            if self._is_plain and grant.is_plain and publish.is_plain:
                connection.write(publish.plain(self._level, 0)[0])
                return
            halves = self._halves(publish, 0, grant, now_ms)
            if halves is not None:
                if self._alias_max:
                    halves = self._aliased(publish, halves, grant.ids, now_ms)
                self.send(halves[0])
        elif self.held or connection.congested or len(self.in_flight) >= self.window:
            self._hold(publish, grant, None, 0, False, False)
        elif self._is_plain and grant.is_plain and publish.is_plain:
            live = _LIVE[min(publish.qos, grant.qos)]
            head, tail = publish.plain(self._level, live.qos)
            packet_id = self._free_id()
            self.in_flight[packet_id] = live
            connection.write(b"%b%c%c%b" % (head, packet_id >> 8, packet_id & 255, tail))
        else:
            self._deliver(publish, grant, None, 0, False, False, now_ms)

    def _hold(
        self,
        publish: EncodedPublish,
        grant: Grant,
        queue: ConsumedQueue | None,
        position: int,
        again: bool,
        own: bool,
    ) -> None:
        if self.held is None:
            self.held = deque()
        if queue is None:
            is_full = self._held_bytes > WAITING_BYTES_MAX or len(self.held) >= WAITING_MAX
            if is_full:
                self.dropped += 1
                return
            self._held_bytes += len(publish.payload)
        self.held.append((publish, grant, queue, position, again, own))

    def take(
        self,
        publish: EncodedPublish,
        grant: Grant | None,
        queue: ConsumedQueue,
        position: int,
        now_ms: int,
        *,
        again: bool,
        is_own: bool,
    ) -> None:
        """A message of a queue; without a grant it is not wanted any more."""
        is_late = publish.expires_ms is not None and publish.expires_ms <= now_ms
        if grant is None or is_late:
            self.acknowledge(queue, position)
        elif not self.has_room or (is_own and self._is_used(position)):
            self._hold(publish, grant, queue, position, again, is_own)
        else:
            self._deliver(publish, grant, queue, position, again, is_own, now_ms)

    def _is_used(self, position: int) -> bool:
        return position % OWN_IDS + 1 in self.in_flight

    def _deliver(
        self,
        publish: EncodedPublish,
        grant: Grant,
        queue: ConsumedQueue | None,
        position: int,
        again: bool,
        is_own: bool,
        now_ms: int,
    ) -> None:
        qos = min(publish.qos, grant.qos)
        is_assigned = queue is not None and qos == 2 and not is_own and self.recorder is not None
        if qos and self._is_plain and grant.is_plain and publish.is_plain and not is_assigned:
            same = publish.plain(self._level, qos)
            packet_id = position % OWN_IDS + 1 if is_own else self._free_id()
            self.in_flight[packet_id] = tuple.__new__(
                UnacknowledgedPublish, (publish, qos, same, queue, position, not is_own)
            )
            self._send(packet_id, same, again)
            return
        halves = self._halves(publish, qos, grant, now_ms)
        aliased = halves
        if self._alias_max and halves is not None and not is_assigned:
            aliased = self._aliased(publish, halves, grant.ids, now_ms)
        if halves is None or aliased is None or qos == 0:
            if aliased is not None:
                self.send(aliased[0])
            if queue is not None:
                self.acknowledge(queue, position)
            return
        packet_id = position % OWN_IDS + 1 if is_own else self._free_id()
        sent = self.in_flight[packet_id] = UnacknowledgedPublish(
            publish, qos, halves, queue, position, not is_own
        )
        if is_assigned:
            assert self.recorder is not None
            self.recorder.assign(packet_id, sent)
        else:
            self._send(packet_id, aliased, again)

    def assigned(self, packet_id: int, sent: UnacknowledgedPublish) -> None:
        """It is recorded that a message is this client's: send it."""
        if self.in_flight.get(packet_id) is sent:
            self._send(packet_id, sent.halves, False)

    def _send(self, packet_id: int, halves: Halves, again: bool) -> None:
        head, tail = halves
        if again:
            head = bytes((head[0] | DUPLICATE,)) + head[1:]
        self.send(b"%b%b%b" % (head, packet_id.to_bytes(2, "big"), tail))

    def _free_id(self) -> int:
        packet_id = self._last_id
        while True:
            packet_id = packet_id + 1 if packet_id < PACKET_ID_MAX else OWN_IDS + 1
            if packet_id not in self.in_flight:
                self._last_id = packet_id
                return packet_id

    def _halves(
        self, publish: EncodedPublish, qos: int, grant: Grant, now_ms: int
    ) -> Halves | None:
        """The packet; None if it is larger than the client takes."""
        if publish.flags & 0x80:
            flags = qos << 1 | 1
        else:
            flags = qos << 1 | (publish.flags & 1 if grant.keeps_retain else 0)
        halves = publish.halves(self._level, flags, grant.ids, now_ms)
        if self._bytes_max and len(halves[0]) + len(halves[1]) + 2 > self._bytes_max:
            self.dropped += 1
            return None
        return halves

    def _aliased(
        self, publish: EncodedPublish, halves: Halves, ids: tuple[int, ...], now_ms: int
    ) -> Halves:
        """The same with an alias, which holds for this connection."""
        alias = self._aliases.get(publish.topic, 0)
        is_new = alias == 0
        if is_new:
            if len(self._aliases) >= self._alias_max:
                return halves
            alias = self._aliases[publish.topic] = len(self._aliases) + 1
        return publish.aliased(halves[0][0] & 15, ids, alias, is_new, now_ms)

    def go_on(self, now_ms: int) -> None:
        """Send what waits, as far as the window lets it."""
        held = self.held
        while held and not self._connection.congested and len(self.in_flight) < self.window:
            publish, grant, queue, position, again, is_own = held[0]
            if is_own and self._is_used(position):
                break
            held.popleft()
            if queue is None:
                self._held_bytes -= len(publish.payload)
            if publish.expires_ms is not None and publish.expires_ms <= now_ms:
                if queue is not None:
                    self.acknowledge(queue, position)
                continue
            self._deliver(publish, grant, queue, position, again, is_own, now_ms)

    @property
    def waits(self) -> bool:
        """Whether there is something to go on with."""
        return bool(self.held or self.acknowledgements.waiting)

    def turn_is_over(self) -> bool:
        """Whether to go on in the client's next turn."""
        return self._connection.turn_is_over()

    @property
    def has_room(self) -> bool:
        """Whether more may come from what can wait elsewhere."""
        return (
            not self.held and not self._connection.congested and len(self.in_flight) < self.window
        )

    # -- from the client -----------------------------------------------------------------------

    def got_puback(self, packet_id: int) -> None:
        """PUBACK: the client has a message of QoS 1."""
        sent = self.in_flight.get(packet_id)
        if sent is not None and sent.qos == 1:
            del self.in_flight[packet_id]
            if sent.queue is not None:
                self.acknowledge(sent.queue, sent.position)

    def got_pubrec(self, packet_id: int, reason: int) -> None:
        """PUBREC: the client has a message of QoS 2, or does not want it."""
        sent = self.in_flight.get(packet_id)
        if sent is None or sent.qos != 2:
            if reason < 0x80:
                self._release(packet_id, Reason.PACKET_ID_NOT_FOUND)
            return
        if sent.publish is not None and sent.queue is not None:
            self.acknowledge(sent.queue, sent.position)
        recorder = self.recorder if sent.queue is not None else None
        if reason >= 0x80:
            del self.in_flight[packet_id]
            if recorder is not None and (sent.is_shared or sent.publish is None):
                recorder.complete(packet_id, sent)
            return
        self.in_flight[packet_id] = sent._replace(publish=None)
        if sent.publish is None or recorder is None:
            self._release(packet_id)
        else:
            recorder.release(packet_id, sent)

    def _release(self, packet_id: int, reason: int = 0) -> None:
        reason = reason if self._level == V5 else 0
        self.send(encode_answer(Packet.PUBREL, self._level, packet_id, reason))

    def released(self, packet_id: int) -> None:
        """It is recorded that the client has a message: it may forget the packet id."""
        if packet_id in self.in_flight:
            self._release(packet_id)

    def got_pubcomp(self, packet_id: int) -> UnacknowledgedPublish | None:
        """PUBCOMP: the packet id is free again. What was sent with it, if that was so."""
        sent = self.in_flight.get(packet_id)
        if sent is None or sent.qos != 2 or sent.publish is not None:
            return None
        return self.in_flight.pop(packet_id)

    # -- over connections ----------------------------------------------------------------------

    def resume(
        self, packet_id: int, queue: ConsumedQueue | None, position: int, *, is_shared: bool
    ) -> None:
        """An id that another connection ended with, of a message that the client has."""
        self.in_flight[packet_id] = UnacknowledgedPublish(
            None, 2, (b"", b""), queue, position, is_shared
        )
        self._release(packet_id)

    def send_again(
        self,
        packet_id: int,
        publish: EncodedPublish,
        grant: Grant,
        queue: ConsumedQueue,
        position: int,
        now_ms: int,
    ) -> None:
        """A message of a shared filter that another connection ended with."""
        halves = self._halves(publish, 2, grant, now_ms)
        if halves is None:
            self.acknowledge(queue, position)
            self.resume(packet_id, queue, position, is_shared=True)
        else:
            self.in_flight[packet_id] = UnacknowledgedPublish(
                publish, 2, halves, queue, position, True
            )
            self._send(packet_id, halves, True)

    def giving_back(self, own: ConsumedQueue | None, *, is_over: bool) -> Iterator[None]:
        """The connection is gone. What others may have goes back; the rest is this client's.

        A step for each queue; the first one, before anybody else has a turn, is its own.

        A message of a shared filter with QoS 2 is nobody else's once it was sent (4.8.2).
        """
        back: list[tuple[ConsumedQueue, int]] = []
        for sent in self.in_flight.values():
            if sent.queue is None or sent.publish is None:
                continue
            if not sent.is_shared or sent.qos != 2:
                back.append((sent.queue, sent.position))
            elif is_over:
                self.acknowledge(sent.queue, sent.position)
        for _, _, queue, position, _, _ in self.held or ():
            if queue is not None:
                back.append((queue, position))
        self.in_flight = {}
        self.held = self.recorder = None
        done, self.acknowledgements.waiting = self.acknowledgements.waiting, {}
        places = by_queue(back)
        for queue in sorted({**done, **places}, key=lambda queue: queue is not own):
            if queue in done:
                queue.ack(done[queue])
            if queue in places:
                queue.requeue(places[queue], counted=False)
            yield
