"""Windows of tokens as a target: what a language model is trained on."""

from __future__ import annotations

import copy
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from shardkit.batches.source import Source
from shardkit.corpus.token_files import is_token_file
from shardkit.measure.bench.target import Chosen, PackedTarget, Target
from shardkit.operations.stage import copy_files
from shardkit.order.permutation import Positions
from shardkit.sequences.dataset import TokenDataset

SEQ_LEN = 2048


class TokenTarget(Target):
    """A dataset packed with a tokenizer, or a file of token ids: its windows have no keys."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.where: str | None = None
        self._packed = None if is_token_file(path) else PackedTarget(path)
        self.name = self.format = "token file" if self._packed is None else self._packed.format
        self._unopened = copy.copy(TokenDataset(path, seq_len=SEQ_LEN))

    def __len__(self) -> int:
        return len(copy.copy(self._unopened))

    def open(self, rows: Positions) -> Source:
        source: Any = copy.copy(self._unopened)
        return Chosen(source, rows)

    def keys(self, rows: Positions) -> list[str] | None:
        return None

    @property
    def sample_bytes(self) -> int:
        return SEQ_LEN * copy.copy(self._unopened)._store.dtype.itemsize

    def find(self, keys: Sequence[str]) -> Positions:
        raise NotImplementedError("windows of tokens have no keys")

    def files(self, rows: Positions) -> list[Path]:
        if self._packed is not None:
            return self._packed.files(rows)
        return [path for path in (self.path, self.path.with_suffix(".idx")) if path.is_file()]

    def copied(self, rows: Positions, folder: Path, where: str) -> Target:
        """The whole dataset, or the files."""
        there = copy.copy(self)
        there.where = where
        if self._packed is None:
            there.path = copy_files(self.files(rows), folder)[0]
        else:
            there._packed = self._packed.copied(rows, folder, where)
            there.path = folder
        there._unopened = copy.copy(TokenDataset(there.path, seq_len=SEQ_LEN))
        return there
