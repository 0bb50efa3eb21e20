"""Files of token ids as a corpus: what ``convert`` packs from. A document is a sample."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, Self

import numpy as np

from shardkit.inputs.base import Run
from shardkit.inputs.sample_files import Cell, RecordFiles, SampleFile
from shardkit.samples.encoding import TOKENS, npy_header
from shardkit.samples.sample import Value, pack_paths
from shardkit.tokens.id_files import TokenFile, open_token_file


class TokenFileCorpus(RecordFiles):
    """Field ``tokens``: a ``.npy`` of a document's ids, in the dtype that was chosen. The key is
    the document's number."""

    kind = "tokens"
    noun = "token ids"
    unit = "document"
    kept = {"dtype": "_dtype", "stored_dtype": "_stored_dtype"}  # noqa: RUF012

    def __init__(
        self, source: Path, dtype: str, documents: TokenFile, stored_dtype: str | None = None
    ) -> None:
        super().__init__(source)
        self._dtype, self._documents, self._stored_dtype = dtype, documents, stored_dtype
        self._files = [SampleFile("train", "")]

    @classmethod
    def from_spec(cls, source: Path, spec: dict[str, Any]) -> Self:
        made = super().from_spec(source, spec)
        made._documents = open_token_file(source, stored_dtype=made._stored_dtype)
        return made

    def spec(self) -> dict[str, Any]:
        return {**super().spec(), "fingerprint": self._documents.fingerprint}

    def _path(self, base: str) -> Path:
        return self._documents.files[0]

    def entries(self, file: SampleFile, plain: Path) -> Iterator[tuple[bytes, tuple[int, int]]]:
        data = self._documents.data
        at = plain.stat().st_size - data.nbytes
        begin = 0
        for number, end in enumerate(map(int, self._documents.sample_ends)):
            size = (end - begin) * data.itemsize
            yield b"%012d" % number, (at, size)
            begin, at = end, at + size

    def cells(self, base: str, key: bytes, value: Value) -> list[Cell]:
        ids = np.frombuffer(value, self._documents.dtype)
        data = ids.astype(self._dtype, copy=False).tobytes()
        return [(TOKENS, npy_header(self._dtype, ids.shape) + data, b"")]

    def paths_of(self, run: Run) -> Callable[[bytes, list[Cell]], bytes]:
        return lambda key, cells: pack_paths(key, [])
