"""All clients of one broker: who is connected, whose session waits, and whose will is to be done.

Time is looked at twice a second (`tick`): clients that are silent for too long are cut off,
sessions end, wills with a delay are published, and `$SYS` is told.

Invariant: a client id has at most one connection; the last one wins.
"""

import asyncio
import base64
import heapq
import json
import logging
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from typing import TYPE_CHECKING, NamedTuple

from onelog.core.access import SELF, Action, Principal
from onelog.core.durable.writer import OnStored
from onelog.core.queues.queue import WorkQueue
from onelog.core.queues.restore import claim
from onelog.core.routing.names import DEFAULT_VHOST
from onelog.core.sessions.sessions import FOREVER_S, Kept
from onelog.errors import OnelogError, QueueNotFoundError
from onelog.gateways import GatewayContext
from onelog.gateways.mqtt.client import EXCHANGE, queue_name, shared_name
from onelog.gateways.mqtt.encoded_publish import PublishEncoder
from onelog.gateways.mqtt.filters import SYS, PublishTopic, read_filter
from onelog.gateways.mqtt.sys_topics import SysTopics
from onelog.message import NewMessage
from onelog.net.tasks import repeat
from onelog.record.forms import Form, mqtt

if TYPE_CHECKING:
    from onelog.config import MqttConfig
    from onelog.gateways.mqtt.connecting import Greeting
    from onelog.gateways.mqtt.session import MqttSession

log = logging.getLogger(__name__)

TICK_SECONDS = 0.25
RECHECKED_MAX = 200
"""Clients whose subscriptions are looked at in one go, when users have changed."""
_FORM = Form.MQTT.sys_flag


class Will(NamedTuple):
    """A will, ready to be published."""

    topic: str
    payload: bytes
    qos: int
    retain: bool
    properties: bytes
    delay_s: int

    def written(self) -> str:
        """As a text that sessions keep."""
        fields = (
            self.topic,
            base64.b64encode(self.payload).decode(),
            self.qos,
            self.retain,
            base64.b64encode(self.properties).decode(),
            self.delay_s,
        )
        return json.dumps(fields)

    @classmethod
    def read(cls, text: str) -> "Will":
        """What `written` wrote."""
        topic, payload, qos, retain, properties, delay_s = json.loads(text)
        return cls(
            topic, base64.b64decode(payload), qos, retain, base64.b64decode(properties), delay_s
        )


