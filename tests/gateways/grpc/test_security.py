"""Who may: signed calls, permissions, TLS on the same port, and clients behind a balancer."""

import asyncio
import ssl
from pathlib import Path

import rocketmq

from onelog.core.access import SELF
from onelog.core.users.passwords import prove
from onelog.core.users.users import ADMIN_ROLE
from onelog.wire.grpc import messages
from onelog.wire.grpc.codes import Code, MessageType
from onelog.wire.grpc.http2 import PREFACE
from tests.gateways.grpc.live import address, grpc_broker, in_thread, make_topic, message
from tests.gateways.grpc.raw import RawClient
from tests.gateways.grpc.test_bad_input import message as send_request


async def test_calls_are_signed_by_users_once_there_are_users(tmp_path: Path) -> None:
    async with grpc_broker(tmp_path) as server, RawClient(address(server)) as stranger:
        topic = make_topic(server, "guarded")
        users = server.broker.users
        users.create_user(SELF, "root", prove("secret", signing=True), (ADMIN_ROLE,))
        users.create_user(SELF, "guest", prove("secret2", signing=True))

        answer = await stranger.call("SendMessage", send_request(topic))
        assert answer.status.code == Code.UNAUTHORIZED

        def send(name: str, secret: str) -> str:
            credentials = rocketmq.Credentials(name, secret)
            given = rocketmq.ClientConfiguration(address(server), credentials, request_timeout=20)
            producer = rocketmq.Producer(given, (topic,))
            try:
                producer.startup()
                return str(producer.send(message(topic, b"x")).message_id)
            except Exception as error:
                return f"refused: {error}"
            finally:
                if producer.is_running:
                    producer.shutdown()

        assert not (await in_thread(send, "root", "secret")).startswith("refused")
        assert (await in_thread(send, "root", "wrong")).startswith("refused")
        assert (await in_thread(send, "guest", "secret2")).startswith("refused")


async def test_nobody_is_asked_about_transactions_who_may_not_send_there(tmp_path: Path) -> None:
    settings = {"broker__transaction_timeout_ms": 100, "broker__transaction_check_interval_ms": 100}
    async with (
        grpc_broker(tmp_path, **settings) as server,
        RawClient(address(server), "guest-client") as guest,
        RawClient(address(server), "root-client") as root,
    ):
        topic = make_topic(server, "guarded", "TRANSACTION")
        users = server.broker.users
        users.create_user(SELF, "root", prove("secret", signing=True), (ADMIN_ROLE,))
        users.create_user(SELF, "guest", prove("secret2", signing=True))
        guest.sign("guest", "secret2")
        root.sign("root", "secret")
        await guest.introduce_producer(topic)
        asked = asyncio.create_task(guest.hear())
        request = send_request(topic)
        request.messages[0].system_properties.message_type = MessageType.TRANSACTION
        answer = await root.call("SendMessage", request)
        assert answer.status.code == Code.OK, answer
        # Meanwhile there is nobody else to be asked.
        await asyncio.sleep(0.4)
        await root.introduce_producer(topic)
        command = (await root.hear()).recover_orphaned_transaction_command
        assert command.transaction_id == answer.entries[0].transaction_id
        assert command.message.body == request.messages[0].body
        assert not asked.done()
        asked.cancel()


async def test_tls_is_spoken_on_the_same_port(tmp_path: Path) -> None:
    async with grpc_broker(tmp_path) as server:
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
        context.check_hostname, context.verify_mode = False, ssl.CERT_NONE
        context.set_alpn_protocols(["h2"])
        port = server.config.grpc.port
        reader, writer = await asyncio.open_connection("127.0.0.1", port, ssl=context)
        assert writer.get_extra_info("ssl_object").selected_alpn_protocol() == "h2"
        writer.write(PREFACE)
        assert (await asyncio.wait_for(reader.readexactly(9), 20))[3] == 4
        writer.close()
        async with RawClient(address(server)) as plain:
            answer = await plain.call("Heartbeat", messages.HeartbeatRequest())
            assert answer.status.code == Code.UNRECOGNIZED_CLIENT_TYPE


async def test_a_balancer_tells_where_a_client_is(tmp_path: Path) -> None:
    async with grpc_broker(tmp_path, net__proxy_protocol=True, security__anonymous=True) as server:
        port = server.config.grpc.port
        reader, writer = await asyncio.open_connection("127.0.0.1", port)
        for part in (b"PROXY TCP4 10.1.2.3 ", b"10.0.0.1 4711 80", b"81\r\n", PREFACE):
            writer.write(part)
            await writer.drain()
            await asyncio.sleep(0.05)
        assert (await asyncio.wait_for(reader.readexactly(9), 20))[3] == 4
        gateway = server.gateways["grpc"].shared()  # type: ignore[attr-defined]
        (session,) = gateway.sessions
        assert session.connection.remote == ("10.1.2.3", 4711)
        writer.close()
