"""Token ids as nanoGPT and Megatron write them, mapped and checked.

- nanoGPT: a ``.bin`` of nothing but uint16 ids, documents end to end; or with the header of
  1,024 bytes that llm.c and modded-nanogpt put before them. ``meta.json`` beside it, as ``convert
  --to bin`` writes it, or ``stored_dtype`` may say otherwise; then the name may be any, as OLMo's
  ``.npy`` without a header.
- Megatron: ``X.bin`` with the ids and ``X.idx``, which says their dtype and which of them make a
  sequence, and which sequences a document. Layout as in ``megatron/core/datasets/
  indexed_dataset.py`` (Megatron-LM).
"""

from __future__ import annotations

import struct
from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Literal

import numpy as np
import xxhash

from shardkit.arrays import Integers, Tokens
from shardkit.errors import CorpusError, FormatError, UsageError
from shardkit.memory.maps import map_whole
from shardkit.system.paths import show_path
from shardkit.tokens.id_evidence import dtype_of, refuse_other_files, wide_dtype
from shardkit.tokens.spec import MAX_VOCABULARY

PIECE_TOKENS = 1 << 20
"""Ids of a sample, if the ends of documents are unknown."""

SCAN_TOKENS = 8 << 20
"""Ids looked at together."""

_SAMPLED_BLOCKS = 256
_BLOCK_TOKENS = 2048

_HEADER = struct.Struct("<3i")
_HEADER_BYTES = 1024
_WITH_HEADER = {(20240520, 1): "<u2", (20240801, 7): "<u4"}
"""Magic number and version of llm.c's header -> dtype (its ``dev/data/data_common.py``)."""

INDEX_MAGIC = b"MMIDIDX\0\0"
INDEX_HEAD = struct.Struct("<9sQBQQ")
INDEX_DTYPES = {1: "|u1", 4: "<u4", 5: "<u8", 8: "<u2"}
"""Megatron's codes of integers. 4 and 5 are signed and read as unsigned, see :class:`TokenFile`; of
int8 and int16 (2 and 3), in which nobody writes ids, a negative one would not be huge."""


STORED = {"uint8": "|u1", "uint16": "<u2", "uint32": "<u4", "int32": "<u4", "uint64": "<u8"}
STORED["int64"] = "<u8"
"""Values of ``stored_dtype``. Signed ones are read as unsigned, see :class:`TokenFile`."""


@dataclass(frozen=True)
class TokenFile:
    """Ids of many documents, end to end.

    Attributes:
        kind: who writes such files.
        files: what they were read from, the ids first.
        data: (T,) ids, mapped, read-only; |u1, <u2, <u4 or <u8. Where the file says that they are
            signed they are given as unsigned, so that a negative one, which is damage, is huge.
        document_ends: (N,) int64: after how many ids of ``data`` each document ends, not
            decreasing, the last is T; None where nobody knows.
        fingerprint: a hash of size, dtype, document ends, and blocks spread over the ids (all of
            a large file would take minutes).
        is_guess: whether nothing but the file's ending says that it holds ids.
    """

    kind: Literal["nanogpt", "megatron"]
    files: tuple[Path, ...]
    data: Tokens
    document_ends: Integers | None
    fingerprint: str
    is_guess: bool = False

    @property
    def dtype(self) -> np.dtype[Any]:
        return self.data.dtype

    @property
    def sample_ends(self) -> Integers:
        """The end of each sample, (N,) int64: of a document, or of a piece if those are unknown."""
        if self.document_ends is not None:
            return self.document_ends
        total = len(self.data)
        return np.append(np.arange(PIECE_TOKENS, total, PIECE_TOKENS, dtype=np.int64), total)

    def largest_id(self) -> int:
        """Return the largest id. Raises FormatError if it is no id of any vocabulary."""
        found = max(int(ids.max()) for _, ids in scan(self.data))
        if found >= MAX_VOCABULARY:
            at = next(start + int(ids.argmax()) for start, ids in scan(self.data) if found in ids)
            raise FormatError(
                f"{show_path(self.files[0])}: token {at} has id {found}, or it is negative, which"
                " no vocabulary has; fetch or make it again"
            )
        return found


def is_token_file(path: Path, stored_dtype: object = None) -> bool:
    """Return True if a path names a file of ids: ``x.bin``, ``x.idx`` beside it, or ``x`` for
    both; or any file, if the caller says what is stored in it."""
    ids, index = _files(path)
    is_named = path.suffix == ".bin" and ids.is_file()
    is_told = stored_dtype is not None and path.is_file()
    return not path.is_dir() and (index.is_file() or is_named or is_told)


