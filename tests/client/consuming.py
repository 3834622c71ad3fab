"""Messages without a broker, and sources and listeners that remember what happened to them."""

from collections.abc import Sequence

from onelog.client.consumer.listening import Listening
from onelog.client.message import ReceivedMessage
from onelog.message import NewMessage, encode_properties
from onelog.record.decode import decode_records
from onelog.record.encode import encode


def received(
    offset: int, topic: str = "orders", size: int = 10, times: int = 0, **properties: str
) -> ReceivedMessage:
    """A message as it comes from a broker; its body begins with its offset."""
    body = f"{offset}".encode().ljust(size, b" ")
    message = NewMessage(
        topic, 0, body, encode_properties(properties), born_ms=1, reconsume_times=times
    )
    head, body_part, tail, _ = encode(message, offset, 1000 * offset, 2, False)
    return ReceivedMessage(decode_records(head + bytes(body_part) + tail)[0], "broker-a")


def several(count: int, topic: str = "orders") -> list[ReceivedMessage]:
    return [received(offset, topic) for offset in range(count)]


def offsets(messages: Sequence[ReceivedMessage]) -> list[int]:
    return [message.offset for message in messages]


class Told:
    """A source that remembers what it was told, by offset."""

    def __init__(self) -> None:
        self.dropped = False
        self.consumed: list[int] = []
        self.failures: list[tuple[list[int], BaseException]] = []
        self.overdue: list[int] = []
        self.given_back: list[int] = []

    def done(self, messages: Sequence[ReceivedMessage]) -> None:
        self.consumed += offsets(messages)

    def failed(self, messages: Sequence[ReceivedMessage], error: BaseException) -> None:
        self.failures.append((offsets(messages), error))

    def expired(self, messages: Sequence[ReceivedMessage]) -> None:
        self.overdue += offsets(messages)

    def returned(self, messages: Sequence[ReceivedMessage]) -> None:
        self.given_back += offsets(messages)

    @property
    def all_told(self) -> list[int]:
        """Every offset that it was told about, as often as it was."""
        failed = [offset for some, _ in self.failures for offset in some]
        return sorted(self.consumed + failed + self.overdue + self.given_back)


def heard_by(call: object, batch_size: int = 1, is_coroutine: bool = False) -> Listening:
    return Listening(call, is_coroutine, batch_size)  # type: ignore[arg-type]
