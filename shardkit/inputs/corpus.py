"""The seam between what can be packed and the packer.

A corpus lists its entries cheaply, in one fixed order, as *runs*, and later, perhaps in another
process, turns a run into samples. Adding a kind of input is one class derived from
:class:`Input` and one line in :mod:`shardkit.inputs.detection`.
"""

from __future__ import annotations

import os
import stat
from collections import Counter
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from enum import IntEnum
from functools import cached_property
from itertools import islice
from pathlib import Path
from typing import Any, ClassVar, Protocol, Self

from shardkit.errors import StorageError
from shardkit.index.journal import Receipt
from shardkit.inputs.files import (
    DOCUMENTS,
    FolderListing,
    cut_ending,
    list_folder,
    stem,
    walk,
)
from shardkit.samples.sample import SampleBatch

NO_SAMPLE = "inputs of which fn made no sample"
"""The name under which inputs of a function that made no sample are counted."""


@dataclass
class Run:
    """Consecutive entries that share a folder (or a file) and a label.

    One entry becomes one sample, or one reject. The packer cuts and reorders runs entry by entry.

    Attributes:
        split: the split they belong to.
        base: folder or file the locators are relative to, itself relative to the source
            (``""`` is the source; bytes that are not UTF-8 as surrogate escapes).
        label: class index of all of them, or None.
        locators: one an entry: bytes without NUL that only the corpus itself interprets.
        keys: one an entry: the sample's key, unique within the split, bytes without NUL.
        sizes: input bytes of each entry; the plan cuts shards by their sum.
        stamps: a number an entry that changes when its input does: :mod:`shardkit.system.stamps`.
    """

    split: str
    base: str
    label: int | None = None
    locators: list[bytes] = field(default_factory=list)
    keys: list[bytes] = field(default_factory=list)
    sizes: list[int] = field(default_factory=list)
    stamps: list[int] = field(default_factory=list)

    def __len__(self) -> int:
        return len(self.locators)

    def slice(self, start: int, stop: int) -> Run:
        """Return entries [start, stop)."""
        if start <= 0 and stop >= len(self):
            return self
        return self._with(lambda held: held[start:stop])

    def take(self, entries: Sequence[int]) -> Run:
        """Return these entries, in that order."""
        return self._with(lambda held: [held[i] for i in entries])

    def _with(self, choose: Callable[[list[Any]], list[Any]]) -> Run:
        lists: list[list[Any]] = [self.locators, self.keys, self.sizes, self.stamps]
        return Run(self.split, self.base, self.label, *map(choose, lists))


def join(runs: Sequence[Run]) -> Run:
    """Return one run of the entries of several that share all else."""
    first, *others = runs
    made = first.slice(0, 0) if others else first
    for run in runs if others else ():
        for name in ("locators", "keys", "sizes", "stamps"):
            getattr(made, name).extend(getattr(run, name))
    return made


# --- a bounded look at a source: names in a few folders and the first bytes of a few files --------

# Kinds of input decide by it whether a source is theirs. It opens nothing but regular files, so
# FIFOs and devices cannot block it, and it lists each folder once, however many kinds ask.

MOST_NAMES = 4_000
"""File names looked at: 20,000 cost 0.3 us for each file of a pack of 60,000."""

MOST_OF_A_FOLDER = 1_000
"""Names of one folder among several, so that the first does not speak for all."""

MOST_FOLDERS = 256
"""Folders looked into; the others are like them, or packing reports it."""

BLOCK = 100
"""Neighbours by name looked at together, so that files of one stem meet."""

HEAD_BYTES = 4_096


def _at_once(path: str, flags: int) -> int:
    """Open a file; a FIFO does not block."""
    return os.open(path, flags | os.O_NONBLOCK | os.O_NOCTTY)


class Strength(IntEnum):
    """The certainty of a kind that a source is its own; the strongest claim wins."""

    FILES = 1
    """Files have its endings. Of several kinds, one with 100 times the files of the others wins."""
    LAYOUT = 2
    """Names of files or folders fit together: pairs of one stem, images/ next to masks/."""
    MARKED = 3
    """A file's content says so: a table with a column file_name, COCO's annotations."""


@dataclass(frozen=True)
class Claim:
    """A kind's reading of a source.

    Attributes:
        strength: how sure the kind is.
        reading: what one sample would be, in a few words, for messages.
        num_files: how many files among those looked at it would take.
    """

    strength: Strength
    reading: str
    num_files: int = 0


