"""Files that hold many samples each: rows of tables and arrays, lines, and records."""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from operator import itemgetter
from pathlib import Path
from typing import Any, ClassVar, TypeVar

from shardkit.errors import CorpusError, FormatError, SampleError
from shardkit.images.sniff import HEAD_BYTES, image_field
from shardkit.index.file_names import is_field_name
from shardkit.inputs.class_folders import not_image
from shardkit.inputs.corpus import Claim, Input, Look, Run, Strength
from shardkit.inputs.files import (
    DOCUMENTS,
    FolderListing,
    cut_ending,
    extension,
    input_stamp,
    join,
    stem,
)
from shardkit.inputs.folders import Root, nothing_found, split_roots, walk_named
from shardkit.inputs.guards import ARRAY_LABELS, notes_on_splits, refuse_missing
from shardkit.inputs.lines import plain_copy, plain_name, read_pieces
from shardkit.memory.maps import read_file
from shardkit.samples.sample import SampleBatch, Value, pack_paths
from shardkit.samples.split_names import splits_by_words
from shardkit.system.paths import first_few, show_path
from shardkit.system.refusals import os_errors

RUN_ROWS = 65_536

REJECT = b"!"
"""Begins a locator that holds, in place of a row, why a file is refused from there on."""

Cell = tuple[str, Value, bytes]
"""(field, value, what follows the sample's own name in the path of the file it is restored as)."""

_Seen = TypeVar("_Seen")

Listed = tuple[list[bytes], list[bytes], list[int]]
"""Locators, keys, and bytes of some rows of a file."""


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

    def keys(self, numbers: Sequence[int]) -> list[bytes]:
        """Return the keys of rows; a compressed file's name is without ``.gz``."""
        prefix = os.fsencode(f"{plain_name(self.prefix)}/" if self.prefix else "")
        return [prefix + b"%012d" % number for number in numbers]


