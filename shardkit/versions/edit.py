"""``edit``: another choice of a dataset's samples, other labels or splits, over the same shards."""

from __future__ import annotations

from collections.abc import Callable, Sequence
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
from shardkit.operations.duplicates import labels_of
from shardkit.packing.listing import TRAIN, VAL
from shardkit.packing.plan import draw, num_val
from shardkit.packing.result import COMPLETE
from shardkit.reading.dataset import Dataset
from shardkit.shards.locate import Located
from shardkit.system.functions import load_function
from shardkit.system.paths import as_path, first_few, show_path
from shardkit.system.refusals import os_errors
from shardkit.versions import choose
from shardkit.versions.own_rows import OwnRows
from shardkit.versions.reconcile import CLS
from shardkit.versions.revision import Revision, VersionResult

Indexes = dict[str, RowIndex]
Labels = dict[str, Integers]
Filter = str | Callable[[dict[str, Any]], Any]


@dataclass(frozen=True)
class EditOptions:
    """What is to change; see :func:`shardkit.edit`. Checked when made, raising UsageError."""

    keep_keys: choose.ListedKeys | None
    drop_keys: choose.ListedKeys | None
    keep_classes: tuple[str, ...]
    drop_classes: tuple[str, ...]
    filter: Filter | None
    drop_duplicates: bool
    labels: choose.LabelTable | None
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
        """Return what is to change, as the history has it."""
        name = getattr(self.filter, "__qualname__", "a function")
        told = {
            "keep {}": self.keep_keys and self.keep_keys.words,
            "drop {}": self.drop_keys and self.drop_keys.words,
            "keep class {}": first_few(self.keep_classes),
            "drop class {}": first_few(self.drop_classes),
            "keep what {} takes": name if callable(self.filter) else self.filter,
            "drop duplicates": self.drop_duplicates,
            "labels of {}": self.labels and self.labels.words,
            f"split anew, {{:g}} to {VAL}, seed {self.seed}": self.val_fraction,
            "restore version {}": self.restore,
        }
        said = [words.format(value) for words, value in told.items() if value]
        return f"edit: {'; '.join(said)}"

    def digest(self) -> str:
        """Return a checksum of what the words do not say in full: keys and labels."""
        keys = [None if k is None else sorted(k.keys) for k in (self.keep_keys, self.drop_keys)]
        table = None if self.labels is None else sorted(self.labels.labels.items())
        said = repr((keys, table, self.keep_classes, self.drop_classes))
        return xxhash.xxh3_128_hexdigest(said.encode(errors="surrogateescape"))


def class_list(name: str, given: object) -> tuple[str, ...]:
    """Return names of classes, of the argument of that name. Raises UsageError."""
    listed = [given] if isinstance(given, str) else given
    if not isinstance(listed, list | tuple | set | frozenset):
        raise UsageError(f"{name} must be a list of names of classes, got {given!r}")
    return tuple(map(str, listed))


NOTHING = "nothing to change: all samples stay, and so do their labels and splits"


