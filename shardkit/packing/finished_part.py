"""What the packer of a part leaves for who merges it with the others."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from shardkit.errors import PartError
from shardkit.index.journal import Receipt
from shardkit.index.manifest import PART_NAME, WORK_NAME
from shardkit.packing.listed_input import ListedInput
from shardkit.packing.part import Part
from shardkit.system.paths import show_path
from shardkit.system.records import read_record, write_record


@dataclass(frozen=True)
class FinishedPart:
    """What a finished part says of itself, beside the journal of its shards.

    Attributes:
        recipe: what was packed and how; the same for all parts, and for a pack of all.
        listed: the whole input. num_shards: of each split, in all parts, in the order of the
            listing. max_rejects: as of :class:`shardkit.packing.options.PackOptions`.
        chosen: what made its tokens, as JSON.
    """

    part: Part
    recipe: dict[str, Any]
    listed: ListedInput
    num_shards: dict[str, int]
    max_rejects: float
    chosen: dict[str, Any] | None

    def write(self, work: Path) -> None:
        write_record(work / PART_NAME, asdict(self))

    @classmethod
    def read(cls, folder: Path) -> FinishedPart:
        """That of a part's folder. Raises PartError if there is none, or it is damaged."""
        try:
            record = read_record(folder / WORK_NAME / PART_NAME)
            if record is None:
                raise PartError(
                    f"{show_path(folder / WORK_NAME / PART_NAME)} is damaged; pack that part again"
                )
            values = record | {
                "part": Part(*record["part"]),
                "listed": ListedInput(**record["listed"]),
            }
            return cls(**values)
        except (FileNotFoundError, NotADirectoryError):
            raise PartError(
                f"{show_path(folder)} is no finished part of a pack: {_what_it_is(folder)}"
            ) from None
        except (TypeError, KeyError) as error:
            raise PartError(
                f"{show_path(folder)} is a part of another version of shardkit; pack it again"
            ) from error

    def refuse_incomplete(self, folder: Path, receipts: Sequence[Receipt]) -> None:
        """Raises PartError unless these are the receipts of all its shards, and of no others."""
        there = {(receipt.split, receipt.shard) for receipt in receipts}
        jobs = [(split, n) for split, count in self.num_shards.items() for n in range(count)]
        own = {job for number, job in enumerate(jobs) if self.part.has(number)}
        for split, shard in sorted(own ^ there):
            state = "lacks" if (split, shard) in own else "has, and should not have,"
            raise PartError(
                f"{show_path(folder)}, part {self.part}, {state} shard {split}-{shard:05d}; run"
                " the command that packed it again"
            )


def _what_it_is(folder: Path) -> str:
    if not folder.exists():
        return "there is no such folder"
    if (folder / WORK_NAME).is_dir():
        return "its packing has not finished; run the same command again"
    return "`shardkit pack` with --part makes one"
