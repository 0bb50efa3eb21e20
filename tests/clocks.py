"""A clock that a test moves: what takes time there takes none here."""

from __future__ import annotations

import random
import time

import pytest

TICK_S = 1e-6


class SimulatedClock:
    """Stands for ``time.perf_counter`` and ``time.sleep``, in one thread: sleeping moves it,
    and each look by a microsecond. ``spread``: share by which what takes time varies.
    """

    def __init__(self, monkeypatch: pytest.MonkeyPatch, spread: float = 0.0) -> None:
        self._now, self._spread, self._dice = 1000.0, spread, random.Random(7)
        monkeypatch.setattr(time, "perf_counter", self.now)
        monkeypatch.setattr(time, "sleep", self.take)

    def now(self) -> float:
        self._now += TICK_S
        return self._now

    def take(self, seconds: float) -> None:
        self._now += seconds * self._dice.uniform(1 - self._spread, 1 + self._spread)
