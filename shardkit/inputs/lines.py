"""Lines of a file, found in blocks; ranges of files; and compressed files made plain."""

from __future__ import annotations

import io
import mmap
import os
import zlib
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import xxhash

from shardkit.commit.durable_files import appearing
from shardkit.errors import CorpusError, FormatError, StorageError
from shardkit.inputs.files import HUGE_BYTES
from shardkit.memory.maps import mapped
from shardkit.samples.sample import Value
from shardkit.system.file_io import pread
from shardkit.system.paths import show_path
from shardkit.system.refusals import os_errors
from shardkit.system.stamps import stamp_of_open
from shardkit.tars.members import ZSTD

SCAN_BYTES = 4 << 20
READ_BYTES = 8 << 20
BLANK = b" \t\r\n"
"""What JSON calls white space: a line of nothing else is blank."""

MAX_LINE_BYTES = 64 << 20
"""A line must be parsed in memory, where its values take several times as much. A file without line
ends, of any size, is refused after this."""

_INFLATE_BYTES = 2048
"""Compressed bytes fed at a time: one zstd block of 4 bytes may hold 128 KiB, so 64 MB at most."""

MAX_RATIO = 200
"""Bytes made of one compressed byte. Text makes 3 to 20, logs that repeat themselves 100; gzip can
make 1,032 and zstd 30,000, so that a file of some megabytes would fill any disk."""

FREE_BYTES = 64 << 20
"""Made of any file, whatever its size: small ones may be as dense as they like."""

Pieces = list[tuple[int, int]]
"""(offset, size) of consecutive pieces of a file."""


def line_pieces(read: Callable[[int], bytes], at_most: int) -> Iterator[Pieces]:
    """Cut a stream into pieces of one line each, ``at_most`` a list; all together are the stream.

    Blank lines belong to the piece before them, those at the very start to the first piece; a
    stream of nothing else has no pieces.

    Raises:
        FormatError: a line is longer than :data:`MAX_LINE_BYTES`; does not name the file.
    """
    starts = np.zeros(0, np.int64)  # of lines that are not blank
    size, rest, is_first = 0, b"", True  # bytes of complete lines so far; what follows them
    block = None
    while block != b"":
        block = read(SCAN_BYTES)
        data = rest + block
        end = data.rfind(b"\n") + 1 if block else len(data)
        if len(data) - end > MAX_LINE_BYTES:
            raise FormatError(
                f"has a line of over {MAX_LINE_BYTES >> 20} MiB, from byte {size + end} on; is it a"
                " file of lines?"
            )
        codes, rest = np.frombuffer(data, np.uint8, end), data[end:]
        begins = np.append(0, np.flatnonzero(codes[:-1] == 10) + 1)[: len(codes)]
        # Lines mostly begin with no space: only the others need a look in Python.
        is_solid = codes[begins] > 32
        for i in np.flatnonzero(~is_solid).tolist():
            line = data[begins[i] : begins[i + 1] if i + 1 < len(begins) else end]
            is_solid[i] = bool(line.strip(BLANK))
        starts = np.append(starts, begins[is_solid] + size)
        size += end
        if is_first and len(starts):
            starts[0], is_first = 0, False
        while len(starts) > at_most:
            yield _pieces(starts[: at_most + 1])
            starts = starts[at_most:]
    if len(starts):
        yield _pieces(np.append(starts, size))


def _pieces(bounds: np.ndarray[tuple[int], np.dtype[np.int64]]) -> Pieces:
    return list(zip(bounds[:-1].tolist(), np.diff(bounds).tolist(), strict=True))


def read_pieces(fd: int, pieces: Pieces) -> Iterator[Value | None]:
    """Return the contents of each piece, adjacent ones by one read, huge ones mapped; None where
    the file is shorter."""
    start = 0
    while start < len(pieces):
        first, size = pieces[start]
        stop, end = start + 1, first + size
        if size >= HUGE_BYTES:
            yield map_range(fd, first, size)
            start = stop
            continue
        while stop < len(pieces) and pieces[stop][0] == end and end - first < READ_BYTES:
            if pieces[stop][1] >= HUGE_BYTES:
                break
            end += pieces[stop][1]
            stop += 1
        data = pread(fd, end - first, first)
        for offset, size in pieces[start:stop]:
            value = data[offset - first : offset - first + size]
            yield value if len(value) == size else None
        start = stop


