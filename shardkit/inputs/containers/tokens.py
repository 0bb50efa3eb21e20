"""Files of token ids as a corpus: what ``convert`` packs from. A document is a sample."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any, Self

import numpy as np

from shardkit.arrays import Integers, Tokens
from shardkit.errors import FormatError
from shardkit.inputs.base import Corpus, Run
from shardkit.inputs.containers.token_files import TokenFile, open_token_file, scan
from shardkit.inputs.files import input_stamp
from shardkit.samples.encoding import TOKENS, npy_header
from shardkit.samples.sample import SampleBatch
from shardkit.system.paths import show_path
from shardkit.system.refusals import os_errors
from shardkit.tokens.spec import MAX_VOCABULARY

PIECE_TOKENS = 1 << 20
"""What is a sample where nobody knows where documents end."""

RUN_DOCUMENTS = 65_536


class TokenFileCorpus(Corpus):
    """Field ``tokens``: a ``.npy`` of a document's ids, in the dtype that was chosen.

    A locator is ``start:stop``, in tokens; the key is the document's number. ``documents`` is
    needed for listing alone.
    """

    kind = "tokens"

    def __init__(
        self,
        source: Path,
        dtype: str,
        documents: TokenFile | None = None,
        stored_dtype: str | None = None,
    ) -> None:
        self.source = source
        self.classes: list[str] | None = None
        self.ignored: dict[str, int] = {}
        self._dtype = dtype
        self._stored_dtype = stored_dtype
        self._documents = documents
        self._data: Tokens | None = None
        self._stamp = 0

    @classmethod
    def from_spec(cls, source: Path, spec: dict[str, Any]) -> Self:
        return cls(source, spec["dtype"], stored_dtype=spec.get("stored_dtype"))

    def spec(self) -> dict[str, Any]:
        made: dict[str, Any] = {"kind": self.kind, "dtype": self._dtype}
        made |= {"stored_dtype": self._stored_dtype} if self._stored_dtype else {}
        return made | ({"fingerprint": self._documents.fingerprint} if self._documents else {})

    def splits(self) -> list[str]:
        return ["train"]

    def runs(self, scratch: Path) -> Iterator[Run]:
        if self._documents is None:
            raise FormatError(f"{show_path(self.source)}: rebuilt for reading, it lists nothing")
        ends = ends_of(self._documents)
        stamp = input_stamp(self._documents.files[0])
        for first in range(0, len(ends), RUN_DOCUMENTS):
            own = ends[first : first + RUN_DOCUMENTS]
            begins = np.append(ends[first - 1] if first else 0, own[:-1])
            yield Run(
                "train",
                "",
                locators=[b"%d:%d" % place for place in zip(begins, own, strict=True)],
                keys=[b"%012d" % number for number in range(first, first + len(own))],
                sizes=((own - begins) * self._documents.dtype.itemsize).tolist(),
                stamps=[stamp] * len(own),
            )

    def read(self, run: Run, scratch: Path) -> SampleBatch:
        """Raises FormatError if the file is not the one that was listed."""
        values = []
        with os_errors(f"reading {show_path(self.source)}"):
            data = self._opened(run)
        for locator in run.locators:
            start, _, stop = locator.partition(b":")
            ids = data[int(start) : int(stop)]
            header = npy_header(self._dtype, ids.shape)
            values.append(header + ids.astype(self._dtype, copy=False).tobytes())
        return SampleBatch([*run.keys], [b""] * len(run), {TOKENS: [*values]} if values else {})

    def _opened(self, run: Run) -> Tokens:
        if self._data is None:
            found = self._documents or open_token_file(self.source, stored_dtype=self._stored_dtype)
            self._data, self._stamp = found.data, input_stamp(found.files[0])
        if run.stamps and run.stamps[0] != self._stamp:
            raise FormatError(f"{show_path(self.source)} changed while packing; run it again")
        return self._data


def ends_of(file: TokenFile) -> Integers:
    """(N,) int64: where each sample ends: a document, or a piece if nobody knows of those."""
    if file.document_ends is not None:
        return file.document_ends
    total = len(file.data)
    return np.append(np.arange(PIECE_TOKENS, total, PIECE_TOKENS, dtype=np.int64), total)


def largest_id(file: TokenFile) -> int:
    """The largest id. Raises FormatError if it is no id of any vocabulary."""
    found = max(int(ids.max()) for _, ids in scan(file.data))
    if found >= MAX_VOCABULARY:
        at = next(start + int(ids.argmax()) for start, ids in scan(file.data) if found in ids)
        raise FormatError(
            f"{show_path(file.files[0])}: token {at} has id {found}, or it is negative, which no"
            " vocabulary has; fetch or make it again"
        )
    return found
