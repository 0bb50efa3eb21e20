"""The table of all kinds of input, and from a source and options to one of them.

A kind is imported when it is asked for, so that a process that packs images does not wait for the
readers of tables.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from importlib import import_module
from pathlib import Path
from typing import Any

from shardkit.errors import CorpusError
from shardkit.images.sniff import IMAGE_EXTENSIONS
from shardkit.index.manifest import INDEX_NAME
from shardkit.inputs.base import Corpus, Input
from shardkit.inputs.files import cut_ending, join
from shardkit.inputs.folders import count_endings
from shardkit.inputs.guards import doubt_classes, refuse_splits_below, role_of
from shardkit.inputs.look import Claim, Look, Strength
from shardkit.shards.locate import refuse_orphans
from shardkit.system.paths import file_size, first_few, show_path
from shardkit.system.refusals import os_errors
from shardkit.tars.find import is_tar_source


def _always(look: Look) -> bool:
    return True


def _never(look: Look) -> bool:
    return False


def _are_mixed(look: Look) -> bool:
    return len(look.endings) > 1


def _may_pair(look: Look) -> bool:
    """Return True if files have several endings, or one stem is another and a word: ``1_mask``."""
    if len(look.endings) > 1:
        return True
    for folder in look.folders:
        stems = {name.rpartition(".")[0] for name in folder.names}
        for sign in "_-. ":
            if not stems.isdisjoint([stem.rpartition(sign)[0] for stem in stems if sign in stem]):
                return True
    return False


def _has_others(look: Look) -> bool:
    return not look.endings or not look.endings.keys() <= IMAGE_EXTENSIONS


def _have_roles(look: Look) -> bool:
    """Return True if a folder is named as part of a sample, or some files are no images."""
    return _has_others(look) or any(
        role_of(name, folder.folders) for folder in look.folders for name in folder.folders
    )


@dataclass(frozen=True)
class Kind:
    """A kind of input.

    Attributes:
        name: what ``--corpus`` calls it.
        home: module below :mod:`shardkit.inputs` and class, ``module:Class``.
        is_asked: False for a source that is surely not its own, without importing the kind.
    """

    name: str
    home: str
    is_asked: Callable[[Look], bool] = _always

    def load(self) -> type[Any]:
        """Return its class."""
        module, _, made = self.home.partition(":")
        found: type[Any] = getattr(import_module(f"shardkit.inputs.{module}"), made)
        return found


KINDS = (
    Kind("images", "images:ImageCorpus"),
    Kind("paired", "paired:PairedCorpus", _may_pair),
    Kind("parallel", "annotations.parallel:ParallelCorpus", _have_roles),
    Kind("companions", "paired:CompanionCorpus", _may_pair),
    Kind("metadata", "annotations.metadata:MetadataCorpus", _are_mixed),
    Kind("coco", "annotations.coco:CocoCorpus", _are_mixed),
    Kind("yolo", "annotations.parallel:YoloCorpus", _are_mixed),
    Kind("text", "text:TextCorpus", _has_others),
    Kind("jsonl", "tables.jsonl:JsonlCorpus", _has_others),
    Kind("arrays", "arrays:ArrayCorpus", _has_others),
    Kind("parquet", "tables.tabular:ParquetCorpus", _has_others),
    Kind("hf", "tables.tabular:SavedCorpus", _has_others),
    Kind("rows", "rows.row_corpus:RowCorpus", _has_others),
    Kind("tfrecord", "records.tfrecord:TfRecordCorpus", _has_others),
    Kind("lmdb", "records.lmdb_files:LmdbCorpus", _has_others),
    Kind("media", "binaries:MediaCorpus", _has_others),
    Kind("files", "binaries:BinaryCorpus", _never),
)
"""Kinds of input that ``pack`` takes, under their names for ``--corpus``."""

CONVERTED = (
    Kind("objects", "objects.rows:RowsCorpus"),
    Kind("stream", "objects.stream:StreamCorpus"),
    Kind("dataset", "records.packed:DatasetCorpus"),
    Kind("tokens", "records.ids:TokenFileCorpus"),
)
"""Kinds for Python objects, which ``pack`` takes, and for packed data, which ``convert`` takes."""

OLD_NAMES: dict[str, str] = {"captions": "metadata"}
"""Names of earlier releases -> the kind that reads the same now."""


class _Table(Mapping[str, type[Input]]):
    """Classes of kinds by name, each imported on first use."""

    def __init__(self, kinds: tuple[Kind, ...]) -> None:
        self._kinds = {kind.name: kind for kind in kinds}

    def __getitem__(self, name: str) -> type[Input]:
        return self._kinds[OLD_NAMES.get(name, name)].load()

    def __iter__(self) -> Iterator[str]:
        return iter(self._kinds)

    def __len__(self) -> int:
        return len(self._kinds)


CORPORA = _Table(KINDS)

_ALL = _Table((*KINDS, *CONVERTED))


def from_spec(source: Path, spec: dict[str, Any]) -> Corpus:
    """Return the corpus whose ``spec()`` this is, without a look at the input; it reads runs."""
    return _ALL[spec["kind"]].from_spec(source, spec)


# --- from a source to its kind --------------------------------------------------------------

DOMINANT = 100
"""A kind wins against strays if it has this many times their files."""

OUTNUMBERED = 10
"""The factor that is enough if the strays are texts or media: lists and clips next to images."""

FEW_FILES = 16
"""Files that may merely explain others of more bytes: lists of classes next to ``.bin`` files,
metadata.jsonl next to images.zip."""

_ARCHIVES = frozenset({".zip", ".7z", ".rar", ".gz", ".tgz", ".bz2", ".xz", ".zst"})

_CONTAINERS = ("rows", "tfrecord", "lmdb")


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
    kind = OLD_NAMES.get(kind or "", kind)
    if kind is not None and kind not in CORPORA:
        raise CorpusError(f"{kind!r} is no kind of corpus; choose one of {', '.join(CORPORA)}")
    is_given = kind is not None
    if kind is None or not (CORPORA[kind].is_one_file and source.is_file()):
        _require(source, is_given)
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
    given = {"labels": labels, "text_field": text_field, "fields": fields}
    options: dict[str, Any] = {name: value for name, value in given.items() if value is not None}
    for name in options.keys() - made.options:
        raise CorpusError(
            f"--{name.replace('_', '-')} does not go with {kind}, which is what"
            f" {show_path(source)} is taken for; leave it out, or choose with --corpus"
        )
    if tokenized and not made.options.isdisjoint({"fields", "tokenized"}):
        options["tokenized"] = True
    corpus = made(source, **options)
    corpus.odd = doubt
    return corpus


def _require(source: Path, is_folder: bool) -> None:
    if source.is_dir() or (source.is_file() and not is_folder):
        return
    found = "is no folder" if source.exists() or source.is_symlink() else "does not exist"
    raise CorpusError(f"{show_path(source)} {found}; give the folder of files to pack")


def container_at(source: Path) -> str | None:
    """Return the kind of third-party containers at ``source``; None if something else is there."""
    if not source.exists() or (source / INDEX_NAME).exists():
        return None
    refuse_orphans(source)
    best = [*_claims(Look(source))]
    return best[0] if len(best) == 1 and best[0] in _CONTAINERS else None


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
    if not claims and is_tar_source(look.source):
        what = "a tar file" if look.is_file else "a folder of tar files"
        raise CorpusError(f"{where} is {what}; use: shardkit convert")
    if not claims:
        raise CorpusError(_nothing(look))
    best = max(claims, key=lambda kind: claims[kind].num_files)
    is_files = claims[best].strength == Strength.FILES and not look.is_file
    if is_files and all(CORPORA[kind].extensions for kind in claims):
        num_strays = Counter({kind: c.num_files for kind, c in claims.items() if kind != best})
        unknown = _unknown(look, claims)
        factor = OUTNUMBERED if {*num_strays} <= {"text", "media"} else DOMINANT
        is_clear = claims[best].num_files >= factor * num_strays.total()
        is_clear &= claims[best].num_files >= unknown.total()
        if not is_clear or _is_outweighed(look, unknown):
            raise CorpusError(_unclear(look, claims, unknown))
    elif len(claims) > 1:
        readings = "; or ".join(f"{c.reading} (--corpus {kind})" for kind, c in claims.items())
        raise CorpusError(f"{where} may be read in several ways: {readings}; choose one")
    return best


def _claims(look: Look) -> dict[str, Claim]:
    """Return the strongest claims, which are of equal strength, by kind."""
    asked = ((kind.name, kind.load().claim(look)) for kind in KINDS if kind.is_asked(look))
    claims = {name: claim for name, claim in asked if claim is not None}
    top = max((claim.strength for claim in claims.values()), default=None)
    return {name: claim for name, claim in claims.items() if claim.strength == top}


def _unknown(look: Look, claims: dict[str, Claim]) -> Counter[str]:
    """Return how many files have each ending that none of some kinds takes."""
    known = {ending for kind in claims for ending in CORPORA[kind].extensions}
    return Counter({end: n for end, n in look.endings.items() if end not in known})


def _known(look: Look, kind: str) -> dict[str, int]:
    return {end: n for end, n in look.endings.items() if end in CORPORA[kind].extensions}


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


def _unclear(look: Look, claims: dict[str, Claim], unknown: Counter[str]) -> str:
    seen = "; ".join(
        f"{CORPORA[kind].noun}: {count_endings(_known(look, kind))}"
        for kind in sorted(claims, key=lambda kind: -claims[kind].num_files)
    )
    beside = f"; and {count_endings(unknown)} of other kinds" if unknown else ""
    choices = "|".join([*claims, "files"])
    return (
        f"{show_path(look.source)} holds {seen}{beside}; choose with --corpus"
        f" {choices}{_archives(look)}"
    )


def _archives(look: Look) -> str:
    found = _ARCHIVES.intersection("." + ending.rpartition(".")[2] for ending in look.endings)
    return f"; unpack the {' and '.join(sorted(found))} if the samples are in there" * bool(found)


def _nothing(look: Look) -> str:
    where = show_path(look.source)
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
    if len(look.folders) > 1:
        return f"nothing to pack in {where}: {len(look.folders) - 1:,} folders and no file"
    if look.top.lost:
        return f"nothing to pack in {where}: no regular file, only {first_few(look.top.lost)}"
    return f"nothing to pack in {where}: it is empty"
