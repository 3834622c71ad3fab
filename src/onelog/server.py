"""The only place that builds and wires objects: a broker, a name server, or both in one process.

store -> core -> gateway -> listeners -> registration       started in this order,
                                                             stopped in the other
"""

import asyncio
import contextlib
import gc
import importlib
import logging
import socket
from collections.abc import AsyncIterator, Callable, Generator, Iterator, Sequence
from concurrent.futures import Executor, ThreadPoolExecutor
from dataclasses import replace
from functools import partial
from pathlib import Path
from random import Random
from typing import Any
from weakref import WeakSet

from onelog.clock import MonotonicClock, SystemClock
from onelog.config import Config
from onelog.config_sources import SETTINGS, Loaded, load, value_of
from onelog.core.access import SELF
from onelog.core.assembly import Assembly
from onelog.core.durable.storage import Runtime
from onelog.core.durable.tables import exhausted
from onelog.core.users.keys import KEY_FILE, Keys
from onelog.errors import ConfigError, ListenError, OnelogError
from onelog.gateways import Changed, Gateway, GatewayContext, MakeSession, ReplicaStatus
from onelog.jobs import Job
from onelog.message import encode_host
from onelog.nameserver.server import NameServer, serve_nameserver
from onelog.net import websocket as websockets
from onelog.net.capacity import Capacity, checked_capacity, make_capacity
from onelog.net.connection import Connection, Limits, Outbox, Session, is_here
from onelog.net.listener import Listener
from onelog.net.stall_watch import Stalls, StallWatch
from onelog.net.tls import Tls
from onelog.net.websocket import WebSocket
from onelog.replication.elected import ElectedRole
from onelog.replication.fixed import FixedRole, followers_port
from onelog.replication.leader import NodeRuntime
from onelog.rocketmq import config_files
from onelog.rocketmq.pop import Pop
from onelog.rocketmq.profile import NAMING, ROCKETMQ
from onelog.store.folder import require_store
from onelog.store.message_store import MessageStore
from onelog.store.retention import RetentionRound, Steps

log = logging.getLogger(__name__)

RETENTION_SECONDS = 10.0
RETENTION_REQUEST_SECONDS = 200.0
"""How long to go on deleting what was asked for, as long as RocketMQ does."""
RETENTION_AGAIN_SECONDS = 1.0
STRANGERS_MAX = 1_000
"""Whose refusal is logged once each."""
ROLE_CHANGE_SECONDS = 0.2
"""How long clients may take to read their last answers when a node becomes master, or no master."""
GATEWAYS = [
    ("broker", "onelog.gateways.remoting.gateway:RemotingGateway"),
    ("kafka", "onelog.gateways.kafka.gateway:KafkaGateway"),
    ("mqtt", "onelog.gateways.mqtt.gateway:MqttGateway"),
    ("http", "onelog.gateways.http.gateway:HttpGateway"),
    ("amqp", "onelog.gateways.amqp.gateway:AmqpGateway"),
    ("stomp", "onelog.gateways.stomp.gateway:StompGateway"),
    ("grpc", "onelog.gateways.grpc.gateway:GrpcGateway"),
]
"""Per protocol: the section of its settings, and the class that serves it, which is imported if the
`port` of the section is not 0."""
TRACING = "onelog.gateways.tracing:Tracing"
ON_SLAVES = ("broker", "http")
"""What a broker serves that follows another one."""
CUT_SECONDS = 1.0
"""How long who is cut off may take to say goodbye: TLS would wait for that for half a minute."""
PUSHING = ("amqp", "stomp", "mqtt")
"""Whose clients get messages without asking for each."""
HTTP_ROUTES = [
    "onelog.gateways.http.health:routes",
    "onelog.gateways.http.metrics:routes",
    "onelog.gateways.http.producing:routes",
    "onelog.gateways.http.consuming:routes",
    "onelog.gateways.http.following:routes",
    "onelog.gateways.http.activemq:routes",
    "onelog.admin.rest:routes",
    "onelog.gateways.http.management:routes",
    "onelog.console.pages:routes",
]
"""What the HTTP port always has; gateways add theirs (`GatewayContext.routes`)."""


