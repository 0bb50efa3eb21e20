"""How many requests a place bears at once, and how long one may take: found by measuring.

Decisions only: nothing here waits, or knows of a network.
"""

from __future__ import annotations

from collections import deque

FEWEST, FIRST, MOST = 8, 32, 384
"""Requests at once: at least, at first, and at most."""

MOST_BYTES = 256 << 20
"""Asked for at once, or not yet written: what bodies may take of the keeper's memory."""

FASTER = 1.1
"""A rate that grew by less, for half as many requests more, is none that these brought."""

PAUSE_ROUNDS = 4
"""Rounds until more at once are tried again."""

RECENT = 256
"""Answers that times are measured by. Fewer than half of these say nothing."""

SLOWEST = 0.99
"""The part of the answers that came sooner than what is asked for a second time."""

SECOND_AT_LEAST_S = 0.05
"""Nobody asks a second time before that: to save less is not worth a request."""

TIMEOUT_S = (10.0, 60.0)
"""A try takes no longer than the second, and is given up no sooner than the first."""


class Flight:
    """Of one place. Grows while more requests bring more bytes a second; shrinks when the place
    says that it is busy.

    Attributes:
        most: requests at once, now. running: requests. num_bytes: asked for by these.
        held: bytes of answers that are in memory still.
    """

    def __init__(self) -> None:
        self.most = FIRST
        self.running = 0
        self.num_bytes = 0
        self.held = 0
        self._tried_from: tuple[int, float] | None = None  # as many at once, at this rate
        self._pause = 0
        self._times: deque[float] = deque(maxlen=RECENT)
        self._seconds = 0
        self._was_refused = self._is_full = False
        self._start_round(0.0)

    def has_room(self, num_bytes: int) -> bool:
        """For one more; one that is alone always has."""
        return self._fits(self.held + num_bytes) or not (self.running or self.held)

    def waits_for_held(self, num_bytes: int) -> bool:
        """Whether there would be room for one more, if no answer were in memory still."""
        return bool(self.held) and (self._fits(num_bytes) or not self.running)

    def _fits(self, num_bytes: int) -> bool:
        return self.running < self.most and self.num_bytes + num_bytes <= MOST_BYTES

    def begin(self, num_bytes: int) -> None:
        self.running += 1
        self.num_bytes += num_bytes
        self._is_full = self._is_full or self.running >= self.most

    def end(self, num_bytes: int) -> None:
        """However it ended."""
        self.running -= 1
        self.num_bytes -= num_bytes

    def hold(self, num_bytes: int) -> None:
        """An answer stays in memory for a while."""
        self.held += num_bytes

    def let_go(self, num_bytes: int) -> None:
        """It is in memory no more."""
        self.held -= num_bytes

    def answered(self, num_bytes: int, seconds: float, now: float) -> None:
        """A whole answer came, so many seconds after it was asked for."""
        self._times.append(seconds)
        self._seconds += 1
        self._round_bytes += num_bytes
        self._round_answers += 1
        if self._round_answers >= 2 * self.most:
            self._end_round(now)

    def refused(self, now: float) -> None:
        """The place was busy (429, 503), or did not answer in time. Once a round is enough: all
        that fail together fail for one reason."""
        if not self._was_refused:
            self.most = max(self.most // 2, FEWEST)
            self._tried_from, self._pause = None, PAUSE_ROUNDS
            self._start_round(now)
            self._was_refused = True

    def _end_round(self, now: float) -> None:
        """Try half as many more; keep that if it brought more, else go back, and wait a while."""
        rate = self._round_bytes / max(now - self._began, 1e-6)
        if self._is_full and self._began:
            if self._tried_from is not None and rate < self._tried_from[1] * FASTER:
                self.most, self._tried_from, self._pause = self._tried_from[0], None, PAUSE_ROUNDS
            elif self._pause:
                self._pause -= 1
            else:
                self._tried_from = self.most, rate
                self.most = min(self.most + self.most // 2, MOST)
        self._start_round(now)

    def _start_round(self, now: float) -> None:
        self._began = now
        self._round_bytes = self._round_answers = 0
        self._is_full = self._was_refused = False

    def second_after(self) -> float | None:
        """Seconds after which the same is asked for again, beside the first; None for never.

        It is for the slowest hundredth, so a second request for each fiftieth is as many as there
        will be: a place that became slow as a whole is not asked for everything twice.
        """
        if len(self._times) < RECENT // 2 or self._seconds < 50:
            return None
        return max(self._slow(), SECOND_AT_LEAST_S)

    def asked_again(self) -> None:
        """A second request was made."""
        self._seconds -= 50

    def timeout(self) -> float:
        """Seconds that a try may take: many times those of slow answers lately."""
        least, most = TIMEOUT_S
        return most if len(self._times) < RECENT // 2 else min(max(20 * self._slow(), least), most)

    def _slow(self) -> float:
        return sorted(self._times)[int(len(self._times) * SLOWEST)]