class Look:
    """The view of a source that kinds of input have before one of them is chosen.

    Attributes:
        source: a folder, or one file.
        is_file: True if it is one file.
        top: its top folder, all names; for a file, a listing with its name alone.
    """

    def __init__(self, source: Path) -> None:
        self.source = source
        self.is_file = source.is_file()
        self._listed: dict[str, FolderListing] = {}
        self._heads: dict[tuple[str, int], bytes] = {}
        self.top = FolderListing("", names=[source.name]) if self.is_file else self.list("")

    def list(self, base: str) -> FolderListing:
        """Return all names in one folder, relative to the source; none if it cannot be listed."""
        if base not in self._listed:
            try:
                self._listed[base] = list_folder(self.source, base, measure=False)[0]
            except StorageError:
                self._listed[base] = FolderListing(base)
        return self._listed[base]

    @cached_property
    def folders(self) -> tuple[FolderListing, ...]:
        """The first folders, depth first, each with all or some of its names; the top comes first.

        Raises:
            StorageError: the source cannot be listed, or a link leads back.
        """
        if self.is_file:
            return (self.top,)
        found: list[FolderListing] = []
        left = MOST_NAMES
        for folder in islice(walk(self.source, measure=False), MOST_FOLDERS):
            found.append(folder)
            self._listed.setdefault(folder.base, folder)  # one that was lost repeats its parent
            left -= min(len(folder.names), MOST_OF_A_FOLDER)
            if left <= 0:
                break
        num_held = sum(bool(folder.names) for folder in found)
        most = max(MOST_NAMES // max(num_held, 1), MOST_OF_A_FOLDER)
        size = min(BLOCK, most)
        count = most // size
        some = []
        for each in found:
            names, room = each.names, len(each.names) - size
            if len(names) > most:  # blocks as far apart as possible
                starts = [i * room // max(count - 1, 1) for i in range(count)]
                names = [name for start in starts for name in names[start : start + size]]
            some.append(FolderListing(each.base, each.folders, names))
        return tuple(some)

    @cached_property
    def endings(self) -> Counter[str]:
        """Files by ending, lower case with its dot, ``.jsonl.gz`` as one; READMEs and the like are
        not counted."""
        found: Counter[str] = Counter()
        for folder in self.folders:
            found.update(cut_ending(n)[1] for n in folder.names if stem(n).lower() not in DOCUMENTS)
        return found

    def count(self, endings: Collection[str]) -> int:
        """Return how many of the files looked at have one of these endings."""
        return sum(self.endings[ending] for ending in endings)

    def path(self, relative: str) -> Path:
        """Return where a file lies that was looked at."""
        return self.source if self.is_file else self.source / relative

    def head(self, relative: str, num_bytes: int = HEAD_BYTES) -> bytes:
        """Return a file's first bytes; none of what is no regular file or cannot be read."""
        key = (relative, num_bytes)
        if key not in self._heads:
            self._heads[key] = b""
            path = os.fspath(self.path(relative))
            with suppress(OSError), open(path, "rb", buffering=0, opener=_at_once) as file:
                if stat.S_ISREG(os.fstat(file.fileno()).st_mode):
                    self._heads[key] = file.read(num_bytes)
        return self._heads[key]


# --- the seam -----------------------------------------------------------------------------


class Corpus(Protocol):
    """What the packer needs of an input.

    Instances are built from ``(source, options)`` alone, hold no open file between calls, and are
    rebuilt in each worker process by :func:`shardkit.inputs.detection.from_spec`; ``read`` must
    depend on nothing but the run.

    Attributes:
        kind: its name in :data:`shardkit.inputs.detection.CORPORA`.
        has_pictures: whether samples may hold pictures that can be written anew.
        has_text: whether samples may hold a text that can be tokenized.
        has_restarts: whether JPEGs may have restart markers that an earlier pack added.
        keeps_shards: whether each run is one shard, to be packed as it is.
        takes_order: whether a run may have its entries in any order, of any place in the input; and
            one of them may become several samples.
        packed: not None where runs of one split may come between those of another, and what comes
            is unknown until it is there: the shards that an earlier call packed of what came before
            these runs.
        is_read_once: whether samples must be packed as they are listed.
        classes: class names in index order, known after construction; None where there are none.
        ignored: files passed over while listing, by extension, and under ``hidden`` what begins
            with a dot, folders too; filled by ``runs``.
        notes: what else there is to say of the input, a line each; filled by ``runs``, too.
    """

    kind: ClassVar[str]
    has_pictures: bool = False
    has_text: bool = False
    has_restarts: bool = False
    keeps_shards: ClassVar[bool] = False
    takes_order: ClassVar[bool] = False
    packed: Sequence[Receipt] | None = None
    is_read_once: ClassVar[bool] = False
    classes: list[str] | None
    ignored: dict[str, int]
    notes: Sequence[str] = ()

    @classmethod
    def from_spec(cls, source: Path, spec: dict[str, Any]) -> Self:
        """Return the corpus of this ``spec()``, without a look at the input: it can ``read``,
        and need not be able to list."""

    def spec(self) -> dict[str, Any]:
        """Return JSON from which :func:`shardkit.inputs.detection.from_spec` rebuilds this corpus,
        source apart."""

    def objects(self) -> bytes:
        """Return what ``from_spec`` needs besides in another process, pickled: it finds it in the
        spec as ``objects``. Raises UsageError if that cannot be done."""
        return b""

    def splits(self) -> list[str]:
        """Return the splits that ``runs`` may yield, from a look at the top folder alone."""

    def runs(self, scratch: Path) -> Iterator[Run]:
        """List all entries, sorted, the same on every call while the input is unchanged.

        Reads no contents, where the layout of the input allows it. ``scratch`` is a folder for
        temporary files that live as long as the pack (decompressed text).

        Raises:
            CorpusError: nothing to pack, or labels that do not fit the files.
            StorageError: a folder cannot be listed, a link loops.
        """

    def read(self, run: Run, scratch: Path) -> SampleBatch:
        """Read the run's entries. Bad ones go to ``rejects``, in place of a sample.

        ``columns`` holds canonical values (see :mod:`shardkit.samples.sample`): file bytes as they
        are, ``cls`` as decimal digits.
        """

    def entry_name(self, run: Run, i: int) -> str:
        """Return the name of entry ``i`` of a run in ``rejected.jsonl``, which no other entry has,
        from the run alone. Here it is the path of the first file, which begins a locator."""
        name = os.fsdecode(run.locators[i].partition(b"//")[0])
        return f"{run.base}/{name}" if run.base else name


class Input(Corpus):
    """A kind of input that ``pack`` takes and ``--corpus`` names.

    Attributes:
        noun: what its files are called in messages. reading: a sample in a few words, see
            :class:`Claim`.
        extensions: endings of its files, lower case with their dot; none where names alone do not
            tell this kind.
        class_files: endings of its samples' files, where folders of those may be classes.
        is_one_file: whether a single file is such an input, too.
        options: those of :func:`shardkit.inputs.detection.open_corpus` that it takes, besides the
            source.
        kept: entries of ``spec`` -> attributes, those that reading needs.
        odd: what speaks against its folders being classes, in words, where somebody said they are.
    """

    source: Path
    odd: str = ""
    noun: ClassVar[str]
    reading: ClassVar[str] = ""
    kept: ClassVar[Mapping[str, str]] = {}
    extensions: ClassVar[frozenset[str]] = frozenset()
    class_files: ClassVar[frozenset[str]] = frozenset()
    is_one_file: ClassVar[bool] = False
    options: ClassVar[frozenset[str]] = frozenset()

    def __init__(self, source: Path) -> None:
        self.source = source
        self.classes: list[str] | None = None
        self.ignored: dict[str, int] = {}
        self.notes: list[str] = []

    @classmethod
    def from_spec(cls, source: Path, spec: dict[str, Any]) -> Self:
        made = cls.__new__(cls)
        Input.__init__(made, source)
        for entry, name in cls.kept.items():
            setattr(made, name, spec.get(entry))
        return made

    def spec(self) -> dict[str, Any]:
        return {"kind": self.kind, **{e: getattr(self, name) for e, name in self.kept.items()}}

    @classmethod
    def claim(cls, look: Look) -> Claim | None:
        """Return how this kind reads a source, judged by names and first bytes of a few files;
        None if the source is not its own. Here the endings of its files decide.

        Raises:
            CorpusError: the source is surely its own, and cannot be packed as it is.
        """
        num_files = look.count(cls.extensions) if cls.is_one_file or not look.is_file else 0
        return Claim(Strength.FILES, cls.reading, num_files) if num_files else None
