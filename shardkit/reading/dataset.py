"""The map-style dataset, batch first: ``read`` many rows at once, or index one."""

from __future__ import annotations

import warnings
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, Unpack

import numpy as np
import xxhash

from shardkit.arguments import integer, known_options, refuse_unknown
from shardkit.arrays import Bytes, Integers, Offsets
from shardkit.errors import ChecksumError, DataError, UsageError
from shardkit.index.manifest import DatasetInfo
from shardkit.order.epochs import Order, check_shuffle
from shardkit.reading.row_numbers import as_array, from_front, listed_rows, row_numbers
from shardkit.remote.cached_storage import Remote, why_repeated
from shardkit.remote.urls import RemoteOptions, Url, as_place, show_place
from shardkit.samples.sample import KEY
from shardkit.shards.joined import Joined
from shardkit.shards.locate import (
    Located,
    Unreplaced,
    locate,
    locate_remote,
    refuse_version,
    stamp_at,
)
from shardkit.shards.stored import Gather, ShardReader
from shardkit.shards.values import Column, Decode, own_values, read_column, read_joined
from shardkit.storage.interface import Foresees, Turn
from shardkit.storage.local_files import Folder
from shardkit.system.paths import show_path

if TYPE_CHECKING:
    from shardkit.batches.batch_options import BatchKeywords
    from shardkit.batches.stream import Stream

Batch = dict[str, Column]


