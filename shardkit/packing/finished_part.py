"""What the packer of a part leaves for who merges it with the others."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

from shardkit.errors import PartError, UsageError
from shardkit.index.journal import Receipt, read_receipt
from shardkit.index.manifest import PART_NAME, WORK_NAME, is_field_name
from shardkit.packing.choose_tokenizer import ChosenTokenizer
from shardkit.packing.listed_input import ListedInput
from shardkit.packing.part import Part
from shardkit.packing.publish import is_recipe
from shardkit.system.paths import show_path
from shardkit.system.records import from_record, read_record, write_record
from shardkit.tokens.spec import TokenizerSpec

MOST_SHARDS = 10_000_000
"""Of all parts; more is a mistake, or made to take all memory."""


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
            found = cls(**record | {"listed": from_record(ListedInput, record["listed"])})
            found._refuse_other_types()
            part = Part.parse("/".join(map(str, record["part"])))
            return replace(found, part=part)
        except (FileNotFoundError, NotADirectoryError):
            raise PartError(
                f"{show_path(folder)} is no finished part of a pack: {_what_it_is(folder)}"
            ) from None
        except (TypeError, KeyError, AttributeError, UsageError, IsADirectoryError) as error:
            if isinstance(error, PartError):
                raise
            raise PartError(
                f"{show_path(folder)} is a part of another version of shardkit; pack it again"
            ) from error

    def _refuse_other_types(self) -> None:
        """Raises TypeError for what no packer of this version has written."""
        listed, recipe = self.listed, self.recipe
        numbers = [listed.num_entries, listed.num_bytes, *self.num_shards.values()]
        is_known = (
            all(type(number) is int and 0 <= number < 2**48 for number in numbers)
            and is_recipe(recipe)
            and isinstance(self.max_rejects, int | float)
            and sum(self.num_shards.values()) <= MOST_SHARDS
            and all(map(is_field_name, self.num_shards))
        )
        if not is_known:
            raise TypeError("unknown types")
        if self.chosen is not None:
            TokenizerSpec.from_json(from_record(ChosenTokenizer, self.chosen).spec)

    @property
    def advice(self) -> str:
        return f"run the command that packed part {self.part} again"

    def receipts(self, folder: Path) -> list[Receipt]:
        """Of all its shards, in order. Raises PartError unless they are there, whole, and alone."""
        found = []
        for path in sorted((folder / WORK_NAME).glob("*.part")):
            receipt = read_receipt(path)
            if receipt is None:
                raise PartError(f"{show_path(path)} is damaged; {self.advice}")
            found.append(receipt)
        self._refuse_incomplete(folder, found)
        return found

    def _refuse_incomplete(self, folder: Path, receipts: Sequence[Receipt]) -> None:
        there = {(receipt.split, receipt.shard) for receipt in receipts}
        jobs = [(split, n) for split, count in self.num_shards.items() for n in range(count)]
        own = {job for number, job in enumerate(jobs) if self.part.has(number)}
        for split, shard in sorted(own ^ there):
            state = "lacks" if (split, shard) in own else "has, and should not have,"
            raise PartError(
                f"{show_path(folder)}, part {self.part}, {state} shard {split}-{shard:05d};"
                f" {self.advice}"
            )


def _what_it_is(folder: Path) -> str:
    if not folder.exists():
        return "there is no such folder"
    if (folder / WORK_NAME).is_dir():
        return "its packing has not finished; run the same command again"
    return "`shardkit pack` with --part makes one"
