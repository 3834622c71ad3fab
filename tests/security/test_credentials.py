"""Clients of each protocol with the right credentials, wrong ones, none, and revoked ones, over TLS
and in plain text, and with certificates: what they are told is what the original tells them."""

import asyncio
import contextlib
import datetime
import socket
import ssl
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, NamedTuple

import grpc
import httpx
import paho.mqtt.client as paho
import pika
import pytest
from confluent_kafka import KafkaException
from confluent_kafka.admin import AdminClient
from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import NameOID
from paho.mqtt.enums import CallbackAPIVersion

from onelog.core.access import SELF
from onelog.core.catalog.topics import TopicConfig
from onelog.core.users.passwords import prove, signature
from onelog.net.peer import Peer
from onelog.server import BrokerServer
from onelog.wire.grpc import messages
from onelog.wire.grpc.codes import Code
from onelog.wire.remoting.codes import RequestCode, ResponseCode
from onelog.wire.remoting.signature import signed_content
from tests.gateways.remoting.live import broker
from tests.security.secrets import ADMIN, PORTS
from tests.security.test_sweep_grpc import metadata

SECONDS = 20
Login = tuple[str, str] | None


class Files(NamedTuple):
    """An authority, what the server shows, and what a client shows."""

    authority: Path
    server: Path
    client: Path
    stranger: Path
    """A client whom another authority knows."""


def _certificate(
    path: Path, name: str, issuer: tuple[x509.Certificate, Any] | None = None
) -> tuple[x509.Certificate, Any]:
    key = ec.generate_private_key(ec.SECP256R1())
    subject = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, name)])
    now = datetime.datetime.now(datetime.UTC)
    made = (
        x509.CertificateBuilder()
        .subject_name(subject)
        .issuer_name(subject if issuer is None else issuer[0].subject)
        .public_key(key.public_key())
        .serial_number(x509.random_serial_number())
        .not_valid_before(now - datetime.timedelta(days=1))
        .not_valid_after(now + datetime.timedelta(days=2))
        .add_extension(x509.BasicConstraints(ca=issuer is None, path_length=None), True)
        .add_extension(x509.SubjectAlternativeName([x509.DNSName("localhost")]), False)
        .sign(key if issuer is None else issuer[1], hashes.SHA256())
    )
    path.write_bytes(
        made.public_bytes(serialization.Encoding.PEM)
        + key.private_bytes(
            serialization.Encoding.PEM,
            serialization.PrivateFormat.PKCS8,
            serialization.NoEncryption(),
        )
    )
    return made, key


@pytest.fixture(scope="module")
def files(tmp_path_factory: pytest.TempPathFactory) -> Files:
    folder = tmp_path_factory.mktemp("certificates")
    found = Files(*(folder / f"{each}.pem" for each in ("ca", "server", "client", "stranger")))
    authority = _certificate(found.authority, "authority")
    _certificate(found.server, "localhost", authority)
    _certificate(found.client, ADMIN[0], authority)
    _certificate(found.stranger, ADMIN[0])
    return found


class Way(NamedTuple):
    """How a client comes."""

    login: Login
    tls: bool = False
    certificate: Path | None = None
    authority: Path | None = None

    @property
    def context(self) -> ssl.SSLContext | None:
        """For clients that take Python's."""
        if not self.tls:
            return None
        context = ssl.create_default_context(cafile=str(self.authority))
        if self.certificate is not None:
            context.load_cert_chain(self.certificate)
        return context


# -- a client of each protocol, and what it is told ------------------------------------------------


@contextlib.contextmanager
def kafka(server: BrokerServer, way: Way) -> Iterator[Callable[[], str]]:
    given: dict[str, Any] = {
        "bootstrap.servers": f"localhost:{server.config.kafka.port}",
        "security.protocol": ("SASL_" if way.login else "") + ("SSL" if way.tls else "PLAINTEXT"),
        "logger": None,
        "log_level": 0,
        "reconnect.backoff.max.ms": 100,
    }
    errors: list[Any] = []
    given["error_cb"] = errors.append
    if way.login:
        given |= {
            "sasl.mechanism": "SCRAM-SHA-256",
            "sasl.username": way.login[0],
            "sasl.password": way.login[1],
        }
    if way.tls:
        given["ssl.ca.location"] = str(way.authority)
        if way.certificate:
            given["ssl.certificate.location"] = given["ssl.key.location"] = str(way.certificate)
    client = AdminClient({key: value for key, value in given.items() if value is not None})

    def use() -> str:
        try:
            client.list_topics("orders", timeout=1.5)
        except KafkaException as error:
            for _ in range(40 if way.login else 0):  # What went wrong, it tells when it is asked.
                client.poll(0.25)
                if any(each.name() == "_AUTHENTICATION" for each in errors):
                    break
            names = {each.name() for each in errors} | {error.args[0].name()}
            return "refused" if "_AUTHENTICATION" in names else "cut off"
        topics = client.list_topics(timeout=SECONDS).topics
        return "served" if "orders" in topics else "sees nothing"

    yield use


