"""Which rank this process is, of how many; and whether that is still so when a loader begins.

A loader that is made before ``init_process_group``, as easily happens under ``mp.spawn``, would
give every rank all the data. So what was found then is looked at again at each iteration.
"""

from __future__ import annotations

import os
import sys
import time
import warnings
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from typing import Any

from shardkit.arguments import integer
from shardkit.errors import UsageError


@dataclass(frozen=True)
class Ranks:
    """Which rank this is, of how many.

    Attributes:
        taker: what they are for, in words. is_found: as they were found, not as they were given.
    """

    taker: str
    rank: int
    world_size: int
    is_found: bool

    @classmethod
    def of(cls, taker: str, rank: int | None = None, world_size: int | None = None) -> Ranks:
        """What is given; else what torch.distributed, once initialised, says; else the
        environment's RANK and WORLD_SIZE; else one rank alone.

        Raises:
            UsageError: one without the other, or no whole numbers.
        """
        if (rank is None) != (world_size is None):
            raise UsageError("give rank and world_size together, or neither")
        is_found = rank is None or world_size is None
        if rank is None or world_size is None:
            rank, world_size = _of_torch() or _of_environment() or (0, 1)
        return cls(taker, integer("rank", rank), integer("world_size", world_size, 1), is_found)

    def refuse_others(self) -> None:
        """Called where an iteration begins: what was found must still be so.

        In worker processes of torch's DataLoader, whose process group is a copy if there is one,
        the environment says nothing new. Warns where many processes were launched, and each is
        alone.

        Raises:
            UsageError: torch.distributed, or the environment, now says otherwise.
        """
        if not self.is_found:
            return
        by = "torch.distributed"
        found = _of_torch()
        if found is None and not _is_of_dataloader():
            by, found = "RANK and WORLD_SIZE", _of_environment()
        if found is None:
            _warn_of_others(self.taker, self.world_size)
        elif found != (self.rank, self.world_size):
            raise UsageError(
                f"this {self.taker} was made as rank {self.rank} of {self.world_size}, before {by}"
                f" said that this is rank {found[0]} of {found[1]}: make it after"
                " init_process_group, or give rank= and world_size="
            )

    @contextmanager
    def whole_iteration(self, work: str) -> Iterator[None]:
        """Around an iteration to its end: warn on rank 0 if no other rank has begun this ``work``,
        as after ``if rank == 0: validate()``. They tell one another in torch.distributed's store.
        """
        store = default_store(self.world_size) if self.is_found else None
        key = f"shardkit/begun/{self.taker}/{work}"
        with suppress(RuntimeError):  # the store is gone, with the process of rank 0
            if store is not None and (id(store), key) not in _begun:
                _begun.add((id(store), key))
                store.add(key, 1)
        yield
        if store is None or self.rank:
            return
        deadline = time.monotonic() + PATIENCE_S
        with suppress(RuntimeError):
            while store.add(key, 0) < self.world_size and time.monotonic() < deadline:
                time.sleep(0.02)
            if store.add(key, 0) >= self.world_size:
                return
            store.add(key, self.world_size)  # it is said once
            warnings.warn(
                f"rank 0 has gone through a {self.taker} that has 1/{self.world_size} of the"
                " samples for it, and not all other ranks have begun with theirs: where rank 0"
                f" alone is to see all samples, make the {self.taker} with rank=0, world_size=1",
                stacklevel=4,
            )


PATIENCE_S = 3.0
"""How long rank 0 waits for other ranks to begin, before it takes itself for the only one."""

_begun: set[tuple[int, str]] = set()
"""What this process has begun: the id of the store, and the key there."""


LAUNCHERS = ("WORLD_SIZE", "OMPI_COMM_WORLD_SIZE", "PMI_SIZE", "SLURM_STEP_NUM_TASKS")
"""Variables in which launchers (mpirun, srun ...) say how many processes they started.
SLURM_NTASKS is not among them: it is there in a batch script that runs one process, too."""


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


def default_store(world_size: int) -> Any | None:
    """Return torch.distributed's key-value store, if there are other ranks to talk to."""
    module = distributed()
    if world_size == 1 or module is None or module.get_world_size() != world_size:
        return None
    return module.distributed_c10d._get_default_store()


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
