r"""One record of the log: how a message lies on disk. Byte for byte RocketMQ's layout.

     0  TOTALSIZE        4   the whole record
     4  MAGIC            4   V1 0xDAA320A7, V2 0xDAA320AB (topics over 127 bytes)
     8  BODYCRC          4   CRC-32 of the body, top bit cleared
    12  QUEUEID          4
    16  FLAG             4   the user's
    20  QUEUEOFFSET      8   index in the queue (of an inner batch: of its first message)
    28  PHYSICALOFFSET   8   where in the log this record starts
    36  SYSFLAG          4   bits 4 and 5 say whether the two hosts are IPv6
    40  BORNTIMESTAMP    8
    48  BORNHOST         8 | 20
        STORETIMESTAMP   8
        STOREHOST        8 | 20
        RECONSUMETIMES   4
        PREPAREDOFFSET   8   of a committed transaction: where its half message is
        BODYLEN, BODY    4 + n
        TOPICLEN, TOPIC  1 + n (V1) | 2 + n (V2)
        PROPLEN, PROPS   2 + n

All integers are big-endian. A blank record, {int32 bytes to the end of the file, 0xCBD43194},
closes a segment. With `record_crc` on, the properties end with `__CRC32#`, a checksum of the whole
record before it (RocketMQ 5's enabledAppendPropCRC); otherwise only the body is checksummed.

Invariant: every reader and writer of records takes these numbers from here.
"""

import functools
from struct import Struct

from onelog.message import RECORD_CRC, Buffer, SysFlag
from onelog.names import check_name

MAGIC_V1 = 0xDAA320A7
MAGIC_V2 = 0xDAA320AB
MAGIC_BLANK = 0xCBD43194
MAGIC_START = b"\xda\xa3\x20"
"""What both kinds of records have there."""
BLANK = Struct(">II")
CRC_MASK = 0x7FFFFFFF
RECORD_BYTES_MIN = 91
"""A V1 record between IPv4 hosts with an empty body, topic and properties."""

HEADS = tuple(Struct(f">IIIiiqqiq{born}sq{stored}siqI") for stored in (8, 20) for born in (8, 20))
"""Everything before the body, by the two host bits of the sysFlag."""
HEAD_V4 = HEADS[0]
FACTS_V4 = Struct(">I32xI16xq20xI")
"""Of a record between IPv4 hosts, whose body is at `HEAD_V4.size`: how long it is, sysFlag, store
time, and how long its body is."""
SIZE_AND_MAGIC = Struct(">II")
LENGTH = Struct(">H")
# As a number: the complement of an IntFlag lacks the bits that have no name, as those of a
# compression have none.
BOTH_V6 = int(SysFlag.BORN_HOST_V6 | SysFlag.STORE_HOST_V6)
CRC_PROPERTY_BYTES = 20
"""What `record_crc` adds to the properties, beside a missing separator."""
CRC_NAME = RECORD_CRC.encode() + b"\x01"


@functools.lru_cache(maxsize=65_536)
def topic_field(topic: str) -> tuple[int, bytes]:
    """The magic that a topic's records carry, and TOPICLEN + TOPIC."""
    name = check_name(topic)
    if len(name) <= 127:
        return MAGIC_V1, bytes([len(name)]) + name
    return MAGIC_V2, LENGTH.pack(len(name)) + name


SIZE, QUEUE_OFFSET, LOG_OFFSET = slice(0, 4), slice(20, 28), slice(28, 36)
SYS_FLAG, BORN_MS = slice(36, 40), slice(40, 48)
"""Where in a record these stand."""
STORE_TIME_END = 76
"""Before this byte of a record its store time ends."""


def field_of(record: Buffer, field: slice) -> int:
    """One of these numbers of a record."""
    return int.from_bytes(record[field], "big", signed=True)


def log_offset_at(data: Buffer, at: int) -> int:
    """Where in the log a record at `at` says that it is."""
    return int.from_bytes(data[at + LOG_OFFSET.start : at + LOG_OFFSET.stop], "big")


def body_at(data: Buffer, at: int = 0) -> tuple[int, int]:
    """Where the body of the record at `at` begins, and how long it is."""
    begin = at + HEADS[data[at + 39] >> 4 & 3].size
    return begin, int.from_bytes(data[begin - 4 : begin], "big")
