"""Comparing a dataset with what it was packed from."""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from functools import partial
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import numpy as np

from shardkit.errors import CorpusError, IndexFileError, SampleError
from shardkit.images.choice import describe, is_lossless
from shardkit.images.naming import RAW_FIELD, renamed
from shardkit.images.restarting import FIELD as JPEG
from shardkit.images.restarting import without_restarts
from shardkit.images.sniff import IMAGE_FIELDS
from shardkit.index.file_names import INDEX_NAME, REJECTED_NAME
from shardkit.index.manifest import read_rejected
from shardkit.inputs.corpus import Corpus
from shardkit.inputs.detection import CORPORA, open_corpus
from shardkit.inputs.objects.sample_forms import SampleForm
from shardkit.inputs.records.packed import TARS_KIND, dataset_corpus
from shardkit.inputs.single_files import BinaryCorpus, TextCorpus
from shardkit.inputs.tables.tabular import ParquetCorpus, SpooledCorpus
from shardkit.operations.detokenize import TEXT, Texts
from shardkit.operations.unpack import has_restarts, require_undo
from shardkit.packing.objects import open_objects
from shardkit.packing.spool import Spool, are_tables, is_hugging_face, splits_of
from shardkit.samples.encoding import TOKENS
from shardkit.samples.sample import SampleBatch, Value, unpack_paths
from shardkit.shards.locate import Located, locate
from shardkit.shards.stored import ROWS_AT_ONCE, num_that_fit
from shardkit.system.paths import as_path, show_path
from shardkit.system.progress import Progress
from shardkit.tars.find import is_tar_source

File = tuple[bytes, int | None, Value]
"""(path, offset in it if it is a part, contents)."""

PICTURE = "picture"
"""Stands for the field of a picture that was written anew, whatever that was and is called."""


class Originals:
    """The input that a dataset was packed from, to be read once more.

    Where pictures were written anew while packing, all that is compared of them is that each sample
    still has one. Class numbers are compared then, too, unless they came from a file of labels.
    Where JPEGs were given restart markers, and nothing else, they are compared as they were before.

    Attributes:
        rewritten: how pictures were written anew, in words, if they were.
        has_own_labels: whether classes came from a file of labels, which is not compared.
        name: what the input is called, to be printed. num_originals, num_compared: samples of it
            so far, and those of them that the dataset has.
    """

    def __init__(self, place: Located, corpus: Corpus, name: str) -> None:
        info = place.info
        provenance = info.provenance
        self._place, self._corpus, self.name = place, corpus, name
        anew = any(not is_lossless(choice) for choice in provenance.images)
        self.rewritten = [describe(choice) for choice in provenance.images if anew]
        self._has_restarts = has_restarts(info) and not anew
        self.has_own_labels = provenance.has_labels
        self._has_labels = corpus.classes == info.classes and not self.has_own_labels
        self._texts = Texts.of(place.folder, info)
        self._left_out = _rejected(place.folder)
        self._readers = place.readers()
        self._seen = {name: np.zeros(num_rows, bool) for name, num_rows in info.num_rows.items()}
        self.num_compared = self.num_originals = 0

    def differences(self, bar: Progress) -> Iterator[tuple[str, str]]:
        """Yield (where, what) of each difference, file by file, then of what has no original.

        Raises:
            DataError: the dataset is damaged; ``verify`` looks before.
        """
        with TemporaryDirectory(prefix="shardkit-") as scratch:
            for run in self._corpus.runs(Path(scratch)):
                start = 0
                while start < len(run):
                    stop = start + num_that_fit(run.sizes[start : start + ROWS_AT_ONCE])
                    piece = run.slice(start, stop)
                    batch = self._corpus.read(piece, Path(scratch))
                    for path, reason in batch.rejects:
                        if path not in self._left_out:
                            yield show_path(path), reason
                    for i in range(len(batch)):
                        yield from self._compare(run.split, batch, i)
                    self.num_originals += len(batch)
                    bar.add(len(batch), sum(piece.sizes))
                    start = stop
        own = self.has_own_labels or self._corpus.classes == self._place.info.classes
        if self.num_compared and not own:
            what = "its names of classes are not the original's"
            yield f"{self._place.shown}/{INDEX_NAME}", what
        missing = f"has no original in {self.name}"
        for name, seen in self._seen.items():
            for row in np.flatnonzero(~seen).tolist():
                yield self._readers[name].where(row), missing

    def _compare(self, split: str, batch: SampleBatch, i: int) -> Iterator[tuple[str, str]]:
        key = batch.keys[i]
        original = self._files(key, batch.paths[i], batch.fields(i))
        found = self._find(split, key, batch.paths[i])
        if found is None:
            named = {key.decode(errors="backslashreplace")}
            named |= {os.fsdecode(path) for path, _, _ in original.values()}
            is_part = self._place.info.provenance.limit is not None
            if not is_part and not named & self._left_out.keys():
                yield f"sample {os.fsdecode(key)!r}", "is not in the dataset"
            return
        name, row = found
        self._seen[name][row] = True
        self.num_compared += 1
        packed_batch = self._readers[name].samples(row, row + 1)
        packed = self._files(key, packed_batch.paths[0], packed_batch.fields(0))
        if self._texts is not None and TOKENS in packed:
            packed[TEXT] = packed.pop(TOKENS)
        for field in sorted(original.keys() | packed.keys()):
            if what := self._difference(key, field, original.get(field), packed.get(field)):
                yield self._readers[name].where(row), f"its {field} {what}"

    def _difference(
        self, key: bytes, field: str, original: File | None, packed: File | None
    ) -> str:
        """Return how a field differs from its original, ``""`` if it does not."""
        if original is None:
            return "has no original"
        if packed is None:
            return "is not in the dataset"
        value = packed[2]
        if field == PICTURE and packed[0] == renamed(original[0], key, str(value, "ascii")):
            return ""
        if field == JPEG and self._has_restarts:
            try:
                value = without_restarts(value)
            except SampleError as error:
                return f"cannot be given back: {error}"
        if original[:2] != packed[:2]:
            return f"was packed from {show_path(packed[0])}, not {show_path(original[0])}"
        if field == TEXT and self._texts is not None:
            is_same = self._texts.is_text(original[2], value)
        else:
            is_same = original[2] == value
        return "" if is_same else "differs from the original"

    def _find(self, split: str, key: bytes, paths: bytes) -> tuple[str, int] | None:
        """Split and row of the sample of this key that these paths, encoded, became."""
        for name in sorted(self._readers, key=lambda name: name != split):
            index = self._readers[name].index
            if (row := index.find(key)) is None:
                continue
            if name == split:
                return name, row
            # --val-fraction moves samples to another split than the input's own; one of an equal
            # name that was there before came from other files, whatever their endings are now.
            packed, originals = index.name(row)[1].split(b"\0"), paths.split(b"\0")
            stems = tuple(path.rpartition(b".")[0] or path for path in originals)
            is_shared = any(path.startswith(stems) for path in packed)
            if not self.rewritten:
                is_shared = not {*packed}.isdisjoint(originals)
            if is_shared:
                return name, row
        return None

    def _files(self, key: bytes, paths: bytes, fields: dict[str, Value]) -> dict[str, File]:
        """Return the fields that came from files; the class's docstring tells when labels count."""
        found = unpack_paths(key, paths, [*fields])
        files = {name: (path, offset, fields[name]) for name, path, offset in found}
        if not self.rewritten:
            return files
        if "cls" in fields and "cls" not in files and self._has_labels:
            files["cls"] = b"", None, fields["cls"]
        pictures = files.keys() & IMAGE_FIELDS or files.keys() & {RAW_FIELD}
        for name in sorted(pictures):
            files[PICTURE] = files.pop(name)[0], None, name.encode()
        return files


