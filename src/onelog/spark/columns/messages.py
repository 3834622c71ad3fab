"""Messages as columns: from the bytes of whole records to Arrow, without an object per message.

Takes what a pull answers, or a slice of the log, and gives batches of about ten thousand rows with
the columns that were asked for; what was not asked for is not decoded. Records that are not one
plain message each (compressed bodies, inner batches, records that belong to further queues) are
first rewritten as plain ones, by `record.columns.flat`.

Invariant: the rows are the messages that `record.decode` finds in the same bytes, in the
same order, without half and rolled-back ones; where that raises, this raises `WireError` too. Only
the CRC of a body that is not decoded is not checked.
"""

import functools
import itertools
import logging
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Protocol

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from isal.isal_zlib import crc32

from onelog.errors import ConfigError, OnelogError, UndecodableError, WireError
from onelog.message import TAGS, TRANSACTION_MASK, UNIQUE_KEY, SysFlag, message_id
from onelog.record.columns import Ints, Layout, Mask, find_records, integers, pieces
from onelog.record.columns.flat import flatten, needs_flattening
from onelog.record.columns.kafka import WantedColumns
from onelog.record.columns.properties import PropertyColumns, as_text, texts_of
from onelog.record.decode import decode_records
from onelog.record.forms import FORM_MASK
from onelog.record.layout import CRC_MASK
from onelog.spark.columns.schema import (
    ALL,
    INCARNATION,
    TYPES,
    Selection,
    arrow_schema,
    spark_schema,
)
from onelog.spark.options import Corruption

_log = logging.getLogger(__name__)

ROWS_MAX = 10_000
"""Rows in a batch: fewer cost more per row on their way into Spark, more gain nothing."""
_BATCH_BYTES_MAX = 32 << 20
_COPIED_BODY_BYTES_MAX = 256
"""Up to this size a copy of a body costs less than a view of it."""
_TIMESTAMP_MS_MAX = (1 << 63) // 1000 - 1
_HEX = np.frombuffer("".join(f"{byte:02X}" for byte in range(256)).encode(), np.uint16)

_TYPES = arrow_schema(spark_schema([*ALL, INCARNATION]))
_OF_KEYS = frozenset(("key", "key_bytes", "properties"))


class BodyColumns(Protocol):
    """What turns bodies into typed columns (see `decoding`)."""

    def columns(self, bodies: pa.Array) -> dict[str, pa.Array]:
        """The typed columns, by name; `BodyError` if a body must have them and cannot."""


class BodyError(UndecodableError):
    """A body that cannot be decoded, by its place among others."""

    def __init__(self, row: int, reason: str) -> None:
        super().__init__(reason)
        self.row = row


class RecordDecoder:
    """Decodes the columns `names`; `arrow_schema` says in which order they leave.

    What the schema has and `names` does not comes from `bodies`. With `on_corruption="skip"` a
    record whose body is damaged is left out, counted in `skipped` and reported in the log.
    """

    def __init__(
        self,
        names: Sequence[str],
        arrow_schema: pa.Schema,
        *,
        bodies: BodyColumns | None = None,
        on_corruption: Corruption = "fail",
    ) -> None:
        spark_schema(names)
        self.names = tuple(names)
        self.arrow_schema = arrow_schema
        self.on_corruption = on_corruption
        self.skipped = 0
        self._bodies = bodies
        self._needs_bodies = bodies is not None or "body" in names
        self._needs = WantedColumns(
            names="topic" in names,
            any=not {*_OF_KEYS, "tags", "message_id", "headers"}.isdisjoint(names),
            keys=not _OF_KEYS.isdisjoint(names),
            ids=not {"message_id", "properties"}.isdisjoint(names),
            bodies=self._needs_bodies,
        )
        for name in names:
            _require_type(arrow_schema, name)
        if bodies is None and (more := [each for each in arrow_schema.names if each not in names]):
            raise ConfigError(f"schema: nothing gives the column {more[0]!r}")

    def decode(
        self, data: bytes | bytearray | memoryview, selection: Selection
    ) -> Iterator[pa.RecordBatch]:
        """The rows of whole records that follow each other."""
        raw = np.frombuffer(data, np.uint8)
        if not len(raw):
            return
        layout = find_records(raw)
        if layout is None:
            decode_records(data)
            raise AssertionError("these are whole records after all")
        yield from self.batches(layout, selection)

    def batches(self, layout: Layout, selection: Selection) -> Iterator[pa.RecordBatch]:
        """The rows of records that were found already."""
        kind = layout.sys_flag & TRANSACTION_MASK
        wanted: Mask = (kind == 0) | (kind == SysFlag.COMMITTED)
        if not wanted.all():
            layout = layout.rows(wanted)
        for plain in self._plain(layout, selection):
            selected = _select(plain, selection)
            for rows in _chunks(selected):
                batch = self._batch(selected.rows(rows), selection)
                if batch.num_rows:
                    yield batch

    def _plain(self, layout: Layout, selection: Selection) -> Iterable[Layout]:
        """The same messages, each as a record of its own."""
        unusual = needs_flattening(layout, selection.topic, self._needs_bodies)
        if not unusual.any():
            return [layout]
        needs = self._needs
        if selection.filters.tags is not None:
            needs = needs._replace(any=True)
        if selection.topic is not None:
            needs = needs._replace(names=False)
        return flatten(
            layout, unusual, selection.topic, self._needs_bodies, needs, self.skip_or_raise
        )

    def _batch(self, layout: Layout, selection: Selection) -> pa.RecordBatch:
        found: dict[str, pa.Array] = {}
        batch = _Batch(layout, selection)
        if self._needs_bodies:
            bodies = pieces.bodies(layout)
            whole = _body_is_whole(layout, bodies)
            if not whole.all():
                self.skip_or_raise(_crc_complaint(layout, whole), int((~whole).sum()))
                layout, bodies = layout.rows(whole), bodies.filter(pa.array(whole))
                batch = _Batch(layout, selection)
            found["body"] = bodies = _with_nulls(bodies, batch)
            if self._bodies is not None:
                found.update(_typed(self._bodies, bodies, layout))
        arrays = []
        for field in self.arrow_schema:
            array = found[field.name] if field.name in found else _BUILD[field.name](batch)
            arrays.append(array if array.type == field.type else array.cast(field.type))
        return pa.RecordBatch.from_arrays(arrays, schema=self.arrow_schema)

    def skip_or_raise(self, error: OnelogError, records: int = 1) -> None:
        """What becomes of damage: an error, or a line in the log."""
        if self.on_corruption == "fail":
            raise error
        self.skipped += records
        _log.warning("skipped %d damaged record(s): %s", records, error)


