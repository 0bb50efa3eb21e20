"""What is left of an input without its duplicates: of samples that are equal but for their keys and
labels, one.

That is decided before anything is cut into shards, from the whole input, so it depends neither on
workers nor on parts, nor on what was done before a kill. Contents are those of the input: what is
made of pictures or text later does not matter. Two samples whose contents have the same XXH3-128
count as equal.

All inputs are listed, those that may be equal to another are read and hashed, and of each set of
equal ones the first stays. Of copies in several splits, those in ``train`` give way, so that
validation stays what it is, whatever is trained on. Where sizes tell inputs apart, only those whose
size is not theirs alone are read.

It takes some 20 bytes of memory an input, and some 500 more a copy, most of them for names.
"""

from __future__ import annotations

from collections.abc import Iterator, Set
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from shardkit.arrays import Integers, Mask
from shardkit.corpus.base import Corpus, Run
from shardkit.corpus.folders import split_of
from shardkit.errors import StorageError
from shardkit.packing.equal import find_copies, repeated
from shardkit.packing.hash_file import HashFile
from shardkit.packing.hash_job import contents_folder, hash_piece
from shardkit.packing.job import Setup
from shardkit.packing.left_out import LeftOut, copy_lines, sum_of
from shardkit.packing.local import WorkerPool
from shardkit.packing.whole_listing import ListedPiece, WholeListing
from shardkit.system.durable_files import atomic_write
from shardkit.system.paths import show_path
from shardkit.system.progress import Progress

LINES_NAME = "left_out.jsonl"
"""In the folder of contents: the lines for ``rejected.jsonl``."""

_WHOLE_NAME, _SUSPECTS_NAME = "whole", "suspects"
"""Folders in that of contents, of the listings of all inputs, and of those that may be equal."""


@dataclass(frozen=True)
class Distinct:
    """The entries of an input that are to be packed.

    Attributes:
        whole: all entries. copies: the numbers of those left out, in ascending order.
    """

    whole: WholeListing
    copies: Integers

    def runs(self) -> Iterator[Run]:
        """In place of the corpus's own."""
        return self.whole.runs(leaving_out=self.copies)


@dataclass(frozen=True)
class Remaining:
    """What is left of an input, what is to be said of the rest, and its lines for
    ``rejected.jsonl``."""

    distinct: Distinct
    left_out: LeftOut
    lines: bytes


def runs_to_pack(corpus: Corpus, scratch: Path, distinct: Distinct | None) -> Iterator[Run]:
    """All that the corpus lists, or what is left of it."""
    return corpus.runs(scratch) if distinct is None else distinct.runs()


@dataclass(frozen=True)
class HashEngine:
    """Where inputs are hashed.

    Attributes:
        corpus: the input; of a process of its own, it opens it itself.
        num_workers: processes; 0 is this one. held_fd: a file that they keep open.
    """

    corpus: Corpus
    setup: Setup
    num_workers: int = 0
    held_fd: int = -1

    def run(self, pieces: list[ListedPiece], progress: Progress) -> None:
        if not self.num_workers or len(pieces) < 2:  # starting a process takes longer
            for piece in pieces:
                hash_piece(self.corpus, piece, self.setup, progress.add)
            return
        pool = WorkerPool(
            "shardkit.packing.hash_worker",
            lambda done: int(done["number"]),
            self.setup,
            min(self.num_workers, len(pieces)),
            self.held_fd,
        )
        with pool:
            for _ in pool.run(pieces, progress):
                pass


def list_whole(corpus: Corpus, setup: Setup) -> WholeListing:
    """Everything, as the corpus lists it."""
    return WholeListing(contents_folder(setup) / _WHOLE_NAME, corpus.runs(setup.scratch))


def without_named(whole: WholeListing, corpus: Corpus, names: Set[str]) -> Distinct:
    """What is left without entries that are called so; nothing is read."""
    found: list[int] = []
    first = 0
    for run in whole.runs() if names else ():
        found += [first + i for i in range(len(run)) if corpus.entry_name(run, i) in names]
        first += len(run)
    return Distinct(whole, np.array(found, np.int64))


def find_distinct(whole: WholeListing, engine: HashEngine, show: bool | None) -> Remaining:
    """Read and hash what may be equal, and decide.

    Raises:
        DataError: an input cannot be read, or the disk is full. A bad input is no duplicate.
    """
    folder = contents_folder(engine.setup)
    suspects, may_be_equal = _suspects(whole, engine.corpus, folder / _SUSPECTS_NAME)
    file = HashFile(folder)
    file.prepare(suspects)
    with Progress("looking for duplicates", show) as progress:
        progress.expect(len(suspects))
        is_done = file.are_done(suspects).tolist()
        progress.skip(sum(p.num_entries for p in suspects.pieces if is_done[p.shard]))
        engine.run([p for p in suspects.pieces if not is_done[p.shard]], progress)
    if not file.are_done(suspects).all():
        raise StorageError(
            f"{show_path(file.path)} is not as it was written; run the same command again"
        )
    hashes = file.read(suspects)
    copies, firsts = find_copies(hashes, _give_way(suspects))
    num_other_labels = int((hashes[copies, 2] != hashes[firsts, 2]).sum())
    if may_be_equal is not None:
        numbers = np.flatnonzero(may_be_equal)
        copies, firsts = numbers[copies], numbers[firsts]
    return _told(whole, engine.corpus, copies, firsts, num_other_labels)


def _suspects(
    whole: WholeListing, corpus: Corpus, folder: Path
) -> tuple[WholeListing, Mask | None]:
    """The entries that may be equal to others, listed for themselves, and which of all they are;
    None for all of them."""
    may_be_equal = repeated(whole.sizes) if corpus.sizes_tell else None
    whole.forget_sizes()
    if may_be_equal is None:
        return whole, None
    suspects = WholeListing(folder, whole.runs(leaving_out=np.flatnonzero(~may_be_equal)))
    suspects.forget_sizes()
    return suspects, may_be_equal


def _give_way(whole: WholeListing) -> Mask:
    give_way = [split_of(piece.split) == "train" for piece in whole.pieces]
    return np.repeat(np.array(give_way, bool), [piece.num_entries for piece in whole.pieces])


def _told(
    whole: WholeListing, corpus: Corpus, copies: Integers, firsts: Integers, num_other_labels: int
) -> Remaining:
    splits = np.array([piece.split for piece in whole.pieces])
    elsewhere = splits[whole.piece_of(copies)] != splits[whole.piece_of(firsts)]
    called = {
        number: corpus.entry_name(run, i) for number, run, i in whole.found(np.unique(firsts))
    }
    num_bytes = 0

    def named() -> Iterator[tuple[str, str]]:
        nonlocal num_bytes
        found = zip(whole.found(copies), firsts.tolist(), strict=True)
        for (_, run, i), first in found:
            num_bytes += run.sizes[i]
            yield corpus.entry_name(run, i), called[first]

    lines = copy_lines(named())
    left_out = LeftOut(
        inputs=len(copies),
        bytes=num_bytes,
        other_labels=num_other_labels,
        other_splits=int(elsewhere.sum()),
        xxh3=sum_of(lines),
    )
    return Remaining(Distinct(whole, copies), left_out, lines)


def keep_lines(folder: Path, lines: bytes) -> None:
    """For who merges a part with others."""
    atomic_write(folder / LINES_NAME, [lines])
