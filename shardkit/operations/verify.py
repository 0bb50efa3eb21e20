"""``verify``: every checksum, and which shard, sample or region is broken."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any, Literal

import xxhash

from shardkit.commit.work_folder import CHANGE_NAME, WORK_NAME
from shardkit.errors import IndexFileError, UsageError
from shardkit.index.manifest import (
    INDEX_NAME,
    index_name,
    is_sealed,
    read_index,
    read_info,
    versions_at,
)
from shardkit.operations.compare import Originals, originals_of
from shardkit.operations.detokenize import spec_of
from shardkit.operations.file_damage import RecordedSums, look_at
from shardkit.operations.split_check import Problem, SplitCheck, VerifyResult, tokenizer_problem
from shardkit.operations.verify_on_ray import check_on_ray
from shardkit.packing.destination import strays
from shardkit.packing.options import check_engine
from shardkit.remote.urls import as_place, show_place
from shardkit.shards.locate import Located, locate_place
from shardkit.system.progress import Progress
from shardkit.system.refusals import os_errors

__all__ = ["Problem", "VerifyResult", "verify"]

CHANGING = (
    "a change of it is under way, or was interrupted, which changed nothing of this version; the"
    " same command ends it; files that are not listed were not looked for"
)


def verify(
    dataset: str | Path,
    against: Any = None,
    *,
    version: int | None = None,
    engine: Literal["local", "ray"] = "local",
    address: str | None = None,
    progress: bool | None = None,
) -> VerifyResult:
    """Check every file, block and sample of a dataset against its checksums.

    Args:
        dataset: its folder, or its URL: then all of it is fetched anew, whatever the cache has,
            and files that it does not name are not looked for.
        against: the original input, to compare every sample with: its path, or the dataset of
            Hugging Face ``datasets`` that was packed, whose rows are written into a temporary
            folder; left undone if the dataset itself is broken.
        version: its number, of a dataset that was changed since it was packed; default: the last.
        engine, address: where shards are checked, as of
            :class:`shardkit.packing.options.PackOptions`; the result is the same. All else is done
            by this process, the comparison, too.

    Returns:
        What was found; damage is not an exception here.

    Raises:
        DatasetMissingError: there is no dataset. IndexFileError: shardkit.json cannot be read.
        CorpusError: ``against`` is not the kind of input that the dataset was packed from.
    """
    check_engine(engine, address, None)
    source = as_place(dataset, "the dataset")
    place = locate_place(source, anew=True, version=version)
    opener = None if against is None else originals_of(place, against)
    splits = place.info.splits.values()
    result = VerifyResult(has_checksums=all(split.has_checksums for split in splits))
    if not is_sealed(read_index(place.folder, place.index)):
        what = "its bytes differ from those written; nothing else can be checked"
        result.problems.append(Problem(place.index, what))
        return result
    with os_errors(f"verifying {show_place(source)}"), Progress("verifying", progress) as bar:
        bar.expect(sum(split.num_rows for split in splits))
        recorded = RecordedSums()
        spec = spec_of(place.info)
        checks = [SplitCheck(place, split, spec, recorded, result, bar) for split in splits]
        for check in checks:  # all of them first: a shard may have been swapped between splits
            check.index()
        if engine == "ray":
            check_on_ray(source, place.info.version, checks, address)
        else:
            for check in checks:
                check.shards()
        if spec is not None and (problem := tokenizer_problem(place.folder, spec)):
            result.problems.append(Problem(*problem))
        found = []
        if place.index == INDEX_NAME:  # what lies beside shards is of the last version
            # Behind a URL only what shardkit.json names is looked at: a web server lists nothing.
            names = os.listdir(place.folder) if isinstance(source, Path) else []
            if (place.folder / WORK_NAME / CHANGE_NAME).exists():
                result.notes.append(CHANGING)
            else:
                found = _look_beside(place, names, result)
    if opener is not None and result.ok:
        with opener(progress) as originals:
            _compare(originals, result, progress)
        if spec is not None and not spec.is_lossless:
            result.notes.append(
                "the tokenizer does not keep all of a text: compared are the ids that it gives"
            )
    what = "looks like a part of this dataset and is not listed in it; remove or rename it"
    result.problems += [Problem(name, what) for name in found]
    return result


def _look_beside(place: Located, names: list[str], result: VerifyResult) -> list[str]:
    """Check the files for other tools; names of those that no version lists."""
    if not names:
        _check_signposts(place, result)
        return []
    last = read_info(place.folder)  # a version may have come meanwhile
    if last.version == place.info.version:
        _check_signposts(place, result)
    listed, is_known = {*last.file_bytes}, True
    for version in versions_at(place.folder, last)[:-1]:
        name = index_name(version)
        try:
            listed |= {name, *read_info(place.folder, version=version).file_bytes}
        except IndexFileError:
            what = "what this older version has cannot be read; restore it, or `shardkit prune`"
            result.problems.append(Problem(name, what))
            is_known = False
        except UsageError:  # it was pruned meanwhile
            is_known = False
    return strays(listed, names) if is_known else []


def _check_signposts(place: Located, result: VerifyResult) -> None:
    """Add what is wrong with the files for other tools."""
    for name, (num_bytes, digest) in place.info.signposts.items():
        what = look_at(place.storage, name, num_bytes, RecordedSums()).what
        if not what:
            result.num_bytes += num_bytes
            data = place.storage.contents(name, num_bytes, copied=True)
            found = xxhash.xxh3_64_intdigest(data)
            what = "" if found == digest else "its bytes differ from those written"
        if what:
            told = f"{what}; other tools may be told wrong things of this dataset"
            result.problems.append(Problem(name, told))


def _compare(originals: Originals, result: VerifyResult, progress: bool | None) -> None:
    """Add what the originals say of a dataset that is whole."""
    with Progress("comparing", progress) as bar:
        bar.expect(result.num_samples)
        found = [Problem(where, what) for where, what in originals.differences(bar)]
    if not originals.num_compared and originals.num_originals:
        what = (
            "has nothing in common with the dataset: none of its"
            f" {originals.num_originals:,} samples is there, and none of the dataset's"
            f" {result.num_samples:,} is here; give what the dataset was packed from"
        )
        found.insert(0, Problem(originals.name, what))
    result.problems += found
    result.is_compared, result.num_compared = True, originals.num_compared
    if originals.has_own_labels:
        result.notes.append("classes are of a file given by --labels, which was not compared")
    if originals.rewritten:
        result.notes.append(
            f"pictures were written anew ({', then '.join(originals.rewritten)}): keys, labels"
            " and all other fields were compared, but not pixels"
        )
