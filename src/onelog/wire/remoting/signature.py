"""What a signed request says beside its own fields, and what of it is signed.

A signed request carries three more fields: AccessKey, SecurityToken (if there is one) and
Signature, which is the HMAC-SHA1, in base64, of the values of all the other fields in the order of
their names, followed by the body.
"""

from collections.abc import Mapping

from onelog.message import Buffer

ACCESS_KEY = "AccessKey"
SECURITY_TOKEN = "SecurityToken"
SIGNATURE = "Signature"


def signed_content(ext: Mapping[str, str], body: Buffer = b"") -> bytes:
    """What the signature of a request is made of."""
    values = [ext[name] for name in sorted(ext) if name != SIGNATURE]
    return "".join(values).encode() + body
