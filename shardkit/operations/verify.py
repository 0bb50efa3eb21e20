"""``verify``: every checksum, and which shard, sample or region is broken."""

from __future__ import annotations

import json
import os
import uuid
from collections.abc import Sequence
from functools import lru_cache
from pathlib import Path
from typing import Any, Literal

from shardkit.commit.work_folder import CHANGE_NAME, WORK_NAME
from shardkit.errors import IndexFileError, UsageError
from shardkit.index import file_names, manifest
from shardkit.index.file_names import INDEX_NAME
from shardkit.index.manifest import versions_at
from shardkit.operations.compare import Originals, originals_of
from shardkit.operations.file_damage import RecordedSums, fault_of
from shardkit.operations.split_check import Problem, SplitCheck, VerifyResult
from shardkit.packing import ray_engine
from shardkit.packing.destination import strays
from shardkit.packing.engine import Answer, rebuild
from shardkit.packing.options import check_engine
from shardkit.remote.urls import Url, as_place, show_place
from shardkit.shards.locate import Located, locate_place
from shardkit.system.paths import show_path
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
    if not manifest.is_sealed(manifest.read_index(place.folder, place.index)):
        what = "its bytes differ from those written; nothing else can be checked"
        result.problems.append(Problem(place.index, what))
        return result
    with os_errors(f"verifying {show_place(source)}"), Progress("verifying", progress) as bar:
        bar.expect(sum(split.num_rows for split in splits))
        checks = _checks(place, result, bar)
        for check in checks:  # all of them first: a shard may have been swapped between splits
            check.index()
        if engine == "ray":
            _check_on_ray(source, place.info.version, checks, address)
        else:
            for check in checks:
                for number in range(len(check.split.shards)):
                    check.shard(number)
        spec = place.info.tokenizer
        if spec is not None and spec.file is not None:
            digest, lost = int(spec.xxh3, 16), "ids may be decoded wrongly, or not at all"
            if what := fault_of(place.storage, spec.file, spec.num_bytes, digest):
                result.problems.append(Problem(spec.file, f"{what}; {lost}"))
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
    # A version may have come meanwhile.
    last = manifest.read_info(place.folder) if names else place.info
    if last.version == place.info.version:
        for name, (num_bytes, digest) in place.info.signposts.items():
            lost = "other tools may be told wrong things of this dataset"
            if what := fault_of(place.storage, name, num_bytes, digest):
                result.problems.append(Problem(name, f"{what}; {lost}"))
            else:
                result.num_bytes += num_bytes
    if not names:
        return []
    listed, is_known = {*last.file_bytes}, True
    for version in versions_at(place.folder, last)[:-1]:
        name = file_names.index_name(version)
        try:
            listed |= {name, *manifest.read_info(place.folder, version=version).file_bytes}
        except IndexFileError:
            what = "what this older version has cannot be read; restore it, or `shardkit prune`"
            result.problems.append(Problem(name, what))
            is_known = False
        except UsageError:  # it was pruned meanwhile
            is_known = False
    return strays(listed, names) if is_known else []


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


def _checks(place: Located, result: VerifyResult, bar: Progress) -> list[SplitCheck]:
    recorded, splits = RecordedSums(), place.info.splits.values()
    return [SplitCheck(place, split, recorded, result, bar) for split in splits]


# --- on a Ray cluster, a task a shard -----------------------------------------------------


def _check_on_ray(
    place: Path | Url, version: int, checks: Sequence[SplitCheck], address: str | None
) -> None:
    """Check all shards of splits whose index was checked, and add what is found to their result.

    What a node finds wrong is looked at here once more: so it is told in the same words as without
    a cluster, and what is wrong with a node, or with what it sees, is not told of the dataset.

    Raises:
        UsageError: a node does not see the dataset. DataError: as of ``verify``, or a task could
            not be brought to an end.
    """
    told = {
        **ray_engine.told_to_tasks(isinstance(place, Url)),
        "run": uuid.uuid4().hex,
        "place": place.text if isinstance(place, Url) else str(place.absolute()),
        "version": None if isinstance(place, Url) else version,  # there is one behind a URL
        "whole": [sorted(check.whole) for check in checks],
    }
    jobs = [(i, n) for i, check in enumerate(checks) for n in range(len(check.split.shards))]
    answers: dict[tuple[int, int], Answer] = {}
    left = [*reversed(jobs)]
    with ray_engine.RayCluster(address, None, check_shard, "verifying") as cluster:
        while left or len(cluster):
            while left and len(cluster) < cluster.most_tasks:
                split, shard = left.pop()
                item = {"split": split, "shard": shard}
                cluster.begin(told, item, checks[split].split.stem(shard))
            for item, answer in cluster.ended(wait=True):
                if "error" in answer:
                    raise rebuild(*answer["error"])
                answers[item["split"], item["shard"]] = answer
                done = answer["done"]
                if not done["problem"]:  # else it is looked at, and counted, once more
                    checks[0].bar.add(done["num_samples"], done["num_bytes"])
    for split, shard in jobs:
        check, answer = checks[split], answers[split, shard]
        done = answer["done"]
        if not done["problem"]:
            check.result.num_samples += done["num_samples"]
            check.result.num_bytes += done["num_bytes"]
            continue
        before = len(check.result.problems)
        check.shard(shard)
        if len(check.result.problems) == before:
            what = (
                f"{answer['node']} finds it broken, and this machine does not: {done['problem']};"
                " the dataset must be a folder that all machines of the cluster share"
            )
            check.add(check.split.stem(shard), what, shard)


def check_shard(told: ray_engine.Told, item: ray_engine.Told) -> Answer:
    """Check one shard: a task, on whichever node."""

    def do() -> ray_engine.Told:
        opened = _opened(told["run"], told["place"], told["version"], json.dumps(told["whole"]))
        check = opened[item["split"]]
        check.result = VerifyResult()
        check.shard(item["shard"])
        problems = check.result.problems
        return {
            "num_samples": check.result.num_samples,
            "num_bytes": check.result.num_bytes,
            "problem": str(problems[0]) if problems else "",
        }

    return ray_engine.answered(told, do)


@lru_cache(maxsize=1)
def _opened(run: str, place: str, version: int | None, whole: str) -> list[SplitCheck]:
    """Open the splits of a dataset, once in each process that checks shards of it."""
    source = as_place(place, "the dataset")
    if isinstance(source, Path) and not source.exists():
        raise UsageError(
            f"{ray_engine.here()} does not see the dataset {show_path(source)}: it must be a"
            " folder that all machines of the cluster share, under the same path"
        )
    located = locate_place(source, anew=True, version=version)
    checks = _checks(located, VerifyResult(), Progress("verifying", False))
    for check, kinds in zip(checks, json.loads(whole), strict=True):
        check.open({*kinds})
    return checks
