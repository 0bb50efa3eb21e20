"""Where a dataset is written behind a URL: who may, and what lies there already.

An object there, the claim, says who writes; it is made only if there is none. So of two that start
at once one goes on. Files are put and removed only while the claim is still the writer's own.

===========  ===================  ==================================================================
claim        shardkit.json        so
===========  ===================  ==================================================================
none         none                 new; refused if other files lie there
none, ours   our own              all was done but tidying up
none         another              a dataset: refused, or replaced by ``overwrite``
ours         none, another        resume; what stood there was to be replaced, and its index goes
another's    any                  refused
===========  ===================  ==================================================================
"""

from __future__ import annotations

import json
import secrets
import socket
import time
from collections.abc import Collection, Iterable
from contextlib import suppress
from pathlib import Path
from typing import Any

import numpy as np

from shardkit.arrays import Hashes, Integers
from shardkit.commit.durable_files import atomic_write
from shardkit.errors import DestinationError, ShardkitError
from shardkit.index.file_names import INDEX_NAME, REJECTED_NAME, SIGNPOSTS
from shardkit.index.manifest import parse_info
from shardkit.index.provenance import TOKENIZER_FILES
from shardkit.remote.cached_storage import ask_place
from shardkit.remote.connection import CLAIM, NO_NUMBERS
from shardkit.remote.urls import Url
from shardkit.system.file_io import block_sums

_NOT_BY_NAME = SIGNPOSTS | TOKENIZER_FILES | {REJECTED_NAME}
"""Files of datasets, which are not known by their names: others may have such, too."""

Versions = dict[str, tuple[int, str]]
"""Name -> bytes, and what the store calls this version."""


class RemoteTarget:
    """The folder behind a URL that one process of this machine writes to.

    Args:
        cache: folder of the cache whose server does it. claim_file: where our claim is kept;
            whoever makes a target of this file holds a lock.
    """

    def __init__(self, url: Url, cache: Path, claim_file: Path) -> None:
        self.url = url
        self.replaces: list[str] = []
        self._cache = cache
        self._claim_file = claim_file
        self._claim: str | None = None

    def taken(self) -> DestinationError:
        """Return the error for one that already holds a dataset."""
        return DestinationError(
            f"{self.url} already holds a dataset; pass --overwrite to replace it, or choose another"
            " destination"
        )

    def take(self, own_index: bytes | None, overwrite: bool) -> bool:
        """Claim it; or return True if it holds the dataset with this shardkit.json already.

        Raises:
            DestinationError: there is a dataset, something else, or another that writes.
        """
        self._ask("stop")  # what was begun by a process of ours that was killed
        ours = self._claim_file.read_text() if self._claim_file.exists() else None
        claim, index = self._text(CLAIM), self._text(INDEX_NAME)
        if claim in (None, ours) and own_index is not None and index == own_index.decode():
            self._claim = claim
            return True
        if claim is None or claim != ours or (overwrite and index is not None):
            self._refuse(None if claim == ours else claim, index, overwrite)
            self._make_claim(index, is_new=claim is None)
        self._claim = self._claim_file.read_text()
        self.replaces = json.loads(self._claim)["replaces"]
        index = self._text(INDEX_NAME)
        if index is not None and INDEX_NAME not in self.replaces:
            self.release()
            raise self.taken()  # made since we looked
        if index is not None:
            self._ask("remove", files=[INDEX_NAME], claim=self._claim)
        return False

    def refuse_taken(self, overwrite: bool) -> None:
        """Raise what :meth:`take` would, for callers that begin with something that takes long."""
        self._refuse(self._text(CLAIM), self._text(INDEX_NAME), overwrite)

    def _refuse(self, claim: str | None, index: str | None, overwrite: bool) -> None:
        if claim is not None:
            raise DestinationError(
                f"{self.url} is being written by another, begun {_begun(claim)}; wait for it, or if"
                " it has ended for good, delete all that lies there"
            )
        if index is not None and not overwrite:
            raise self.taken()
        if index is None and self.versions():
            raise DestinationError(
                f"{self.url} holds files and is no shardkit dataset, so nothing in it will be"
                " replaced; choose another destination"
            )

    def _make_claim(self, index: str | None, *, is_new: bool) -> None:
        replaces = _NOT_BY_NAME  # nothing lies there: whatever is called so will have come from us
        if index is not None:
            replaces = frozenset({INDEX_NAME})
            with suppress(ShardkitError):  # its own files go when a dataset is replaced
                info = parse_info(index.encode(), str(self.url / INDEX_NAME))
                replaces |= {*info.file_bytes, REJECTED_NAME}
        told = {
            "what": "shardkit is writing a dataset here; its shardkit.json comes last",
            "owner": secrets.token_hex(16),
            "host": socket.gethostname(),
            "began": time.strftime("%Y-%m-%d %H:%M:%S UTC", time.gmtime()),
            "replaces": sorted(replaces),
        }
        atomic_write(self._claim_file, [json.dumps(told, indent=1).encode()])
        self.put(CLAIM, self._claim_file, block_sums(self._claim_file), only_if_absent=is_new)

    def put(self, name: str, path: Path, sums: Hashes, *, only_if_absent: bool = False) -> str:
        """Put a file there and check it, and return what the store calls this version.

        Raises:
            DestinationError: another has taken over. StorageError: the network, the server.
        """
        claim = None if name == CLAIM else self._claim
        said = {"file": name, "path": str(path), "claim": claim, "only_if_absent": only_if_absent}
        return str(self._ask("put", sums.view(np.int64), **said)["version"])

    def put_index(self, path: Path) -> None:
        """Put shardkit.json, which makes it a dataset, if there is none; errors as of
        :meth:`put`."""
        self.put(INDEX_NAME, path, block_sums(path), only_if_absent=True)

    def versions(self) -> Versions:
        """Return all that lies there; folders have -1 bytes."""
        return {name: (told[0], told[1]) for name, told in self._ask("list")["versions"].items()}

    def remove_others(
        self, there: Collection[str], new: Iterable[str], left_over: Iterable[str]
    ) -> None:
        """Remove what was there before and is no file of the new dataset, and what is left of
        attempts that were killed; errors as of :meth:`put`.

        Before shardkit.json is put, not after: whole is what has no shards of others beside it.
        """
        old = {*self.replaces, *left_over} & {*there}
        names = sorted(old - {*new} - {INDEX_NAME})
        self._ask("remove", files=names, claim=self._claim)

    def stop(self) -> None:
        """End the uploads that are under way."""
        self._ask("stop")

    def release(self) -> None:
        """Let others write there."""
        if self._claim is not None and self._text(CLAIM) == self._claim:
            self._ask("remove", files=[CLAIM], claim=None)
        self._claim_file.unlink(missing_ok=True)

    def _text(self, name: str) -> str | None:
        text: str | None = self._ask("text", file=name, is_first=self._claim is None)["text"]
        return text

    def _ask(self, what: str, numbers: Integers = NO_NUMBERS, **said: Any) -> dict[str, Any]:
        return ask_place(self.url, self._cache, {"do": "write", "what": what, **said}, numbers)


def _begun(claim: str) -> str:
    """Return where and when another began, as its claim says, which anybody may have written."""
    try:
        told = dict(json.loads(claim))
    except (TypeError, ValueError, RecursionError):
        told = {}
    host, began = (str(told.get(key, "?"))[:80] for key in ("host", "began"))
    return f"on {host} at {began}" if (host + began).isprintable() else f"on {host!a} at {began!a}"
