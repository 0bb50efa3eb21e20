"""A line that says how far a run of the doctor is, while the script runs."""

from __future__ import annotations

import time
from collections.abc import Callable
from pathlib import Path

from shardkit.watching.records import read_file

Tell = Callable[[str], None]

SAME_S, REWRITTEN_S = 20.0, 1.0
"""Between two lines of the same stage; on a terminal, where they are rewritten."""


class StatusLine:
    """Tells at once, when a stage begins, and every ``every_s`` seconds.

    Args:
        folder: that the script is watched into. tell: takes a line.
    """

    def __init__(self, folder: Path, tell: Tell | None, every_s: float) -> None:
        self._folder, self._tell, self._every_s = folder, tell, every_s
        self._started, self._told, self._stage = time.monotonic(), 0.0, ""

    def look(self, stage: str = "") -> None:
        """Tell, if there is something new; ``stage``: what the doctor itself does."""
        now, begun = time.monotonic(), next(self._folder.glob("*.begun"), None)
        stage = stage or ("steps" if begun else "no training loop was seen yet")
        if not self._tell or (stage == self._stage and now - self._told < self._every_s):
            return
        self._stage, self._told = stage, now
        if begun and stage == "steps":
            stage = measured(begun.with_suffix(".jsonl"))
        self._tell(f"shardkit doctor: {now - self._started:.0f} s: {stage}")


def measured(records: Path) -> str:
    """Return how many steps of the session that a file tells of are done."""
    done, planned = 0, 0
    for event in read_file(records):
        planned = event.get("steps", planned) if event["is"] == "session" else planned
        done += event["is"] == "step" and planned > 0
    return f"{min(done, planned):,} of {planned:,} steps were looked at"
