"""Samples from Python: objects that are packed, and the ``Writer`` of a loop that has one after
another."""

from __future__ import annotations

import os
import time
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from pathlib import Path
from queue import Empty, Full, Queue
from threading import Lock, Thread
from typing import Any, Self

from shardkit.commit.work_folder import STAGE_NAME, WORK_NAME
from shardkit.errors import DestinationError, SampleError, ShardkitError, UsageError
from shardkit.index.file_names import is_field_name
from shardkit.index.journal import Receipt, read_receipt
from shardkit.index.manifest import read_rejected
from shardkit.inputs.corpus import Corpus
from shardkit.inputs.objects.iterables import Chunk, StreamCorpus
from shardkit.inputs.objects.numbered_rows import (
    NumberedRows,
    RowsCorpus,
    described,
    is_map_style,
    iterator_of,
    splits_of,
)
from shardkit.inputs.objects.sample_forms import SampleForm
from shardkit.memory.maps import read_file
from shardkit.packing.finish import complete_dataset, in_order
from shardkit.packing.options import PackOptions, parse_fields, parse_options
from shardkit.packing.result import COMPLETE, PackResult, result_of
from shardkit.packing.run import run_pack
from shardkit.remote.urls import as_place
from shardkit.system.functions import load_function
from shardkit.system.paths import as_path, show_path
from shardkit.system.refusals import os_errors

MAX_LIST_BYTES = 1 << 30
"""The largest file of inputs that is read."""


def pack_objects(
    source: Any,
    dest: str | Path,
    made: PackOptions,
    fn: Callable[[Any], Any] | str | None,
    names: Sequence[str] | None,
    fields: Sequence[str] | None,
    classes: Sequence[str] | None,
    started: float,
) -> PackResult:
    """Pack the samples of an object. Arguments are as of :func:`shardkit.packing.pack.pack`.

    Raises:
        UsageError: it cannot be packed, or not with these options.
    """
    if isinstance(fn, str):
        fn = load_function(fn, "fn")
    if isinstance(source, (str, os.PathLike)):
        source = inputs_in(as_path(source, "the source"))
    given = check_names(classes, "classes")
    known = classes_of(splits_of(source)) if given is None else [*given]
    opened = open_objects(source, fn, form_of(made, names, fields, known), known)
    if opened.is_read_once:
        refuse_for_streams(made)
    return run_pack(Path(described(source)), opened, as_place(dest, "dest"), made, started)


def form_of(
    made: PackOptions,
    names: Sequence[str] | None,
    fields: Sequence[str] | None,
    classes: Sequence[str] | None,
) -> SampleForm:
    """Return how samples are read. Raises UsageError for names that cannot be."""
    return SampleForm(
        names=check_names(names, "names"),
        fields=None if fields is None else tuple(fields),
        num_classes=None if classes is None else len(classes),
        is_reencoded=made.images.image_format not in ("keep", "png"),
    )


def check_names(given: Sequence[str] | None, option: str) -> tuple[str, ...] | None:
    """Return names as a tuple. Raises UsageError for what is no list of texts."""
    made = None if isinstance(given, str) or not isinstance(given, Iterable) else tuple(given)
    if given is not None and (made is None or not all(isinstance(name, str) for name in made)):
        raise UsageError(f"{option} must be a list of texts, got {given!r:.200}")
    return made


def open_objects(
    source: Any, fn: Callable[[Any], Any] | None, form: SampleForm, classes: list[str] | None
) -> Corpus:
    """Return the samples of an object as a corpus. Raises UsageError for what gives none."""
    splits = splits_of(source)
    for own in splits.values() if fn is None else ():
        _refuse_paths(own)
    if all(map(is_map_style, splits.values())):
        rows = {name: NumberedRows(own, fn) for name, own in splits.items()}
        return RowsCorpus(rows, form, classes)
    if fn is not None:
        raise UsageError("fn takes inputs that have a number: pass a list of them")
    for own in splits.values():
        if not callable(own):  # a function may do much before its iterator is there
            iterator_of(own)
    return StreamCorpus(splits, form, classes)


def _refuse_paths(source: Any) -> None:
    """Raise UsageError for a text, or paths as texts, which would be packed as texts."""
    if isinstance(source, str | bytes):
        raise UsageError(f"the source of a split is {source[:200]!r}: pass a list or a dataset")
    first = source[0] if isinstance(source, list | tuple) and source else None
    values = [*first.values()] if isinstance(first, dict) else first
    for value in values if isinstance(values, list | tuple) else [values]:
        if isinstance(value, str) and len(value) < 4096 and os.path.isfile(value):
            raise UsageError(
                f"the first sample holds the path of a file as a text, {value[:200]!r}: pass"
                " pathlib.Path(...) to pack the file, or fn= to read it"
            )


