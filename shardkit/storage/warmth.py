"""Whether the bytes that a process reads come from its disk, or are in memory."""

from __future__ import annotations

import resource


class Warmth:
    """Whether to announce values: while page faults, or what was announced, went to the disk.

    Announcing a 110 KB value costs 2 us, copying it 4 us, so a warm epoch should not pay for it.
    """

    BATCHES = 64
    """Batches announced after one that went to the disk, and at first; then one is not."""

    ASKED_EVERY = 8
    """Batches, while they are not announced: it takes 1 us, and a batch of tokens 27."""

    def __init__(self) -> None:
        self._seen = (0, 0)
        self._left = self.BATCHES
        self._quiet = 0

    def is_cold(self) -> bool:
        """Asked once a batch."""
        if self._quiet > 0:
            self._quiet -= 1
            return False
        usage = resource.getrusage(resource.RUSAGE_SELF)
        seen = (usage.ru_majflt, usage.ru_inblock)
        if seen != self._seen:
            self._seen, self._left = seen, self.BATCHES
        self._left = max(self._left - 1, 0)
        self._quiet = 0 if self._left else self.ASKED_EVERY - 1
        return self._left > 0
