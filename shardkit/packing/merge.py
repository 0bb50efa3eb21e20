"""``merge``: the dataset that all parts of a pack make together."""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from shardkit.errors import CorpusError, DataError, PartError
from shardkit.index.journal import Receipt, journal_path, read_finished
from shardkit.index.manifest import INDEX_NAME, WORK_NAME, DatasetInfo, read_info
from shardkit.memory.whole_files import map_whole
from shardkit.packing.choose_tokenizer import ChosenTokenizer
from shardkit.packing.conclude import Conclusion
from shardkit.packing.destination import Destination
from shardkit.packing.finished_part import FinishedPart
from shardkit.packing.links import link_or_copy
from shardkit.packing.open_jobs import in_order
from shardkit.packing.options import PackOptions
from shardkit.packing.publish import STAGE_NAME, is_marked
from shardkit.packing.remote_destination import open_destination
from shardkit.packing.result import COMPLETE, PackResult, result_of
from shardkit.packing.shard_tally import ShardTally
from shardkit.packing.up_to_date import made_of
from shardkit.remote.urls import as_place, refuse_overlap, show_place
from shardkit.system.byte_sizes import parse_size
from shardkit.system.durable_files import atomic_write, fsync_path
from shardkit.system.own_files import read_own
from shardkit.system.paths import file_size, show_path, size_fault
from shardkit.system.progress import Progress
from shardkit.system.refusals import os_errors
from shardkit.tokens.spec import TokenizerSpec


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

    def refuse_changed(self) -> None:
        """Raises PartError if it was packed anew since: what was taken may be of both."""
        try:
            now = FinishedPart.read(self.folder)
            is_same = now == self.finished and now.receipts(self.folder) == self.receipts
        except PartError:
            is_same = False
        if not is_same:
            raise PartError(
                f"{show_path(self.folder)} was packed anew while it was merged; run merge again"
                " when that is done"
            )

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
    if (dest / WORK_NAME).exists() or is_marked(dest) or not (dest / INDEX_NAME).is_file():
        return None
    info, first = read_info(dest), parts[0].finished
    receipts = in_order([receipt for taken in parts for receipt in taken.receipts])
    shards = [shard.file_bytes for split in info.splits.values() for shard in split.shards]
    if (
        info.provenance.packed != made_of(first.recipe, first.listed.contents)
        or info.container != options.to
        or shards != [receipt.file_bytes for receipt in receipts]
        or any(file_size(dest / name) != size for name, size in info.file_bytes.items())
        or _sums(dest, info) != _sums_of(parts, receipts)
    ):
        return None
    num_rejects = sum(len(receipt.rejects) for receipt in receipts)
    result = result_of(dest, dest, first.listed, info, num_rejects, 0, seconds=0.0)
    return replace(result, notes=[COMPLETE], was_complete=True)


def _sums(dest: Path, info: DatasetInfo) -> bytes:
    """The checksums of all blocks of all shards."""
    sums = (split.index_file("sums") for split in info.splits.values())
    return b"".join(bytes(map_whole(dest / name)) for name in sums)


def _sums_of(parts: list[_Taken], receipts: list[Receipt]) -> bytes:
    work = {(r.split, r.shard): taken.work for taken in parts for r in taken.receipts}
    shards = ((receipt.split, receipt.shard) for receipt in receipts)
    return b"".join(read_finished(journal_path(work[one], *one)).sums.tobytes() for one in shards)


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
        _take_tokenizer(parts, chosen, destination.stage)
    fsync_path(destination.stage)
    for taken in parts:
        taken.refuse_changed()
    return Conclusion(destination, options, first.recipe, chosen).publish(
        receipts, listed, tally.num_rejects, 0, started
    )


def _take_tokenizer(parts: list[_Taken], chosen: ChosenTokenizer, stage: Path) -> None:
    """That of any part in which it is whole. Raises PartError if it is in none."""
    spec = TokenizerSpec.from_json(chosen.spec)
    for taken in parts:
        path = taken.stage / str(spec.file)
        if path.exists() and spec.matches(data := read_own(path) or b""):
            atomic_write(stage / str(spec.file), [data])
            return
    raise PartError(
        f"{show_path(parts[0].stage / str(spec.file))}, the tokenizer, is damaged in all parts;"
        " pack one of them again, with --overwrite"
    )


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
