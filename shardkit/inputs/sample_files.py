"""Third-party files that hold many samples each: rows of arrays, or records found by offset."""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar, Self

from shardkit.errors import CorpusError, FormatError, SampleError
from shardkit.images.sniff import HEAD_BYTES, image_field
from shardkit.index.manifest import is_field_name
from shardkit.inputs.base import Input, Run
from shardkit.inputs.files import DOCUMENTS, FolderListing, extension, input_stamp, join, stem
from shardkit.inputs.folders import Root, nothing_found, split_roots, walk_named
from shardkit.inputs.guards import notes_on_splits
from shardkit.inputs.images import not_image
from shardkit.inputs.lines import Pieces, read_pieces
from shardkit.inputs.look import Claim, Look, Strength
from shardkit.samples.sample import SampleBatch, Value, pack_paths
from shardkit.samples.split_names import mixed_names, splits_by_words
from shardkit.system.paths import first_few, show_path
from shardkit.system.refusals import os_errors
from shardkit.system.stamps import stamp_of_open

RUN_ENTRIES = 65_536

_REJECT = b"!"
"""Begins a locator that holds, in place of offsets, why nothing is read from there on."""


@dataclass(frozen=True)
class SampleFile:
    """A file of many samples.

    Attributes:
        base: its path, relative to the source; ``""`` if it is the source.
        prefix: what keys begin with, where keys are numbers.
    """

    split: str
    base: str
    prefix: str = ""


class SampleFiles(Input):
    """Files of many samples, each listed and read by itself."""

    is_one_file = True
    kept: ClassVar[Mapping[str, str]] = {}
    """Entries of :meth:`spec` -> attributes, those that reading needs."""

    _files: Sequence[SampleFile] = ()

    def __init__(self, source: Path) -> None:
        self.source = source
        self.classes: list[str] | None = None
        self.ignored: dict[str, int] = {}
        self.notes: list[str] = []
        self._ignored: dict[str, int] = {}  # as the files were found

    @classmethod
    def from_spec(cls, source: Path, spec: dict[str, Any]) -> Self:
        made = cls.__new__(cls)
        SampleFiles.__init__(made, source)
        for entry, name in cls.kept.items():
            setattr(made, name, spec.get(entry))
        return made

    def spec(self) -> dict[str, Any]:
        held = {entry: getattr(self, name) for entry, name in self.kept.items()}
        return {"kind": self.kind} | {e: value for e, value in held.items() if value is not None}

    def _runs_of(self, file: Any, scratch: Path) -> Iterator[Run]:
        raise NotImplementedError

    def _path(self, base: str) -> Path:
        return self.source / base if base else self.source

    def _find(self, is_wanted: Callable[[str], bool]) -> list[SampleFile]:
        """Return the files of these names, counting others; or the source itself, if it is one."""
        if not self.source.is_dir():
            return [SampleFile("train", "", self.source.name)]
        found = [
            (root, join(folder.base, name))
            for root, folder in walk_named(self.source, is_wanted, self._ignored)
            # A name that leads nowhere may have been a folder of them: reading refuses it.
            for name in sorted([*folder.names, *folder.lost])
        ]
        return in_splits(found, "")

    def _notes_on_names(self) -> list[str]:
        """Return what the names of the files say of splits, and is not as one might expect."""
        splits, paths = self.splits(), [file.base for file in self._files]
        return notes_on_splits(splits) + (mixed_names(paths) if splits == ["train"] else [])

    def splits(self) -> list[str]:
        return list(dict.fromkeys(file.split for file in self._files))

    def runs(self, scratch: Path) -> Iterator[Run]:
        self.ignored.clear()
        self.ignored.update(self._ignored)
        found = False
        for file in self._files:
            for run in self._runs_of(file, scratch):
                found = True
                yield run
        if not found:
            raise nothing_found(self.noun, self.source, self.ignored)


