"""Kafka's OAUTHBEARER: only who has a good token gets in, and as whom it names."""

import asyncio
import json
import logging
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import jwt
import pytest
from confluent_kafka import KafkaException
from confluent_kafka.admin import AdminClient
from cryptography.hazmat.primitives import serialization
from cryptography.hazmat.primitives.asymmetric import rsa
from jwt.algorithms import RSAAlgorithm

from onelog.core.access import SELF
from onelog.core.catalog.topics import TopicConfig
from onelog.core.users import logins
from onelog.gateways.kafka.security import AUTH_BYTES_MAX
from onelog.wire.kafka.codes import ApiKey, ErrorCode
from tests.gateways.kafka.live import SECONDS, address, kafka
from tests.gateways.kafka.raw import raw
from tests.security.secrets import ADMIN, NOBODY, people

KEY, OTHER = (rsa.generate_private_key(65_537, 2_048) for _ in range(2))
PUBLIC = json.loads(RSAAlgorithm.to_jwk(KEY.public_key())) | {"kid": "k", "alg": "RS256"}
PEM = KEY.public_key().public_bytes(
    serialization.Encoding.PEM, serialization.PublicFormat.SubjectPublicKeyInfo
)


def token(user: str = ADMIN[0], key: Any = KEY, alg: str = "RS256", **changed: Any) -> str:
    """A good one, but for what is changed."""
    claims = {"sub": user, "exp": int(time.time()) + 600, "iss": "us", "aud": "onelog"} | changed
    claims = {name: value for name, value in claims.items() if value is not None}
    return jwt.encode(claims, key, alg, {"kid": "k"})


def unsigned(user: str = ADMIN[0], alg: str = "none") -> str:
    """With a header that says how it would be signed, and no signature."""
    head = jwt.utils.base64url_encode(json.dumps({"alg": alg, "kid": "k"}).encode()).decode()
    return ".".join((head, token(user).split(".")[1], ""))


def hmac_of_public_key() -> str:
    """The public key taken for a shared secret, which jwt itself does not make."""
    head = jwt.utils.base64url_encode(json.dumps({"alg": "HS256", "kid": "k"}).encode()).decode()
    signed = f"{head}.{token().split('.')[1]}".encode()
    mac = jwt.algorithms.HMACAlgorithm(jwt.algorithms.HMACAlgorithm.SHA256).sign(signed, PEM)
    return f"{signed.decode()}.{jwt.utils.base64url_encode(mac).decode()}"


def bearer(text: str, head: str = "n,,") -> bytes:
    return f"{head}\x01auth=Bearer {text}\x01\x01".encode()


BAD: dict[str, Callable[[], bytes]] = {
    "signed by another": lambda: bearer(token(key=OTHER)),
    "over": lambda: bearer(token(exp=int(time.time()) - 3_600)),
    "without an end": lambda: bearer(token(exp=None)),
    "not begun": lambda: bearer(token(nbf=int(time.time()) + 3_600)),
    "of another issuer": lambda: bearer(token(iss="them")),
    "for somebody else": lambda: bearer(token(aud="other")),
    "of nobody": lambda: bearer(token(sub=None)),
    "of an empty name": lambda: bearer(token("")),
    "of somebody who is not there": lambda: bearer(token("eve")),
    "unsigned": lambda: bearer(unsigned()),
    "unsigned, in capitals": lambda: bearer(unsigned(alg="NONE")),
    "signed by nothing": lambda: bearer(unsigned(alg="RS256")),
    "signed with the public key": lambda: bearer(hmac_of_public_key()),
    "of another user's claims": lambda: bearer(
        ".".join((token(NOBODY[0]).split(".")[0], *token().split(".")[1:2], token().split(".")[2]))
        + "x"
    ),
    "cut off": lambda: bearer(token()[:-9]),
    "none at all": lambda: b"n,,\x01\x01",
    "nothing": lambda: b"",
    "a password": lambda: b"\0%s\0%s" % (ADMIN[0].encode(), ADMIN[1].encode()),
    "a megabyte": lambda: bearer("x" * 1_000_000),
    "a hundred thousand fields": lambda: b"n,,\x01" + 100_000 * b"a=b\x01" + b"\x01",
    "no UTF-8": lambda: b"n,,\x01auth=Bearer \xff\xfe\x01\x01",
}


async def test_who_has_a_good_token_is_whom_it_names(tmp_path: Path) -> None:
    jwks = tmp_path / "jwks.json"
    jwks.write_text(json.dumps({"keys": [PUBLIC]}))
    how: dict[str, Any] = {"security__jwks": str(jwks), "security__jwt_issuer": "us"}
    async with kafka(tmp_path / "store", **how, security__jwt_audience="onelog") as server:
        people(server)
        server.broker.topics.create(SELF, TopicConfig("secret", 1, 1))

        def topics(user: str) -> set[str]:
            def give(_: str) -> tuple[str, float]:
                return token(user), time.time() + 600

            settings: dict[str, Any] = {
                "bootstrap.servers": address(server),
                "security.protocol": "SASL_PLAINTEXT",
                "sasl.mechanism": "OAUTHBEARER",
                "oauth_cb": give,
            }
            admin = AdminClient(settings)
            return set(admin.list_topics(timeout=SECONDS).topics)

        assert "secret" in await asyncio.to_thread(topics, ADMIN[0])
        assert "secret" not in await asyncio.to_thread(topics, NOBODY[0])
        with pytest.raises(KafkaException):
            await asyncio.to_thread(topics, "eve")


async def test_a_token_that_is_not_good_lets_nobody_in(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(logins, "SLOWEST_MS", 1)
    caplog.set_level(logging.DEBUG)
    jwks = tmp_path / "jwks.json"
    jwks.write_text(json.dumps({"keys": [PUBLIC]}))
    how: dict[str, Any] = {"security__jwks": str(jwks), "security__jwt_issuer": "us"}
    async with kafka(tmp_path / "store", **how, security__jwt_audience="onelog") as server:
        people(server)
        for kind, make in BAD.items():
            async with raw(server) as client:
                await client.ask(ApiKey.SASL_HANDSHAKE, 1, {"mechanism": "OAUTHBEARER"})
                said = make()
                told = await client.ask(ApiKey.SASL_AUTHENTICATE, 2, {"auth_bytes": said})
                assert told["error_code"] == ErrorCode.SASL_AUTHENTICATION_FAILED, kind
                assert len(str(told["error_message"])) < 1_000, kind
                if len(said) > AUTH_BYTES_MAX:  # Nothing was tried: it may say something shorter.
                    client.tell(ApiKey.LIST_GROUPS, 4)
                assert await client.is_closed(), kind
        assert token()[:20] not in caplog.text, "a token is in the log"


async def test_without_keys_no_tokens_are_offered_or_taken(tmp_path: Path) -> None:
    async with kafka(tmp_path) as server, raw(server) as client:
        people(server)
        told = await client.ask(ApiKey.SASL_HANDSHAKE, 1, {"mechanism": "OAUTHBEARER"})
        assert told["error_code"] == ErrorCode.UNSUPPORTED_SASL_MECHANISM
        assert "OAUTHBEARER" not in told["mechanisms"]
