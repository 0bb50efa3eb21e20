"""What lies at a path: a dataset of ours, or tars made by others, indexed on first sight."""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING

from shardkit.commit.work_folder import WORK_NAME
from shardkit.errors import DatasetMissingError, ShardMissingError, StorageError, UsageError
from shardkit.index.file_names import INDEX_KINDS, INDEX_NAME, REJECTED_NAME, SHARD_FILE
from shardkit.index.manifest import DatasetInfo, read_info, read_version, shared_file
from shardkit.index.rows import RowIndex
from shardkit.remote.urls import RemoteOptions, Url, require_obstore
from shardkit.samples.sample import SPLIT_NAMES
from shardkit.shards.stored import ShardReader
from shardkit.storage.interface import Storage
from shardkit.storage.local_files import Folder
from shardkit.system.paths import show_path
from shardkit.system.refusals import os_errors

if TYPE_CHECKING:
    from shardkit.remote.cached_storage import Remote


@dataclass(frozen=True)
class Located:
    """A dataset, and where its index and shards (or links to them) lie.

    Attributes:
        storage: what its files are read through. folder: where they lie on this machine, for what
            lists or copies them; absolute, as they are opened later, when the process may have
            changed its own.
        tars: of an index of tars made by others, name of each shard's file -> that tar. A dataset
            of ours has none, whatever it was packed from.
        url: of a dataset that is fetched; its folder is in the cache then.
        index: name of the file there that says what is in it: that of an older version is another.
    """

    storage: Storage
    folder: Path
    info: DatasetInfo
    tars: dict[str, Path] = field(default_factory=dict)
    url: Url | None = None
    index: str = INDEX_NAME

    @property
    def shown(self) -> str:
        """What it is called, to be printed: tars of others, and not the index of them."""
        if self.url is not None:
            return str(self.url)
        tars = set(self.tars.values())
        if len(tars) > 1:
            return show_path(self.folder_of_tars)
        return show_path(tars.pop() if tars else self.folder)

    def row_index(self, split: str) -> RowIndex:
        """Return the rows of a split."""
        return RowIndex(self.storage, self.info, self.info.splits[split])

    def reader(self, split: str) -> ShardReader:
        """Return what reads a split."""
        return ShardReader(self.storage, self.info, self.info.splits[split])

    def readers(self) -> dict[str, ShardReader]:
        """Return what reads each split."""
        return {name: self.reader(name) for name in self.info.splits}

    @property
    def folder_of_tars(self) -> Path:
        """The folder that all tars lie in, or in folders of."""
        return Path(os.path.commonpath([tar.parent for tar in self.tars.values()]))


@dataclass
class Unreplaced:
    """The dataset that lay at a path when it was opened. Workers of the next epoch open it again:
    an equal ``stamp`` tells in 2 us that nothing was replaced; else the index is compared.
    """

    path: Path
    stamp: list[int]
    located: Located

    def __call__(self) -> None:
        """Raise StorageError if another dataset lies there now, or none."""
        now = stamp_at(self.path)
        if now == self.stamp:
            return
        if not self._is_same():
            raise replaced(self.path)
        self.stamp = now

    def _is_same(self) -> bool:
        """Compare all that tells where samples lie; a newer version keeps what an older one has."""
        info = self.located.info
        try:
            if self.located.tars:
                from shardkit.tars.cached_index import is_index_of

                index = self.located.folder.absolute()
                tars = self.located.tars.values()
                names = sorted({os.path.relpath(tar, self.path) for tar in tars})
                # All tars, or those that have samples, where others were added.
                return is_index_of(index, self.path) or (
                    self.path.is_dir() and is_index_of(index, self.path, names)
                )
            found = read_version(self.path, info.version)[0]
        except UsageError:
            return False
        return (found.container, found.splits) == (info.container, info.splits)


def stamp_at(path: Path) -> list[int]:
    """Return numbers that change when another dataset is put at a path."""
    for place in (path / INDEX_NAME, path):
        try:
            found = place.stat()
        except OSError:
            continue
        return [found.st_dev, found.st_ino, found.st_size, found.st_mtime_ns]
    return []


def replaced(path: Path) -> StorageError:
    """The error for what is no longer what was opened."""
    return StorageError(
        f"{show_path(path)}: this dataset was replaced, moved or removed while it was open: open it"
        " again for what lies there now; to go on with what you had, open it by a path that stays,"
        " as that of the folder behind a link"
    )


