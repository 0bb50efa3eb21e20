"""Which rank this process is, of how many; and whether that is still so when a loader begins.

A loader that is made before ``init_process_group``, as easily happens under ``mp.spawn``, would
give every rank all the data. So what was found then is looked at again at each iteration.
"""

from __future__ import annotations

import os
import sys
import warnings
from typing import Any

from shardkit.arguments import whole
from shardkit.errors import UsageError


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


LAUNCHERS = ("WORLD_SIZE", "OMPI_COMM_WORLD_SIZE", "PMI_SIZE", "SLURM_STEP_NUM_TASKS")
"""Variables in which launchers (mpirun, srun ...) say how many processes they started.
SLURM_NTASKS is not among them: it is there in a batch script that runs one process, too."""


def refuse_other_ranks(taker: str, rank: int, world_size: int) -> None:
    """Called where an iteration begins, with what :func:`rank_and_world_size` found before.

    In worker processes of torch's DataLoader, whose process group is a copy if there is one, the
    environment says nothing new. Warns where many processes were launched, and each is alone.

    Raises:
        UsageError: torch.distributed, or the environment, now says otherwise.
    """
    by = "torch.distributed"
    found = _of_torch()
    if found is None and not _is_of_dataloader():
        by, found = "RANK and WORLD_SIZE", _of_environment()
    if found is None:
        _warn_of_others(taker, world_size)
    elif found != (rank, world_size):
        raise UsageError(
            f"this {taker} was made as rank {rank} of {world_size}, before {by} said that this is"
            f" rank {found[0]} of {found[1]}: make it after init_process_group, or give rank= and"
            " world_size="
        )


def _warn_of_others(taker: str, world_size: int) -> None:
    if world_size > 1 or _is_of_dataloader():
        return
    for name in LAUNCHERS:
        text = os.environ.get(name, "")
        if text.isdecimal() and int(text) > 1:
            warnings.warn(
                f"{name}={text}, but this {taker} is rank 0 of 1, so each of those processes gets"
                " all the data: call init_process_group before it is made, or give rank= and"
                " world_size=",
                stacklevel=4,
            )
            return


def _is_of_dataloader() -> bool:
    """Whether this is a worker process of torch's DataLoader."""
    data = sys.modules.get("torch.utils.data")
    return data is not None and data.get_worker_info() is not None


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
