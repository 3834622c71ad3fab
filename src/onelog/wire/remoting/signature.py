"""What a signed request says beside its own fields, and what of it is signed.

A signed request carries three more fields: AccessKey, SecurityToken (if there is one) and
Signature, which is the HMAC-SHA1, in base64, of the values of all the other fields in the order of
their names, followed by the body.
"""

from collections.abc import Callable, Iterable, Mapping
from functools import lru_cache
from operator import itemgetter

from onelog.message import Buffer

ACCESS_KEY = "AccessKey"
SECURITY_TOKEN = "SecurityToken"
SIGNATURE = "Signature"


def signed_content(ext: Mapping[str, str], body: Buffer = b"") -> bytes:
    """What the signature of a request is made of."""
    return "".join(_values(tuple(ext))(ext)).encode() + body


@lru_cache(1_024)
def _values(names: tuple[str, ...]) -> Callable[[Mapping[str, str]], Iterable[str]]:
    """What takes the values that are signed out of such fields: clients send the same again."""
    signed = sorted(name for name in names if name != SIGNATURE)
    if len(signed) > 1:
        return itemgetter(*signed)
    return lambda ext: [ext[name] for name in signed]
