"""Where a loop is: what is saved in a checkpoint, and checked when it is resumed."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Mapping
from types import MappingProxyType
from typing import Any

from shardkit.arguments import integer
from shardkit.errors import UsageError

VERSION = 2
"""Version 1 was never released: it ordered few rows, tokens and mixes differently."""

MAX_EPOCHS = 2**62

NO_VERSIONS: Mapping[str, int] = MappingProxyType({})

NEW = ("last", "made_by")
"""May be deleted from a state, to go on with other samples from there."""


class LoopState:
    """Where a training loop is: an epoch, and a position in it.

    Args:
        same: what decides which samples come, and must be the same where a loop goes on: ``seed``,
            ``order``, ``fingerprint``, ``last`` and, unless the samples are made elsewhere,
            ``made_by``, the transform in words or None.
        transform: what may make a difference of a rounding.
        versions: fingerprint -> number of a version of the dataset. mixture: of a mix, what it is
            made of, for messages alone.

    Attributes:
        epoch, position: what was last handed over ends before this position of this epoch.
        skipped: rows that were replaced in this epoch until there, as far as is known here.
    """

    def __init__(
        self,
        same: dict[str, Any],
        global_batch_size: int,
        *,
        transform: str | None = None,
        is_of_worker: bool = False,
        versions: Mapping[str, int] = NO_VERSIONS,
        mixture: Mapping[str, Any] | None = None,
    ) -> None:
        self._mixture = mixture
        self._versions = versions
        self.epoch = 0
        self.position = 0
        self.skipped = 0
        self._global_batch_size = global_batch_size
        self._transform = transform
        self._is_loaded = False
        self._is_of_worker = is_of_worker
        self._same = same

    def set_epoch(self, epoch: int) -> None:
        """To the beginning of an epoch; or, if a state of that epoch was loaded, where it says."""
        epoch = integer("epoch", epoch)
        if self._is_loaded and epoch == self.epoch:
            return
        if self._is_loaded and self.position:
            warnings.warn(
                f"set_epoch({epoch}) forgets the loaded position {self.position} of epoch"
                f" {self.epoch}: go on with range(loader.epoch, ...)",
                stacklevel=3,
            )
        self.move(epoch, 0)

    def move(self, epoch: int, position: int, skipped: int = 0) -> None:
        """What was handed over now ends here."""
        self.epoch, self.position, self.skipped = epoch, position, skipped
        self._is_loaded = False

    def state_dict(self) -> dict[str, Any]:
        """Small, JSON."""
        return {
            "version": VERSION,
            "epoch": self.epoch,
            "position": self.position,
            "global_batch_size": self._global_batch_size,
            **self._same,
            **({"transform": self._transform} if self._transform else {}),
            **({"skipped": self.skipped} if self.skipped else {}),
            **({"mixture": dict(self._mixture)} if self._mixture else {}),
        }

    def load_state_dict(
        self, state: dict[str, Any], num_positions: Callable[[int], int] | None = None
    ) -> None:
        """``num_positions``: of an epoch. Raises UsageError for a state of another run, or none."""
        if not isinstance(state, dict) or state.get("version") != VERSION:
            raise UsageError(
                f"no loader state of version {VERSION}: {str(state)[:100]}; give what state_dict()"
                " returned"
            )
        if "worker" in state and not self._is_of_worker:
            raise UsageError("the state is of a Stream's worker, which a Loader cannot go on from")
        self._refuse_another_run(state)
        epoch = integer("epoch, of the state,", state.get("epoch"))
        position = integer("position, of the state,", state.get("position"))
        skipped = integer("skipped, of the state,", state.get("skipped", 0))
        if epoch >= MAX_EPOCHS:
            raise UsageError(f"the state has epoch {epoch}, at most {MAX_EPOCHS} are possible")
        if num_positions is not None and position > num_positions(epoch):
            raise UsageError(
                f"position {position} is outside 0..{num_positions(epoch)} of epoch {epoch}"
            )
        self._warn_of_differences(state)
        self.move(epoch, position, skipped if "made_by" in self._same else 0)
        self._is_loaded = True

    def _refuse_another_run(self, state: dict[str, Any]) -> None:
        """Raise UsageError where other samples would come."""
        if state.get("fingerprint") != self._same["fingerprint"]:
            if (version := self._versions.get(str(state.get("fingerprint")))) is not None:
                raise UsageError(
                    f"the state is of version {version} of this dataset, and open is another: go on"
                    f" with open(..., version={version}), or start anew"
                )
            self._refuse_another_mix(state)
            raise UsageError(
                "the state is of another dataset, whose samples are not these (as pictures packed"
                " smaller, or sequences of other tokens, seq_len or boundaries): its fingerprint is"
                f" {state.get('fingerprint')!r}, here it is {self._same['fingerprint']!r}"
            )
        for name, ours in self._same.items():
            if name in NEW and name not in state:
                continue
            if state.get(name) != ours:
                hint = f"; to go on with other samples, delete its {name!r}" if name in NEW else ""
                what = "transform (made_by)" if name == "made_by" else name
                raise UsageError(
                    f"the state is of another run: its {what} is {state.get(name)!r}, here it is"
                    f" {ours!r}{hint}"
                )

    def _refuse_another_mix(self, state: dict[str, Any]) -> None:
        """Raise UsageError for a mix of other datasets, weights, seed or length than here."""
        ours, theirs = self._mixture, state.get("mixture")
        if ours is None or not isinstance(theirs, dict):
            return
        for name, here in ours.items():
            if theirs.get(name) != here:
                raise UsageError(
                    f"the state is of a mix with other {name}: {theirs.get(name)}, here {here}."
                    " To go on where it was, give those of the state. To train on with these, load"
                    " no state and begin the next epoch with set_epoch: each dataset is shuffled"
                    " anew, so samples of the epoch that ran come again"
                )

    def _warn_of_differences(self, state: dict[str, Any]) -> None:
        """Of those with which the same samples come."""
        theirs = state.get("global_batch_size", self._global_batch_size)
        if theirs != self._global_batch_size:
            warnings.warn(
                f"the state is of global batches of {theirs}, here they have"
                f" {self._global_batch_size}: the samples that follow are the same, the batches"
                " are not",
                stacklevel=4,
            )
        if state.get("transform", self._transform) != self._transform:
            warnings.warn(
                f"the state's samples were made by {state['transform']}, here it is"
                f" {self._transform}: they may differ by a rounding",
                stacklevel=4,
            )
