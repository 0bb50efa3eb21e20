"""Token ids for language models: sequences of one length, from documents of any."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any, Literal, cast

import numpy as np

from shardkit.arguments import integer, known_options
from shardkit.arrays import Integers
from shardkit.errors import UsageError
from shardkit.index.manifest import DatasetInfo
from shardkit.order.epochs import EpochOrder, Shuffle
from shardkit.reading.dataset import Batch, Dataset
from shardkit.reading.row_numbers import from_front, row_numbers
from shardkit.remote.urls import RemoteOptions, Url, as_place, show_place
from shardkit.samples.encoding import TOKENS
from shardkit.sequences.fit import Fit
from shardkit.sequences.kinds import Sequences
from shardkit.sequences.packed_store import packed_tokens
from shardkit.sequences.store import TokenStore
from shardkit.sequences.token_files import FileTokens
from shardkit.sequences.windows import Windows
from shardkit.shards.locate import replaced
from shardkit.storage.interface import Turn
from shardkit.system.paths import show_path
from shardkit.tokens.id_files import is_token_file
from shardkit.tokens.spec import MAX_VOCABULARY

Boundaries = Literal["ignore", "mask", "fit"]


class TokenDataset:
    """Sequences of ``seq_len`` tokens from the documents of one split.

    A :class:`shardkit.Source`: give it to :class:`shardkit.Loader`. Batches have ``inputs`` and
    ``labels``, (B, seq_len), where ``labels[:, i]`` is the token after ``inputs[:, i]``. (A model
    of Hugging Face shifts by itself: give it ``inputs`` as labels, too.)

    ``boundaries="ignore"``: all documents, in stored order, are one circle of T tokens, of which an
    epoch reads ``T // seq_len`` windows. Each token is an input once, but for ``T % seq_len``,
    which are elsewhere in each shuffled epoch, as its windows begin at another phase: any
    ``seq_len`` epochs on end have no window twice.

    ``"mask"``: the same windows. ``position_ids`` count from 0 in each document's piece,
    ``document_ids`` are its row in the split, both (B, seq_len) int64. A label is -100, which
    torch's ``cross_entropy`` leaves out, where the next token is another document's. For attention
    of variable length, as flash-attention has it, batches of a loader have ``cu_seqlens``,
    (pieces + 1,) int32, where pieces begin and end in the batch flattened, and ``max_seqlen``.

    ``"fit"``: each sample is of whole documents, by best-fit decreasing (Ding et al. 2024, arXiv
    2404.10830), with the same fields; what is left is padding: label -100, ``document_ids`` -1, a
    piece of its own. Each pair of a token and the next of its document comes once an epoch.
    Documents longer than a sample are cut, elsewhere in each shuffled epoch. One of four samples
    or more is cut as a circle: one of its samples has its head, then its tail, as two pieces, so
    that its windows come again in another epoch by chance alone. Which documents share
    a sample is drawn anew, too, among 65,536 neighbours; those of a million are shuffled together,
    whether with ``shuffle="full"`` or ``"block"``. Each worker process packs for itself.

    Also a map-style dataset: ``len(ds)`` samples an epoch, ``ds[i]`` as of one that is not
    shuffled; pickles, forks and spawns freely.

    Args:
        path: folder of a dataset packed with a tokenizer, or its URL; or a file of token ids,
            nanoGPT's ``.bin`` or Megatron's ``.bin`` and ``.idx``.
        split: split name; may be left out where there is one, or one called ``train``.
        seq_len: inputs of a sample.
        dtype: of inputs and labels that are returned, ``"int64"`` or ``"int32"``.
        eos: the id that pads, by default the tokenizer's, else 0; and that ends documents in a file
            of nanoGPT's, which does not say where they end.
        stored_dtype: of the ids in a file without a header, which does not say it: ``"uint16"``
            (the default, as nanoGPT writes them), ``"uint32"``, ``"int32"``, ``"int64"``... With it
            the file may have any name, as OLMo's ``.npy``.
        cache_dir, cache_bytes, storage_options: as of :class:`shardkit.Dataset`.

    Raises:
        UsageError: no tokens there, or fewer than one sample needs.
        DataError: the index or the file is damaged.
        StorageError: behind a URL: the network, the server, the credentials or the cache say no.
    """

    @known_options("TokenDataset")
    def __init__(
        self,
        path: str | Path,
        split: str | None = None,
        *,
        seq_len: int,
        boundaries: Boundaries = "ignore",
        dtype: Literal["int64", "int32"] = "int64",
        eos: int | None = None,
        stored_dtype: str | None = None,
        version: int | None = None,
        cache_dir: str | Path | None = None,
        cache_bytes: int | str | None = None,
        storage_options: Mapping[str, Any] | None = None,
    ) -> None:
        if boundaries not in ("ignore", "mask", "fit"):
            raise UsageError(f"boundaries must be 'ignore', 'mask' or 'fit', got {boundaries!r}")
        if dtype not in ("int64", "int32"):
            raise UsageError(f"dtype must be 'int64' or 'int32', got {dtype!r}")
        place = as_place(path, "the tokens")
        self.path = place if isinstance(place, Url) else place.absolute()
        self.seq_len = integer("seq_len", seq_len, 1)
        self.boundaries = boundaries
        self.dtype = np.dtype(dtype)
        self.eos = None if eos is None else integer("eos", eos)
        self._stored_dtype = stored_dtype
        if isinstance(place, Path) and is_token_file(place, stored_dtype):
            options = RemoteOptions.of(cache_dir, cache_bytes, storage_options)
            _refuse_for_file(place, split, options)
            self._dataset = None
        else:
            if stored_dtype is not None:
                raise UsageError(f"stored_dtype is for files of ids; {show_place(place)} is none")
            dataset = Dataset(
                str(place) if isinstance(place, Url) else place,
                split,
                version=version,
                cache_dir=cache_dir,
                cache_bytes=cache_bytes,
                storage_options=storage_options,
            )
            self._dataset = _of_tokens(dataset)
        self._opened: tuple[TokenStore, Sequences] | None = None
        self._fingerprint: str | None = None
        if not len(self):
            raise UsageError(
                f"{show_place(place)}: {self.num_tokens} tokens make no sequence of {seq_len}"
            )

    @property
    def info(self) -> DatasetInfo | None:
        """What the packed dataset says about itself; None for a file of tokens."""
        return None if self._dataset is None else self._dataset.info

    def _open(self) -> tuple[TokenStore, Sequences]:
        """On first use in each process."""
        if self._opened is None:
            if self._dataset is None:
                path = cast(Path, self.path)
                store: TokenStore = FileTokens(path, self.eos, self._stored_dtype)
                if self._fingerprint not in (None, store.fingerprint):
                    raise replaced(path)
                self._fingerprint = store.fingerprint
            else:
                store = packed_tokens(self._dataset)
            pad = self._pad(store)
            if self.boundaries == "fit":
                made: Sequences = Fit(store, self.seq_len, self.dtype, pad)
            else:
                made = Windows(store, self.seq_len, self.dtype, self.boundaries == "mask")
            self._opened = store, made
        return self._opened

    def _pad(self, store: TokenStore) -> int:
        pad = self.eos
        if pad is None and self._dataset is not None:
            pad = (self._dataset.info.provenance.tokens or {}).get("eos")
        if (pad or 0) > min(np.iinfo(store.dtype).max, MAX_VOCABULARY - 1):
            raise UsageError(f"eos={pad} is no token id: they are {store.dtype} here")
        return pad or 0

    @property
    def _store(self) -> TokenStore:
        return self._open()[0]

    @property
    def _sequences(self) -> Sequences:
        return self._open()[1]

    def __getstate__(self) -> dict[str, Any]:
        return {**self.__dict__, "_opened": None}

    def __repr__(self) -> str:
        return (
            f"<TokenDataset {show_place(self.path)}: {len(self)} samples of {self.seq_len} of"
            f" {self.num_tokens} tokens, boundaries={self.boundaries!r}>"
        )

    def __len__(self) -> int:
        """Samples an epoch."""
        return self._sequences.num_samples

    @property
    def num_rows(self) -> int:
        """Rows that :meth:`read` knows: the samples of all epochs."""
        return self._sequences.num_rows

    @property
    def num_tokens(self) -> int:
        """Tokens of the split."""
        return self._store.num_tokens

    @property
    def padding(self) -> float:
        """The share of inputs that are padding, from 0 to 1."""
        return self._sequences.padding

    @property
    def layout(self) -> str:
        """What its batches look like, in words."""
        which = "without" if self.boundaries == "ignore" else "with"
        return f"sequences of {self.seq_len} {self.dtype} {which} position_ids"

    @property
    def fingerprint(self) -> str:
        """Equal for equal sequences, in any format."""
        return f"{self._store.fingerprint}/{self.seq_len}/{self.boundaries}"

    def order(self, shuffle: Shuffle, seed: int, epoch: int, **options: int) -> EpochOrder:
        return self._sequences.order(shuffle, seed, epoch, **options)

    # --- reading --------------------------------------------------------------------------

    def read(self, rows: Integers) -> Batch:
        """Columns of (B, seq_len) each; with ``"ignore"``, two views of one buffer.

        Args:
            rows: (B,) int64, each in [0, num_rows).

        Raises:
            IndexError: a row is outside. DataError: tokens cannot be read.
        """
        sequences = self._open()[1]
        return sequences.read(_checked(rows, sequences.num_rows))

    def finish(self, batch: dict[str, Any]) -> dict[str, Any]:
        """A collated batch with ``cu_seqlens`` and ``max_seqlen``, if it has ``position_ids``."""
        position_ids = batch.get("position_ids")
        if getattr(position_ids, "ndim", 0) != 2:
            return batch
        is_first = position_ids.numpy() == 0  # type: ignore[union-attr]
        is_first[:, 0] = True
        ends = np.append(np.flatnonzero(is_first), is_first.size)
        cu_seqlens = position_ids.new_tensor(ends).int()  # type: ignore[union-attr]
        return {**batch, "cu_seqlens": cu_seqlens, "max_seqlen": int(np.diff(ends).max())}

    @property
    def foresees(self) -> bool:
        """As of :class:`shardkit.Dataset`."""
        return self._dataset is not None and self._dataset.foresees

    def is_cold(self) -> bool:
        """As of :class:`shardkit.Dataset`."""
        return self._store.is_cold()

    def reached(self, turn: Turn, *, is_resting: bool) -> bool:
        """As of :class:`shardkit.Dataset`."""
        return self._dataset is None or self._dataset.reached(turn, is_resting=is_resting)

    def advise(self, rows: Integers, turn: Turn | None = None) -> None:
        """As of :class:`shardkit.Dataset`."""
        if self._store.is_cold():
            ranges = self._sequences.ranges(_checked(rows, self.num_rows))
            self._store.announce(*ranges, turn)

    def __getitem__(self, row: int) -> Batch:
        """One sample: columns as of :meth:`read`, (seq_len,) each."""
        return self.__getitems__([row])[0]

    def __getitems__(self, rows: Sequence[int]) -> list[Batch]:
        numbers = [from_front(row, len(self)) for row in rows]
        columns = self.read(np.array(numbers, np.int64))
        return [{name: values[i] for name, values in columns.items()} for i in range(len(rows))]

    def keys(self, rows: Iterable[int]) -> list[str]:
        """Each row in words: sequences have no names."""
        return [self.where(row) for row in rows]

    def where(self, row: int) -> str:
        """A row in words, for messages."""
        return self._sequences.where(int(_checked(np.array([row], np.int64), self.num_rows)[0]))


def _checked(rows: Sequence[int] | Integers, num_rows: int) -> Integers:
    if type(rows) is not np.ndarray or rows.dtype != np.int64:
        rows = row_numbers(rows)
    numbers = rows.tolist()  # of which Python is faster for few, and these are few
    if numbers and not (min(numbers) >= 0 and max(numbers) < num_rows):
        raise IndexError(f"a row is outside 0..{num_rows - 1}")
    return rows


def _refuse_for_file(path: Path, split: str | None, options: RemoteOptions) -> None:
    """Raises UsageError for arguments that a file of token ids has no use for."""
    if split is not None:
        raise UsageError(f"{show_path(path)} is a file: it has no split {split!r}")
    if options != RemoteOptions():
        raise UsageError(
            f"{show_path(path)} is a file of ids, which is mapped where it lies: cache_dir,"
            " cache_bytes and storage_options are for datasets"
        )


def _of_tokens(dataset: Dataset) -> Dataset:
    if TOKENS not in dataset.info.fields:
        raise UsageError(
            f"{show_place(dataset.path)} holds {', '.join(dataset.info.fields)}, no tokens;"
            " pack it with --tokenizer"
        )
    dataset.fields = [TOKENS]
    return dataset
