"""A configuration from its four sources: default, TOML file, environment, flag.

Each is stronger than the one before: `[broker]` with `port = 10911` in the file,
`ONELOG_BROKER_PORT` in the environment.

Invariant: what `load` returns is known by name, of the declared type and within its limits;
anything else is a `ConfigError` that names key, value, source and what would be accepted.
"""

import difflib
import re
import tomllib
from collections.abc import Iterator, Mapping
from dataclasses import fields, replace
from pathlib import Path
from typing import Any, Literal, NamedTuple, get_args, get_origin, get_type_hints

from onelog.config import INT32_MAX, Config, Value
from onelog.errors import ConfigError

_ANY_HOST = ("", "0.0.0.0", "::")


class Setting(NamedTuple):
    """What is declared about one setting."""

    key: str
    kind: type[Value]
    default: Value
    help: str
    choices: tuple[str, ...]
    reloadable: bool
    least: int | None = None
    most: int | None = None
    pattern: str = ""
    example: str = ""

    @property
    def environment(self) -> str:
        """The environment variable that sets it."""
        return "ONELOG_" + self.key.replace(".", "_").upper()

    @property
    def accepts(self) -> str:
        """The values it takes, in words."""
        if self.choices:
            return " | ".join(self.choices)
        if self.kind is bool:
            return "true | false"
        if self.kind is str:
            return f"a text such as {self.example!r}" if self.example else "a text"
        return f"a whole number from {self.least} to {self.most}"


class Loaded(NamedTuple):
    """A configuration, and for each key where its value came from."""

    config: Config
    sources: dict[str, str]


def _declared() -> Iterator[Setting]:
    for section, section_class in get_type_hints(Config).items():
        defaults = section_class()
        kinds = get_type_hints(section_class)
        for each in fields(section_class):
            kind = kinds[each.name]
            choices = get_args(kind) if get_origin(kind) is Literal else ()
            yield Setting(
                key=f"{section}.{each.name}",
                kind=str if choices else kind,
                default=getattr(defaults, each.name),
                choices=choices,
                **each.metadata,
            )


SETTINGS: dict[str, Setting] = {each.key: each for each in _declared()}
"""Every setting by its key."""

_MOVED = {"broker.connections_max": SETTINGS["net.connections_max"]}
"""Settings under the names that they had once."""
_BY_ENVIRONMENT = {
    **{each.environment: each for each in SETTINGS.values()},
    **{each._replace(key=key).environment: each for key, each in _MOVED.items()},
}
_NOT_SETTINGS = frozenset(
    f"ONELOG_{name}"
    for name in (
        "CONFIG NAMESERVER TLS TLS_CA TLS_HOSTNAME TLS_CERT TLS_KEY ACCESS_KEY SECRET_KEY "
        "SECRET_KEY_FILE SECURITY_TOKEN SECURITY_TOKEN_FILE".split()
    )
)
"""Read by the command line: the path of the TOML file, and how commands reach a cluster."""

# Kubernetes gives every container the addresses of services as variables; for services named
# onelog or onelog-broker they look like ours, and nobody asked for them.
_KUBERNETES = re.compile(
    r"ONELOG_(?:\w+_)?(?:SERVICE_HOST|SERVICE_PORT(?:_\w+)?|PORT_\d+_(?:TCP|UDP|SCTP)(?:_\w+)?)"
)
_KUBERNETES_PORT = re.compile(r"(?:tcp|udp|sctp)://")

_BOOLEANS = {
    **dict.fromkeys(("true", "yes", "on", "1"), True),
    **dict.fromkeys(("false", "no", "off", "0"), False),
}


def load(
    toml_path: str | Path | None = None,
    environ: Mapping[str, str] | None = None,
    overrides: Mapping[str, Value] | None = None,
) -> Loaded:
    """The configuration from its four sources; `ConfigError` if one of them says nonsense."""
    values: dict[str, Any] = {}
    sources = dict.fromkeys(SETTINGS, "default")
    given = [*_from_file(toml_path), *_from_environ(environ or {}), *_from_flags(overrides or {})]
    for setting_, value, source in given:
        values[setting_.key] = _checked(setting_, value, source)
        sources[setting_.key] = source
    config = Config()
    for section in fields(Config):
        prefix = section.name + "."
        changed = {k.removeprefix(prefix): v for k, v in values.items() if k.startswith(prefix)}
        config = replace(
            config, **{section.name: replace(getattr(config, section.name), **changed)}
        )
    _check_relations(config, sources)
    return Loaded(config, sources)


def describe(loaded: Loaded) -> list[dict[str, Any]]:
    """Every setting with its value and where that came from, in the order of declaration."""
    return [
        {
            "key": key,
            "value": value_of(loaded.config, key),
            "source": loaded.sources[key],
            "default": each.default,
            "accepts": each.accepts,
            "reloadable": each.reloadable,
            "environment": each.environment,
            "help": each.help,
        }
        for key, each in SETTINGS.items()
    ]


def value_of(config: Config, key: str) -> Value:
    """The value at a dotted key; `ConfigError` if there is no such key."""
    section, _, name = _known(key, "asked for").key.partition(".")
    value: Value = getattr(getattr(config, section), name)
    return value


