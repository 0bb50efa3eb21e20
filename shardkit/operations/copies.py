"""Inputs that a dataset says were left out as duplicates: whether they still are."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from shardkit.corpus.base import Corpus, Run, entries_of
from shardkit.samples.contents import contents_of
from shardkit.samples.sample import SampleBatch


class Copies:
    """Those of one dataset; told of each sample of its input, whose hash it keeps if need be.

    Attributes:
        num_found: those left out that were seen.
    """

    def __init__(self, told: Mapping[str, str]) -> None:
        """``told``: what was left out -> what has the same contents, and was packed."""
        self._told = told
        self._named = {*told.values()}
        self._hashes: dict[str, bytes] = {}
        self.num_found = 0

    def look(self, corpus: Corpus, run: Run, batch: SampleBatch) -> set[int]:
        """Which samples of a run were left out."""
        if not self._told:
            return set()
        found, wanted = set(), []
        for i, entry in enumerate(entries_of(run, batch)):
            name = corpus.entry_name(run, entry)
            if name in self._told:
                found.add(i)
            if name in self._told or name in self._named:
                wanted.append((i, name))
        if wanted:
            hashes = contents_of(batch.take([i for i, _ in wanted]))[:, :2]
            self._hashes |= {
                name: own.tobytes() for (_, name), own in zip(wanted, hashes, strict=True)
            }
        self.num_found += len(found)
        return found

    def changed(self) -> Iterator[tuple[str, str]]:
        """(what was left out, what it was said to be the same as) of those that differ now. Where
        one of the two is gone, nothing is said here."""
        for path, other in self._told.items():
            own, others = self._hashes.get(path), self._hashes.get(other)
            if own is not None and others is not None and own != others:
                yield path, other
