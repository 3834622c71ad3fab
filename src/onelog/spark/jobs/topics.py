"""Topics as frames, as jobs want them: whole, followed, or written to; and questions about them.

Where a job tells messages apart, people name what it goes by (`key_of`):

    key          the message's key, whole; one that is no text as 0x and its bytes in digits
    message_id   the id that its producer gave it
    $.order.id   a field of a JSON body
    anything     the property of that name

Invariant: `copied` has the columns from which the sink makes the same message again, apart from
what brokers wrote into it.
"""

from collections.abc import Callable, Coroutine, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

from pyspark.sql import functions as f

from onelog.client.admin.admin import AsyncAdmin
from onelog.client.admin.topics import TopicChange
from onelog.client.connection import background
from onelog.client.connection.instance import Instance
from onelog.errors import TopicNotFoundError
from onelog.spark.folders import local_folder
from onelog.spark.jobs.queries import triggered
from onelog.spark.options import write_options

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame, SparkSession
    from pyspark.sql.streaming.query import StreamingQuery

FORMAT = "onelog"
Link = Mapping[str, str]
"""How a cluster is reached: options of the data source."""
CONTENT = ("key", "key_bytes", "tags", "body", "properties", "flag")
"""The columns of the source that a copy of a message is made of; see `copied`."""

T = TypeVar("T")


def read(
    spark: "SparkSession", link: Link, topic: str, columns: Sequence[str], **options: str
) -> "DataFrame":
    """The messages that a topic has now."""
    given = {**link, **options, "subscribe": topic, "columns": ",".join(dict.fromkeys(columns))}
    return spark.read.format(FORMAT).options(**given).load()


def follow(
    spark: "SparkSession", link: Link, topic: str, columns: Sequence[str], **options: str
) -> "DataFrame":
    """The messages of a topic as they come, from the first one on."""
    given = {"startingOffsets": "earliest", **link, **options}
    given |= {"subscribe": topic, "columns": ",".join(dict.fromkeys(columns))}
    return spark.readStream.format(FORMAT).options(**given).load()


def write(
    frame: "DataFrame", link: Link, topic: str, transaction: tuple[str, int] | None = None
) -> None:
    """Put rows into a topic; with a transaction (whose batch, and which) once."""
    given = {**link, "topic": topic}
    if transaction is not None:
        given |= {"txnAppId": transaction[0], "txnVersion": str(transaction[1])}
    frame.write.format(FORMAT).mode("append").options(**given).save()


def start(
    frame: "DataFrame", link: Link, name: str, checkpoint: Path, every: float | None, **options: str
) -> "StreamingQuery":
    """Begin to write a stream to topics, in the background."""
    folder = local_folder("checkpoint", checkpoint).absolute()
    writing = (
        frame.writeStream.format(FORMAT)
        .options(**link, **options)
        .option("checkpointLocation", str(folder))
        .queryName(f"onelog-{name}")
    )
    return triggered(writing, every).start()


def copied() -> "list[Column]":
    """Of the columns `CONTENT`, those that the sink takes to make the same message again."""
    # What is no text among headers is in the properties, too (`record.forms.rocketmq`).
    return [f.col(name) for name in CONTENT]


def key_of(by: str) -> "Column":
    """The column; it is null where a message has no such thing."""
    if by == "key":
        return f.coalesce("key", f.concat(f.lit("0x"), f.hex("key_bytes")))
    if by == "message_id":
        return f.col(by)
    if by.startswith("$"):
        return f.get_json_object(f.col("body").cast("string"), by)
    return f.col("properties")[by]


def source_columns(by: str) -> list[str]:
    """The columns of the source that it is made of."""
    if by == "key":
        return ["key", "key_bytes"]
    if by == "message_id":
        return [by]
    return ["body" if by.startswith("$") else "properties"]


def ask(link: Link, question: Callable[[AsyncAdmin], Coroutine[Any, Any, T]]) -> T:
    """What an administrator of the cluster finds out, or does."""
    instance = Instance(write_options(link).link.client_options())

    async def answered() -> T:
        try:
            return await question(AsyncAdmin(instance.nodes))
        finally:
            await instance.nodes.close()

    return background.run(answered())


def queues(link: Link, topic: str) -> int:
    """How many queues of a topic can be written, on all brokers together; 0: no such topic."""

    async def count(admin: AsyncAdmin) -> int:
        try:
            route = await admin.topics.route(topic)
        except TopicNotFoundError:
            return 0
        return sum(each.write_queues for each in route.brokers)

    return ask(link, count)


def create(link: Link, topic: str, queues_per_broker: int) -> None:
    """Make a topic on all brokers of the cluster."""
    change = TopicChange(read_queues=queues_per_broker, write_queues=queues_per_broker)
    ask(link, lambda admin: admin.topics.create(topic, change))
