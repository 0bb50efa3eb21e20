"""Which dataset lies behind a URL: told by its shardkit.json."""

from __future__ import annotations

import xxhash

from shardkit.errors import IndexFileError, ShardkitError, StorageError
from shardkit.index.manifest import INDEX_NAME, MAX_INDEX_BYTES, is_sealed
from shardkit.remote.gate import Patience
from shardkit.remote.store import RemoteFolder
from shardkit.remote.urls import Url

TRIES = 5
"""How often what has a wrong checksum is fetched, before that is an error."""


def name_of(index: bytes, url: Url) -> str:
    """What the dataset with this shardkit.json is called in a cache. Copies of one at two URLs have
    a name each: who reads one should not depend on the other, nor use its credentials there."""
    return xxhash.xxh3_128_hexdigest(index + b"\0" + url.text.encode())


async def read_index(remote: RemoteFolder, patience: Patience) -> bytes:
    """shardkit.json as it is now.

    It holds its own checksum, by which wrong bytes are told, and fetched again. One that somebody
    edited has a wrong one, too, and is the same each time.

    Raises:
        IndexFileError: it is too large, or never the same. ShardMissingError: there is none.
        StorageError: the network, the server or the credentials say no.
    """
    before = None
    for _ in range(TRIES):
        size = await remote.size(INDEX_NAME, patience)
        if size > MAX_INDEX_BYTES:
            raise IndexFileError(
                f"{remote.url / INDEX_NAME} is over {MAX_INDEX_BYTES} bytes; refusing to read"
            )
        data = bytes(await remote.read(INDEX_NAME, 0, size, patience))
        if is_sealed(data) or data == before:
            return data
        before = data
    raise IndexFileError(f"{remote.url / INDEX_NAME}: its bytes were others each of {TRIES} times")


async def check_same(remote: RemoteFolder, name: str, patience: Patience) -> None:
    """Raises StorageError if another dataset lies there by now."""
    try:
        index = await read_index(remote, patience)
    except ShardkitError:
        return  # what went wrong first says more
    if name_of(index, remote.url) != name:
        raise replaced(remote.url)


def replaced(url: Url) -> StorageError:
    """The error for that."""
    return StorageError(
        f"{url} has been replaced by another dataset since it was opened; open it again"
    )
