"""Orders: from their topic to a table, and the large ones on to a topic of their own.

The name server is the one that `onelog pipeline run -n` names, or ONELOG_NAMESERVER; credentials
and encryption, too, come from the options of that command, or from variables of the environment.
"""

from pyspark import pipelines as dp
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as f

LARGE = 500
spark = SparkSession.active()


@dp.table
def orders() -> DataFrame:
    """Every order, once: a run adds what has come since the last one."""
    messages = (
        spark.readStream.format("onelog")
        .option("subscribe", "orders")
        .option("startingOffsets", "earliest")
        .option("columns", "body,store_time")
        .load()
    )
    schema = "order_id string, category string, amount decimal(18,2), ordered_at timestamp"
    order = f.from_json(f.col("body").cast("string"), schema).alias("order")
    return messages.select(order, "store_time").select("order.*", "store_time")


dp.create_sink("large_orders", "onelog", {"topic": "large-orders"})


@dp.append_flow(target="large_orders")
def send_large_orders() -> DataFrame:
    """What somebody should look at, as messages."""
    large = spark.readStream.table("orders").where(f.col("amount") >= LARGE)
    return large.select(f.col("order_id").alias("key"), f.to_json(f.struct("*")).alias("body"))
