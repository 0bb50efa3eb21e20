"""What a campaign is made of: cases, each derived from (kind, seed, number) alone, and outcomes."""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np


@dataclass(frozen=True)
class Case:
    """One case. Its name is all that is needed to run it again."""

    kind: str
    seed: int
    number: int

    def __str__(self) -> str:
        return f"{self.kind}:{self.seed}:{self.number}"

    @classmethod
    def parse(cls, text: str) -> Case:
        """From ``flips:7:1234``. Raises ValueError."""
        kind, seed, number = text.split(":")
        return cls(kind, int(seed), int(number))

    @property
    def file_name(self) -> str:
        return str(self).replace(":", "-")

    def random(self) -> random.Random:
        """Everything random in a case is drawn from here. Python promises the same numbers."""
        return random.Random(str(self))

    def numpy(self) -> np.random.Generator:
        return np.random.default_rng(self.random().getrandbits(64))


@dataclass
class Outcome:
    """What came of a case: findings in words, and counts of what happened, by name."""

    findings: list[str] = field(default_factory=list)
    counts: Counter[str] = field(default_factory=Counter)

    def finding(self, text: str) -> None:
        self.findings.append(text)


@dataclass(frozen=True)
class Place:
    """Folders of a case: ``corpora`` are for all and only read, ``work`` is the case's own."""

    corpora: Path
    work: Path


@dataclass(frozen=True)
class Kind:
    """One kind of case.

    Attributes:
        run: does a case; whatever it raises is a finding. default: cases, unless told. batch:
            cases a process runs, one after another. deadline_s: after that a case hangs.
        address_space: bytes its process may map beyond what it has at its start.
    """

    name: str
    what: str
    run: Callable[[Case, Place], Outcome]
    default: int
    batch: int
    deadline_s: float
    address_space: int = 4 << 30
