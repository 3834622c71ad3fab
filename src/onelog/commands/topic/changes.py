"""What the options of `onelog topic create` and `update` ask for."""

from onelog.client.admin.topics import TopicChange
from onelog.commands.attributes import parse_attributes
from onelog.commands.topic import Permission
from onelog.errors import InvalidRequestError


def change_of(
    queues: int | None,
    read_queues: int | None,
    write_queues: int | None,
    perm: Permission | None,
    order: bool | None,
    attributes: list[str] | None,
) -> TopicChange:
    """The change that these options make; `--queues` stands for both kinds."""
    if queues is not None and (read_queues is not None or write_queues is not None):
        raise InvalidRequestError("--queues is for both: name either it or the two others")
    return TopicChange(
        read_queues=queues if read_queues is None else read_queues,
        write_queues=queues if write_queues is None else write_queues,
        perm=None if perm is None else perm.bits,
        order=order,
        attributes=parse_attributes(attributes),
    )
