"""What the doctor says: one verdict, its reasons, and the one change to make first."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

Cause = Literal[
    "storage",
    "decoding",
    "transform",
    "tokenizing",
    "collating",
    "epoch starts",
    "iterator per step",
    "too few workers",
    "too few cores",
    "copying",
    "launching",
    "synchronising",
    "straggler",
    "checkpointing",
    "logging",
    "computing",
    "nothing to gain",
    "not enough evidence",
    "script failed",
]

Arguments = dict[str, int | bool | None]
"""Arguments of torch's DataLoader."""


@dataclass(frozen=True)
class Gain:
    """The factor of the loop's rate that a change should bring, and the interval that it should lie
    in; ``how`` is the formula, with its figures. ``is_limit``: what the change is about would cost
    nothing, of which some will be left."""

    factor: float
    low: float
    high: float
    how: str
    is_limit: bool = False


@dataclass(frozen=True)
class Diagnosis:
    """The doctor's word.

    Attributes:
        sentence: the verdict, in one sentence with its figures. rank: the slow one's, if one is.
        change: the one to make first, concrete: a command line, settings, or a line of code.
        gain: None where none can be predicted. removal: if the whole cause were gone, where the
            change does not do that.
        apply: arguments of DataLoader in place of the script's own, for ``--apply``; None where
            the change needs an edit.
        notes: what was not used for the verdict, and why, a sentence each.
    """

    cause: Cause
    sentence: str
    change: str
    gain: Gain | None = None
    apply: Arguments | None = None
    rank: int | None = None
    removal: Gain | None = None
    notes: tuple[str, ...] = ()

    @property
    def worth(self) -> float:
        """The factor of the rate if the whole cause were gone; 1 if that is unknown."""
        gain = self.removal or self.gain
        return gain.factor if gain else 1.0


@dataclass(frozen=True)
class Applied:
    """What ``--apply`` measured: samples or steps a second, ``what``, before and after.
    ``predicted``: the factor."""

    what: str
    before: float
    after: float
    predicted: float | None

    @property
    def factor(self) -> float:
        return self.after / self.before
