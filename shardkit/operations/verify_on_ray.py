"""Shards checked on a Ray cluster, each by a task, with the result of checking them here."""

from __future__ import annotations

import json
import uuid
from collections.abc import Iterator, Sequence
from functools import lru_cache
from pathlib import Path

from shardkit.errors import UsageError
from shardkit.operations.detokenize import spec_of
from shardkit.operations.file_damage import RecordedSums
from shardkit.operations.split_check import SplitCheck, VerifyResult
from shardkit.packing.engine import Answer, rebuild
from shardkit.packing.ray_engine import RayCluster, Told, answered, here, told_to_tasks
from shardkit.remote.urls import Url, as_place
from shardkit.shards.locate import locate_place
from shardkit.system.paths import show_path
from shardkit.system.progress import Progress


def check_on_ray(
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
        **told_to_tasks(isinstance(place, Url)),
        "run": uuid.uuid4().hex,
        "place": place.text if isinstance(place, Url) else str(place.absolute()),
        "version": None if isinstance(place, Url) else version,  # there is one behind a URL
        "whole": {check.split.name: sorted(check.whole) for check in checks},
    }
    with RayCluster(address, None, check_shard, "verifying") as cluster:
        answers = _answers(cluster, told, checks)
    for check in checks:
        for number, rows in check.ranges():
            _add(check, number, rows, answers[check.split.name, number])


def _answers(
    cluster: RayCluster, told: Told, checks: Sequence[SplitCheck]
) -> dict[tuple[str, int], Answer]:
    """Of each shard, by split and number."""
    found: dict[tuple[str, int], Answer] = {}
    for check in checks:
        for number, rows in check.ranges():
            while len(cluster) >= cluster.most_tasks:
                found.update(_ended(cluster, checks))
            item = {"split": check.split.name, "shard": number, "rows": [rows.start, rows.stop]}
            cluster.begin(told, item, check.split.stem(number))
    while len(cluster):
        found.update(_ended(cluster, checks))
    return found


def _ended(
    cluster: RayCluster, checks: Sequence[SplitCheck]
) -> Iterator[tuple[tuple[str, int], Answer]]:
    for item, answer in cluster.ended(wait=True):
        if "error" in answer:
            raise rebuild(*answer["error"])
        done = answer["done"]
        if not done["problem"]:  # else it is looked at, and counted, once more
            checks[0].bar.add(done["num_samples"], done["num_bytes"])
        yield (item["split"], item["shard"]), answer


def _add(check: SplitCheck, number: int, rows: range, answer: Answer) -> None:
    done = answer["done"]
    if not done["problem"]:
        check.result.num_samples += done["num_samples"]
        check.result.num_bytes += done["num_bytes"]
        return
    before = len(check.result.problems)
    check.shard(number, rows)
    if len(check.result.problems) == before:
        check.add(
            check.split.stem(number),
            f"{answer['node']} finds it broken, and this machine does not: {done['problem']}; the"
            " dataset must be a folder that all machines of the cluster share",
            number,
        )


def check_shard(told: Told, item: Told) -> Answer:
    """A task: one shard, on whichever node."""

    def do() -> Told:
        whole = json.dumps(told["whole"], sort_keys=True)
        check = _opened(told["run"], told["place"], told["version"], whole)[item["split"]]
        check.result = VerifyResult()
        check.shard(item["shard"], range(*item["rows"]))
        problems = check.result.problems
        return {
            "num_samples": check.result.num_samples,
            "num_bytes": check.result.num_bytes,
            "problem": str(problems[0]) if problems else "",
        }

    return answered(told, do)


@lru_cache(maxsize=1)
def _opened(run: str, place: str, version: int | None, whole: str) -> dict[str, SplitCheck]:
    """The splits of a dataset, opened once by each process that checks shards of it."""
    source = as_place(place, "the dataset")
    if isinstance(source, Path) and not source.exists():
        raise UsageError(
            f"{here()} does not see the dataset {show_path(source)}: it must be a folder that all"
            " machines of the cluster share, under the same path"
        )
    located = locate_place(source, anew=True, version=version)
    recorded, result, bar = RecordedSums(), VerifyResult(), Progress("verifying", False)
    checks = {
        split.name: SplitCheck(located, split, spec_of(located.info), recorded, result, bar)
        for split in located.info.splits.values()
    }
    for name, kinds in json.loads(whole).items():
        checks[name].open(set(kinds))
    return checks
