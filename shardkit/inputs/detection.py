"""The table of all kinds of input, and from a source and options to one of them.

A kind is imported when it is asked for, so that a process that packs images does not wait for the
readers of tables.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from importlib import import_module
from pathlib import Path
from typing import Any

from shardkit.errors import CorpusError
from shardkit.images.sniff import IMAGE_EXTENSIONS
from shardkit.index.file_names import INDEX_NAME
from shardkit.inputs.corpus import Claim, Corpus, Input, Look, Strength
from shardkit.inputs.files import cut_ending, join
from shardkit.inputs.folders import count_endings
from shardkit.inputs.guards import doubt_classes, refuse_splits_below, role_of
from shardkit.shards.locate import refuse_orphans
from shardkit.system.paths import file_size, first_few, show_path
from shardkit.system.refusals import os_errors
from shardkit.tars.find import is_tar_source

KINDS = {
    "images": "class_folders:ImageCorpus",
    "paired": "file_parts:PairedCorpus",
    "parallel": "annotations.parallel:ParallelCorpus",
    "companions": "file_parts:CompanionCorpus",
    "metadata": "annotations.listed:MetadataCorpus",
    "coco": "annotations.coco:CocoCorpus",
    "text": "single_files:TextCorpus",
    "jsonl": "tables.jsonl:JsonlCorpus",
    "arrays": "single_files:ArrayCorpus",
    "parquet": "tables.tabular:ParquetCorpus",
    "hf": "tables.tabular:SavedCorpus",
    "rows": "rows.row_corpus:RowCorpus",
    "tfrecord": "records.containers:TfRecordCorpus",
    "lmdb": "records.containers:LmdbCorpus",
    "media": "single_files:MediaCorpus",
    "files": "single_files:BinaryCorpus",
}
"""Kinds of input that ``pack`` takes: name for ``--corpus`` -> module below :mod:`shardkit.inputs`,
and class."""

CONVERTED = {
    "objects": "objects.numbered_rows:RowsCorpus",
    "stream": "objects.iterables:StreamCorpus",
    "dataset": "records.packed:DatasetCorpus",
    "tokens": "records.packed:TokenFileCorpus",
}
"""Kinds for Python objects, which ``pack`` takes, and for packed data, which ``convert`` takes."""


OLD_NAMES = {"captions": "metadata", "yolo": "parallel"}
"""Earlier names of kinds, which ``--corpus`` and datasets may still say."""


class _Table(Mapping[str, type[Input]]):
    """Classes of kinds by name, each imported on first use."""

    def __init__(self, homes: Mapping[str, str]) -> None:
        self._homes = homes

    def __getitem__(self, name: str) -> type[Input]:
        module, _, made = self._homes[OLD_NAMES.get(name, name)].partition(":")
        found: type[Input] = getattr(import_module(f"shardkit.inputs.{module}"), made)
        return found

    def __iter__(self) -> Iterator[str]:
        return iter(self._homes)

    def __len__(self) -> int:
        return len(self._homes)


CORPORA = _Table(KINDS)


def from_spec(source: Path, spec: dict[str, Any]) -> Corpus:
    """Return the corpus whose ``spec()`` this is, without a look at the input; it reads runs."""
    return _Table(KINDS | CONVERTED)[spec["kind"]].from_spec(source, spec)


# --- from a source to its kind --------------------------------------------------------------

OUTNUMBERED = 10
"""A kind wins against strays if it has this many times their files."""

FEW_FILES = 16
"""Files that may merely explain others of more bytes: lists of classes next to ``.bin`` files,
metadata.jsonl next to images.zip."""

_ARCHIVES = frozenset({".zip", ".7z", ".rar", ".gz", ".tgz", ".bz2", ".xz", ".zst"})


def open_corpus(
    source: str | Path,
    kind: str | None = None,
    labels: str | Path | None = None,
    text_field: str | None = None,
    fields: Sequence[str] | None = None,
    tokenized: bool = False,
) -> Input:
    """Return the input at ``source``; its kind is detected unless given.

    Args:
        fields: columns of tables, or keys of lines, to choose.
        tokenized: the text is to become ids: unless fields are chosen, it alone is taken.

    Raises:
        CorpusError: no such input, of no or several kinds, or an option that its kind has not.
        StorageError: a folder cannot be listed.
    """
    source = Path(source)
    if kind is not None and kind not in CORPORA:
        raise CorpusError(f"{kind!r} is no kind of corpus; choose one of {', '.join(CORPORA)}")
    is_given = kind is not None
    may_be_file = source.is_file() and (kind is None or CORPORA[kind].is_one_file)
    if not may_be_file and not source.is_dir():
        found = "is no folder" if source.exists() or source.is_symlink() else "does not exist"
        raise CorpusError(f"{show_path(source)} {found}; give the folder of files to pack")
    look = Look(source)
    kind = kind or detect(look)
    made = CORPORA[kind]
    doubt = ""
    if made.class_files and labels is None and not look.is_file:
        why, advice = doubt_classes(look, kind, made.class_files)
        if why and not is_given:
            raise CorpusError(
                f"{show_path(source)} may be read in two ways: {why}; {advice}, or choose --corpus"
                f" {kind} if its folders are classes all the same"
            )
        doubt = why and f"the folders may be no classes: {why}; if so, {advice}"
    elif not is_given and labels is None:
        refuse_splits_below(look)
    options: dict[str, Any] = {"labels": labels, "text_field": text_field, "fields": fields}
    options = {name: value for name, value in options.items() if value is not None}
    for name in options.keys() - made.options:
        raise CorpusError(
            f"--{name.replace('_', '-')} does not go with {kind}, which is what"
            f" {show_path(source)} is taken for; leave it out, or choose with --corpus"
        )
    if tokenized and "tokenized" in made.options:
        options["tokenized"] = True
    corpus = made(source, **options)
    corpus.odd = doubt
    return corpus


def container_at(source: Path) -> str | None:
    """Return the kind of third-party containers at ``source``; None if something else is there."""
    if not source.exists() or (source / INDEX_NAME).exists():
        return None
    refuse_orphans(source)
    best = [*_claims(Look(source))]
    return best[0] if best in (["rows"], ["tfrecord"], ["lmdb"]) else None


def detect(look: Look) -> str:
    """Return the kind of input at a source: that with the strongest claim.

    Raises:
        CorpusError: the source is empty, ambiguous, packed already, or of no known kind.
        DatasetMissingError: it is a dataset that has lost its shardkit.json.
    """
    where = show_path(look.source)
    if (look.source / INDEX_NAME).is_file():
        raise CorpusError(f"{where} is a shardkit dataset already; use: shardkit convert")
    with os_errors(f"looking at {where}"):
        refuse_orphans(look.source)
        claims = _claims(look)
    if not claims:
        raise CorpusError(_nothing(look))
    best = max(claims, key=lambda kind: claims[kind].num_files)
    num_others = sum(claim.num_files for claim in claims.values()) - claims[best].num_files
    are_files = claims[best].strength == Strength.FILES and not look.is_file
    if not are_files or not all(CORPORA[kind].extensions for kind in claims):
        is_clear, unknown = len(claims) == 1, Counter[str]()
    else:
        known = {ending for kind in claims for ending in CORPORA[kind].extensions}
        unknown = Counter({end: n for end, n in look.endings.items() if end not in known})
        num_files = claims[best].num_files
        is_clear = num_files >= max(OUTNUMBERED * num_others, unknown.total())
        is_clear &= not _is_outweighed(look, unknown)
    if is_clear:
        return best
    readings = []
    for kind in sorted(claims, key=lambda kind: -claims[kind].num_files):
        own = {end: n for end, n in look.endings.items() if end in CORPORA[kind].extensions}
        is_counted = own and claims[kind].strength == Strength.FILES
        counted = f", {count_endings(own)}" if is_counted else ""
        readings.append(f"{claims[kind].reading}{counted} (--corpus {kind})")
    if unknown:
        readings.append(f"{count_endings(unknown)} of other kinds (--corpus files takes any)")
    ways = "; or ".join(readings)
    raise CorpusError(f"{where} may be read in several ways: {ways}; choose one{_archives(look)}")


def _claims(look: Look) -> dict[str, Claim]:
    """Return the strongest claims, which are of equal strength, by kind."""
    kinds = ("images",) if _are_plain_images(look) else [kind for kind in KINDS if kind != "files"]
    asked = ((kind, CORPORA[kind].claim(look)) for kind in kinds)
    claims = {name: claim for name, claim in asked if claim is not None}
    top = max((claim.strength for claim in claims.values()), default=None)
    return {name: claim for name, claim in claims.items() if claim.strength == top}


def _are_plain_images(look: Look) -> bool:
    """Return True for images of one ending, of which none is named after another, in folders whose
    names tell of no parts of samples: no other kind needs to be imported and asked."""
    if len(look.endings) != 1 or not look.endings.keys() <= IMAGE_EXTENSIONS:
        return False
    for folder in look.folders:
        if any(role_of(name, folder.folders) for name in folder.folders):
            return False
        stems = {name.rpartition(".")[0] for name in folder.names}
        for sign in "_-. ":
            if not stems.isdisjoint([one.rpartition(sign)[0] for one in stems if sign in one]):
                return False
    return True


def _is_outweighed(look: Look, unknown: Counter[str]) -> bool:
    """Return True if a few files lie next to more bytes of what no kind takes."""
    if not unknown or look.endings.total() - unknown.total() > FEW_FILES:
        return False
    weights: Counter[bool] = Counter()
    for folder in look.folders:
        for name in folder.names:
            is_unknown = cut_ending(name)[1] in unknown
            weights[is_unknown] += max(file_size(look.path(join(folder.base, name))), 0)
    return weights[True] > weights[False]


def _archives(look: Look) -> str:
    found = _ARCHIVES.intersection("." + ending.rpartition(".")[2] for ending in look.endings)
    return f"; unpack the {' and '.join(sorted(found))} if the samples are in there" * bool(found)


def _nothing(look: Look) -> str:
    """Return why there is nothing to pack."""
    where = show_path(look.source)
    if is_tar_source(look.source):
        what = "a tar file" if look.is_file else "a folder of tar files"
        return f"{where} is {what}; use: shardkit convert"
    if look.is_file:
        return (
            f"{where} is one file, of no kind that holds many samples; give a folder, or see"
            " docs/recipes for tables, .mat and others"
        )
    if look.endings:
        return (
            f"nothing to pack in {where}: {count_endings(look.endings)}, none of a known kind;"
            f" choose --corpus files, which takes any, or see docs/recipes{_archives(look)}"
        )
    what = "it is empty"
    if len(look.folders) > 1:
        what = f"{len(look.folders) - 1:,} folders and no file"
    elif look.top.lost:
        what = f"no regular file, only {first_few(look.top.lost)}"
    return f"nothing to pack in {where}: {what}"
