"""Token ids as nanoGPT and Megatron read them.

:mod:`shardkit.tokens.id_files` reads them back.

Ids take the dtype that these programs expect. Their vocabulary stands beside them in ``meta.json``:
nanoGPT's own ``meta.pkl`` would be a pickle, and it does without one.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, ClassVar

import numpy as np

from shardkit.arrays import Integers, Tokens
from shardkit.errors import FormatError, UsageError
from shardkit.samples.encoding import TOKENS, parse_npy
from shardkit.shards.locate import Located
from shardkit.shards.stored import ShardReader
from shardkit.system.progress import Progress
from shardkit.tokens.id_evidence import META
from shardkit.tokens.id_files import INDEX_HEAD, INDEX_MAGIC
from shardkit.tokens.load import open_tokenizer

MAX_DOCUMENT = 2**31 - 1
"""Tokens of a document that Megatron's index can tell."""

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


def _blocks(reader: ShardReader) -> Iterator[tuple[int, dict[int, Tokens]]]:
    """Yield how many rows follow, as many as fit into memory, and row -> ids of those with tokens.

    Raises:
        DataError: what is stored is damaged, or is no ids.
    """
    for start, stop in reader.row_ranges(0, len(reader.index.table)):
        found = {}
        for row, value in enumerate(reader.samples(start, stop).columns.get(TOKENS, ()), start):
            if value is not None:
                ids = found[row] = parse_npy(value)
                if ids.ndim != 1 or ids.dtype.kind not in "ui":
                    what = f"its tokens are {ids.dtype}{list(ids.shape)}, expected ids"
                    raise FormatError(f"{reader.where(row)}: {what}")
        yield stop - start, found


def _narrowed(reader: ShardReader, ids: Tokens, row: int, dtype: np.dtype[Any]) -> Tokens:
    """Return a document's ids in the dtype of all, into which none is cut down."""
    if len(ids) > MAX_DOCUMENT:
        raise FormatError(f"{reader.where(row)}: {len(ids)} tokens in one document")
    if ids.dtype != dtype and len(ids):
        least, most = int(ids.min()), int(ids.max())
        if least < 0 or most > np.iinfo(dtype).max:
            raise FormatError(
                f"{reader.where(row)}: id {least if least < 0 else most} does not fit"
                f" {dtype.name}, which holds the vocabulary"
            )
    return np.ascontiguousarray(ids, dtype)


