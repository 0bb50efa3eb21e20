"""Splits, runs and batches of folders of files, for all kinds that read such."""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from shardkit.errors import CorpusError
from shardkit.inputs.corpus import Run
from shardkit.inputs.files import (
    FolderListing,
    Reason,
    encode,
    join,
    list_folder,
    stems,
    walk,
)
from shardkit.samples.sample import SPLIT_NAMES, SampleBatch, Value
from shardkit.samples.split_names import LONG_NAMES
from shardkit.system.paths import show_path


@dataclass(frozen=True)
class Root:
    """A split, and the folder (relative to the source) that holds it."""

    split: str
    base: str

    def key_base(self, base: str) -> str:
        """Return ``base`` relative to this root: keys do not repeat the split's name."""
        return base[len(self.base) + 1 :] if self.base else base


def split_roots(top: FolderListing) -> list[Root]:
    """Return the splits of a source whose top folder, packable files only, is ``top``.

    Top-level folders are splits only if every one is named as one and no packable file lies
    beside them: a class folder called ``train`` among others stays a class.
    """
    splits = None if top.names else split_folders(top.folders)
    if splits is None:
        return [Root("train", "")]
    return [Root(split, name) for name, split in sorted(splits.items())]


_BEHIND = re.compile(r"([-_ ]?(?:19|20)[0-9]{2}|[-_ ](?:set|split|data))$")
"""A suffix that a split's name may have."""


def split_of(name: str) -> str | None:
    """Return the split that a folder is called after, whatever its case; None if it is called
    otherwise. A year may follow, as in ``train2017``, or a word, as in ``test_set``. ``training``
    and ``testing``, as ADE20K and KITTI have them, are train and test."""
    word = _BEHIND.sub("", name.lower())
    split = LONG_NAMES.get(word, word)
    return split if split in SPLIT_NAMES else None


def split_folders(names: Sequence[str]) -> dict[str, str] | None:
    """Return folder -> split if every folder is called after one; else None.

    Where ``train2014`` lies beside ``train2017``, splits are called as the folders are.
    """
    found = {name: split_of(name) for name in names}
    splits = {name: split for name, split in found.items() if split is not None}
    if not splits or len(splits) < len(found):
        return None
    return splits if len({*splits.values()}) == len(splits) else {name: name for name in names}


def find_roots(
    source: Path,
    extensions: frozenset[str] | None,
    ignored: dict[str, int],
    is_wanted: Callable[[str], bool] | None = None,
) -> list[Root]:
    """Return :func:`split_roots` of a folder on disk. Files beside splits are counted in
    ``ignored``."""
    beside: dict[str, int] = {}
    top = list_names(source, "", extensions, beside)
    if is_wanted is not None:
        top.drop({name for name in top.names if not is_wanted(name)}, beside)
    roots = split_roots(top)
    if roots[0].base:
        ignored.update(beside)
    return roots


def walk_named(
    source: Path, is_wanted: Callable[[str], bool], ignored: dict[str, int]
) -> Iterator[tuple[Root, FolderListing]]:
    """Yield every folder of each split, with the files whose names are wanted, whatever their
    ending; others are counted in ``ignored``."""
    for root in find_roots(source, None, ignored, is_wanted):
        for folder in walk(source, root.base, None, ignored):
            folder.drop({name for name in folder.names if not is_wanted(name)}, ignored)
            yield root, folder


def list_names(
    source: Path,
    base: str,
    extensions: frozenset[str] | None,
    ignored: dict[str, int] | None = None,
) -> FolderListing:
    """Return one folder's sub-folders and files of these extensions: names only."""
    folder, _ = list_folder(source, base, measure=False)
    folder.keep(extensions, {} if ignored is None else ignored)
    return folder


def run_of(folder: FolderListing, root: Root, label: int | None = None) -> Run:
    """Return the run of a folder of which each file is a sample."""
    return Run(
        split=root.split,
        base=folder.base,
        label=label,
        locators=encode(folder.names),
        keys=encode(stems(folder.names), root.key_base(folder.base)),
        sizes=folder.sizes,
        stamps=folder.stamps,
    )


def batch_of(
    run: Run,
    values: list[Value | Reason],
    fields: list[str] | str,
) -> SampleBatch:
    """Return one sample for each entry that has a value, one reject for each that has a reason.

    ``fields`` names the field of each value, or of all.
    """
    batch = SampleBatch()
    prefix = encode([join(run.base, "")])[0]
    keys, paths = run.keys, [prefix + name for name in run.locators]
    found = [value for value in values if not isinstance(value, Reason)]
    if len(found) < len(values):
        good = [i for i, value in enumerate(values) if not isinstance(value, Reason)]
        for locator, value in zip(run.locators, values, strict=True):
            if isinstance(value, Reason):
                batch.rejects.append((join(run.base, os.fsdecode(locator)), value))
        keys, paths = [keys[i] for i in good], [paths[i] for i in good]
        fields = fields if isinstance(fields, str) else [fields[i] for i in good]
    batch.keys = [*keys]
    # As pack_paths does it for one file a sample, 5 times faster.
    batch.paths = [
        b"+" + path[len(key) :] if path.startswith(key) else b"=" + path
        for key, path in zip(keys, paths, strict=True)
    ]
    if isinstance(fields, str) and keys:
        batch.columns[fields] = [*found]
    elif keys:
        for name in sorted({*fields}):
            own = zip(found, fields, strict=True)
            batch.columns[name] = [v if f == name else None for v, f in own]
    if run.label is not None and keys:
        batch.columns["cls"] = [b"%d" % run.label] * len(keys)
    return batch


def nothing_found(kind: str, source: Path, ignored: dict[str, int]) -> CorpusError:
    """Return the error for a listing that ends without an entry."""
    seen = f", only {count_endings(ignored)} of other kinds" if ignored else ""
    where = show_path(source)
    return CorpusError(f"no {kind} in {where}{seen}; check the path, or choose --corpus")


def count_endings(counts: dict[str, int]) -> str:
    """Return ``12 files (.jpg 10, .png 2)`` for ``{".jpg": 10, ".png": 2}``; the five commonest."""
    total = sum(counts.values())
    common = sorted(counts.items(), key=lambda item: (-item[1], item[0]))
    shown = [f"{ending or 'no extension'} {count}" for ending, count in common[:5]]
    shown += ["..."] if len(common) > 5 else []
    return f"{total:,} file{'s' * (total != 1)} ({', '.join(shown)})"
