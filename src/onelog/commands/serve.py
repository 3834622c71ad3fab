"""The programs that serve, `onelog up`, `broker` and `nameserver`; `config`, and `console`.

Of the programs only names, options and help; what they do is `serving`, in the program that the
process becomes. `config` shows every setting, its value, and where that came from.
"""

import json
import os
import sys
import time
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from onelog.commands.session import Output
from onelog.errors import OnelogError
from onelog.names import STARTED

if TYPE_CHECKING:
    from rich.table import Table

ConfigFile = Annotated[
    Path | None, typer.Option("--config", envvar="ONELOG_CONFIG", help="TOML file with settings.")
]
Set = Annotated[
    list[str] | None,
    typer.Option("--set", help="A setting, such as store.flush=sync. May be repeated."),
]
Verbose = Annotated[bool, typer.Option("--verbose", "-v", help="Log more.")]


def nameserver(
    host: Annotated[str | None, typer.Option(help="Address to listen on.")] = None,
    port: Annotated[int | None, typer.Option(help="Port to listen on.")] = None,
    data: Annotated[Path | None, typer.Option(help="Folder for its key-value file.")] = None,
    config: ConfigFile = None,
    set_: Set = None,
    verbose: Verbose = False,
) -> None:
    """Run a name server."""
    flags = {
        "nameserver.host": host,
        "nameserver.port": port,
        "nameserver.kv_path": data / "kvConfig.json" if data else None,
    }
    _start("nameserver", config, set_, flags, verbose)


KafkaPort = Annotated[
    int | None, typer.Option(help="Port of Kafka's clients; 0 for none.", show_default="9092")
]
MqttPort = Annotated[
    int | None, typer.Option(help="Port of MQTT's clients; 0 for none.", show_default="1883")
]
HttpPort = Annotated[
    int | None,
    typer.Option(help="Port of console, REST, metrics; 0 for none.", show_default="15672"),
]
AmqpPort = Annotated[
    int | None, typer.Option(help="Port of RabbitMQ's clients; 0 for none.", show_default="5672")
]
StompPort = Annotated[
    int | None, typer.Option(help="Port of STOMP's clients; 0 for none.", show_default="61613")
]
GrpcPort = Annotated[
    int | None,
    typer.Option(help="Port of RocketMQ's gRPC clients; 0 for none.", show_default="8081"),
]


def broker(
    host: Annotated[str | None, typer.Option(help="Address to listen on.")] = None,
    port: Annotated[int | None, typer.Option(help="Port to listen on.")] = None,
    name: Annotated[str | None, typer.Option(help="Its name in the cluster.")] = None,
    cluster: Annotated[str | None, typer.Option(help="The cluster's name.")] = None,
    id_: Annotated[
        int | None, typer.Option("--id", help="Which node of its set it is: 0, 1, 2, ...")
    ] = None,
    etcd: Annotated[
        str | None, typer.Option(help="etcd, which says who is master: host:port;host:port")
    ] = None,
    replicas: Annotated[
        int | None, typer.Option(help="How many nodes, this one included, are a whole set.")
    ] = None,
    ack: Annotated[
        str | None,
        typer.Option(help="Who must have a message: local, one, majority or all nodes."),
    ] = None,
    advertised_host: Annotated[
        str | None, typer.Option(help="Address that clients are told.")
    ] = None,
    nameservers: Annotated[
        str | None, typer.Option("--nameservers", "-n", help="host:port;host:port")
    ] = None,
    data: Annotated[Path | None, typer.Option(help="Folder of the store.")] = None,
    config: ConfigFile = None,
    set_: Set = None,
    verbose: Verbose = False,
    parent: Annotated[int | None, typer.Option(hidden=True)] = None,
    number: Annotated[int, typer.Option(hidden=True)] = 0,
) -> None:
    """Run a broker."""
    flags = {
        "broker.host": host,
        "broker.port": port,
        "broker.name": name,
        "broker.cluster": cluster,
        "broker.broker_id": id_,
        "replication.etcd": etcd,
        "replication.replicas": replicas,
        "replication.ack": ack,
        "broker.advertised_host": advertised_host,
        "broker.nameservers": nameservers,
        "broker.store_path": data,
    }
    _start("broker", config, set_, flags, verbose, number=number, parent=parent)


