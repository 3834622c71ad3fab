"""What others did to brokers, tried here: none of it gets through, and none of it stalls others."""

import asyncio
import base64
import json
import threading
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import httpx
import pytest
from cryptography.hazmat.primitives.asymmetric import rsa
from jwt.algorithms import RSAAlgorithm

from onelog.config_sources import load
from onelog.core.access import SELF
from onelog.core.catalog.topics import TopicConfig
from onelog.core.users import logins, passwords
from onelog.core.users.passwords import Proofs
from onelog.errors import OnelogError
from onelog.net.peer import Peer
from onelog.server import BrokerServer, running_nameserver
from onelog.wire.mqtt.codes import V5
from onelog.wire.remoting.codes import RequestCode, ResponseCode
from tests.gateways.http.live import SECONDS, url
from tests.gateways.kafka.raw import raw
from tests.gateways.mqtt.raw import Raw as MqttClient
from tests.gateways.remoting.live import broker, client
from tests.gateways.stomp.live import Bare
from tests.security.secrets import ADMIN, NOBODY, PORTS, people
from tests.security.test_sweep_kafka import log_in
from tests.security.test_sweep_remoting import ask

# -- CVE-2023-33246 and CVE-2023-37582: settings through which commands were run -------------------

SHELL = "-c $@|sh . echo touch {path};"


@pytest.mark.parametrize("has_users", [False, True])
async def test_no_setting_of_a_broker_runs_a_command(tmp_path: Path, has_users: bool) -> None:
    path = tmp_path / "taken-over"
    attacks = [
        f"filterServerNums=1\nrocketmqHome={SHELL.format(path=path)}\n",
        f"rocketmqHome={SHELL.format(path=path)}\n",
        f"brokerConfigPath={path}\nfilterServerNums=1\n",
        f"configBlackList=\nbrokerConfigPath={path}\n",
        f"storePathRootDir={path}\n",
    ]
    async with broker(tmp_path) as server, client(server) as peer:
        if has_users:
            people(server)
        for properties in attacks:
            if has_users:
                answer = await ask(
                    peer, NOBODY, RequestCode.UPDATE_BROKER_CONFIG, {}, properties.encode()
                )
            else:
                answer = await peer.ask(RequestCode.UPDATE_BROKER_CONFIG, properties.encode())
            assert answer.code != ResponseCode.SUCCESS, properties
            unsigned = await peer.ask(RequestCode.UPDATE_BROKER_CONFIG, properties.encode())
            assert unsigned.code != ResponseCode.SUCCESS
        assert not path.exists()


async def test_no_setting_of_a_name_server_writes_a_file(tmp_path: Path) -> None:
    path = tmp_path / "cron" / "job"
    names = load(overrides={"nameserver.port": 0, "nameserver.kv_path": str(tmp_path / "kv.json")})
    async with running_nameserver(names) as server:
        peer = await Peer.connect(*server.address)
        for properties in (
            f"configStorePath={path}\nproductEnvName=a\\n* * * * * root touch {path}\\n",
            f"kvConfigPath={path}\n",
            f"configBlackList=\nconfigStorePath={path}\n",
            f"rocketmqHome={path}\n",
        ):
            answer = await peer.ask(
                RequestCode.UPDATE_NAMESRV_CONFIG, {}, properties.encode(), 20_000
            )
            assert answer.code != ResponseCode.SUCCESS, properties
        await peer.close()
    assert not path.parent.exists()


# -- paths and headers -----------------------------------------------------------------------------

TRAVERSALS = [
    "/console/../../../../etc/passwd",
    "/console/..%2f..%2f..%2fetc%2fpasswd",
    "/console/%2e%2e/%2e%2e/etc/passwd",
    "/console/..%5c..%5cetc%5cpasswd",
    "//etc/passwd",
    "/console//etc/passwd",
    "/console/%00",
    "/console/....//....//etc/passwd",
    "/v1/topics/..%2f..%2f..%2fetc%2fpasswd",
    "/api/queues/%2f/..%2f..%2fetc%2fpasswd",
]


async def _raw_http(server: BrokerServer, target: str, more: str = "") -> bytes:
    reader, writer = await asyncio.open_connection("127.0.0.1", server.config.http.port)
    login = base64.b64encode(":".join(ADMIN).encode()).decode()
    writer.write(
        f"GET {target} HTTP/1.1\r\nHost: 127.0.0.1\r\nAuthorization: Basic {login}\r\n"
        f"Connection: close\r\n{more}\r\n".encode()
    )
    answer = await asyncio.wait_for(reader.read(), SECONDS)
    writer.close()
    return answer


