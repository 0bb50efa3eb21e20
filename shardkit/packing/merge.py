"""``merge``: the dataset that all parts of a pack make together."""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

from shardkit.commit.durable_files import atomic_write, fsync_path
from shardkit.commit.own_files import read_own
from shardkit.commit.records import from_record, read_record, write_record
from shardkit.commit.work_folder import STAGE_NAME, WORK_NAME, is_under_way
from shardkit.errors import CorpusError, DataError, PartError, UsageError
from shardkit.index.journal import Receipt, journal_path, read_receipt
from shardkit.index.manifest import INDEX_NAME, PART_NAME, is_field_name, read_info
from shardkit.packing.destination import Destination, is_recipe, link_or_copy
from shardkit.packing.finish import Conclusion, ShardTally, in_order, is_of_inputs, made_of
from shardkit.packing.listing import ListedInput
from shardkit.packing.options import PackOptions, Part
from shardkit.packing.remote_destination import open_destination
from shardkit.packing.result import COMPLETE, PackResult, result_of
from shardkit.packing.tokenize import ChosenTokenizer
from shardkit.remote.urls import as_place, refuse_overlap, show_place
from shardkit.system.byte_sizes import parse_size
from shardkit.system.paths import file_size, show_path, size_fault
from shardkit.system.progress import Progress
from shardkit.system.refusals import os_errors
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


def merge_parts(
    folders: Sequence[Path],
    dest: str | Path,
    *,
    overwrite: bool = False,
    progress: bool | None = None,
    staging: str | Path | None = None,
    staging_bytes: str | int | None = None,
) -> PackResult:
    """What :func:`shardkit.merge` does with the folders of parts."""
    started = time.perf_counter()
    place = as_place(dest, "the destination")
    with os_errors(f"merging into {show_place(place)}"):
        all_parts = [_Taken.of(folder) for folder in folders]
        _refuse_unlike(all_parts)
        first = all_parts[0].finished
        options = _options(folders[0], first, overwrite=overwrite, progress=progress)
        for folder in folders:
            refuse_overlap(place, folder)
        if isinstance(place, Path) and not overwrite:
            found = _found_complete(place.resolve(), all_parts, options)
            if found is not None:
                return replace(found, seconds=time.perf_counter() - started)
        most = None if staging_bytes is None else parse_size(staging_bytes)
        with open_destination(place, folders[0], overwrite, staging, most) as destination:
            if before := destination.finished(first.recipe, PackResult):
                return replace(before, was_complete=True)
            if overwrite:
                destination.clear()
            destination.prepare(first.recipe)
            return _merge(all_parts, destination, options, started)


@dataclass(frozen=True)
class _Taken:
    """A part: its folder, what it says, and the receipts of its shards."""

    folder: Path
    finished: FinishedPart
    receipts: list[Receipt]

    @classmethod
    def of(cls, folder: Path) -> _Taken:
        """Raises PartError unless it is finished, and whole; DataError if it is damaged."""
        finished = FinishedPart.read(folder)
        receipts = finished.receipts(folder)
        taken = cls(folder, finished, receipts)
        for receipt in receipts:
            for name, size in receipt.file_bytes.items():
                if fault := size_fault(taken.stage / name, size):
                    raise DataError(f"{show_path(taken.stage / name)} {fault}; {finished.advice}")
        return taken

    @property
    def work(self) -> Path:
        return self.folder / WORK_NAME

    @property
    def stage(self) -> Path:
        return self.work / STAGE_NAME


def _options(folder: Path, finished: FinishedPart, **own: bool | None) -> PackOptions:
    """What a part was told. A tokenizer is no option any more: its file is there.

    Raises:
        PartError: that makes no sense.
    """
    options = {**finished.recipe["options"], "max_rejects": finished.max_rejects}
    if finished.chosen is not None:
        options |= {"train_tokenizer": None, "eos": "auto", "bos": "none"}
        options["invalid_utf8"] = "reject"
    if isinstance(options.get("shard_bytes"), list):
        options["shard_bytes"] = tuple(options["shard_bytes"])
    try:
        return PackOptions(**options, **own)  # type: ignore[arg-type]
    except (TypeError, ValueError, KeyError, AttributeError) as error:
        raise PartError(f"{show_path(folder)} is a part of unknown options: {error}") from error


