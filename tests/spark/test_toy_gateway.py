"""A toy protocol's messages are rows, and rows are its messages."""

from typing import TYPE_CHECKING

from tests.gateways.toy import ToyClient
from tests.spark.threaded_cluster import ThreadedCluster

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


def test_spark_reads_what_a_toy_gateway_puts_and_the_toy_what_spark_writes(
    spark: "SparkSession", cluster: ThreadedCluster
) -> None:
    cluster.topic("orders", 1)
    toy = cluster.run(ToyClient.connect(cluster.broker()))
    assert cluster.run(toy.say("PUT orders k1 from-toy")) == "OK 0"
    table = spark.read.format("onelog").options(nameserver=cluster.nameserver, topic="orders")
    rows = table.load().selectExpr("key", "cast(body as string)").collect()
    assert [tuple(row) for row in rows] == [("k1", "from-toy")]
    written = spark.sql("select 'from-spark' body")
    written.write.format("onelog").mode("append").options(
        nameserver=cluster.nameserver, topic="orders"
    ).save()
    got = [cluster.run(toy.say("GET readers orders 0")).split() for _ in range(2)]
    assert [words[-1] for words in got] == ["from-toy", "from-spark"]
    cluster.run(closed(toy))


async def closed(toy: ToyClient) -> None:
    toy.writer.close()
