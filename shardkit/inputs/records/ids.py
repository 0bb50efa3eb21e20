"""Files of token ids as a corpus: what ``convert`` packs from. A document is a sample."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any, Self

import numpy as np

from shardkit.inputs.sample_files import RecordFiles, SampleFile
from shardkit.samples.encoding import TOKENS, npy_header
from shardkit.samples.sample import Value
from shardkit.tokens.id_files import TokenFile, open_token_file


class TokenFileCorpus(RecordFiles):
    """Field ``tokens``: a ``.npy`` of a document's ids, in the dtype that was chosen. The key is
    the document's number."""

    kind = "tokens"
    noun = "token ids"
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

    def _entries(self, file: SampleFile, path: Path) -> Iterator[tuple[bytes, tuple[int, int]]]:
        data = self._documents.data
        at = path.stat().st_size - data.nbytes
        begin = 0
        for number, end in enumerate(map(int, self._documents.sample_ends)):
            size = (end - begin) * data.itemsize
            yield b"%012d" % number, (at, size)
            begin, at = end, at + size

    def _sample(self, name: str, key: bytes, value: Value) -> list[tuple[str, bytes, Value]]:
        ids = np.frombuffer(value, self._documents.dtype)
        data = ids.astype(self._dtype, copy=False).tobytes()
        return [(TOKENS, b"", npy_header(self._dtype, ids.shape) + data)]

    def _at(self, name: str, key: bytes) -> str:
        return f"{name} at document {int(key)}"
