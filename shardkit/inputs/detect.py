"""Which kind of corpus an input is."""

from __future__ import annotations

from collections import Counter
from pathlib import Path

from shardkit.errors import CorpusError
from shardkit.index.manifest import INDEX_NAME
from shardkit.inputs.annotations.layouts import find_layout
from shardkit.inputs.annotations.one_name import or_parallel
from shardkit.inputs.arrays import ArrayCorpus
from shardkit.inputs.binaries import (
    MEDIA_EXTENSIONS,
    BinaryCorpus,
    MediaCorpus,
    have_companions,
    take_media,
)
from shardkit.inputs.census import Census, is_paired, take_census
from shardkit.inputs.containers.find import container_kind
from shardkit.inputs.endings import ONE_FILE, TAR, kind_of
from shardkit.inputs.folders import count_endings, have_seen, peeking_once
from shardkit.inputs.images import ImageCorpus
from shardkit.inputs.kinds import CORPORA
from shardkit.inputs.look import Look, Strength
from shardkit.inputs.names import DOCUMENTS, extension, stem
from shardkit.inputs.paired import PairedCorpus
from shardkit.inputs.rows.row_corpus import RowCorpus
from shardkit.inputs.tables.other_tables import load_advice
from shardkit.inputs.tables.saved_files import is_saved
from shardkit.inputs.text import TextCorpus
from shardkit.shards.locate import refuse_orphans
from shardkit.system.paths import file_size, first_few, show_path
from shardkit.tars.find import is_tar_source

DOMINANT = 100
"""A kind wins against strays if it has this many times their files."""

_OUTNUMBERED = 10
"""Pictures win against texts that belong to none of them if they are so many times as many."""

_ARCHIVES = frozenset({".zip", ".7z", ".rar", ".gz", ".tgz", ".bz2", ".xz", ".zst"})

_FEW_TEXTS = 16
"""So few texts may be there to explain what else is there, as lists of classes beside arrays."""


def detect(source: Path) -> str:
    """The kind of corpus at ``source``.

    Raises:
        CorpusError: it is missing, empty, ambiguous, packed already, or of no known kind.
        DatasetMissingError: it is a dataset that has lost its shardkit.json.
    """
    where = show_path(source)
    if source.is_file():
        if (container := _container_kind(source)) is not None:
            return container
        kind = kind_of(source.name)
        if kind == TAR or is_tar_source(source):
            raise CorpusError(f"{where} is a tar file; use: shardkit convert")
        if kind and CORPORA[kind].is_one_file:
            return kind
        raise CorpusError(
            f"{where} is one file; give a folder, or a file that holds many samples: {ONE_FILE};"
            " for others, as .mat, docs/your-data.md has lines of Python"
            f"{load_advice({extension(source.name): 1}, where, 'data_files')}"
        )
    require_folder(source)
    if (source / INDEX_NAME).is_file():
        raise CorpusError(f"{where} is a shardkit dataset already; use: shardkit convert")
    if is_saved(source):
        return "hf"
    if (container := _container_kind(source)) is not None:
        return container
    census = take_census(source)
    if _finds_media(census) and have_companions(source):
        return PairedCorpus.kind
    with peeking_once():
        have_seen(source, census.top)
        layout = find_layout(source, census.folders, is_paired(census))
    if layout is not None:
        return layout
    if census.kinds.keys() <= {"", TAR} and is_tar_source(source):
        raise CorpusError(f"{where} is a folder of tar files; use: shardkit convert")
    try:
        _refuse_few_texts(source, census)
        return judge(census, where)
    except CorpusError as error:
        raise CorpusError(f"{error}{or_parallel(source)}") from None


def _finds_media(census: Census) -> bool:
    """Count sound and film as a kind, where nothing but text lies beside them."""
    if not census.kinds.keys() <= {"", TextCorpus.kind}:
        return False
    media = take_media(census.kinds.get("", Counter()))
    if media:
        census.kinds[MediaCorpus.kind] = media
    return bool(media)


def _refuse_few_texts(source: Path, census: Census) -> None:
    """Raise CorpusError if a few texts lie beside more bytes of what no kind takes: CIFAR's binary
    version has the names of its classes in one, and the pictures in ``.bin``. Or a few files of any
    kind beside larger archives: others have ``metadata.jsonl`` beside ``images.zip``."""
    kinds = census.kinds.keys() - {""}
    is_few = 0 < sum(map(census.count, kinds)) <= _FEW_TEXTS and "" in census.kinds
    if is_few and (kinds <= {TextCorpus.kind, "jsonl"} or _archives(census)):
        weight = _weigh(source, census)
        if 2 * weight[""] > weight.total():
            raise CorpusError(_unclear(census, show_path(source)))


def _archives(census: Census) -> str:
    """Return what to do with archives, as the end of a message; ``""`` if there are none."""
    found = _ARCHIVES.intersection(census.kinds.get("", ()))
    return f"; unpack the {' and '.join(sorted(found))} if the samples are in there" * bool(found)


def _weigh(source: Path, census: Census) -> Counter[str]:
    """The bytes of the files of each kind, READMEs and the like apart."""
    weight: Counter[str] = Counter()
    for folder in census.folders:
        for name in folder.names:
            if stem(name).lower() not in DOCUMENTS:
                weight[kind_of(name)] += file_size(source / folder.base / name)
    return weight


