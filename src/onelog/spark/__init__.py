"""The data pipeline on Spark: every topic is a table."""

from onelog.spark.session import session

__all__ = ["session"]
