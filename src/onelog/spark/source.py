"""The data source `onelog`: topics as tables, for Spark's readers and writers.

    spark.read.format("onelog").option("nameserver", "host:9876").option("subscribe", "orders")
    create temporary view orders using onelog options (nameserver 'host:9876', topic 'orders')

It is known to every session, because Spark looks for top-level modules `pyspark_*` (see
`pyspark_onelog`). What needs more than PySpark is imported when it is used: a look-up that fails
for one source fails for all of them.
"""

import sys
from typing import TYPE_CHECKING

from pyspark.sql.datasource import DataSource

from onelog.spark.workers import hide_pipes_of_drivers

if TYPE_CHECKING:
    from pyspark.sql.datasource import (
        DataSourceReader,
        DataSourceStreamReader,
        DataSourceStreamWriter,
        DataSourceWriter,
    )
    from pyspark.sql.types import StructType

    from onelog.spark.columns.tables import Table
    from onelog.spark.options import ReadOptions

PUSHDOWN_WORKER = "pyspark.sql.worker.data_source_pushdown_filters"
"""The process that Spark starts to hand filters over, and only if that is switched on
(spark.sql.python.filterPushdown.enabled); to take filters anywhere else is an error."""

hide_pipes_of_drivers()


class OnelogDataSource(DataSource):
    """Topics of a cluster, or of a store."""

    @classmethod
    def name(cls) -> str:
        return "onelog"

    _own: "Table | None" = None
    """The table that `schema` found; it goes with this object to where it is read."""

    def schema(self) -> "StructType":
        """The columns that were asked for, or all; and those of bodies, if they are decoded."""
        from onelog.spark.columns.tables import own_table
        from onelog.spark.options import read_options
        from onelog.spark.read.batch import sample_bodies

        options = read_options(self.options)
        self._own = own_table(options, lambda count: sample_bodies(options, count))
        return self._own.schema

    def _table(self, options: "ReadOptions", schema: "StructType") -> "Table":
        from onelog.spark.columns.tables import given_table
        from onelog.spark.read.batch import sample_bodies

        if self._own is not None and self._own.schema == schema:
            return self._own
        return given_table(options, schema, lambda count: sample_bodies(options, count))

    def reader(self, schema: "StructType") -> "DataSourceReader":
        """For `spark.read`."""
        from onelog.spark.options import read_options
        from onelog.spark.read.batch import OnelogPruningReader, OnelogReader

        options = read_options(self.options)
        # Not without being asked to: Spark (4.1 to 4.3) keeps what was planned with the filters of
        # one query, and runs the next query of the same DataFrame, which may have none, on that.
        if options.pushdown and any(each.endswith(PUSHDOWN_WORKER) for each in sys.orig_argv):
            return OnelogPruningReader(options, self._table(options, schema))
        return OnelogReader(options, self._table(options, schema))

    def streamReader(self, schema: "StructType") -> "DataSourceStreamReader":  # noqa: N802
        """For `spark.readStream`."""
        from onelog.spark.options import read_options
        from onelog.spark.read.stream import OnelogStreamReader

        options = read_options(self.options)
        return OnelogStreamReader(options, self._table(options, schema))

    def writer(self, schema: "StructType", overwrite: bool) -> "DataSourceWriter":
        """For `df.write`."""
        from onelog.spark.options import write_options
        from onelog.spark.write.sink import OnelogWriter

        _refuse_overwrite(overwrite)
        return OnelogWriter(write_options(self.options), schema)

    def streamWriter(  # noqa: N802 - Spark's name
        self, schema: "StructType", overwrite: bool
    ) -> "DataSourceStreamWriter":
        """For `df.writeStream`."""
        from onelog.spark.options import write_options
        from onelog.spark.write.sink import TopicStream
        from onelog.spark.write.stream_writers import stream_writer

        _refuse_overwrite(overwrite)
        return stream_writer(TopicStream(write_options(self.options), schema), schema)


def _refuse_overwrite(overwrite: bool) -> None:
    from onelog.errors import ConfigError

    if overwrite:
        raise ConfigError(
            'messages cannot be overwritten: write with mode("append"), and streams with '
            'outputMode("append")'
        )
