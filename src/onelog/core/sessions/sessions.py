"""Durable sessions: clients that come back, and find their subscriptions as they left them.

    table     "sessions": {client: {"expiry_s": n, "gone_ms": n, "will": text, "user": text}}
              "subscriptions": {client NUL filter: [options, identifier]}

`gone_ms` is when the client left; 0 while it is connected, or was when the broker stopped: then it
left when the broker started. The will is a text that its gateway wrote. A session is the user's who
began it, if there were users then.

Exchanges of QoS 2 that are not over are part of a session:

    table     "packet_ids": {client NUL "i" packet id: true, client NUL "o" packet id: place,
              client NUL "s" packet id: [queue, place]}

"i" (in): a message of the client with this packet id is stored, and the client has not released the
id. That is recorded in the append of the message itself. "o" (out): the client has the message at
this place of its queue, and may forget the id when it is told to. This, and the ends of both, are
recorded with the tick in which they come up; whoever asked is told when that is written.
"s" (shared): the message at this place of a queue that many share is this client's, and nobody
else's. That is recorded before it is sent; when the place is done, the client has the message.

Invariants: whoever has subscriptions has a session; what a client was told, a broker that starts
again knows.
"""

from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

from onelog.clock import Clock
from onelog.core.durable.storage import Storage
from onelog.core.durable.tables import Change, Tables, in_parts
from onelog.core.sessions.tick_records import OnRecorded, TickRecords
from onelog.errors import BrokerBusyError, InvalidRequestError
from onelog.message import NewMessage

FOREVER_S = 0xFFFFFFFF
BYTES_MAX = 1 << 30
"""Of the clients' names, wills and filters together, and what each takes besides."""
_ROW_BYTES = 500
SEPARATOR = "\0"
"""Between a client and what is its own: no text of MQTT has this character."""


@dataclass(slots=True, eq=False)
class Kept:
    """What is known of a client."""

    client: str
    expiry_s: int
    gone_ms: int
    will: str = ""
    user: str = ""
    subscriptions: dict[str, tuple[int, int]] = field(default_factory=dict)
    """Options and identifier (0 for none) by filter."""

    @property
    def ends_ms(self) -> int | None:
        """When the session ends, if its client does not come back; None for never."""
        return None if self.expiry_s == FOREVER_S else self.gone_ms + self.expiry_s * 1_000


class Sessions:
    """All durable sessions of this broker."""

    name = "sessions"

    def __init__(self, tables: Tables, clock: Clock, bytes_max: int = BYTES_MAX) -> None:
        self._tables = tables
        self._clock = clock
        self._bytes_max = bytes_max
        self.bytes = 0
        self.kept: dict[str, Kept] = {}
        self.subscriptions = _Subscriptions(self)

    # -- the table -----------------------------------------------------------------------------

    def apply(self, key: str, value: Any) -> None:
        """Make one change."""
        if value is not None:
            expiry_s, gone_ms = int(value["expiry_s"]), int(value["gone_ms"])
            will, user = str(value["will"]), str(value.get("user", ""))
        kept = self.kept.pop(key, None) if value is None else self.kept.get(key)
        if kept is not None:
            self.bytes -= _ROW_BYTES + len(key) + len(kept.will)
            if value is None:
                self.bytes -= sum(_ROW_BYTES + len(each) for each in kept.subscriptions)
        if value is None:
            return
        if kept is None:
            kept = self.kept[key] = Kept(key, 0, 0)
        kept.expiry_s, kept.gone_ms, kept.will, kept.user = expiry_s, gone_ms, will, user
        self.bytes += _ROW_BYTES + len(key) + len(kept.will)

    def parts(self) -> Iterator[dict[str, Any]]:
        """Every session; some at a time."""
        for part in in_parts(self.kept):
            yield {client: _row(kept) for client, kept in part}

    def require_gone(self, client: str) -> None:
        """Raises if there is a session that cannot be read: its subscriptions wait for it."""
        if self._tables.is_aside(self.name, client):
            raise InvalidRequestError(f"the session of {client} cannot be read")

    # -- for gateways --------------------------------------------------------------------------

    def open(self) -> None:
        """To be called when the broker starts: nobody is connected."""
        now_ms = self._clock.now_ms()
        for kept in self.kept.values():
            kept.gone_ms = kept.gone_ms or now_ms

    def check_room(self) -> None:
        """`BrokerBusyError` if there is no room for another session, will or subscription."""
        if self.bytes >= self._bytes_max:
            raise BrokerBusyError(
                f"{len(self.kept)} sessions are kept, and take {self.bytes} bytes: end those whose "
                "clients will not come back, or let them expire"
            )

    def find(self, client: str) -> Kept | None:
        return self.kept.get(client)

    def keep(
        self, client: str, expiry_s: int, gone_ms: int, will: str = "", user: str | None = None
    ) -> Kept:
        """Write down a session, new or not; it stays the user's, if that is not said."""
        known = self.kept.get(client)
        whose = user if user is not None else known.user if known is not None else ""
        row = {"expiry_s": expiry_s, "gone_ms": gone_ms, "will": will, "user": whose}
        self._tables.write([(self.name, client, row)])
        return self.kept[client]

    def forget(self, client: str) -> None:
        kept = self.kept.get(client)
        if kept is not None:
            changes: list[Change] = [
                (self.subscriptions.name, client + SEPARATOR + each, None)
                for each in kept.subscriptions
            ]
            self._tables.write([*changes, (self.name, client, None)])

    def subscribe(self, client: str, wanted: dict[str, tuple[int, int] | None]) -> None:
        """Write down subscriptions, or with None their ends."""
        self._tables.write(
            [
                (self.subscriptions.name, client + SEPARATOR + each, options)
                for each, options in wanted.items()
            ]
        )


