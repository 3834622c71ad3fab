"""Logging in: passwords, SCRAM, signatures, tokens; and what happens to those who guess."""

import base64
import hashlib
import hmac
import json
import time
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import jwt
import pytest
from cryptography.hazmat.primitives.asymmetric import rsa

from onelog.config import SecurityConfig
from onelog.core.access import SELF, Principal
from onelog.core.users import logins as logins_module
from onelog.core.users.logins import Logins, Tokens
from onelog.core.users.passwords import prove, signature
from onelog.errors import NotAuthenticatedError, OnelogError
from tests.core.world import World

PLACE = "test", "10.0.0.7:1234"


@pytest.fixture
def logins(world: World) -> Logins:
    """Those of a broker with one user. Workers are done at once."""
    logins = world.broker.users.logins
    logins._runtime = replace(logins._runtime, post=lambda call: call())
    world.broker.users.create_user(SELF, "ann", prove("secret", signing=True), ("admin",))
    return logins


def told(log_in: Callable[[Callable[[Principal | OnelogError], None]], None]) -> list[object]:
    answers: list[object] = []
    log_in(answers.append)
    return answers


def test_without_users_nobody_has_a_name(world: World) -> None:
    logins = world.broker.users.logins
    answers = told(lambda then: logins.log_in("guest", "guest", *PLACE, then))
    assert answers == [Principal("", *PLACE)]
    assert logins.admits(is_local=True)
    assert not logins.admits(is_local=False)
    assert not logins.is_needed
    logins.configure(SecurityConfig(anonymous=True))
    assert logins.admits(is_local=False)


def test_with_users_everybody_is_let_in_and_has_to_log_in(logins: Logins) -> None:
    assert logins.admits(is_local=False)
    assert logins.is_needed
    logins.configure(SecurityConfig(anonymous=True))
    assert not logins.is_needed


def test_the_right_password_is_told_at_once_and_known_again(
    logins: Logins, monkeypatch: pytest.MonkeyPatch
) -> None:
    ann = Principal("ann", *PLACE)
    assert told(lambda then: logins.log_in("ann", "secret", *PLACE, then)) == [ann]
    monkeypatch.setattr(logins_module, "is_proven", lambda *_: pytest.fail("checked again"))
    assert told(lambda then: logins.log_in("ann", "secret", *PLACE, then)) == [ann]


def test_a_password_that_was_changed_is_not_known_again(logins: Logins) -> None:
    told(lambda then: logins.log_in("ann", "secret", *PLACE, then))
    logins.users.change_user(SELF, "ann", proofs=prove("other"))
    assert told(lambda then: logins.log_in("ann", "secret", *PLACE, then)) == []
    assert told(lambda then: logins.log_in("ann", "other", *PLACE, then)) == [
        Principal("ann", *PLACE)
    ]


@pytest.mark.parametrize("name", ["ann", "nobody"])
def test_who_guesses_is_answered_later_and_later(world: World, logins: Logins, name: str) -> None:
    for wait_ms in (100, 200, 400, 800, 1_600, 3_200, 5_000, 5_000):
        answers = told(lambda then: logins.log_in(name, "guess", *PLACE, then))
        world.advance(wait_ms - 1)
        assert answers == []
        world.advance(1)
        assert [str(each) for each in answers] == ["wrong user or password"]
    assert logins.failed == 8


def test_a_disabled_user_does_not_log_in(world: World, logins: Logins) -> None:
    users = logins.users
    users.create_user(SELF, "bob", prove("b"))
    users.change_user(SELF, "bob", disabled=True)
    answers = told(lambda then: logins.log_in("bob", "b", *PLACE, then))
    world.advance(100)
    assert isinstance(answers[0], NotAuthenticatedError)


def test_only_so_many_passwords_wait_to_be_checked(logins: Logins) -> None:
    kept: list[Callable[[], None]] = []
    logins._runtime = replace(logins._runtime, offload=kept.append)

    def guess(host: str) -> list[object]:
        return told(lambda then: logins.log_in("ann", "guess", "test", f"{host}:1", then))

    for _ in range(logins_module.HOST_CHECKS_MAX):
        assert guess("10.0.0.7") == []
    assert "too many log in" in str(guess("10.0.0.7"))
    for number in range(logins_module.CHECKS_MAX - logins_module.HOST_CHECKS_MAX):
        assert guess(f"10.0.1.{number}") == []
    assert "too many log in" in str(guess("10.0.0.8"))
    for check in kept:
        check()
    assert logins._checking == {}


# -- signatures ----------------------------------------------------------------------------------


def sign(secret: str, content: bytes) -> str:
    return signature(secret, content).decode()


def signed(
    logins: Logins, name: str, given: str, content: bytes, principal: str = "", port: int = 1234
) -> Principal | None:
    """Whom a signature is of, as it is said at once."""
    place = Principal(principal, "test", f"10.0.0.7:{port}")
    return logins.signed(name, given, content, place, lambda _: None)


