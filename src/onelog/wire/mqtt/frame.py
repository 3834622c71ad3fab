"""How packets follow one another on a connection.

    byte type << 4 | flags | varint length (one to four bytes) | so many bytes

The reader cuts what has arrived into spans; nothing is copied until a packet is read. Most of what
arrives is a run of small packets, and a span costs a handful of byte look-ups.

Invariants: however the bytes of a connection are cut into pieces, the packets are the same. A
packet that claims more than the limit is refused before its bytes come.
"""

from onelog.wire.mqtt.codes import PacketError, Reason

Span = tuple[int, int, int]
"""The first byte of a packet, and where in `data` the rest of it begins and ends."""


class PacketReader:
    """Takes bytes as they come, hands out spans of packets."""

    __slots__ = ("_at", "bytes_max", "data")

    def __init__(self, bytes_max: int) -> None:
        self.bytes_max = bytes_max
        """The largest packet."""
        self.data: bytes | bytearray = b""
        """What the spans are of, until more is fed."""
        self._at = 0

    @property
    def unread_bytes(self) -> int:
        """How many received bytes have not become a packet yet."""
        return len(self.data) - self._at

    def feed(self, data: bytes) -> None:
        """Take more bytes."""
        if not data:
            return
        if self._at == len(self.data):
            self.data = data
        elif self._at or not isinstance(self.data, bytearray):
            self.data = bytearray(memoryview(self.data)[self._at :])
            self.data += data
        else:
            self.data += data
        self._at = 0

    def give_back(self, at: int) -> None:
        """Have the spans from this place on handed out again: they are for later."""
        self._at = at

    def spans(self, count_max: int = 1 << 30) -> list[Span]:
        """The packets that are there as a whole, so many at most."""
        data, at = self.data, self._at
        size = len(data)
        found: list[Span] = []
        while size - at >= 2 and len(found) < count_max:
            length = data[at + 1]
            begin = at + 2
            if length >= 0x80:
                length, begin = self._length(at + 1, size)
                if begin == 0:
                    break
            end = begin + length
            if end - at > self.bytes_max:
                raise PacketError(
                    f"a packet has {end - at} bytes; it may have {self.bytes_max}",
                    Reason.PACKET_TOO_LARGE,
                )
            if end > size:
                break
            found.append((data[at], begin, end))
            at = end
        self._at = at
        return found

    def _length(self, at: int, size: int) -> tuple[int, int]:
        """A length of several bytes and the place behind it; 0 if it is not all there."""
        data = self.data
        length = shift = 0
        for position in range(at, min(at + 4, size)):
            byte = data[position]
            length |= (byte & 0x7F) << shift
            if byte < 0x80:
                return length, position + 1
            shift += 7
        if size - at >= 4:
            raise PacketError("the length of a packet has more than four bytes")
        return 0, 0
