"""Tars that others made, of which the class folders inside are classes."""

from __future__ import annotations

import os
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any, Self

from shardkit.errors import CorpusError
from shardkit.images.sniff import HEAD_BYTES, image_field
from shardkit.index.rows import RowIndex
from shardkit.inputs.base import Run
from shardkit.inputs.class_folder_corpus import told
from shardkit.inputs.containers.dataset import DatasetCorpus
from shardkit.inputs.containers.tar_classes import TarClasses, are_pictures
from shardkit.samples.sample import SampleBatch, Value, pack_paths
from shardkit.shards.locate import Located, locate
from shardkit.tars.samples import plain_path


class TarFolderCorpus(DatasetCorpus):
    """Samples with the class that their folder tells, and pictures named by what they hold; READMEs
    and the like are passed over.

    A locator is ``row:class``.
    """

    kind = "tar folders"

    def __init__(
        self, located: Located, tars: list[str] | None = None, classes: TarClasses | None = None
    ) -> None:
        super().__init__(located, tars)
        self._found = classes
        if classes is not None:
            self.classes = [os.fsdecode(name) for name in classes.names]
            self.notes = [told(self.classes, "the folders in the tars")]

    @classmethod
    def from_spec(cls, source: Path, spec: dict[str, Any]) -> Self:
        return cls(locate(source, tars=spec.get("tars")), spec.get("tars"))

    def runs(self, scratch: Path) -> Iterator[Run]:
        if self._found is None:
            raise CorpusError("a corpus rebuilt from its spec can read runs, not list them")
        self.ignored.clear()
        self.ignored.update(self.info.provenance.passed)
        numbers = {name: i for i, name in enumerate(self._found.names)}
        for run in super().runs(scratch):
            index = self.reader(run.split).index
            is_picture = are_pictures(index, self.info)
            locators = []
            for row in map(int, run.locators):
                if is_picture[row]:
                    folder = self._found.folder(index.name(row)[0])
                    locators.append(b"%d:%d" % (row, numbers[folder]))
                else:
                    self._pass_over(row, index)
            if locators:
                kept = run.slice(0, len(locators))
                yield replace(kept, locators=locators)

    def _pass_over(self, row: int, index: RowIndex) -> None:
        for name in self.info.fields:
            if index.table[row, index.column[f"{name}.size"]] >= 0:
                ending = "." + name.rpartition(".")[2]
                self.ignored[ending] = self.ignored.get(ending, 0) + 1

    def read(self, run: Run, scratch: Path) -> SampleBatch:
        pairs = [locator.partition(b":") for locator in run.locators]
        rows = [int(row) for row, _, _ in pairs]
        if not rows:
            return SampleBatch()
        held = self.reader(run.split).samples(rows[0], rows[-1] + 1)
        batch = held.take([row - rows[0] for row in rows])
        # Those of the folder that was put in the tar. Where tars are read as they are, "./" stays,
        # as WebDataset has it.
        batch.keys = [*map(plain_path, batch.keys)]
        batch.paths = [
            pack_paths(key, [path[1:]]) if path.startswith(b"=") else path
            for key, path in zip(batch.keys, batch.paths, strict=True)
        ]
        batch.columns = by_content(batch)
        batch.columns["cls"] = [label for _, _, label in pairs]
        return batch


def by_content(batch: SampleBatch) -> dict[str, list[Value | None]]:
    """The columns of samples of one picture each, named by what it holds; what is no picture keeps
    its name."""
    found: dict[str, list[Value | None]] = {}
    for name, values in batch.columns.items():
        for i, value in enumerate(values):
            if value is not None:
                held = image_field(bytes(value[:HEAD_BYTES])) or name
                found.setdefault(held, [None] * len(batch))[i] = value
    return found