def _refuse_unlike(parts: Sequence[_Taken]) -> None:
    """Raises PartError unless they are all parts of one pack, each once."""
    if not parts:
        raise PartError("no parts are given")
    first, there = parts[0].finished, dict[int, Path]()
    for taken in parts:
        part, name = taken.finished.part, show_path(taken.folder)
        if part.total != first.part.total:
            raise PartError(
                f"{name} is part {part}, and {show_path(parts[0].folder)} is part {first.part}:"
                " give parts of one pack"
            )
        if part.number in there:
            raise PartError(f"{name} and {show_path(there[part.number])} are both part {part}")
        there[part.number] = taken.folder
        for what, one, other in _compared(taken.finished, first):
            if one != other:
                raise PartError(
                    f"{name} and {show_path(parts[0].folder)} were packed {what}; pack one of them"
                    " again, as the other"
                )
    missing = [str(n) for n in range(1, first.part.total + 1) if n not in there]
    if missing:
        shown = ", ".join(missing[:10]) + (", ..." if len(missing) > 10 else "")
        raise PartError(
            f"{len(there)} of {first.part.total} parts are given; these are missing: {shown}"
        )


def _compared(one: FinishedPart, other: FinishedPart) -> list[tuple[str, object, object]]:
    """What must be the same, in words, of both."""
    options = "with other options"
    return [
        (options, one.recipe["options"], other.recipe["options"]),
        (options, one.recipe["corpus"], other.recipe["corpus"]),
        ("with other tokenizers", one.recipe["inputs"], other.recipe["inputs"]),
        ("with other tokenizers", _spec(one), _spec(other)),
        ("of inputs that changed in between", one.listed.seen, other.listed.seen),
    ]


def _spec(part: FinishedPart) -> object:
    return part.chosen and part.chosen["spec"]


def _found_complete(dest: Path, parts: list[_Taken], options: PackOptions) -> PackResult | None:
    """The dataset at ``dest``, if it is of these parts; None if there is none, or another."""
    if is_under_way(dest) or not (dest / INDEX_NAME).is_file():
        return None
    info, first = read_info(dest), parts[0].finished
    if (
        info.provenance.packed != made_of(first.recipe, first.listed.contents)
        or info.container != options.to
        or any(file_size(dest / name) != size for name, size in info.file_bytes.items())
        or is_of_inputs(dest, first.recipe, first.listed.seen) is False
    ):
        return None
    num_rejects = sum(len(receipt.rejects) for taken in parts for receipt in taken.receipts)
    result = result_of(dest, dest, first.listed, info, num_rejects, 0, seconds=0.0)
    return replace(result, notes=[COMPLETE], was_complete=True)


def _merge(
    parts: list[_Taken], destination: Destination, options: PackOptions, started: float
) -> PackResult:
    first = parts[0].finished
    listed = first.listed
    tally = ShardTally(
        min(taken.finished.max_rejects for taken in parts), is_raw=options.images.is_raw
    )
    receipts = in_order([receipt for taken in parts for receipt in taken.receipts])
    for receipt in receipts:
        tally.count(receipt)
    tally.refuse_many(listed.num_entries)
    if not any(receipt.num_rows for receipt in receipts):
        raise CorpusError("nothing was packed: every input of all parts was rejected")
    chosen = None if first.chosen is None else ChosenTokenizer(**first.chosen)
    with Progress("merging", options.progress) as progress:
        progress.expect(sum(receipt.num_rows for receipt in receipts))
        for taken in parts:
            for receipt in taken.receipts:
                _take(taken, receipt, destination)
                progress.skip(receipt.num_rows)
    if chosen is not None:
        _take_tokenizer(parts[0], chosen, destination.stage)
    fsync_path(destination.stage)
    return Conclusion(destination, options, first.recipe, chosen).publish(
        receipts, listed, tally.num_rejects, 0, started
    )


def _take_tokenizer(first: _Taken, chosen: ChosenTokenizer, stage: Path) -> None:
    """Raise PartError if it is damaged."""
    spec = TokenizerSpec.from_json(chosen.spec)
    path = first.stage / str(spec.file)
    data = read_own(path) if path.exists() else None
    if data is None or not spec.matches(data):
        raise PartError(
            f"{show_path(path)}, the tokenizer, is damaged; pack that part again, with --overwrite"
        )
    atomic_write(stage / str(spec.file), [data])


def _take(taken: _Taken, receipt: Receipt, destination: Destination) -> None:
    """Have one shard of a part, and its rows, unless an earlier call had just these."""
    theirs = journal_path(taken.work, receipt.split, receipt.shard)
    ours = journal_path(destination.work, receipt.split, receipt.shard)
    is_there = ours.exists() and read_own(ours) == read_own(theirs)
    if not is_there:
        ours.unlink(missing_ok=True)
    for name, size in receipt.file_bytes.items():
        if not (is_there and destination.size_of(name) == size):
            link_or_copy(taken.stage / name, destination.stage / name, size)
    if not is_there:
        fsync_path(destination.stage)
        link_or_copy(theirs, ours)
    destination.deliver(receipt)
