"""Durable sessions: clients that come back, and find their subscriptions as they left them.

    table     "sessions": {client: {"expiry_s": n, "gone_ms": n, "will": text, "user": text}}
              "subscriptions": {client NUL filter: [options, identifier]}

`gone_ms` is when the client left; 0 while it is connected, or was when the broker stopped: then it
left when the broker started. The will is a text that its gateway wrote. A session is the user's who
began it, if there were users then.

Invariant: whoever has subscriptions has a session.
"""

from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

from onelog.clock import Clock
from onelog.core.durable.tables import Change, Tables, in_parts
from onelog.errors import BrokerBusyError, InvalidRequestError

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
