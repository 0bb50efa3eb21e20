"""``edit``: another choice of a dataset's samples, other labels or splits, over the same shards."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import xxhash

from shardkit.arguments import integer
from shardkit.arrays import Integers
from shardkit.commit.own_files import remove_own
from shardkit.errors import UsageError
from shardkit.index.manifest import DatasetInfo, read_info
from shardkit.index.rows import RowIndex
from shardkit.packing.finish import with_signposts
from shardkit.packing.listing import TRAIN, VAL
from shardkit.packing.plan import draw, num_val
from shardkit.packing.result import COMPLETE
from shardkit.reading.dataset import Dataset
from shardkit.shards.locate import Located
from shardkit.system.functions import load_function
from shardkit.system.paths import as_path, first_few, show_path
from shardkit.system.refusals import os_errors
from shardkit.versions.choose import (
    Keys,
    ListedKeys,
    Masks,
    first_of_copies,
    having_classes,
    having_keys,
    passing,
    read_keys,
)
from shardkit.versions.labels import LabelTable, Table, class_names, read_table, relabelled
from shardkit.versions.own_rows import OwnRows
from shardkit.versions.reconcile import CLS
from shardkit.versions.revision import Revision, VersionResult

Filter = str | Callable[[dict[str, Any]], Any]


@dataclass(frozen=True)
class EditOptions:
    """What is to change; see :func:`shardkit.edit`. Checked when made, raising UsageError."""

    keep_keys: ListedKeys | None
    drop_keys: ListedKeys | None
    keep_classes: tuple[str, ...]
    drop_classes: tuple[str, ...]
    filter: Filter | None
    drop_duplicates: bool
    labels: LabelTable | None
    val_fraction: float | None
    seed: int
    restore: int | None

    def __post_init__(self) -> None:
        nothing = {"seed": 0, "drop_duplicates": False, "keep_classes": (), "drop_classes": ()}
        asked = [name for name, value in vars(self).items() if value != nothing.get(name)]
        if not asked or asked == ["seed"]:
            raise UsageError("edit: say what is to change; `shardkit edit --help` lists it")
        if self.restore is not None and len(asked) > 1:
            raise UsageError("edit: restore goes with nothing else; edit the version it makes")
        share = self.val_fraction
        if share is not None and not (isinstance(share, int | float) and 0 < share < 1):
            raise UsageError(f"val_fraction is a share between 0 and 1, got {share!r}")
        if self.filter is not None and not (isinstance(self.filter, str) or callable(self.filter)):
            raise UsageError(f"filter is a function, or names one, got {self.filter!r}")

    def words(self) -> str:
        """What is to change, as the history has it."""
        said = [
            *([f"keep {self.keep_keys.words}"] if self.keep_keys is not None else []),
            *([f"drop {self.drop_keys.words}"] if self.drop_keys is not None else []),
            *([f"keep class {first_few(self.keep_classes)}"] if self.keep_classes else []),
            *([f"drop class {first_few(self.drop_classes)}"] if self.drop_classes else []),
            *([f"keep what {_name_of(self.filter)} takes"] if self.filter is not None else []),
            *(["drop duplicates"] if self.drop_duplicates else []),
            *([f"labels of {self.labels.words}"] if self.labels is not None else []),
        ]
        if self.val_fraction is not None:
            said.append(f"split anew, {self.val_fraction:g} to {VAL}, seed {self.seed}")
        if self.restore is not None:
            said.append(f"restore version {self.restore}")
        return f"edit: {'; '.join(said)}"

    def digest(self) -> str:
        """Of what the words do not say in full: keys and labels."""
        keys = [None if k is None else sorted(k.keys) for k in (self.keep_keys, self.drop_keys)]
        table = None if self.labels is None else sorted(self.labels.labels.items())
        said = repr((keys, table, self.keep_classes, self.drop_classes))
        return xxhash.xxh3_128_hexdigest(said.encode(errors="surrogateescape"))


def class_list(name: str, given: object) -> tuple[str, ...]:
    """Names of classes, of the argument of that name. Raises UsageError."""
    listed = [given] if isinstance(given, str) else given
    if not isinstance(listed, list | tuple | set | frozenset):
        raise UsageError(f"{name} must be a list of names of classes, got {given!r}")
    return tuple(map(str, listed))


def _name_of(function: Filter) -> str:
    return (
        function if isinstance(function, str) else getattr(function, "__qualname__", "a function")
    )


NOTHING = "nothing to change: all samples stay, and so do their labels and splits"


def edit(
    dataset: str | Path,
    *,
    keep_keys: Keys | None = None,
    drop_keys: Keys | None = None,
    keep_classes: Sequence[str] = (),
    drop_classes: Sequence[str] = (),
    filter: Filter | None = None,
    drop_duplicates: bool = False,
    labels: Table | None = None,
    val_fraction: float | None = None,
    seed: int = 0,
    restore: int | None = None,
    progress: bool | None = None,
) -> VersionResult:
    """Choose samples, labels or splits anew, as the next version of a dataset.

    Nothing is packed again: the version has a row index of its own over the same shards, so other
    tools that read these see what it leaves out, too. ``shardkit.convert`` makes it compact.

    Args:
        dataset: its folder.
        keep_keys, drop_keys: keys, as a list, or a file with one on each line.
        keep_classes, drop_classes: names of classes; numbers where they have no names. The others
            keep their numbers.
        filter: a function that is given each sample, as ``dataset[i]`` gives it, and says True if
            it is to stay; or where one is: ``"file.py:name"`` or ``"module:name"``.
        drop_duplicates: keep the first only of samples that are equal but for keys and labels.
        labels: key -> class, as a mapping or a .csv file. Those not named keep theirs; known
            classes keep their numbers, and new ones follow.
        val_fraction, seed: put ``train`` and ``val`` together, and draw so much of them as ``val``,
            as ``pack`` does.
        restore: make what this version had the newest.
        progress: as of :class:`shardkit.packing.options.PackOptions`.

    Raises:
        UsageError: the call is wrong, a key or class is not there, or nothing would be left.
        DestinationError: another process changes the dataset.
        DataError: a sample cannot be read, or the disk refused.
    """
    started = time.perf_counter()
    folder = as_path(dataset, "the dataset")
    asked = EditOptions(
        keep_keys=None if keep_keys is None else read_keys(keep_keys),
        drop_keys=None if drop_keys is None else read_keys(drop_keys),
        keep_classes=class_list("keep_classes", keep_classes),
        drop_classes=class_list("drop_classes", drop_classes),
        filter=filter,
        drop_duplicates=drop_duplicates,
        labels=None if labels is None else read_table(labels),
        val_fraction=val_fraction,
        seed=integer("seed", seed, None),
        restore=None if restore is None else integer("restore", restore, 1),
    )
    recipe = {"do": "edit", "what": asked.words(), "digest": asked.digest()}
    with os_errors(f"editing {show_path(folder)}"), Revision(folder, recipe) as revision:
        if revision.finished is not None and asked.filter is None:
            return revision.finished
        if revision.finished is not None:  # by a function that may have been another
            revision.notes.append(f"an interrupted change was ended first: {asked.words()}")
        remove_own(revision.stage)  # which may hold splits of that one
        if asked.filter is None and revision.was_last(recipe):  # a function may be another now
            return _result(revision, asked, revision.place.info, started, notes=[COMPLETE])
        if asked.restore is not None:
            return _restore(revision, asked, recipe, started)
        return _edit(revision, asked, recipe, started, progress)


def _edit(
    revision: Revision,
    asked: EditOptions,
    recipe: dict[str, Any],
    started: float,
    progress: bool | None,
) -> VersionResult:
    place = revision.place
    indexes = {
        name: RowIndex(place.storage, place.info, split)
        for name, split in place.info.splits.items()
    }
    masks = _chosen(asked, place, indexes, progress)
    info, labels = _labels(asked, place.info, indexes)
    parts = {name: [OwnRows(place, name, masks[name], labels.get(name))] for name in indexes}
    if asked.val_fraction is not None:
        parts = _split_anew(parts, asked.val_fraction, asked.seed)
    elif not labels and all(mask.all() for mask in masks.values()):
        return _result(revision, asked, place.info, started, notes=[NOTHING])
    info = replace(info, splits={})
    for name, own in parts.items():
        if any(part.keep is None or part.keep.any() for part in own):
            info.splits[name] = revision.write(name, own, info)
    if not info.splits:
        raise UsageError("edit: no sample would be left")
    if _fingerprints(info) == _fingerprints(place.info) and info.classes == place.info.classes:
        return _result(revision, asked, place.info, started, notes=[NOTHING])
    notes = _notes(place.info, info, labels, masks, indexes)
    result = _result(revision, asked, info, started, notes=notes)
    num_removed = sum(int((~mask).sum()) for mask in masks.values())
    return revision.publish(
        with_signposts(revision.stage, info), recipe, replace(result, num_removed=num_removed)
    )


def _chosen(
    asked: EditOptions, place: Located, indexes: dict[str, RowIndex], progress: bool | None
) -> Masks:
    """What stays."""
    found = {name: np.ones(index.split.num_rows, bool) for name, index in indexes.items()}

    def narrow(masks: Masks, *, drops: bool = False) -> None:
        for name, mask in masks.items():
            found[name] &= ~mask if drops else mask

    if asked.keep_keys is not None:
        narrow(having_keys(indexes, asked.keep_keys.keys))
    if asked.drop_keys is not None:
        narrow(having_keys(indexes, asked.drop_keys.keys), drops=True)
    if asked.keep_classes:
        narrow(having_classes(indexes, place.info, asked.keep_classes))
    if asked.drop_classes:
        narrow(having_classes(indexes, place.info, asked.drop_classes), drops=True)
    if asked.filter is not None:
        function = asked.filter
        if isinstance(function, str):
            function = load_function(function, "filter")
        datasets = {name: Dataset(place.folder, name) for name in indexes}
        narrow(passing(datasets, function, progress))
    if asked.drop_duplicates:
        narrow(first_of_copies(indexes, found))
    return found


def _labels(
    asked: EditOptions, info: DatasetInfo, indexes: dict[str, RowIndex]
) -> tuple[DatasetInfo, dict[str, Integers]]:
    """The dataset's fields and classes, and what its samples have for labels, if those change."""
    if asked.labels is None:
        return info, {}
    table = asked.labels.labels
    classes = class_names(info, [*table.values()])
    fields = sorted({*info.fields, CLS})
    labels = relabelled(indexes, table, classes)
    if CLS in info.fields and all(
        np.array_equal(own, indexes[name].table[:, indexes[name].column[CLS]])
        for name, own in labels.items()
    ):
        return info, {}
    return replace(info, fields=fields, classes=classes), labels


