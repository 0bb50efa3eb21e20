"""What ``verify`` compares a dataset with: files, or rows of a dataset of Hugging Face."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from functools import partial
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from shardkit.errors import CorpusError
from shardkit.index.manifest import INDEX_NAME
from shardkit.inputs.base import Corpus
from shardkit.inputs.binaries import BinaryCorpus
from shardkit.inputs.objects.fields import SampleForm
from shardkit.inputs.open import CORPORA, open_corpus
from shardkit.inputs.records.tars import TARS_KIND, tar_corpus
from shardkit.inputs.tables.tabular import ParquetCorpus, SpooledCorpus
from shardkit.inputs.text import TextCorpus
from shardkit.operations.compare import Originals
from shardkit.operations.restored import require_undo
from shardkit.packing.hugging_face import are_tables, is_hugging_face
from shardkit.packing.objects import open_objects
from shardkit.packing.spool import Spool, splits_of
from shardkit.shards.locate import Located
from shardkit.system.paths import as_path, show_path
from shardkit.tars.find import is_tar_source

Opener = Callable[[bool | None], AbstractContextManager[Originals]]
"""Opens the originals for the time of one comparison; given whether to show progress."""


def originals_of(place: Located, against: Any) -> Opener:
    """What ``verify`` was given to compare a dataset with.

    Rows of a dataset of Hugging Face are taken when it is opened, into a folder that goes at the
    end; it is said here already if they cannot be what was packed.

    Raises:
        UsageError: this is neither a path nor an object that gives samples, or restart markers were
            added, and what removes them was not built. CorpusError: the dataset does not know its
            input, or this is of another kind.
    """
    require_undo(place.info)
    if place.info.version > 1:
        raise CorpusError(
            f"{place.shown} was changed since it was packed, and its version {place.info.version}"
            " is not what any one input was: compare version 1, or pack anew and use `shardkit"
            " diff`"
        )
    if "datasets" in place.info.provenance.spec:
        raise CorpusError(
            f"{place.shown} was merged of datasets that were packed by themselves: compare each of"
            " those with its input"
        )
    if is_hugging_face(against) or are_tables(against):
        if place.info.provenance.kind != ParquetCorpus.kind:
            raise CorpusError(
                f"{place.shown} was not packed from rows of a dataset in Python: give"
                " the files that it was packed from"
            )
        return partial(_spooled, place, splits_of(against))
    if not isinstance(against, str | os.PathLike):
        objects = _objects(place, against)
        return lambda _: nullcontext(Originals(place, objects, "the given object"))
    source = as_path(against, "the original input")
    corpus = _input_at(place, source)
    return lambda _: nullcontext(Originals(place, corpus, show_path(source)))


def _objects(place: Located, source: Any) -> Corpus:
    """The samples of an object, as they were packed. Raises CorpusError if they were not."""
    spec = place.info.provenance.spec
    if place.info.provenance.kind not in ("objects", "stream"):
        raise CorpusError(f"{place.shown} was not packed from a Python object: give its files")
    if spec.get("fn"):
        raise CorpusError(
            f"{place.shown} was packed by fn={spec['fn'][0]}: give a function that yields its"
            " samples, or a list of them"
        )
    names, fields = spec.get("names"), place.info.provenance.fields
    form = SampleForm(
        names=None if names is None else tuple(names),
        fields=None if fields is None else tuple(fields),
    )
    return open_objects(source, None, form, place.info.classes)


@contextmanager
def _spooled(place: Located, splits: dict[str, Any], progress: bool | None) -> Iterator[Originals]:
    provenance = place.info.provenance
    with TemporaryDirectory(prefix="shardkit-") as scratch, Spool(Path(scratch, "rows")) as spool:
        spool.fill(splits, None, progress)
        corpus = SpooledCorpus(spool.folder, [*splits], provenance.text_field, provenance.fields)
        yield Originals(place, corpus, "the given dataset")


def _input_at(place: Located, source: Path) -> Corpus:
    """The input of a dataset as a corpus. Raises CorpusError."""
    provenance = place.info.provenance
    if provenance.kind == TARS_KIND and is_tar_source(source):
        return tar_corpus(source)
    if provenance.kind not in CORPORA:
        what = "was not packed from a folder of files: there is nothing to compare it with"
        if provenance.kind == TARS_KIND:
            what = f"was made of tars, and {show_path(source)} is none: nothing to compare it with"
        raise CorpusError(f"{place.shown} {what}")
    if provenance.kind != BinaryCorpus.kind and _is_dataset(source):
        raise CorpusError(
            f"{show_path(source)} is a shardkit dataset: give the files that {place.shown} was"
            " packed from; two datasets hold the same if `shardkit info --json` says the same"
            " fingerprints of both"
        )
    # What was packed without classes, as tokens or before texts had any, is compared without them.
    return open_corpus(
        source,
        provenance.kind,
        text_field=provenance.text_field,
        fields=provenance.fields,
        tokenized=provenance.kind == TextCorpus.kind and place.info.classes is None,
    )


def _is_dataset(source: Path) -> bool:
    """Not where a stray shardkit.json lies among files that were packed."""
    return (source / INDEX_NAME).is_file() and any(source.glob("*.rows"))