def up(
    data: Annotated[
        Path | None, typer.Option(help="Folder for everything.", show_default="onelog-data")
    ] = None,
    host: Annotated[
        str | None, typer.Option(help="Address to listen on.", show_default="127.0.0.1")
    ] = None,
    nameserver_port: Annotated[
        int | None, typer.Option(help="Port of the name server.", show_default="9876")
    ] = None,
    broker_port: Annotated[
        int | None, typer.Option(help="Port of the (first) broker.", show_default="10911")
    ] = None,
    kafka_port: KafkaPort = None,
    mqtt_port: MqttPort = None,
    http_port: HttpPort = None,
    amqp_port: AmqpPort = None,
    stomp_port: StompPort = None,
    grpc_port: GrpcPort = None,
    brokers: Annotated[int, typer.Option(min=1, max=64, help="Broker processes.")] = 1,
    replicas: Annotated[
        int,
        typer.Option(min=1, max=9, help="Nodes of one replicated broker, with an etcd of its own."),
    ] = 1,
    config: ConfigFile = None,
    set_: Set = None,
    verbose: Verbose = False,
) -> None:
    """Run everything: a name server and a broker, with all data in one folder."""
    began = time.monotonic()
    if brokers > 1 and replicas > 1:
        raise typer.BadParameter("--brokers and --replicas: one of them at a time")
    flags = {
        "nameserver.host": host,
        "nameserver.port": nameserver_port,
        "broker.host": host,
        "broker.port": broker_port,
        "kafka.port": kafka_port,
        "mqtt.port": mqtt_port,
        "http.port": http_port,
        "amqp.port": amqp_port,
        "stomp.port": stomp_port,
        "grpc.port": grpc_port,
    }
    _start(
        "up",
        config,
        set_,
        flags,
        verbose,
        data=data,
        brokers=brokers,
        replicas=replicas,
        began=began,
    )


def _start(
    command: str,
    config: Path | None,
    given: list[str] | None,
    flags: dict[str, Any],
    verbose: bool,
    **more: Any,
) -> None:
    """Become a program that has not read a command line: what does that takes 10 MB, and more."""
    started = {
        "command": command,
        "config": config,
        "set": given or [],
        "verbose": verbose,
        "flags": {key: value for key, value in flags.items() if value is not None},
        **more,
    }
    text = json.dumps(started, default=str)
    os.environ[STARTED] = text
    sys.stdout.flush()
    os.execv(sys.executable, [sys.executable, "-P", "-m", "onelog", *sys.argv[1:]])


def config(
    keys: Annotated[
        list[str] | None,
        typer.Argument(metavar="[KEY]...", help="Only these settings, or all of a section."),
    ] = None,
    config_file: ConfigFile = None,
    set_: Set = None,
    changed: Annotated[
        bool, typer.Option("--changed", help="Only settings that are not at their default.")
    ] = False,
    json: Annotated[bool, typer.Option("--json", help="Print JSON, for programs.")] = False,
) -> None:
    """Show every setting, its value and its source: default, file, environment or flag."""
    from onelog.commands.serving import settings
    from onelog.config_sources import describe

    rows = describe(settings(config_file, set_, {}))
    if keys:
        rows = [row for key in keys for row in _named(key, rows)]
    if changed:
        rows = [row for row in rows if row["source"] != "default"]
    Output(as_json=json, utc=False).show(rows, _table(rows))


def _named(key: str, rows: list[dict[str, Any]]) -> list[dict[str, Any]]:
    from onelog.config import Config
    from onelog.config_sources import value_of

    section = [row for row in rows if row["key"].startswith(key.rstrip(".") + ".")]
    if section:
        return section
    value_of(Config(), key)  # Refuses a key that does not exist, and says what is near it.
    return [row for row in rows if row["key"] == key]


def _shown(row: dict[str, Any]) -> dict[str, Any]:
    """Values as one would write them; an empty text would look like nothing at all."""
    value = row["value"]
    shown = str(value).lower() if isinstance(value, bool) else str(value) or '""'
    more = " (can change while running)" if row["reloadable"] else ""
    return {**row, "value": shown, "help": row["help"] + more}


def _table(rows: list[dict[str, Any]]) -> "Table":
    from onelog.commands.terminal import table

    columns = "setting=key, value, source, accepts, meaning=help"
    made = table(f"settings: {len(rows)}", columns, rows=map(_shown, rows))
    made.columns[0].no_wrap = True
    for shown, row in zip(made.rows, rows, strict=True):
        shown.style = None if row["source"] == "default" else "bold"
    return made


def console(
    host: Annotated[str | None, typer.Option(help="The broker's address.")] = None,
    port: Annotated[int | None, typer.Option(help="Its HTTP port.", min=1, max=65_535)] = None,
    open_: Annotated[bool, typer.Option("--open", help="Open it in a browser.")] = False,
    config: ConfigFile = None,
    set_: Set = None,
) -> None:
    """Say where the console of a broker is, if one answers there."""
    import http.client
    import webbrowser

    from onelog.commands import serving

    loaded = serving.settings(config, set_, {"broker.host": host, "http.port": port}).config
    _, called = serving.addresses(loaded.broker.host, loaded.http.port)
    address = f"http://{called}/"
    try:
        connection = http.client.HTTPConnection(called, timeout=5)
        connection.request("GET", "/healthz")
        status = connection.getresponse().status
    except (OSError, http.client.HTTPException) as error:
        raise OnelogError(
            f"no console answers at {address} ({error}): start one with `onelog up`, or say where "
            "it is with --host and --port"
        ) from None
    if status != 200:
        raise OnelogError(f"what answers at {address} is no OneLog")
    typer.echo(address)
    if open_ and not webbrowser.open(address):
        raise OnelogError(f"found no browser to open {address} with")
