"""The seam between what can be packed and the packer.

A corpus lists its entries cheaply, in one fixed order, as *runs*, and later, perhaps in another
process, turns a run into samples. Adding a kind of input is one class derived from
:class:`Input` and one line in :mod:`shardkit.inputs.open`.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, ClassVar, Protocol, Self

from shardkit.index.journal import Receipt
from shardkit.inputs.look import Claim, Look, Strength
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
        """Entries [start, stop)."""
        if start <= 0 and stop >= len(self):
            return self
        return self._with(lambda held: held[start:stop])

    def take(self, entries: Sequence[int]) -> Run:
        """These entries, in that order."""
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


class Corpus(Protocol):
    """What the packer needs of an input.

    Instances are built from ``(source, options)`` alone, hold no open file between calls, and are
    rebuilt in each worker process by :func:`shardkit.inputs.open.from_spec`; ``read`` must depend
    on nothing but the run.

    Attributes:
        kind: its name in :data:`shardkit.inputs.open.CORPORA`.
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
        """The corpus whose ``spec()`` this is, made without looking at the input: it can ``read``,
        and need not be able to list."""

    def spec(self) -> dict[str, Any]:
        """JSON from which :func:`shardkit.inputs.open.from_spec` rebuilds this corpus, source
        apart."""

    def objects(self) -> bytes:
        """Return what ``from_spec`` needs besides in another process, pickled: it finds it in the
        spec as ``objects``. Raises UsageError if that cannot be done."""
        return b""

    def splits(self) -> list[str]:
        """The splits that ``runs`` may yield, from a look at the top folder alone."""

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
            :class:`shardkit.inputs.look.Claim`.
        extensions: endings of its files, lower case with their dot; none where names alone do not
            tell this kind.
        class_files: endings of its samples' files, where folders of those may be classes.
        is_one_file: whether a single file is such an input, too.
        options: those of :func:`shardkit.inputs.open.open_corpus` that it takes, besides the
            source. One that takes ``fields``, or ``tokenized``, is told whether its text is to be
            tokenized.
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
