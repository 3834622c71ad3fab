"""Tokens: JSON Web Tokens that somebody else signs, whose keys are in a JWKS document.

The document is a file, or at a URL; it is read by a worker, and read again when it is old or a
token names a key that it does not have, at most once in a while. Only signatures with a public key
count: a token that is not signed, or with a shared secret, is refused whatever it says.
"""

import json
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from onelog.config import SecurityConfig
from onelog.errors import NotAuthenticatedError

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