class Stranger:
    """A connection from another machine while there are no users: it is closed."""

    def __init__(self, connection: Connection, warned_of: set[str]) -> None:
        host = connection.remote[0]
        if host not in warned_of and len(warned_of) < STRANGERS_MAX:
            warned_of.add(host)
            log.warning(
                "%s was not let in: other machines are served once there are users (onelog user "
                "create ...), or with security.anonymous=true",
                host,
            )
        connection.close()

    def data_received(self, data: bytes) -> None:
        """Nothing of it is read."""

    def writable(self) -> None:
        """Nothing is told it."""

    def connection_lost(self) -> None:
        """Nothing hung on it."""


def _keys(named: str, folder: Path) -> Keys:
    """The key of a broker: in the file that is named, or in its store."""
    return Keys(Path(named).expanduser() if named else folder / "config" / KEY_FILE)


def void(*_: object) -> None:
    """Take what nobody needs."""


class BrokerServer:
    """A broker that is being served. Made by `start`, ended by `close`."""

    def __init__(
        self,
        loaded: Loaded,
        listening: Sequence[type[Listener]] = (Listener,),
        capacity: Capacity | None = None,
    ) -> None:
        self.loaded = loaded
        self._capacity = capacity or make_capacity(loaded.config.net)
        self._listening = listening
        self.config = loaded.config
        self._clock = SystemClock()
        self._loop = asyncio.get_running_loop()
        self._outbox = Outbox(self._loop)
        self._listeners: list[Listener] = []
        self.left_out: dict[str, str] = {}
        """Protocols that are not served, because another program has their usual port; and why."""
        self._tasks: list[asyncio.Task[None]] = []
        self.stalls = Stalls()
        # Few: threads that compute take turns with the loop, and many would get most of them.
        self._lookers = ThreadPoolExecutor(2, "onelog-lookup")
        self._retaining = asyncio.Lock()
        self.tls = Tls(loaded.config.tls)
        self._changing_tls = asyncio.Lock()
        self._changes: set[asyncio.Task[None]] = set()
        self._warned_of: set[str] = set()
        self._on_websockets: WeakSet[Connection] = WeakSet()
        self._is_cutting = self._were_needed = False
        self._is_built = False
        """Whether there is a core, of a node whose role can change."""
        self._opened = asyncio.Event()
        """Set while the core knows everything: not while it is being opened."""

    async def start(self) -> None:
        """Open the store, listen, register."""
        await self.tls.open()
        with contextlib.ExitStack() as kept:
            for section, _ in GATEWAYS:
                settings = getattr(self.config, section)
                if settings.port == (0 if section == "broker" else -1):
                    free = kept.enter_context(_free_port(self.config.broker.host))
                    settings = replace(settings, port=free.getsockname()[1])
                    self.config = replace(self.config, **{section: settings})
            await self._start()

    async def _start(self) -> None:
        config = self.config.broker
        is_elected, is_slave = bool(self.config.replication.etcd), self._is_slave
        is_gated = is_elected or is_slave
        if is_elected:
            self._import_all()
        self.store = await asyncio.to_thread(
            lambda: MessageStore.open(
                Path(config.store_path).expanduser(), self.config.store, gated=is_gated
            )
        )
        self._keys = _keys(self.config.security.key_path, self.store.folder)
        entry_point = (
            self.config,
            self.store,
            NodeRuntime(MonotonicClock(), self._schedule, self._post, self._offload),
            self._capacity,
            self.tls,
            self._keys,
        )
        self.role: FixedRole | ElectedRole = (
            ElectedRole(*entry_point, self._rebuild)
            if is_elected
            else FixedRole(*entry_point, is_slave)
        )
        try:
            await asyncio.to_thread(self._keys.load)
            if not is_elected:
                exhausted(self._build())
                self._opened.set()
            await self.role.start()
            if not is_elected:
                await self._listen_all()
        except BaseException:
            await self.role.close()
            for listener in self._listeners:
                await listener.close()
            self.store.close()
            raise
        self._tasks.append(self._loop.create_task(self._retain_forever()))
        log.info("broker %s listens on %s", config.name, self.address)

    def _import_all(self) -> None:
        """Not only when this node becomes master: clients wait then."""
        for section, entry_point in GATEWAYS:
            if value_of(self.config, f"{section}.port"):
                _imported(entry_point)

    @property
    def _is_slave(self) -> bool:
        """Whether it follows another one, if there is nobody to elect a master."""
        return self.config.broker.broker_id > 0

    async def _rebuild(self, between: Callable[[], None]) -> None:
        """Close the core, if there is one, and open it in the role that the node has now.

        Clients have to connect again: they have to ask who is master anyway.
        """
        self._opened.clear()
        if self._is_built:
            self._is_built = False
            self.context.replica_status.leaves = False
            for gateway in self.gateways.values():
                await gateway.close()
            for close in self.context.at_close:
                await close()
            self.core.close(write=False)
            closing, self._listeners = self._listeners, []
            await asyncio.gather(*(each.close(ROLE_CHANGE_SECONDS) for each in closing))
            self.left_out.clear()
        between()
        # In steps: whoever is to be master has to keep its lease meanwhile.
        for _ in self._build():
            await asyncio.sleep(0)
        self._is_built = True
        self._opened.set()
        await self._listen_all()

    def _build(self) -> Generator[None, None, None]:
        """Make the core and its gateways, and open it in steps."""
        config = self.config.broker
        loop = self._loop
        random = Random()
        store_host = encode_host(_resolve(config.client_host), config.port)

        self.core = self.role.assembly = Assembly(
            config,
            self.store,
            Runtime(
                clock=self._clock,
                schedule=self._schedule,
                call_soon=self._outbox.soon,
                post=self._post,
                offload=lambda work: void(loop.run_in_executor(None, work)),
                random=random,
                host=store_host,
            ),
            naming=NAMING,
            replication=self.config.replication,
            replicas=self.role.leader,
            keys=self._keys,
        )
        self.broker = self.core.broker
        self.broker.users.logins.configure(self.config.security)
        self.broker.users.on_change.append(self._users_changed)
        self.context = GatewayContext(
            self.broker,
            Pop(self.core, random, store_host),
            self._clock,
            Loaded(self.config, self.loaded.sources),
            store_host,
            self._offload,
            self._look_up,
            random,
            self.reconfigure,
            self._delete_old_files,
            self._listen,
            self.tls,
            self.stalls,
            self._replica_status(),
            self._connections,
            self._serve_websocket,
            list(HTTP_ROUTES),
        )
        self.context.operate = partial(_operate, self.context)
        self.context.finish = self._outbox.finish
        self.gateways = {
            section: _imported(entry_point)(self.context)
            for section, entry_point in GATEWAYS
            if value_of(self.config, f"{section}.port") and section in self._sections
        }
        if self.config.telemetry.traces and not self.role.is_slave:
            self.gateways["telemetry"] = _imported(TRACING)(self.context)
        yield from self.core.opening(ROCKETMQ, follower=self.role.is_slave)

    @property
    def _sections(self) -> list[str]:
        if not self.role.is_slave:
            return [section for section, _ in GATEWAYS]
        # Kafka's clients know all nodes of an elected set, and ask any of them who is master.
        is_elected = bool(self.config.replication.etcd)
        return [*ON_SLAVES, "kafka"] if is_elected else [*ON_SLAVES]

    def _replica_status(self) -> ReplicaStatus:
        port = followers_port(self.config)
        host = _bracketed(self.config.broker.client_host)
        return ReplicaStatus(
            broker_id=self.role.broker_id,
            epoch=self.role.epoch,
            ha_address=f"{host}:{port}" if port else "",
            replicated=self.role.is_slave or self.config.replication.is_on,
            found_master=self.role.found_master,
            followers=lambda: self.role.leader.followers if self.role.leader else (),
            in_sync=lambda: self.role.in_sync,
            epochs=lambda: self.role.epochs,
            kafka_nodes=lambda: self.role.kafka_nodes,
            master=lambda: self.role.master_node,
        )

    async def _listen_all(self) -> None:
        """Open the ports. One that another program has is left out, if nobody asked for it."""
        for section, gateway in self.gateways.items():
            try:
                await gateway.listen()
            except ListenError as error:
                reason = f"{error}: stop who has the port, or set {section}.port to another one"
                if self._has_configured_port(section):
                    raise ListenError(reason) from None
                self.left_out[section] = reason
        if len(self.left_out) == len(self.gateways):
            raise ListenError("; ".join(self.left_out.values()))

    def _has_configured_port(self, section: str) -> bool:
        return any(
            key.startswith(f"{section}.") and key.endswith("port") and source != "default"
            for key, source in self.loaded.sources.items()
        )

    @property
    def _limits(self) -> Limits:
        bytes_max = self.config.broker.write_buffer_bytes_max
        proxied = self.config.net.proxy_protocol
        return Limits(write_bytes_max=bytes_max, capacity=self._capacity, proxied=proxied)

    async def _serve_websocket(self, websocket: WebSocket, make_session: MakeSession) -> None:
        def made(connection: Connection) -> Session:
            self._on_websockets.add(connection)
            return make_session(connection)

        await websockets.serve(websocket, made, self._outbox, self._limits)

    def _users_changed(self) -> None:
        """Cut those off, soon, who may not log in any more."""
        if not self._is_cutting:
            self._is_cutting = True
            self._loop.call_soon(self._cut)

    def _cut(self) -> None:
        self._is_cutting = False
        is_gone, is_needed = self.broker.users.is_gone, self.broker.users.logins.is_needed
        begins, self._were_needed = is_needed and not self._were_needed, is_needed
        everywhere = [*self._connections(), *(("mqtt", each) for each in self._on_websockets)]
        for section, connection in everywhere:
            # What is pushed to who came before there were users, he would get for ever.
            is_old = begins and not connection.user and section in PUSHING
            if is_old or (connection.user and is_gone(connection.user)):
                log.info("%s is cut off: %r is no user", connection, connection.user)
                connection.close()
                self._loop.call_later(CUT_SECONDS, connection.abort)

    async def _listen(
        self, port: int, make_session: MakeSession, prepare: Callable[[], object] | None = None
    ) -> None:
        config = self.config.broker

        def admitted(connection: Connection) -> Session:
            is_local = is_here(connection.remote[0], connection.local[0])
            if self.broker.users.logins.admits(is_local):
                return make_session(connection)
            return Stranger(connection, self._warned_of)

        limits = self._limits
        for kind in self._listening:
            listener = await kind.open(
                config.host,
                port,
                admitted,
                clock=self._clock,
                outbox=self._outbox,
                limits=limits,
                tls=self.tls,
                prepare=prepare,
            )
            self._listeners.append(listener)

    def _connections(self) -> Iterator[tuple[str, Connection]]:
        sections = {value_of(self.config, f"{section}.port"): section for section, _ in GATEWAYS}
        for listener in self._listeners:
            section = sections.get(listener.address[1], GATEWAYS[0][0])
            for connection in listener.connections:
                yield section, connection

    def _schedule(self, delay_ms: int, call: Callable[[], None]) -> None:
        self._loop.call_later(delay_ms / 1000, call)

    def _post(self, call: Callable[[], None]) -> None:
        self._loop.call_soon_threadsafe(call)

    def _offload(
        self, work: Callable[[], None], then: Callable[[], None], executor: Executor | None = None
    ) -> None:
        def finished(future: "asyncio.Future[None]") -> None:
            if (error := future.exception()) is not None:
                log.error("work in a thread failed: %r", error)
            then()

        self._loop.run_in_executor(executor, work).add_done_callback(finished)

    def _look_up(self, work: Callable[[], None], then: Callable[[], None]) -> None:
        self._offload(work, then, self._lookers)

    @property
    def listeners(self) -> Sequence[Listener]:
        return self._listeners

    @property
    def address(self) -> str:
        """Host and port that clients are told."""
        config = self.config.broker
        return f"{_bracketed(config.client_host)}:{config.port}"

    def reconfigure(self, changes: dict[str, str], done: Changed = void) -> None:
        """Change settings of the running broker; only those that are declared to allow it.

        What can be seen at once to be wrong is raised; what the files of TLS turn out to be is
        told to `done`, because reading them takes a moment.
        """
        for key in changes:
            if key in SETTINGS and not SETTINGS[key].reloadable:
                raise ConfigError(f"{key} cannot change while the broker runs: restart it")
        self._changed(changes)
        if any(key.startswith("tls.") for key in changes):
            task = self._loop.create_task(self._change_tls(changes, done))
            self._changes.add(task)
            task.add_done_callback(self._changes.discard)
        else:
            self._change(changes)
            done(None)

    async def _change_tls(self, changes: dict[str, str], done: Changed) -> None:
        async with self._changing_tls:
            try:
                await self.tls.reload(self._changed(changes).tls)
                self._change(changes)
            except ConfigError as error:
                done(error)
            else:
                done(None)

    def _changed(self, changes: dict[str, str]) -> Config:
        """The configuration as it would be."""
        current = {key: value_of(self.config, key) for key in SETTINGS}
        return load(overrides={**current, **changes}).config

    def _change(self, changes: dict[str, str]) -> None:
        self.config = self._changed(changes)
        sources = {**self.context.loaded.sources, **dict.fromkeys(changes, "changed while running")}
        self.context.loaded = Loaded(self.config, sources)
        self.store.reconfigure(self.config.store)
        self.core.reconfigure(self.config.broker)
        self.broker.users.logins.configure(self.config.security)
        for gateway in self.gateways.values():
            gateway.refresh(self.context.loaded)

    async def _retain_forever(self) -> None:
        job = Job("retention")
        pause = RETENTION_SECONDS
        while True:
            await asyncio.sleep(pause)
            pause = RETENTION_SECONDS
            with job:
                done = await self.retain()
                if self.store.retention.is_forced and (
                    done.segments_deleted or self.store.retention.is_stuck
                ):
                    # What moves what waits has made one file free, or a few.
                    pause = min(pause, RETENTION_AGAIN_SECONDS)

    async def retain(self, *, manual: bool = False) -> RetentionRound:
        """One round of retention, beside everything else; see `Retention.run`."""
        async with self._retaining:
            await self._opened.wait()
            times = self.core.topics.retention_ms()
            sizes = self.core.topics.retention_bytes()
            reach = await asyncio.to_thread(self.store.retention.reach, times)
            await self._opened.wait()
            self.core.prepare_retention(reach)
            done = await _in_steps(self.store.retention.steps(times, sizes, manual=manual))
            for group, count in self.broker.cursors.missed(SELF, done.messages_deleted).items():
                log.warning(
                    "retention (%s) deleted %d messages that group %s had not read",
                    done.reason or "a topic's own limit",
                    count,
                    group,
                )
            return done

    def _delete_old_files(self, manual: bool, then: Callable[[OnelogError | None], None]) -> None:
        """The same for a request, which is answered after the first round."""

        async def run() -> None:
            try:
                done = await self.retain(manual=manual)
            except OnelogError as error:
                then(error)
                return
            then(None)
            if manual:
                with Job("retention that was asked for"):
                    await self._retain_the_rest(done)

        task = self._loop.create_task(run())
        self._tasks.append(task)
        task.add_done_callback(self._tasks.remove)

    async def _retain_the_rest(self, done: RetentionRound) -> None:
        """Go on until nothing is left that should go.

        A round deletes a few files, and what waits in the next ones has to be moved, and to be on
        disk, before they can go.
        """
        until = self._loop.time() + RETENTION_REQUEST_SECONDS
        while done.segments_deleted or self.store.retention.is_stuck:
            if not done.segments_deleted:
                await asyncio.sleep(RETENTION_AGAIN_SECONDS)
                if self._loop.time() > until:
                    return
            done = await self.retain(manual=True)

    async def close(self) -> None:
        """Stop serving; everything acknowledged is on disk afterwards, whatever fails before."""
        for task in (*self._tasks, *self._changes):
            task.cancel()
        async with contextlib.AsyncExitStack() as last_first:
            last_first.push_async_callback(asyncio.to_thread, self.store.close)
            if (tracing := self.gateways.pop("telemetry", None)) is not None:
                # What is stored until the last client is gone has a span.
                last_first.push_async_callback(tracing.close)
            last_first.push_async_callback(asyncio.to_thread, self._lookers.shutdown)
            for listener in reversed(self._listeners):
                last_first.push_async_callback(listener.close)
            last_first.push_async_callback(self.role.close)
            last_first.callback(lambda: self.core.close(write=self.role.may_write))
            last_first.callback(self.role.stop_following)
            for gateway in self.gateways.values():
                last_first.push_async_callback(gateway.close)
            last_first.push_async_callback(self.role.leave)
            for close in self.context.at_close:
                last_first.push_async_callback(close)
        log.info("broker %s stopped", self.config.broker.name)


