"""Whether names in a table are those of samples, by a few looks and without listing them all."""

from __future__ import annotations

import os
import posixpath
from collections.abc import Set
from itertools import islice
from os.path import isfile
from pathlib import Path

from shardkit.inputs.folders import peek
from shardkit.inputs.names import extension, is_hidden, join

MAX_FOLDERS = 16
"""In which names are looked for."""

_MAX_WRAPPERS = 4


class NamedSamples:
    """The samples of a source, of some extensions."""

    def __init__(self, source: Path, extensions: frozenset[str]) -> None:
        self._source = source
        self.extensions = extensions
        folders = peek(source, "").folders[:MAX_FOLDERS]
        self._bases = ["", *(self._unwrapped(name) for name in folders)]

    def folder_of(self, name: str) -> str | None:
        """Where the sample is that a table calls so, with its ending or without; None if there is
        none."""
        has_ending = extension(name) in self.extensions
        for ending in [""] if has_ending else sorted(self.extensions):
            for base in self._bases:
                path = join(base, name + ending)
                if isfile(self._source / path):
                    return posixpath.dirname(path)
        return None

    def are_all_in(self, base: str, names: Set[str]) -> bool:
        """Whether all samples of a folder have one of some names, whatever folders these tell."""
        bare = {posixpath.basename(name) for name in names}
        there = peek(self._source, base, self.extensions).names
        return all(name in bare or name.rpartition(".")[0] in bare for name in there)

    def _unwrapped(self, base: str) -> str:
        """The folder itself, or what it holds if that is one folder and nothing else."""
        for _ in range(_MAX_WRAPPERS):
            try:
                with os.scandir(self._source / base) as entries:
                    first = [*islice((e for e in entries if not is_hidden(e.name)), 2)]
                    if len(first) != 1 or not first[0].is_dir():
                        break
                    base = join(base, first[0].name)
            except OSError:
                break  # whoever packs it says so
        return base
