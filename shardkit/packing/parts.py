"""``merge``: the dataset that all parts of a pack make together."""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from shardkit.commit.durable_files import atomic_write, fsync_path
from shardkit.commit.own_files import read_own
from shardkit.commit.records import from_record, read_record
from shardkit.commit.work_folder import STAGE_NAME, WORK_NAME
from shardkit.errors import CorpusError, DataError, PartError, UsageError
from shardkit.index.file_names import PART_NAME
from shardkit.index.journal import Receipt, journal_path, read_receipt
from shardkit.packing.destination import Destination, is_recipe, link_or_copy
from shardkit.packing.finish import Conclusion, ShardTally, in_order, merged_before
from shardkit.packing.listing import ListedInput
from shardkit.packing.options import PackOptions, Part
from shardkit.packing.remote_destination import open_destination
from shardkit.packing.result import PackResult
from shardkit.packing.tokenize import ChosenTokenizer
from shardkit.remote.urls import as_place, refuse_overlap, show_place
from shardkit.system.paths import show_path, size_fault
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


@dataclass(frozen=True)
class _GivenPart:
    """A part: its folder, what it says, and the receipts of its shards, in order."""

    folder: Path
    finished: FinishedPart
    receipts: list[Receipt]

    @property
    def work(self) -> Path:
        return self.folder / WORK_NAME

    @property
    def stage(self) -> Path:
        return self.work / STAGE_NAME


def _read_part(folder: Path) -> _GivenPart:
    """Read a part, and check that its shards are all there, complete, and alone.

    Raises:
        PartError: it is no part, not finished, or not complete. DataError: a file is damaged.
    """
    path = folder / WORK_NAME / PART_NAME
    try:
        record = read_record(path)
    except (FileNotFoundError, NotADirectoryError):
        why = "`shardkit pack` with --part makes one"
        if not folder.exists():
            why = "there is no such folder"
        elif path.parent.is_dir():
            why = "its packing has not finished; run the same command again"
        raise PartError(f"{show_path(folder)} is no finished part of a pack: {why}") from None
    if record is None:
        raise PartError(f"{show_path(path)} is damaged; pack that part again")
    try:
        part = Part.parse("/".join(map(str, record["part"])))
        listed = from_record(ListedInput, record["listed"])
        finished = from_record(FinishedPart, record, part=part, listed=listed)
        num_shards = sum(map(abs, finished.num_shards.values()))
        if not is_recipe(finished.recipe) or num_shards > MOST_SHARDS:
            raise TypeError("unknown values")
        if finished.chosen is not None:
            TokenizerSpec.from_json(from_record(ChosenTokenizer, finished.chosen).spec)
    except (TypeError, KeyError, UsageError) as error:
        raise PartError(
            f"{show_path(folder)} is a part of another version of shardkit; pack it again"
        ) from error
    advice = f"run the command that packed part {part} again"
    given = _GivenPart(folder, finished, [])
    for journal in sorted(given.work.glob("*.part")):
        receipt = read_receipt(journal)
        if receipt is None:
            raise PartError(f"{show_path(journal)} is damaged; {advice}")
        given.receipts.append(receipt)
    there = {(receipt.split, receipt.shard) for receipt in given.receipts}
    jobs = [(split, n) for split, total in finished.num_shards.items() for n in range(total)]
    own = {job for number, job in enumerate(jobs) if part.has(number)}
    for split, shard in sorted(own ^ there):
        state = "lacks" if (split, shard) in own else "has, and should not have,"
        raise PartError(
            f"{show_path(folder)}, part {part}, {state} shard {split}-{shard:05d}; {advice}"
        )
    for name, size in (item for own in given.receipts for item in own.file_bytes.items()):
        if fault := size_fault(given.stage / name, size):
            raise DataError(f"{show_path(given.stage / name)} {fault}; {advice}")
    return given


def merge_parts(
    folders: Sequence[Path],
    dest: str | Path,
    *,
    overwrite: bool = False,
    progress: bool | None = None,
    staging: str | Path | None = None,
    staging_bytes: str | int | None = None,
) -> PackResult:
    """Do what :func:`shardkit.merge` does with the folders of parts."""
    started = time.perf_counter()
    place = as_place(dest, "the destination")
    with os_errors(f"merging into {show_place(place)}"):
        all_parts = [_read_part(folder) for folder in folders]
        _refuse_unlike(all_parts)
        first = all_parts[0].finished
        options = _options(folders[0], first, overwrite=overwrite, progress=progress)
        for folder in folders:
            refuse_overlap(place, folder)
        if isinstance(place, Path):
            receipts = [receipt for given in all_parts for receipt in given.receipts]
            num_rejects = sum(len(receipt.rejects) for receipt in receipts)
            asked = options, first.recipe, first.listed, num_rejects, started
            if found := merged_before(place.resolve(), *asked):
                return found
        with open_destination(place, folders[0], overwrite, staging, staging_bytes) as destination:
            if before := destination.finished(first.recipe, PackResult):
                return replace(before, was_complete=True)
            destination.prepare(first.recipe)
            return _merge(all_parts, destination, options, started)


def _options(folder: Path, finished: FinishedPart, **own: bool | None) -> PackOptions:
    """Return what a part was told. A tokenizer is no option any more: its file is there.

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


def _refuse_unlike(parts: Sequence[_GivenPart]) -> None:
    """Raise PartError unless they are all parts of one pack, each once."""
    if not parts:
        raise PartError("no parts are given")
    first, there = parts[0].finished, dict[int, Path]()
    spec = first.chosen and first.chosen["spec"]
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
        own = taken.finished
        for what, one, other in (
            ("with other options", own.recipe["options"], first.recipe["options"]),
            ("with other options", own.recipe["corpus"], first.recipe["corpus"]),
            ("with other tokenizers", own.recipe["inputs"], first.recipe["inputs"]),
            ("with other tokenizers", own.chosen and own.chosen["spec"], spec),
            ("of inputs that changed in between", own.listed.seen, first.listed.seen),
        ):
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


def _merge(
    parts: list[_GivenPart], destination: Destination, options: PackOptions, started: float
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
        spec = TokenizerSpec.from_json(chosen.spec)
        path = parts[0].stage / str(spec.file)
        data = read_own(path) if path.exists() else None
        if data is None or not spec.matches(data):
            raise PartError(
                f"{show_path(path)}, the tokenizer, is damaged; pack that part again, with"
                " --overwrite"
            )
        atomic_write(destination.stage / str(spec.file), [data])
    fsync_path(destination.stage)
    end = Conclusion(destination, options, first.recipe, chosen)
    return end.publish(receipts, listed, 0, started)


def _take(taken: _GivenPart, receipt: Receipt, destination: Destination) -> None:
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
