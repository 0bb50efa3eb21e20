"""The kind ``arrays``: ``.npy`` files, each a sample."""

from __future__ import annotations

from pathlib import Path

from shardkit.errors import FormatError
from shardkit.inputs.base import Run
from shardkit.inputs.class_folders import PlainClassCorpus
from shardkit.inputs.files import Reason
from shardkit.inputs.folders import batch_of
from shardkit.samples.encoding import parse_npy
from shardkit.samples.sample import SampleBatch

ARRAY_EXTENSIONS = frozenset({".npy", ".pt", ".pth"})
"""Endings of files of one array, which a sample of several files may be about."""


class ArrayCorpus(PlainClassCorpus):
    """Field ``npy`` holds the bytes as they are. Folders are classes where they plainly are."""

    kind = "arrays"
    noun = "arrays"
    extensions = frozenset({".npy"})
    reading = "each .npy file is a sample"

    def read(self, run: Run, scratch: Path) -> SampleBatch:
        values = self.contents(run)
        for i, value in enumerate(values):
            if isinstance(value, Reason):
                continue
            try:
                parse_npy(value)
            except FormatError as error:
                values[i] = str(error) if value else "empty file"
        return batch_of(run, values, "npy")
