"""Map-style datasets, and functions over inputs: samples by row number."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any, Self

import xxhash

from shardkit.errors import CorpusError, SampleError
from shardkit.inputs.base import Corpus, Run
from shardkit.inputs.objects.batches import add_sample, fill
from shardkit.inputs.objects.fields import SampleForm, labels_not_taken
from shardkit.inputs.objects.source import NumberedRows, from_bytes, to_bytes
from shardkit.samples.sample import SampleBatch
from shardkit.system.stamps import UPPER

NO_SAMPLE = "inputs of which fn made no sample"

RUN_ROWS = 8_192
"""Rows of a run at most."""

PROBE_BYTES = 4_000_000
"""About how much input lies between two rows that are looked at before packing: the least size of a
shard, so that each has one."""

PROBES = 32, 1_000
"""The least and the most rows of a split that are probed."""


class RowsCorpus(Corpus):
    """Samples that a Python object gives by row number.

    What it holds has no names, sizes or times to compare. So rows spread over each split are read
    while it is listed: their sizes stand for those of the rows that follow, and their contents are
    what a resumed pack compares.
    """

    kind = "objects"
    has_pictures = True
    has_text = True
    is_stamped = False
    takes_order = True

    def __init__(
        self, splits: dict[str, NumberedRows], form: SampleForm, classes: list[str] | None = None
    ) -> None:
        self._splits = splits
        self._form = form
        self.classes = classes
        self.ignored: dict[str, int] = {}
        self.notes: list[str] = []

    @classmethod
    def from_spec(cls, source: Path, spec: dict[str, Any]) -> Self:
        splits, form = from_bytes(spec["objects"])
        return cls(splits, form)

    def objects(self) -> bytes:
        return to_bytes((self._splits, self._form))

    def spec(self) -> dict[str, Any]:
        functions = sorted({name for rows in self._splits.values() if (name := rows.name_of_fn)})
        return {
            "kind": self.kind,
            "rows": {name: len(rows) for name, rows in self._splits.items()},
            "fn": functions,
            **self._form.to_json(),
            "classes": self.classes,
        }

    def splits(self) -> list[str]:
        return [*self._splits]

    # --- listing --------------------------------------------------------------------------

    def runs(self, scratch: Path) -> Iterator[Run]:
        if not any(map(len, self._splits.values())):
            raise CorpusError("the source has no rows: there is nothing to pack")
        for name, rows in self._splits.items():
            if not len(rows):
                self.notes.append(f"split {name!r} has no row, and is left out")
            for start, stop, size, stamp in self._pieces(rows):
                for first in range(start, stop, RUN_ROWS):
                    numbers = range(first, min(first + RUN_ROWS, stop))
                    yield Run(
                        split=name,
                        base=name,  # of the split that it may be cut from
                        locators=[b"%d" % row for row in numbers],
                        keys=[b"%012d" % row for row in numbers],
                        sizes=[size] * len(numbers),
                        stamps=[stamp] * len(numbers),
                    )

    def _pieces(self, rows: NumberedRows) -> Iterator[tuple[int, int, int, int]]:
        """Yield (first row, end, bytes a row, stamp), of which the first row was read."""
        least, most = PROBES
        looked = {row: self._probe(rows, row) for row in _spread(len(rows), least)}
        total = sum(size for size, _ in looked.values()) // max(len(looked), 1) * len(rows)
        starts = _spread(len(rows), min(max(least, total // PROBE_BYTES), most))
        for start, stop in zip(starts, [*starts[1:], len(rows)], strict=False):
            size, stamp = looked.get(start) or self._probe(rows, start)
            yield start, stop, size, stamp

    def _probe(self, rows: NumberedRows, row: int) -> tuple[int, int]:
        """Return the bytes of what a row becomes, and a stamp of them."""
        digest, size = xxhash.xxh3_64(), 0
        try:
            for sample in rows.samples(row):
                fields = self._form.fields_of(sample)[1]
                self.notes += [n for n in labels_not_taken(fields) if n not in self.notes]
                for name, value in sorted(fields.items()):
                    size += len(value)
                    digest.update(b"%s %d " % (name.encode(), len(value)))
                    digest.update(value)
        except SampleError as error:  # rejected when its turn comes
            digest.update(str(error).encode())
        return max(size, 1), digest.intdigest() >> (UPPER + 1) << UPPER

    # --- reading --------------------------------------------------------------------------

    def read(self, run: Run, scratch: Path) -> SampleBatch:
        batch = SampleBatch()
        rows, fields_of = self._splits[run.base], self._form.fields_of
        for entry, key in enumerate(run.keys):
            try:
                made = [fields_of(sample) for sample in rows.samples(int(run.locators[entry]))]
            except SampleError as error:
                batch.rejects.append((self.entry_name(run, entry), str(error)))
                continue
            if len(made) == 1:
                add_sample(batch, made[0][0] or key, made[0][1])
                continue
            batch.counts[NO_SAMPLE] += not made
            for i, (own, fields) in enumerate(made):
                add_sample(batch, own or b"%s-%06d" % (key, i), fields)
        return fill(batch)

    def entry_name(self, run: Run, i: int) -> str:
        return f"row {int(run.locators[i])} of {run.base}"


def _spread(num_rows: int, count: int) -> list[int]:
    """Return so many rows at equal distances, the first among them; all if there are fewer."""
    count = min(num_rows, count)
    return [i * num_rows // count for i in range(count)]
