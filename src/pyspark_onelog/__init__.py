"""Makes the data source `onelog` known to Spark.

Spark imports every top-level module whose name begins with `pyspark_` and takes its `DefaultSource`
into all sessions; see `onelog.spark.source`.
"""

from onelog.spark.source import OnelogDataSource as DefaultSource

__all__ = ["DefaultSource"]