class RecordFiles(SampleFiles):
    """A locator is ``offset:size``."""

    def _entries(self, file: SampleFile, path: Path) -> Iterator[tuple[bytes, tuple[int, int]]]:
        """Yield the key of each sample in a file that is not compressed, and (offset, size) of its
        value. Raises FormatError where the file is damaged, after what lies before."""
        raise NotImplementedError

    def _sample(self, name: str, key: bytes, value: Value) -> list[tuple[str, bytes, Value]]:
        """Return (field, path, value) of a sample, without a path of what never was a file. Raises
        SampleError or FormatError.

        ``name``: of the file, relative to the source.
        """
        raise NotImplementedError

    def _at(self, name: str, key: bytes) -> str:
        """Return what an entry of a file is called in messages."""
        raise NotImplementedError

    def _plain(self, base: str, stamp: int, scratch: Path) -> Path:
        """Return a file, decompressed if need be."""
        return self._path(base)

    def _runs_of(self, file: SampleFile, scratch: Path) -> Iterator[Run]:
        path, reason, run = self._path(file.base), "", Run(file.split, file.base)
        with os_errors(f"listing {show_path(path)}"):
            try:
                stamp = input_stamp(path)
                for key, place in self._entries(file, self._plain(file.base, stamp, scratch)):
                    run.keys.append(key)
                    run.locators.append(b"%d:%d" % place)
                    run.sizes.append(place[1])
                    run.stamps.append(stamp)
                    if len(run) == RUN_ENTRIES:
                        yield run
                        run = Run(file.split, file.base)
            except FormatError as error:
                reason = str(error).removeprefix(f"{show_path(path)}: ")
            if len(run):
                yield run
            if reason:
                key, locator = os.fsencode(file.base or path.name), _REJECT + os.fsencode(reason)
                yield Run(file.split, file.base, None, [locator], [key], [0], [0])

    def read(self, run: Run, scratch: Path) -> SampleBatch:
        batch, rows = SampleBatch(), []
        name = run.base or self.source.name
        if run.locators and run.locators[0].startswith(_REJECT):
            return SampleBatch(rejects=[(name, os.fsdecode(run.locators[0].removeprefix(_REJECT)))])
        pairs = [locator.partition(b":") for locator in run.locators]
        values = self._values(run, [(int(start), int(size)) for start, _, size in pairs], scratch)
        for key in run.keys:
            try:
                if (value := next(values, None)) is None:
                    raise SampleError("the file changed or vanished while packing")
                sample = sorted(self._sample(name, key, value), key=lambda each: each[0])
            except (SampleError, FormatError) as error:
                batch.rejects.append((self._at(name, key), str(error)))
                continue
            rows.append({field: value for field, _, value in sample})
            batch.keys.append(key)
            batch.paths.append(pack_paths(key, [path for _, path, _ in sample if path]))
        names = sorted({name for row in rows for name in row})
        batch.columns = {name: [row.get(name) for row in rows] for name in names}
        return batch

    def _values(self, run: Run, places: Pieces, scratch: Path) -> Iterator[Value | None]:
        """Yield the value at each place; none if the file changed since it was listed."""
        path, stamp = self._path(run.base), run.stamps[0] if run.stamps else 0
        with os_errors(f"reading {show_path(path)}"), suppress(FileNotFoundError):
            plain = self._plain(run.base, stamp, scratch)
            with plain.open("rb", buffering=0) as file:
                if plain != path or stamp_of_open(file.fileno(), path) == stamp:
                    yield from read_pieces(file.fileno(), places)

    def entry_name(self, run: Run, i: int) -> str:
        name = run.base or self.source.name
        return name if run.locators[i].startswith(_REJECT) else self._at(name, run.keys[i])


# --- files in splits ----------------------------------------------------------------------

_ABOUT = frozenset(
    {"", ".txt", ".csv", ".tsv", ".json", ".yaml", ".yml", ".toml", ".pbtxt", ".md", ".log", ".py"}
)
"""Endings of files that describe others, as TensorFlow Datasets writes ``dataset_info.json``."""

LOCK = "lock.mdb"
"""LMDB's own file next to a database, a table of readers: it holds no data."""


def in_splits(found: Sequence[tuple[Root, str]], source_name: str) -> list[SampleFile]:
    """Return files with their splits, which folders tell, or else words of all paths; those of one
    split follow one another."""
    told = splits_by_words([path for _, path in found])
    files = []
    for i, (root, path) in enumerate(found):
        split = root.split if root.base or told is None else told[i]
        files.append(SampleFile(split, path, root.key_base(path or source_name)))
    order = list(dict.fromkeys(file.split for file in files))
    return sorted(files, key=lambda file: order.index(file.split))


