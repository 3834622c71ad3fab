"""Logging in: by password, by SCRAM, by signature, by token. The same rules for every protocol.

Passwords are checked in a worker, a few at a time. Who fails is answered later and later, by name
and by address, so that guessing is slow and holds nobody else up; one that was right a moment ago
is known again without the work. Until a connection has that answer, no other signature that it
tries is looked at; and while many of one host wait, nothing that these try, however they log in.

Tokens are JSON Web Tokens that somebody else signs, whose keys are in a JWKS document, a file or at
a URL. It is read by a worker, and read again when it is old or a token names a key that it does not
have, at most once in a while. Only signatures with a public key count: a token that is not signed,
or with a shared secret, is refused whatever it says.

Invariant: the answer to a wrong name and to a wrong password is the same, and takes as long.
"""

import base64
import hashlib
import hmac
import json
import logging
import secrets
import threading
import time
from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

from onelog.config import SecurityConfig
from onelog.core.access import Principal
from onelog.core.durable.storage import Runtime
from onelog.core.users.keys import Keys
from onelog.core.users.passwords import (
    DIGESTS,
    ITERATIONS,
    Proofs,
    ScramKeys,
    is_proven,
    scram_keys,
    signature,
)
from onelog.core.users.users import User, Users
from onelog.errors import NotAuthenticatedError, OnelogError
from onelog.message import Buffer

ALGORITHMS = ["RS256", "RS384", "RS512", "PS256", "PS384", "PS512", "ES256", "ES384", "EdDSA"]
JWKS_BYTES_MAX = 1 << 20
OLD_SECONDS = 300.0
PAUSE_SECONDS = 10.0
FETCH_SECONDS = 5.0
LEEWAY_SECONDS = 30


def read_document(source: str) -> bytes:
    """What is in a file, or at an address."""
    if source.startswith(("http://", "https://")):
        from urllib.request import urlopen  # It takes a megabyte, and few need it.

        with urlopen(source, timeout=FETCH_SECONDS) as answer:
            document: bytes = answer.read(JWKS_BYTES_MAX)
            return document
    return Path(source).expanduser().read_bytes()[:JWKS_BYTES_MAX]


class Tokens:
    """Checks tokens. Made for one thread at a time."""

    def __init__(
        self,
        config: SecurityConfig,
        read: Callable[[str], bytes] = read_document,
        seconds: Callable[[], float] = time.monotonic,
    ) -> None:
        self._config = config
        self._read = read
        self._seconds = seconds
        self._keys: dict[str, Any] = {}
        self._read_at = float("-inf")

    def user_of(self, token: str) -> str:
        """Whom a token names; `NotAuthenticatedError` if it is not good. May wait for the network:
        for a worker."""
        import jwt  # Few need it.

        config = self._config
        if not config.jwks:
            raise NotAuthenticatedError("tokens are not taken here: security.jwks is not set")
        try:
            header = jwt.get_unverified_header(token)
            if header.get("alg") not in ALGORITHMS:
                raise NotAuthenticatedError(f"a token signed by {header.get('alg')!r} is not taken")
            claims = jwt.decode(
                token,
                self._key(str(header.get("kid", ""))),
                algorithms=ALGORITHMS,
                audience=config.jwt_audience or None,
                issuer=config.jwt_issuer or None,
                leeway=LEEWAY_SECONDS,
                options={"require": ["exp"], "verify_aud": bool(config.jwt_audience)},
            )
        except (jwt.PyJWTError, ValueError, TypeError) as error:
            raise NotAuthenticatedError(f"the token is not good: {error}") from None
        name = claims.get(config.jwt_claim)
        if not isinstance(name, str) or not name:
            raise NotAuthenticatedError(f"the token has no {config.jwt_claim!r} that names a user")
        return name

    def _key(self, name: str) -> Any:
        age = self._seconds() - self._read_at
        if age > OLD_SECONDS or (name not in self._keys and age > PAUSE_SECONDS):
            self._read_keys()
        if not name and len(self._keys) == 1:
            return next(iter(self._keys.values()))
        if name not in self._keys:
            raise NotAuthenticatedError(f"security.jwks has no key {name!r}")
        return self._keys[name]

    def _read_keys(self) -> None:
        import jwt

        self._read_at = self._seconds()
        try:
            document = json.loads(self._read(self._config.jwks))
            found = jwt.PyJWKSet.from_dict(document).keys
        except (OSError, ValueError, TypeError, jwt.PyJWTError) as error:
            if not self._keys:
                raise NotAuthenticatedError(f"security.jwks cannot be read: {error}") from None
            return
        self._keys = {each.key_id or "": each for each in found}


