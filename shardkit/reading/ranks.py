"""Which rank this process is, of how many."""

from __future__ import annotations

import os
import sys
from typing import Any

from shardkit.errors import UsageError
from shardkit.whole import whole


def rank_and_world_size(rank: int | None = None, world_size: int | None = None) -> tuple[int, int]:
    """What is given; else what torch.distributed, once initialised, says; else the environment's
    RANK and WORLD_SIZE; else one rank alone.

    Raises:
        UsageError: one without the other, or no whole numbers.
    """
    if (rank is None) != (world_size is None):
        raise UsageError("give rank and world_size together, or neither")
    if rank is None or world_size is None:
        rank, world_size = _of_torch() or _of_environment() or (0, 1)
    return whole("rank", rank), whole("world_size", world_size, 1)


def distributed() -> Any | None:
    """The module torch.distributed, if a process group was initialised."""
    module = sys.modules.get("torch.distributed")
    if module is None or not module.is_available() or not module.is_initialized():
        return None
    return module


def _of_torch() -> tuple[int, int] | None:
    module = distributed()
    return None if module is None else (module.get_rank(), module.get_world_size())


def _of_environment() -> tuple[int, int] | None:
    rank, world_size = os.environ.get("RANK"), os.environ.get("WORLD_SIZE")
    if not rank or not world_size:
        return None
    try:
        return int(rank), int(world_size)
    except ValueError as error:
        raise UsageError(
            f"RANK={rank!r} and WORLD_SIZE={world_size!r} of the environment are no numbers"
        ) from error