def locate_place(place: Path | Url, *, anew: bool = False, version: int | None = None) -> Located:
    """As :func:`locate`, or :func:`locate_remote` with the default cache, of which nothing is used
    that was fetched before if ``anew``; the tokenizer's file, and the list of what was not packed,
    lie in its folder then, too."""
    if isinstance(place, Path):
        return locate(place, version=version)
    refuse_version(place, version)
    remote = _open_remote(place, RemoteOptions())
    if anew:
        remote.forget()
    provenance = remote.info.provenance
    if provenance.tokenizer_file is not None:
        remote.contents(provenance.tokenizer_file, provenance.tokenizer_bytes)
    remote.fetch_unlisted(REJECTED_NAME)
    return Located(remote, remote.folder, remote.info, url=place)


def locate_remote(url: Url, options: RemoteOptions | None = None) -> Located:
    """A dataset of ours behind a URL; without options, for who goes through all of it.

    Raises:
        DatasetMissingError: there is none. IndexFileError: it is damaged. StorageError: the
            network, the credentials or the cache say no. UsageError: obstore is not installed.
    """
    remote = _open_remote(url, RemoteOptions() if options is None else options)
    return Located(remote, remote.folder, remote.info, url=url)


def refuse_version(url: Url, version: int | None) -> None:
    """Raises UsageError where a version is named of what lies behind a URL."""
    if version is not None:
        raise UsageError(
            f"{url} is one version of a dataset, that which was copied there: leave out version, or"
            " name it of the dataset that it was copied from"
        )


def _open_remote(url: Url, options: RemoteOptions) -> Remote:
    require_obstore(url)
    from shardkit.remote.cached_storage import open_remote

    try:
        remote = open_remote(url, options)
        if (name := shared_file(remote.info)) is not None:
            raise UsageError(
                f"{url} has splits that share shards, as {name}, which no cache can hold for both:"
                " `shardkit convert` makes a dataset of it that can be read from there"
            )
        return remote
    except ShardMissingError as error:
        raise DatasetMissingError(f"{url} is no dataset: there is no {INDEX_NAME}") from error


def locate(
    path: Path,
    *,
    sealed: bool = False,
    tars: Sequence[str] | None = None,
    version: int | None = None,
) -> Located:
    """Find the index of a dataset, making one for plain WebDataset tars.

    ``sealed`` refuses a shardkit.json that has changed since it was written. ``tars``: names of
    several in one folder, of which ``path`` is one. ``version``: None for the last.

    Raises:
        DatasetMissingError: neither is there. IndexFileError: it is damaged.
        UsageError: there is no such version.
    """
    with os_errors(f"opening {show_path(path)}"):
        if not (path / INDEX_NAME).exists():
            refuse_orphans(path)
            # Imported here: most datasets are ours, and to pack one nothing of tars is needed.
            from shardkit.tars.cached_index import index_tars
            from shardkit.tars.find import is_tar_source
            from shardkit.tars.write_index import read_names

            if is_tar_source(path):
                folder = index_tars(path, tars)
                beside = path if path.is_dir() else path.parent
                found = {shard: beside / name for shard, name in read_names(folder).items()}
                return Located(Folder(folder), folder, read_info(folder), found)
        folder = path.absolute()
        info, index = read_version(path, version, sealed=sealed)
        return Located(Folder(folder), folder, info, index=index)


def refuse_orphans(path: Path) -> None:
    """Refuse shards of ours without their shardkit.json.

    Taken for tars made by others, they would pass for whole however damaged, as those carry no
    checksums.
    """
    is_folder = path.is_dir()
    folder = path if is_folder else path.parent
    names = os.listdir(path) if is_folder else [path.name]
    shards = {name.partition("-")[0] for name in names if SHARD_FILE.fullmatch(name)}
    files = [f"{split}.{kind}" for split in sorted(shards & SPLIT_NAMES) for kind in INDEX_KINDS]
    there = [name for name in files if (folder / name).exists()]
    if not there or (folder / WORK_NAME).is_dir():
        return
    if (folder / INDEX_NAME).exists():
        raise DatasetMissingError(
            f"{show_path(path)} is a shard of a dataset, which says nothing of itself; give the"
            f" dataset, {show_path(folder)}"
        )
    raise DatasetMissingError(
        f"{show_path(folder)} is a dataset that has lost its {INDEX_NAME}: it holds shards and"
        f" {', '.join(there)}, but nothing says what they are; restore that file, or pack again"
    )
