"""Requests about what partitions hold: deleting their first messages, and the space they take."""

from onelog.errors import OnelogError, TopicNotFoundError
from onelog.gateways.kafka.error_codes import error_code
from onelog.gateways.kafka.names import require_topic, visible_topics
from onelog.gateways.kafka.session import Handler, KafkaSession, Request
from onelog.wire.kafka.codes import ApiKey
from onelog.wire.kafka.schema import Fields

_ENTRY_BYTES = 20
"""What a message takes in the index of its partition."""


def delete_records(session: KafkaSession, request: Request) -> Fields:
    """DELETE_RECORDS: partitions begin later."""
    broker, who = session.broker, session.principal
    told = []
    for topic in request.fields["topics"]:
        name = topic["name"]
        partitions = []
        for each in topic["partitions"]:
            queue_id = each["partition_index"]
            answer: Fields = {"partition_index": queue_id, "low_watermark": -1, "error_code": 0}
            try:
                session.require_administrator()
                if not 0 <= queue_id < require_topic(broker, who, name).queues:
                    raise TopicNotFoundError(f"topic {name} has no partition {queue_id}")
                start = broker.delete_before(who, name, queue_id, each["offset"])
                answer["low_watermark"] = start
            except OnelogError as error:
                answer["error_code"] = error_code(error)
            partitions.append(answer)
        told.append({"name": name, "partitions": partitions})
    return {"topics": told}


def describe_log_dirs(session: KafkaSession, request: Request) -> None:
    """DESCRIBE_LOG_DIRS: one folder with everything.

    Partitions share the log's files. What one takes there is not known; its index is told.
    """
    broker, who = session.broker, session.principal
    wanted = request.fields["topics"]
    places = (
        {each.name: list(range(each.queues)) for each in visible_topics(broker, who)}
        if wanted is None
        else {each["topic"]: each["partitions"] for each in wanted}
    )

    def find() -> Fields:
        state = broker.admin.log_state(who)
        topics = [
            {
                "name": name,
                "partitions": [
                    {
                        "partition_index": queue_id,
                        "partition_size": _ENTRY_BYTES
                        * (
                            broker.max_offset(who, name, queue_id)
                            - broker.min_offset(who, name, queue_id)
                        ),
                        "offset_lag": 0,
                        "is_future_key": False,
                    }
                    for queue_id in numbers
                ],
            }
            for name, numbers in places.items()
        ]
        return {"results": [{"error_code": 0, "log_dir": str(state.folder), "topics": topics}]}

    session.look_up(request, find)


HANDLERS: dict[ApiKey, Handler] = {
    ApiKey.DELETE_RECORDS: delete_records,
    ApiKey.DESCRIBE_LOG_DIRS: describe_log_dirs,
}
