"""A client that speaks Kafka's protocol by hand, one request at a time or many at once."""

import asyncio
import contextlib
import struct
from collections.abc import AsyncIterator, Sequence

from onelog.record.forms import kafka as batches
from onelog.record.forms.kafka import Codec
from onelog.record.forms.neutral import Neutral
from onelog.server import BrokerServer
from onelog.wire.kafka import schema
from onelog.wire.kafka.codes import ApiKey
from onelog.wire.kafka.schema import Fields

SECONDS = 20


class RawClient:
    """One connection."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.reader, self.writer = reader, writer
        self._number = 0

    async def ask(self, key: ApiKey, version: int, fields: Fields | None = None) -> Fields:
        """The answer to a request."""
        self.tell(key, version, fields)
        return await self.hear(key, version)

    def tell(self, key: ApiKey, version: int, fields: Fields | None = None) -> int:
        """Send a request, and do not wait; its number."""
        self._number += 1
        flexible = version in schema.apis()[key].flexible
        head = struct.pack(">hhih3s", key, version, self._number, 3, b"raw")
        body = b"".join(schema.encode_request(key, version, fields or {}))
        self.send(head + (b"\0" if flexible else b"") + body)
        return self._number

    def send(self, frame: bytes) -> None:
        """Any bytes, after their length."""
        self.writer.write(len(frame).to_bytes(4, "big") + frame)

    async def hear(self, key: ApiKey, version: int) -> Fields:
        """The next answer, which must be to such a request."""
        number, rest = await self.hear_frame()
        self.last_number = number
        flexible = version in schema.apis()[key].flexible and key != ApiKey.API_VERSIONS
        return schema.decode_response(key, version, memoryview(rest), 1 if flexible else 0)

    async def hear_frame(self) -> tuple[int, bytes]:
        """The number of the next answer, and its bytes behind that."""
        head = await asyncio.wait_for(self.reader.readexactly(8), SECONDS)
        size, number = struct.unpack(">ii", head)
        return number, await asyncio.wait_for(self.reader.readexactly(size - 4), SECONDS)

    async def is_closed(self) -> bool:
        """Whether the broker closes the connection."""
        with contextlib.suppress(ConnectionError):
            return await asyncio.wait_for(self.reader.read(1 << 20), SECONDS) == b""
        return True

    # -- what tests say again and again --------------------------------------------------------

    async def make_topic(self, name: str, partitions: int = 1, **configs: str) -> None:
        """Create a topic; settings as `max_message_bytes="1000"`."""
        settings = [
            {"name": key.replace("_", "."), "value": value} for key, value in configs.items()
        ]
        wanted = {
            "name": name,
            "num_partitions": partitions,
            "replication_factor": 1,
            "configs": settings,
        }
        answer = await self.ask(ApiKey.CREATE_TOPICS, 5, {"topics": [wanted]})
        assert answer["topics"][0]["error_code"] == 0, answer

    async def produce(
        self, topic: str, batch: bytes | None, partition: int = 0, acks: int = -1, version: int = 9
    ) -> Fields:
        """PRODUCE of one batch: the answer for its partition."""
        wanted = {"index": partition, "records": batch}
        answer = await self.ask(
            ApiKey.PRODUCE,
            version,
            {
                "acks": acks,
                "timeout_ms": 1_000,
                "topic_data": [{"name": topic, "partition_data": [wanted]}],
            },
        )
        found: Fields = answer["responses"][0]["partition_responses"][0]
        return found

    async def fetch(
        self, topic: str, offset: int, partition: int = 0, version: int = 12, **changed: int
    ) -> Fields:
        """FETCH of one partition: its answer."""
        answer = await self.ask(
            ApiKey.FETCH, version, fetch_fields(topic, [(partition, offset)], **changed)
        )
        found: Fields = answer["responses"][0]["partitions"][0]
        return found


def fetch_fields(topic: str, places: Sequence[tuple[int, int]], **changed: int) -> Fields:
    """A fetch of partitions from offsets on."""
    return {
        "max_wait_ms": 0,
        "min_bytes": 1,
        "max_bytes": 1 << 20,
        "session_epoch": -1,
        "topics": [
            {
                "topic": topic,
                "partitions": [
                    {"partition": each, "fetch_offset": offset, "partition_max_bytes": 1 << 20}
                    for each, offset in places
                ],
            }
        ],
        **changed,
    }


def batch_of(
    *values: bytes | None,
    producer: tuple[int, int, int] | None = None,
    attributes: int = 0,
    codec: Codec = Codec.NONE,
    time_ms: int = 1_000,
) -> bytes:
    """A batch as a producer sends it: of nobody, or with id, epoch and first number."""
    messages = [Neutral(b"k", value, (), time_ms + at) for at, value in enumerate(values)]
    batch = bytearray(batches.from_neutral(messages, codec=codec))
    batch[21:23] = (codec | attributes).to_bytes(2, "big")
    if producer is not None:
        struct.pack_into(">qhi", batch, 43, *producer)
    return batches.with_crc(bytes(batch))


def batches_in(records: memoryview | bytes) -> list[batches.Batch]:
    """The heads of the batches in what a fetch got."""
    found, at = [], 0
    while at < len(records):
        batch = batches.read_head(records, at)
        found.append(batch)
        assert batch.crc == batches.crc_of(records[at : at + batch.size])
        at += batch.size
    return found


def values_in(records: memoryview | bytes) -> list[tuple[int, bytes | None]]:
    """Offsets and values of the messages in what a fetch got."""
    found: list[tuple[int, bytes | None]] = []
    at = 0
    while at < len(records):
        batch = batches.read_head(records, at)
        if batch.records:
            found += [
                (batch.base_offset + delta, message.body)
                for delta, message in batches.records(records[at : at + batch.size])
            ]
        at += batch.size
    return found


@contextlib.asynccontextmanager
async def raw(server: BrokerServer | str) -> AsyncIterator[RawClient]:
    """A client that is connected to a broker, or an address."""
    at = server if isinstance(server, str) else f"127.0.0.1:{server.config.kafka.port}"
    reader, writer = await asyncio.open_connection(*at.split(":"))
    try:
        yield RawClient(reader, writer)
    finally:
        writer.close()
