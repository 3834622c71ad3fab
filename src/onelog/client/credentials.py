"""Who a client is: an access key, and a signature that proves the secret belonging to it.

What is signed, and where the signature goes, is in `wire.remoting.signature`. The secret itself
never travels.

Invariant: what is signed is what is sent. A request is signed last, when nothing will be added.
"""

import base64
import hmac
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

from onelog.errors import ConfigError
from onelog.message import Buffer
from onelog.wire.remoting.signature import (
    ACCESS_KEY,
    SECURITY_TOKEN,
    SIGNATURE,
    signed_content,
)

SECRET_BYTES_MAX = 64 << 10


@dataclass(frozen=True, slots=True)
class Credentials:
    """A user of the cluster. What must stay secret is not shown when this is printed."""

    access_key: str
    secret_key: str = field(repr=False)
    security_token: str = field(default="", repr=False)

    def __post_init__(self) -> None:
        if not self.access_key or not self.secret_key:
            raise ValueError("credentials need an access key and a secret key")

    def sign(self, ext: Mapping[str, str] | None, body: Buffer = b"") -> dict[str, str]:
        """The fields of a request, with those that prove who sent it."""
        signed = dict(ext or ())
        signed.pop(SIGNATURE, None)
        signed[ACCESS_KEY] = self.access_key
        if self.security_token:
            signed[SECURITY_TOKEN] = self.security_token
        digest = hmac.digest(self.secret_key.encode(), signed_content(signed, body), "sha1")
        signed[SIGNATURE] = base64.b64encode(digest).decode("ascii")
        return signed


def read_secret(path: Path, named_by: str) -> str:
    """A secret from the file that holds it; `ConfigError`, without the secret, if it does not."""
    try:
        with path.expanduser().open("rb") as file:
            content = file.read(SECRET_BYTES_MAX + 1)
        text = content.decode().strip()
    except OSError as error:
        raise ConfigError(f"{named_by} {path}: {error.strerror}") from None
    except UnicodeDecodeError:
        raise ConfigError(f"{named_by} {path} is no text") from None
    if not text or len(content) > SECRET_BYTES_MAX:
        what = "is empty" if not text else f"is over {SECRET_BYTES_MAX} bytes, too long for a key"
        raise ConfigError(f"{named_by} {path} {what}")
    return text
