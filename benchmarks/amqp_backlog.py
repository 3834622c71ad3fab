"""A backlog of five million messages, made and consumed: the part of `amqp` that takes longest."""

from benchmarks.amqp import run_backlog as run

__all__ = ["run"]
