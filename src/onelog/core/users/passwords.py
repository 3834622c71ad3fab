"""Passwords: only what proves them is kept.

scrypt          for all who send the password itself
SCRAM           the two keys of RFC 5802, for those who only prove that they know it
signing secret  the password as it is; only where somebody asked for it: RocketMQ's clients sign
                with it, and who checks a signature needs what it was made with. In memory only:
                what is stored is encrypted (`keys`)
"""

import base64
import hashlib
import hmac
from binascii import b2a_base64
from dataclasses import dataclass, field
from functools import lru_cache
from random import Random, SystemRandom

from onelog.errors import InvalidRequestError
from onelog.message import Buffer

DIGESTS: dict[str, str] = {"SCRAM-SHA-256": "sha256", "SCRAM-SHA-512": "sha512"}
ITERATIONS = 4_096
"""Of SCRAM, as in Kafka: clients repeat it, and 4,096 is the least that they accept."""
ITERATIONS_MAX = 16_384
PASSWORD_BYTES_MAX = 1_024
_SCRYPT_N, _SCRYPT_R, _SCRYPT_P = 1 << 14, 8, 1
_SALT_BYTES = 16
_BLOCK_BYTES = 64
"""Of SHA-1."""


@dataclass(frozen=True, slots=True)
class ScramKeys:
    """What a server needs to check a client that speaks SCRAM, in base64."""

    salt: str
    iterations: int
    stored_key: str
    server_key: str


@dataclass(frozen=True, slots=True)
class Proofs:
    """What is kept of a password, in base64."""

    scrypt_salt: str = ""
    scrypt: str = ""
    scram: dict[str, ScramKeys] = field(default_factory=dict)
    secret: str = ""
    """The password, of those who sign; else empty."""
    sealed: str = field(default="", compare=False)
    """The same, encrypted: what is stored."""


_NOBODY = ScramKeys("bm9ib2R5", ITERATIONS, "", "")


def text64(data: bytes) -> str:
    """Bytes as base64."""
    return base64.b64encode(data).decode("ascii")


def _scrypt(password: str, salt: bytes) -> bytes:
    return hashlib.scrypt(
        password.encode(),
        salt=salt,
        n=_SCRYPT_N,
        r=_SCRYPT_R,
        p=_SCRYPT_P,
        dklen=32,
        maxmem=64 << 20,
    )


def scram_keys(mechanism: str, salted: bytes, salt: bytes, iterations: int) -> ScramKeys:
    """The keys that follow from a salted password."""
    digest = DIGESTS[mechanism]
    client_key = hmac.digest(salted, b"Client Key", digest)
    stored_key = hashlib.new(digest, client_key).digest()
    server_key = hmac.digest(salted, b"Server Key", digest)
    return ScramKeys(text64(salt), iterations, text64(stored_key), text64(server_key))


def prove(password: str, *, signing: bool = False, random: Random | None = None) -> Proofs:
    """What is to be kept of a password. Takes a tenth of a second: for a worker."""
    if not 1 <= len(password.encode()) <= PASSWORD_BYTES_MAX:
        raise InvalidRequestError(f"a password has 1 to {PASSWORD_BYTES_MAX} bytes")
    random = random or SystemRandom()
    scram = {}
    for mechanism, digest in DIGESTS.items():
        salt = random.randbytes(_SALT_BYTES)
        salted = hashlib.pbkdf2_hmac(digest, password.encode(), salt, ITERATIONS)
        scram[mechanism] = scram_keys(mechanism, salted, salt, ITERATIONS)
    salt = random.randbytes(_SALT_BYTES)
    return Proofs(text64(salt), text64(_scrypt(password, salt)), scram, password if signing else "")


def is_proven(password: str, proofs: Proofs) -> bool:
    """Whether it is that password. As slow as `prove`, also if there is nothing to compare with.

    Of a user whom Kafka's tools made, only SCRAM's keys are there to compare with.
    """
    if len(password.encode()) > PASSWORD_BYTES_MAX:
        return False
    key = _scrypt(password, base64.b64decode(proofs.scrypt_salt) or b"nobody")
    mechanism, keys = next(iter(proofs.scram.items()), ("SCRAM-SHA-256", _NOBODY))
    salt = base64.b64decode(keys.salt)
    salted = hashlib.pbkdf2_hmac(DIGESTS[mechanism], password.encode(), salt, keys.iterations)
    stored = scram_keys(mechanism, salted, salt, keys.iterations).stored_key
    if proofs.scrypt:
        return hmac.compare_digest(key, base64.b64decode(proofs.scrypt))
    return hmac.compare_digest(stored, keys.stored_key)


def signature(secret: str, content: bytes, body: Buffer = b"") -> bytes:
    """RocketMQ's signature of a request: of what its fields say, and its body."""
    inner, outer = _keyed(secret)
    inner = inner.copy()
    inner.update(content)
    if body:
        inner.update(body)
    outer = outer.copy()
    outer.update(inner.digest())
    return b2a_base64(outer.digest(), newline=False)


@lru_cache(1_024)
def _keyed(secret: str) -> tuple["hashlib._Hash", "hashlib._Hash"]:
    """HMAC's two hashes with the key in them (RFC 2104): to put it there is most of the work."""
    key = secret.encode()
    key = (key if len(key) <= _BLOCK_BYTES else hashlib.sha1(key).digest()).ljust(
        _BLOCK_BYTES, b"\0"
    )
    inner, outer = (hashlib.sha1(bytes(each ^ pad for each in key)) for pad in (0x36, 0x5C))
    return inner, outer
