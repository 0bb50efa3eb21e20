"""All that an input lists, on disk, in pieces that can be looked at one by one."""

from __future__ import annotations

from array import array
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from itertools import groupby
from operator import attrgetter
from pathlib import Path

import numpy as np

from shardkit.arrays import Integers
from shardkit.corpus.base import Run
from shardkit.packing.job import Job
from shardkit.packing.listing import Listing
from shardkit.packing.listing_file import LISTING_NAME, decode_shard, read_segment
from shardkit.packing.plan import cut

PIECE_BYTES = 32_000_000
"""Input bytes of a piece: read in a second or so, and held in memory meanwhile. Listings are cut
where pieces are: with another number, a complete dataset would not be known again as that."""


@dataclass(frozen=True)
class ListedPiece(Job):
    """Consecutive entries of one split.

    Attributes:
        shard: its number among all pieces, in all splits. first: the number of its first entry.
        folder: the name of that of its listing.
    """

    first: int = 0
    folder: str = ""

    @property
    def stem(self) -> str:
        return f"inputs {self.first} to {self.first + self.num_entries - 1} of the listing"

    @property
    def entries(self) -> slice:
        return slice(self.first, self.first + self.num_entries)


class WholeListing:
    """Entries are numbered from 0, in all splits, in the order of the runs.

    It holds 8 bytes of memory an entry until :meth:`forget_sizes`, and little else.

    Attributes:
        listing: of all. pieces: in order. sizes: (N,) input bytes of each entry.
    """

    def __init__(self, folder: Path, runs: Iterable[Run]) -> None:
        folder.mkdir(parents=True, exist_ok=True)
        (folder / LISTING_NAME).unlink(missing_ok=True)  # of a call that was killed
        self._path = folder / LISTING_NAME
        self.listing = Listing(folder)
        self.pieces: list[ListedPiece] = []
        sizes = array("q")
        for split, own in groupby(runs, key=attrgetter("split")):
            for some in cut(own, PIECE_BYTES):
                first = self.listing.num_entries
                job = self.listing.add(split, len(self.pieces), some, None)
                self.pieces.append(ListedPiece(**vars(job), first=first, folder=folder.name))
                for run in some:
                    sizes.extend(run.sizes)
        self.sizes: Integers = np.frombuffer(sizes, np.int64) if sizes else np.zeros(0, np.int64)

    def forget_sizes(self) -> None:
        self.sizes = np.zeros(0, np.int64)

    def __len__(self) -> int:
        return self.listing.num_entries

    def runs_of(self, piece: ListedPiece) -> list[Run]:
        segment = read_segment(self._path, piece.start, piece.size, piece.digest)
        return decode_shard(segment)[0]

    def runs(self, *, leaving_out: Integers | None = None) -> Iterator[Run]:
        """All runs, less the entries of these numbers, in ascending order."""
        for piece in self.pieces:
            runs = self.runs_of(piece)
            yield from runs if leaving_out is None else _left(runs, piece.first, leaving_out)

    def piece_of(self, entries: Integers) -> Integers:
        """The pieces, by their numbers, that entries are in."""
        firsts = np.array([piece.first for piece in self.pieces], np.int64)
        return np.searchsorted(firsts, entries, side="right") - 1

    def found(self, entries: Integers) -> Iterator[tuple[int, Run, int]]:
        """(number, its run, place in that) of entries, whose numbers ascend."""
        in_pieces = self.piece_of(entries)
        for number in np.unique(in_pieces).tolist():
            piece = self.pieces[number]
            lo, hi = np.searchsorted(in_pieces, [number, number + 1]).tolist()
            wanted = iter(entries[lo:hi].tolist())
            entry = next(wanted, None)
            first = piece.first
            for run in self.runs_of(piece):
                while entry is not None and entry < first + len(run):
                    yield entry, run, entry - first
                    entry = next(wanted, None)
                first += len(run)


def _left(runs: list[Run], first: int, leaving_out: Integers) -> Iterator[Run]:
    for run in runs:
        lo, hi = np.searchsorted(leaving_out, [first, first + len(run)]).tolist()
        if lo == hi:
            yield run
        elif hi - lo < len(run):
            stays = np.ones(len(run), bool)
            stays[leaving_out[lo:hi] - first] = False
            yield run.take(np.flatnonzero(stays).tolist())
        first += len(run)
