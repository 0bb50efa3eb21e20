"""Reader classes by name, and ``open``, which takes any format."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, ClassVar

from shardkit.arguments import known_options
from shardkit.errors import UsageError
from shardkit.reading.dataset import Dataset
from shardkit.sequences.token_dataset import TokenDataset
from shardkit.shards.values import Decode

__all__ = [
    "Dataset",
    "HDF5Dataset",
    "LMDBDataset",
    "NpyDataset",
    "TokenDataset",
    "WebDataset",
    "open",
]


@known_options("open")
def open(
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
) -> Dataset:
    """Open a packed dataset of any format, also behind a URL, or WebDataset tars made by others.

    See :class:`shardkit.Dataset` for arguments, values and errors.
    """
    return Dataset(
        path,
        split,
        decode=decode,
        verify=verify,
        fields=fields,
        version=version,
        cache_dir=cache_dir,
        cache_bytes=cache_bytes,
        storage_options=storage_options,
    )


class _OneFormat(Dataset):
    """A Dataset that insists on its container format."""

    container: ClassVar[str]

    def __init__(self, path: str | Path, split: str | None = None, **options: Any) -> None:
        super().__init__(path, split, **options)
        if self.info.container != self.container:
            raise UsageError(
                f"{path} holds {self.info.container}, not {self.container}; shardkit.open reads any"
            )


class LMDBDataset(_OneFormat):
    """Opens lmdb datasets only."""

    container = "lmdb"


class HDF5Dataset(_OneFormat):
    """Opens hdf5 datasets only."""

    container = "hdf5"


class WebDataset(_OneFormat):
    """Opens webdataset tars only, ours or others'."""

    container = "webdataset"


class NpyDataset(_OneFormat):
    """Opens npy datasets only."""

    container = "npy"