def _split_anew(
    parts: dict[str, list[OwnRows]], val_fraction: float, seed: int
) -> dict[str, list[OwnRows]]:
    """The rows of ``train`` and ``val`` as one split, cut in two as ``pack`` does it: by the keys
    alone, so it is the same wherever they were before.

    Raises:
        UsageError: there is no split ``train``.
    """
    if TRAIN not in parts:
        raise UsageError(f"edit: there is no split {TRAIN!r} to cut, only {', '.join(parts)}")
    pool = [part for name in (TRAIN, VAL) for part in parts.get(name, [])]
    keys = [part.index.table[:, part.index.column["key"]].view(np.uint64) for part in pool]
    kept = [
        np.ones(len(k), bool) if p.keep is None else p.keep for k, p in zip(keys, pool, strict=True)
    ]
    draws = draw(np.concatenate(keys)[np.concatenate(kept)], seed, VAL)
    is_val = np.zeros(len(draws), bool)
    is_val[np.argsort(draws, kind="stable")[: num_val(len(draws), val_fraction)]] = True
    whole = np.zeros(sum(map(len, keys)), bool)
    whole[np.flatnonzero(np.concatenate(kept))[is_val]] = True
    cuts = np.split(whole, np.cumsum([len(k) for k in keys])[:-1])
    found = dict(parts)
    found[TRAIN] = [replace(p, keep=k & ~own) for p, k, own in zip(pool, kept, cuts, strict=True)]
    found[VAL] = [replace(p, keep=own) for p, own in zip(pool, cuts, strict=True)]
    return {name: found[name] for name in (TRAIN, *(n for n in found if n != TRAIN))}


