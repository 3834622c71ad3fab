"""Key-value configuration: texts by namespace and key, such as the queues of ordered topics.

The file has RocketMQ's form, so that its own can be put in the place of ours:

    {"configTable":{"ORDER_TOPIC_CONFIG":{"orders":"broker-a:4;broker-b:4"}}}

Invariant: the file holds the old tables or the new ones, never a part, whenever the process dies.
"""

import os
import secrets
from pathlib import Path

from msgspec import field

from onelog.errors import ConfigError, InvalidRequestError, KeyNotFoundError, WireError
from onelog.private_files import make_folder, opener
from onelog.wire.remoting.body import Body
from onelog.wire.remoting.routes import KVTable

ORDER_TOPICS = "ORDER_TOPIC_CONFIG"
"""The namespace that says on which brokers an ordered topic has how many queues."""

BYTES_MAX = 16 << 20
"""All keys and values together."""


class KvTables(Body, frozen=True):
    """The content of the file."""

    config_table: dict[str, dict[str, str]] = field(default_factory=dict)


class KvConfig:
    """The tables of one name server."""

    def __init__(self, tables: dict[str, dict[str, str]] | None = None) -> None:
        self._tables = tables or {}
        self._bytes = sum(
            len(key) + len(value) for table in self._tables.values() for key, value in table.items()
        )
        self._life = secrets.token_hex(4)
        self._changes: dict[str, int] = {}

    def put(self, namespace: str, key: str, value: str, expected: str | None = None) -> None:
        """Set a key; if `expected` is given, only from that value on ("" for none)."""
        table = self._tables.get(namespace, {})
        if expected is not None and table.get(key, "") != expected:
            raise InvalidRequestError(f"the value of {key} is another than expected")
        growth = len(key) + len(value) - (len(key) + len(table[key]) if key in table else 0)
        if self._bytes + growth > BYTES_MAX:
            raise InvalidRequestError(f"the key-value configuration is full ({BYTES_MAX} bytes)")
        self._bytes += growth
        self._tables.setdefault(namespace, {})[key] = value
        self._changes[namespace] = self._changes.get(namespace, 0) + 1

    def delete(self, namespace: str, key: str) -> None:
        """Forget a key, if it is there."""
        value = self._tables.get(namespace, {}).pop(key, None)
        if value is not None:
            self._bytes -= len(key) + len(value)
            self._changes[namespace] = self._changes.get(namespace, 0) + 1

    def get(self, namespace: str, key: str) -> str | None:
        return self._tables.get(namespace, {}).get(key)

    def version(self, namespace: str) -> str:
        """Another one after each change, and after each start."""
        return f"{self._life}-{self._changes.get(namespace, 0)}"

    def namespace(self, namespace: str) -> KVTable:
        """All keys of a namespace; `KeyNotFoundError` if nothing was ever put there."""
        table = self._tables.get(namespace)
        if table is None:
            raise KeyNotFoundError(f"No config item, Namespace: {namespace}")
        return KVTable(table=dict(table))

    def to_json(self) -> bytes:
        """The content of the file."""
        return KvTables(config_table=self._tables).encode()


def load_kv(path: Path) -> KvConfig:
    """What the file holds; nothing if there is none."""
    try:
        content = path.read_bytes()
    except FileNotFoundError:
        return KvConfig()
    except OSError as error:
        raise ConfigError(f"nameserver.kv_path {path}: {error.strerror}") from None
    try:
        return KvConfig(KvTables.decode(content).config_table)
    except WireError as error:
        raise ConfigError(f"nameserver.kv_path {path} is not a key-value file: {error}") from None


def save_kv(path: Path, content: bytes) -> None:
    """Put `content` in the place of the file, as a whole."""
    make_folder(path.parent)
    fresh = path.with_name(path.name + ".tmp")
    with open(fresh, "wb", opener=opener) as file:
        file.write(content)
        file.flush()
        os.fsync(file.fileno())
    os.replace(fresh, path)