def _outside(folder: Path) -> list[Path]:
    """What was made where nothing of a store should be."""
    found = [each for each in folder.rglob("*evil*") if folder / "store" not in each.parents]
    return found + [each for each in (Path("/tmp/evil"),) if each.exists()]


async def test_no_path_leads_out(tmp_path: Path) -> None:
    async with broker(tmp_path, **PORTS) as server:
        people(server)
        for target in TRAVERSALS:
            answer = await _raw_http(server, target)
            assert b"root:" not in answer, target
            assert answer.split()[1] in (b"400", b"404", b"403"), (target, answer[:100])
        for name in ("../../evil", "..", "/tmp/evil", "a/../../evil", "evil\0"):
            try:
                server.broker.topics.create(SELF, TopicConfig(name, 1, 1))
            except OnelogError:
                continue
        assert await asyncio.to_thread(_outside, tmp_path) == []


async def test_nothing_that_is_asked_becomes_a_header(tmp_path: Path) -> None:
    evil = "%0d%0aset-cookie:%20evil=1%0d%0a%0d%0a"
    async with broker(tmp_path, **PORTS) as server:
        people(server)
        for target in (
            f"/v1/topics/{evil}",
            f"/{evil}",
            f"/v1/topics?after={evil}",
            f"/login?{evil}",
            f"/api/queues/%2f/{evil}",
            f"/console/{evil}",
        ):
            answer = await _raw_http(server, target)
            head = answer.partition(b"\r\n\r\n")[0].lower()
            assert b"set-cookie" not in head, target
        # One request is one request, whatever it says of its length.
        for more in (
            "Content-Length: 5\r\nTransfer-Encoding: chunked\r\n",
            "Content-Length: 1\r\nContent-Length: 2\r\n",
            "Content-Length: -1\r\n",
            "X: a\r\n\tb\r\n",
            "Transfer-Encoding: xchunked\r\n",
        ):
            answer = await _raw_http(server, "/v1/session", more + "\r\nGET /v1/users HTTP/1.1")
            assert answer.count(b"HTTP/1.1 ") <= 1, more
        address = ("127.0.0.1", server.config.stomp.port)
        with Bare(address) as bare:
            login = f"login:{ADMIN[0]}\npasscode:{ADMIN[1]}\n"

            def talk() -> Any:
                bare.connect("1.2", login)
                bare.say(b"SUBSCRIBE\nid:1\ndestination:/topic/t\n\n\0")
                bare.say(b"SEND\ndestination:/topic/t\nx:a\\nevil\\c1\n\nbody\0")
                return bare.hear()

            frame = await asyncio.to_thread(talk)
            assert frame.headers["x"] == "a\nevil:1"
            assert "evil" not in frame.headers


# -- tokens ----------------------------------------------------------------------------------------


def _token(header: Mapping[str, object], claims: Mapping[str, object], signed: str = "") -> str:
    parts = (
        base64.urlsafe_b64encode(json.dumps(each).encode()).decode().rstrip("=")
        for each in (header, claims)
    )
    return ".".join((*parts, signed))


async def test_a_token_that_nobody_signed_is_worth_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(logins, "SLOWEST_MS", 1)
    key = rsa.generate_private_key(65_537, 2_048)
    public = json.loads(RSAAlgorithm.to_jwk(key.public_key())) | {"kid": "k", "alg": "RS256"}
    jwks = tmp_path / "jwks.json"
    jwks.write_text(json.dumps({"keys": [public]}))
    claims = {"sub": ADMIN[0], "exp": int(time.time()) + 600}
    async with (
        broker(tmp_path, **PORTS, security__jwks=str(jwks)) as server,
        httpx.AsyncClient(base_url=url(server), timeout=SECONDS) as web,
    ):
        people(server)
        for header in (
            {"alg": "none", "typ": "JWT"},
            {"alg": "None", "kid": "k"},
            {"alg": "NONE", "kid": "k"},
            {"alg": "HS256", "kid": "k"},
            {"alg": "RS256", "kid": "k"},
            {"kid": "k"},
            {"alg": "RS256", "kid": "../../etc/passwd"},
            {"alg": "none", "jwk": public},
        ):
            for signed in ("", "AAAA"):
                given = {"authorization": f"Bearer {_token(header, claims, signed)}"}
                answer = await web.get("/v1/session", headers=given)
                assert answer.status_code == 401, header


