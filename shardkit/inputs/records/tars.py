"""Third-party tars: where they lie, or decompressed first; and class folders inside them.

Folders inside tars (``n01440764/x.JPEG``) are classes as they are on disk, if a tar holds nothing
but images, one a sample, and no labels. What tars of webdataset hold next to images says what
they are of.
"""

from __future__ import annotations

import os
import re
from collections import Counter
from collections.abc import Iterator, Sequence
from collections.abc import Set as AbstractSet
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import Any, NamedTuple, Self

import numpy as np

from shardkit.arrays import Integers
from shardkit.errors import CorpusError, FormatError
from shardkit.images.sniff import HEAD_BYTES, IMAGE_EXTENSIONS, image_field
from shardkit.index.assembling import check_unique_keys
from shardkit.index.manifest import INDEX_NAME
from shardkit.index.rows import RowIndex
from shardkit.inputs.base import Corpus, Run
from shardkit.inputs.files import DOCUMENTS, stem
from shardkit.inputs.folders import split_of
from shardkit.inputs.guards import doubt_names
from shardkit.inputs.lines import plain_copy
from shardkit.inputs.records.packed import DatasetCorpus
from shardkit.samples.sample import SampleBatch, Value, pack_paths
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
from shardkit.tars.samples import plain_path
from shardkit.tars.write_index import tar_splits

TARS_KIND = "tars"
"""The kind of input that a dataset made of third-party tars records."""

_PACKED_ENDING = re.compile(r"\.(tar\.(gz|zst)|tgz|tzst)$", re.IGNORECASE)

_TARS = frozenset({"tar", "tar.gz", "tgz", "tar.zst", "tzst", "tar.bz2", "tar.xz"})
"""Fields of members that are tars themselves."""

_NO_FOLDERS = "the tars hold images in no class folders"

Folder = tuple[bytes, ...]
"""A folder that samples lie in, by its parts."""


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
    found = find_classes(located)
    made = TarFolderCorpus(located, tars, found) if found.names else DatasetCorpus(located, tars)
    made.notes = [found.note] if found.note else []
    return made


# --- class folders ------------------------------------------------------------------------


class TarClasses(NamedTuple):
    """Classes by folders in tars.

    Attributes:
        names: in index order; none if the folders are no classes.
        depth: how many folders all samples share, above those of the classes.
        note: what there is to say: of the classes, or why there are none where one might expect
            some.
        labels: split -> (num_rows,) class of each sample, -1 for a README and the like.
        passed: fields of these -> how many there are.
    """

    names: tuple[bytes, ...]
    depth: int
    note: str
    labels: dict[str, Integers] = {}  # noqa: RUF012 (nobody changes it)
    passed: dict[str, int] = {}  # noqa: RUF012


def find_classes(located: Located) -> TarClasses:
    """Return the classes that folders in third-party tars tell.

    Raises:
        CorpusError: the tars hold nothing but tars.
    """
    if not located.tars:
        return TarClasses((), 0, "")
    info = located.info
    lying: dict[str, list[Folder | None]] = {}
    others: set[str] = set()
    passed: dict[str, int] = {}
    for split_name, split in info.splits.items():
        index = RowIndex(located.storage, info, split)
        held = {field: index.table[:, index.column[f"{field}.size"]] >= 0 for field in info.fields}
        pictures = [own for field, own in held.items() if "." + field in IMAGE_EXTENSIONS]
        is_picture = (np.sum([*held.values()], axis=0) == 1) & (np.sum(pictures, axis=0) == 1)
        keys = [index.name(row)[0] for row in range(split.num_rows)]
        names = (stem(os.fsdecode(key.rpartition(b"/")[2])).lower() for key in keys)
        # A README or the like among the images changes nothing.
        is_sample = is_picture | ~np.fromiter((name in DOCUMENTS for name in names), bool)
        for field, own in held.items():
            others |= {field} if (own & is_sample & ~is_picture).any() else set()
            passed[field] = passed.get(field, 0) + int(np.count_nonzero(own & ~is_picture))
        found = [
            tuple(part for part in key.split(b"/")[:-1] if part not in (b"", b".")) if own else None
            for key, own in zip(keys, is_sample, strict=True)
        ]
        tops = {each[:1] for each in found if each is not None}
        # train.tar may hold train/ alone, next to val.tar.
        cut = len(info.splits) > 1 and len(tops) == 1 and split_of(os.fsdecode(b"".join(*tops)))
        lying[split_name] = [each[1:] if each and cut else each for each in found]
    if others and others <= _TARS:
        raise CorpusError(
            f"{show_path(next(iter(located.tars.values())))} holds tars, not samples:"
            " docs/recipes/records.md, A tar of tars"
        )
    made = classes_of({each for own in lying.values() for each in own if each is not None}, others)
    if not made.names:
        each = "; if each tar is a class: docs/recipes/records.md, A tar for each class"
        is_flat = made.note.endswith(_NO_FOLDERS) and len(located.tars) > 1
        return made._replace(note=made.note + each * is_flat)
    numbers = {name: i for i, name in enumerate(made.names)}
    labels = {
        name: np.array([-1 if f is None else numbers[f[made.depth]] for f in own], np.int64)
        for name, own in lying.items()
    }
    return made._replace(labels=labels, passed=passed)