class SampleFiles(Input):
    """One file, or a folder of such files, each listed and read by itself. A run's base is the
    file; ``""`` if that is the source."""

    is_one_file = True
    unit: ClassVar[str] = "row"
    """What the number at the end of a key counts."""

    has_card_classes = False
    _files: Sequence[SampleFile] = ()

    def __init__(self, source: Path) -> None:
        super().__init__(source)
        self._passed: dict[str, int] = {}  # as the files were found

    def spec(self) -> dict[str, Any]:
        return {entry: value for entry, value in super().spec().items() if value is not None}

    @classmethod
    def is_wanted(cls, name: str) -> bool:
        """Return True if a file is of this kind, judged by its name."""
        return cut_ending(name)[1] in cls.extensions

    def refuse_folder(self, base: str) -> None:
        """Raise CorpusError if the files of a folder are not what they seem."""

    def listed(self, file: Any, stamp: int, scratch: Path) -> Iterator[Listed]:
        """Return the rows of a file. Raises FormatError, after what lies before the damage."""
        raise NotImplementedError

    def rows(self, run: Run, scratch: Path) -> Iterator[list[Cell] | str]:
        """Return the cells of each row of a run, or why there are none. Raises FormatError."""
        raise NotImplementedError

    def paths_of(self, run: Run) -> Callable[[bytes, list[Cell]], bytes]:
        """Return what makes the encoded paths of a sample from its key and its cells."""
        start = os.fsencode(plain_name(run.base or self.source.name)) + b"/"

        def paths(key: bytes, cells: list[Cell]) -> bytes:
            own = start + key.rpartition(b"/")[2]
            return pack_paths(key, [own + suffix for _, _, suffix in cells])

        return paths

    def numbered(
        self, file: SampleFile, rows: range, num_bytes: int, told: bytes = b""
    ) -> Iterator[Listed]:
        """Yield rows of so many bytes each, whose locators are their numbers and ``told``."""
        for start in range(rows.start, rows.stop, RUN_ROWS):
            part = range(start, min(start + RUN_ROWS, rows.stop))
            yield [b"%d%s" % (row, told) for row in part], file.keys(part), [num_bytes] * len(part)

    def first_good(self, look: Callable[[Path], _Seen | None]) -> tuple[_Seen, Path] | None:
        """Return what ``look`` finds in the first file in which it finds anything, and that file;
        listing says what is wrong with others."""
        for file in self._files:
            path = self._path(file.base)
            with os_errors(f"opening {show_path(path)}"), suppress(FormatError):
                input_stamp(path)
                if (seen := look(path)) is not None:
                    return seen, path
        return None

    def stamp(self, base: str) -> int:
        """Return a file's stamp. Raises FormatError if it is no file."""
        return input_stamp(self._path(base))

    def _path(self, base: str) -> Path:
        return self.source / base if base else self.source

    def find(self) -> list[SampleFile]:
        """Return the files, those of one split together. Count others, and note what is odd."""
        if not self.source.is_dir():
            return [SampleFile("train", "", self.source.name)]
        self.refuse_folder("")  # which is not walked if the folders in it are splits
        found: list[tuple[Root, str]] = []
        for root, folder in walk_named(self.source, self.is_wanted, self._passed):
            self.refuse_folder(folder.base)
            # A name that leads nowhere may have been a folder of them: reading refuses it.
            names = sorted([*folder.names, *folder.lost])
            found += [(root, join(folder.base, name)) for name in names]
        refuse_missing([path for _, path in found], self.source)
        files = in_splits(found, self.source)
        splits = list(dict.fromkeys(file.split for file in files))
        self.has_card_classes = check_card(self.source, splits)
        self.notes += notes_on_splits(splits)
        return files

    def splits(self) -> list[str]:
        return list(dict.fromkeys(file.split for file in self._files))

    def runs(self, scratch: Path) -> Iterator[Run]:
        self.ignored.clear()
        self.ignored.update(self._passed)
        is_empty = True
        for file in self._files:
            path = self._path(file.base)
            with os_errors(f"listing what {show_path(path)} holds"):
                try:
                    stamp = self.stamp(file.base)
                    for locators, keys, sizes in self.listed(file, stamp, scratch):
                        is_empty = False
                        stamps = [stamp] * len(keys)
                        yield Run(file.split, file.base, None, locators, keys, sizes, stamps)
                except FormatError as error:
                    is_empty = False
                    why = REJECT + os.fsencode(str(error).removeprefix(f"{show_path(path)}: "))
                    key = os.fsencode(plain_name(file.prefix or path.name))
                    yield Run(file.split, file.base, None, [why], [key], [0], [0])
        if is_empty:
            raise nothing_found(self.noun, self.source, self.ignored)

    def read(self, run: Run, scratch: Path) -> SampleBatch:
        batch, paths_of = SampleBatch(), self.paths_of(run)
        kept: list[list[Cell]] = []
        with os_errors(f"reading {show_path(self._path(run.base))}"):
            for i, (key, cells) in enumerate(zip(run.keys, self._found(run, scratch), strict=True)):
                if isinstance(cells, str):
                    batch.rejects.append((self.entry_name(run, i), cells))
                    continue
                cells.sort(key=itemgetter(0))
                batch.keys.append(key)
                batch.paths.append(paths_of(key, cells))
                kept.append(cells)
        for i, cells in enumerate(kept):
            for field, value, _ in cells:
                if field not in batch.columns:
                    batch.columns[field] = [None] * len(kept)
                batch.columns[field][i] = value
        return batch

    def _found(self, run: Run, scratch: Path) -> Iterator[list[Cell] | str]:
        """Yield what :meth:`rows` does, or why no more rows can be read."""
        num = 0
        if not len(run):
            return
        try:
            if run.locators[0].startswith(REJECT):
                raise FormatError(os.fsdecode(run.locators[0].removeprefix(REJECT)))
            if self.stamp(run.base) != run.stamps[0]:
                raise FormatError("the file changed while packing")
            for cells in self.rows(run, scratch):
                num += 1
                yield cells
        except FormatError as error:
            why = str(error).removeprefix(f"{show_path(self._path(run.base))}: ")
            yield from [why] * (len(run) - num)

    def entry_name(self, run: Run, i: int) -> str:
        name = run.base or self.source.name
        if run.locators[i].startswith(REJECT):
            return name
        return f"{plain_name(name)} at {self.unit} {int(run.keys[i].rpartition(b'/')[2])}"