def _container_kind(source: Path) -> str | None:
    """The kind of containers at ``source``; None if there are none."""
    kind = container_kind(source, kind_of)
    if kind is not None:
        return kind
    look = Look(source)
    rows, arrays = RowCorpus.claim(look), ArrayCorpus.claim(look)
    if rows is None:
        return None
    if rows.strength == Strength.FILES:
        others = look.endings.total() - max(rows.num_files, arrays.num_files if arrays else 0)
        if rows.num_files < 100 * others and others > 64:
            return None
        if others or arrays is not None:
            other = arrays.reading if arrays else f"{others} other files"
            raise CorpusError(
                f"{show_path(source)}: {rows.reading}, or {other}; choose with --corpus rows|..."
            )
    if source.is_file():
        refuse_orphans(source)
    return RowCorpus.kind


def container_at(source: Path) -> str | None:
    """The kind of the containers that others made at ``source``; None if something else is there.

    Raises:
        CorpusError, StorageError: as of :func:`detect`.
    """
    if not source.exists() or (source / INDEX_NAME).exists():
        return None
    return _container_kind(source)


def require_folder(source: Path) -> None:
    """Raises CorpusError unless ``source`` is a folder."""
    if not source.is_dir():
        found = "is no folder" if source.exists() or source.is_symlink() else "does not exist"
        raise CorpusError(f"{show_path(source)} {found}; give the folder of files to pack")


def judge(census: Census, where: str) -> str:
    """The kind that a census speaks for; raises CorpusError if it speaks for none or several."""
    known = {kind: census.count(kind) for kind in census.kinds if kind}
    num_unknown = census.count("")
    if not known and census.documents.total() >= max(num_unknown, 1):
        return TextCorpus.kind
    if not known:
        raise CorpusError(_nothing(census, where))
    kind = max(sorted(known), key=known.__getitem__)
    others = sum(known.values()) - known[kind]
    if is_paired(census):
        return PairedCorpus.kind
    if others and known[kind] < DOMINANT * others and not _has_strays(census, kind, others):
        raise CorpusError(_unclear(census, where))
    if known[kind] < num_unknown:
        raise CorpusError(_unclear(census, where))
    if kind == TAR:
        held = [each.base for each in census.folders if any(kind_of(n) == TAR for n in each.names)]
        raise CorpusError(
            f"{where} holds tars in {first_few(held)}: pass each to shardkit convert by itself, or"
            " give folders names of splits, as train and val, and pass all"
        )
    return kind


def _has_strays(census: Census, kind: str, others: int) -> bool:
    """Whether a list of attributes and the like lies beside many pictures."""
    is_text = others == census.count(TextCorpus.kind)
    is_few = census.count(kind) >= _OUTNUMBERED * others
    return kind == ImageCorpus.kind and is_text and is_few and not census.num_paired


def _unclear(census: Census, where: str) -> str:
    """What a folder of several kinds holds, and which of them it may be taken for."""
    unknown = census.kinds.get("", Counter[str]())
    there = {BinaryCorpus.kind, *(kind for kind in census.kinds if census.count(kind))}
    there |= set() if MEDIA_EXTENSIONS.isdisjoint(unknown) else {MediaCorpus.kind}
    there |= {PairedCorpus.kind} if census.num_paired else set()
    there |= {"rows"} if census.count(ArrayCorpus.kind) else set()
    choices = "|".join(kind for kind in CORPORA if kind in there)
    beside = f"; and {count_endings(unknown)} of other kinds" if unknown else ""
    tars = "; shardkit convert takes the tars" if census.count(TAR) else ""
    advice = tars + _archives(census)
    return f"{where} holds {_seen(census)}{beside}; choose with --corpus {choices}{advice}"


def _seen(census: Census) -> str:
    parts = [
        f"{TAR if kind == TAR else CORPORA[kind].noun}: {count_endings(census.kinds[kind])}"
        for kind in sorted(census.kinds, key=lambda kind: (-census.count(kind), kind))
        if kind
    ]
    return ("among others " if census.is_sample else "") + "; ".join(parts)


def _lines_advice(census: Census) -> str:
    names = (name for folder in census.folders for name in folder.names)
    found = next((name for name in names if name.lower().endswith(_PACKED_JSON)), None)
    if found is None:
        return ""
    return f"; if {show_path(found)} holds lines of JSON, call it {_as_lines(found)}"


_PACKED_JSON = (".json.gz", ".json.zst")
"""As C4 and Dolma call their lines of JSON; others call one document so."""


def _as_lines(name: str) -> str:
    start, _, ending = name.rpartition(".")
    return show_path(f"{start}l.{ending}")


def _nothing(census: Census, where: str) -> str:
    if census.count(""):
        unknown = count_endings(census.kinds[""])
        advice = load_advice(census.kinds[""], where) + (_lines_advice(census) or _archives(census))
        return (
            f"nothing to pack in {where}: {unknown}, none of a known kind; choose with --corpus, of"
            f" which {BinaryCorpus.kind} takes any{advice}"
        )
    if census.num_folders > 1:
        return f"nothing to pack in {where}: {census.num_folders - 1:,} folders and no file"
    if census.top.lost:
        return f"nothing to pack in {where}: no regular file, only {first_few(census.top.lost)}"
    return f"nothing to pack in {where}: it is empty"