class Dataset:
    """Samples of one split of a packed dataset, in any container format.

    A torch map-style dataset: ``len(ds)``, ``ds[i]``, ``ds.__getitems__(rows)``; give it to a
    ``torch.utils.data.DataLoader`` as it is. Pickles, forks and spawns freely: files are mapped on
    first use in each process. ``ds[i]`` gives plain Python values, which pickle through workers;
    ``read`` gives read-only views of mapped files where no decoding is needed, which is faster:
    ``bytes(value)`` copies one. A file that is truncated *while it is mapped* ends the process
    (SIGBUS), as with every memory map: with ``verify=True``, and on network file systems, shards
    are read into memory instead, and a truncated one is an error.

    Args:
        path: folder of a dataset, or of WebDataset tars made by others, or one such tar; or the
            URL of a dataset's folder (``s3://``, ``gs://``, ``az://``, ``hf://``, ``https://``,
            ``http://``, ``file://``), as a str. Credentials come from the environment.
        split: split name; may be left out where there is one, or one called ``train``.
        decode: True decodes ``cls``, ``txt``, ``json`` and ``npy``; ``"pil"`` pictures too, and
            ``"torchcodec"`` makes decoders of sound and film; False gives canonical bytes of
            everything.
        verify: read each sample into memory, once, and compare that with its checksum: values,
            labels and keys are those that were packed, whoever writes to the files meanwhile;
            shardkit.json is compared with its own.
        fields: fields to read, if not all.
        cache_dir: behind a URL, the folder on a disk of this machine where blocks that were fetched
            are kept, by default ``$SHARDKIT_CACHE_DIR`` or ``~/.cache/shardkit/remote``. All
            processes that read share it. With a path, it is a cache for a slow disk or NFS.
        cache_bytes: how many bytes of blocks it may hold, for all datasets in it, as a number or
            ``"100GB"``; by default ``$SHARDKIT_CACHE_BYTES``, or all that is free but 1 GiB. What
            a loader needs last goes first.
        version: its number, of a dataset that was changed since it was packed; default: the last.
            What is open keeps the version that it opened.
        storage_options: behind a URL: ``endpoint`` (another server than Amazon's or Microsoft's),
            ``anonymous`` (True for public buckets), ``profile`` (of ``~/.aws``), ``region``, and
            variables as of the environment, in place of those there.

    Raises:
        DatasetMissingError: no dataset there. IndexFileError: its index is damaged.
        UsageError: no such split, field or version, or no checksums to verify; a URL that cannot
            be read.
        StorageError: behind a URL: the network, the server, the credentials or the cache say no,
            here or when samples are read.
    """

    @known_options("Dataset")
    def __init__(
        self,
        path: str | Path,
        split: str | None = None,
        *,
        decode: Decode = True,
        verify: bool = False,
        fields: Sequence[str] | None = None,
        version: int | None = None,
        cache_dir: str | Path | None = None,
        cache_bytes: int | str | None = None,
        storage_options: Mapping[str, Any] | None = None,
    ) -> None:
        if decode not in (True, False, "pil", "torchcodec"):
            raise UsageError(f"decode must be True, False, 'pil' or 'torchcodec', got {decode!r}")
        self.path = as_place(path, "the dataset")
        self.decode = decode
        self.verify = verify
        options = RemoteOptions.of(cache_dir, cache_bytes, storage_options)
        number = None if version is None else integer("version", version, 1)
        self.located = _locate(self.path, verify, options, number)
        self.split = _choose_split(self.info, split, path)
        self.fields = _choose_fields(self.info, fields)
        if verify and not self.info.splits[self.split].has_checksums:
            raise UsageError(f"{path}: tars made by others carry no checksums to verify")
        self._rows: Integers | None = None
        self._reader: ShardReader | None = None
        self.reader  # noqa: B018  an index that does not fit should be said now

    @property
    def info(self) -> DatasetInfo:
        """What the dataset says about itself."""
        return self.located.info

    @property
    def classes(self) -> list[str] | None:
        """Class names in index order."""
        return self.info.classes

    @property
    def reader(self) -> ShardReader:
        """The rows underneath, opened on first use in each process."""
        if self._reader is None:
            located: Located = self.located
            split = located.info.splits[self.split]
            self._reader = ShardReader(located.storage, located.info, split, copied=self.verify)
        return self._reader

    def __getstate__(self) -> dict[str, Any]:
        return {**self.__dict__, "_reader": None}

    def __len__(self) -> int:
        return self.info.splits[self.split].num_rows if self._rows is None else len(self._rows)

    def __repr__(self) -> str:
        where = f"{show_place(self.path)}, {self.split}"
        fields = ", ".join(self.fields)
        return f"<Dataset {where}: {len(self)} samples of {fields} in {self.info.container}>"

    # --- reading --------------------------------------------------------------------------

    def read(self, rows: Sequence[int] | Integers) -> Batch:
        """The samples at ``rows``, column by column, in that order.

        Args:
            rows: (B,) row numbers from 0, in any order, repeats allowed.

        Returns:
            field -> values, as :func:`shardkit.shards.values.read_column` says.

        Raises:
            IndexError: a row outside the dataset. DataError: a sample is damaged.
        """
        with _memory_errors(self, rows):
            batch = self._gather(rows)
            return {
                name: read_column(self.reader, batch, name, self.decode) for name in self.fields
            }

    def read_joined(
        self, rows: Sequence[int] | Integers, joined: Sequence[str]
    ) -> dict[str, Column | Joined]:
        """As :meth:`read`, but of the fields in ``joined`` those that would be bytes as they are
        stored are one array each, with offsets: a copy, and as many values as there may be."""
        with _memory_errors(self, rows):
            batch = self._gather(rows)
            return {
                name: (read_joined if name in joined else read_column)(
                    self.reader, batch, name, self.decode
                )
                for name in self.fields
            }

    def read_into(self, rows: Sequence[int] | Integers, field: str, out: Bytes) -> Offsets:
        """Copy the stored values of one bytes field into one buffer, end to end.

        Args:
            rows: (B,) row numbers. field: its name. out: (N,) uint8, writable, contiguous.

        Returns:
            (B + 1,) int64: value i is ``out[offsets[i]:offsets[i + 1]]``; absent ones are empty.

        Raises:
            UsageError: no such field, or ``out`` cannot take the values.
        """
        _choose_fields(self.info, [field])
        if out.dtype != np.uint8 or not out.flags.c_contiguous or not out.flags.writeable:
            raise UsageError(f"out must be contiguous, writable uint8, got {out.dtype}")
        with _memory_errors(self, rows):
            return self.reader.copy(self._gather(rows), field, out.reshape(-1))

    def __getitem__(self, row: int) -> dict[str, Any]:
        """One sample: its ``__key__`` and the fields it has, each a value of its own."""
        return self.__getitems__([row])[0]

    def __getitems__(self, rows: Sequence[int]) -> list[dict[str, Any]]:
        """Samples as torch's DataLoader asks for them: one read for the whole batch."""
        num, hint = len(self), "; find(key) gives that of a key"
        numbers = [from_front(row, num, hint) for row in rows]
        with _memory_errors(self, rows):
            batch = self._gather(numbers)
            columns = {
                name: read_column(self.reader, batch, name, self.decode) for name in self.fields
            }
            return keyed_samples(self._keys(batch), columns)

    def __iter__(self) -> Iterator[dict[str, Any]]:
        return (self[row] for row in range(len(self)))

    def _gather(self, rows: Sequence[int] | Integers) -> Gather:
        batch = self.reader.gather(self._real(rows))
        if not self.verify:
            return batch
        self.reader.refuse_damage(batch)
        return batch

    def warn_of_refetches(self, shuffle: object, **of_order: int) -> None:
        """Warn if the cache is so small for this order that an epoch would fetch much again."""
        storage, split = self.located.storage, self.info.splits[self.split]
        if not shuffle or not isinstance(storage, Remote):
            return
        num_bytes = sum(sum(shard.file_bytes.values()) for shard in split.shards)
        order = Order(split.num_rows, check_shuffle(shuffle), **of_order)
        room = storage.capacity()
        if why := why_repeated(show_place(storage.url), order, num_bytes, room):
            warnings.warn(why, stacklevel=5)

    def _gather_index(self, real: Integers) -> Gather:
        """Row numbers for what the index alone can tell, without reading any value."""
        batch = self.reader.gather(real)
        if self.verify:
            self.reader.index.refuse_damage(batch.rows, batch.table)
        return batch

    def _keys(self, batch: Gather) -> list[str]:
        index = self.reader.index
        keys = [index.name(row)[0] for row in batch.rows.tolist()]
        if self.verify:
            recorded = batch.table[:, index.column["key"]].view(np.uint64).tolist()
            for row, key, digest in zip(batch.rows.tolist(), keys, recorded, strict=True):
                if xxhash.xxh3_64_intdigest(key) != digest:
                    raise ChecksumError(
                        f"row {row} of {self.split}: its key {key!r} is not the one packed;"
                        f" restore {index.split.index_file('names')}"
                    )
        return [key.decode(errors="surrogateescape") for key in keys]

    def _real(self, rows: Sequence[int] | Integers) -> Integers:
        """Rows of the split, from rows of this dataset, which may be a selection."""
        numbers = row_numbers(rows)
        if self._rows is None:
            return numbers
        if len(numbers) and not (numbers.min() >= 0 and numbers.max() < len(self._rows)):
            raise IndexError(f"row outside 0..{len(self._rows) - 1} of a selection")
        return self._rows[numbers]

    # --- the rest -------------------------------------------------------------------------

    def column(self, name: str) -> Column:
        """One whole column; ``column("cls")`` is (N,) int64, read from the index alone."""
        _choose_fields(self.info, [name])
        rows = np.arange(len(self), dtype=np.int64)
        is_in_index = name == "cls" and bool(self.decode)
        with _memory_errors(self, rows):
            batch = self._gather_index(self._real(rows)) if is_in_index else self._gather(rows)
            return read_column(self.reader, batch, name, self.decode)

    def keys(self, rows: Iterable[int] | None = None) -> list[str]:
        """Keys of the given rows, or of all."""
        if rows is not None and not isinstance(rows, np.ndarray):
            rows = listed_rows(rows)
        real = self._real(np.arange(len(self)) if rows is None else rows)
        if len(real) and not (real.min() >= 0 and real.max() < len(self.reader.index.table)):
            raise IndexError(f"a row is outside 0..{len(self) - 1}")
        return self._keys(self._gather_index(real))

    def find(self, key: str) -> int:
        """Row of a sample by its key, by binary search. Raises KeyError if there is none."""
        if not isinstance(key, str):
            raise UsageError(f"a key is a str, as keys() gives it, got {key!r}")
        try:
            row = self.reader.index.find(key.encode(errors="surrogateescape"))
        except UnicodeEncodeError:  # no key has half a surrogate pair in it
            row = None
        if row is not None and self._rows is not None:
            inside = np.flatnonzero(self._rows == row)
            row = int(inside[0]) if len(inside) else None
        if row is None:
            raise KeyError(key)
        if self.verify:
            self.keys([row])
        return row

    def select(self, rows: Sequence[int] | Integers) -> Dataset:
        """A dataset of these rows, in this order, or of those where a mask is true, sharing
        nothing but files."""
        mask = as_array(rows)
        if mask.dtype == bool and mask.shape != (len(self),):
            raise UsageError(f"select: a mask of {mask.size} for {len(self)} samples")
        numbers = np.flatnonzero(mask) if mask.dtype == bool else row_numbers(mask)
        if len(numbers) and not (numbers.min() >= 0 and numbers.max() < len(self)):
            raise IndexError(f"select: a row is outside 0..{len(self) - 1}")
        chosen = object.__new__(Dataset)
        chosen.__dict__.update(self.__getstate__())
        chosen._rows = numbers if self._rows is None else self._rows[numbers]
        return chosen

    def with_fields(self, names: Sequence[str]) -> Dataset:
        """The same dataset, of which only these fields are read."""
        refuse_unknown(names, self.fields)
        chosen = object.__new__(Dataset)
        chosen.__dict__.update({**self.__getstate__(), "fields": [*names]})
        return chosen

    @property
    def foresees(self) -> bool:
        """Whether it pays to say far ahead what will be read, and when: behind a URL."""
        return isinstance(self.located.storage, Foresees)

    def is_cold(self) -> bool:
        """Whether it pays to :meth:`advise` now."""
        from_index = {"cls"} if self.decode else set()
        return self.reader.is_cold([name for name in self.fields if name not in from_index])

    def reached(self, turn: Turn, *, is_resting: bool) -> bool:
        """As :meth:`shardkit.storage.interface.Foresees.reached`."""
        storage = self.located.storage
        return not isinstance(storage, Foresees) or storage.reached(turn, is_resting=is_resting)

    def advise(self, rows: Sequence[int] | Integers, turn: Turn | None = None) -> None:
        """Tell the kernel that these rows will be read soon; returns at once. A dataset that
        :attr:`foresees` can be told at which turn.

        Does nothing on platforms without ``madvise``, nor while all that is read is in memory.
        """
        from_index = {"cls"} if self.decode else set()
        names = [name for name in self.fields if name not in from_index]
        if self.reader.is_cold(names):
            self.reader.announce(self.reader.gather(self._real(rows)), names, turn)

    def where(self, row: int) -> str:
        """A row in words, for messages: its key, its row in the split, its shard."""
        return self.reader.where(int(self._real([row])[0]))

    @property
    def fingerprint(self) -> str:
        """A hash over keys and samples in order: equal for equal samples in any format."""
        whole = self.info.splits[self.split].fingerprint
        if self._rows is None:
            return whole
        return f"{whole}/{xxhash.xxh3_64_hexdigest(self._rows.tobytes())}"

    @property
    def version(self) -> int:
        """The number of the version that is open."""
        return self.info.version

    @property
    def versions(self) -> dict[str, int]:
        """Fingerprint -> number of the last version that has it, of those until this."""
        found = {}
        for line in self.info.history:
            if self.split in line.fingerprints:
                found[line.fingerprints[self.split]] = line.number
        return found

    def stream(self, batch_size: int, **options: Unpack[BatchKeywords]) -> Stream:
        """Whole batches, for ``DataLoader(dataset.stream(64), batch_size=None)``.

        See :class:`shardkit.Stream` for the options.
        """
        from shardkit.batches.stream import Stream

        return Stream(self, batch_size, **options)


