"""Which corpus an input is, judged by a bounded number of file names."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field
from pathlib import Path

from shardkit.corpus.annotations.layouts import find_layout
from shardkit.corpus.arrays import ArrayCorpus
from shardkit.corpus.binaries import (
    MEDIA_EXTENSIONS,
    BinaryCorpus,
    MediaCorpus,
    have_companions,
    take_media,
)
from shardkit.corpus.containers.find import container_kind
from shardkit.corpus.endings import KIND_OF, PAIRED_KINDS, TAR, kind_of
from shardkit.corpus.files import FolderListing, walk
from shardkit.corpus.folders import count_endings, have_seen, peeking_once
from shardkit.corpus.images import ImageCorpus
from shardkit.corpus.kinds import CORPORA
from shardkit.corpus.names import DOCUMENTS, extension, stem
from shardkit.corpus.paired import PairedCorpus
from shardkit.corpus.pickles import refuse_pickles
from shardkit.corpus.tables.other_tables import load_advice
from shardkit.corpus.tables.saved_files import is_saved
from shardkit.corpus.text import TextCorpus
from shardkit.errors import CorpusError
from shardkit.index.manifest import INDEX_NAME
from shardkit.system.paths import show_path
from shardkit.tars.find import is_tar_source

SAMPLE_FILES = 4_000
"""File names looked at: 20,000 cost 0.3 us for each file of a pack of 60,000."""

FOLDER_FILES = 1_000
"""Of one folder, where there are others, so that the first does not speak for all."""

BLOCK_FILES = 100
"""Neighbours by name looked at together, so that companions meet."""

DOMINANT = 100
"""A kind wins against strays if it has this many times their files."""

_OUTNUMBERED = 10
"""Pictures win against texts that belong to none of them if they are so many times as many."""

_TABLES = (".arrow", ".csv", ".tsv")
"""Endings of tables that no kind takes."""


@dataclass
class Census:
    """What the names in a folder say.

    Attributes:
        kinds: kind (``""``: unknown) -> extension -> number of files.
        documents: the same for READMEs and the like, which are text if nothing else is there.
        num_paired: images and arrays that have a companion of another kind under their stem.
        num_folders: folders seen, the source itself included.
        is_sample: whether there may be more files than were counted.
        folders: those looked at, with the names that were counted.
        top: the source itself, with all of its names.
    """

    kinds: dict[str, Counter[str]] = field(default_factory=dict)
    documents: Counter[str] = field(default_factory=Counter)
    num_paired: int = 0
    num_folders: int = 0
    is_sample: bool = False
    folders: list[FolderListing] = field(default_factory=list)
    top: FolderListing = field(default_factory=lambda: FolderListing(""))

    def count(self, kind: str) -> int:
        return sum(self.kinds.get(kind, Counter()).values())

    def add(self, names: list[str]) -> None:
        """Count the files of one folder."""
        self.num_folders += 1
        endings = Counter([name[name.rfind(".") :] for name in names])
        kinds = {KIND_OF.get(ending.lower(), "") for ending in endings}
        if len(kinds) < 2 and kinds <= {*PAIRED_KINDS}:  # the common case, at a tenth of the cost
            for ending, count in endings.items():
                self._count(KIND_OF[ending.lower()], ending.lower(), count)
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
    return sum(kind in PAIRED_KINDS and len(kinds_of[stem(name)]) > 1 for name, kind in found)


def take_census(source: Path) -> Census:
    """Count files by their names: all, or some :data:`SAMPLE_FILES` of the first few folders."""
    census = Census()
    listed: list[FolderListing] = []
    left = SAMPLE_FILES
    for folder in walk(source, measure=False):
        listed.append(folder)
        left -= min(len(folder.names), FOLDER_FILES)
        if left <= 0:
            census.is_sample = True
            break
    census.top = listed[0]
    num_held = sum(bool(folder.names) for folder in listed)
    most = max(SAMPLE_FILES // max(num_held, 1), FOLDER_FILES)
    for folder in listed:
        census.is_sample |= len(folder.names) > most
        names = spread(folder.names, most)
        census.add(names)
        census.folders.append(FolderListing(folder.base, names=names))
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
        if (container := container_kind(source, kind_of)) is not None:
            return container
        kind = kind_of(source.name)
        if kind == TAR or is_tar_source(source):
            raise CorpusError(f"{where} is a tar file; use: shardkit convert")
        if kind and CORPORA[kind].is_one_file:
            return kind
        raise CorpusError(
            f"{where} is one file; give a folder, a .jsonl file (also .gz, .zst) or a .parquet file"
            f"{load_advice([extension(source.name)], where, 'data_files')}"
        )
    require_folder(source)
    if (source / INDEX_NAME).is_file():
        raise CorpusError(f"{where} is a shardkit dataset already; use: shardkit convert")
    if is_saved(source):
        return "hf"
    if (container := container_kind(source, kind_of)) is not None:
        return container
    census = take_census(source)
    if _finds_media(census) and have_companions(source):
        return PairedCorpus.kind
    with peeking_once():
        have_seen(source, census.top)
        layout = find_layout(source, census.folders, is_paired(census))
    if layout is not None:
        return layout
    num_known = sum(census.count(kind) for kind in census.kinds if kind)
    refuse_pickles(source, census.top.names, num_known)
    if not any(census.kinds) and is_tar_source(source):  # compressed ones are of no known ending
        raise CorpusError(f"{where} is a folder of tar files; use: shardkit convert")
    return judge(census, where)


def _finds_media(census: Census) -> bool:
    """Count sound and film as a kind, where nothing but text lies beside them."""
    if not census.kinds.keys() <= {"", TextCorpus.kind}:
        return False
    media = take_media(census.kinds.get("", Counter()))
    if media:
        census.kinds[MediaCorpus.kind] = media
    return bool(media)


def container_at(source: Path) -> str | None:
    """The kind of the containers that others made at ``source``; None if something else is there.

    Raises:
        CorpusError, StorageError: as of :func:`detect`.
    """
    if not source.exists() or (source / INDEX_NAME).exists():
        return None
    return container_kind(source, kind_of)


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
    if is_paired(census):
        return PairedCorpus.kind
    if others and known[kind] < DOMINANT * others and not _has_strays(census, kind, others):
        raise CorpusError(_unclear(census, where))
    if known[kind] < sum(_other_data(census).values()):
        raise CorpusError(_unclear(census, where))
    if kind == TAR:
        raise CorpusError(f"{where} is a folder of tar files; use: shardkit convert")
    return kind


def _has_strays(census: Census, kind: str, others: int) -> bool:
    """Whether a list of attributes and the like lies beside many pictures."""
    is_text = others == census.count(TextCorpus.kind)
    is_few = census.count(kind) >= _OUTNUMBERED * others
    return kind == ImageCorpus.kind and is_text and is_few and not census.num_paired


def _other_data(census: Census) -> Counter[str]:
    """Endings of sound, film and tables, which are of no kind where files of another kind are."""
    unknown = census.kinds.get("", Counter())
    endings = (*sorted(MEDIA_EXTENSIONS), *_TABLES)
    return Counter({ending: unknown[ending] for ending in endings if unknown[ending]})


def _unclear(census: Census, where: str) -> str:
    """What a folder of several kinds holds, and which of them it may be taken for."""
    data = _other_data(census)
    media = {ending for ending in data if ending in MEDIA_EXTENSIONS}
    there = {BinaryCorpus.kind, *(kind for kind in census.kinds if census.count(kind))}
    there |= {MediaCorpus.kind} if media else set()
    there |= {PairedCorpus.kind} if census.num_paired else set()
    there |= {"rows"} if census.count(ArrayCorpus.kind) else set()
    choices = "|".join(kind for kind in CORPORA if kind in there)
    beside = f"; and {count_endings(data)}" if data else ""
    return f"{where} holds {_seen(census)}{beside}; choose with --corpus {choices}"


def is_paired(census: Census) -> bool:
    """Whether half of the pictures, or else of the arrays, have a file of another kind beside them
    under their stem."""
    pairable = next(
        (n for each in CORPORA if each in PAIRED_KINDS and (n := census.count(each))), 0
    )
    return 2 * census.num_paired >= pairable > 0 and not census.count(TAR)


def _seen(census: Census) -> str:
    parts = [
        f"{TAR if kind == TAR else CORPORA[kind].noun}: {count_endings(census.kinds[kind])}"
        for kind in sorted(census.kinds, key=lambda kind: (-census.count(kind), kind))
        if kind
    ]
    return ("among others " if census.is_sample else "") + "; ".join(parts)


def _nothing(census: Census, where: str) -> str:
    if census.count(""):
        unknown = count_endings(census.kinds[""])
        advice = load_advice(census.kinds[""], where)
        return (
            f"nothing to pack in {where}: {unknown}, none of a known kind; choose with --corpus, of"
            f" which {BinaryCorpus.kind} takes any{advice}"
        )
    if census.num_folders > 1:
        return f"nothing to pack in {where}: {census.num_folders - 1:,} folders and no file"
    return f"nothing to pack in {where}: it is empty"