def open_token_file(path: Path, eos: int | None = None, stored_dtype: object = None) -> TokenFile:
    """Map a file of ids, checked for size and shape.

    Args:
        path: nanoGPT's ``.bin``; or Megatron's ``.bin`` or ``.idx``, or both without ending.
        eos: the id that ends documents, for nanoGPT, whose files do not say; Megatron's do, and
            it is not looked at.
        stored_dtype: the dtype of the ids, one of :data:`STORED`, where the file does not say;
            None: uint16.

    Raises:
        CorpusError: there is no such file, or ``eos`` is not in it.
        UsageError: its ids seem to be of another dtype than was said.
        FormatError: it is empty, cut short, or says what cannot be.
    """
    ids, index = _files(path)
    stored = str(getattr(stored_dtype, "__name__", stored_dtype))
    dtype = STORED.get(stored)
    if stored_dtype is not None and dtype is None:
        raise UsageError(f"stored_dtype must be one of {', '.join(STORED)}, got {stored_dtype!r}")
    if not is_token_file(path, stored_dtype):
        raise CorpusError(
            f"{show_path(path)} is no file of token ids; give nanoGPT's .bin, or Megatron's .bin"
            " with its .idx beside it"
        )
    if index.is_file():
        made = _open_megatron(ids, index)
    else:
        made = _open_nanogpt(path, eos, dtype)
    if dtype is not None and made.dtype != dtype:
        raise UsageError(
            f"{show_path(path)}, or what lies beside it, says that its ids are {made.dtype}: leave"
            f" out stored_dtype={stored!r}"
        )
    return made


def _files(path: Path) -> tuple[Path, Path]:
    """Return the paths of (ids, index), which need not exist."""
    stem = path.with_suffix("") if path.suffix in (".bin", ".idx") else path
    return Path(f"{stem}.bin"), Path(f"{stem}.idx")


def scan(data: Tokens) -> Iterator[tuple[int, Tokens]]:
    """Yield (start, ids) of pieces of ``data``, end to end."""
    for start in range(0, len(data), SCAN_TOKENS):
        yield start, data[start : start + SCAN_TOKENS]