def inputs_in(path: Path) -> list[Any]:
    """Return the inputs that a path stands for: the files of a folder, or the lines of a file.

    Raises:
        UsageError: there is no such thing, or nothing in it.
    """
    with os_errors(f"reading {show_path(path)}"):
        if path.is_dir():
            found: list[Any] = sorted(own for own in path.rglob("*") if own.is_file())
        else:
            lines = read_file(path, MAX_LIST_BYTES).decode("utf-8", "surrogateescape").split("\n")
            found = [line.rstrip("\r") for line in lines if line.strip()]
    if not found:
        raise UsageError(f"{show_path(path)} has no inputs for fn")
    return found


def classes_of(splits: dict[str, Any]) -> list[str] | None:
    """Return the names of classes that the source itself says, alike in all of its splits."""
    found = [getattr(own, "classes", None) for own in splits.values()]
    first = found[0]
    if not isinstance(first, list | tuple) or not all(isinstance(name, str) for name in first):
        return None
    return [*first] if all(other == first for other in found) else None


def refuse_for_streams(made: PackOptions) -> None:
    """Raise UsageError for options that need rows by number."""
    if made.part is not None or made.engine == "ray":
        name = "engine='ray'" if made.part is None else "part"
        raise UsageError(
            f"{name} needs rows by number, and the source can only be iterated over; pass a dataset"
            " with __len__ and __getitem__, or a list of inputs and fn="
        )


_WAIT_S = 0.2
"""Seconds between checks whether the packer has failed."""


class Writer:
    """Writes samples into a dataset, shard by shard. A context manager; threads may share it.

    A shard is packed, and on the disk, while the next one is filled, so memory holds a few MB of
    samples. The dataset appears at ``dest`` when the block ends well; after an exception, or a
    kill, nothing there opens as a dataset, and ``resume=True`` goes on behind the last whole shard.

    Args:
        dest: folder to make.
        to, shard_size, fields, names, classes: as of :func:`shardkit.pack`.
        part: prefix of the keys of samples that have none of their own (``__key__``), so that
            datasets of several writers can be merged.
        resume: go on with what an earlier writer left at ``dest``.
        options: as of :func:`shardkit.pack`, but for those that need the number of samples.

    Attributes:
        written: split -> how many of its samples an earlier writer has packed: with ``resume``, go
            on behind these. result: what was made, once the block has ended.

    Raises:
        UsageError: an option is wrong. DestinationError: ``dest`` holds something.
    """

    def __init__(
        self,
        dest: str | Path,
        *,
        to: str | None = None,
        shard_size: str | int | None = None,
        fields: str | Sequence[str] | None = None,
        names: Sequence[str] | None = None,
        classes: Sequence[str] | None = None,
        part: str = "",
        resume: bool = False,
        **options: Any,
    ) -> None:
        self.dest = as_path(dest, "dest")
        for name in ("shuffle", "val_fraction", "limit", "train_tokenizer", "part"):
            if options.get(name):
                raise UsageError(f"a Writer takes no {name}: it does not know the samples to come")
        if part and not is_field_name(part):
            raise UsageError(f"part {part!r} cannot begin keys (A-Z a-z 0-9 _ . -)")
        options = {"progress": False, **options}
        self._options = parse_options(to, shard_size, options)
        refuse_for_streams(self._options)
        known = check_names(classes, "classes")
        self._form = form_of(self._options, names, parse_fields(fields), known)
        self._prefix = f"{part}-".encode() if part else b""
        with os_errors(f"opening {show_path(self.dest)}"):
            before = _packed_before(self.dest)
        packed = Counter[str]()
        for receipt in before:
            packed[receipt.split] += receipt.num_rows + len(receipt.rejects)
        if before and not (resume or self._options.overwrite):
            raise DestinationError(
                f"{show_path(self.dest)} holds {packed.total():,} samples of a Writer that"
                " did not end: pass resume=True to go on behind them, or overwrite=True"
            )
        self.result = _complete_before(self.dest, self._options) if resume else None
        before = before if resume else []
        self.written: dict[str, int] = dict(packed) if resume else {}
        if self.result is not None:
            self.written = dict(self.result.splits)
        self._counts = dict(self.written)
        self._filling: dict[str, Chunk] = {}
        self._chunks: Queue[tuple[str, Chunk] | None] = Queue(2)
        self._error: BaseException | None = None
        self._is_given_up = False
        self._filling_lock = Lock()
        self._corpus = _Chunks(self._form, None if known is None else [*known], before)
        self._thread = Thread(target=self._pack, name="shardkit-writer", daemon=True)
        self._is_open = True
        if self.result is None:
            self._thread.start()

    @property
    def num_written(self) -> int:
        """Return how many samples an earlier writer has packed, over all splits."""
        return sum(self.written.values())

    def write(self, sample: Any, split: str = "train") -> None:
        """Add a sample: a dict of fields, or a tuple, as of :func:`shardkit.pack`.

        Raises:
            SampleError: a value cannot be stored; nothing is added.
            DataError: packing failed: the disk is full, or the like.
        """
        if not self._is_open:
            raise UsageError("this Writer is closed")
        if self.result is not None:
            raise DestinationError(
                f"{show_path(self.dest)} is complete already, with {self.num_written:,} samples:"
                " skip those, or pass overwrite=True to write another dataset"
            )
        self._raise()
        if not is_field_name(split):
            raise UsageError(f"split {split!r} cannot name files (A-Z a-z 0-9 _ . -)")
        with self._filling_lock:
            number = self._counts.get(split, 0)
            chunk = self._filling.get(split)
            if chunk is None:
                chunk = self._filling[split] = Chunk(self._form)
            try:
                chunk.add(self._prefix + b"%012d" % number, sample)
            except SampleError as error:
                raise SampleError(f"split {split}, sample {number:,} {error}") from error
            self._counts[split] = number + 1
            if chunk.is_full:
                self._put((split, self._filling.pop(split)))

    def close(self) -> PackResult:
        """Pack what is left, and have the dataset appear."""
        if self.result is not None:
            self._is_open = False
            return self.result
        if self._is_open:
            for split, chunk in self._filling.items():
                self._put((split, chunk))
            self._put(None)
            self._is_open = False
        self._thread.join()
        self._raise()
        if self.result is None:
            raise DestinationError(f"{show_path(self.dest)} was not written")
        return self.result

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *error: object) -> None:
        if error[0] is None:
            self.close()
            return
        self._is_open, self._is_given_up = False, True
        if self._thread.is_alive():
            self._thread.join()

    # --- the packer's side ----------------------------------------------------------------

    def _put(self, chunk: tuple[str, Chunk] | None) -> None:
        while True:
            self._raise()
            try:
                self._chunks.put(chunk, timeout=_WAIT_S)
                return
            except Full:
                continue

    def _raise(self) -> None:
        if self._error is not None:
            error, self._is_open = self._error, False
            raise error

    def _pack(self) -> None:
        try:
            source = Path("<Writer>")
            self._corpus.chunks = self._arriving()
            started = time.perf_counter()
            self.result = run_pack(source, self._corpus, self.dest, self._options, started)
        except BaseException as error:  # noqa: BLE001  # raised again where samples are written
            self._error = None if self._is_given_up else error

    def _arriving(self) -> Iterator[tuple[str, Chunk]]:
        while True:
            if self._is_given_up:
                raise ShardkitError("the block of the Writer ended in an error")
            try:
                chunk = self._chunks.get(timeout=_WAIT_S)
            except Empty:
                continue
            if chunk is None:
                return
            yield chunk


