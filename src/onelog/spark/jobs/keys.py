"""What messages are told apart by: their key, their id, a property, or a field of a JSON body.

key          the message's (first) key
message_id   the id that its producer gave it
$.order.id   a field of the body
anything     the property of that name
"""

from typing import TYPE_CHECKING

from pyspark.sql import functions as f

if TYPE_CHECKING:
    from pyspark.sql import Column

HELP = "key, message_id, a field of a JSON body as $.order.id, or the name of a property"


def key_of(by: str) -> "Column":
    """The column; it is null where a message has no such thing."""
    if by in ("key", "message_id"):
        return f.col(by)
    if by.startswith("$"):
        return f.get_json_object(f.col("body").cast("string"), by)
    return f.col("properties")[by]


def source_column(by: str) -> str:
    """The column of the source that it is made of."""
    if by in ("key", "message_id"):
        return by
    return "body" if by.startswith("$") else "properties"
