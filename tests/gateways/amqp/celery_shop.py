"""Tasks of Celery, for a worker in a process of its own and for who asks for them."""

import os
from pathlib import Path
from typing import Any

import celery

app = celery.Celery(
    "shop", broker=os.environ.get("SHOP_BROKER"), backend=os.environ.get("SHOP_BACKEND")
)
app.conf.update(
    task_default_queue="shop",
    worker_prefetch_multiplier=2,
    broker_connection_retry_on_startup=False,
    result_chord_retry_interval=0.1,
)
QUORUM = os.environ.get("SHOP_QUEUES") == "quorum"
if QUORUM:
    # As Celery's manual says: tasks that wait go through queues of RabbitMQ, one for each bit.
    app.conf.update(
        task_default_queue_type="quorum",
        task_default_exchange_type="topic",
        task_default_exchange="shop",
        task_default_routing_key="shop",
        broker_transport_options={"confirm_publish": True},
    )


@app.task(name="shop.add")  # type: ignore[untyped-decorator]
def add(one: int, other: int) -> int:
    """The sum."""
    return one + other


@app.task(name="shop.total")  # type: ignore[untyped-decorator]
def total(numbers: list[int]) -> int:
    """The sum of all."""
    return sum(numbers)


@app.task(bind=True, max_retries=5, name="shop.flaky")  # type: ignore[untyped-decorator]
def flaky(self: Any, notes: str) -> int:
    """Fails twice; how often it was tried."""
    with Path(notes).open("a") as file:
        file.write("tried\n")
    tried = len(Path(notes).read_text().splitlines())
    if tried < 3:
        raise self.retry(countdown=1 if QUORUM else 0.05)
    return tried