def _with_nulls(bodies: pa.Array, batch: "_Batch") -> pa.Array:
    """The bodies; null for those that are none, which are stored as empty ones."""
    is_empty: Mask = batch.layout.topic_at == batch.layout.body_at
    if is_empty.any() and (is_null := is_empty & batch.properties.null_bodies()).any():
        return pc.if_else(pa.array(is_null), pa.scalar(None, pa.binary()), bodies)
    return bodies


def _typed(bodies: BodyColumns, found: pa.Array, layout: Layout) -> dict[str, pa.Array]:
    try:
        return bodies.columns(found)
    except BodyError as error:
        at, row = layout.rows(slice(error.row, error.row + 1)), error.row
        raise UndecodableError(
            f"the body of the message at offset {int(at.queue_offset[0])} of queue "
            f"{int(at.queue_id[0])} of {as_text(pieces.topics(at))[0]}, {len(found[row].as_py())} "
            f"bytes, cannot be decoded: {error}. With mode=permissive such messages get nulls and "
            "a reason"
        ) from None


def _require_type(schema: pa.Schema, name: str) -> None:
    """Refuse a schema in which a column is missing or has another type than it can have."""
    if schema.get_field_index(name) < 0:
        raise ConfigError(f"schema: the column {name!r} is asked for, but the schema lacks it")
    given, own = schema.field(name).type, _TYPES.field(name).type
    is_wide = (given, own) in ((pa.large_string(), pa.string()), (pa.large_binary(), pa.binary()))
    is_other_zone = pa.types.is_timestamp(own) and pa.types.is_timestamp(given)
    is_map = pa.types.is_map(own) and pa.types.is_map(given)
    is_map |= pa.types.is_list(own) and pa.types.is_list(given)
    if given != own and not is_wide and not is_map and not (is_other_zone and given.tz):
        raise ConfigError(
            f"schema: the column {name!r} is {TYPES[name].simpleString()}, not {given}: "
            "leave the schema out, and cast the column afterwards"
        )


def _select(layout: Layout, selection: Selection) -> Layout:
    """The rows that are wanted."""
    filters = selection.filters
    wanted = np.ones(len(layout), np.bool_)
    if selection.first_offset is not None or selection.end_offset is not None:
        offset = layout.queue_offset
        if selection.first_offset is not None:
            wanted &= offset >= selection.first_offset
        if selection.end_offset is not None:
            wanted &= offset < selection.end_offset
    if filters.store_ms_from is not None:
        wanted &= layout.store_ms >= filters.store_ms_from
    if filters.store_ms_until is not None:
        wanted &= layout.store_ms < filters.store_ms_until
    if not wanted.all():
        layout = layout.rows(wanted)
    if filters.tags is not None and len(layout):
        tags = PropertyColumns(pieces.properties(layout)).column(TAGS)
        is_in = pc.is_in(tags, pa.array(sorted(filters.tags), pa.string()))
        layout = layout.rows(is_in.to_numpy(zero_copy_only=False))
    return layout


def _chunks(layout: Layout) -> Iterator[slice]:
    """Runs of rows, each up to the limits of a batch."""
    total = len(layout)
    size_until = np.cumsum(layout.topic_at - layout.body_at + layout.end - layout.name_at)
    start = 0
    while start < total:
        before = int(size_until[start - 1]) if start else 0
        fitting = int(np.searchsorted(size_until, before + _BATCH_BYTES_MAX, "right"))
        stop = min(max(fitting, start + 1), start + ROWS_MAX, total)
        yield slice(start, stop)
        start = stop