def claim_files(
    look: Look, kind: type[Input], is_wanted: Callable[[str], Any], is_own: Callable[[bytes], bool]
) -> Claim | None:
    """Return the claim of a kind on files with names of its own.

    It is sure if the first files begin as they should, and hardly any others lie next to them but
    some that describe them.

    Args:
        is_wanted: judges a file by its name. is_own: judges it by its first bytes.

    Raises:
        CorpusError: they lie in several folders that are no splits.
    """
    listed = [(f.base, name) for f in look.folders for name in f.names if is_wanted(name)]
    if not listed:
        return None
    names = [name for base, name in listed if not base]
    roots = {root.base: root for root in split_roots(FolderListing("", look.top.folders, names))}
    found = [(roots.get("") or roots[b.partition("/")[0]], join(b, name)) for b, name in listed]
    files = in_splits(found, look.source.name)
    paths = [file.base for file in files]
    others = [name for folder in look.folders for name in folder.names if not is_wanted(name)]
    others = [name for name in others if stem(name).lower() not in DOCUMENTS and name != LOCK]
    num_about = sum(extension(name) in _ABOUT for name in others)
    is_few = 10 * (len(others) - num_about) <= len(paths) and num_about <= max(len(paths), 8)
    is_sure = is_few and all(is_own(look.head(path)) for path in paths[:2])
    num_folders = len({path.rpartition("/")[0] for path in paths})
    if is_sure and num_folders > 1 and {file.split for file in files} == {"train"}:
        raise CorpusError(
            f"{show_path(look.path(paths[0]))} and others lie in folders that are not called as"
            f" splits are: pack each folder apart, or all as one dataset: --corpus {kind.kind}"
        )
    strength = Strength.MARKED if is_sure else Strength.FILES
    return Claim(strength, f"{kind.noun}, each entry a sample", len(paths))


# --- fields -------------------------------------------------------------------------------


_LABELS = frozenset({"label", "labels", "y", "target", "targets", "cls", "class"})


def has_label_name(name: str) -> bool:
    """Return True if the last part of a name says that it holds class numbers."""
    return re.split("[/.]", name)[-1].lower() in _LABELS


def looks_like_label(name: str) -> bool:
    """Return True if people who see a name expect labels: ``fine_labels``, ``y``."""
    words = re.split("[^a-z]+", name.lower())
    return words == ["y"] or not (_LABELS - {"y"} | {"category", "categories"}).isdisjoint(words)


def notes_on_labels(others: Sequence[str]) -> list[str]:
    """Return a line on columns that look like labels, and are not taken for them."""
    if not others:
        return []
    return [
        f"{first_few(sorted(others))}: fields of their own, though called as labels are: cls is the"
        " only column of single whole numbers from 0 that is called label, y or target"
    ]


def field_of(name: str, what: str, is_only_picture: bool = False) -> str:
    """Return the field of what a file calls ``name``: ``image/encoded`` and ``bin`` give
    ``image.encoded.bin``. That of ``picture`` lacks its ending, which depends on the image.

    Raises:
        CorpusError: the name cannot name a field.
    """
    if what == "cls" or (what == "txt" and name.lower() in ("text", "txt")):
        return what
    if what == "picture" and is_only_picture:
        return ""
    stem = re.sub(r"[^a-z0-9_.-]+", "_", name.lower().strip("/").replace("/", ".")).lstrip(".-")
    field = f"{stem}.{'jpg' if what == 'picture' else what}"
    if not stem or not is_field_name(field):
        raise CorpusError(
            f"{name!r} cannot name a field ({field!r}: at most 64 of a-z 0-9 _ . -); rename it"
        )
    return field.removesuffix("jpg") if what == "picture" else field


def refuse_equal_fields(fields: Mapping[str, str], where: str) -> None:
    """Raise CorpusError if two names, the keys, have one field."""
    owners: dict[str, str] = {}
    for name, field in fields.items():
        if (other := owners.setdefault(field, name)) != name:
            raise CorpusError(
                f"{where}: {other!r} and {name!r} would both be the field {field}; rename one"
            )


# --- byte strings whose contents nothing declares -----------------------------------------

PICTURE, TEXT, BYTES = "picture", "txt", "bin"
"""Contents of byte strings."""

_CONTROLS = frozenset(range(32)) - {*b"\t\n\r\f"} | {127}
"""Characters that no text has."""


def what_holds(values: Sequence[bytes]) -> str:
    """Return what all of some byte strings are: :data:`PICTURE`, :data:`TEXT` or :data:`BYTES`.
    Empty ones may be any of these."""
    held = [value for value in values if value]
    if held and all(image_field(value[:HEAD_BYTES]) for value in held):
        return PICTURE
    return TEXT if all(map(is_text, held)) else BYTES


def is_text(value: Value) -> bool:
    """Return True if bytes are UTF-8 without control characters."""
    try:
        return _CONTROLS.isdisjoint(map(ord, set(str(value, "utf-8"))))
    except UnicodeDecodeError:
        return False


def require_picture(value: Value) -> str:
    """Return the field of an image. Raises SampleError if it is none."""
    found = image_field(bytes(value[:HEAD_BYTES]))
    if found is None:
        raise SampleError(f"holds pictures in the first records, and here {not_image(value)}")
    return found