def _rejected(folder: Path) -> dict[str, str]:
    """Return path -> reason of the lines of ``rejected.jsonl``.

    Raises:
        IndexFileError: it is damaged.
    """
    lines = read_rejected(folder).splitlines()
    try:
        told = map(json.loads, lines)
        return {str(line["path"]): str(line["reason"]) for line in told}
    except (ValueError, KeyError, TypeError, RecursionError, MemoryError) as error:
        where = show_path(folder / REJECTED_NAME)
        raise IndexFileError(f"{where} is damaged: {error}") from error


# --- what verify was given ----------------------------------------------------------------

Opener = Callable[[bool | None], AbstractContextManager[Originals]]
"""Opens the originals for the time of one comparison; given whether to show progress."""


def originals_of(place: Located, against: Any) -> Opener:
    """Return what opens the input that ``verify`` was given to compare a dataset with.

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
    """Return the samples of an object, as they were packed. Raises CorpusError if they were not."""
    spec = place.info.provenance.spec
    if place.info.provenance.kind not in ("objects", "stream"):
        raise CorpusError(f"{place.shown} was not packed from a Python object: give its files")
    if spec.get("fn"):
        raise CorpusError(
            f"{place.shown} was packed by fn={spec['fn'][0]}: give a function that yields its"
            " samples, or a list of them"
        )
    held = spec.get("names"), place.info.provenance.fields
    names, fields = (None if each is None else tuple(each) for each in held)
    form = SampleForm(names=names, fields=fields)
    return open_objects(source, None, form, place.info.classes)


@contextmanager
def _spooled(place: Located, splits: dict[str, Any], progress: bool | None) -> Iterator[Originals]:
    provenance = place.info.provenance
    with TemporaryDirectory(prefix="shardkit-") as scratch, Spool(Path(scratch, "rows")) as spool:
        spool.fill(splits, None, progress)
        corpus = SpooledCorpus(spool.folder, [*splits], provenance.text_field, provenance.fields)
        yield Originals(place, corpus, "the given dataset")


def _input_at(place: Located, source: Path) -> Corpus:
    """Return the input of a dataset as a corpus. Raises CorpusError."""
    provenance = place.info.provenance
    if provenance.kind == TARS_KIND and is_tar_source(source):
        return dataset_corpus(locate(source))
    if provenance.kind not in CORPORA:
        what = "was not packed from a folder of files: there is nothing to compare it with"
        if provenance.kind == TARS_KIND:
            what = f"was made of tars, and {show_path(source)} is none: nothing to compare it with"
        raise CorpusError(f"{place.shown} {what}")
    is_dataset = (source / INDEX_NAME).is_file() and any(source.glob("*.rows"))  # no stray manifest
    if provenance.kind != BinaryCorpus.kind and is_dataset:
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