def _body_is_whole(layout: Layout, bodies: pa.Array) -> Mask:
    """Whose body has the CRC that its record claims; those of a Kafka batch have it together."""
    is_own: Mask = (layout.sys_flag & FORM_MASK) == 0
    whole: Mask
    if not is_own.all():
        whole = ~is_own
        if is_own.any():
            whole[is_own] = _body_is_whole(layout.rows(is_own), bodies.filter(pa.array(is_own)))
        return whole
    count = len(bodies)
    if bodies.nbytes <= count * _COPIED_BODY_BYTES_MAX:
        found = np.fromiter(map(crc32, bodies.to_pylist()), np.int64, count)
    else:
        _, bounds, content = bodies.buffers()
        edges = np.frombuffer(bounds, np.int32, count + 1).tolist()
        view = memoryview(content)
        slices = itertools.pairwise(edges)
        found = np.fromiter((crc32(view[at:end]) for at, end in slices), np.int64, count)
    whole = (found & CRC_MASK) == layout.body_crc
    return whole


def _crc_complaint(layout: Layout, whole: Mask) -> WireError:
    log_offset = int(layout.log_offset[np.argmin(whole)])
    return WireError(f"the body of the record at log offset {log_offset} has another CRC")


class _Batch:
    """The rows of one batch, and what several of its columns need."""

    def __init__(self, layout: Layout, selection: Selection) -> None:
        self.layout = layout
        self.selection = selection

    @functools.cached_property
    def properties(self) -> PropertyColumns:
        return PropertyColumns(pieces.properties(self.layout))

    @functools.cached_property
    def keys(self) -> pa.Array:
        return self.properties.keys()


def _topics(batch: _Batch) -> pa.Array:
    if batch.selection.topic is not None:
        return pa.repeat(batch.selection.topic, len(batch.layout))
    return as_text(pieces.topics(batch.layout))


def _times(ms: Ints) -> pa.Array:
    """Milliseconds as timestamps; null for what no timestamp can be."""
    possible: Mask = (ms <= _TIMESTAMP_MS_MAX) & (ms >= -_TIMESTAMP_MS_MAX)
    mask = None if possible.all() else ~possible
    times = np.where(possible, ms, 0) * 1000
    return pa.array(times, mask=mask).view(pa.timestamp("us", "UTC"))


def _message_ids(batch: _Batch) -> pa.Array:
    """The id that the producer gave, else the place in the log."""
    unique = batch.properties.column(UNIQUE_KEY)
    return pc.coalesce(unique, _offset_ids(batch.layout)) if unique.null_count else unique


def _offset_ids(layout: Layout) -> pa.Array:
    count, raw = len(layout), layout.raw
    host_at, log_offset = layout.store_host_at, layout.log_offset
    wide = (layout.sys_flag & SysFlag.STORE_HOST_V6) != 0
    if wide.any():
        hosts = zip(host_at.tolist(), np.where(wide, 20, 8).tolist(), strict=True)
        ids = [
            message_id(raw[at : at + width].tobytes(), offset)
            for (at, width), offset in zip(hosts, log_offset.tolist(), strict=True)
        ]
        return pa.array(ids, pa.string())
    both = np.empty((count, 2), ">i8")
    both[:, 0] = integers(raw, host_at, ">i8")
    both[:, 1] = log_offset
    digits = _HEX[both.view(np.uint8).reshape(count, 16)]
    bounds = np.arange(0, 32 * count + 1, 32, dtype=np.int32)
    return pa.StringArray.from_buffers(count, pa.py_buffer(bounds), pa.py_buffer(digits))


_BUILD: dict[str, Callable[[_Batch], pa.Array]] = {
    "topic": _topics,
    "queue": lambda batch: pa.array(batch.layout.queue_id.astype(np.int32)),
    "offset": lambda batch: pa.array(batch.layout.queue_offset),
    "key": lambda batch: texts_of(batch.keys),
    "key_bytes": lambda batch: batch.keys,
    "tags": lambda batch: batch.properties.column(TAGS),
    "properties": lambda batch: batch.properties.maps(_TYPES.field("properties").type),
    "headers": lambda batch: batch.properties.headers(_TYPES.field("headers").type),
    "born_time": lambda batch: _times(batch.layout.born_ms),
    "store_time": lambda batch: _times(batch.layout.store_ms),
    "message_id": _message_ids,
    "flag": lambda batch: pa.array(batch.layout.flag.astype(np.int32)),
    "broker": lambda batch: pa.repeat(batch.selection.broker, len(batch.layout)),
    "log_offset": lambda batch: pa.array(batch.layout.log_offset),
    INCARNATION: lambda batch: pa.repeat(batch.selection.incarnation, len(batch.layout)),
}
"""How each column but the body is made."""
