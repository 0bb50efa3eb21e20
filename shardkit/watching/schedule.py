"""Which steps are taken how, by their number alone: all ranks of a run change over together. Pure.

A session is ``rounds`` times the same blocks of steps: as the script has it, with files in memory,
and with batches replayed. Rates of one kind are thus taken at several times of the run, and a
machine that slows down meanwhile slows all kinds alike.

The first steps of a block do not count: of the batches that workers made ahead, ``depth`` were
asked for in the block before.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Literal

OWN, WARM, REPLAY, TRACE = "own", "warm", "replay", "trace"

WARM_UP = 4
"""Steps before the first block: a model's first ones allocate, and tune themselves."""

PROBED = 2
"""Which of these has its operations counted."""

TRACED = 6
"""Steps that a trace is taken of."""


@dataclass(frozen=True)
class Plan:
    """What is done to a script, besides looking on.

    Attributes:
        steps: that count, of each kind. rounds: they are taken in. replays: whether batches are
            replayed. rereads: whether the same files are read again. counts: whether the
            operations of one step are counted. traces: whether some steps are traced: ``"gpu"`` if
            they use one.
        profiles: whether a profiler may look into the processes.
        loader: arguments that every DataLoader of a dataset of the type ``dataset`` is given,
            instead of its own.
    """

    steps: int = 60
    rounds: int = 3
    replays: bool = True
    rereads: bool = True
    counts: bool = True
    traces: Literal["no", "gpu", "yes"] = "no"
    profiles: bool = False
    dataset: str = ""
    loader: dict[str, Any] | None = None


@dataclass(frozen=True)
class Now:
    """How a step is taken, and whether it counts; ``block`` is the number of its block, from 0; -1
    before the first. ``is_first``: of its block."""

    kind: str
    counts: bool
    block: int
    is_first: bool


class Schedule:
    """The blocks of a session.

    Args:
        depth: batches that are asked for ahead. can_reread: whether the loader can be made to read
            the same batches again.
    """

    def __init__(self, plan: Plan, depth: int, can_reread: bool) -> None:
        kinds = [OWN]
        if plan.rereads and can_reread:
            kinds.append(WARM)
        if plan.replays:
            kinds.append(REPLAY)
        self.kinds = kinds
        self.counted = max(1, -(-plan.steps // plan.rounds))
        self.lead = depth + 1
        self.warm_up = WARM_UP + (TRACED if plan.traces != "no" else 0)
        self.num_blocks = plan.rounds * len(kinds)

    @property
    def block_steps(self) -> int:
        """Of a block; as many batches are read again in a block of that kind."""
        return self.lead + self.counted

    @property
    def num_steps(self) -> int:
        """Of the whole session."""
        return self.warm_up + self.num_blocks * self.block_steps

    def at(self, step: int) -> Now:
        """Return how step number ``step`` is taken, from 0. After the session: as the script has
        it."""
        block, place = divmod(step - self.warm_up, self.block_steps)
        if block < 0 or block >= self.num_blocks:
            traced = WARM_UP <= step < self.warm_up
            return Now(TRACE if traced else OWN, counts=False, block=-1, is_first=False)
        kind = self.kinds[block % len(self.kinds)]
        return Now(kind, counts=place >= self.lead, block=block, is_first=place == 0)
