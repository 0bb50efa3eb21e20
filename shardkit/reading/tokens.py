"""Token ids for language models: sequences of one length, from documents of any."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any, Literal

import numpy as np

from shardkit.encoding import TOKENS
from shardkit.errors import UsageError
from shardkit.mapping import Warmth
from shardkit.reading.dataset import Dataset
from shardkit.reading.order import Epoch, Shuffle
from shardkit.reading.packed_tokens import packed_tokens
from shardkit.reading.permute import Positions
from shardkit.reading.token_store import TokenStore
from shardkit.reading.windows import Windows
from shardkit.whole import whole

Boundaries = Literal["ignore", "mask", "fit"]

Arrays = dict[str, np.ndarray[Any, np.dtype[Any]]]


class TokenDataset:
    """Sequences of ``seq_len`` tokens from the documents of one split.

    A :class:`shardkit.Source`: give it to :class:`shardkit.Loader`. Batches have ``inputs`` and
    ``labels``, (B, seq_len), where ``labels[:, i]`` is the token after ``inputs[:, i]``. (A model
    of Hugging Face shifts by itself: give it ``inputs`` as labels, too.)

    All documents, in stored order, are one circle of T tokens, of which an epoch reads ``T //
    seq_len`` windows: each token is an input once, but for a tail of ``T % seq_len``, which is
    elsewhere in each shuffled epoch, as the windows begin at another phase.

    Also a map-style dataset: ``len(ds)``, ``ds[i]``; pickles, forks and spawns freely.

    Args:
        path: folder of a dataset packed with a tokenizer.
        split: split name; may be left out where there is one, or one called ``train``.
        seq_len: inputs of a sample.
        dtype: of the batches, ``"int64"`` or ``"int32"``.

    Raises:
        UsageError: no tokens there, or fewer than one sample needs.
        IndexFileError: the index is damaged.
    """

    def __init__(
        self,
        path: str | Path,
        split: str | None = None,
        *,
        seq_len: int,
        boundaries: Boundaries = "ignore",
        dtype: Literal["int64", "int32"] = "int64",
        eos: int | None = None,
    ) -> None:
        self.seq_len = whole("seq_len", seq_len, 1)
        if boundaries not in ("ignore", "mask", "fit"):
            raise UsageError(f"boundaries must be 'ignore', 'mask' or 'fit', got {boundaries!r}")
        if dtype not in ("int64", "int32"):
            raise UsageError(f"dtype must be 'int64' or 'int32', got {dtype!r}")
        self.boundaries = boundaries
        self.dtype = np.dtype(dtype)
        self._dataset = _open(path, split)
        self._state: TokenStore | None = None
        self._windows = Windows(self._store.num_tokens, self.seq_len)
        self._warmth = Warmth()
        if not len(self):
            raise UsageError(
                f"{path}: {self._store.num_tokens} tokens do not fill one sequence of {seq_len}"
            )

    @property
    def _store(self) -> TokenStore:
        """Opened on first use in each process."""
        if self._state is None:
            self._state = packed_tokens(self._dataset)
        return self._state

    def __getstate__(self) -> dict[str, Any]:
        return {**self.__dict__, "_state": None}

    @property
    def num_tokens(self) -> int:
        """Of the split."""
        return self._windows.num_tokens

    @property
    def num_rows(self) -> int:
        """Rows that :meth:`read` knows: those of all phases."""
        return self._windows.num_rows

    def __len__(self) -> int:
        """Samples an epoch."""
        return self._windows.num_windows

    @property
    def fingerprint(self) -> str:
        """Equal for equal sequences, in any format."""
        return f"{self._store.fingerprint}/{self.seq_len}/{self.boundaries}"

    def order(self, shuffle: Shuffle, seed: int, epoch: int, **options: int) -> Epoch:
        return self._windows.order(shuffle, seed, epoch, **options)

    def read(self, rows: Positions) -> Arrays:
        """``inputs`` and ``labels``, (B, seq_len) each: two views of one buffer.

        Args:
            rows: (B,) int64, each in [0, num_rows).
        """
        windows = self._read_windows(self._starts(rows)).astype(self.dtype)
        return {"inputs": windows[:, :-1], "labels": windows[:, 1:]}

    def _starts(self, rows: Positions) -> Positions:
        """The first token of each row's window."""
        # As unsigned, a negative row is a large one: one pass instead of two.
        if len(rows) and int(rows.view(np.uint64).max()) >= self.num_rows:
            raise IndexError(f"a row is outside 0..{self.num_rows - 1}")
        return self._windows.starts(rows)

    def _read_windows(self, starts: Positions) -> np.ndarray[Any, np.dtype[Any]]:
        """(B, seq_len + 1) tokens, new; what is beyond the last token begins again."""
        size = self.seq_len + 1
        if not len(starts):
            return np.empty((0, size), self._store.dtype)
        if int(starts.max()) + size <= self.num_tokens:
            return self._store.windows(starts, size)
        out = np.empty((len(starts), size), self._store.dtype)
        for start, window in zip(starts.tolist(), out, strict=True):
            left = min(self.num_tokens - start, size)
            self._store.copy(start, window[:left])
            if left < size:
                self._store.copy(0, window[left:])
        return out

    def advise(self, rows: Positions) -> None:
        """Tell the kernel that these rows will be read soon; returns at once."""
        if self._warmth.is_cold():
            starts = self._starts(rows)
            ends = np.minimum(starts + self.seq_len + 1, self.num_tokens)
            self._store.announce(starts, ends - starts)

    def __getitem__(self, row: int) -> Arrays:
        """One sample: ``inputs`` and ``labels``, (seq_len,) each."""
        return self.__getitems__([row])[0]

    def __getitems__(self, rows: Sequence[int]) -> list[Arrays]:
        numbers = np.array([self._wrap(row) for row in rows], np.int64)
        columns = self.read(numbers)
        return [{name: values[i] for name, values in columns.items()} for i in range(len(numbers))]

    def _wrap(self, row: int) -> int:
        if not -len(self) <= row < len(self):
            raise IndexError(f"row {row} is outside 0..{len(self) - 1}")
        return row % len(self)

    def keys(self, rows: Iterable[int]) -> list[str]:
        return [self.where(row) for row in rows]

    def where(self, row: int) -> str:
        start = int(self._starts(np.array([row]))[0])
        return f"tokens {start}..{start + self.seq_len} of {self._dataset.split}"


def _open(path: str | Path, split: str | None) -> Dataset:
    dataset = Dataset(path, split)
    if TOKENS not in dataset.info.fields:
        raise UsageError(
            f"{path} holds {', '.join(dataset.info.fields)}, no tokens; pack it with --tokenizer"
        )
    return Dataset(path, split, fields=[TOKENS])