def edit(
    dataset: str | Path,
    *,
    keep_keys: choose.Keys | None = None,
    drop_keys: choose.Keys | None = None,
    keep_classes: Sequence[str] = (),
    drop_classes: Sequence[str] = (),
    filter: Filter | None = None,
    drop_duplicates: bool = False,
    labels: choose.Table | None = None,
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
    folder = as_path(dataset, "the dataset")
    asked = EditOptions(
        keep_keys=None if keep_keys is None else choose.read_keys(keep_keys),
        drop_keys=None if drop_keys is None else choose.read_keys(drop_keys),
        keep_classes=class_list("keep_classes", keep_classes),
        drop_classes=class_list("drop_classes", drop_classes),
        filter=filter,
        drop_duplicates=drop_duplicates,
        labels=None if labels is None else choose.read_table(labels),
        val_fraction=val_fraction,
        seed=integer("seed", seed, None),
        restore=None if restore is None else integer("restore", restore, 1),
    )
    what = asked.words()
    recipe = {"do": "edit", "what": what, "digest": asked.digest()}
    with os_errors(f"editing {show_path(folder)}"), Revision(folder, recipe, what) as revision:
        if revision.finished is not None and asked.filter is None:
            return revision.finished
        if revision.finished is not None:  # by a function that may have been another
            revision.notes.append(f"an interrupted change was ended first: {what}")
        remove_own(revision.stage)  # which may hold splits of that one
        if asked.filter is None and revision.was_last():  # a function may be another now
            return revision.unchanged(COMPLETE)
        if asked.restore is None:
            return _edit(revision, asked, progress)
        info = read_info(revision.dest, version=asked.restore)
        if info.version == revision.place.info.version:
            return revision.unchanged(NOTHING)
        return revision.publish(info)


def _edit(revision: Revision, asked: EditOptions, progress: bool | None) -> VersionResult:
    place = revision.place
    indexes = {name: place.row_index(name) for name in place.info.splits}
    masks = _chosen(asked, place, indexes, progress)
    info, labels = _labels(asked, place.info, indexes)
    parts = {name: [OwnRows(place, name, masks[name], labels.get(name))] for name in indexes}
    if asked.val_fraction is not None:
        parts = _split_anew(parts, asked.val_fraction, asked.seed)
    elif not labels and all(mask.all() for mask in masks.values()):
        return revision.unchanged(NOTHING)
    info = replace(info, splits={})
    for name, own in parts.items():
        if any(part.keep is None or part.keep.any() for part in own):
            info.splits[name] = revision.write(name, own, info)
    if not info.splits:
        raise UsageError("edit: no sample would be left")
    if (info.fingerprints, info.classes) == (place.info.fingerprints, place.info.classes):
        return revision.unchanged(NOTHING)
    num_removed = sum(int((~mask).sum()) for mask in masks.values())
    notes = _notes(place.info, info, labels, masks, indexes)
    return revision.publish(info, notes, num_removed=num_removed)


def _chosen(
    asked: EditOptions, place: Located, indexes: Indexes, progress: bool | None
) -> choose.Masks:
    """Return what stays."""
    found = {name: np.ones(index.split.num_rows, bool) for name, index in indexes.items()}

    def narrow(masks: choose.Masks, *, drops: bool = False) -> None:
        for name, mask in masks.items():
            found[name] &= ~mask if drops else mask

    for keys, drops in ((asked.keep_keys, False), (asked.drop_keys, True)):
        if keys is not None:
            narrow(choose.having_keys(indexes, keys.keys), drops=drops)
    for names, drops in ((asked.keep_classes, False), (asked.drop_classes, True)):
        if names:
            narrow(choose.having_classes(indexes, place.info, names), drops=drops)
    if asked.filter is not None:
        function = asked.filter
        if isinstance(function, str):
            function = load_function(function, "filter")
        datasets = {name: Dataset(place.folder, name) for name in indexes}
        narrow(choose.passing(datasets, function, progress))
    if asked.drop_duplicates:
        narrow(choose.first_of_copies(indexes, found))
    return found


def _labels(asked: EditOptions, info: DatasetInfo, indexes: Indexes) -> tuple[DatasetInfo, Labels]:
    """Return fields and classes, and what samples have for labels, if those change."""
    if asked.labels is None:
        return info, {}
    table = asked.labels.labels
    classes = choose.class_names(info, [*table.values()])
    fields = sorted({*info.fields, CLS})
    labels = choose.relabelled(indexes, table, classes)
    same = (np.array_equal(own, labels_of(indexes[name])) for name, own in labels.items())
    if CLS in info.fields and all(same):
        return info, {}
    return replace(info, fields=fields, classes=classes), labels


def _split_anew(
    parts: dict[str, list[OwnRows]], val_fraction: float, seed: int
) -> dict[str, list[OwnRows]]:
    """Cut the rows of ``train`` and ``val`` in two as ``pack`` does it: by the keys alone, so it is
    the same wherever they were before.

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


def _notes(
    before: DatasetInfo, info: DatasetInfo, labels: Labels, masks: choose.Masks, indexes: Indexes
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
    if gone := [name for name in before.splits if name not in info.splits]:
        notes.append(f"no sample is left in {', '.join(gone)}")
    if info.classes is not None and CLS in before.fields:
        left = set[int]()
        for name, mask in masks.items():
            left |= {*np.unique(labels.get(name, labels_of(indexes[name]))[mask]).tolist()}
        if empty := [name for number, name in enumerate(info.classes) if number not in left]:
            notes.append(f"no sample is left of {first_few(empty)}; class numbers stay")
    return notes