def _from_file(path: str | Path | None) -> Iterator[tuple[Setting, Any, str]]:
    if path is None:
        return
    source = f"file {path}"
    try:
        with Path(path).open("rb") as file:
            content = tomllib.load(file)
    except OSError as error:
        raise ConfigError(f"cannot read configuration file {path}: {error.strerror}") from error
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise ConfigError(f"configuration file {path} is not valid TOML: {error}") from error
    sections = [each.name for each in fields(Config)]
    for section, table in content.items():
        if section not in sections:
            raise ConfigError(
                f"unknown section [{section}] ({source}){_nearest(section, sections)}"
            )
        if not isinstance(table, dict):
            raise ConfigError(
                f"{section} ({source}) is a section: write [{section}] above its keys"
            )
        for name, value in table.items():
            yield _known(f"{section}.{name}", source), value, source


def _from_environ(environ: Mapping[str, str]) -> Iterator[tuple[Setting, Any, str]]:
    for name, value in environ.items():
        if not name.startswith("ONELOG_") or name in _NOT_SETTINGS or _KUBERNETES.fullmatch(name):
            continue
        if name.endswith("_PORT") and _KUBERNETES_PORT.match(value):
            continue
        if name not in _BY_ENVIRONMENT:
            raise ConfigError(
                f"unknown setting {name} (environment){_nearest(name, list(_BY_ENVIRONMENT))}"
            )
        yield _BY_ENVIRONMENT[name], _parsed(value, _BY_ENVIRONMENT[name]), f"environment {name}"


def _from_flags(overrides: Mapping[str, Value]) -> Iterator[tuple[Setting, Any, str]]:
    for key, value in overrides.items():
        known = _known(key, "flag")
        yield known, _parsed(value, known) if isinstance(value, str) else value, "flag"


def _known(key: str, source: str) -> Setting:
    if key in _MOVED:
        return _MOVED[key]
    if key not in SETTINGS:
        raise ConfigError(f"unknown setting {key!r} ({source}){_nearest(key, list(SETTINGS))}")
    return SETTINGS[key]


def _nearest(name: str, known: list[str]) -> str:
    """`; did you mean ...?`, matching the last part of a key too: `port` is near `broker.port`."""
    close = difflib.get_close_matches(name, known, n=1) or [
        each for each in known if each.rpartition(".")[2] == name.rpartition(".")[2]
    ]
    return f"; did you mean {close[0]!r}?" if close else ""


def _parsed(text: str, known: Setting) -> Value:
    """A text from the environment or a flag as the setting's type, or unchanged if it is none."""
    if known.kind is bool:
        return _BOOLEANS.get(text.strip().lower(), text)
    if known.kind is int and re.fullmatch(r"\s*-?[0-9]+(?:_[0-9]+)*\s*", text) and len(text) < 40:
        return int(text)
    return text


def _checked(known: Setting, value: Any, source: str) -> Any:
    # By type and not by isinstance: True is an int to Python, but not a port to people.
    if type(value) is known.kind and _within_limits(known, value):
        return value
    shown = f"{value!r:.80}"
    raise ConfigError(f"{known.key} = {shown} ({source}) is not accepted; it takes {known.accepts}")


def _within_limits(known: Setting, value: Any) -> bool:
    if known.choices:
        return value in known.choices
    if known.least is not None and known.most is not None:
        return known.least <= int(value) <= known.most
    return known.kind is bool or re.fullmatch(known.pattern, value) is not None


def _check_relations(config: Config, sources: Mapping[str, str]) -> None:
    """Settings that are fine alone and wrong together."""
    store, broker, tls = config.store, config.broker, config.tls

    def refuse(reason: str, *keys: str) -> None:
        shown = ", ".join(f"{key} = {value_of(config, key)!r} ({sources[key]})" for key in keys)
        raise ConfigError(f"{shown}: {reason}")

    if not store.disk_clean_percent <= store.disk_force_percent <= store.disk_refuse_percent:
        percents = (f"store.disk_{what}_percent" for what in ("clean", "force", "refuse"))
        refuse("each must be at least the one before", *percents)
    if 40 + 4 * store.index_slots + 20 * store.index_entries > INT32_MAX:
        reason = f"an index file of that size is over {INT32_MAX} bytes"
        refuse(reason, "store.index_slots", "store.index_entries")
    if "://" in broker.store_path:
        refuse("a store is a folder of this machine, on a disk or mounted", "broker.store_path")
    if broker.host in _ANY_HOST and broker.advertised_host in _ANY_HOST:
        reason = "clients cannot connect there; set broker.advertised_host to where they can"
        refuse(reason, "broker.host", "broker.advertised_host")
    if broker.port and broker.port == broker.vip_port:
        refuse("the two ports must differ", "broker.port", "broker.vip_port")
    if config.net.unread_bytes_max < broker.frame_bytes_max:
        reason = "one large request alone would be too much"
        refuse(reason, "net.unread_bytes_max", "broker.frame_bytes_max")
    if any(port > 65_535 for _, port in broker.nameserver_addresses):
        refuse("a port is at most 65535", "broker.nameservers")
    if tls.client_auth == "required" and not tls.client_ca_path:
        reason = "nobody could have a certificate; name the authority"
        refuse(reason, "tls.client_auth", "tls.client_ca_path")
    if bool(tls.cert_path) != bool(tls.key_path):
        reason = "a certificate needs its key, and a key its certificate"
        refuse(reason, "tls.cert_path", "tls.key_path")
