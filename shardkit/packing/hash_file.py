"""The hashes of all inputs that may be equal, in a file: what was read once is not read again.

Three numbers of 8 bytes an entry, as :func:`shardkit.samples.contents.contents_of` has them, and in
a file beside it 8 bytes a piece, a checksum of its numbers, written after them. So a piece whose
checksum is right is done, after any kill or power cut.
"""

from __future__ import annotations

import os
from pathlib import Path

import numpy as np
import xxhash

from shardkit.arrays import Hashes, Mask
from shardkit.packing.publish import HASHES_NAME
from shardkit.packing.whole_listing import ListedPiece, WholeListing
from shardkit.samples.contents import NUM_HASHES
from shardkit.system.own_files import create
from shardkit.system.records import read_record, write_record

_ENTRY_BYTES = 8 * NUM_HASHES


class HashFile:
    """That of one listing, in a folder of its own."""

    def __init__(self, folder: Path) -> None:
        self.path = folder / HASHES_NAME
        self._sums = folder / "hashes.sums"
        self._of = folder / "hashes.record"

    def prepare(self, whole: WholeListing) -> None:
        """Keep what an earlier call wrote, if it listed the same, or else begin anew."""
        of = {"state": whole.listing.state}
        if self._of.exists() and self.path.exists() and read_record(self._of) == of:
            return
        self._of.unlink(missing_ok=True)
        for path, num_bytes in (
            (self.path, _ENTRY_BYTES * len(whole)),
            (self._sums, 8 * len(whole.pieces)),
        ):
            create(path).close()
            os.truncate(path, num_bytes)
        write_record(self._of, of)

    def write(self, piece: ListedPiece, hashes: Hashes) -> None:
        data = hashes.tobytes()
        _write_at(self.path, data, _ENTRY_BYTES * piece.first)
        _write_at(self._sums, _sum_of(piece, data).tobytes(), 8 * piece.shard)

    def read(self, whole: WholeListing) -> Hashes:
        """(N, 3), mapped."""
        shape = (len(whole), NUM_HASHES)
        if not len(whole):
            return np.zeros(shape, np.uint64)
        return np.memmap(self.path, np.uint64, "r", shape=shape)

    def are_done(self, whole: WholeListing) -> Mask:
        """(number of pieces,): whether each is there."""
        hashes = self.read(whole)
        sums = np.frombuffer(self._sums.read_bytes(), np.uint64)
        return np.array(
            [sums[p.shard] == _sum_of(p, hashes[p.entries].tobytes()) for p in whole.pieces], bool
        )


def _sum_of(piece: ListedPiece, data: bytes) -> np.uint64:
    # Of no hole in the file, and of no other piece: both are in it.
    return np.uint64(xxhash.xxh3_64_intdigest(data, seed=piece.shard + 1))


def _write_at(path: Path, data: bytes, offset: int) -> None:
    with path.open("r+b") as file:
        file.seek(offset)
        file.write(data)
