"""One connection of an MQTT client: packets in, answers out.

It is fed bytes by any connection, a socket or a WebSocket. Messages of the client are answered in
the order in which they came (4.6 of version 5), each when it is as safe as the broker is configured
to have it: `_answers` has a place for each. Of QoS 2 in a durable session it is recorded, in the
same append, that the message is here; its packet id is free again when it is recorded that the
client has released it.

Invariants: a packet id of QoS 2 brings one message, whatever happens between its packets. A client
that sends more than it may, or what it may not, is told the reason that version 5 has for that, and
the connection is closed.
"""

import logging
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any

from onelog.core.access import Principal
from onelog.core.durable.writer import nobody
from onelog.core.sessions.sessions import FOREVER_S
from onelog.errors import (
    BrokerBusyError,
    MessageTooLargeError,
    NotMasterError,
    NotPermittedError,
    OnelogError,
    PropertiesTooLargeError,
    QueueFullError,
    StoreError,
    WireError,
)
from onelog.gateways import code_of
from onelog.gateways.mqtt.client import MqttClient
from onelog.gateways.mqtt.connecting import Greeting, greet
from onelog.gateways.mqtt.filters import LEVELS_MAX, SYS, PublishTopic, read_filter
from onelog.gateways.mqtt.outgoing import Outgoing
from onelog.gateways.mqtt.subscriptions import NO_LOCAL, Subscribed
from onelog.message import NewMessage
from onelog.net.connection import Connection, FramedSession
from onelog.wire.mqtt import packets
from onelog.wire.mqtt.codes import V5, V311, Packet, PacketError, Reason
from onelog.wire.mqtt.packets import PacketReader
from onelog.wire.mqtt.properties import Properties, Property, property_list

if TYPE_CHECKING:
    from onelog.gateways.mqtt.clients import Clients, Will


REASONS: dict[type[OnelogError], Reason] = {
    NotPermittedError: Reason.NOT_AUTHORIZED,
    QueueFullError: Reason.QUOTA_EXCEEDED,
    BrokerBusyError: Reason.QUOTA_EXCEEDED,
    MessageTooLargeError: Reason.PACKET_TOO_LARGE,
    PropertiesTooLargeError: Reason.PACKET_TOO_LARGE,
    WireError: Reason.MALFORMED_PACKET,
    StoreError: Reason.IMPLEMENTATION_SPECIFIC,
    NotMasterError: Reason.USE_ANOTHER_SERVER,
    OnelogError: Reason.UNSPECIFIED,
}


def reason_of(error: OnelogError) -> Reason:
    """The reason that an error is told as."""
    if isinstance(error, PacketError):
        return error.reason
    return code_of(error, REASONS, Reason.UNSPECIFIED)


log = logging.getLogger(__name__)

CONNECT_BYTES_MAX = 512 << 10
"""What a client may send before it has said who it is."""
CONNECT_MS_MAX = 10_000
END_MS_MAX = 2_000
"""How long a client may take to close a connection that has ended."""
ANSWERS_MAX = 10_000
"""Messages of a client that may wait for the disk; more stay unread."""
SPANS_MAX = 1_000
KNOWN_MAX = 1_000
"""Topics, and properties, that a connection remembers to be right."""
SUBSCRIPTIONS_MAX = 10_000

_PUBLISH, _PUBACK, _PUBREC = Packet.PUBLISH, Packet.PUBACK, Packet.PUBREC
_Answer = list[Any]
"""A place for an answer: its bytes, or None as long as there is none; the QoS and the packet id."""


