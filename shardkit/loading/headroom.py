"""What a training script would gain if loading cost nothing: its first batches, again and again.

``SHARDKIT_HEADROOM=replay:FOLDER`` in the environment makes every :class:`shardkit.Loader` make
its first few batches, end its workers, and hand those over for the rest of the run; ``watch:``
leaves it as it is. Both write into the folder how long the loop's steps took and how long it
waited. Loaders of the same work in one process, as where a script makes one each epoch, count as
one. ``shardkit tune --headroom script.py`` runs a script both ways: the difference is all that
any loader could win (the method of SPDL, Meta's loader). A step that changes its batch in place
gets the changed one again.
"""

from __future__ import annotations

import json
import os
import time
from collections.abc import Generator
from contextlib import closing
from pathlib import Path
from typing import Any

from shardkit.batches.maker import BatchMaker
from shardkit.batches.request import Made
from shardkit.errors import UsageError
from shardkit.loading import tuned
from shardkit.loading.observer import Observer, Times
from shardkit.loading.settings import Settings
from shardkit.order.batches import BatchPlan

ENVIRONMENT = "SHARDKIT_HEADROOM"

NUM_KEPT = 8
"""Batches that are replayed: more than a processor's or a model's cache of shapes would hide."""

MOST_STEPS = 1000
"""That are written down, so that the file stays small."""

WRITE_EVERY_S = 0.2

_of_process: dict[tuple[int, str, str], Headroom] = {}
"""By process, environment and work."""


class Headroom(Observer):
    """Writes down the loop's waits and steps.

    Args:
        path: of the file that is written. is_replay: whether batches are replayed.
        about: of the loader, to be written.

    Raises:
        UsageError: the file cannot be written.
    """

    def __init__(self, path: Path, is_replay: bool, about: dict[str, Any]) -> None:
        self._path = path
        self._is_replay = is_replay
        self._about = about
        self._kept: list[Made] = []
        self._waits: list[float] = []
        self._steps: list[float] = []
        self._written = 0.0
        self._write()

    def instead(
        self, made: Generator[Made, None, None], plan: BatchPlan
    ) -> Generator[Made, None, None]:
        """The batches as they are, or replayed."""
        return self._replayed(made, plan) if self._is_replay else made

    def _replayed(
        self, made: Generator[Made, None, None], plan: BatchPlan
    ) -> Generator[Made, None, None]:
        """The first few again and again, each with its own position in the epoch."""
        with closing(made):
            for number in range(len(plan)):
                if len(self._kept) < NUM_KEPT:
                    self._kept.append(next(made))
                    yield self._kept[-1]
                else:
                    made.close()  # which ends its workers
                    yield Made(self._kept[number % NUM_KEPT].batch, plan.end(number))

    def note(self, times: Times) -> None:
        """Keep the first thousand, and write them now and then."""
        if len(self._steps) == MOST_STEPS:
            return
        self._waits.append(times.handed_over - times.asked)
        self._steps.append(times.done - times.handed_over)
        if times.done - self._written > WRITE_EVERY_S:
            self._write()

    def end(self) -> None:
        """Write what there is."""
        self._write()

    def _write(self) -> None:
        """Seconds of each wait and step so far. Whoever reads it sees a whole file."""
        found = {**self._about, "waits": self._waits, "steps": self._steps}
        temp = self._path.with_suffix(".tmp")
        try:
            temp.write_text(json.dumps(found))
            temp.replace(self._path)
        except OSError as error:
            raise UsageError(
                f"{ENVIRONMENT}: cannot write to {self._path.parent}: {error.strerror or error}"
            ) from error
        self._written = time.perf_counter()


def of_environment(maker: BatchMaker, settings: Settings, device: object) -> Headroom | None:
    """None unless the environment asks for it.

    Raises:
        UsageError: for nonsense there, or a folder that cannot be written to.
    """
    text = os.environ.get(ENVIRONMENT, "")
    if not text:
        return None
    kind, _, folder = text.partition(":")
    if kind not in ("replay", "watch") or not os.path.isdir(folder):
        raise UsageError(f"{ENVIRONMENT} must be replay:FOLDER or watch:FOLDER, got {text!r}")
    about = {"work": tuned.work(maker), "settings": str(settings)}
    ranks, options = maker.ranks, maker.options
    batches = [ranks.rank, ranks.world_size, options.last, options.with_keys, str(device)]
    key = os.getpid(), text, json.dumps([about, batches])
    if key not in _of_process:
        path = Path(folder) / f"{os.getpid()}-{len(_of_process)}.json"
        _of_process[key] = Headroom(path, kind == "replay", about)
    return _of_process[key]


def read(folder: Path) -> dict[str, Any]:
    """What a folder holds about the work with the most steps; empty if it holds none."""
    found = [json.loads(path.read_text()) for path in folder.glob("*.json")]
    return max(found, key=lambda one: len(one["steps"]), default={})
