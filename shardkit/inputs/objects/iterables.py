"""Iterables as inputs: read once, in order, and buffered until they are packed."""

from __future__ import annotations

import io
import json
from collections.abc import Iterator
from dataclasses import replace
from itertools import count
from pathlib import Path
from typing import Any, Self

import numpy as np

from shardkit.commit.own_files import create
from shardkit.errors import CorpusError, SampleError
from shardkit.inputs.corpus import Run
from shardkit.inputs.objects.numbered_rows import ObjectCorpus, iterator_of, told
from shardkit.inputs.objects.sample_forms import BatchBuilder, Pixels, SampleForm, labels_not_taken
from shardkit.samples.checksums import sample_checksums
from shardkit.samples.sample import SampleBatch
from shardkit.system.stamps import UPPER

CHUNK_BYTES = 4_000_000
CHUNK_ROWS = 8_192
"""A chunk holds so much, or so many samples."""

MEMORY_BYTES = 64_000_000
"""Chunks that wait in memory, where this process packs them itself; older ones wait in files."""

_REJECT = b"!"
"""The prefix of the locator of a rejected sample; the reason follows."""


class StreamCorpus(ObjectCorpus):
    """Samples of objects that are iterated over, one object a split.

    They are turned into bytes here, in one process, and wait in chunks: in files of the scratch
    folder, if worker processes read them. The order is that of the iterator, and nothing is asked
    of it twice. A resumed pack iterates once more, and compares checksums of all samples.
    """

    kind = "stream"
    is_read_once = True

    def __init__(
        self, splits: dict[str, Any], form: SampleForm, classes: list[str] | None = None
    ) -> None:
        super().__init__(splits, replace(form, is_deferred=not form.is_reencoded), classes)
        self._waiting: dict[Path, SampleBatch] = {}
        self._unread: dict[Path, int] = {}
        self._limit = MEMORY_BYTES // CHUNK_BYTES
        self._loaded = Path(), SampleBatch()

    @classmethod
    def from_spec(cls, source: Path, spec: dict[str, Any]) -> Self:
        return cls({}, SampleForm())

    def objects(self) -> bytes:
        """Return nothing: other processes read files, and so all chunks become files."""
        self._limit = 0
        self._write_oldest()
        return b""

    def spec(self) -> dict[str, Any]:
        own: dict[str, Any] = {"kind": self.kind, "splits": [*self._splits]}
        return {**own, **self._form.to_json(), "classes": self.classes}

    # --- listing --------------------------------------------------------------------------

    def runs(self, scratch: Path) -> Iterator[Run]:
        number = -1
        for number, (split, chunk) in enumerate(self._chunks()):
            name = f"{number:08d}.chunk"
            self._waiting[scratch / name] = chunk.batch
            self._unread[scratch / name] = len(chunk.keys)
            self._write_oldest()
            yield chunk.run(split, name)
        if number < 0 and not self.packed:
            raise CorpusError("the source has no samples: there is nothing to pack")

    def _write_oldest(self) -> None:
        while len(self._waiting) > self._limit:
            oldest = next(iter(self._waiting))
            _write(oldest, self._waiting.pop(oldest))

    def _chunks(self) -> Iterator[tuple[str, Chunk]]:
        for split, source in self._splits.items():
            chunk = Chunk(self._form)
            samples = iterator_of(source)
            for row in count():
                try:
                    sample = next(samples)
                except StopIteration:
                    break
                # Whatever a user's code raises, the row is what they need to know; none follows.
                except Exception as error:
                    raise SampleError(f"sample {row} of {split}: {told(error)}") from error
                try:
                    chunk.add(b"%012d" % row, sample)
                except SampleError as error:
                    chunk.reject(b"%012d" % row, str(error))
                if not row:
                    self.notes += labels_not_taken(chunk.batch.columns)
                if chunk.is_full:
                    yield split, chunk
                    chunk = Chunk(self._form)
            if chunk.keys:
                yield split, chunk

    # --- reading --------------------------------------------------------------------------

    def read(self, run: Run, scratch: Path) -> SampleBatch:
        path = scratch / run.base
        held = self._waiting.get(path)
        if held is None:
            if self._loaded[0] != path:
                self._loaded = path, _load(path)
            whole = self._loaded[1]
        else:
            whole = held
            self._unread[path] -= len(run)
            if not self._unread[path]:  # no other job needs it, in whatever order jobs read it
                del self._waiting[path]
        good = [i for i, own in enumerate(run.locators) if not own.startswith(_REJECT)]
        rows = [int(run.locators[i]) for i in good]
        batch = whole if rows == [*range(len(whole))] else whole.take(rows)
        columns = {
            name: [value.compressed() if type(value) is Pixels else value for value in values]
            for name, values in batch.columns.items()
        }
        rejects = [
            (self.entry_name(run, i), own[1:].decode())
            for i, own in enumerate(run.locators)
            if own.startswith(_REJECT)
        ]
        return SampleBatch([run.keys[i] for i in good], [*batch.paths], columns, rejects)

    def entry_name(self, run: Run, i: int) -> str:
        return f"sample {run.keys[i].decode(errors='replace')!r}"


