"""`onelog bind`: have topics of MQTT flow into a topic that RocketMQ, Kafka and Spark read."""

from typing import Annotated

import typer

from onelog.commands.options import Cluster
from onelog.commands.session import Session, connected
from onelog.commands.terminal import table
from onelog.errors import InvalidRequestError


@connected
async def bind(
    session: Session,
    filter_: Annotated[
        str | None, typer.Argument(metavar="FILTER", help="Of MQTT: sensors/+/temperature, say.")
    ] = None,
    topic: Annotated[str | None, typer.Argument(help="The topic that others read.")] = None,
    back: Annotated[
        bool,
        typer.Option(
            help="The other way: what is sent to the topic reaches subscribers of the filter, "
            "which is one topic of MQTT then."
        ),
    ] = False,
    remove: Annotated[bool, typer.Option(help="End the binding.")] = False,
    cluster: Cluster = None,
) -> None:
    """Have topics of MQTT flow into a topic, or back; without arguments, list what flows.

    A message is stored once, however many read it.
    """
    bindings = session.admin.bindings
    if filter_ is not None and topic is not None:
        brokers = await bindings.change(filter_, topic, back=back, remove=remove, cluster=cluster)
        document = {"filter": filter_, "topic": topic, "back": back, "brokers": list(brokers)}
        flows = f"{topic} -> {filter_}" if back else f"{filter_} -> {topic}"
        session.show(document, f"{'ended' if remove else 'bound'}: {flows}")
        return
    if filter_ is not None or back or remove:
        raise InvalidRequestError("onelog bind FILTER TOPIC: say both, or none for a list")
    found = await bindings.all(cluster=cluster)
    rows = [
        {
            "from": each.topic if each.back else each.filter,
            "to": each.filter if each.back else each.topic,
            "kind": "topic to MQTT" if each.back else "MQTT to topic",
            "broker": each.broker,
        }
        for each in found
    ]
    session.show({"bindings": rows}, table("bindings", "kind, from, to, broker", rows=rows))
