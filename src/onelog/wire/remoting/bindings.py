"""Bindings between MQTT's topics and OneLog's: OneLog's own requests.

CHANGE_BINDING   filter, topic, back, remove    "true" or nothing
LIST_BINDINGS    -> `BindingList`
"""

from onelog.wire.remoting.body import Body, Name, Text


class TopicBinding(Body, frozen=True):
    """What flows from a filter into a topic, or `back`: from a topic to one of MQTT's."""

    back: bool = False
    filter: Text = ""
    topic: Name = ""


class BindingList(Body, frozen=True):
    """All bindings of a broker."""

    bindings: list[TopicBinding] = []  # noqa: RUF012  # Structs copy it.
