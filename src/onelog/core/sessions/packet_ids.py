"""Exchanges of QoS 2 that are not over, of clients whose sessions are durable.

    table     "packet_ids": {client NUL "i" packet id: true, client NUL "o" packet id: place,
              client NUL "s" packet id: [queue, place]}

"i" (in): a message of the client with this packet id is stored, and the client has not released the
id. That is recorded in the append of the message itself. "o" (out): the client has the message at
this place of its queue, and may forget the id when it is told to. This, and the ends of both, are
recorded with the tick in which they come up; whoever asked is told when that is written.
"s" (shared): the message at this place of a queue that many share is this client's, and nobody
else's. That is recorded before it is sent; when the place is done, the client has the message.

Invariant: what a client was told, a broker that starts again knows.
"""

from collections.abc import Iterator
from typing import Any

from onelog.core.durable.tables import Tables, in_parts
from onelog.core.durable.writer import Writer
from onelog.core.sessions.sessions import SEPARATOR
from onelog.core.sessions.tick_records import OnRecorded, TickRecords, WhenDurable
from onelog.message import NewMessage


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

    def __init__(self, tables: Tables, writer: Writer, when_durable: WhenDurable) -> None:
        self._tables = tables
        self._records = TickRecords(tables, writer, when_durable)
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