log = logging.getLogger(__name__)

OnLoggedIn = Callable[[Principal | OnelogError], None]
CHECKS_MAX = 64
"""Passwords that wait to be checked; more are refused at once."""
HOST_CHECKS_MAX = 32
"""Of one address, so that others can log in while somebody there guesses."""
SLOW_MS, SLOWEST_MS = 100, 5_000
"""What the first failure costs, and the most that one costs."""
FAILURES_MAX = 10_000
FORGET_MS = 600_000
WRONG = "wrong user or password"
ANOTHER = "a user logs in as himself: leave the authorization identity empty"
_FAILED = "[10015:signature-failed]"


@dataclass(eq=False)
class Logins:
    """Lets people in, or not."""

    users: Users
    _runtime: Runtime
    _keys: Keys

    def __post_init__(self) -> None:
        self.tokens = Tokens(SecurityConfig())
        self.failed = self.succeeded = 0
        """How many could not log in, and how many could."""
        self.certificate_user = "common_name"
        """What of a certificate names its user."""
        self._failures: dict[str, tuple[int, int]] = {}
        """Per name and per address: how often, and when last."""
        self._known: dict[str, tuple[Proofs, bytes]] = {}
        self._checking: dict[str, int] = {}
        """How many passwords and tokens of each host are being checked."""
        self._waits: Counter[str] = Counter()
        """How many who failed wait for the answer: by host, and by address and port."""
        self._token_lock = threading.Lock()
        self._key = secrets.token_bytes(32)

    def configure(self, config: SecurityConfig) -> None:
        """Take over what the settings say."""
        self.certificate_user = config.certificate_user
        self.users.anonymous = config.anonymous
        self.users.forget_answers()
        self.tokens = Tokens(config)

    # -- at the door ---------------------------------------------------------------------------

    def admits(self, is_local: bool) -> bool:
        """Whether somebody may connect at all: without users, only who is on this machine."""
        return is_local or not self.users.is_open or self.users.anonymous

    @property
    def is_needed(self) -> bool:
        """Whether who has not logged in may do nothing."""
        return not self.users.is_open and not self.users.anonymous

    # -- passwords -----------------------------------------------------------------------------

    def log_in(
        self, name: str, password: str, protocol: str, address: str, then: OnLoggedIn
    ) -> None:
        """Is it that password? Told soon; of a wrong one, later. Where there are no users, all are
        the same: nobody."""
        if self.users.is_open:
            then(Principal("", protocol, address))
            return
        user = self._user(name)
        proofs = user.proofs if user else Proofs()
        digest = hmac.digest(self._key, password.encode(errors="replace"), "sha256")
        known = self._known.get(name)
        if user and known and known[0] is proofs and hmac.compare_digest(known[1], digest):
            then(self._let_in(name, protocol, address))
            return
        host = address.rpartition(":")[0]
        if not self._begin_check(address, then):
            return
        right: list[bool] = []

        def check() -> None:
            try:
                right.append(is_proven(password, proofs))
            finally:
                self._runtime.post(checked)

        def checked() -> None:
            self._end_check(host)
            if user is not None and right == [True] and self._user(name) == user:
                self._known[name] = (self._user(name) or user).proofs, digest
                then(self._let_in(name, protocol, address))
            else:
                self.fail(name, protocol, address, then)

        self._runtime.offload(check)

    def _begin_check(self, address: str, then: OnLoggedIn) -> bool:
        """Take a place for a check; False if there is none, all or those of one host."""
        host = address.rpartition(":")[0]
        own = self._checking.get(host, 0)
        is_full = own >= HOST_CHECKS_MAX or sum(self._checking.values()) >= CHECKS_MAX
        if is_full or self._waits[host] >= HOST_CHECKS_MAX:
            self.failed += 1
            then(NotAuthenticatedError("too many log in at this moment: try again later"))
            return False
        self._checking[host] = own + 1
        return True

    def _end_check(self, host: str) -> None:
        self._checking[host] -= 1
        if not self._checking[host]:
            del self._checking[host]

    def _user(self, name: str) -> User | None:
        user: User | None = self.users.users.known.get(name)
        return None if user is None or user.disabled else user

    def _let_in(self, name: str, protocol: str, address: str) -> Principal:
        self.succeeded += 1
        self._failures.pop(f"name {name}", None)
        return Principal(name, protocol, address)

    def fail(
        self, name: str, protocol: str, address: str, then: OnLoggedIn, why: str = WRONG
    ) -> None:
        """Tell somebody that it was wrong, later the more often it was."""
        self.failed += 1
        now = self._runtime.clock.now_ms()
        if len(self._failures) >= FAILURES_MAX:
            self._failures.clear()
        worst, host = 0, address.rpartition(":")[0]
        for key in (f"name {name}", f"host {host}"):
            count, last_ms = self._failures.get(key, (0, 0))
            count = 1 if now - last_ms > FORGET_MS else count + 1
            self._failures[key] = count, now
            worst = max(worst, count)
        wait_ms = min(SLOW_MS << min(worst - 1, 16), SLOWEST_MS)
        log.warning("login of %r over %s from %s failed (%d)", name, protocol, address, worst)
        self._waits.update((host, address))

        def over() -> None:
            for key in (host, address):
                self._waits[key] -= 1
                if not self._waits[key]:
                    del self._waits[key]
            then(NotAuthenticatedError(why))

        self._runtime.schedule(wait_ms, over)

    # -- signatures ----------------------------------------------------------------------------

    def signed(
        self,
        name: str,
        given: str,
        content: bytes,
        principal: Principal,
        refused: OnLoggedIn,
        body: Buffer = b"",
    ) -> Principal | None:
        """Who has signed a request; None if it was not they, which is told later to `refused`.

        `principal` is known so far: the same again, if it is still that one.
        """
        is_known = principal.name == name
        if not is_known and (busy := self.has_to_wait(principal.address)):
            refused(NotAuthenticatedError(f"{_FAILED} {busy}"))
            return None
        user: User | None = self.users.users.known.get(name)
        secret = "" if user is None or user.disabled else user.proofs.secret
        right = signature(secret or "nobody", content, body)
        if not secret or not hmac.compare_digest(right, given.encode()):
            why = f"{_FAILED} wrong access key or signature (access key {name!r:.80})"
            self.fail(name, principal.protocol, principal.address, refused, why)
            return None
        return principal if is_known else principal._replace(name=name)

    def has_to_wait(self, address: str) -> str:
        """Why nothing is looked at that is tried there: answers of before are still waited for."""
        if not self._waits:
            return ""
        host = address.rpartition(":")[0]
        if not self._waits[address] and self._waits[host] < HOST_CHECKS_MAX:
            return ""
        self.failed += 1
        return "too many came from here: try again later"

    def signing_secret(self, principal: Principal) -> str:
        """What somebody who has logged in signs with; empty if they cannot."""
        user = self._user(principal.name)
        return user.proofs.secret if user else ""

    # -- tokens and certificates ---------------------------------------------------------------

    def log_in_by_token(self, token: str, protocol: str, address: str, then: OnLoggedIn) -> None:
        """Whom does that token name? Told when a worker knows."""
        host = address.rpartition(":")[0]
        if not self._begin_check(address, then):
            return
        found: list[str | OnelogError] = []

        def check() -> None:
            try:
                with self._token_lock:
                    found.append(self.tokens.user_of(token))
            except OnelogError as error:
                found.append(error)
            finally:
                self._runtime.post(checked)

        def checked() -> None:
            self._end_check(host)
            answer = found[0] if found else NotAuthenticatedError("the token cannot be checked")
            try:
                if isinstance(answer, OnelogError):
                    raise answer
                principal = self.vouched_for(answer, protocol, address)
            except OnelogError as error:
                self.fail("token", protocol, address, then, str(error))
            else:
                then(principal)

        self._runtime.offload(check)

    def certified(
        self, certificate: Mapping[str, Any], protocol: str, address: str
    ) -> Principal | None:
        """The user whom a client's certificate names, whose authority TLS has checked; None if it
        has none, or names nobody who is a user."""
        name = certificate and _certified_name(certificate, self.certificate_user)
        return self._let_in(name, protocol, address) if name and self._user(name) else None

    def vouched_for(self, name: str, protocol: str, address: str) -> Principal:
        """Somebody whom a certificate or a token names; `NotAuthenticatedError` if unknown."""
        if self._user(name) is None:
            self.failed += 1
            raise NotAuthenticatedError(f"there is no user {name!r}")
        return self._let_in(name, protocol, address)

    # -- SCRAM ---------------------------------------------------------------------------------

    def scram(self, mechanism: str, protocol: str, address: str) -> "ScramExchange":
        """Begin the exchange of RFC 5802."""
        return ScramExchange(self, mechanism, protocol, address)

    @cached_property
    def _nobodys(self) -> bytes:
        """What the salts of users come from that are none: a salt that changes would tell that."""
        return self._keys.derived("salts of nobody")

    def scram_keys(self, name: str, mechanism: str) -> tuple[ScramKeys, bool]:
        """Those of a user; and for who is none, always the same wrong ones."""
        user = self._user(name)
        keys = user.proofs.scram.get(mechanism) if user else None
        if keys is not None:
            return keys, True
        salt = hmac.digest(self._nobodys, name.encode(errors="replace"), "sha256")
        return scram_keys(mechanism, salt, salt[:16], ITERATIONS), False


