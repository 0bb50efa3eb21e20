"""Where the lines of a file are, found in blocks; and compressed files made plain."""

from __future__ import annotations

import gzip
import mmap
import os
import zlib
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from tempfile import TemporaryFile
from typing import IO

import numpy as np
import xxhash

from shardkit.arrays import Integers
from shardkit.errors import CorpusError, FormatError, StorageError
from shardkit.inputs.files import HUGE_BYTES
from shardkit.memory.maps import mapped
from shardkit.samples.sample import Value
from shardkit.system.durable_files import appearing
from shardkit.system.full_reads import pread
from shardkit.system.paths import show_path
from shardkit.system.refusals import os_errors
from shardkit.system.stamps import stamp_of_open
from shardkit.tars.members import GZIP, ZSTD

SCAN_BYTES = 4 << 20
READ_BYTES = 8 << 20
BLANK = b" \t\r\n"
"""What JSON calls white space: a line of nothing else is blank."""

_INFLATE_BYTES = 2048
"""Compressed bytes fed at a time: one zstd block of 4 bytes may hold 128 KiB, so 64 MB at most."""

MAX_RATIO = 200
"""Bytes made of one compressed byte. Text makes 3 to 20, logs that repeat themselves 100; gzip can
make 1,032 and zstd 30,000, so that a file of some megabytes would fill any disk."""

FREE_BYTES = 64 << 20
"""Made of any file, whatever its size: small ones may be as dense as they like."""

SPARE_BYTES = 256 << 20
"""Left free on the disk that is unpacked to, or a twentieth of it if that is less: others write to
it, too, and the pack itself has to."""

Pieces = list[tuple[int, int]]
"""(offset, size) of consecutive pieces of a file."""


class LineScanner:
    """Finds where the lines of a stream begin that are not blank; fed block by block."""

    def __init__(self) -> None:
        self.size = 0
        self._line = 0
        self._blank = True

    def feed(self, block: bytes) -> Integers:
        """Offsets of lines that turned out, in this block, not to be blank."""
        base = self.size
        self.size += len(block)
        data = np.frombuffer(block, np.uint8)
        begins = np.flatnonzero(data == 10) + 1
        found: list[int] = []
        first_end = int(begins[0]) if len(begins) else len(block)
        if self._blank and block[:first_end].strip(BLANK):
            found.append(self._line)
            self._blank = False
        if not len(begins):
            return np.array(found, np.int64)
        whole = begins[:-1]
        # Lines mostly begin with no space: only the others need a look in Python.
        solid = data[whole] > 32
        for i in np.flatnonzero(~solid).tolist():
            solid[i] = bool(block[begins[i] : begins[i + 1]].strip(BLANK))
        last = int(begins[-1])
        self._line = base + last
        self._blank = not block[last:].strip(BLANK)
        tail = [] if self._blank else [self._line]
        return np.concatenate(
            [np.array(found, np.int64), whole[solid] + base, np.array(tail, np.int64)]
        )


def line_pieces(read: Callable[[int], bytes], at_most: int) -> Iterator[Pieces]:
    """Cut a stream into pieces of one line each, ``at_most`` a list; all together are the stream.

    Blank lines belong to the piece before them, those at the very start to the first piece; a
    stream of nothing else has no pieces.
    """
    scanner = LineScanner()
    held = np.zeros(0, np.int64)
    is_first = True
    while block := read(SCAN_BYTES):
        held = np.concatenate([held, scanner.feed(block)])
        if is_first and len(held):
            held[0], is_first = 0, False
        while len(held) > at_most:
            yield _pieces(held[: at_most + 1])
            held = held[at_most:]
    if len(held):
        yield _pieces(np.append(held, scanner.size))


def _pieces(bounds: Integers) -> Pieces:
    return list(zip(bounds[:-1].tolist(), np.diff(bounds).tolist(), strict=True))


def read_pieces(fd: int, pieces: Pieces) -> Iterator[Value | None]:
    """The contents of each piece, adjacent ones by one read, huge ones mapped; None where the file
    is shorter."""
    start = 0
    while start < len(pieces):
        first, size = pieces[start]
        if size >= HUGE_BYTES:
            yield map_range(fd, first, size)
            start += 1
            continue
        stop, end = start + 1, first + size
        while stop < len(pieces) and _goes_with(pieces[stop], first, end):
            end += pieces[stop][1]
            stop += 1
        data = pread(fd, end - first, first)
        for offset, size in pieces[start:stop]:
            value = data[offset - first : offset - first + size]
            yield value if len(value) == size else None
        start = stop


def _goes_with(piece: tuple[int, int], first: int, end: int) -> bool:
    """Whether a piece is read together with those from ``first`` to ``end``."""
    return piece[0] == end and piece[1] < HUGE_BYTES and end - first < READ_BYTES


