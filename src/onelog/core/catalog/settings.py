"""Settings by name: what the table of topics and that of groups have in common.

They are a durable table with a version of the whole set. What the system brings along is added on
each start, in memory only, where nobody has given it settings of its own.

Invariant: what `get` answers is recorded in the log or follows from the configuration.
"""

import logging
from collections.abc import Callable, Iterable, Iterator
from typing import Any, ClassVar, Generic, Protocol, TypeVar

import msgspec

from onelog.core.catalog.names import Naming
from onelog.core.durable.tables import Change, DataVersion, Tables, Versions, in_parts

log = logging.getLogger(__name__)


class Named(Protocol):
    """Settings that have a name."""

    @property
    def name(self) -> str:
        """Which no other has."""


Config = TypeVar("Config", bound=Named)


class Settings(Generic[Config]):
    """A table of settings."""

    name: str
    what: ClassVar[str]
    """One of them, for people."""
    kind: type[Config]

    def __init__(
        self, tables: Tables, versions: Versions, naming: Naming, system: Iterable[Config]
    ) -> None:
        self._tables = tables
        self._versions = versions
        self.naming = naming
        self._system = {config.name: config for config in system}
        self._known: dict[str, Config] = {}
        self.follows = False
        """Whether the log is another broker's: then all of them are made there."""
        self.on_change: list[Callable[[str, Config | None], None]] = []
        """Called after one was created, changed or deleted (then with None)."""

    def __len__(self) -> int:
        return len(self._known)

    def apply(self, key: str, value: Any) -> None:
        """Make one change."""
        if value is None:
            self._known.pop(key, None)
        else:
            self._known[key] = msgspec.convert(value, self.kind)

    def is_there(self, name: str) -> bool:
        """Whether there is one, though perhaps its settings cannot be read."""
        return name in self._known or self._tables.is_aside(self.name, name)

    def parts(self) -> Iterator[dict[str, Any]]:
        """All but the system's, unless those were given settings of their own."""
        system = self._system
        for part in in_parts(self._known):
            yield {
                name: msgspec.to_builtins(config)
                for name, config in part
                if system.get(name) != config
            }

    def add_system(self) -> None:
        """What every start adds to what is recorded."""
        for name, config in self._system.items():
            self._known.setdefault(name, config)

    @property
    def version(self) -> DataVersion:
        """The version of the whole set, as name servers compare it."""
        return self._versions[self.name]

    def get(self, name: str) -> Config | None:
        """The settings of that name, if there are any."""
        return self._known.get(name)

    def all(self) -> list[Config]:
        """All settings, in the order of creation."""
        return list(self._known.values())

    def _record(self, config: Config) -> None:
        change = (self.name, config.name, msgspec.to_builtins(config))
        self._tables.write([change, self._versions.next(self.name)])
        self._tell(config.name)

    def _forget(self, name: str, also: list[Change]) -> None:
        """Forget one, and make the changes `also` that follow from it, in one record."""
        self._tables.write([(self.name, name, None), *also, self._versions.next(self.name)])
        self._tell(name)

    def _tell(self, name: str) -> None:
        config = self._known.get(name)
        log.info("%s %s: %s", self.what, name, config or "deleted")
        for listener in self.on_change:
            listener(name, config)
