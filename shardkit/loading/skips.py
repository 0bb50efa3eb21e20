"""How many rows were replaced, on all ranks together, and when that is too many."""

from __future__ import annotations

import json
from collections import Counter
from contextlib import suppress
from typing import Any

import xxhash

from shardkit.batches.maker import BatchMaker
from shardkit.batches.request import Made
from shardkit.errors import StorageError, TooManyRejectsError
from shardkit.order.ranks import default_store

CHECK_EVERY = 8
"""Batches between two looks at the other ranks' counts: two requests of some 50 us each."""

_KEPT = 3
"""Keys of an epoch that other ranks may still write to or look at."""

_begun: Counter[str] = Counter()
"""Name that keys of the store begin with -> how many loops of that name this process began."""


class Skips:
    """Counts of a loader's epochs. Where torch.distributed runs, they go through its store, not
    through a collective: that might come between those of the training step."""

    def __init__(self, maker: BatchMaker) -> None:
        self._maker = maker
        self._work = xxhash.xxh3_64_hexdigest(json.dumps(maker.first_state().state_dict()).encode())
        self._recent: list[_Shared] = []

    def begin(self, epoch: int, start: int, skipped: int) -> SkipCount:
        """Of the rest of an epoch, in which so many rows were replaced already."""
        store = default_store(self._maker.ranks.world_size)
        if store is None:
            return SkipCount(self._maker.options.max_skips, skipped, None)
        name = f"shardkit/skips/{self._work}/{epoch}/{start}"
        shared = _Shared(store, f"{name}/{_begun[name]}", cleans=self._maker.ranks.rank == 0)
        _begun[name] += 1
        self._recent.append(shared)
        if len(self._recent) > 2:  # the last may still be looked at by a rank that is behind
            self._recent.pop(0).clean(0)
        return SkipCount(self._maker.options.max_skips, skipped, shared)


class SkipCount:
    """Replaced rows of one epoch, each counted once.

    Ranks never wait for one another: one may have died, or be the only one that iterates. Every
    ``CHECK_EVERY`` batches each publishes its count, under a key for that batch, and looks at the
    sum of those published under the key before. Ranks that keep step, as the collectives of a
    training step make them do, all see the same sum there, and fail at the same batch, so that none
    is left in a collective. Ranks that do not may see others' counts later. At the end of the
    epoch at least the last rank to get there has seen them all.
    """

    def __init__(self, most: int, before: int, shared: _Shared | None) -> None:
        self._most = most
        self._before = before
        self._shared = shared
        self._own = self._batches = self._of_others = self._published = 0

    @property
    def total(self) -> int:
        """Of the epoch, as far as is known here."""
        return self._before + self._own + self._of_others

    def add(self, made: Made) -> None:
        """One batch more.

        Raises:
            TooManyRejectsError: more than ``most`` rows were replaced. StorageError: the store of
                torch.distributed is gone.
        """
        made.warn_of_skipped(4)  # add, _next, _run, and the loop
        self._own += len(made.skipped)
        self._batches += 1
        if self._shared is None:
            self._check(self.total)
        elif self._batches % CHECK_EVERY == 0:
            self._look(self._shared, is_last=False)

    def end(self) -> None:
        """The epoch is over. Raises as :meth:`add`."""
        if self._shared is not None:
            self._look(self._shared, is_last=True)

    def _look(self, shared: _Shared, *, is_last: bool) -> None:
        before, now = shared.exchange(self._own)
        self._of_others = max(self._of_others, before - self._published, now - self._own)
        self._published = self._own
        # With last="keep" another rank may have ended a batch, and so a key, earlier.
        self._check(max(self._before + now, self.total) if is_last else self._before + before)

    def _check(self, count: int) -> None:
        if count > self._most:
            raise TooManyRejectsError(
                f"{count} samples of this epoch could not be used, max_skips={self._most};"
                " `shardkit verify` names the damaged ones"
            )


class _Shared:
    """Counts that ranks publish, in a store, under keys of one iteration."""

    def __init__(self, store: Any, name: str, *, cleans: bool) -> None:
        self._store = store
        self._name = name
        self._cleans = cleans
        self._keys: list[str] = []
        self._number = 0

    def exchange(self, count: int) -> tuple[int, int]:
        """Publishes a count. Returns the sums of those published until now, by the time before and
        by this one."""
        key = f"{self._name}/{self._number}"
        try:
            before = self._store.add(self._keys[-1], 0) if self._keys else 0
            now = self._store.add(key, count)
            self._number += 1
            self._keys.append(key)
            self.clean(_KEPT)
        except RuntimeError as error:
            raise StorageError(
                "the count of replaced rows cannot be exchanged, as torch.distributed's store is"
                f" gone, with the process of rank 0: {str(error).splitlines()[0]}"
            ) from error
        return before, now

    def clean(self, most: int) -> None:
        """Forgets all but the last keys; one rank does so for all."""
        while len(self._keys) > most:
            key = self._keys.pop(0)
            if self._cleans:
                with suppress(RuntimeError):  # where the store is gone, so are its keys
                    self._store.delete_key(key)
