"""Inputs that a release whose ``pack`` had ``--drop-duplicates`` left out: check that they still
have the contents of others. Such datasets name them in ``rejected.jsonl``."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

import xxhash

from shardkit.inputs.base import Corpus, Run, entries_of
from shardkit.samples.sample import SampleBatch, Value

SAME_AS = "the same contents as "
"""The reason of a duplicate begins with this; what the input is called that was packed follows."""


class Copies:
    """Those of one dataset; told of each sample of its input, whose hash it keeps if need be.

    Attributes:
        num_found: those left out that were seen.
    """

    def __init__(self, rejected: Mapping[str, str]) -> None:
        """``rejected``: path -> reason, from the lines of ``rejected.jsonl``."""
        copies = {path: why for path, why in rejected.items() if why.startswith(SAME_AS)}
        self._told = {path: why.removeprefix(SAME_AS) for path, why in copies.items()}
        self._named = {*self._told.values()}
        self._hashes: dict[str, bytes] = {}
        self.num_found = 0

    def look(self, corpus: Corpus, run: Run, batch: SampleBatch) -> set[int]:
        """Which samples of a run were left out."""
        if not self._told:
            return set()
        found = set()
        for i, entry in enumerate(entries_of(run, batch)):
            name = corpus.entry_name(run, entry)
            if name in self._told:
                found.add(i)
            if name in self._told or name in self._named:
                self._hashes[name] = _digest(batch.fields(i))
        self.num_found += len(found)
        return found

    def changed(self) -> Iterator[tuple[str, str]]:
        """(what was left out, what it was said to be the same as) of those that differ now. Where
        one of the two is gone, nothing is said here."""
        for path, other in self._told.items():
            own, others = self._hashes.get(path), self._hashes.get(other)
            if own is not None and others is not None and own != others:
                yield path, other


def _digest(fields: Mapping[str, Value]) -> bytes:
    """Hash names and values of all fields but the label."""
    found = xxhash.xxh3_128()
    for name in sorted(fields.keys() - {"cls"}):
        found.update(name.encode() + b"\0" + xxhash.xxh3_128_digest(fields[name]))
    return found.digest()
