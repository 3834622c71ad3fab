"""Who a client of AMQP is, by the certificate that it shows."""

import asyncio
import ssl
from pathlib import Path

import pika
import pytest

from onelog.config import Value
from onelog.core.access import SELF
from onelog.core.users.passwords import prove
from onelog.server import BrokerServer
from tests.e2e.certificates import Authority
from tests.gateways.amqp.live import SECONDS
from tests.gateways.remoting.live import broker


def _connect(port: int, ca: Path, cert: tuple[Path, Path] | None) -> str:
    """Who one is by EXTERNAL: the user-id that may be named in a message."""
    context = ssl.create_default_context(cafile=str(ca))
    if cert is not None:
        context.load_cert_chain(*cert)
    parameters = pika.ConnectionParameters(
        "127.0.0.1",
        port,
        credentials=pika.credentials.ExternalCredentials(),
        ssl_options=pika.SSLOptions(context),
        socket_timeout=SECONDS,
    )
    connection = pika.BlockingConnection(parameters)
    channel = connection.channel()
    channel.confirm_delivery()
    channel.queue_declare("q", durable=True)
    channel.basic_publish("", "q", b"x", pika.BasicProperties(user_id="ann"), mandatory=True)
    _, properties, _ = channel.basic_get("q", auto_ack=True)
    connection.close()
    return str(properties.user_id)


async def test_a_certificate_says_who_one_is(tmp_path: Path) -> None:
    authority = Authority(tmp_path / "ca", "authority")

    def made(name: str) -> tuple[Path, Path]:
        paths = tmp_path / f"{name}.pem", tmp_path / f"{name}.key"
        authority.write(*paths, name)
        return paths

    own, ann, nobody = made("broker"), made("ann"), made("nobody")
    settings: dict[str, Value] = {
        "amqp__port": -1,
        "tls__cert_path": str(own[0]),
        "tls__key_path": str(own[1]),
        "tls__client_ca_path": str(authority.ca_path),
    }
    async with broker(tmp_path, **settings) as server:
        server.broker.users.create_user(SELF, "ann", prove("secret"), ("admin",))
        await asyncio.to_thread(_use, server, authority.ca_path, ann, nobody)


def _use(server: BrokerServer, ca: Path, ann: tuple[Path, Path], nobody: tuple[Path, Path]) -> None:
    port = server.config.amqp.port
    assert _connect(port, ca, ann) == "ann"
    with pytest.raises(pika.exceptions.ProbableAuthenticationError):
        _connect(port, ca, nobody)
    # Who shows none is not even offered the mechanism.
    with pytest.raises(pika.exceptions.AuthenticationError):
        _connect(port, ca, None)
