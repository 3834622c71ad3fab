"""What the port does with very many requests at once."""

import asyncio
import time
from typing import Any

from onelog.gateways.http.serving import AT_ONCE, InTurns

SECONDS = 0.001
"""What a request takes."""


async def test_requests_of_very_many_connections_leave_others_their_turn() -> None:
    answered: list[int] = []

    async def app(scope: Any, receive: Any, send: Any) -> None:
        ends = time.thread_time() + SECONDS
        while time.thread_time() < ends:
            pass
        answered.append(scope["number"])

    in_turns = InTurns(app)
    unused: Any = None
    requests = [
        asyncio.create_task(in_turns({"type": "http", "number": each}, unused, unused))
        for each in range(60)
    ]
    most = begun = 0
    while len(answered) < len(requests):
        await asyncio.sleep(0)
        most, begun = max(most, len(answered) - begun), len(answered)
    await asyncio.gather(*requests)
    assert answered == list(range(60))
    assert most <= AT_ONCE
