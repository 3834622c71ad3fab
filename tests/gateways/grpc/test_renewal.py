"""Leases that are renewed for consumers: what ends that, and what only puts it off."""

import asyncio
from types import SimpleNamespace
from typing import Any, cast

from onelog.clock import SystemClock
from onelog.errors import LeaseNotFoundError, StoreBusyError
from onelog.gateways import GatewayContext
from onelog.gateways.grpc.renewal import Renewal, RenewedLease, RenewedLeases


async def test_a_busy_disk_puts_a_renewal_off_and_a_lease_that_is_over_ends_it() -> None:
    answers: list[Exception | int] = [
        StoreBusyError("no file handle is left"),
        8,
        LeaseNotFoundError("over"),
    ]
    asked: list[int] = []
    over = asyncio.Event()

    def extend(*about: Any) -> int:
        asked.append(about[5])
        answer = answers.pop(0)
        if not answers:
            over.set()
        if isinstance(answer, Exception):
            raise answer
        # The next look is due at once.
        renewal.keep(holder, [("receipt", kept._replace(handle=answer))], 40)
        return answer

    context = SimpleNamespace(
        broker=SimpleNamespace(queues=SimpleNamespace(extend=extend)), clock=SystemClock()
    )
    renewal = Renewal(cast(GatewayContext, context))
    kept = RenewedLease("group", "topic", 0, 5, 7)
    holder: RenewedLeases = {}
    renewal.keep(holder, [("receipt", kept)], 40)
    await asyncio.wait_for(over.wait(), 30)
    assert asked == [7, 7, 8]
    assert not holder
    renewal.close()
