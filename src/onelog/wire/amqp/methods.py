"""AMQP's methods: a table of arguments, compiled into functions.

A line of the table is a method: its class and number, its name, and its arguments in the order of
their bytes. Bits that follow each other share an octet, the first is the lowest. A `-` is reserved:
it is read over, and written as nothing.

    octet short long longlong  unsigned, 1 2 4 8 bytes        shortstr  u8 length, text
    bits:a,b,c                 one octet                      longstr   u32 length, bytes
    table                      u32 length, a field table

A method is decoded to a tuple with a value for each argument that is not reserved. Arguments of one
length that follow each other are packed and unpacked by one call.

Invariants: what is encoded decodes to the same; bytes that are no such method raise `FaultError`.
"""

import struct
from collections.abc import Callable
from struct import Struct
from typing import Any

from onelog.errors import WireError
from onelog.record.forms.amqp_fields import decode_table, encode_table
from onelog.wire.amqp.codes import FaultError, ReplyCode

_TABLE = """
10.10 connection.start        octet octet table longstr longstr
10.11 connection.start-ok     table shortstr longstr shortstr
10.20 connection.secure       longstr
10.21 connection.secure-ok    longstr
10.30 connection.tune         short long short
10.31 connection.tune-ok      short long short
10.40 connection.open         shortstr -shortstr -bits:insist
10.41 connection.open-ok      -shortstr
10.50 connection.close        short shortstr short short
10.51 connection.close-ok
10.60 connection.blocked      shortstr
10.61 connection.unblocked
10.70 connection.update-secret longstr shortstr
10.71 connection.update-secret-ok
20.10 channel.open            -shortstr
20.11 channel.open-ok         -longstr
20.20 channel.flow            bits:active
20.21 channel.flow-ok         bits:active
20.40 channel.close           short shortstr short short
20.41 channel.close-ok
30.10 access.request          shortstr bits:exclusive,passive,active,write,read
30.11 access.request-ok       short
40.10 exchange.declare        -short shortstr shortstr bits:passive,durable,auto_delete,internal,nowait table
40.11 exchange.declare-ok
40.20 exchange.delete         -short shortstr bits:if_unused,nowait
40.21 exchange.delete-ok
40.30 exchange.bind           -short shortstr shortstr shortstr bits:nowait table
40.31 exchange.bind-ok
40.40 exchange.unbind         -short shortstr shortstr shortstr bits:nowait table
40.51 exchange.unbind-ok
50.10 queue.declare           -short shortstr bits:passive,durable,exclusive,auto_delete,nowait table
50.11 queue.declare-ok        shortstr long long
50.20 queue.bind              -short shortstr shortstr shortstr bits:nowait table
50.21 queue.bind-ok
50.30 queue.purge             -short shortstr bits:nowait
50.31 queue.purge-ok          long
50.40 queue.delete            -short shortstr bits:if_unused,if_empty,nowait
50.41 queue.delete-ok         long
50.50 queue.unbind            -short shortstr shortstr shortstr table
50.51 queue.unbind-ok
60.10 basic.qos               long short bits:global
60.11 basic.qos-ok
60.20 basic.consume           -short shortstr shortstr bits:no_local,no_ack,exclusive,nowait table
60.21 basic.consume-ok        shortstr
60.30 basic.cancel            shortstr bits:nowait
60.31 basic.cancel-ok         shortstr
60.40 basic.publish           -short shortstr shortstr bits:mandatory,immediate
60.50 basic.return            short shortstr shortstr shortstr
60.60 basic.deliver           shortstr longlong bits:redelivered shortstr shortstr
60.70 basic.get               -short shortstr bits:no_ack
60.71 basic.get-ok            longlong bits:redelivered shortstr shortstr long
60.72 basic.get-empty         -shortstr
60.80 basic.ack               longlong bits:multiple
60.90 basic.reject            longlong bits:requeue
60.100 basic.recover-async    bits:requeue
60.110 basic.recover          bits:requeue
60.111 basic.recover-ok
60.120 basic.nack             longlong bits:multiple,requeue
85.10 confirm.select          bits:nowait
85.11 confirm.select-ok
90.10 tx.select
90.11 tx.select-ok
90.20 tx.commit
90.21 tx.commit-ok
90.30 tx.rollback
90.31 tx.rollback-ok
"""  # noqa: E501

Arguments = tuple[Any, ...]
Decode = Callable[[bytes], Arguments]
"""Takes the arguments' bytes."""
Encode = Callable[..., bytes]
"""Gives class, method and arguments: what a method frame has in it."""

_CODES = {"octet": "B", "short": "H", "long": "I", "longlong": "Q"}
_U32 = Struct(">I")


def _number(number: str) -> int:
    kind, _, method = number.partition(".")
    return int(kind) << 16 | int(method)


NUMBERS: dict[str, int] = {}
"""Class and method in one number, by the method's name."""
NAMES: dict[int, str] = {}
DECODERS: dict[int, Decode] = {}
ENCODERS: dict[str, Encode] = {}


def decode(method: int, data: bytes) -> Arguments:
    """The arguments of a method; `FaultError` if there is no such method, or these are not its."""
    decoder = DECODERS.get(method)
    if decoder is None:
        text = f"unknown method {method >> 16}.{method & 0xFFFF}"
        raise FaultError(ReplyCode.COMMAND_INVALID, text)
    try:
        return decoder(data)
    except (WireError, struct.error, IndexError, UnicodeDecodeError) as error:
        raise FaultError(ReplyCode.FRAME_ERROR, f"{NAMES[method]}: {error}") from None


