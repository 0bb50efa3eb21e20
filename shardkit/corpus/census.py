"""Which corpus an input is, judged by a bounded number of file names."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field
from pathlib import Path

from shardkit.corpus.arrow import SavedCorpus, is_saved
from shardkit.corpus.files import walk
from shardkit.corpus.folders import count_endings
from shardkit.corpus.kinds import CORPORA
from shardkit.corpus.lines import is_compressed, plain_name
from shardkit.corpus.names import DOCUMENTS, extension, stem
from shardkit.corpus.paired import PairedCorpus
from shardkit.corpus.text import TextCorpus
from shardkit.errors import CorpusError
from shardkit.index.manifest import INDEX_NAME
from shardkit.shards.locate import refuse_orphans
from shardkit.system.paths import show_path

SAMPLE_FILES = 4_000
"""File names looked at: 20,000 cost 0.3 us for each file of a pack of 60,000."""

FOLDER_FILES = 1_000
"""Of one folder, where there are others, so that the first does not speak for all."""

BLOCK_FILES = 100
"""Neighbours by name looked at together, so that companions meet."""

DOMINANT = 100
"""A kind wins against strays if it has this many times their files."""

TAR = "tar"
"""Stands for tars, which are converted and not packed."""

_KIND_OF = {ending: kind for kind, made in CORPORA.items() for ending in made.extensions}
_KIND_OF[".tar"] = TAR

_PAIRED = frozenset(kind for kind, made in CORPORA.items() if made.can_be_paired)


_CHOICES = [kind for kind in CORPORA if kind != SavedCorpus.kind]
"""Kinds that a folder of mixed files may be taken for."""


@dataclass
class Census:
    """What the names in a folder say.

    Attributes:
        kinds: kind (``""``: unknown) -> extension -> number of files.
        documents: the same for READMEs and the like, which are text if nothing else is there.
        num_paired: images and arrays that have a companion of another kind under their stem.
        num_folders: folders seen, the source itself included.
        is_sample: whether there may be more files than were counted.
    """

    kinds: dict[str, Counter[str]] = field(default_factory=dict)
    documents: Counter[str] = field(default_factory=Counter)
    num_paired: int = 0
    num_folders: int = 0
    is_sample: bool = False

    def count(self, kind: str) -> int:
        return sum(self.kinds.get(kind, Counter()).values())

    def add(self, names: list[str]) -> None:
        """Count the files of one folder."""
        self.num_folders += 1
        endings = Counter([name[name.rfind(".") :] for name in names])
        kinds = {_KIND_OF.get(ending.lower(), "") for ending in endings}
        if len(kinds) < 2 and kinds <= _PAIRED:  # the common case, at a tenth of the cost
            for ending, count in endings.items():
                self._count(_KIND_OF[ending.lower()], ending.lower(), count)
            return
        found = [(name, kind_of(name)) for name in names]
        for name, kind in found:
            if kind == TextCorpus.kind and stem(name).lower() in DOCUMENTS:
                self.documents[extension(name)] += 1
            else:
                self._count(kind, extension(name), 1)
        self.num_paired += _count_paired(found)

    def _count(self, kind: str, ending: str, count: int) -> None:
        self.kinds.setdefault(kind, Counter())[ending] += count


def _count_paired(found: list[tuple[str, str]]) -> int:
    kinds_of: dict[str, set[str]] = {}
    for name, kind in found:
        if "." in name:
            kinds_of.setdefault(stem(name), set()).add(kind)
    return sum(kind in _PAIRED and len(kinds_of[stem(name)]) > 1 for name, kind in found)


def kind_of(name: str) -> str:
    """The corpus a file of this name belongs to; ``""`` if none."""
    ending = extension(name)
    if is_compressed(name):
        ending = extension(plain_name(name)) + ending
    return _KIND_OF.get(ending, "")


def take_census(source: Path) -> Census:
    """Count files by their names: all, or some :data:`SAMPLE_FILES` of the first few folders."""
    census = Census()
    listed: list[list[str]] = []
    left = SAMPLE_FILES
    for folder in walk(source, measure=False):
        listed.append(folder.names)
        left -= min(len(folder.names), FOLDER_FILES)
        if left <= 0:
            census.is_sample = True
            break
    most = max(SAMPLE_FILES // max(sum(map(bool, listed)), 1), FOLDER_FILES)
    for names in listed:
        census.is_sample |= len(names) > most
        census.add(spread(names, most))
    return census


def spread(names: list[str], at_most: int) -> list[str]:
    """Some of sorted names: blocks of :data:`BLOCK_FILES`, as far apart as may be."""
    if len(names) <= at_most:
        return names
    size = min(BLOCK_FILES, at_most)
    count = at_most // size
    starts = [i * (len(names) - size) // max(count - 1, 1) for i in range(count)]
    return [name for start in starts for name in names[start : start + size]]


def detect(source: Path) -> str:
    """The kind of corpus at ``source``.

    Raises:
        CorpusError: it is missing, empty, ambiguous, packed already, or of no known kind.
        DatasetMissingError: it is a dataset that has lost its shardkit.json.
    """
    where = show_path(source)
    if source.is_file():
        kind = kind_of(source.name)
        if kind == TAR:
            raise CorpusError(f"{where} is a tar file; use: shardkit convert")
        if kind and CORPORA[kind].is_one_file:
            return kind
        raise CorpusError(
            f"{where} is one file; give a folder, a .jsonl file (also .gz, .zst) or a .parquet file"
        )
    require_folder(source)
    if (source / INDEX_NAME).is_file():
        raise CorpusError(f"{where} is a shardkit dataset already; use: shardkit convert")
    if is_saved(source):
        return SavedCorpus.kind
    census = take_census(source)
    refuse_orphans(source)  # else shards of .npy files would be packed as arrays
    return judge(census, where)


def require_folder(source: Path) -> None:
    """Raises CorpusError unless ``source`` is a folder."""
    if not source.is_dir():
        found = "is no folder" if source.exists() or source.is_symlink() else "does not exist"
        raise CorpusError(f"{show_path(source)} {found}; give the folder of files to pack")


def judge(census: Census, where: str) -> str:
    """The kind that a census speaks for; raises CorpusError if it speaks for none or several."""
    known = {kind: census.count(kind) for kind in census.kinds if kind}
    if not known and census.documents:
        return TextCorpus.kind
    if not known:
        raise CorpusError(_nothing(census, where))
    kind = max(sorted(known), key=known.__getitem__)
    others = sum(known.values()) - known[kind]
    pairable = next((known[each] for each in CORPORA if each in _PAIRED & known.keys()), 0)
    if 2 * census.num_paired >= pairable > 0 and TAR not in known:
        return PairedCorpus.kind
    if others and known[kind] < DOMINANT * others:
        raise CorpusError(
            f"{where} holds {_seen(census)}; choose with --corpus {'|'.join(_CHOICES)}"
        )
    if kind == TAR:
        raise CorpusError(f"{where} is a folder of tar files; use: shardkit convert")
    return kind


def _seen(census: Census) -> str:
    nouns = {kind: made.noun for kind, made in CORPORA.items()} | {TAR: "tar"}
    parts = [
        f"{nouns[kind]}: {count_endings(census.kinds[kind])}"
        for kind in sorted(census.kinds, key=lambda kind: (-census.count(kind), kind))
        if kind
    ]
    return ("among others " if census.is_sample else "") + "; ".join(parts)


def _nothing(census: Census, where: str) -> str:
    if census.count(""):
        unknown = count_endings(census.kinds[""])
        return f"nothing to pack in {where}: {unknown}, none of a known kind; choose with --corpus"
    if census.num_folders > 1:
        return f"nothing to pack in {where}: {census.num_folders - 1:,} folders and no file"
    return f"nothing to pack in {where}: it is empty"
