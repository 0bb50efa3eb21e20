"""A loader that accelerate knows while it runs, like a DataLoader that it has prepared.

``accumulate`` steps at the last batch, and ``gather_for_metrics`` cuts the padding off that. A
prepared scheduler makes a step for each process, as a DataLoader that is not prepared yet has the
batches of all; a Loader has those of one rank from the beginning.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

from shardkit.order.batches import BatchPlan
from shardkit.order.splitters import gradient_state


class Accelerated:
    """A loader that registers itself with accelerate, if that is in use, while it runs.

    Attributes:
        end_of_dataloader: the loop has the last batch. remainder: samples of a last global batch
            that is not full, 0 if there is none, -1 before the first iteration.
    """

    end_of_dataloader = False
    remainder = -1

    @contextmanager
    def _registered(self, plan: BatchPlan) -> Iterator[Callable[[], None]]:
        """Around an iteration. Gives what is to be called before a batch is handed over."""
        told: dict[str, Any] = self.__dict__
        left = len(plan)
        told |= {"end_of_dataloader": False, "remainder": plan.remainder}

        def handed_over() -> None:
            nonlocal left
            left -= 1
            told["end_of_dataloader"] = left == 0

        if (state := gradient_state()) is None:
            yield handed_over
            return
        # Of accelerate's schedulers nothing but their class can be found from here.
        kind = getattr(sys.modules.get("accelerate.scheduler"), "AcceleratedScheduler", None)
        if kind is not None and not isinstance(vars(kind).get("split_batches"), _SplitBatches):
            kind.split_batches = _SplitBatches()
        state._add_dataloader(self)
        try:
            yield handed_over
        finally:
            state._remove_dataloader(self)


class _SplitBatches:
    """``AcceleratedScheduler.split_batches``, which makes one step of a batch: true of each in a
    loop over an :class:`Accelerated` loader, and else as it was set."""

    def __get__(self, scheduler: Any, kind: type) -> bool:
        is_ours = isinstance(scheduler.gradient_state.active_dataloader, Accelerated)
        return is_ours or bool(scheduler.__dict__["split_batches"])

    def __set__(self, scheduler: Any, value: bool) -> None:
        scheduler.__dict__["split_batches"] = value