class IdsExport:
    """What both formats share: a file a split, of documents one after another.

    Raises:
        UsageError: the dataset holds no tokens.
    """

    name: ClassVar[str]

    def __init__(self, place: Located) -> None:
        self._place = place
        self._spec = place.info.tokenizer
        if TOKENS not in place.info.fields:
            held = ", ".join(place.info.fields)
            raise UsageError(
                f"{place.shown} holds {held}, and {self.name} files hold tokens alone;"
                " pack it with --tokenizer, or convert it to parquet"
            )

    def dtype_for(self, vocab_size: int) -> np.dtype[Any]:
        """Return what ids of such a vocabulary are written in."""
        raise NotImplementedError

    def write_index(self, prefix: Path, lengths: Path, dtype: np.dtype[Any]) -> None:
        """Write what tells where documents lie; ``lengths`` is a file of int64, one a document."""

    def notes_on(self, dtype: np.dtype[Any]) -> list[str]:
        """Return what those must know who read the files."""
        return []

    def write(self, folder: Path, bar: Progress) -> Exported:
        """Write all splits.

        Raises:
            DataError: what is stored is damaged, is no ids, or does not fit.
        """
        readers = self._place.readers()
        if self._spec is not None:
            vocab_size = self._spec.vocab_size
        else:  # one more than the largest id
            blocks = (block for reader in readers.values() for _, block in _blocks(reader))
            filled = (ids for block in blocks for ids in block.values() if len(ids))
            vocab_size = max((int(ids.max()) for ids in filled), default=-1) + 1
        dtype = self.dtype_for(vocab_size)
        done, counts = Exported(), dict[str, dict[str, int]]()
        for name, reader in readers.items():
            counts[name] = self._write_split(folder / name, reader, dtype, bar)
            num_tokens = counts[name]["tokens"]
            if not num_tokens:
                raise FormatError(f"split {name} of {self._place.shown} has no token")
            done.num_files += 1
            done.num_tokens += num_tokens
            if num_without := reader.index.split.num_rows - counts[name]["documents"]:
                done.notes.append(f"{name}: left out {num_without:,} without tokens")
        self._write_meta(folder, {"vocab_size": vocab_size, "dtype": dtype.name}, counts)
        others = [name for name in self._place.info.fields if name != TOKENS]
        if others:
            why = f"{self.name} files hold tokens alone"
            done.notes.append(f"left out: {', '.join(others)} ({why})")
        done.notes += self.notes_on(dtype)
        return done

    def _write_split(
        self, prefix: Path, reader: ShardReader, dtype: np.dtype[Any], bar: Progress
    ) -> dict[str, int]:
        """Write the files of one split, whose names begin with ``prefix``; return its counts."""
        lengths = Path(f"{prefix}.lengths")
        counts = {"documents": 0, "tokens": 0}
        with (
            open(f"{prefix}.bin", "wb", buffering=WRITE_BYTES) as out,
            lengths.open("wb", buffering=WRITE_BYTES) as lengths_out,
        ):
            for num_rows, block in _blocks(reader):
                documents = [_narrowed(reader, ids, row, dtype) for row, ids in block.items()]
                for ids in documents:
                    out.write(ids.data)
                sizes = np.array([len(ids) for ids in documents], "<i8")
                lengths_out.write(sizes.tobytes())
                num_tokens = int(sizes.sum())
                counts["documents"] += len(documents)
                counts["tokens"] += num_tokens
                bar.add(num_rows, num_tokens * dtype.itemsize)
        self.write_index(prefix, lengths, dtype)
        lengths.unlink()
        return counts

    def _write_meta(
        self, folder: Path, meta: dict[str, Any], splits: dict[str, dict[str, int]]
    ) -> None:
        """Write what no file of ids says, and the tokenizer's own file, if it is known."""
        spec = self._spec
        for name in ("eos", "bos"):
            meta[name] = getattr(spec, name, None)
        meta |= {"tokenizer": spec.file if spec else None, "splits": splits}
        (folder / META).write_bytes(json.dumps(meta, indent=1).encode() + b"\n")
        if spec is not None and spec.file is not None:
            (folder / spec.file).write_bytes(open_tokenizer(self._place.folder, spec).file)


class BinExport(IdsExport):
    """nanoGPT's ``train.bin`` and ``val.bin``: ids alone, documents end to end."""

    name = "bin"

    def dtype_for(self, vocab_size: int) -> np.dtype[Any]:
        return np.dtype("<u2" if vocab_size <= 1 << 16 else "<u4")

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

    def write_index(self, prefix: Path, lengths: Path, dtype: np.dtype[Any]) -> None:
        """Write an ``.idx`` of documents that are a sequence each, in the layout of
        ``megatron/core/datasets/indexed_dataset.py``: lengths, places in bytes, first sequences."""
        count, code = lengths.stat().st_size // 8, {"uint16": 8, "int32": 4}[dtype.name]
        with open(f"{prefix}.idx", "wb", buffering=WRITE_BYTES) as out:
            out.write(INDEX_HEAD.pack(INDEX_MAGIC, 1, code, count, count + 1))
            for part in _parts(lengths):
                out.write(part.astype("<i4").tobytes())
            start = 0
            for part in _parts(lengths):
                ends = start + np.cumsum(part)
                out.write(((ends - part) * dtype.itemsize).tobytes())
                start = int(ends[-1])
            for first in range(0, count + 1, INDEX_STEP):
                last = min(first + INDEX_STEP, count + 1)
                out.write(np.arange(first, last, dtype="<i8").tobytes())


def _parts(lengths: Path) -> Iterator[Integers]:
    """Yield (n,) int64 lengths of some documents, until all were given."""
    with lengths.open("rb") as file:
        while data := file.read(8 * INDEX_STEP):
            part: Integers = np.frombuffer(data, "<i8")
            yield part
