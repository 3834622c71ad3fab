"""The header of a command as JSON, serialize type 0.

    {"code":105,"extFields":{"topic":"orders"},"flag":0,"language":"JAVA","opaque":7,
     "remark":"...","serializeTypeCurrentRPC":"JSON","version":513}

Nulls are omitted; every value in `extFields` is a text. Clients in other languages are looser, and
fastjson forgives them (numbers as texts, texts as numbers, nulls), so a header that is not of the
usual form is read a second time, slowly and with the same forgiveness.
"""

from typing import Annotated, Any

import msgspec

from onelog.errors import WireError
from onelog.message import Buffer
from onelog.wire.remoting.codes import LANGUAGE_NAMES, LanguageCode
from onelog.wire.remoting.command import INT32_MAX, INT32_MIN, Command

_Int32 = Annotated[int, msgspec.Meta(ge=INT32_MIN, le=INT32_MAX)]


class _Header(msgspec.Struct, gc=False, omit_defaults=True):
    code: int
    flag: int
    language: str
    opaque: int
    serialize: str = msgspec.field(name="serializeTypeCurrentRPC")
    version: int
    ext: dict[str, str] = msgspec.field(default_factory=dict, name="extFields")
    remark: str | None = None


class _Received(msgspec.Struct, gc=False):
    code: _Int32 = 0
    ext: dict[str, str] = msgspec.field(default_factory=dict, name="extFields")
    flag: _Int32 = 0
    language: str = "JAVA"
    opaque: _Int32 = 0
    remark: str | None = None
    version: _Int32 = 0


_decode = msgspec.json.Decoder(_Received).decode
_decode_any = msgspec.json.Decoder().decode
_encode = msgspec.json.Encoder().encode


def decode_json_header(header: Buffer, body: Buffer) -> Command:
    """The command that `header` and `body` make."""
    try:
        it = _decode(header)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        it = _decode_leniently(header)
    return Command(it.code, it.language, it.version, it.opaque, it.flag, it.remark, it.ext, body, 0)


def encode_json_header(
    code: int,
    language: str,
    version: int,
    opaque: int,
    flag: int,
    remark: str | None,
    ext: dict[str, str],
) -> bytes:
    return _encode(_Header(code, flag, language, opaque, "JSON", version, ext, remark))


def _decode_leniently(header: Buffer) -> _Received:
    try:
        fields = _decode_any(header)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        raise WireError(f"the header is not JSON: {error}") from None
    if not isinstance(fields, dict):
        raise WireError("the header is JSON, but not an object")
    ext = fields.get("extFields")
    if ext is None:
        ext = {}
    elif not isinstance(ext, dict):
        raise WireError("the header's extFields are not an object")
    remark = fields.get("remark")
    return _Received(
        code=_number(fields, "code"),
        ext={name: _text(value) for name, value in ext.items() if value is not None},
        flag=_number(fields, "flag"),
        language=_language(fields.get("language")),
        opaque=_number(fields, "opaque"),
        remark=None if remark is None else _text(remark),
        version=_number(fields, "version"),
    )


def _number(fields: dict[str, Any], name: str) -> int:
    value = fields.get(name)
    if value is None:
        return 0
    try:
        number = int(value)
    except (TypeError, ValueError, OverflowError):
        raise WireError(f"the header's {name} is not a number") from None
    if not INT32_MIN <= number <= INT32_MAX:
        raise WireError(f"the header's {name} does not fit 32 bits")
    return number


def _text(value: Any) -> str:
    return value if isinstance(value, str) else msgspec.json.encode(value).decode()


def _language(value: Any) -> str:
    if isinstance(value, int):
        return LANGUAGE_NAMES.get(value, LanguageCode.OTHER.name)
    return value if isinstance(value, str) else LanguageCode.JAVA.name