async def _in_steps(steps: Steps) -> RetentionRound:
    """Go through a round in the loop's thread; what waits for the disk runs in a worker."""
    while True:
        try:
            step = next(steps)
        except StopIteration as ended:
            done: RetentionRound = ended.value
            return done
        await (asyncio.sleep(0) if step is None else asyncio.to_thread(step))


async def _operate(context: GatewayContext, *asked: Any) -> bytes:
    """See `GatewayContext.operate`; the operations are imported when somebody asks for one."""
    module = await asyncio.to_thread(importlib.import_module, "onelog.admin.broker.by_name")
    made: bytes = await module.operate(context, *asked)
    return made


def _imported(entry_point: str) -> Callable[[GatewayContext], Gateway]:
    """A class, from its module and name."""
    module, _, name = entry_point.partition(":")
    found: Callable[[GatewayContext], Gateway] = getattr(importlib.import_module(module), name)
    return found


def _free_port(host: str) -> socket.socket:
    """A socket that keeps a free port for who listens there soon: nobody else is given it.

    Records name the port, so it must be known before listening.
    """
    kept = socket.socket(socket.AF_INET6 if ":" in host else socket.AF_INET, socket.SOCK_STREAM)
    kept.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)  # As the listener does.
    kept.bind((host, 0))
    return kept