class Clients:
    """What all sessions of one broker share."""

    def __init__(self, context: GatewayContext) -> None:
        self.context = context
        self.broker = context.broker
        self.now_ms = context.clock.now_ms
        self.encoder = PublishEncoder()
        self.sessions: set[MqttSession] = set()
        """All connections, also those that have not said who they are."""
        self.connected: dict[str, MqttSession] = {}
        self._ends: list[tuple[int, int, str]] = []
        """When sessions end of those who are away, and wills are due: a heap."""
        self._number = 0
        self._wills: dict[str, tuple[int, Will]] = {}
        """Of those who are away, by when they are due."""
        self._shares: dict[str, dict[str, int]] = {}
        """Who has a shared filter, by the name of its queue; and by which number since when."""
        self._task: asyncio.Task[None] | None = None
        self._rechecked: list[MqttSession] = []
        self.sys = SysTopics(self)
        self.broker.users.on_change.append(self._users_changed)

    @property
    def config(self) -> "MqttConfig":
        """The settings, as they are now."""
        return self.context.loaded.config.mqtt

    def start(self) -> None:
        """Look after those whose sessions are from before."""
        for kept in list(self.broker.queues.sessions.kept.values()):
            for text in kept.subscriptions:
                wanted = read_filter(text)
                if wanted.group:
                    self._shares.setdefault(shared_name(wanted), {})[kept.client] = 0
            will = Will.read(kept.will) if kept.will else None
            self._gone(kept, will)
        self._claim()
        ticking = repeat("looking after MQTT's sessions", TICK_SECONDS, self.tick)
        self._task = asyncio.get_running_loop().create_task(ticking)

    def _claim(self) -> None:
        """What clients had of shared filters, with QoS 2, is nobody else's."""
        for client, shared in self.broker.queues.packet_ids.shared():
            if self.broker.queues.sessions.find(client) is None:
                self.broker.queues.packet_ids.forget(client)
                continue
            for packet_id, (name, position) in list(shared.items()):
                queue = self.find_shared(name)
                if queue is None:
                    self.broker.queues.packet_ids.misplaced(client, packet_id)
                else:
                    claim(self.broker.queues.declared, queue, position)

    async def stop(self) -> None:
        """Say goodbye."""
        if self._task is not None:
            self._task.cancel()
        for session in list(self.sessions):
            session.shut_down()

    def later(self, call: Callable[[], None]) -> None:
        """Call in the next tick of the loop."""
        asyncio.get_running_loop().call_soon(call)

    def next_number(self) -> int:
        """One that was not there before."""
        self._number += 1
        return self._number

    def tick(self) -> None:
        """What time brings."""
        now_ms = self.now_ms()
        for session in list(self.sessions):
            session.connection.guard(session.check_time, now_ms)
        while self._ends and self._ends[0][0] <= now_ms:
            client_id = heapq.heappop(self._ends)[2]
            if client_id not in self.connected:
                self._look_after(client_id, now_ms)
        self.sys.tick(now_ms)

    # -- sessions ------------------------------------------------------------------------------

    def admits(self, principal: Principal, client_id: str, will: Will | None) -> bool:
        """Whether somebody may have that client id, and leave that will.

        A session is its user's: whoever takes it over gets what was sent to him.
        """
        if will is not None and will.topic.startswith(SYS):
            return False
        if self.broker.users.is_open:
            return True
        before, kept = self.connected.get(client_id), self.broker.queues.sessions.find(client_id)
        owners = {before.user if before is not None else "", kept.user if kept is not None else ""}
        is_own = not owners - {"", principal.name}
        return is_own and (will is None or self.may(principal, "publish", will.topic))

    def may(self, principal: Principal, action: Action, topic: str) -> bool:
        """Whether somebody may publish to a topic, or consume all that a filter can match."""
        access = self.broker.users
        return access.is_open or access.may(principal, action, ("mqtt", topic))

    def _users_changed(self) -> None:
        """What clients may do is asked anew, of so many in a tick."""
        for session in self.sessions:
            session.forget_topics()
        if self.sessions and not self._rechecked:
            self.later(self._recheck)
        self._rechecked = list(self.sessions)

    def _recheck(self) -> None:
        some, self._rechecked = self._rechecked[:RECHECKED_MAX], self._rechecked[RECHECKED_MAX:]
        for session in some:
            session.connection.guard(session.check_subscriptions)
        if self._rechecked:
            self.later(self._recheck)

    def check_room(self, greeting: "Greeting") -> None:
        """Raise what is wrong if there is no room for what a client wants to be kept."""
        if greeting.expiry_s:
            kept = self.broker.queues.sessions.find(greeting.client_id)
            will = "" if greeting.will is None else greeting.will.written()
            if kept is None or len(will) > len(kept.will):
                self.broker.queues.sessions.check_room()

    def come(self, session: "MqttSession", client_id: str, *, clean: bool) -> Kept | None:
        """A client has connected: who was there before goes. Its session, if it has one."""
        before = self.connected.get(client_id)
        if before is not None:
            before.taken_over()
        kept = self.broker.queues.sessions.find(client_id)
        will = self._wills.get(client_id)
        if will is not None and (clean or kept is None):
            del self._wills[client_id]
            self.publish_will(client_id, will[1])  # Its session ends here.
        elif will is not None:
            del self._wills[client_id]
        ends_ms = None if kept is None else kept.ends_ms
        is_late = kept is not None and ends_ms is not None and ends_ms <= self.now_ms()
        if kept is not None and (clean or is_late):
            self.forget(client_id)
            kept = None
        self.connected[client_id] = session
        return kept

    def go(self, client_id: str, expiry_s: int, will: Will | None) -> None:
        """A client is gone, and has left a will or not."""
        del self.connected[client_id]
        kept = self.broker.queues.sessions.find(client_id)
        if expiry_s == 0:
            if kept is not None:
                self.forget(client_id)
            if will is not None:
                self.publish_will(client_id, will)
            return
        kept = self.broker.queues.sessions.keep(
            client_id, expiry_s, self.now_ms(), "" if will is None else will.written()
        )
        self._gone(kept, will)

    def _gone(self, kept: Kept, will: Will | None) -> None:
        ends_ms = kept.ends_ms
        if ends_ms is not None:
            self._remind(ends_ms, kept.client)
        if will is None:
            return
        delay_s = min(will.delay_s, kept.expiry_s)
        if delay_s == 0:
            self._done(kept.client, will)
        else:
            due_ms = kept.gone_ms + delay_s * 1_000
            self._wills[kept.client] = due_ms, will
            self._remind(due_ms, kept.client)

    def _remind(self, when_ms: int, client_id: str) -> None:
        self._number += 1
        heapq.heappush(self._ends, (when_ms, self._number, client_id))

    def _look_after(self, client_id: str, now_ms: int) -> None:
        """Something of a client that is away may be due."""
        waiting = self._wills.get(client_id)
        kept = self.broker.queues.sessions.find(client_id)
        ends_ms = None if kept is None else kept.ends_ms
        is_over = ends_ms is not None and ends_ms <= now_ms
        if waiting is not None and (waiting[0] <= now_ms or is_over):
            del self._wills[client_id]
            self._done(client_id, waiting[1])
        if is_over:
            self.forget(client_id)

    def _done(self, client_id: str, will: Will) -> None:
        """Publish a will, and write down that it was."""
        self.publish_will(client_id, will)
        kept = self.broker.queues.sessions.find(client_id)
        if kept is not None and kept.will:
            self.broker.queues.sessions.keep(client_id, kept.expiry_s, kept.gone_ms)

    def forget(self, client_id: str) -> None:
        """End a session; what it has of shared filters, which may be very many, goes in steps."""
        kept = self.broker.queues.sessions.find(client_id)
        shared = list(self.broker.queues.packet_ids.of(client_id).shared.values())
        filters = [] if kept is None else list(kept.subscriptions)
        self.broker.queues.declared.delete(SELF, DEFAULT_VHOST, queue_name(client_id))
        self.broker.queues.packet_ids.forget(client_id)
        self.broker.queues.sessions.forget(client_id)
        if shared or filters:
            self.context.finish(self._forgetting(client_id, shared, filters, self.next_number()))

    def _forgetting(
        self, client_id: str, shared: list[tuple[str, int]], filters: list[str], until: int
    ) -> Iterator[None]:
        for name, position in shared:
            queue = self.find_shared(name)
            if queue is not None:
                queue.ack([position])
            yield
        for text in filters:
            wanted = read_filter(text)
            if wanted.group:
                self.unshare(shared_name(wanted), client_id, until)
            yield

    # -- shared filters ------------------------------------------------------------------------

    def share(self, name: str, client_id: str, *, durable: bool) -> WorkQueue:
        """The queue of a shared filter, which this client has now."""
        self._shares.setdefault(name, {})[client_id] = self.next_number()
        try:
            return self.broker.queues.declared.find(SELF, DEFAULT_VHOST, name)
        except QueueNotFoundError:
            return self.broker.queues.declared.declare(SELF, DEFAULT_VHOST, name, durable=durable)

    def find_shared(self, name: str) -> WorkQueue | None:
        """The queue of a shared filter, if there is one."""
        try:
            return self.broker.queues.declared.find(SELF, DEFAULT_VHOST, name)
        except QueueNotFoundError:
            return None

    def unshare(self, name: str, client_id: str, until: int) -> None:
        """A client does not have a shared filter any more, unless it has it since a later number;
        with the last one its queue goes."""
        members = self._shares.get(name, {})
        if members.get(client_id, until) <= until:
            members.pop(client_id, None)
        if not members:
            self._shares.pop(name, None)
            self.broker.queues.declared.delete(SELF, DEFAULT_VHOST, name)

    # -- publishing ----------------------------------------------------------------------------

    def publish(
        self,
        client_id: bytes,
        topic: PublishTopic,
        raw_topic: bytes,
        flags: int,
        properties: bytes,
        payload: bytes,
        on_stored: OnStored,
        token: object = None,
        records: Sequence[NewMessage] = (),
    ) -> int:
        """Publish a message, with records in the same append; to how many queues.

        If that is 0, and there are no records, nobody is told.
        """
        content = mqtt.Content(flags & 7, self.now_ms(), client_id, raw_topic, properties, payload)
        body = mqtt.encode(*content)
        self.encoder.made = body, content
        if flags & 1:
            on_recorded = partial(_retained, topic.text)
            self.broker.topics.retained.retain(topic.text, body if payload else None, on_recorded)
        return self.broker.publish.routing.publish_record(
            SELF,
            DEFAULT_VHOST,
            EXCHANGE,
            topic.key,
            body,
            _FORM,
            on_stored,
            token,
            records=records,
        )

    def publish_will(self, client_id: str, will: Will) -> None:
        """Publish what a client has left."""
        flags = will.qos << 1 | will.retain
        try:
            self.publish(
                client_id.encode(),
                PublishTopic.of(will.topic),
                will.topic.encode(),
                flags,
                will.properties,
                will.payload,
                _stored_will,
            )
        except OnelogError as error:
            log.warning("the will of MQTT client %r was not published: %s", client_id, error)


def _retained(topic: str, error: OnelogError | None) -> None:
    if error is not None:
        log.warning("a message to %s is not retained on disk: %s", topic, error)


def _stored_will(token: object, where: object, error: OnelogError | None) -> None:
    if error is not None:
        log.warning("a will was not stored: %s", error)


def session_expiry(wanted_s: int, most_s: int) -> int:
    """How long a session is kept, of what a client wants and the broker allows; 0: no limit."""
    if most_s and (wanted_s == FOREVER_S or wanted_s > most_s):
        return most_s
    return wanted_s
