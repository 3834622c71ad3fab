"""Reading a request's own fields, which all travel as texts.

A field that is missing or not of its type raises `InvalidRequestError` with the words that
RocketMQ uses; the request is then answered with an error and the connection lives on.
"""

from onelog.errors import InvalidRequestError

INT32_MAX = 2**31 - 1
INT64_MAX = 2**63 - 1


def text(ext: dict[str, str], name: str) -> str:
    """A field that must be there."""
    try:
        return ext[name]
    except KeyError:
        raise InvalidRequestError(f"the custom field <{name}> is null") from None


def number(ext: dict[str, str], name: str, default: int | None = None) -> int:
    """A field that is a 64-bit integer; it must be there unless a default is given."""
    return _integer(ext, name, default, INT64_MAX)


def int32(ext: dict[str, str], name: str, default: int | None = None) -> int:
    """A field that is a 32-bit integer; it must be there unless a default is given."""
    return _integer(ext, name, default, INT32_MAX)


def _integer(ext: dict[str, str], name: str, default: int | None, most: int) -> int:
    value = ext.get(name)
    if value is None or value == "":
        if default is None:
            raise InvalidRequestError(f"the custom field <{name}> is null")
        return default
    # int() alone would take "1_000", " 7 " and digits of other scripts, which Java refuses.
    digits = value[1:] if value[0] in "+-" else value
    if digits.isdecimal() and digits.isascii() and len(digits) <= 20:
        result = int(value)
        if -most - 1 <= result <= most:
            return result
    raise InvalidRequestError(f"the custom field <{name}> is not a number: {value[:40]!r}")


def flag(ext: dict[str, str], name: str, default: bool = False) -> bool:
    """A field that is true or false; as in Java, everything but "true" is false."""
    value = ext.get(name)
    return default if value is None else value.lower() == "true"