class RecordFiles(SampleFiles):
    """Each sample is one piece of a file; a locator is ``offset:size``."""

    def entries(self, file: SampleFile, plain: Path) -> Iterator[tuple[bytes, tuple[int, int]]]:
        """Yield the key of each sample in a file that is not compressed, and (offset, size) of its
        value. Raises FormatError where the file is damaged, after what lies before."""
        raise NotImplementedError

    def cells(self, base: str, key: bytes, value: Value) -> list[Cell]:
        """Return the fields of a sample. Raises SampleError or FormatError."""
        raise NotImplementedError

    def is_packed(self, path: Path) -> bool:
        """Return True if a file must be decompressed."""
        return False

    def plain(self, base: str, stamp: int, scratch: Path) -> Path:
        """Return a file, decompressed if need be."""
        path = self._path(base)
        packed = self.is_packed(path)
        return plain_copy(path, base or path.name, stamp, scratch) if packed else path

    def listed(self, file: SampleFile, stamp: int, scratch: Path) -> Iterator[Listed]:
        made: Listed = [], [], []
        damage = None
        try:
            for key, place in self.entries(file, self.plain(file.base, stamp, scratch)):
                made[0].append(b"%d:%d" % place)
                made[1].append(key)
                made[2].append(place[1])
                if len(made[0]) == RUN_ROWS:
                    yield made
                    made = [], [], []
        except FormatError as error:
            damage = error
        if made[0]:
            yield made
        if damage is not None:
            raise damage

    def rows(self, run: Run, scratch: Path) -> Iterator[list[Cell] | str]:
        places = [(int(start), int(size)) for start, size in (x.split(b":") for x in run.locators)]
        with self.plain(run.base, run.stamps[0], scratch).open("rb", buffering=0) as file:
            for key, value in zip(run.keys, read_pieces(file.fileno(), places), strict=True):
                try:
                    if value is None:
                        raise SampleError("the file changed while packing")
                    yield self.cells(run.base, key, value)
                except (SampleError, FormatError) as error:
                    yield str(error)


# --- files in splits ----------------------------------------------------------------------

_ABOUT = frozenset(
    {"", ".txt", ".csv", ".tsv", ".json", ".yaml", ".yml", ".toml", ".pbtxt", ".md", ".log", ".py"}
)
"""Endings of files that describe others, as TensorFlow Datasets writes ``dataset_info.json``."""

LOCK = "lock.mdb"
"""LMDB's own file next to a database, a table of readers: it holds no data."""


def in_splits(found: Sequence[tuple[Root, str]], source: Path) -> list[SampleFile]:
    """Return files with their splits, which folders at the top tell, or else paths; those of one
    split follow one another."""
    splits = [root.split for root, _ in found]
    if not all(root.base for root, _ in found):
        splits = splits_of_paths([path for _, path in found], source)
    made = [
        SampleFile(split, path, root.key_base(path) if path else "")
        for split, (root, path) in zip(splits, found, strict=True)
    ]
    return sorted(made, key=lambda file: file.split)


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
    paths = [join(base, name) for base, name in listed]
    others = [name for folder in look.folders for name in folder.names if not is_wanted(name)]
    others = [name for name in others if stem(name).lower() not in DOCUMENTS and name != LOCK]
    num_about = sum(extension(name) in _ABOUT for name in others)
    is_few = 10 * (len(others) - num_about) <= len(paths) and num_about <= max(len(paths), 8)
    is_sure = is_few and all(is_own(look.head(path)) for path in paths[:2])
    has_folders = "" in roots and len({base for base, _ in listed}) > 1
    if is_sure and has_folders and {*splits_of_paths(paths, look.source)} == {"train"}:
        raise CorpusError(
            f"{show_path(look.path(paths[0]))} and others lie in folders that are not called as"
            f" splits are: pack each folder apart, or all as one dataset: --corpus {kind.kind}"
        )
    strength = Strength.MARKED if is_sure else Strength.FILES
    return Claim(strength, f"{kind.noun}, each entry a sample", len(paths))


# --- splits of files, by their names as the Hugging Face hub has them ------------------------

