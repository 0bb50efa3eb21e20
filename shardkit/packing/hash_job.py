"""One piece of the listing: read its entries, hash what they hold, write the hashes."""

from __future__ import annotations

from pathlib import Path

import numpy as np

from shardkit.arrays import Hashes
from shardkit.corpus.base import Corpus, Run, entries_of
from shardkit.packing.hash_file import HashFile
from shardkit.packing.job import OnProgress, Setup, refuse_bad
from shardkit.packing.listing_file import LISTING_NAME, decode_shard, read_segment
from shardkit.packing.publish import CONTENTS_NAME
from shardkit.packing.tokenize import slices
from shardkit.packing.whole_listing import ListedPiece
from shardkit.samples.contents import NUM_HASHES, contents_of
from shardkit.system.refusals import os_errors


def contents_folder(setup: Setup) -> Path:
    return setup.work / CONTENTS_NAME


def hash_piece(corpus: Corpus, piece: ListedPiece, setup: Setup, report: OnProgress) -> None:
    """A bad input that is to be skipped has no hash; whoever packs says what is wrong with it.

    Raises:
        SampleError: a bad input, unless the setup says to skip those.
        StorageError: the disk is full, or the system refused otherwise.
    """
    folder = contents_folder(setup)
    listing = folder / piece.folder / LISTING_NAME
    with os_errors(f"looking for duplicates among {piece.stem}"):
        segment = read_segment(listing, piece.start, piece.size, piece.digest)
        found = []
        for run in decode_shard(segment)[0]:
            for some in slices(run):
                found.append(_hashes(corpus, some, setup))
                report(len(some), sum(some.sizes))
        HashFile(folder).write(piece, np.concatenate(found))


def _hashes(corpus: Corpus, run: Run, setup: Setup) -> Hashes:
    """(number of entries, 3); zeros for those that are bad."""
    batch = corpus.read(run, setup.scratch)
    refuse_bad(batch, setup)
    found = np.zeros((len(run), NUM_HASHES), np.uint64)
    found[entries_of(run, batch)] = contents_of(batch)
    return found
