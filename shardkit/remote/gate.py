"""Requests to one place: as many at once as it bears, each for as long as it may take."""

from __future__ import annotations

import asyncio
import math
import random
import re
import time
from collections import deque
from collections.abc import Awaitable, Callable, Iterator
from contextlib import asynccontextmanager, contextmanager
from typing import Any, TypeVar

from shardkit.remote.flight import Flight

BUSY = re.compile(r"status code: (429|503)|SlowDown")
"""Answers of a place that wants fewer requests. What it says in Retry-After, obstore does not tell,
so the pause after one of these is longer than after others."""

PAUSE_S, BUSY_PAUSE_S, LONGEST_PAUSE_S = 0.1, 0.5, 10.0

T = TypeVar("T")


def next_pause(last: float, *, is_busy: bool) -> float:
    """Seconds until the next try: about twice the last. By chance, so that those which failed
    together do not come again together."""
    least = BUSY_PAUSE_S if is_busy else PAUSE_S
    return min(random.uniform(least, max(3 * last, 2 * least)), LONGEST_PAUSE_S)


class Patience:
    """How long something may go on failing, over all its requests, from the first.

    Attributes:
        began: when the first was made, by ``time.monotonic``. first_s: how long a server may be out
            of reach, if this is the first that a command asks of it.
        is_ahead: nobody waits for it yet, so what somebody waits for is asked first.
    """

    is_ahead = False

    def __init__(self, seconds: float, first_s: float = math.inf) -> None:
        self.began = math.inf
        self.first_s = first_s
        self._seconds = seconds

    def begin(self) -> None:
        """Its first request is made; the time in which it waited for others does not count."""
        self.began = min(self.began, time.monotonic())

    def spent(self) -> float:
        return max(time.monotonic() - self.began, 0.0)

    def left(self) -> float:
        return self._seconds - self.spent()


class Gate:
    """To one place. What somebody waits for goes first; of that, what came first."""

    def __init__(self) -> None:
        self.flight = Flight()
        self._waiting: deque[tuple[asyncio.Future[None], int, Patience]] = deque()
        self._answered = 0.0
        self._given_up = 0.0
        self._heard = 0.0  # when the last answer came, by this clock:
        self._watched = self._blocked_s = 0.0
        self._is_blocked = False

    def give_up(self) -> None:
        """One who asked has lost patience."""
        self._given_up = time.monotonic()

    def is_given_up(self, patience: Patience) -> bool:
        """Whether another has lost patience since this one's began, and nobody had an answer since
        that: a loop's threads would else fail one after the other, each after as long again."""
        return self._answered < patience.began < self._given_up

    async def answer(
        self,
        request: Callable[[], Awaitable[T]],
        num_bytes: int,
        patience: Patience,
        *,
        is_alone: bool = False,
    ) -> T:
        """``is_alone``: it is not to be made twice at once, and takes as long as it takes, as what
        is sent may: its client bounds that.

        Raises:
            TimeoutError: no answer, within many times what answers took lately; and what the
                request raises.
        """
        async with self._entered(num_bytes, patience):
            patience.begin()
            if is_alone:
                answer = await self._told_if_busy(request())
                self._note_answer()
                return answer
            began = time.monotonic()
            try:
                within = min(self.flight.timeout(), max(patience.left(), 0.1))
                soonest = self._told_if_busy(self._soonest(request, num_bytes))
                answer = await asyncio.wait_for(soonest, within)
            except TimeoutError:
                self.flight.refused(time.monotonic())
                raise TimeoutError(f"no answer within {within:.1f} s") from None
            self._note_answer()
            self.flight.answered(num_bytes, self._answered - began, self._answered)
            return answer

    def _note_answer(self) -> None:
        self._answered, self._heard = time.monotonic(), self._seconds()

    async def _told_if_busy(self, answering: Awaitable[T]) -> T:
        try:
            return await answering
        except Exception as error:
            if BUSY.search(str(error)):
                self.flight.refused(time.monotonic())
            raise

    async def _soonest(self, request: Callable[[], Awaitable[T]], num_bytes: int) -> T:
        """The first answer of the request, and of a second one if that takes long."""
        first = asyncio.ensure_future(request())
        both: set[asyncio.Future[T]] = {first}
        try:
            await asyncio.wait(both, timeout=self.flight.second_after())
            if not first.done() and self.flight.has_room(num_bytes):
                self.flight.asked_again()
                self.flight.begin(num_bytes)
                try:
                    both.add(asyncio.ensure_future(request()))
                    return await _first_good(both)
                finally:
                    self._leave(num_bytes)
            return await first
        finally:
            for one in both:
                one.cancel()

    @asynccontextmanager
    async def _entered(self, num_bytes: int, patience: Patience) -> Any:
        if self._waiting or not self.flight.has_room(num_bytes):
            turn = asyncio.get_running_loop().create_future()
            self._waiting.append((turn, num_bytes, patience))
            self._watch()
            await self._turn(turn, num_bytes, patience)
        else:
            self.flight.begin(num_bytes)
        try:
            yield
        finally:
            self._leave(num_bytes)

    async def _turn(self, turn: asyncio.Future[None], num_bytes: int, patience: Patience) -> None:
        """Wait for it; not for ever where the place answers nobody.

        Raises:
            TimeoutError: it has answered nobody for as long as this may fail.
        """
        since = self._seconds()
        try:
            while not turn.done():
                silent = self._seconds() - max(since, self._heard)
                left = patience.left() - silent
                if left <= 0:
                    patience.begin()
                    raise TimeoutError("the place answers no request")
                await asyncio.wait([turn], timeout=left)
        except BaseException:
            if turn.done() and not turn.cancelled():
                self._leave(num_bytes)
            turn.cancel()
            raise

    @contextmanager
    def holding(self, num_bytes: int) -> Iterator[None]:
        """An answer stays in memory: nobody asks for what has no room beside it."""
        self.flight.hold(num_bytes)
        self._watch()
        try:
            yield
        finally:
            self.flight.let_go(num_bytes)
            self._let_in()

    def _leave(self, num_bytes: int) -> None:
        self.flight.end(num_bytes)
        self._let_in()

    def _watch(self) -> None:
        """Whether it is answers in memory that others wait for, from now on."""
        now = time.monotonic()
        self._blocked_s += now - self._watched if self._is_blocked else 0.0
        self._watched = now
        self._is_blocked = bool(self._waiting) and self.flight.waits_for_held(self._waiting[0][1])

    def _seconds(self) -> float:
        """A clock that stands still while it is not the place that others wait for."""
        self._watch()
        return self._watched - self._blocked_s

    def _let_in(self) -> None:
        self._pass_on()
        self._watch()

    def _pass_on(self) -> None:
        while self._waiting:
            first = next((one for one in self._waiting if not one[2].is_ahead), self._waiting[0])
            turn, next_bytes, _ = first
            if turn.done():  # gave up
                self._waiting.remove(first)
            elif self.flight.has_room(next_bytes):
                self._waiting.remove(first)
                self.flight.begin(next_bytes)
                turn.set_result(None)
            else:
                return


async def _first_good(both: set[asyncio.Future[T]]) -> T:
    """Raises what the last raises, where none is good."""
    waiting = both
    while True:
        done, waiting = await asyncio.wait(waiting, return_when=asyncio.FIRST_COMPLETED)
        good = [one for one in done if one.exception() is None]
        if good or not waiting:
            return (good or list(done))[0].result()