# -- guessing --------------------------------------------------------------------------------------

GUESSES = 1_000


async def _guess_http(server: BrokerServer, number: int) -> bool:
    given = base64.b64encode(f"{ADMIN[0]}:wrong{number}".encode()).decode()
    reader, writer = await asyncio.open_connection("127.0.0.1", server.config.http.port)
    try:
        writer.write(
            f"GET /v1/session HTTP/1.1\r\nHost: 127.0.0.1\r\nAuthorization: Basic {given}\r\n"
            "Connection: close\r\n\r\n".encode()
        )
        answer = await asyncio.wait_for(reader.read(), 60)
    finally:
        writer.close()
    return b" 401 " not in answer.partition(b"\r\n")[0]


async def _guess_kafka(server: BrokerServer, number: int) -> bool:
    async with raw(server) as peer:
        try:
            await log_in(peer, (ADMIN[0], f"wrong{number}"))
        except (AssertionError, ConnectionError, asyncio.IncompleteReadError):
            return False
        return True


async def test_a_thousand_wrong_passwords_at_once_stall_nobody(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    loop_thread = threading.get_ident()
    checked_by: set[int] = set()
    is_proven = passwords.is_proven

    def noted(password: str, proofs: Proofs) -> bool:
        checked_by.add(threading.get_ident())
        return is_proven(password, proofs)

    monkeypatch.setattr(logins, "is_proven", noted)
    # What guessing costs has its own test: here it is how many there are.
    monkeypatch.setattr(logins, "SLOWEST_MS", 1)
    monkeypatch.setattr(logins, "HOST_CHECKS_MAX", 8)
    async with broker(tmp_path, **PORTS) as server, client(server) as peer:
        people(server)
        attackers: list[Callable[[BrokerServer, int], Any]] = [_guess_http, _guess_kafka]
        attack = asyncio.gather(
            *(attackers[number % 2](server, number) for number in range(GUESSES))
        )
        served = 0
        while not attack.done():
            answer = await ask(peer, ADMIN, RequestCode.GET_ALL_TOPIC_CONFIG, {}, b"")
            assert answer.code == ResponseCode.SUCCESS
            served += 1
        assert not any(await attack)
        assert served > 1
        assert server.broker.users.logins.failed >= GUESSES
        assert checked_by
        assert loop_thread not in checked_by
        # And who has the password gets in.
        async with httpx.AsyncClient(base_url=url(server), auth=ADMIN, timeout=SECONDS) as web:
            assert (await web.get("/v1/session")).json() == {"user": ADMIN[0]}


async def test_who_logs_in_slowly_holds_nobody_up(tmp_path: Path) -> None:
    async with broker(tmp_path, **PORTS) as server:
        people(server)
        slow = []
        for port, first in (
            (server.config.http.port, b"GET / HTTP/1.1\r\nHost: 127.0.0.1\r\nAuthorization: Ba"),
            (server.config.kafka.port, b"\0\0\0\x40\0"),
            (server.config.amqp.port, b"AMQ"),
            (server.config.stomp.port, b"CONNECT\nlogin:ann\npass"),
            (server.config.mqtt.port, b"\x10\x40\0\4MQ"),
            (server.config.grpc.port, b"PRI * HT"),
            (server.config.broker.port, b"\0\0\x01"),
        ):
            for _ in range(20):
                _, writer = await asyncio.open_connection("127.0.0.1", port)
                writer.write(first)
                slow.append(writer)
        async with (
            httpx.AsyncClient(base_url=url(server), auth=ADMIN, timeout=SECONDS) as web,
            client(server) as peer,
            raw(server) as kafka,
        ):
            assert (await web.get("/v1/session")).status_code == 200
            answer = await ask(peer, ADMIN, RequestCode.GET_ALL_TOPIC_CONFIG, {}, b"")
            assert answer.code == ResponseCode.SUCCESS
            await log_in(kafka, ADMIN)

        def connect() -> int:
            with MqttClient(server.config.mqtt.port, V5) as mqtt:
                found = mqtt.connect("c", user=ADMIN[0], password=ADMIN[1].encode())
                return int(found.reason)

        assert await asyncio.to_thread(connect) == 0
        for writer in slow:
            writer.close()