def _row(kept: Kept) -> dict[str, Any]:
    return {
        "expiry_s": kept.expiry_s,
        "gone_ms": kept.gone_ms,
        "will": kept.will,
        "user": kept.user,
    }


class _Subscriptions:
    """The table of the subscriptions of all sessions."""

    name = "subscriptions"

    def __init__(self, sessions: Sessions) -> None:
        self._sessions = sessions

    def apply(self, key: str, value: Any) -> None:
        client, _, text = key.partition(SEPARATOR)
        kept = self._sessions.kept.get(client)
        if kept is None:
            self._sessions.require_gone(client)
            return
        if kept.subscriptions.pop(text, None) is not None:
            self._sessions.bytes -= _ROW_BYTES + len(text)
        if value is not None:
            kept.subscriptions[text] = int(value[0]), int(value[1])
            self._sessions.bytes += _ROW_BYTES + len(text)

    def parts(self) -> Iterator[dict[str, Any]]:
        for part in in_parts(self._sessions.kept):
            for client, kept in part:
                if kept.subscriptions:
                    yield {
                        client + SEPARATOR + text: options
                        for text, options in kept.subscriptions.items()
                    }


class Exchanges:
    """The open exchanges of one client."""

    __slots__ = ("received", "released", "shared")

    def __init__(self) -> None:
        self.received: set[int] = set()
        self.released: dict[int, int] = {}
        self.shared: dict[int, tuple[str, int]] = {}


class PacketIds:
    """Open exchanges, by client."""

    name = "packet_ids"

    def __init__(self, storage: Storage) -> None:
        self._tables = storage.tables
        self._records = TickRecords(storage)
        self._clients: dict[str, Exchanges] = {}

    def of(self, client: str) -> Exchanges:
        """A client's exchanges; to be looked at, and changed only here."""
        return self._clients.get(client) or Exchanges()

    def shared(self) -> list[tuple[str, dict[int, tuple[str, int]]]]:
        """Of each client the messages of shared queues that are its own."""
        return [(client, each.shared) for client, each in self._clients.items() if each.shared]

    # -- the table -----------------------------------------------------------------------------

    def apply(self, key: str, value: Any) -> None:
        """Make one change."""
        client, _, rest = key.partition(SEPARATOR)
        exchanges = self._clients.get(client)
        if exchanges is None:
            exchanges = self._clients[client] = Exchanges()
        packet_id = int(rest[1:])
        if rest[0] == "i":
            (exchanges.received.add if value else exchanges.received.discard)(packet_id)
        elif value is None:
            (exchanges.shared if rest[0] == "s" else exchanges.released).pop(packet_id, None)
        elif rest[0] == "s":
            exchanges.shared[packet_id] = str(value[0]), int(value[1])
        else:
            exchanges.released[packet_id] = int(value)
        if not (exchanges.received or exchanges.released or exchanges.shared):
            del self._clients[client]

    def parts(self) -> Iterator[dict[str, Any]]:
        """Every open exchange; some at a time."""
        for part in in_parts(self._clients):
            yield {key: value for client, each in part for key, value in _rows(client, each)}

    # -- for gateways --------------------------------------------------------------------------

    def received(self, client: str, packet_id: int) -> list[NewMessage]:
        """A message with this id is about to be stored: what has to be in the same append."""
        key = f"{client}{SEPARATOR}i{packet_id}"
        self.apply(key, True)
        return self._tables.record([(self.name, key, True)])

    def forgotten(self, client: str, packet_id: int, on_recorded: OnRecorded | None) -> None:
        """The client will not send that message again."""
        self._change(f"{client}{SEPARATOR}i{packet_id}", None, on_recorded)

    def released(self, client: str, packet_id: int, position: int, on_recorded: OnRecorded) -> None:
        """The client has the message with this id."""
        self._change(f"{client}{SEPARATOR}o{packet_id}", position, on_recorded)

    def assigned(
        self, client: str, packet_id: int, queue: str, position: int, on_recorded: OnRecorded
    ) -> None:
        """The client, and nobody else, gets a message of a shared queue, with this id."""
        self._change(f"{client}{SEPARATOR}s{packet_id}", (queue, position), on_recorded)

    def misplaced(self, client: str, packet_id: int) -> None:
        """The queue went with the broker that stopped; the client may forget the id."""
        name, _ = self._clients[client].shared[packet_id]
        self.apply(f"{client}{SEPARATOR}s{packet_id}", (name, -1))

    def completed(self, client: str, packet_id: int, *, is_shared: bool = False) -> None:
        """The client has forgotten the id."""
        self._change(f"{client}{SEPARATOR}{'s' if is_shared else 'o'}{packet_id}", None, None)

    def forget(self, client: str) -> None:
        for key, _ in list(_rows(client, self.of(client))):
            self._change(key, None, None)

    def _change(self, key: str, value: Any, on_recorded: OnRecorded | None) -> None:
        self.apply(key, value)  # At once: the next packet may be about the same id.
        self._records.put((self.name, key, value), on_recorded)


def _rows(client: str, exchanges: Exchanges) -> Iterator[tuple[str, Any]]:
    for packet_id in exchanges.received:
        yield f"{client}{SEPARATOR}i{packet_id}", True
    for packet_id, position in exchanges.released.items():
        yield f"{client}{SEPARATOR}o{packet_id}", position
    for packet_id, shared in exchanges.shared.items():
        yield f"{client}{SEPARATOR}s{packet_id}", shared
