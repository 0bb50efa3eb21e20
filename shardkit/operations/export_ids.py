"""Token ids as nanoGPT and Megatron read them.

:mod:`shardkit.tokens.id_files` reads them back.

Ids take the dtype that these programs expect. Their vocabulary stands beside them in ``meta.json``:
nanoGPT's own ``meta.pkl`` would be a pickle, and it does without one.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, ClassVar

import numpy as np

from shardkit.arrays import Integers, Tokens
from shardkit.errors import FormatError, UsageError
from shardkit.operations.detokenize import spec_of
from shardkit.samples.encoding import TOKENS, parse_npy
from shardkit.samples.sample import Value
from shardkit.shards.locate import Located
from shardkit.shards.stored import ShardReader
from shardkit.system.progress import Progress
from shardkit.tokens.id_evidence import META
from shardkit.tokens.id_files import INDEX_HEAD, INDEX_MAGIC
from shardkit.tokens.load import open_tokenizer

MAX_DOCUMENT = 2**31 - 1
"""Tokens of a document that Megatron's index can tell."""


class DocumentBlocks:
    """The documents of a split, in blocks that fit into memory; counted as they are given.

    Iterating raises DataError where what is stored is damaged, is no ids, or does not fit.

    Attributes:
        dtype: of their ids. num_documents, num_tokens: given so far. num_without: samples so far
            that have no tokens.
    """

    def __init__(self, reader: ShardReader, dtype: np.dtype[Any], bar: Progress) -> None:
        self.dtype = dtype
        self.num_documents = self.num_tokens = self.num_without = 0
        self._reader = reader
        self._bar = bar

    def __iter__(self) -> Iterator[list[Tokens]]:
        for start, values in _values(self._reader):
            block = [
                self._narrowed(value, row)
                for row, value in enumerate(values, start)
                if value is not None
            ]
            num_tokens = sum(map(len, block))
            self.num_documents += len(block)
            self.num_tokens += num_tokens
            self.num_without += len(values) - len(block)
            self._bar.add(len(values), num_tokens * self.dtype.itemsize)
            yield block

    def _narrowed(self, value: Value, row: int) -> Tokens:
        """A document's ids in the dtype of all, into which none is cut down."""
        ids = _ids(self._reader, value, row)
        if len(ids) > MAX_DOCUMENT:
            raise FormatError(f"{self._reader.where(row)}: {len(ids)} tokens in one document")
        if ids.dtype != self.dtype and len(ids):
            least, most = int(ids.min()), int(ids.max())
            if least < 0 or most > np.iinfo(self.dtype).max:
                raise FormatError(
                    f"{self._reader.where(row)}: id {least if least < 0 else most} does not fit"
                    f" {self.dtype.name}, which holds the vocabulary"
                )
        return np.ascontiguousarray(ids, self.dtype)


def vocabulary_of(readers: Mapping[str, ShardReader]) -> int:
    """One more than the largest id, where no tokenizer says how many there are."""
    largest = -1
    for reader in readers.values():
        for start, values in _values(reader):
            for row, value in enumerate(values, start):
                if value is not None and len(ids := _ids(reader, value, row)):
                    largest = max(largest, int(ids.max()))
    return largest + 1


def _values(reader: ShardReader) -> Iterator[tuple[int, list[Value | None]]]:
    """(first row, tokens of it and of those that follow) of all rows; None where there are none."""
    for start, stop in reader.row_ranges(0, len(reader.index.table)):
        none: list[Value | None] = [None] * (stop - start)
        yield start, reader.samples(start, stop).columns.get(TOKENS, none)


def _ids(reader: ShardReader, value: Value, row: int) -> Tokens:
    ids = parse_npy(value)
    if ids.ndim != 1 or ids.dtype.kind not in "ui":
        raise FormatError(
            f"{reader.where(row)}: its tokens are {ids.dtype}{list(ids.shape)}, expected ids"
        )
    return ids


WRITE_BYTES = 1 << 20

INDEX_STEP = 1 << 20
"""Documents whose lengths are in memory together while an index is written."""

INT32_FROM = 65_500
"""The vocabulary from which on Megatron's own tools write int32, in place of uint16."""


@dataclass
class Exported:
    """What an export has written.

    Attributes:
        num_files: those that hold samples. num_tokens: in all. notes: what there is to know, a line
            each.
    """

    num_files: int = 0
    num_tokens: int = 0
    notes: list[str] = field(default_factory=list)


def readers_of(place: Located) -> dict[str, ShardReader]:
    """Split -> what reads it."""
    info = place.info
    return {name: ShardReader(place.storage, info, split) for name, split in info.splits.items()}