def keyed_samples(keys: Sequence[str], columns: Batch) -> list[dict[str, Any]]:
    """One dict a sample: its ``__key__`` and the fields it has, each a value of its own."""
    own = {name: own_values(name, column) for name, column in columns.items()}
    return [
        {KEY: key} | {name: v for name, values in own.items() if (v := values[i]) is not None}
        for i, key in enumerate(keys)
    ]


@contextmanager
def _memory_errors(dataset: Dataset, rows: Sequence[int] | Integers) -> Iterator[None]:
    """A hostile index makes much of little: many rows of one range, arrays of sparse files."""
    try:
        yield
    except MemoryError as error:
        raise DataError(
            f"{dataset!r}: the values of {len(rows)} rows are more than memory; read fewer at a"
            " time, or look for damage with `shardkit verify`"
        ) from error


def _locate(
    place: Path | Url, sealed: bool, options: RemoteOptions, version: int | None
) -> Located:
    if isinstance(place, Path) and options.cache_dir is not None:
        place = Url(place.absolute().as_uri())
    if isinstance(place, Url):
        refuse_version(place, version)
        return locate_remote(place, options)
    if options != RemoteOptions():
        raise UsageError(
            f"{show_path(place)} is on this machine, and read where it lies: cache_bytes needs"
            " cache_dir, a folder on a faster disk, and storage_options are for URLs"
        )
    stamp = stamp_at(place)
    found = locate(place, sealed=sealed, version=version)
    if isinstance(found.storage, Folder):
        check = Unreplaced(place.absolute(), stamp, found)
        found = replace(found, storage=replace(found.storage, check=check))
    return found


def _choose_split(info: DatasetInfo, split: str | None, path: str | Path) -> str:
    names = list(info.splits)
    if split is None:
        split = names[0] if len(names) == 1 else "train"
        if split not in names:
            raise UsageError(f"{path} has splits {', '.join(names)}: name one with split=")
    if split not in names:
        raise UsageError(f"{path} has no split {split!r}, only {', '.join(names)}")
    return split


def _choose_fields(info: DatasetInfo, fields: Sequence[str] | None) -> list[str]:
    if fields is None:
        return info.fields
    if isinstance(fields, str) or not all(isinstance(name, str) for name in fields):
        raise UsageError(f"fields must be a list of names, got {fields!r}")
    refuse_unknown(fields, info.fields)
    return [*fields]
