"""How many rows were replaced, on all ranks together, and when that is too many."""

from __future__ import annotations

import itertools
import time
from typing import Any

from shardkit.errors import TooManyRejectsError
from shardkit.reading.maker import Made
from shardkit.reading.ranks import distributed

CHECK_EVERY = 32
"""Batches between two exchanges of counts. All ranks fail at the same batch, none waits for one
that has failed already."""

_ARRIVED = 1 << 32
_runs = itertools.count()


class SkipCount:
    """Counts replaced rows of an epoch. Where torch.distributed runs, counts are exchanged through
    its store, not by a collective: that might come between those of the training step.

    Raises (from :meth:`add`):
        TooManyRejectsError: more than ``most``; on all ranks at the same batch.
    """

    def __init__(self, world_size: int, most: int) -> None:
        self._world_size = world_size
        self._most = most
        self._store: Any = None

    def begin(self) -> None:
        """An iteration begins."""
        self._count = self._batches = 0
        self._store = _store(self._world_size)
        self._run = next(_runs)  # the same on all ranks, which run the same loops

    def add(self, made: Made) -> None:
        """One batch more."""
        made.warn_of_skipped()
        self._count += len(made.skipped)
        self._batches += 1
        if self._store is None:
            self._check(self._count)
        elif self._batches % CHECK_EVERY == 0:
            self._check(self._of_all_ranks())

    def _check(self, count: int) -> None:
        if count > self._most:
            raise TooManyRejectsError(
                f"{count} samples of this epoch could not be used, max_skips={self._most};"
                " `shardkit verify` names the damaged ones"
            )

    def _of_all_ranks(self) -> int:
        key = f"shardkit/skips/{self._run}/{self._batches}"
        total = self._store.add(key, _ARRIVED + self._count)
        while total // _ARRIVED < self._world_size:  # the store fails if its server is gone
            time.sleep(0.001)
            total = self._store.add(key, 0)
        return int(total % _ARRIVED)


def _store(world_size: int) -> Any:
    """torch.distributed's key-value store, if there are other ranks to share counts with."""
    module = distributed()
    if world_size == 1 or module is None or module.get_world_size() != world_size:
        return None
    return module.distributed_c10d._get_default_store()