class IdsExport:
    """What both formats share: a file a split, of documents one after another.

    Raises:
        UsageError: the dataset holds no tokens.
    """

    name: ClassVar[str]

    def __init__(self, place: Located) -> None:
        self._place = place
        self._spec = spec_of(place.info)
        if TOKENS not in place.info.fields:
            held = ", ".join(place.info.fields)
            raise UsageError(
                f"{place.shown} holds {held}, and {self.name} files hold tokens alone;"
                " pack it with --tokenizer, or convert it to parquet"
            )

    def dtype_for(self, vocab_size: int) -> np.dtype[Any]:
        """What ids of such a vocabulary are written in."""
        raise NotImplementedError

    def write_split(self, prefix: Path, documents: DocumentBlocks) -> None:
        """Write the files of one split, whose names begin with ``prefix``."""
        raise NotImplementedError

    def notes_on(self, dtype: np.dtype[Any]) -> list[str]:
        """What those must know who read the files."""
        return []

    def write(self, folder: Path, bar: Progress) -> Exported:
        """Write all splits.

        Raises:
            DataError: what is stored is damaged, is no ids, or does not fit.
        """
        readers = readers_of(self._place)
        vocab_size = self._spec.vocab_size if self._spec else vocabulary_of(readers)
        dtype = self.dtype_for(vocab_size)
        done, counts = Exported(), dict[str, dict[str, int]]()
        for name, reader in readers.items():
            documents = DocumentBlocks(reader, dtype, bar)
            self.write_split(folder / name, documents)
            if not documents.num_tokens:
                raise FormatError(f"split {name} of {self._place.shown} has no token")
            counts[name] = {"documents": documents.num_documents, "tokens": documents.num_tokens}
            done.num_files += 1
            done.num_tokens += documents.num_tokens
            if documents.num_without:
                done.notes.append(f"{name}: left out {documents.num_without:,} without tokens")
        self._write_meta(folder, {"vocab_size": vocab_size, "dtype": dtype.name}, counts)
        done.notes += self._left_out() + self.notes_on(dtype)
        return done

    def _write_meta(
        self, folder: Path, meta: dict[str, Any], splits: dict[str, dict[str, int]]
    ) -> None:
        """What no file of ids says, and the tokenizer's own file, if it is known."""
        spec = self._spec
        for name in ("eos", "bos"):
            meta[name] = getattr(spec, name, None)
        meta |= {"tokenizer": spec.file if spec else None, "splits": splits}
        (folder / META).write_bytes(json.dumps(meta, indent=1).encode() + b"\n")
        if spec is not None and spec.file is not None:
            (folder / spec.file).write_bytes(open_tokenizer(self._place.folder, spec).file)

    def _left_out(self) -> list[str]:
        others = [name for name in self._place.info.fields if name != TOKENS]
        why = f"{self.name} files hold tokens alone"
        return [f"left out: {', '.join(others)} ({why})"] if others else []


class BinExport(IdsExport):
    """nanoGPT's ``train.bin`` and ``val.bin``: ids alone, documents end to end."""

    name = "bin"

    def dtype_for(self, vocab_size: int) -> np.dtype[Any]:
        return np.dtype("<u2" if vocab_size <= 1 << 16 else "<u4")

    def write_split(self, prefix: Path, documents: DocumentBlocks) -> None:
        with open(f"{prefix}.bin", "wb", buffering=WRITE_BYTES) as out:
            for block in documents:
                for ids in block:
                    out.write(ids.data)

    def notes_on(self, dtype: np.dtype[Any]) -> list[str]:
        notes = []
        if dtype.itemsize > 2:
            notes.append(f"ids are {dtype.name}, and nanoGPT's get_batch reads uint16: change that")
        if "val" not in self._place.info.splits:
            notes.append("there is no val.bin, which nanoGPT reads, too: pack with --val-fraction")
        if self._spec is None or self._spec.eos is None:
            notes.append("no id ends documents, so nothing says where they end; megatron files do")
        return notes


class MegatronExport(IdsExport):
    """Megatron's ``IndexedDataset``: ``train.bin`` and ``train.idx``, a document a sequence."""

    name = "megatron"

    def dtype_for(self, vocab_size: int) -> np.dtype[Any]:
        return np.dtype("<u2" if vocab_size < INT32_FROM else "<i4")

    def write_split(self, prefix: Path, documents: DocumentBlocks) -> None:
        lengths = Path(f"{prefix}.lengths")
        with (
            open(f"{prefix}.bin", "wb", buffering=WRITE_BYTES) as out,
            lengths.open("wb", buffering=WRITE_BYTES) as lengths_out,
        ):
            for block in documents:
                for ids in block:
                    out.write(ids.data)
                lengths_out.write(np.array([len(ids) for ids in block], "<i8").tobytes())
        _write_index(Path(f"{prefix}.idx"), lengths, documents)
        lengths.unlink()


def _write_index(path: Path, lengths: Path, documents: DocumentBlocks) -> None:
    """An ``.idx`` of documents that are a sequence each, in the layout of
    ``megatron/core/datasets/indexed_dataset.py``: lengths, places in bytes, first sequences."""
    count, dtype = documents.num_documents, documents.dtype
    code = {"uint16": 8, "int32": 4}[dtype.name]
    with path.open("wb", buffering=WRITE_BYTES) as out:
        out.write(INDEX_HEAD.pack(INDEX_MAGIC, 1, code, count, count + 1))
        for part in _parts(lengths):
            out.write(part.astype("<i4").tobytes())
        start = 0
        for part in _parts(lengths):
            ends = start + np.cumsum(part)
            out.write(((ends - part) * dtype.itemsize).tobytes())
            start = int(ends[-1])
        for first in range(0, count + 1, INDEX_STEP):
            out.write(np.arange(first, min(first + INDEX_STEP, count + 1), dtype="<i8").tobytes())


def _parts(lengths: Path) -> Iterator[Integers]:
    """(n,) int64 lengths of some documents, until all were given."""
    with lengths.open("rb") as file:
        while data := file.read(8 * INDEX_STEP):
            part: Integers = np.frombuffer(data, "<i8")
            yield part