class MqttSession(FramedSession):
    """One connection."""

    _reader: PacketReader

    def __init__(self, connection: Connection, clients: "Clients") -> None:
        super().__init__(connection)
        connection.idle_ms = 0  # Keep alive has its own rules.
        self._reader = PacketReader(CONNECT_BYTES_MAX)
        self._clients = clients
        self._level = V311
        self._client: MqttClient | None = None
        self.client_id = ""
        self._name = b""
        self._principal = Principal("", "mqtt", connection.remote_address)
        self._expiry_s = 0
        self._will: Will | None = None
        self._silence_ms = 0
        self._seen_ms = clients.now_ms()
        self._is_alive = False
        self._is_late = False
        """Whether what arrives waits until it is known who the client is."""
        self._is_held = False
        self._answers: deque[_Answer] = deque()
        self._received: set[int] = set()
        """Packet ids of QoS 2 that the client has not released, in a session that is not durable.
        """
        self._topics: dict[bytes, PublishTopic] = {}
        self._known: dict[bytes, tuple[bytes, int]] = {}
        self._aliases: dict[int, bytes] = {}
        self._receive_max = ANSWERS_MAX
        self._tells_reasons = True
        clients.sessions.add(self)

    # -- the connection ------------------------------------------------------------------------

    def data_received(self, data: bytes) -> None:
        """Bytes arrived."""
        client = self._client
        if len(data) != 4 or data[:2] != b"\x40\2" or client is None or self._is_busy:
            super().data_received(data)
            return
        self._is_alive = True  # A PUBACK by itself, of one of many who got the same.
        client.outgoing.got_puback(data[2] << 8 | data[3])
        client.go_on()

    @property
    def _is_busy(self) -> bool:
        return self._is_late or bool(self._work) or self._reader.unread_bytes > 0

    def _handle_read(self) -> None:
        self._is_alive = True
        if self._is_late:
            return
        try:
            self._handle_some()
        except PacketError as error:
            self._refuse(error)

    def _handle_some(self) -> None:
        """Handle packets until the turn is over; the rest waits for the next one."""
        reader, connection = self._reader, self.connection
        late = self._clients.broker.publish.routing.late
        while len(self._answers) < ANSWERS_MAX and not connection.congested:
            if late:
                connection.wait_for_turn()  # So many get what was published: it takes its time.
                return
            spans = reader.spans(SPANS_MAX)
            if not spans:
                if self._client is not None and self._client.replays:
                    self._client.go_on()
                return
            for head, at, end in spans:
                if head >> 4 == 3 and self._client is not None:
                    self._publish(head, at, end)
                elif head == 0x40 and end - at == 2 and self._client is not None:
                    # A PUBACK as nearly all are.
                    data = reader.data
                    self._client.outgoing.got_puback(data[at] << 8 | data[at + 1])
                else:
                    self._handle(head, at, end)
                if connection.closing:
                    return
                if self._is_late:
                    reader.give_back(end)
                    self._is_held = True
                    connection.hold()
                    return
                if late or connection.turn_is_over():
                    reader.give_back(end)
                    connection.wait_for_turn()
                    self._client_goes_on()
                    return
            self._client_goes_on()

    def _client_goes_on(self) -> None:
        client = self._client
        # For most clients nothing waits, and to look costs less than a call.
        if client is not None:
            outgoing = client.outgoing
            if client.replays or outgoing.held or outgoing.acknowledgements.waiting:
                client.go_on()

    def writable(self) -> None:
        """The peer reads again."""
        super().writable()
        self._client_goes_on()

    def connection_lost(self) -> None:
        """The connection is gone, without a goodbye."""
        self._clients.sessions.discard(self)
        self._leave(self._will)

    def _leave(self, will: "Will | None") -> None:
        client, self._client = self._client, None
        if client is not None:
            if will is not None and not self._clients.may(self._principal, "publish", will.topic):
                will = None  # It was permitted when the client came.
            self._will = None
            self._clients.sys.left(client)
            client.leave(is_over=self._expiry_s == 0)
            self._answers.clear()
            self._clients.go(self.client_id, self._expiry_s, will)

    def taken_over(self) -> None:
        """Another connection has the same client id."""
        self._end(Reason.SESSION_TAKEN_OVER, "another connection has this client id")

    def shut_down(self) -> None:
        """The broker stops; sessions and wills are looked after when it starts again."""
        self._will, client = None, self._client
        if client is not None and self._level == V5:
            self.connection.write(
                packets.encode_ending(Packet.DISCONNECT, V5, Reason.SERVER_SHUTTING_DOWN)
            )
        self._client = None
        self.connection.close()

    def check_time(self, now_ms: int) -> None:
        """Close if the client is silent for too long."""
        if self._is_alive:
            self._is_alive = False
            self._seen_ms = now_ms
        silent_ms = now_ms - self._seen_ms
        if self._client is None:
            if silent_ms > (END_MS_MAX if self.connection.closing else CONNECT_MS_MAX):
                self.connection.abort()
        elif self._silence_ms and silent_ms > self._silence_ms:
            self._end(Reason.KEEP_ALIVE_TIMEOUT, f"nothing came for {silent_ms} ms")

    def _refuse(self, error: PacketError) -> None:
        log.info("%s broke the rules of MQTT: %s", self.connection, error)
        if self._client is None and self._level == V5:
            self.connection.write(packets.encode_connack(V5, False, error.reason, {}))
        elif self._client is None and error.reason == Reason.UNSUPPORTED_VERSION:
            self.connection.write(packets.encode_connack(V311, False, error.reason, {}))
        self._end(error.reason, str(error))

    def _end(self, reason: Reason, text: str) -> None:
        """Close the connection, and say why."""
        will = self._will
        if self._client is not None and self._level == V5:
            about: Properties = {Property.REASON_STRING: text} if self._tells_reasons else {}
            self.connection.write(packets.encode_ending(Packet.DISCONNECT, V5, reason, about))
        self._leave(will)
        self._seen_ms = self._clients.now_ms()
        self.connection.end()

    # -- packets -------------------------------------------------------------------------------

    def _handle(self, head: int, at: int, end: int) -> None:
        kind = head >> 4
        packets.require_flags(head)
        if self._client is None:
            if kind != Packet.CONNECT:
                raise PacketError("the first packet is no CONNECT", Reason.PROTOCOL_ERROR)
            self._connect(at, end)
            return
        handle = HANDLERS.get(kind)
        if handle is None:
            raise PacketError(f"a client does not send packet {kind}", Reason.PROTOCOL_ERROR)
        handle(self, head, at, end)

    def _connect(self, at: int, end: int) -> None:
        data = self._reader.data
        if end - at > 6 and data[at + 6] & 0x7F == V5 and data[at : at + 6] == b"\0\4MQTT":
            self._level = V5
        connect = packets.read_connect(data, at, end)
        self._level = connect.level
        greeting = greet(connect, self._clients.config, self._clients.context.random)
        if greeting.reason:
            properties: Properties = {}
            if greeting.text:
                properties[Property.REASON_STRING] = greeting.text
            answer = packets.encode_connack(self._level, False, greeting.reason, properties)
            self.connection.write(answer)
            self.connection.close()
            return
        self._is_late = True  # What follows waits until it is known who that is.
        then = partial(self._logged_in, greeting, connect)
        logins, where = self._clients.broker.users.logins, self.connection.remote_address
        certified = logins.certified(self.connection.certificate, "mqtt", where)
        if (
            connect.user is None
            and connect.password is None
            and (certified is not None or not logins.is_needed)
        ):
            then(certified or Principal("", "mqtt", where))
        else:
            password = (connect.password or b"").decode("utf-8", "replace")
            logins.log_in(connect.user or "", password, "mqtt", where, then)

    def _logged_in(
        self, greeting: Greeting, connect: packets.Connect, found: Principal | OnelogError
    ) -> None:
        """It is known who that is, or that it is nobody."""
        self._is_late = False
        if self.connection.closing:
            return
        if isinstance(found, OnelogError):
            reason = Reason.BAD_USER_OR_PASSWORD
            self._turn_away(reason)
            return
        if not self._clients.admits(found, greeting.client_id, greeting.will):
            self._turn_away(Reason.NOT_AUTHORIZED)
            return
        try:
            self._clients.check_room(greeting)
        except OnelogError as error:
            self.connection.warn("%s is refused: %s", self.connection, error)
            self._turn_away(reason_of(error))
            return
        self._principal = found
        self.connection.user = found.name
        try:
            self._welcome(greeting, connect)
        except Exception:
            # Nobody is called from here who would close the connection.
            log.exception("%s is closed: its session failed", self.connection)
            self.connection.abort()
        if self._is_held:
            self._is_held = False
            self.connection.wait_for_turn()
            self.connection.read_on()

    def _turn_away(self, reason: Reason) -> None:
        self.connection.write(packets.encode_connack(self._level, False, reason, {}))
        self.connection.end()

    @property
    def user(self) -> str:
        """Who has logged in; empty for nobody."""
        return self._principal.name

    def _welcome(self, greeting: Greeting, connect: packets.Connect) -> None:
        clients, config = self._clients, self._clients.config
        self.client_id = greeting.client_id
        self._name = greeting.client_id.encode()
        kept = clients.come(self, greeting.client_id, clean=connect.clean)
        self._expiry_s = greeting.expiry_s
        self._will = greeting.will
        self._silence_ms = greeting.keep_alive_s * 1_500
        self._reader.bytes_max = config.packet_bytes_max
        about = connect.properties
        if self._level == V5:
            self._receive_max = config.receive_maximum
        self._tells_reasons = about.get(Property.REQUEST_PROBLEM_INFORMATION, 1) == 1
        outgoing = Outgoing(
            self._level,
            self.connection,
            min(about.get(Property.RECEIVE_MAXIMUM, 65_535), config.in_flight_max),
            about.get(Property.MAXIMUM_PACKET_SIZE, 0),
            min(about.get(Property.TOPIC_ALIAS_MAXIMUM, 0), config.topic_alias_maximum),
        )
        is_durable = greeting.expiry_s > 0
        client = MqttClient(clients, greeting.client_id, outgoing, is_durable)
        self._client = client
        answer = packets.encode_connack(self._level, kept is not None, 0, greeting.properties)
        self.connection.write(answer)
        if is_durable:
            will = "" if greeting.will is None else greeting.will.written()
            kept = clients.broker.queues.sessions.keep(
                self.client_id, greeting.expiry_s, 0, will, self.user
            )
        if kept is not None:  # It goes on with its session, at least as long as it is connected.
            self.work(self._resume(client, dict(kept.subscriptions)))

    def _resume(self, client: MqttClient, known: dict[str, tuple[int, int]]) -> Iterator[None]:
        """Go on with a session, but for filters that are not permitted any more."""
        yield from client.resume(known)
        refused = self._refused(client)
        for text in refused:
            client.unsubscribe(text)
            yield
        if refused:
            queues = self._clients.broker.queues
            queues.sessions.subscribe(self.client_id, dict.fromkeys(refused))

    def _refused(self, client: MqttClient) -> list[str]:
        """Filters that were subscribed to, and are not permitted any more."""
        if self._clients.broker.users.is_open:
            return []
        may = partial(self._clients.may, self._principal, "consume")
        known = client.subscriptions.by_filter
        return [text for text, each in known.items() if not may(each.filter.text)]

    def check_subscriptions(self) -> None:
        """Close if there is one that is not permitted any more."""
        if self._client is not None and self._refused(self._client):
            self._end(Reason.NOT_AUTHORIZED, "a subscription is not permitted any more")

    def forget_topics(self) -> None:
        """Decide anew where this client may publish."""
        self._topics.clear()

    # -- messages of the client ----------------------------------------------------------------

    def _publish(self, head: int, at: int, end: int) -> None:
        raw, flags, packet_id, properties, payload = packets.read_publish(
            self._reader.data, head, at, end, self._level
        )
        if properties:
            properties, alias = self._checked(properties)
            if alias:
                raw = self._aliased(alias, raw)
        topic = self._topics.get(raw) or self._topic(raw)
        qos = flags >> 1 & 3
        clients = self._clients
        clients.sys.received += 1
        if qos == 0:
            if not topic.is_closed:
                try:
                    clients.publish(self._name, topic, raw, flags, properties, payload, nobody)
                except OnelogError as error:
                    log.info("a message of %s is dropped: %s", self.connection, error)
            return
        acknowledgement: _Answer = [None, qos, packet_id]
        self._answers.append(acknowledgement)
        if qos == 2 and packet_id in self._received_ids():
            self._answer(acknowledgement, 0)  # It is here already.
            return
        if self._level == V5:
            self._check_receive_maximum()
        if topic.is_closed:
            self._answer(acknowledgement, Reason.NOT_AUTHORIZED)
            return
        records = self._note_received(packet_id) if qos == 2 else ()
        try:
            count = clients.publish(
                self._name,
                topic,
                raw,
                flags,
                properties,
                payload,
                self._stored,
                acknowledgement,
                records,
            )
        except OnelogError as error:
            self._stored(acknowledgement, None, error)
        else:
            if not count and not records:
                self._answer(acknowledgement, Reason.NO_MATCHING_SUBSCRIBERS)

    def _note_received(self, packet_id: int) -> Sequence[NewMessage]:
        """A message of QoS 2 comes in: what has to be recorded with it."""
        if self._expiry_s:
            return self._clients.broker.queues.packet_ids.received(self.client_id, packet_id)
        self._received.add(packet_id)
        return ()

    def _check_receive_maximum(self) -> None:
        in_use = len(self._answers) + len(self._received_ids())
        if in_use > self._receive_max:
            raise PacketError(
                f"{in_use} messages are not answered, of {self._receive_max} at most",
                Reason.RECEIVE_MAXIMUM_EXCEEDED,
            )

    def _received_ids(self) -> set[int]:
        """Packet ids of QoS 2 that the client has not released."""
        if self._expiry_s:
            return self._clients.broker.queues.packet_ids.of(self.client_id).received
        return self._received

    def _stored(self, acknowledgement: _Answer, where: object, error: OnelogError | None) -> None:
        if error is None:
            self._answer(acknowledgement, 0)
            return
        _, qos, packet_id = acknowledgement
        if qos == 2 and self._expiry_s:
            self._clients.broker.queues.packet_ids.forgotten(self.client_id, packet_id, None)
        self._received.discard(packet_id)
        self._answer(acknowledgement, reason_of(error))

    def _answer(self, acknowledgement: _Answer, reason: int) -> None:
        """Answer a message, now or when those before it are."""
        if self._client is None:
            return
        _, qos, packet_id = acknowledgement
        if reason and self._level == V5:
            kind = _PUBACK if qos == 1 else _PUBREC
            acknowledgement[0] = packets.encode_answer(kind, V5, packet_id, reason)
        elif reason >= 0x80:
            # There is no way to say no: the client has to send it again.
            log.warning("%s is closed: a message could not be taken", self.connection)
            self._end(Reason(reason), "")
            return
        else:
            acknowledgement[0] = b"%c\2%c%c" % (
                0x40 if qos == 1 else 0x50,
                packet_id >> 8,
                packet_id & 255,
            )
        answers = self._answers
        was_full = len(answers) >= ANSWERS_MAX
        while answers and (data := answers[0][0]) is not None:
            answers.popleft()
            self.connection.write(data)
        if was_full and len(answers) < ANSWERS_MAX:
            self.connection.wait_for_turn()

    def _checked(self, properties: bytes) -> tuple[bytes, int]:
        """The properties of a message as they are kept, and its topic's alias or 0."""
        known = self._known.get(properties)
        if known is not None:
            return known
        found = packets.read_publish_properties(properties)
        if Property.SUBSCRIPTION_ID in found:
            raise PacketError(
                "a client does not send subscription identifiers", Reason.PROTOCOL_ERROR
            )
        alias = found.pop(Property.TOPIC_ALIAS, None)
        if alias is not None and not 0 < alias <= self._clients.config.topic_alias_maximum:
            raise PacketError(f"{alias} is no alias", Reason.TOPIC_ALIAS_INVALID)
        if Property.RESPONSE_TOPIC in found:
            packets.read_topic(found[Property.RESPONSE_TOPIC].encode())
        if len(self._known) >= KNOWN_MAX:
            self._known.clear()
        looked_at = property_list(found), alias or 0
        if len(properties) < 256:
            self._known[properties] = looked_at
        return looked_at

    def _aliased(self, alias: int, raw: bytes) -> bytes:
        if raw:
            self._topic(raw)
            self._aliases[alias] = raw
            return raw
        known = self._aliases.get(alias)
        if known is None:
            raise PacketError(f"alias {alias} is no topic yet", Reason.PROTOCOL_ERROR)
        return known

    def _topic(self, raw: bytes) -> PublishTopic:
        text = packets.read_topic(raw)
        topic = PublishTopic.of(
            text, is_closed=not self._clients.may(self._principal, "publish", text)
        )
        if raw.count(b"/") >= LEVELS_MAX:
            raise PacketError("a topic has too many levels", Reason.TOPIC_NAME_INVALID)
        if len(self._topics) >= KNOWN_MAX:
            self._topics.clear()
        if len(raw) < 256:
            self._topics[raw] = topic
        return topic

    def got_pubrel(self, head: int, at: int, end: int) -> None:
        """PUBREL: the client will not send the message with this id again."""
        packet_id = packets.read_answer(self._reader.data, head, at, end, self._level).packet_id
        if packet_id not in self._received_ids():
            self._complete(packet_id, Reason.PACKET_ID_NOT_FOUND, None)
        elif self._expiry_s:
            then = partial(self._complete, packet_id, 0)
            self._clients.broker.queues.packet_ids.forgotten(self.client_id, packet_id, then)
        else:
            self._received.discard(packet_id)
            self._complete(packet_id, 0, None)

    def _complete(self, packet_id: int, reason: int, error: OnelogError | None) -> None:
        if self._client is not None and error is None:
            self.connection.write(
                packets.encode_answer(Packet.PUBCOMP, self._level, packet_id, reason)
            )

    # -- messages to the client ----------------------------------------------------------------

    def got_puback(self, head: int, at: int, end: int) -> None:
        assert self._client is not None
        found = packets.read_answer(self._reader.data, head, at, end, self._level)
        self._client.outgoing.got_puback(found.packet_id)

    def got_pubrec(self, head: int, at: int, end: int) -> None:
        assert self._client is not None
        found = packets.read_answer(self._reader.data, head, at, end, self._level)
        self._client.outgoing.got_pubrec(found.packet_id, found.reason)

    def got_pubcomp(self, head: int, at: int, end: int) -> None:
        assert self._client is not None
        found = packets.read_answer(self._reader.data, head, at, end, self._level)
        self._client.completed(found.packet_id)

    # -- subscribing ---------------------------------------------------------------------------

    def subscribe(self, head: int, at: int, end: int) -> None:
        """SUBSCRIBE: the answer leaves before the first message."""
        client = self._client
        assert client is not None
        wanted = packets.read_subscribe(self._reader.data, at, end, self._level)
        ids = wanted.properties.get(Property.SUBSCRIPTION_ID, [0])
        if len(ids) > 1:
            raise PacketError("SUBSCRIBE has two identifiers", Reason.PROTOCOL_ERROR)
        self.work(self._subscribe_all(client, wanted, ids[0]))

    def _subscribe_all(
        self, client: MqttClient, wanted: packets.Subscribe, identifier: int
    ) -> Iterator[None]:
        reasons: list[int] = []
        recorded: dict[str, tuple[int, int] | None] = {}
        news: list[Subscribed] = []
        for text, options in wanted.subscriptions:
            try:
                subscribed, reason = self._subscribe(client, text, options, identifier)
            except PacketError as error:
                self._refuse(error)
                return
            reasons.append(reason)
            if subscribed is not None:
                recorded[text] = options, identifier
                news.append(subscribed)
            yield
        if recorded and client.is_durable:
            self._clients.broker.queues.sessions.subscribe(self.client_id, recorded)
        self.connection.write(
            packets.encode_reasons(Packet.SUBACK, self._level, wanted.packet_id, reasons)
        )
        for each in news:
            if each.filter.levels[0] == SYS:
                self._clients.sys.subscribed(client, each)
        client.go_on()

    def _subscribe(
        self, client: MqttClient, text: str, options: int, identifier: int
    ) -> tuple[Subscribed | None, int]:
        try:
            subscribed = Subscribed(read_filter(text), options, identifier)
        except PacketError as error:
            return None, error.reason
        if subscribed.filter.group and options & NO_LOCAL:
            raise PacketError("a shared filter is of no local", Reason.PROTOCOL_ERROR)
        if text in self._clients.config.refused_filters.split(";"):
            return None, Reason.UNSPECIFIED
        if not self._clients.may(self._principal, "consume", subscribed.filter.text):
            return None, Reason.NOT_AUTHORIZED
        if len(client.subscriptions.by_filter) >= SUBSCRIPTIONS_MAX:
            return None, Reason.QUOTA_EXCEEDED
        handling = options >> 4 & 3
        try:
            if client.is_durable:
                self._clients.broker.queues.sessions.check_room()
            client.subscribe(text, subscribed, replay=None if handling == 1 else handling == 0)
        except OnelogError as error:
            return None, reason_of(error)
        return subscribed, subscribed.qos

    def unsubscribe(self, head: int, at: int, end: int) -> None:
        client = self._client
        assert client is not None
        wanted = packets.read_unsubscribe(self._reader.data, at, end, self._level)
        self.work(self._unsubscribe_all(client, wanted))

    def _unsubscribe_all(self, client: MqttClient, wanted: packets.Unsubscribe) -> Iterator[None]:
        reasons: list[int] = []
        gone: dict[str, tuple[int, int] | None] = {}
        for text in wanted.filters:
            if client.unsubscribe(text):
                gone[text] = None
                reasons.append(Reason.SUCCESS)
            else:
                reasons.append(Reason.NO_SUBSCRIPTION_EXISTED)
            yield
        if gone and client.is_durable:
            self._clients.broker.queues.sessions.subscribe(self.client_id, gone)
        self.connection.write(
            packets.encode_reasons(Packet.UNSUBACK, self._level, wanted.packet_id, reasons)
        )

    # -- the rest ------------------------------------------------------------------------------

    def ping(self, head: int, at: int, end: int) -> None:
        if at != end:
            raise PacketError("PINGREQ has a body")
        self.connection.write(packets.PINGRESP)

    def disconnect(self, head: int, at: int, end: int) -> None:
        """DISCONNECT: the client says goodbye, and its will is void unless it says otherwise."""
        reason, about = packets.read_ending(self._reader.data, head, at, end, self._level)
        wanted_s = about.get(Property.SESSION_EXPIRY)
        if wanted_s is not None:
            if wanted_s and not self._expiry_s:
                raise PacketError(
                    "a session that was to end here is to go on", Reason.PROTOCOL_ERROR
                )
            most_s = self._clients.config.session_expiry_max_s
            self._expiry_s = min(wanted_s, most_s) if most_s else min(wanted_s, FOREVER_S)
        self._leave(self._will if reason == Reason.DISCONNECT_WITH_WILL else None)
        self.connection.close()

    def authenticate(self, head: int, at: int, end: int) -> None:
        """AUTH: no method of enhanced authentication was agreed on."""
        raise PacketError("no authentication goes on", Reason.PROTOCOL_ERROR)


HANDLERS: dict[int, Callable[[MqttSession, int, int, int], None]] = {
    Packet.PUBACK: MqttSession.got_puback,
    Packet.PUBREC: MqttSession.got_pubrec,
    Packet.PUBREL: MqttSession.got_pubrel,
    Packet.PUBCOMP: MqttSession.got_pubcomp,
    Packet.SUBSCRIBE: MqttSession.subscribe,
    Packet.UNSUBSCRIBE: MqttSession.unsubscribe,
    Packet.PINGREQ: MqttSession.ping,
    Packet.DISCONNECT: MqttSession.disconnect,
    Packet.AUTH: MqttSession.authenticate,
}