@contextlib.contextmanager
def amqp(server: BrokerServer, way: Way) -> Iterator[Callable[[], str]]:
    parameters = pika.ConnectionParameters(
        "localhost",
        server.config.amqp.port,
        "/",
        pika.PlainCredentials(*(way.login or ("", ""))),
        ssl_options=None if way.context is None else pika.SSLOptions(way.context, "localhost"),
        socket_timeout=SECONDS,
        blocked_connection_timeout=SECONDS,
    )
    connections: list[pika.BlockingConnection] = []

    def use() -> str:
        try:
            if not connections:
                connections.append(pika.BlockingConnection(parameters))
                connections.append(connections[0].channel())
            connections[1].exchange_declare("amq.topic", passive=True)
        except pika.exceptions.ProbableAuthenticationError as error:
            return "refused" if "ACCESS_REFUSED" in str(error) else str(error)
        except pika.exceptions.AMQPError as error:
            return f"cut off {type(error).__name__}"[:7]
        return "served"

    yield use
    if connections and connections[0].is_open:
        connections[0].close()


@contextlib.contextmanager
def stomp_1_2(server: BrokerServer, way: Way) -> Iterator[Callable[[], str]]:
    """By hand: stomp.py waits for ever where it is cut off."""
    plain = socket.create_connection(("localhost", server.config.stomp.port), SECONDS)
    context = way.context
    line = plain if context is None else context.wrap_socket(plain, server_hostname="localhost")
    login = "" if way.login is None else f"login:{way.login[0]}\npasscode:{way.login[1]}\n"
    said = iter([f"CONNECT\naccept-version:1.2\nhost:/\n{login}\n\0"])

    def ask(frame: str) -> bytes:
        try:
            line.sendall(frame.encode())
            return line.recv(1 << 16)
        except OSError:
            return b""

    def use() -> str:
        for first in said:
            answer = ask(first)
            if not answer.startswith(b"CONNECTED"):
                return "refused" if b"wrong user or password" in answer else "cut off"
        answer = ask("SEND\ndestination:/topic/x\nreceipt:r\n\ny\0")
        return "served" if answer.startswith(b"RECEIPT") else "cut off"

    with line:
        yield use


@contextlib.contextmanager
def mqtt(server: BrokerServer, way: Way) -> Iterator[Callable[[], str]]:
    client = paho.Client(CallbackAPIVersion.VERSION2, protocol=paho.MQTTv5)
    if way.login:
        client.username_pw_set(*way.login)
    if way.context is not None:
        client.tls_set_context(way.context)
    codes: list[str] = []
    gone: list[bool] = []
    client.on_connect = lambda *heard: codes.append(str(heard[3]))
    client.on_disconnect = lambda *heard: gone.append(True)

    def use() -> str:
        until = time.monotonic() + SECONDS
        if not codes:
            client.connect("localhost", server.config.mqtt.port)
            while not codes and not gone and time.monotonic() < until:
                client.loop(0.1)
        if codes != ["Success"]:
            return "refused" if codes == ["Bad user name or password"] else str(codes)
        sent = client.publish("t", b"x", 1)
        while not sent.is_published() and not gone and time.monotonic() < until:
            client.loop(0.1)
        return "cut off" if gone else "served"

    yield use
    client.disconnect()


@contextlib.contextmanager
def http(server: BrokerServer, way: Way) -> Iterator[Callable[[], str]]:
    scheme = "https" if way.tls else "http"
    verify = way.context or True
    base = f"{scheme}://localhost:{server.config.http.port}"
    client = httpx.Client(base_url=base, auth=way.login, verify=verify, timeout=SECONDS)

    def use() -> str:
        answer = client.get("/v1/topics")
        if answer.status_code == 401:
            return "refused"
        return "served" if "orders" in answer.text else str(answer.status_code)

    with client:
        yield use


@contextlib.contextmanager
def remoting(server: BrokerServer, way: Way) -> Iterator[Callable[[], str]]:
    """By hand: signed as RocketMQ's own clients sign."""

    async def ask() -> str:
        peer = await Peer.connect(
            "localhost", server.config.broker.port, timeout_ms=SECONDS * 1000, tls=way.context
        )
        try:
            ext = {}
            if way.login is not None:
                ext["AccessKey"] = way.login[0]
                ext["Signature"] = signature(way.login[1], signed_content(ext)).decode()
            answer = await peer.ask(RequestCode.GET_ALL_TOPIC_CONFIG, ext, b"", SECONDS * 1000)
        finally:
            await peer.close()
        if answer.code == ResponseCode.NO_PERMISSION:
            return "refused"
        return "served" if b'"orders"' in bytes(answer.body) else str(answer)

    yield lambda: asyncio.run(ask())


