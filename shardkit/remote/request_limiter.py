"""A limit on what one server is asked for at once."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Protocol

MOST_REQUESTS = 128
MOST_BYTES = 256 << 20
"""What the bodies of answers may take of the memory of the process."""


class HasPriority(Protocol):
    """A request, and whether it is made ahead: nobody waits for its answer yet."""

    is_ahead: bool


class RequestLimiter:
    """Lets so many requests be made at once, and so many bytes of answers be in memory.

    What somebody waits for goes first; of that, what came first. A request may cease to be ahead
    while it waits.
    """

    def __init__(self) -> None:
        self._num_requests = 0
        self._num_bytes = 0
        self._waiting: list[tuple[HasPriority, int, asyncio.Future[None]]] = []

    @asynccontextmanager
    async def slot(self, request: HasPriority, num_bytes: int) -> AsyncIterator[None]:
        """Wait for a slot, and hold it until the answer has left the memory."""
        admitted = asyncio.get_running_loop().create_future()
        self._waiting.append((request, num_bytes, admitted))
        self._admit()
        await admitted
        try:
            yield
        finally:
            self._num_requests -= 1
            self._num_bytes -= num_bytes
            self._admit()

    def fail_waiting(self, error: Exception) -> None:
        """Let all that wait fail, too: a server that does not answer would else be tried once more
        for each, as long again."""
        for _, _, admitted in self._waiting:
            admitted.set_exception(error)
        self._waiting.clear()

    def _admit(self) -> None:
        while self._waiting:
            chosen = next((one for one in self._waiting if not one[0].is_ahead), self._waiting[0])
            _, num_bytes, admitted = chosen
            is_full = self._num_requests and self._num_bytes + num_bytes > MOST_BYTES
            if is_full or self._num_requests >= MOST_REQUESTS:
                return
            self._waiting.remove(chosen)
            self._num_requests += 1
            self._num_bytes += num_bytes
            admitted.set_result(None)
