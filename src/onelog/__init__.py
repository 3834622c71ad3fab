"""OneLog: one log, every queue. A message broker in pure Python."""

import os
import sys
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from onelog.embedded_broker import Embedding

__version__ = "0.1.0"

__all__ = ["__version__", "embedded"]


def embedded(
    folder: "str | os.PathLike[str] | None" = None,
    *,
    port: int | None = None,
    kafka: bool = False,
    amqp: bool = False,
    stomp: bool = False,
    mqtt: bool = False,
    **settings: bool | int | str,
) -> "Embedding":
    """A broker inside this process, for as long as a `with` or `async with` block lasts.

    `folder` keeps its messages; without one they live in memory, and end with it. `port` makes its
    name server listen on that port of 127.0.0.1, too (0 takes a free one), for other processes.
    With `kafka` it has a port for Kafka's clients, who begin at its `bootstrap_servers`, with
    `amqp` one for RabbitMQ's, at its `amqp_url`, with `stomp` one for STOMP's, at its
    `stomp_address`, and with `mqtt` one for MQTT's, its `mqtt_port`. Settings are those of
    `onelog config`, as `broker__auto_create_topics=False`.
    """
    # Here and not above: the broker is large, and most who import the package need a part of it.
    from onelog.embedded_broker import Embedding

    wanted = {"kafka": kafka, "amqp": amqp, "stomp": stomp, "mqtt": mqtt}
    protocols = [name for name, is_wanted in wanted.items() if is_wanted]
    return Embedding(folder, port, settings, protocols)


_SPARKS_CHOICES = ("PYSPARK_PYTHON", "PYSPARK_DRIVER_PYTHON", "PYSPARK_GATEWAY_PORT")


def _show_spark_this_python() -> None:
    """Have Spark's workers run the Python that runs here, unless somebody has chosen another.

    Spark runs the `python3` of the PATH, which is another one if this one's environment was not
    activated; that one knows no OneLog, and Spark says DATA_SOURCE_NOT_FOUND. Here, because the JVM
    takes it from its environment when it starts, and whoever imports anything of OneLog comes by.
    """
    if not sys.executable or any(name in os.environ for name in _SPARKS_CHOICES):
        return
    for folder in os.get_exec_path():
        if os.access(os.path.join(folder, "python3"), os.X_OK):
            if os.path.abspath(folder) == os.path.dirname(sys.executable):
                return  # Also on other machines of a cluster, where it may lie elsewhere.
            break
    from importlib.util import find_spec

    if find_spec("pyspark") is not None:
        os.environ["PYSPARK_PYTHON"] = sys.executable


_show_spark_this_python()