def _bracketed(host: str) -> str:
    return f"[{host}]" if ":" in host else host


def _resolve(host: str) -> str:
    """An IP address of the host that clients are told; records keep no names."""
    try:
        found = socket.getaddrinfo(host, None, type=socket.SOCK_STREAM)
    except OSError as error:
        raise ConfigError(f"broker.advertised_host {host!r} is no address: {error}") from None
    return str(found[0][4][0])


@contextlib.asynccontextmanager
async def running_broker(
    loaded: Loaded, capacity: Capacity | None = None
) -> AsyncIterator[BrokerServer]:
    """A broker, for as long as the block lasts."""
    server = BrokerServer(loaded, capacity=capacity or checked_capacity(loaded))
    await server.start()
    try:
        with StallWatch(server.stalls):
            yield server
    finally:
        await server.close()


@contextlib.asynccontextmanager
async def running_nameserver(
    loaded: Loaded, capacity: Capacity | None = None
) -> AsyncIterator[NameServer]:
    """A name server, for as long as the block lasts."""
    config = loaded.config
    limits = Limits(
        capacity=capacity or checked_capacity(loaded), proxied=config.net.proxy_protocol
    )
    server = await serve_nameserver(
        config.nameserver,
        tls=config.tls,
        remote_admin=config.security.remote_admin,
        limits=limits,
    )
    try:
        yield server
    finally:
        await server.close()


