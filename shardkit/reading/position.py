"""Where a run is: what is saved in a checkpoint, and checked when it is resumed."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from shardkit.errors import UsageError

VERSION = 1


class Position:
    """A position in an epoch, of one seed, order and dataset.

    Attributes:
        epoch, position: what was last handed over ends before this position of this epoch.
    """

    def __init__(self, seed: int, order: dict[str, Any], fingerprint: str) -> None:
        self.epoch = 0
        self.position = 0
        self._run = {"seed": seed, "order": order, "fingerprint": fingerprint}

    def set_epoch(self, epoch: int) -> None:
        """To the beginning of an epoch, unless it is the one we are in."""
        if not isinstance(epoch, int) or epoch < 0:
            raise UsageError(f"epoch must be a whole number of at least 0, got {epoch!r}")
        if epoch != self.epoch:
            self.epoch, self.position = epoch, 0

    def state_dict(self) -> dict[str, Any]:
        """Small, JSON."""
        return {"version": VERSION, "epoch": self.epoch, "position": self.position, **self._run}

    def load_state_dict(
        self, state: dict[str, Any], num_positions: Callable[[int], int] | None = None
    ) -> None:
        """``num_positions``: of an epoch. Raises UsageError for a state of another run, or none."""
        if not isinstance(state, dict) or state.get("version") != VERSION:
            raise UsageError(f"no loader state of version {VERSION}: {str(state)[:100]}")
        for name, ours in self._run.items():
            if state.get(name) != ours:
                raise UsageError(
                    f"the state is of another run: its {name} is {state.get(name)!r}, here it is"
                    f" {ours!r}"
                )
        epoch, position = state.get("epoch"), state.get("position")
        if not (isinstance(epoch, int) and isinstance(position, int) and min(epoch, position) >= 0):
            raise UsageError(f"the state has epoch {epoch!r} and position {position!r}")
        if num_positions is not None and position > num_positions(epoch):
            raise UsageError(
                f"position {position} is outside 0..{num_positions(epoch)} of epoch {epoch}"
            )
        self.epoch, self.position = epoch, position
