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


_forms: dict[tuple[int, int], Callable[[Mapping[str, str]], Iterable[str]]] = {}
"""By code and number of fields: what takes the values out of the fields as they came last."""
FORMS_MAX = 1_024


def signed_parts(code: int, ext: Mapping[str, str]) -> tuple[bytes, str]:
    """What of a request's fields is signed, and the signature; empty if it has none.

    Clients send the same fields again and again. As many fields as last time, and the signature
    and all others of those there: then they are the same.
    """
    try:
        signature = ext[SIGNATURE]
        return "".join(_forms[code, len(ext)](ext)).encode(), signature
    except KeyError:
        pass
    values = _values(tuple(ext))
    if SIGNATURE in ext:
        if len(_forms) >= FORMS_MAX:
            _forms.clear()
        _forms[code, len(ext)] = values
    return "".join(values(ext)).encode(), ext.get(SIGNATURE, "")


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
