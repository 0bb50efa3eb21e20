"""The tokens of a file that nanoGPT or Megatron made."""

from __future__ import annotations

from functools import cached_property
from pathlib import Path

import numpy as np

from shardkit.arrays import Integers
from shardkit.errors import UsageError
from shardkit.sequences.contiguous import ContiguousTokens
from shardkit.sequences.documents import Documents
from shardkit.storage.local_files import Folder
from shardkit.system.paths import show_path
from shardkit.tokens.id_files import open_token_file


class FileTokens(ContiguousTokens):
    """:class:`shardkit.sequences.store.TokenStore` of one file.

    Args:
        path: as of :func:`shardkit.tokens.id_files.open_token_file`.
        eos: the id that ends documents, where the file does not say. stored_dtype: of the ids,
            where it does not say that.

    Raises:
        CorpusError: no such file. FormatError: it is damaged.
    """

    def __init__(self, path: Path, eos: int | None, stored_dtype: object) -> None:
        self._path = path
        self._file = open_token_file(path, eos, stored_dtype)
        self.fingerprint = self._file.fingerprint
        ids = self._file.files[0]
        folder = Folder(ids.parent)
        size = folder.size(ids.name)
        files = folder.files([ids.name], [size])
        files.read(*np.zeros((3, 1), np.int64)).slices()  # opens it now, not in a worker later
        start = size - self._file.data.nbytes
        super().__init__(files, [(start, size)], self._file.dtype)

    @cached_property
    def documents(self) -> Documents:
        ends = self._file.document_ends
        if ends is None:
            raise UsageError(
                f"{show_path(self._path)} does not say where documents end: give eos=, the id that"
                " ends them, or boundaries='ignore'"
            )
        return Documents(self._lengths, len(ends))

    def _lengths(self, first: int, last: int) -> Integers:
        ends = self._file.document_ends
        before = 0 if first == 0 else ends[first - 1]  # type: ignore[index]
        return np.diff(ends[first:last], prepend=before)  # type: ignore[index]

    def where(self, token: int) -> str:
        name = show_path(self._path)
        if self._file.document_ends is None:
            return name
        return f"document {self.documents.within(token, token + 1)[0]} of {name}"