# data/train-00000-of-00002.parquet, or plain_text/train/0000.parquet. What only the card of a
# dataset (README.md) tells is left to datasets.load_dataset.

MAX_BYTES = 64 << 20
"""The most bytes of a card, or of a file that describes others."""

_SHARD = re.compile(r"([^/]+?)-[0-9]{5}-of-[0-9]{5}[-.][^/]*")
"""The hub's names for files of a split, whatever the split's name."""


def splits_of_paths(paths: Sequence[str], source: Path) -> list[str]:
    """Return the split of each file of ``source``; ``train`` for all if no path names one.

    What comes before ``-00000-of-00002`` is a split of any name next to others that are called as
    splits usually are: ``unsupervised`` next to ``train`` and ``test``, ``train_sft`` next to
    ``train_gen``.

    Raises:
        CorpusError: some paths name a split other than ``train``, and some name none; or a split
            is there twice, in folders that are datasets of their own.
    """
    splits = [_split_in_path(path) for path in paths]
    folders: dict[str, dict[str, str]] = {}
    for path, split in zip(paths, splits, strict=True):
        if split is not None:
            others = [name for name in path.split("/")[:-1] if not splits_by_words([name])]
            held = folders.setdefault(split, {})
            held.setdefault("/".join(others).removeprefix("data"), path)
            if len(held) > 1:
                raise CorpusError(
                    f"{show_path(source)} holds {first_few([*held.values()])}, which are of one"
                    " split in configurations, datasets of their own: pack the folder of each"
                    " separately, or see docs/recipes/tables.md"
                )
    named = next((p for p, s in zip(paths, splits, strict=True) if s not in (None, "train")), None)
    for i, path in enumerate(paths if named else ()):
        splits[i] = splits[i] or _before_number(path)
        if splits[i] is None:
            raise CorpusError(
                f"{show_path(str(named))} in {show_path(source)} is of a split by its name, and"
                f" {show_path(path)} names none; call the files of each split train-*, test-* and"
                " so on, or put them into folders of those names, or pack them separately"
            )
    return [split or "train" for split in splits]


def _split_in_path(path: str) -> str | None:
    """Return the split among the words of a file's name, or else of the innermost folder that is
    called after one: ``partial-train`` is a part of one that the hub converted."""
    *folders, name = path.split("/")
    if words := splits_by_words([name]):
        numbered = _before_number(path) or ""
        return numbered if numbered.startswith(f"{words[0]}_") else words[0]
    return next((words[0] for own in folders[::-1] if (words := splits_by_words([own]))), None)


def _before_number(path: str) -> str | None:
    shard = _SHARD.fullmatch(path.rpartition("/")[2])
    return shard[1] if shard and is_field_name(shard[1]) else None


def check_card(source: Path, splits: Collection[str]) -> bool:
    """Return True if the card of ``source`` names classes.

    Raises:
        CorpusError: it has several configurations, or not the splits that files are of.
    """
    path = source / "README.md"
    text = read_file(path, MAX_BYTES).decode("utf-8", "replace") if path.is_file() else ""
    found = re.match(r"\ufeff?---[ \r]*\n(.*?\n)---\s", f"{text}\n", re.DOTALL)
    head = "" if found is None else found[1]
    configs = {*re.findall(r"config_name: *['\"]?([^'\"\n]+)", head)}
    told = {*re.findall(r"^ *(?:- +)?split: *['\"]?([\w.]+)", head, re.MULTILINE)}
    what = f"{len(configs)} configurations" if len(configs) > 1 else ""
    if told and not told.issuperset(splits):
        what = f"splits {', '.join(sorted(told))}, and files are of {', '.join(splits)} by name"
    if what:
        raise CorpusError(
            f"README.md of {show_path(source)} has {what}; load it with datasets, as"
            " docs/recipes/tables.md does, or pack the folder of one configuration alone"
        )
    return "class_label" in head


# --- fields of third-party columns and features, by names and by what they hold -------------------


def has_label_name(name: str) -> bool:
    """Return True if the last part of a name says that it holds class numbers."""
    return re.split("[/.]", name)[-1].lower() in ARRAY_LABELS


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