def map_range(fd: int, start: int, size: int) -> memoryview | None:
    """Return a range of a file, mapped; None where the file is shorter."""
    if os.fstat(fd).st_size < start + size:
        return None
    skip = start % mmap.ALLOCATIONGRANULARITY
    return mapped(fd, skip + size, start - skip)[skip:]


# --- compressed files ---------------------------------------------------------------------


def plain_name(name: str) -> str:
    """Return ``a.jsonl`` for ``a.jsonl.gz``; what is not compressed keeps its name."""
    return name.rpartition(".")[0] if is_compressed(name) else name


def is_compressed(name: str) -> bool:
    """Return True for names of files that :func:`plain_copy` decompresses."""
    return name.lower().endswith((".gz", ".zst"))


def plain_copy(path: Path, name: str, stamp: int, scratch: Path) -> Path:
    """Return a decompressed copy of ``path`` in ``scratch``; make it if it is not there.

    It is called by ``name`` (the path within the source) and ``stamp``. It appears only when
    complete and synced, so a resumed pack and other processes may use what they find.

    Raises:
        FormatError: the file is damaged, or makes over :data:`MAX_RATIO` times its size; does not
            name it. StorageError: the disk is full, or the file is another one by now.
        CorpusError: .zst needs a library that is not installed.
    """
    scratch.mkdir(exist_ok=True)
    done = scratch / f"{xxhash.xxh3_64_hexdigest(os.fsencode(name))}-{stamp}"
    if done.exists():
        return done
    errors = os_errors(f"decompressing {show_path(path)} into {show_path(scratch)}")
    with errors, path.open("rb") as packed, appearing(done) as out:
        if stamp_of_open(packed.fileno(), path) != stamp:
            raise StorageError(f"{show_path(path)} changed while packing; run it again")
        num_bytes, packed_bytes = 0, os.fstat(packed.fileno()).st_size
        for block in _decompressed(packed, path):
            num_bytes += len(block)
            refuse_bomb(num_bytes, packed_bytes)
            out.write(block)
    return done


def max_unpacked(packed_bytes: int) -> int:
    """Return how many bytes a compressed file may make before it is taken for a bomb."""
    return max(MAX_RATIO * packed_bytes, FREE_BYTES)


def refuse_bomb(num_bytes: int, packed_bytes: int) -> None:
    """Raise FormatError if a file of ``packed_bytes`` makes too many to be believed."""
    most = max_unpacked(packed_bytes)
    if num_bytes > most:
        raise FormatError(
            f"makes over {MAX_RATIO} times its size ({most:,} bytes), as only a bomb does; if it is"
            " none, decompress it yourself and pack that"
        )


def _decompressed(packed: io.BufferedReader, path: Path) -> Iterator[bytes]:
    """Yield what one member of gzip, or frame of zstd, after another makes."""
    make: Callable[[], Any] = partial(zlib.decompressobj, 31)
    errors: tuple[type[Exception], ...] = (zlib.error,)
    if path.suffix.lower() == ".zst" or packed.peek(4).startswith(ZSTD):
        try:
            import zstandard
        except ImportError as error:
            raise CorpusError(
                f"{show_path(path)} needs the zstandard library: pip install 'shardkit[zstd]'"
            ) from error
        make = zstandard.ZstdDecompressor(max_window_size=2**31).decompressobj
        errors = (zstandard.ZstdError,)
    stream, is_open = make(), None
    why = "it is empty"
    try:
        while block := packed.read(_INFLATE_BYTES):
            while block := block if is_open else block.lstrip(b"\0"):  # gzip may be padded
                yield stream.decompress(block)
                is_open, block = not stream.eof, stream.unused_data
                stream = stream if is_open else make()
                why = "it ends too early" if is_open else ""
    except errors as error:
        why = str(error)
    if why:
        raise FormatError(f"is damaged: {why}; fetch or compress it again")