class ScramExchange:
    """A server's side of one SCRAM exchange: two messages in, two out."""

    def __init__(self, logins: Logins, mechanism: str, protocol: str, address: str) -> None:
        self._logins = logins
        self._mechanism = mechanism
        self._protocol, self._address = protocol, address
        self.name = ""
        self._first = ""
        self._header = ""

    def first(self, message: bytes) -> bytes:
        """The answer to the client's first message: salt and iterations."""
        try:
            text = message.decode()
            flag, authzid, bare = text.split(",", 2)
            fields = _fields(bare)
            name, nonce = fields["n"], fields["r"]
        except (ValueError, KeyError):
            raise NotAuthenticatedError("that is no first message of SCRAM") from None
        if not flag.startswith(("n", "y")):
            raise NotAuthenticatedError("channel binding is not offered")
        if authzid not in ("", f"a={name}"):
            raise NotAuthenticatedError(ANOTHER)
        self._header = f"{flag},{authzid},"
        self.name = name.replace("=2C", ",").replace("=3D", "=")
        self._keys, self._is_user = self._logins.scram_keys(self.name, self._mechanism)
        self._nonce = nonce + secrets.token_urlsafe(18)
        said = f"r={self._nonce},s={self._keys.salt},i={self._keys.iterations}"
        self._first = f"{bare},{said}"
        return said.encode()

    def final(self, message: bytes) -> tuple[bytes, Principal]:
        """The answer to the client's proof, and who it is; `NotAuthenticatedError` if wrong.

        Whoever `has_to_wait` is not to be heard.
        """
        digest = DIGESTS[self._mechanism]
        try:
            text = message.decode()
            without, _, proof64 = text.rpartition(",p=")
            fields = _fields(without)
            proof = base64.b64decode(proof64, validate=True)
            stored_key = base64.b64decode(self._keys.stored_key)
            header = base64.b64decode(fields["c"], validate=True).decode()
            is_same = fields["r"] == self._nonce and header == self._header
        except (ValueError, KeyError):
            raise NotAuthenticatedError("that is no final message of SCRAM") from None
        signed = f"{self._first},{without}".encode()
        key_mask = hmac.digest(stored_key, signed, digest)
        if len(proof) != len(key_mask):
            raise NotAuthenticatedError(WRONG)
        client_key = bytes(one ^ other for one, other in zip(proof, key_mask, strict=True))
        is_right = hmac.compare_digest(hashlib.new(digest, client_key).digest(), stored_key)
        if not (is_right and is_same and self._is_user):
            raise NotAuthenticatedError(WRONG)
        server_key = base64.b64decode(self._keys.server_key)
        verifier = base64.b64encode(hmac.digest(server_key, signed, digest))
        principal = self._logins.vouched_for(self.name, self._protocol, self._address)
        return b"v=" + verifier, principal


def _certified_name(certificate: Mapping[str, Any], what: str) -> str:
    """The user's name, of a certificate as Python's `ssl` tells it; empty if it has none."""
    if what == "common_name":
        subject = (pair for part in certificate.get("subject", ()) for pair in part)
        names = [value for key, value in subject if key == "commonName"]
        # The last one is the most particular, and what others take.
        return names[-1] if names else ""
    alternatives = certificate.get("subjectAltName", ())
    return next((value for key, value in alternatives if key.lower() == what), "")


def _fields(text: str) -> Mapping[str, str]:
    pairs = (part.partition("=") for part in text.split(","))
    return {name: value for name, _, value in pairs}