def nth_broker(loaded: Loaded, number: int) -> Loaded:
    """The settings of one of several brokers, each of whose ports are one above the last one's.

    But for RocketMQ's: those are further apart, and each broker is told its own.
    """
    config = loaded.config
    for section, _ in GATEWAYS[1:]:
        settings = getattr(config, section)
        if settings.port > 0:
            settings = replace(settings, port=settings.port + number)
            config = replace(config, **{section: settings})
    return Loaded(config, loaded.sources)


def export_config(loaded: Loaded) -> None:
    """Write RocketMQ's config files into a store that no broker has open."""
    config = loaded.config
    folder = Path(config.broker.store_path).expanduser()
    require_store(folder)
    with MessageStore.open(folder, config.store) as store:
        # Its timers never fire and its ticks never end: it is asked, and does nothing by itself.
        core = Assembly(
            config.broker,
            store,
            Runtime(
                clock=SystemClock(),
                schedule=void,
                call_soon=void,
                post=void,
                random=Random(),
            ),
            naming=NAMING,
        )
        core.open(ROCKETMQ)
        config_files.export(core)
        core.close()


def tune_process() -> None:
    """Settings of the interpreter for a long-running server.

    What exists after the start never goes away, so the collector need not look at it again; and
    requests make few cycles, so it need not look often: what comes in at once, some 20,000 objects,
    should be gone by then. When it does, nothing else runs: to free 10,000 of them takes up to
    25 ms, and to look at the last 600,000 took 60, so those that are left are old soon.
    """
    gc.collect()
    gc.freeze()
    gc.set_threshold(30_000, 2, 1_000)