def map_range(fd: int, start: int, size: int) -> memoryview | None:
    """A range of a file, mapped; None where the file is shorter."""
    if os.fstat(fd).st_size < start + size:
        return None
    skip = start % mmap.ALLOCATIONGRANULARITY
    return mapped(fd, skip + size, start - skip)[skip:]


def mapped_copy(pieces: Iterable[bytes], scratch: Path) -> Value:
    """Pieces joined in a file without a name, mapped: it is gone with its last user."""
    scratch.mkdir(exist_ok=True)
    with TemporaryFile(dir=scratch) as file:
        file.writelines(pieces)
        file.flush()
        size = file.tell()
        return (map_range(file.fileno(), 0, size) if size else None) or b""


# --- compressed files ---------------------------------------------------------------------


def plain_name(name: str) -> str:
    """``a.jsonl.gz`` -> ``a.jsonl``; what is not compressed keeps its name."""
    return name.rpartition(".")[0] if is_compressed(name) else name


def is_compressed(name: str) -> bool:
    return name.lower().endswith((".gz", ".zst"))


def plain_copy(path: Path, name: str, stamp: int, scratch: Path) -> Path:
    """A decompressed copy of ``path`` in ``scratch``, made if it is not there.

    It is called by ``name`` (the path within the source) and ``stamp``. It appears only when
    whole and synced, so a resumed pack and other processes may use what they find.

    Raises:
        FormatError: the file is damaged, or makes over :data:`MAX_RATIO` times its size; does not
        name it. StorageError: the disk is full, or nearly.
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
        head = packed.peek(4)
        if not head:
            raise _damaged("it is empty")
        is_zstd = head.startswith(ZSTD) or path.suffix.lower() in (".zst", ".tzst")
        decompress = _gunzip if head.startswith(GZIP) or not is_zstd else _unzstd
        num_bytes = os.fstat(packed.fileno()).st_size
        decompress(packed, _Bounded(out, num_bytes, path), path)
    return done


def refuse_bomb(num_bytes: int, packed_bytes: int) -> None:
    """Raise FormatError if a file of ``packed_bytes`` makes too many to be believed."""
    most = max(MAX_RATIO * packed_bytes, FREE_BYTES)
    if num_bytes > most:
        raise FormatError(
            f"makes over {MAX_RATIO} times its size ({most:,} bytes), as only a bomb does; if it is"
            " none, decompress it yourself and pack that"
        )


class _Bounded:
    """Where a file is decompressed to: refuses a bomb before it has filled the disk."""

    def __init__(self, out: IO[bytes], packed_bytes: int, path: Path) -> None:
        self._out = out
        self._path = path
        self._packed_bytes = packed_bytes
        self._num_bytes = 0
        self._until_look = 0

    def write(self, block: bytes) -> None:
        self._num_bytes += len(block)
        refuse_bomb(self._num_bytes, self._packed_bytes)
        self._until_look -= len(block)
        if self._until_look < 0:
            self._refuse_full_disk()
            self._until_look = SCAN_BYTES
        self._out.write(block)

    def _refuse_full_disk(self) -> None:
        found = os.fstatvfs(self._out.fileno())
        spare = min(SPARE_BYTES, found.f_blocks * found.f_frsize // 20)
        if found.f_bavail * found.f_frsize < spare:
            raise StorageError(
                f"the disk is nearly full after {self._num_bytes:,} bytes of"
                f" {show_path(self._path)}; free some space, or give another folder"
            )


def _gunzip(packed: IO[bytes], out: _Bounded, path: Path) -> None:
    with gzip.GzipFile(fileobj=packed) as stream:
        while True:
            try:
                block = stream.read(SCAN_BYTES)
            except (gzip.BadGzipFile, EOFError, zlib.error) as error:
                raise _damaged(str(error)) from error
            if not block:
                return
            out.write(block)


def _unzstd(packed: IO[bytes], out: _Bounded, path: Path) -> None:
    try:
        import zstandard
    except ImportError as error:
        raise CorpusError(
            f"{show_path(path)} needs the zstandard library: pip install 'shardkit[zstd]'"
        ) from error
    library = zstandard.ZstdDecompressor(max_window_size=2**31)
    frame = library.decompressobj()
    is_open = False
    while block := packed.read(_INFLATE_BYTES):
        while block:
            try:
                out.write(frame.decompress(block))
            except zstandard.ZstdError as error:
                raise _damaged(str(error)) from error
            is_open = not frame.eof
            block = frame.unused_data if frame.eof else b""
            if frame.eof:
                frame = library.decompressobj()
    if is_open:
        raise _damaged("it ends inside a frame")


def _damaged(why: str) -> FormatError:
    return FormatError(f"is damaged: {why}; fetch or compress it again")
