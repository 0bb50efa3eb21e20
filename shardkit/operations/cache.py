"""``cache``: what was fetched from behind URLs and is kept on this machine, and how it goes."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from shardkit.errors import IndexFileError, UsageError
from shardkit.index.manifest import read_info
from shardkit.remote.connection import ORIGIN, ask
from shardkit.remote.eviction import datasets_in, kept_bytes
from shardkit.remote.urls import as_url, default_cache
from shardkit.system.paths import as_path, show_path
from shardkit.system.refusals import os_errors

TRIES = 100
"""How often files may go while it looks: a look takes less than a millisecond."""


@dataclass(frozen=True)
class CachedDataset:
    """A dataset of which something is kept.

    Attributes:
        url: it was last opened by. name: of its folder in the cache. container: its format.
        kept_bytes: of shards, that take room. shard_bytes: of all shards. index_bytes: of the
            index, which is kept whole and does not count for ``cache_bytes``.
    """

    url: str
    name: str
    container: str
    kept_bytes: int
    shard_bytes: int
    index_bytes: int


@dataclass(frozen=True)
class CacheContents:
    """What lies in a cache. ``folder``: where it is."""

    folder: Path
    datasets: list[CachedDataset]


def cache(cache_dir: str | Path | None = None) -> CacheContents:
    """Return what is kept of which datasets.

    Args:
        cache_dir: as of :class:`shardkit.Dataset`.

    Raises:
        UsageError: there is no home for a cache. StorageError: it cannot be read.
    """
    folder = default_cache() if cache_dir is None else as_path(cache_dir, "cache_dir")
    with os_errors(f"reading the cache {show_path(folder)}"):
        found = []
        for path in datasets_in(folder):
            for _ in range(TRIES):  # a server may write there meanwhile, or all of it go
                with suppress(FileNotFoundError):
                    found.append(_look(path))
                    break
        return CacheContents(folder, found)


def _look(folder: Path) -> CachedDataset:
    """Return what is kept. Raises FileNotFoundError if a file goes meanwhile."""
    kept = kept_bytes(folder)
    shards = sum(kept.values())
    every = sum(path.stat().st_blocks * 512 for path in folder.iterdir())
    try:
        info = read_info(folder)
        url = (folder / ORIGIN).read_text()
    except (IndexFileError, FileNotFoundError):  # killed while it was made
        return CachedDataset("", folder.name, "", shards, 0, every - shards)
    sizes = [shard.file_bytes for split in info.splits.values() for shard in split.shards]
    whole = sum(sum(one.values()) for one in sizes)
    return CachedDataset(url, folder.name, info.container, shards, whole, every - shards)


def clear_cache(
    urls: Sequence[str] | None = None, cache_dir: str | Path | None = None
) -> CacheContents:
    """Remove what is kept of datasets. Whoever reads one meanwhile goes on: it is fetched again.

    Args:
        urls: by which they were opened; None for all.
        cache_dir: as of :class:`shardkit.Dataset`.

    Returns:
        What was there of them before.

    Raises:
        UsageError: nothing is kept of one of them. StorageError: the cache cannot be written to.
    """
    found = cache(cache_dir)
    wanted = None if urls is None else [as_url(url, "the dataset").text for url in urls]
    known = {one.url for one in found.datasets}
    for url in wanted or ():
        if url not in known:
            raise UsageError(f"nothing of {url} is kept in {show_path(found.folder)}")
    chosen = [one for one in found.datasets if wanted is None or one.url in wanted]
    if chosen:
        ask(str(found.folder.resolve()), {"do": "clear", "names": [one.name for one in chosen]})
    return CacheContents(found.folder, chosen)
