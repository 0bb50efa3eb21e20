"""What a change of a dataset returns."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from shardkit.index.manifest import DatasetInfo


@dataclass(frozen=True)
class VersionResult:
    """The version that a change made.

    Attributes:
        dest: the dataset's folder. version: its number now.
        what: was done, in words, as the history has it.
        splits: samples of each split now. num_samples: of all.
        num_added, num_removed: samples that the version before had not, and that it had.
        num_bytes: of files that were removed from the disk.
        seconds: it took. notes: what else there is to know, a line each.
        was_complete: whether an earlier call had made it, and this one nothing.
    """

    dest: Path
    version: int
    what: str
    splits: dict[str, int]
    num_samples: int
    num_added: int = 0
    num_removed: int = 0
    num_bytes: int = 0
    seconds: float = 0.0
    notes: list[str] = field(default_factory=list)
    was_complete: bool = False

    @classmethod
    def of(
        cls, dest: Path, version: int, what: str, info: DatasetInfo, **others: Any
    ) -> VersionResult:
        """Of what a version has, and the other attributes."""
        splits = {name: split.num_rows for name, split in info.splits.items()}
        return cls(dest, version, what, splits, sum(splits.values()), **others)