def _restore(
    revision: Revision, asked: EditOptions, recipe: dict[str, Any], started: float
) -> VersionResult:
    before = revision.place.info
    info = read_info(revision.dest, version=asked.restore)
    if info.version == before.version:
        return _result(revision, asked, before, started, notes=[NOTHING])
    revision.stage.mkdir(exist_ok=True)
    info = replace(with_signposts(revision.stage, info), history=[])
    return revision.publish(info, recipe, _result(revision, asked, info, started))


def _notes(
    before: DatasetInfo,
    info: DatasetInfo,
    labels: dict[str, Integers],
    masks: Masks,
    indexes: dict[str, RowIndex],
) -> list[str]:
    notes = []
    if labels:
        notes.append(
            "labels are in the row index alone: tools that read shards by themselves see those of"
            " before; `shardkit convert` writes them anew"
        )
        notes.append("`shardkit unpack` makes the folders that were packed, whatever labels say")
    if not all(mask.all() for mask in masks.values()):
        notes.append(
            "shards still hold what was left out: tools that read them by themselves see it;"
            " `shardkit convert` makes a dataset without it"
        )
    new = [name for name in info.classes or () if name not in (before.classes or ())]
    if labels and new:
        notes.append(f"new classes: {first_few(new)}")
    gone = [name for name in before.splits if name not in info.splits]
    if gone:
        notes.append(f"no sample is left in {', '.join(gone)}")
    if info.classes is not None and CLS in before.fields:
        counts = np.zeros(len(info.classes), np.int64)
        for name, mask in masks.items():
            own = labels.get(name)
            if own is None:
                own = indexes[name].table[:, indexes[name].column[CLS]]
            own = own[mask]
            counts += np.bincount(own[own >= 0], minlength=len(counts))[: len(counts)]
        empty = [name for name, count in zip(info.classes, counts, strict=True) if not count]
        if empty:
            notes.append(f"no sample is left of {first_few(empty)}; class numbers stay")
    return notes


def _result(
    revision: Revision,
    asked: EditOptions,
    info: DatasetInfo,
    started: float,
    *,
    notes: Iterable[str] = (),
) -> VersionResult:
    """Of the version that is there, if it is that, or of the next."""
    was_complete = info is revision.place.info
    return VersionResult.of(
        revision.dest,
        info.version if was_complete else revision.number,
        asked.words(),
        info,
        seconds=time.perf_counter() - started,
        notes=[*(revision.notes if was_complete else ()), *notes],
        was_complete=was_complete,
    )


def _fingerprints(info: DatasetInfo) -> dict[str, str]:
    return {name: split.fingerprint for name, split in info.splits.items()}
