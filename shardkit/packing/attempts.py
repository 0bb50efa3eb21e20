"""Attempts at jobs whose doer may be lost, and may come back when nobody expects it any more.

A node that does not answer is given up, and its job is begun elsewhere; yet the node may be alive,
and write on. A driver that was killed may leave such nodes behind, and the next one may pack with
other options. Therefore:

Law: an attempt writes into a folder of its own, within one of this run; only the run's driver, who
has the lock and the lease of the destination, moves anything out of it, and only for attempts that
have answered it. The first thing a new run does is to take the folders of all others away: under
the path that an old attempt knows, there is nothing more to write into, and nothing to move.
"""

from __future__ import annotations

import uuid
from dataclasses import asdict
from pathlib import Path
from typing import Any

from shardkit.errors import UsageError
from shardkit.index.journal import Receipt, journal_path, write_finished
from shardkit.inputs.base import Corpus
from shardkit.packing.job import Job, Setup, stage_files, sync_files, write_job
from shardkit.system.durable_files import fsync_path
from shardkit.system.own_files import remove_own
from shardkit.system.paths import show_path
from shardkit.system.refusals import os_errors
from shardkit.tars.patterns import is_pattern

_PREFIX = "attempts-"
_STAGED = "; for a destination behind a URL, pass staging, such a folder"


class Attempts:
    """The driver's side: the folder of this run's attempts, gone when the block is left."""

    def __init__(self, setup: Setup) -> None:
        self._setup = setup
        for old in setup.work.glob(f"{_PREFIX}*"):
            remove_own(old)
        self.folder = setup.work / f"{_PREFIX}{uuid.uuid4().hex}"
        self.folder.mkdir()

    def accept(self, name: str, receipt: Receipt) -> None:
        """Take what an attempt has made as the shard: its files into the stage, then its rows into
        the journal. Raises StorageError."""
        folder = self.folder / name
        journal = journal_path(self._setup.work, receipt.split, receipt.shard)
        with os_errors(f"committing shard {receipt.stem}"):
            stage_files(folder, receipt, self._setup)
            (folder / journal.name).replace(journal)
            fsync_path(self._setup.work)
            folder.rmdir()

    def close(self) -> None:
        if self.folder.exists():
            remove_own(self.folder)


def attempt(corpus: Corpus, job: Job, setup: Setup, attempts: str, where: str) -> dict[str, Any]:
    """On some node: do a job in a new folder within ``attempts``; its receipt and that folder.

    Raises:
        UsageError: the node does not see the destination, or the source; or the run has ended.
        DataError: as of :func:`shardkit.packing.job.write_job`.
    """
    folder = Path(attempts, f"{job.stem}-{uuid.uuid4().hex}")
    with os_errors(f"packing shard {job.stem}"):
        try:
            folder.mkdir()
        except FileNotFoundError:
            raise _unseen("destination", setup.dest, where) from None
        is_here = setup.objects or "url" in setup.corpus
        if not is_here and not _folder_of(setup.source).exists():
            raise _unseen("source", setup.source, where)
        written = write_job(corpus, job, setup, lambda *counts: None, folder)
        sync_files(written)
        receipt = written.finished.receipt
        name = journal_path(folder, receipt.split, receipt.shard)
        write_finished(name, written.finished)
        return {"receipt": asdict(receipt), "folder": folder.name}


def _folder_of(source: str) -> Path:
    """What must be there of a source, which may be a pattern of tars."""
    path = Path(source)
    return path.parent if is_pattern(path) else path


def _unseen(what: str, path: str, where: str) -> UsageError:
    return UsageError(
        f"{where} does not see the {what} {show_path(path)}: it must be a folder that all machines"
        f" of the cluster share, under the same path{_STAGED if what == 'destination' else ''}"
    )
