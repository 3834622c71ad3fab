"""A store with messages of every kind, and its rows as the store's own reader finds them."""

from collections.abc import Iterable, Iterator
from pathlib import Path

from onelog.client.message import Queue
from onelog.clock import ManualClock
from onelog.config import StoreConfig
from onelog.message import Message, NewMessage, SysFlag, encode_properties
from onelog.record.compression import Compression, compress
from onelog.record.dispatch import targets
from onelog.record.inner_batch import encode_batch
from onelog.spark.columns.messages import RecordDecoder
from onelog.spark.columns.schema import EVERY_ROW, RowFilters
from onelog.spark.options import SplitBy
from onelog.spark.read import store_files
from onelog.spark.read.offsets import QueueRange
from onelog.store.message_store import MessageStore
from onelog.store.reader import StoreReader
from onelog.store.readonly import open_readonly
from tests.spark.record_samples import arrow_schema, rows_of, rows_one_by_one
from tests.store.samples import SAMPLE, sample_messages

Row = dict[str, object]

COLUMNS = (
    "topic",
    "queue",
    "offset",
    "key",
    "tags",
    "body",
    "properties",
    "store_time",
    "message_id",
    "log_offset",
)


def write_rich_store(folder: Path, count: int = 150, config: StoreConfig = SAMPLE) -> None:
    """A store that was stopped cleanly, with compressed bodies and batches to take apart, too."""
    clock = ManualClock()
    with MessageStore.open(folder, config, clock) as store:
        for number, message in enumerate(sample_messages(count)):
            store.append([message])
            if number % 7 == 3:
                store.append([_batch(number)])
            if number % 7 == 5:
                body = compress(b"packed %d" % number * 9, Compression.ZSTD)
                flags = Compression.ZSTD.sys_flag
                store.append([NewMessage("Clicks", 1, body, sys_flag=flags)])
            clock.advance(300)


def _batch(number: int) -> NewMessage:
    parts = [
        (index, b"part %d of %d" % (index, number), encode_properties({"TAGS": f"p{index}"}))
        for index in range(2 + number % 5)
    ]
    return NewMessage(
        "Orders",
        number % 4,
        encode_batch(parts),
        sys_flag=int(SysFlag.NEED_UNWRAP),
        inner_count=len(parts),
        extra_queues=("fan-out",) if number % 2 else (),
    )


def all_ranges(folder: Path, topics: Iterable[str] | None = None) -> list[QueueRange]:
    """Everything that the queues hold now."""
    reader = open_readonly(folder)
    return [
        QueueRange(
            Queue(topic, "", queue_id),
            reader.min_offset(topic, queue_id),
            reader.max_offset(topic, queue_id),
        )
        for topic, queue_ids in reader.queues().items()
        if topics is None or topic in topics
        for queue_id in queue_ids
    ]


def rows_by_reader(folder: Path, ranges: Iterable[QueueRange]) -> list[Row]:
    """The rows of ranges, message by message."""
    reader = open_readonly(folder)
    return in_order(row for each in ranges for row in _rows_of_range(reader, each))


def _rows_of_range(reader: StoreReader, each: QueueRange) -> Iterator[Row]:
    queue = each.queue
    before = -1
    for at, size, _ in reader.entries(queue.topic, queue.queue_id, each.start, each.rows):
        if at == before:
            continue
        before = at
        record = bytes(reader.record(at, size))
        first = _first_offset(reader.message_at(at), queue)
        rows = rows_one_by_one(record, "")
        for index, row in enumerate(rows):
            if each.start <= first + index < each.end:
                place: Row = {
                    "topic": queue.topic,
                    "queue": queue.queue_id,
                    "offset": first + index,
                }
                yield {name: {**row, **place}[name] for name in COLUMNS}


def _first_offset(message: Message, queue: Queue) -> int:
    return next(
        target.queue_offset
        for target in targets(message)
        if (target.topic, target.queue_id) == (queue.topic, queue.queue_id)
    )


def in_order(rows: Iterable[Row]) -> list[Row]:
    """Rows by topic, queue and offset."""
    return sorted(rows, key=lambda row: (row["topic"], row["queue"], row["offset"]))


def rows_from_files(
    folder: Path,
    ranges: Iterable[QueueRange],
    *,
    by: SplitBy | None = None,
    splits_min: int | None = None,
    decoder: RecordDecoder | None = None,
    filters: RowFilters = EVERY_ROW,
    fail_on_data_loss: bool = True,
    aborted: store_files.AbortedOf = store_files.NO_ABORTED,
) -> list[Row]:
    """The rows of ranges, as tasks read them."""
    decoder = decoder or row_decoder()
    splits = store_files.plan(
        folder,
        list(ranges),
        by=by,
        splits_min=splits_min,
        fail_on_data_loss=fail_on_data_loss,
        aborted=aborted,
    )
    return in_order(
        row for split in splits for row in rows_of(list(store_files.read(split, decoder, filters)))
    )


def row_decoder(**options: object) -> RecordDecoder:
    """What decodes `COLUMNS`."""
    return RecordDecoder(COLUMNS, arrow_schema(COLUMNS), **options)  # type: ignore[arg-type]
