"""What the packer of a part leaves for who merges it with the others."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

from shardkit.errors import PartError, UsageError
from shardkit.index.journal import Receipt, read_receipt
from shardkit.index.manifest import (
    DALI_INDEX,
    PART_NAME,
    SHARD_FILE,
    WORK_NAME,
    is_field_name,
)
from shardkit.packing.left_out import LeftOut
from shardkit.packing.listed_input import ListedInput
from shardkit.packing.part import Part
from shardkit.system.paths import show_path
from shardkit.system.records import read_record, write_record
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
            found = cls(**record | {"listed": ListedInput(**record["listed"])})
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
        left_out = {} if listed.left_out is None else asdict(LeftOut(**listed.left_out))
        numbers = [listed.num_entries, listed.num_bytes, *self.num_shards.values()]
        texts = [listed.kind, listed.contents, listed.state, listed.seen, *listed.notes]
        texts += [*self.num_shards, *listed.ignored, *(listed.classes or [])]
        groups = [recipe[name] for name in ("inputs", "corpus", "options")] + [listed.spec]
        is_known = (
            all(type(number) is int and 0 <= number < 2**48 for number in numbers)
            and all(type(n) is int for n in (*listed.ignored.values(), *left_out.values()))
            and all(isinstance(text, str) for text in texts)
            and isinstance(listed.notes, list)
            and isinstance(listed.classes, list | None)
            and all(isinstance(group, dict) for group in groups)
            and isinstance(self.max_rejects, int | float)
            and sum(self.num_shards.values()) <= MOST_SHARDS
            and all(map(is_field_name, self.num_shards))
        )
        if not is_known:
            raise TypeError("unknown types")
        if self.chosen is not None:
            TokenizerSpec.from_json(self.chosen["spec"])
            if not isinstance(self.chosen["notes"], list):
                raise TypeError("unknown notes")

    @property
    def advice(self) -> str:
        return f"run the command that packed part {self.part} again"

    def receipts(self, folder: Path) -> list[Receipt]:
        """Of all its shards, in order. Raises PartError unless they are there, whole, and alone."""
        found = []
        for path in sorted((folder / WORK_NAME).glob("*.part")):
            receipt = None if path.is_dir() else read_receipt(path)
            if receipt is None or not _is_sound(receipt):
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


def _is_sound(receipt: Receipt) -> bool:
    """Whether it is what a packer writes, and names no file but its shard's own."""
    counts = [receipt.shard, receipt.num_rows, receipt.num_sums, receipt.names_bytes]
    return (
        is_field_name(receipt.split)
        and all(type(count) is int and count >= 0 for count in counts)
        and isinstance(receipt.encodings, dict)
        and isinstance(receipt.file_bytes, dict)
        and bool(receipt.file_bytes or not receipt.num_rows)
        and all(
            bool(SHARD_FILE.fullmatch(name) or DALI_INDEX.fullmatch(name))
            and name.startswith(f"{receipt.stem}.")
            and type(size) is int
            for name, size in receipt.file_bytes.items()
        )
        and isinstance(receipt.rejects, list)
        and all(isinstance(each, list) and len(each) == 2 for each in receipt.rejects)
        and isinstance(receipt.counts, dict)
    )


def _what_it_is(folder: Path) -> str:
    if not folder.exists():
        return "there is no such folder"
    if (folder / WORK_NAME).is_dir():
        return "its packing has not finished; run the same command again"
    return "`shardkit pack` with --part makes one"