# -- the compiler ------------------------------------------------------------------------------

_Read = Callable[[bytes, int, list[Any]], int]
"""Takes bytes and a place in them; adds values to the list and gives the place behind them."""


def _read_short(data: bytes, at: int, values: list[Any]) -> int:
    end = at + 1 + data[at]
    if end > len(data):
        raise WireError("a short string is cut off")
    values.append(data[at + 1 : end].decode())
    return end


def _span(data: bytes, at: int) -> tuple[int, int]:
    end = at + 4 + int(_U32.unpack_from(data, at)[0])
    if end > len(data):
        raise WireError("a long string or table is cut off")
    return at + 4, end


def _read_long(data: bytes, at: int, values: list[Any]) -> int:
    begin, end = _span(data, at)
    values.append(data[begin:end])
    return end


def _read_table(data: bytes, at: int, values: list[Any]) -> int:
    begin, end = _span(data, at)
    values.append(decode_table(data[begin:end]))
    return end


def _read_fixed(kinds: list[str]) -> _Read:
    form = Struct(">" + "".join("B" if "bits:" in kind else _code(kind) for kind in kinds))
    bits = [kind.partition(":")[2].count(",") + 1 if "bits:" in kind else 0 for kind in kinds]
    reserved = [kind.startswith("-") for kind in kinds]

    def read(data: bytes, at: int, values: list[Any]) -> int:
        for value, count, is_reserved in zip(
            form.unpack_from(data, at), bits, reserved, strict=True
        ):
            if is_reserved:
                continue
            if count:
                values += [bool(value >> bit & 1) for bit in range(count)]
            else:
                values.append(value)
        return at + form.size

    return read


def _code(kind: str) -> str:
    return _CODES[kind.lstrip("-")]


_READ: dict[str, _Read] = {
    "shortstr": _read_short,
    "longstr": _read_long,
    "table": _read_table,
}


def _ignored(read: _Read) -> _Read:
    return lambda data, at, values: read(data, at, [])


def _runs(kinds: list[str]) -> list[list[str]]:
    """Arguments of one length that follow each other, together; each other one alone."""
    runs: list[list[str]] = []
    is_fixed = False
    for kind in kinds:
        if kind.lstrip("-") in _READ:
            runs.append([kind])
            is_fixed = False
        elif is_fixed:
            runs[-1].append(kind)
        else:
            runs.append([kind])
            is_fixed = True
    return runs


def _decoder(kinds: list[str]) -> Decode:
    steps: list[_Read] = []
    for run in _runs(kinds):
        read = _READ.get(run[0].lstrip("-"))
        if read is None:
            steps.append(_read_fixed(run))
        else:
            steps.append(_ignored(read) if run[0].startswith("-") else read)

    def decode_arguments(data: bytes) -> Arguments:
        at = 0
        values: list[Any] = []
        for step in steps:
            at = step(data, at, values)
        if at != len(data):
            raise WireError(f"{len(data) - at} bytes too many")
        return tuple(values)

    return decode_arguments


def _put_short(value: str) -> bytes:
    data = value.encode()
    return bytes((len(data),)) + data


def _put_long(value: bytes) -> bytes:
    return _U32.pack(len(value)) + value


def _put_table(value: Any) -> bytes:
    return _put_long(encode_table(value))


_PUT: dict[str, Callable[[Any], bytes]] = {
    "shortstr": _put_short,
    "longstr": _put_long,
    "table": _put_table,
}
_NOTHING = {"shortstr": "", "longstr": b"", "table": {}}


def _encoder(number: int, kinds: list[str]) -> Encode:
    head = _U32.pack(number)
    if not kinds:
        return lambda: head

    def encode_arguments(*values: Any) -> bytes:
        left = iter(values)
        pieces = [head]
        for kind in kinds:
            plain = kind.lstrip("-")
            is_reserved = kind.startswith("-")
            put = _PUT.get(plain)
            if put is not None:
                pieces.append(put(_NOTHING[plain] if is_reserved else next(left)))
            elif plain.startswith("bits:"):
                octet = 0
                if not is_reserved:
                    for bit in range(plain.count(",") + 1):
                        octet |= bool(next(left)) << bit
                pieces.append(bytes((octet,)))
            else:
                pieces.append(struct.pack(">" + _code(kind), 0 if is_reserved else next(left)))
        return b"".join(pieces)

    return encode_arguments


for _line in _TABLE.strip().splitlines():
    _dotted, _name, *_kinds = _line.split()
    NUMBERS[_name] = _number(_dotted)
    NAMES[NUMBERS[_name]] = _name
    DECODERS[NUMBERS[_name]] = _decoder(_kinds)
    ENCODERS[_name] = _encoder(NUMBERS[_name], _kinds)

ACK_ARGUMENTS = Struct(">QB")
"""The arguments of ack, nack and reject, which come one by one for each message."""


def _acknowledgement(bits: int) -> Decode:
    def decode_arguments(data: bytes) -> Arguments:
        tag, octet = ACK_ARGUMENTS.unpack(data)
        return (tag, octet & 1 == 1) if bits == 1 else (tag, octet & 1 == 1, octet & 2 == 2)

    return decode_arguments


DECODERS[NUMBERS["basic.ack"]] = _acknowledgement(1)
DECODERS[NUMBERS["basic.reject"]] = _acknowledgement(1)
DECODERS[NUMBERS["basic.nack"]] = _acknowledgement(2)
