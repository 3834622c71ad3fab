"""The key of a broker, which is in a file of its own and not in the log.

What users sign with is encrypted with it wherever it is stored (a signature can only be checked
with the password itself); a follower proves with it that it is one of the set; and from it follows
what users that are none are answered, so that these answers survive a restart.

    file     lines of 64 hexadecimal digits: the key, and older ones, which open what they closed
    sealed   base64 of: the key's id, 4 bytes; a nonce, 12 bytes; AES-256-GCM of the secret, with
             the user's name as what is authenticated beside it
    proof    16 random bytes, 8 of the time in ms, HMAC-SHA256 of both

Nodes with the same log need the same file: whoever becomes master must be able to check signatures.
"""

import base64
import hashlib
import hmac
import logging
import os
import re
import secrets
import stat
import struct
from collections.abc import Sequence
from pathlib import Path

from onelog.errors import ConfigError
from onelog.private_files import make_folder, opener

log = logging.getLogger(__name__)

KEY_BYTES = 32
KEY_FILE = "onelog.key"
"""Its name in the folder `config` of a store, if no other place is named."""
PROOF_BYTES = 56
PROOF_MS = 300_000
"""How old a proof may be, and how far clocks may be apart."""
_ID_BYTES, _NONCE_BYTES, _RANDOM_BYTES = 4, 12, 16
_TIME = struct.Struct(">q")
_LINE = re.compile(r"[0-9a-fA-F]{64}")


class Keys:
    """The key of one broker, read when it is needed first; made if it is not there."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self._keys: Sequence[bytes] = ()

    def load(self) -> Sequence[bytes]:
        """All keys, the one that counts first. Reads a file: for a worker, or the start."""
        if not self._keys:
            self._keys = self._read() or self._made()
        return self._keys

    def _read(self) -> Sequence[bytes]:
        try:
            with open(self.path, encoding="ascii") as file:
                mode = os.fstat(file.fileno()).st_mode
                lines = file.read().split()
        except FileNotFoundError:
            return ()
        except (OSError, UnicodeDecodeError) as error:
            raise ConfigError(f"the key in {self.path} cannot be read: {error}") from None
        if not lines or not all(map(_LINE.fullmatch, lines)):
            raise ConfigError(
                f"{self.path} is no key: lines of 64 hexadecimal digits are expected; put back the "
                "one that was there, or move it away and give users that sign new passwords"
            )
        if mode & (stat.S_IRWXG | stat.S_IRWXO):
            log.warning("the key in %s can be read by others: make it 0600", self.path)
        return [bytes.fromhex(line) for line in lines]

    def _made(self) -> Sequence[bytes]:
        key = secrets.token_bytes(KEY_BYTES)
        fresh = self.path.with_suffix(f".{os.getpid()}.tmp")
        try:
            make_folder(self.path.parent)
            with open(fresh, "w", encoding="ascii", opener=opener) as file:
                file.write(f"{key.hex()}\n")
                file.flush()
                os.fsync(file.fileno())
            try:
                os.link(fresh, self.path)
            except FileExistsError:  # Another node of the set was as early.
                return self._read()
            finally:
                os.unlink(fresh)
        except OSError as error:
            raise ConfigError(f"the key in {self.path} cannot be made: {error}") from None
        return [key]

    def derived(self, purpose: str) -> bytes:
        """32 bytes that follow from the oldest key, the same after each start."""
        return hmac.digest(self.load()[-1], purpose.encode(), "sha256")

    # -- secrets -------------------------------------------------------------------------------

    def seal(self, name: str, secret: str) -> str:
        """A user's secret as it is stored."""
        from cryptography.hazmat.primitives.ciphers.aead import AESGCM  # Few brokers need it.

        key, nonce = self.load()[0], secrets.token_bytes(_NONCE_BYTES)
        closed = AESGCM(_part(key, "secrets")).encrypt(nonce, secret.encode(), name.encode())
        return base64.b64encode(_id(key) + nonce + closed).decode()

    def open(self, name: str, sealed: str) -> str:
        """The secret of a user; empty if no key here has closed it, or somebody changed it."""
        from cryptography.exceptions import InvalidTag
        from cryptography.hazmat.primitives.ciphers.aead import AESGCM

        try:
            data = base64.b64decode(sealed, validate=True)
        except ValueError:
            return ""
        start = _ID_BYTES + _NONCE_BYTES
        for key in self.load():
            if hmac.compare_digest(data[:_ID_BYTES], _id(key)) and len(data) > start:
                try:
                    return (
                        AESGCM(_part(key, "secrets"))
                        .decrypt(data[_ID_BYTES:start], data[start:], name.encode())
                        .decode()
                    )
                except InvalidTag:
                    return ""
        return ""

    def is_current(self, sealed: str) -> bool:
        """Whether it was closed with the key that counts now."""
        return base64.b64decode(sealed)[:_ID_BYTES] == _id(self.load()[0])

    # -- proofs --------------------------------------------------------------------------------

    def proof(self, now_ms: int) -> bytes:
        """What shows that somebody has the key."""
        said = secrets.token_bytes(_RANDOM_BYTES) + _TIME.pack(now_ms)
        return said + hmac.digest(_part(self.load()[0], "followers"), said, "sha256")

    def is_proof(self, proof: bytes, now_ms: int) -> bool:
        """Whether somebody had one of the keys, a moment ago."""
        said, given = proof[:-32], proof[-32:]
        if len(proof) != PROOF_BYTES:
            return False
        (then_ms,) = _TIME.unpack_from(said, _RANDOM_BYTES)
        known = (hmac.digest(_part(key, "followers"), said, "sha256") for key in self.load())
        is_known = any(hmac.compare_digest(each, given) for each in known)
        return is_known and abs(now_ms - then_ms) <= PROOF_MS


def _part(key: bytes, purpose: str) -> bytes:
    """Each use has a key of its own."""
    return hmac.digest(key, f"onelog {purpose}".encode(), "sha256")


def _id(key: bytes) -> bytes:
    return hashlib.sha256(b"onelog key id" + key).digest()[:_ID_BYTES]