def classes_of(folders: AbstractSet[Folder], others: AbstractSet[str] = frozenset()) -> TarClasses:
    """Return the classes that folders tell: the first ones that differ, if every sample is a single
    image in one, and they are called neither as splits nor as parts of samples.

    ``others``: fields of samples that are no single image.
    """
    depth = len(os.path.commonprefix([*folders]))  # noqa: RUF071 (of parts, not letters)
    names = tuple(sorted({each[depth] for each in folders if len(each) > depth}, key=os.fsdecode))
    words = [*map(os.fsdecode, names)]
    if (
        len(names) > 1
        and (doubt := doubt_names(words))
        and (any(map(split_of, words)) or not others)
    ):
        return TarClasses((), 0, f"{doubt}: unpack the tars, and pack the folder")
    if others and (len(names) < 2 or "cls" in others):
        return TarClasses((), 0, "")
    if others:
        shown = ", ".join(sorted(others)[:4])
        why = f"folders ({first_few(names)}) are parts of keys: some samples are no image ({shown})"
    elif not names:
        why = _NO_FOLDERS
    elif any(len(each) == depth for each in folders):
        why = f"some images lie in folders ({first_few(names)}), and some beside them"
    else:
        told = f"cls is of {len(names):,} classes, the folders in the tars: {first_few(names)}"
        return TarClasses(names, depth, told)
    return TarClasses((), 0, f"no cls: {why}")


class TarFolderCorpus(DatasetCorpus):
    """Samples with the class that their folder tells, and images named by their content; READMEs
    and the like are passed over. A locator is ``row:class``."""

    kind = "tar folders"

    def __init__(
        self, located: Located, tars: list[str] | None = None, classes: TarClasses | None = None
    ) -> None:
        super().__init__(located, tars)
        self._found = classes
        if classes is not None:
            self.classes = [os.fsdecode(name) for name in classes.names]

    def runs(self, scratch: Path) -> Iterator[Run]:
        found = self._found or find_classes(self._located)
        passed = Counter(self.info.provenance.passed)
        for field, count in found.passed.items():
            passed["." + field.rpartition(".")[2]] += count
        self.ignored.clear()
        self.ignored.update(+passed)
        for run in super().runs(scratch):
            labels = found.labels[run.split]
            rows = [row for row in map(int, run.locators) if labels[row] >= 0]
            if rows:
                locators = [b"%d:%d" % (row, labels[row]) for row in rows]
                yield replace(run.slice(0, len(rows)), locators=locators)

    def read(self, run: Run, scratch: Path) -> SampleBatch:
        pairs = [locator.partition(b":") for locator in run.locators]
        rows = [int(row) for row, _, _ in pairs]
        if not rows:
            return SampleBatch()
        held = self.reader(run.split).samples(rows[0], rows[-1] + 1)
        batch = held.take([row - rows[0] for row in rows])
        # Those of the folder that was put in the tar. Where tars are read as they are, "./" stays,
        # as WebDataset has it.
        batch.keys = [*map(plain_path, batch.keys)]
        batch.paths = [
            pack_paths(key, [path[1:]]) if path.startswith(b"=") else path
            for key, path in zip(batch.keys, batch.paths, strict=True)
        ]
        columns: dict[str, list[Value | None]] = {}
        for name, values in batch.columns.items():
            for i, value in enumerate(values):
                if value is not None:
                    field = image_field(bytes(value[:HEAD_BYTES])) or name
                    columns.setdefault(field, [None] * len(batch))[i] = value
        batch.columns = {**columns, "cls": [label for _, _, label in pairs]}
        return batch


# --- compressed tars ----------------------------------------------------------------------


class PackedTarCorpus(Corpus):
    """Tars of one folder, some of them compressed. Classes are known when they are listed.

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
        self.classes, self.notes = corpus.classes, corpus.notes
        yield from corpus.runs(scratch)
        self.ignored.clear()
        self.ignored.update(corpus.ignored)

    def read(self, run: Run, scratch: Path) -> SampleBatch:
        if self._read is None:
            located = self._unpacked(scratch)
            has_classes = len(run) > 0 and b":" in run.locators[0]
            self._read = TarFolderCorpus(located) if has_classes else DatasetCorpus(located)
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