class Chunk:
    """Samples that wait together. Attributes: keys, of all, bad ones too; batch, of the good."""

    def __init__(self, form: SampleForm) -> None:
        self._made = BatchBuilder(form)
        self.keys: list[bytes] = []
        self.batch = self._made.batch
        self._bad: dict[int, str] = {}
        self._sizes: list[int] = []
        self._num_bytes = 0

    def add(self, key: bytes, sample: Any) -> None:
        """Add a sample under its own key, or this one. Raises SampleError, and adds nothing."""
        own, size = self._made.add(key, sample)
        self.keys.append(own)
        self._sizes.append(size or 1)
        self._num_bytes += size

    def reject(self, key: bytes, why: str) -> None:
        """Note in place of a sample why there is none."""
        self._bad[len(self.keys)] = why
        self.keys.append(key)
        self._sizes.append(0)

    @property
    def is_full(self) -> bool:
        """Return True if the next sample belongs in another chunk."""
        return self._num_bytes >= CHUNK_BYTES or len(self.keys) >= CHUNK_ROWS

    def run(self, split: str, base: str) -> Run:
        """Return the samples as entries; a stamp is a checksum."""
        sums = sample_checksums(self.batch.columns, len(self.batch)) >> np.uint64(UPPER + 1)
        stamps = (sums << np.uint64(UPPER)).astype(np.int64).tolist()
        locators = [b"%d" % row for row in range(len(stamps))]
        for place, why in self._bad.items():
            locators.insert(place, _REJECT + why.encode().replace(b"\0", b" "))
            stamps.insert(place, 0)
        return Run(split, base, None, locators, self.keys, self._sizes, stamps)


def _write(path: Path, batch: SampleBatch) -> None:
    """Write a chunk: a line of JSON with the paths and the lengths of all values of each column,
    and the values end to end, column by column. No length is absent, and one below zero is of
    :class:`Pixels`."""
    sizes = {
        name: [None if v is None else -1 - len(v) if type(v) is Pixels else len(v) for v in values]
        for name, values in batch.columns.items()
    }
    with create(path) as file:
        file.write(json.dumps([[*map(bytes.decode, batch.paths)], sizes]).encode() + b"\n")
        for values in batch.columns.values():
            file.writelines(value for value in values if value is not None)


def _load(path: Path) -> SampleBatch:
    file = io.BytesIO(path.read_bytes())
    paths, sizes = json.loads(file.readline())
    batch = SampleBatch([b""] * len(paths), [*map(str.encode, paths)])
    for name, lengths in sizes.items():
        batch.columns[name] = [
            None if n is None else file.read(n) if n >= 0 else Pixels(file.read(-1 - n))
            for n in lengths
        ]
    return batch