def test_a_signature_is_of_who_has_the_secret(logins: Logins) -> None:
    principal = signed(logins, "ann", sign("secret", b"x"), b"x")
    assert principal == Principal("ann", *PLACE)
    for name, given in (
        ("ann", sign("guess", b"x")),
        ("ann", sign("secret", b"y")),
        ("ann", ""),
        ("ann", "\u017f"),
        ("eve", sign("", b"x")),
        ("eve", sign("nobody", b"x")),
    ):
        assert signed(logins, name, given, b"x") is None
        logins._waits.clear()


def test_who_has_no_secret_here_cannot_sign(logins: Logins) -> None:
    logins.users.create_user(SELF, "bob", prove("b"))
    for secret in ("b", "", "nobody"):
        assert signed(logins, "bob", sign(secret, b"x"), b"x") is None
        logins._waits.clear()


def test_a_wrong_signature_is_answered_later_and_until_then_no_other_is_looked_at(
    logins: Logins, world: World
) -> None:
    answers: list[object] = []
    here = Principal("", *PLACE)
    wrong, right = sign("guess", b"x"), sign("secret", b"x")
    assert logins.signed("ann", wrong, b"x", here, answers.append) is None
    assert answers == []
    assert logins.signed("ann", right, b"x", here, answers.append) is None
    assert "try again later" in str(answers.pop())
    # Who signs rightly elsewhere, or has done so on this connection, does not wait for others.
    assert signed(logins, "ann", right, b"x", port=1235) is not None
    assert signed(logins, "ann", right, b"x", principal="ann") is not None
    world.advance(logins_module.SLOW_MS)
    assert "wrong access key or signature" in str(answers.pop())
    assert signed(logins, "ann", right, b"x") is not None
    assert not logins._waits


def test_many_guesses_from_one_host_are_as_slow_as_one(logins: Logins) -> None:
    """Each on a connection of its own, and whatever else they try meanwhile."""
    for port in range(logins_module.HOST_CHECKS_MAX):
        assert signed(logins, "ann", sign(f"guess {port}", b"x"), b"x", port=port) is None
    failed = logins._failures["name ann"][0]
    assert signed(logins, "ann", sign("secret", b"x"), b"x", port=5_000) is None
    assert logins._failures["name ann"][0] == failed
    answers = told(lambda then: logins.log_in("ann", "guess", "test", "10.0.0.7:6000", then))
    assert "too many log in" in str(answers)
    elsewhere = Principal("", "test", "10.0.0.8:1")
    assert logins.signed("ann", sign("secret", b"x"), b"x", elsewhere, answers.append) is not None


# -- SCRAM ---------------------------------------------------------------------------------------


def scram(logins: Logins, mechanism: str, name: str, password: str) -> Principal:
    """A client's side, as RFC 5802 has it."""
    digest = mechanism[6:].replace("-", "").lower()
    exchange = logins.scram(mechanism, *PLACE)
    bare = f"n={name},r=client-nonce"
    first = exchange.first(f"n,,{bare}".encode()).decode()
    fields = dict(part.split("=", 1) for part in first.split(","))
    assert fields["r"].startswith("client-nonce")
    salt = base64.b64decode(fields["s"])
    salted = hashlib.pbkdf2_hmac(digest, password.encode(), salt, int(fields["i"]))
    client_key = hmac.digest(salted, b"Client Key", digest)
    without = f"c=biws,r={fields['r']}"
    signed = f"{bare},{first},{without}".encode()
    mask = hmac.digest(hashlib.new(digest, client_key).digest(), signed, digest)
    proof = base64.b64encode(bytes(a ^ b for a, b in zip(client_key, mask, strict=True)))
    answer, principal = exchange.final(f"{without},p={proof.decode()}".encode())
    server_key = hmac.digest(salted, b"Server Key", digest)
    assert answer == b"v=" + base64.b64encode(hmac.digest(server_key, signed, digest))
    return principal


@pytest.mark.parametrize("mechanism", ["SCRAM-SHA-256", "SCRAM-SHA-512"])
def test_scram_proves_the_password_without_telling_it(logins: Logins, mechanism: str) -> None:
    assert scram(logins, mechanism, "ann", "secret").name == "ann"
    with pytest.raises(NotAuthenticatedError):
        scram(logins, mechanism, "ann", "guess")
    with pytest.raises(NotAuthenticatedError):
        scram(logins, mechanism, "nobody", "secret")


def test_scram_does_not_tell_who_is_a_user(logins: Logins) -> None:
    salts = {logins.scram("SCRAM-SHA-256", *PLACE).first(b"n,,n=eve,r=1")[-30:] for _ in range(3)}
    assert len(salts) == 1


@pytest.mark.parametrize(
    "message",
    [
        b"",
        b"n",
        b"n,,",
        b"n,,x=1",
        b"p=tls-unique,,n=a,r=b",
        b"\xff\xfe",
        b"n,,n=ann",
        b"n,a=eve,n=ann,r=b",
    ],
)
def test_what_is_no_scram_is_refused(logins: Logins, message: bytes) -> None:
    exchange = logins.scram("SCRAM-SHA-256", *PLACE)
    with pytest.raises(NotAuthenticatedError):
        exchange.first(message)


