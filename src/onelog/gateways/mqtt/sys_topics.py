"""`$SYS`: what the broker tells of itself, to those who subscribe to it.

The names are Mosquitto's. Nothing is published: whoever subscribes gets the values as retained
messages, and again whenever they have changed, every few seconds.
"""

from typing import TYPE_CHECKING

from onelog import __version__
from onelog.core.access import SELF
from onelog.gateways.mqtt.encoded_publish import EncodedPublish
from onelog.gateways.mqtt.filters import SYS
from onelog.record.forms import mqtt

if TYPE_CHECKING:
    from onelog.gateways.mqtt.client import MqttClient
    from onelog.gateways.mqtt.clients import Clients
    from onelog.gateways.mqtt.subscriptions import Subscribed

PERIOD_MS = 10_000


class SysTopics:
    """The values, and who wants them."""

    def __init__(self, clients: "Clients") -> None:
        self._clients = clients
        self._readers: set[MqttClient] = set()
        self._began_ms = clients.now_ms()
        self._next_ms = 0
        self._published: dict[str, bytes] = {}
        self.received = 0
        self.sent = 0

    def subscribed(self, client: "MqttClient", subscribed: "Subscribed") -> None:
        """A client wants some of them."""
        self._readers.add(client)
        now_ms = self._clients.now_ms()
        for topic, value in self._values(now_ms).items():
            if subscribed.filter.matches(topic.split("/")):
                publish = _letter(topic, value, now_ms, mqtt.REPLAYED)
                client.outgoing.offer(publish, subscribed.grant, now_ms)

    def left(self, client: "MqttClient") -> None:
        self._readers.discard(client)

    def tick(self, now_ms: int) -> None:
        """Tell what has changed, now and then."""
        if now_ms < self._next_ms:
            return
        self._next_ms = now_ms + PERIOD_MS
        if not self._readers:
            return
        values = self._values(now_ms)
        changed = {
            topic: each for topic, each in values.items() if self._published.get(topic) != each
        }
        self._published = values
        for topic, value in changed.items():
            publish = _letter(topic, value, now_ms, 0)
            for client in self._readers:
                grant = client.subscriptions.grant(publish.topic, b"")
                if grant is not None:
                    client.outgoing.offer(publish, grant, now_ms)

    def _values(self, now_ms: int) -> dict[str, bytes]:
        clients, broker = self._clients, self._clients.broker
        connected = len(clients.connected)
        known = len(broker.queues.sessions.kept.keys() | clients.connected.keys())
        totals = broker.admin.state(SELF).totals
        numbers = {
            "uptime": (now_ms - self._began_ms) // 1_000,
            "clients/connected": connected,
            "clients/disconnected": known - connected,
            "clients/total": known,
            "messages/received": self.received,
            "messages/sent": self.sent,
            "retained messages/count": len(broker.topics.retained),
            "store/messages/count": totals.put_count,
            "store/messages/bytes": totals.put_bytes,
        }
        found = {f"{SYS}/broker/{name}": b"%d" % value for name, value in numbers.items()}
        found[f"{SYS}/broker/version"] = f"OneLog {__version__}".encode()
        return found


def _letter(topic: str, value: bytes, now_ms: int, flags: int) -> EncodedPublish:
    return EncodedPublish(mqtt.Content(flags, now_ms, b"", topic.encode(), b"", value))
