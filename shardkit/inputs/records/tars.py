"""Third-party tars: where they lie, or decompressed first."""

from __future__ import annotations

import os
import re
from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any, Self

from shardkit.errors import CorpusError, FormatError
from shardkit.images.sniff import IMAGE_EXTENSIONS
from shardkit.index.assembling import check_unique_keys
from shardkit.index.manifest import INDEX_NAME
from shardkit.index.rows import RowIndex
from shardkit.inputs.base import Corpus, Run
from shardkit.inputs.folders import split_of
from shardkit.inputs.lines import plain_copy
from shardkit.inputs.records.packed import DatasetCorpus
from shardkit.samples.sample import SampleBatch
from shardkit.shards.locate import Located, locate
from shardkit.system.paths import first_few, show_path
from shardkit.system.refusals import os_errors
from shardkit.system.stamps import size_and_stamp
from shardkit.tars.find import (
    can_be_unpacked,
    find_tar_names,
    is_compressed,
    is_packed,
    is_tar_source,
)
from shardkit.tars.write_index import tar_splits

TARS_KIND = "tars"
"""The kind of input that a dataset made of third-party tars records."""

_PACKED_ENDING = re.compile(r"\.(tar\.(gz|zst)|tgz|tzst)$", re.IGNORECASE)

_RECIPES = "docs/recipes/records.md"

_TARS = frozenset({"tar", "tar.gz", "tgz", "tar.zst", "tzst", "tar.bz2", "tar.xz"})
"""Fields of members that are tars themselves."""


def tar_corpus(source: Path) -> DatasetCorpus | PackedTarCorpus:
    """Return the corpus of a tar, a folder of tars, or a pattern, as ``convert`` takes them.

    Raises:
        DatasetMissingError: there are none.
    """
    return packed_tars(source) or dataset_corpus(locate(source))


def packed_tars(source: Path, tars: Sequence[str] | None = None) -> PackedTarCorpus | None:
    """Return the corpus of tars of which some are compressed; None if none is.

    ``tars``: names of several, in the folder of ``source``, which is one of them.
    """
    if (source / INDEX_NAME).exists() or not (tars or is_tar_source(source)):
        return None
    folder, names = find_tar_names(source, tars)
    with os_errors(f"reading the tars of {show_path(folder)}"):
        has_packed = any(is_compressed(name) or is_packed(folder / name) for name in names)
    return PackedTarCorpus(folder, names) if has_packed else None


def dataset_corpus(located: Located, tars: list[str] | None = None) -> DatasetCorpus:
    """Return the corpus of a dataset, or of third-party tars where they lie.

    Raises:
        CorpusError: the tars hold nothing but tars.
    """
    made = DatasetCorpus(located, tars)
    if located.tars:
        made.notes = _notes_on_folders(located)
    return made


def _notes_on_folders(located: Located) -> list[str]:
    """Return a line on splits and classes that folders in third-party tars seem to tell: folders
    are parts of keys. Raises CorpusError if the tars hold tars."""
    info, names = located.info, set[str]()
    if {*info.fields} <= _TARS:
        raise CorpusError(
            f"{show_path(next(iter(located.tars.values())))} holds tars, not samples:"
            f" {_RECIPES}, A tar of tars"
        )
    for split in info.splits.values():
        index = RowIndex(located.storage, info, split)
        keys = (os.fsdecode(index.name(row)[0]) for row in range(split.num_rows))
        folders = {tuple(part for part in key.split("/")[:-1] if part != ".") for key in keys}
        depth = len(os.path.commonprefix([*folders]))  # noqa: RUF071 (of parts, not letters)
        below = {each[depth] for each in folders if len(each) > depth}
        names |= below if len(folders) > 1 else set()
    shown = (
        f"folders in the tars ({first_few(sorted(names))})" if names else "no folder in the tars"
    )
    if any(map(split_of, names)):
        return [f"{shown} are no splits: unpack the tars, and pack the folder, or see {_RECIPES}"]
    if "cls" in info.fields or not (names or all("." + f in IMAGE_EXTENSIONS for f in info.fields)):
        return []
    return [f"no cls: {shown} tells a class; if folders or tars are classes, see {_RECIPES}"]


# --- compressed tars ----------------------------------------------------------------------


class PackedTarCorpus(Corpus):
    """Tars of one folder, some of them compressed.

    The scratch folder holds all of them decompressed: a sample is read from its place in a tar.
    """

    kind = "packed tars"
    has_pictures = True
    has_text = True
    keeps_shards = True

    def __init__(self, folder: Path, tars: Sequence[str]) -> None:
        """Raises CorpusError if one is compressed as ``convert`` does not unpack it, or two would
        have one name."""
        self.classes: list[str] | None = None
        self.ignored: dict[str, int] = {}
        self._folder = folder
        self._tars = {name: _PACKED_ENDING.sub(".tar", name) for name in tars}
        self._read: DatasetCorpus | None = None
        if odd := [name for name in tars if is_compressed(name) and not can_be_unpacked(name)]:
            raise CorpusError(
                f"{show_path(folder / odd[0])}: only .tar.gz and .tar.zst are decompressed;"
                " decompress it (bunzip2, unxz ...) first"
            )
        if twice := [name for name, n in Counter(self._tars.values()).items() if n > 1]:
            raise CorpusError(
                f"{show_path(folder)} holds {show_path(twice[0])} twice, compressed and not, or in"
                " two ways; name those that are meant"
            )

    @classmethod
    def from_spec(cls, source: Path, spec: dict[str, Any]) -> Self:
        return cls(source if source.is_dir() else source.parent, spec["tars"])

    def spec(self) -> dict[str, Any]:
        return {"kind": self.kind, "tars": [*self._tars]}

    def stamps(self) -> dict[str, list[int]]:
        """Return size and stamp of each tar, by name. Raises OSError."""
        return {name: [*size_and_stamp(self._folder / name)] for name in self._tars}

    def splits(self) -> list[str]:
        return sorted(set(tar_splits([*self._tars.values()])))

    def runs(self, scratch: Path) -> Iterator[Run]:
        located = self._unpacked(scratch)
        for split in located.info.splits.values():
            check_unique_keys(RowIndex(located.storage, located.info, split))
        corpus = dataset_corpus(located)
        self.notes = corpus.notes
        self.ignored.update(corpus.ignored)
        yield from corpus.runs(scratch)

    def read(self, run: Run, scratch: Path) -> SampleBatch:
        if self._read is None:
            self._read = DatasetCorpus(self._unpacked(scratch))
        return self._read.read(run, scratch)

    def _unpacked(self, scratch: Path) -> Located:
        """Return the tars in the scratch folder, decompressed there if they are not yet."""
        for packed, name in self._tars.items():
            link, path = scratch / "tars" / name, (self._folder / packed).absolute()
            link.parent.mkdir(parents=True, exist_ok=True)
            if link.exists():
                continue
            if is_packed(path):
                try:
                    path = plain_copy(path, packed, size_and_stamp(path)[1], scratch).absolute()
                except FormatError as error:
                    raise FormatError(f"{show_path(path)} {error}") from error
            with suppress(FileExistsError):  # another process may do it at the same time
                link.symlink_to(path)
        return locate(scratch / "tars")