@pytest.mark.parametrize(
    "message", [b"", b"c=biws", b"c=biws,r=x,p=", b"c=biws,r=x,p=!!", b"\xff", b"c=,r=,p=AAAA"]
)
def test_what_is_no_proof_is_refused(logins: Logins, message: bytes) -> None:
    exchange = logins.scram("SCRAM-SHA-256", *PLACE)
    exchange.first(b"n,a=ann,n=ann,r=x")
    with pytest.raises(NotAuthenticatedError):
        exchange.final(message)


# -- tokens --------------------------------------------------------------------------------------

KEY = rsa.generate_private_key(public_exponent=65_537, key_size=2_048)
OTHER = rsa.generate_private_key(public_exponent=65_537, key_size=2_048)


def jwks() -> bytes:
    public = json.loads(jwt.algorithms.RSAAlgorithm.to_jwk(KEY.public_key()))
    return json.dumps({"keys": [{**public, "kid": "one", "use": "sig", "alg": "RS256"}]}).encode()


def token(key: object = KEY, algorithm: str = "RS256", kid: str = "one", **claims: object) -> str:
    usual = {"sub": "ann", "exp": int(time.time()) + 60, "iss": "us", "aud": "onelog"}
    payload = {name: each for name, each in {**usual, **claims}.items() if each is not None}
    return jwt.encode(payload, key, algorithm, headers={"kid": kid})  # type: ignore[arg-type]


@pytest.fixture
def tokens() -> Tokens:
    config = SecurityConfig(jwks="keys.json", jwt_issuer="us", jwt_audience="onelog")
    return Tokens(config, lambda place: jwks())


def test_a_token_names_a_user(tokens: Tokens) -> None:
    assert tokens.user_of(token()) == "ann"


@pytest.mark.parametrize(
    "bad",
    [
        lambda: token(OTHER),
        lambda: token(exp=1),
        lambda: token(exp=None),
        lambda: token(iss="them"),
        lambda: token(aud="other"),
        lambda: token(sub=None),
        lambda: token(sub=7),
        lambda: token("shared secret" * 4, "HS256"),
        lambda: token(None, "none"),
        lambda: token(kid="two"),
        lambda: "",
        lambda: "a.b.c",
        lambda: token() + "x",
        lambda: "é.é.é",
    ],
)
def test_a_bad_token_names_nobody(tokens: Tokens, bad: Callable[[], str]) -> None:
    with pytest.raises(NotAuthenticatedError):
        tokens.user_of(bad())


def test_keys_are_read_again_now_and_then_and_old_ones_go_on_when_they_cannot() -> None:
    reads: list[str] = []
    now = [0.0]

    def read(place: str) -> bytes:
        reads.append(place)
        if len(reads) > 1:
            raise OSError("gone")
        return jwks()

    tokens = Tokens(SecurityConfig(jwks="keys.json"), read, lambda: now[0])
    assert tokens.user_of(token()) == "ann"
    now[0] = 299.0
    tokens.user_of(token())
    assert len(reads) == 1
    now[0] = 301.0
    assert tokens.user_of(token()) == "ann"
    assert len(reads) == 2


def test_a_token_logs_in_whom_it_names(world: World, logins: Logins) -> None:
    logins.tokens = Tokens(SecurityConfig(jwks="keys.json"), lambda place: jwks())
    assert told(lambda then: logins.log_in_by_token(token(), *PLACE, then)) == [
        Principal("ann", *PLACE)
    ]
    answers = told(lambda then: logins.log_in_by_token(token(sub="eve"), *PLACE, then))
    world.advance(100)
    assert "there is no user 'eve'" in str(answers[0])


@pytest.mark.parametrize(
    ("rule", "name"),
    [("common_name", "ann"), ("dns", "shop.example"), ("email", "ann@example"), ("uri", "urn:ann")],
)
def test_a_certificate_names_a_user_by_one_rule(logins: Logins, rule: Any, name: str) -> None:
    certificate = {
        "subject": ((("organizationName", "Shop"),), (("commonName", "ann"),)),
        "subjectAltName": (
            ("DNS", "shop.example"),
            ("DNS", "other"),
            ("email", "ann@example"),
            ("URI", "urn:ann"),
        ),
    }
    logins.configure(SecurityConfig(certificate_user=rule))
    if name != "ann":
        assert logins.certified(certificate, *PLACE) is None
        logins.users.create_user(SELF, name, prove("x"))
    assert logins.certified(certificate, *PLACE) == Principal(name, *PLACE)
    assert logins.certified({}, *PLACE) is None
    assert logins.certified({"subject": ()}, *PLACE) is None
    logins.users.create_user(SELF, "other admin", prove("x"), ("admin",))
    logins.users.change_user(SELF, name, disabled=True)
    assert logins.certified(certificate, *PLACE) is None