def _made(
    kind: Literal["nanogpt", "megatron"],
    files: tuple[Path, ...],
    data: Tokens,
    ends: Integers | None,
) -> TokenFile:
    if not len(data):
        raise FormatError(f"{show_path(files[0])} holds no token; make it again")
    made = xxhash.xxh3_64(f"{data.dtype.str} {len(data)}".encode())
    last = max(len(data) - _BLOCK_TOKENS, 0)
    for start in sorted({last * i // (_SAMPLED_BLOCKS - 1) for i in range(_SAMPLED_BLOCKS)}):
        made.update(data[start : start + _BLOCK_TOKENS].tobytes())
    if ends is not None:
        made.update(np.ascontiguousarray(ends).data)
    return TokenFile(kind, files, data, ends, made.hexdigest())


# --- nanoGPT ------------------------------------------------------------------------------


def _open_nanogpt(path: Path, eos: int | None, given: str | None) -> TokenFile:
    held = memoryview(map_whole(path))
    refuse_other_files(path, held)
    dtype, start = _header(path, held)
    told = None if start else (dtype_of(path, len(held)) or given)
    dtype = told or dtype
    if len(held) % np.dtype(dtype).itemsize:
        raise FormatError(
            f"{show_path(path)} has {len(held)} bytes, which are no whole number of ids of"
            f" {np.dtype(dtype).itemsize} bytes; it is cut short, or is no file of token ids"
        )
    data: Tokens = np.frombuffer(held[start:], dtype)
    if not start and told is None and (wide := wide_dtype(data[:SCAN_TOKENS])) is not None:
        raise UsageError(
            f"{show_path(path)} was taken for ids of uint16, but they seem to be {wide}, as each"
            f" second one is small: give stored_dtype={wide!r}, or stored_dtype='uint16' if they"
            " are what they seem not to be"
        )
    ends = None if eos is None or not len(data) else _ends_at(path, data, eos)
    made = _made("nanogpt", (path,), data, ends)
    return replace(made, is_guess=not start and told is None)


def _header(path: Path, held: memoryview) -> tuple[str, int]:
    """Return (dtype, bytes before the ids)."""
    if len(held) < _HEADER_BYTES:
        return "<u2", 0
    magic, version, count = _HEADER.unpack_from(held)
    dtype = _WITH_HEADER.get((magic, version))
    if dtype is None:
        return "<u2", 0
    expected = _HEADER_BYTES + count * np.dtype(dtype).itemsize
    if len(held) != expected:
        raise FormatError(
            f"{show_path(path)} has {len(held)} bytes, expected {expected} for the {count} tokens"
            " of its header; fetch or make it again"
        )
    return dtype, _HEADER_BYTES


def _ends_at(path: Path, data: Tokens, eos: int) -> Integers:
    """Return where documents end: after each ``eos``, and at the end of the file."""
    found = [start + 1 + np.flatnonzero(ids == eos) for start, ids in scan(data)]
    ends = np.concatenate(found).astype(np.int64)
    if not len(ends):
        raise CorpusError(
            f"{show_path(path)} holds no token {eos}; give the id that ends its documents, or none"
        )
    return ends if ends[-1] == len(data) else np.append(ends, len(data))


# --- Megatron -----------------------------------------------------------------------------


def _open_megatron(ids: Path, index: Path) -> TokenFile:
    dtype, lengths, pointers, firsts = _read_index(index)
    ends = _sequence_ends(index, lengths, pointers, dtype)
    if not ids.is_file():
        raise CorpusError(f"{show_path(ids)} is missing, beside {show_path(index)}; fetch it")
    held = memoryview(map_whole(ids))
    expected = int(ends[-1]) * dtype.itemsize
    if len(held) != expected:
        raise FormatError(
            f"{show_path(ids)} has {len(held)} bytes, expected {expected}, as {show_path(index)}"
            " says; fetch or make both again"
        )
    documents = ends[1:] if len(firsts) == 1 else ends[firsts[1:]]
    return _made("megatron", (ids, index), np.frombuffer(held, dtype), documents)


def _read_index(path: Path) -> tuple[np.dtype[Any], Any, Any, Any]:
    """Return dtype of ids, length of each sequence, where it begins in bytes, first sequences."""
    held = memoryview(map_whole(path))
    if len(held) < INDEX_HEAD.size or held[: len(INDEX_MAGIC)] != INDEX_MAGIC:
        raise FormatError(
            f"{show_path(path)} is no index of Megatron's: it does not begin with MMIDIDX; make it"
            " again with --dataset-impl mmap, or move it away if it is another tool's"
        )
    _, version, code, num_sequences, num_firsts = INDEX_HEAD.unpack_from(held)
    if version != 1 or code not in INDEX_DTYPES:
        raise FormatError(
            f"{show_path(path)} has version {version} and dtype code {code}; ids have version 1 and"
            f" one of {', '.join(map(str, INDEX_DTYPES))}"
        )
    expected = INDEX_HEAD.size + 12 * num_sequences + 8 * num_firsts
    if len(held) != expected:
        raise FormatError(
            f"{show_path(path)} has {len(held)} bytes, expected {expected} for {num_sequences}"
            f" sequences and {num_firsts} document indices; fetch or make it again"
        )
    at = INDEX_HEAD.size
    lengths = np.frombuffer(held, "<i4", num_sequences, at)
    pointers = np.frombuffer(held, "<i8", num_sequences, at + 4 * num_sequences)
    firsts = np.frombuffer(held, "<i8", num_firsts, at + 12 * num_sequences)
    _check_documents(path, firsts, num_sequences)
    return np.dtype(INDEX_DTYPES[code]), lengths, pointers, firsts


def _check_documents(path: Path, firsts: Integers, num_sequences: int) -> None:
    """Raise FormatError unless document d is sequences [firsts[d], firsts[d + 1]). With a lone 0
    each sequence is a document, as some writers have it."""
    ok = len(firsts) > 0 and firsts[0] == 0 and not (firsts[1:] < firsts[:-1]).any()
    if not ok or (len(firsts) > 1 and firsts[-1] != num_sequences):
        raise FormatError(
            f"{show_path(path)}: its document indices do not count from 0 up to its"
            f" {num_sequences} sequences; fetch or make it again"
        )


def _sequence_ends(path: Path, lengths: Any, pointers: Integers, dtype: np.dtype[Any]) -> Integers:
    """Return how many ids lie before each sequence, and of all, (S + 1,)."""
    ends = np.zeros(len(lengths) + 1, np.int64)
    np.cumsum(lengths, out=ends[1:])
    if (lengths < 0).any() or (ends[:-1] * dtype.itemsize != pointers).any():
        raise FormatError(
            f"{show_path(path)}: its sequences do not lie one after another in the .bin; fetch or"
            " make it again"
        )
    return ends
