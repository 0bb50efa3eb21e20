"""What can only be iterated over: read once, in order, and held in files until workers pack it."""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, Self

import numpy as np
import xxhash

from shardkit.errors import CorpusError, SampleError
from shardkit.inputs.base import Corpus, Run
from shardkit.inputs.objects.batches import add_sample, fill
from shardkit.inputs.objects.fields import Fields, SampleForm, labels_not_taken
from shardkit.inputs.objects.source import iterator_of, told
from shardkit.samples.sample import SampleBatch, Value
from shardkit.system.own_files import create
from shardkit.system.stamps import UPPER

CHUNK_BYTES = 4_000_000
CHUNK_ROWS = 8_192
"""A file holds so much, or so many samples."""

Sample = tuple[bytes, Fields | str]
"""A key, and fields, or why there are none."""

Samples = Sequence[Sample]

_REJECT = b"!"
"""What begins the locator of a sample that cannot be packed; behind it is why."""


class StreamCorpus(Corpus):
    """Samples of objects that are iterated over, one object a split.

    They are turned into bytes here, in one process, and written to chunks in the scratch folder,
    which workers read: the order is that of the iterator, and nothing is asked of it twice. A
    resumed pack iterates once more, and compares checksums of all samples.
    """

    kind = "stream"
    has_pictures = True
    has_text = True
    is_stamped = False
    is_read_once = True

    def __init__(
        self, splits: dict[str, Any], form: SampleForm, classes: list[str] | None = None
    ) -> None:
        self._splits = splits
        self._form = form
        self.classes = classes
        self.ignored: dict[str, int] = {}
        self.notes: list[str] = []

    @classmethod
    def from_spec(cls, source: Path, spec: dict[str, Any]) -> Self:
        return cls({}, SampleForm())

    def spec(self) -> dict[str, Any]:
        own: dict[str, Any] = {"kind": self.kind, "splits": [*self._splits]}
        return {**own, **self._form.to_json(), "classes": self.classes}

    def splits(self) -> list[str]:
        return [*self._splits]

    # --- listing --------------------------------------------------------------------------

    def runs(self, scratch: Path) -> Iterator[Run]:
        number = -1
        for number, (split, samples) in enumerate(self._chunks()):
            name = f"{number:08d}.chunk"
            yield _write(scratch / name, Run(split, name), samples)
        if number < 0:
            raise CorpusError("the source has no samples: there is nothing to pack")

    def _chunks(self) -> Iterator[tuple[str, Samples]]:
        for split, source in self._splits.items():
            held = Held()
            for key, fields in self._samples(split, source):
                if held.add(key, fields):
                    yield split, held.take()
            if held.samples:
                yield split, held.take()

    def _samples(self, split: str, source: Any) -> Iterator[Sample]:
        """Yield (key, fields, or why there are none) of each sample."""
        row = 0
        samples = iterator_of(source)
        while True:
            try:
                sample = next(samples)
            except StopIteration:
                return
            # Whatever a user's code raises, the row is what they need to know; nothing follows it.
            except Exception as error:
                raise SampleError(f"sample {row} of {split}: {told(error)}") from error
            key = b"%012d" % row
            row += 1
            try:
                own, fields = self._form.fields_of(sample)
            except SampleError as error:
                yield key, str(error)
                continue
            if row == 1:
                self.notes += labels_not_taken(fields)
            yield own or key, fields

    # --- reading --------------------------------------------------------------------------

    def read(self, run: Run, scratch: Path) -> SampleBatch:
        batch = SampleBatch()
        if not len(run):
            return batch
        chunk = _read(scratch / run.base)
        for i, key in enumerate(run.keys):
            locator = run.locators[i]
            if locator.startswith(_REJECT):
                batch.rejects.append((self.entry_name(run, i), locator[1:].decode()))
            else:
                add_sample(batch, key, chunk[int(locator)])
        return fill(batch)

    def entry_name(self, run: Run, i: int) -> str:
        return f"sample {run.keys[i].decode(errors='replace')!r}"


class Held:
    """Samples until they are enough for a chunk."""

    def __init__(self) -> None:
        self.samples: list[Sample] = []
        self._num_bytes = 0

    def add(self, key: bytes, fields: Fields | str) -> bool:
        """Return True if it is time to take them."""
        self.samples.append((key, fields))
        self._num_bytes += 0 if isinstance(fields, str) else sum(map(len, fields.values()))
        return self._num_bytes >= CHUNK_BYTES or len(self.samples) >= CHUNK_ROWS

    def take(self) -> Samples:
        """Return them, and hold none."""
        taken, self.samples, self._num_bytes = self.samples, [], 0
        return taken


def _write(path: Path, run: Run, samples: Samples) -> Run:
    """Write a chunk, and fill its run: JSON of field names, then lengths (rows x fields; -1 is
    absent), then all values end to end."""
    good = [fields for _, fields in samples if not isinstance(fields, str)]
    names = sorted({name for fields in good for name in fields})
    place = {name: i for i, name in enumerate(names)}
    lengths = np.full((len(good), len(names)), -1, np.int64)
    values: list[Value] = []
    row = 0
    for key, fields in samples:
        run.keys.append(key)
        if isinstance(fields, str):
            run.locators.append(_REJECT + fields.encode().replace(b"\0", b" "))
            run.sizes.append(0)
            run.stamps.append(0)
            continue
        digest, size = xxhash.xxh3_64(), 0
        for name in sorted(fields):
            value = fields[name]
            lengths[row, place[name]] = len(value)
            values.append(value)
            size += len(value)
            digest.update(name.encode())
            digest.update(value)
        run.locators.append(b"%d" % row)
        run.sizes.append(max(size, 1))
        run.stamps.append(digest.intdigest() >> (UPPER + 1) << UPPER)
        row += 1
    head = json.dumps([len(good), names]).encode() + b"\n"
    with create(path) as file:
        file.writelines([head, lengths.tobytes(), *values])
    return run


def _read(path: Path) -> list[Fields]:
    with path.open("rb") as file:
        num_rows, names = json.loads(file.readline())
        size = num_rows * len(names) * 8
        lengths = np.frombuffer(file.read(size), np.int64).reshape(num_rows, len(names))
        data = memoryview(file.read())
    ends = np.cumsum(np.maximum(lengths, 0)).reshape(lengths.shape).tolist()
    rows: list[Fields] = []
    for own, stops in zip(lengths.tolist(), ends, strict=True):
        cells = zip(names, own, stops, strict=True)
        rows.append({n: bytes(data[stop - size : stop]) for n, size, stop in cells if size >= 0})
    return rows