class _Chunks(StreamCorpus):
    """The chunks that a writer is given, after the shards that were packed before."""

    def __init__(
        self, form: SampleForm, classes: list[str] | None, packed: Sequence[Receipt]
    ) -> None:
        super().__init__({}, form, classes)
        self.packed = packed
        self.chunks: Iterator[tuple[str, Chunk]] = iter(())

    def _chunks(self) -> Iterator[tuple[str, Chunk]]:
        return self.chunks


def _complete_before(dest: Path, options: PackOptions) -> PackResult | None:
    """Return what an earlier Writer made, if it was killed when nothing was left to do."""
    info = complete_dataset(dest, options)
    if info is None or info.provenance.kind != StreamCorpus.kind:
        return None
    num_rejects = read_rejected(dest).count(b"\n")
    notes = [COMPLETE]
    return result_of(
        dest, dest, info, StreamCorpus.kind, num_rejects=num_rejects, notes=notes, was_complete=True
    )


def _packed_before(dest: Path) -> list[Receipt]:
    """Return the receipts of complete shards that an earlier writer left, the first of each split.

    A shard behind one that is missing is packed anew: its samples come once more.
    """
    work = dest / WORK_NAME
    found: dict[str, list[Receipt]] = {}
    receipts = [receipt for path in work.glob("*.part") if (receipt := read_receipt(path))]
    for receipt in in_order(receipts):
        own = found.setdefault(receipt.split, [])
        is_there = all((work / STAGE_NAME / name).exists() for name in receipt.file_bytes)
        if is_there and receipt.shard == len(own):
            own.append(receipt)
    return [receipt for own in found.values() for receipt in own]