@contextlib.contextmanager
def grpc_5(server: BrokerServer, way: Way) -> Iterator[Callable[[], str]]:
    """By hand, through gRPC's own library: signed as RocketMQ's own clients sign."""
    place = f"localhost:{server.config.grpc.port}"
    if way.tls and way.authority is not None:
        own = way.certificate.read_bytes() if way.certificate else None
        how = grpc.ssl_channel_credentials(way.authority.read_bytes(), own, own)
        channel = grpc.secure_channel(place, how)
    else:
        channel = grpc.insecure_channel(place)
    path = "/apache.rocketmq.v2.MessagingService/QueryRoute"
    request, answer = messages.methods()[path]
    call = channel.unary_unary(
        path,
        request_serializer=lambda each: each.SerializeToString(),
        response_deserializer=answer.FromString,
    )
    wanted = request()
    wanted.topic.name = "orders"

    def use() -> str:
        for tries_left in range(3, -1, -1):
            try:
                told = call(wanted, metadata=metadata(way.login), timeout=SECONDS).status.code
                break
            except grpc.RpcError:  # Cut off: clients connect again, also if they notice it late.
                if not tries_left:
                    raise
        return {Code.OK: "served", Code.UNAUTHORIZED: "refused"}.get(told, str(told))

    with channel:
        yield use


CLIENTS = [kafka, amqp, stomp_1_2, mqtt, http, remoting, grpc_5]
MISSING = {"kafka": "cut off"}
"""Kafka ends connections that do not log in; all others say why: "refused"."""
REVOKED = {"amqp": "cut off", "stomp_1_2": "cut off", "mqtt": "cut off"}
"""These notice the end; the others log in again, for each request or when they were cut off."""


def guarded(server: BrokerServer) -> None:
    users = server.broker.users
    users.create_user(SELF, "root", prove("r"), ("admin",))
    users.create_user(SELF, ADMIN[0], prove(ADMIN[1], signing=True), ("admin",))
    server.broker.topics.create(SELF, TopicConfig("orders", 1, 1))


@pytest.mark.parametrize("tls", [False, True], ids=["plain", "tls"])
@pytest.mark.parametrize("client", CLIENTS)
async def test_right_wrong_missing_and_revoked(
    tmp_path: Path, files: Files, client: Any, tls: bool
) -> None:
    certificate = str(files.server)
    async with broker(
        tmp_path,
        **PORTS,
        tls__cert_path=certificate,
        tls__key_path=certificate,
        tls__client_ca_path=str(files.authority),
    ) as server:
        guarded(server)

        def once(login: Login) -> str:
            with client(server, Way(login, tls, None, files.authority)) as use:
                return str(use())

        name = client.__name__
        assert await asyncio.to_thread(once, (ADMIN[0], "wrong")) == "refused"
        assert await asyncio.to_thread(once, ("nobody", ADMIN[1])) == "refused"
        assert await asyncio.to_thread(once, None) == MISSING.get(name, "refused")
        with contextlib.ExitStack() as stack:
            way = Way(ADMIN, tls, None, files.authority)
            # In a thread: a handshake here would wait for the server, which is on this loop.
            use = await asyncio.to_thread(stack.enter_context, client(server, way))
            assert await asyncio.to_thread(use) == "served"
            server.broker.users.change_user(SELF, ADMIN[0], disabled=True)
            await asyncio.sleep(0.1)  # It is cut off by then, and need not know it.
            assert await asyncio.to_thread(use) == REVOKED.get(name, "refused")
            await asyncio.to_thread(stack.pop_all().close)
        assert await asyncio.to_thread(once, ADMIN) == "refused"


@pytest.mark.parametrize("client", [kafka, stomp_1_2, mqtt, http, remoting, grpc_5])
async def test_a_certificate_is_as_good_as_a_password(
    tmp_path: Path, files: Files, client: Any
) -> None:
    certificate = str(files.server)
    async with broker(
        tmp_path,
        **PORTS,
        tls__cert_path=certificate,
        tls__key_path=certificate,
        tls__client_ca_path=str(files.authority),
    ) as server:
        guarded(server)

        def once() -> str:
            with client(server, Way(None, True, files.client, files.authority)) as use:
                return str(use())

        assert await asyncio.to_thread(once) == "served"
        server.broker.users.change_user(SELF, ADMIN[0], disabled=True)
        assert await asyncio.to_thread(once) == MISSING.get(client.__name__, "refused")
