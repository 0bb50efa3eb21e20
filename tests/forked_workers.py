"""Packing workers that are forks of this process."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext

import pytest

from shardkit.packing import local


@contextmanager
def forked_workers() -> Iterator[None]:
    """Packs in here fork their workers, as the command does; here, other threads do nothing.

    It is for tests of what workers make of the jobs that they are sent, in many kinds and formats.
    """
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(local, "can_fork", lambda: True)
        yield


def workers_for(to: str) -> AbstractContextManager[None]:
    """Of tests that pack into every format: workers are programs for one of them, so that some of
    each kind of input is read where nothing was imported before; for the others, they are forks."""
    return nullcontext() if to == "npy" else forked_workers()
