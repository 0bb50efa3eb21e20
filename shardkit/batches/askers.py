"""Who asks a Stream for its batches, and who must not: those who would batch or split them again.

A Stream gives whole batches, of its own rank. Torch's DataLoader with a batch size makes batches of
batches of them, accelerate hands those of rank 0 to all ranks, and neither tells a dataset what it
is about to do. So who asks is looked up where they call: nothing else would know in time.
"""

from __future__ import annotations

import inspect
from typing import Any

from shardkit.errors import UsageError

NESTED = "a Stream gives whole batches, and these would be collated into batches of batches: "

RIGHT = {
    "torch": "write DataLoader(stream, batch_size=None, ...)",
    "transformers": (
        "for transformers' Trainer give no train_dataset=stream, but a get_train_dataloader that"
        " returns accelerate.data_loader.DataLoaderShard(stream, batch_size=None, num_workers=2)"
    ),
}
"""What to write, by whose function collates. One of the user's own may well merge batches."""

ACCELERATE = "give accelerate's prepare() a shardkit.Loader, or this DataLoader not at all"


def asker() -> object:
    """Whose method called the method that calls this; None where a mere function did."""
    frame = inspect.currentframe()
    for _ in range(2):
        frame = None if frame is None else frame.f_back
    return None if frame is None else frame.f_locals.get("self")


def refuse(who: Any, world_size: int, *, with_keys: bool) -> None:
    """For an asker of a Stream that is one of ``world_size`` ranks.

    Raises:
        UsageError: what it would make of the batches is not what anybody wants.
    """
    reason = objection(who, world_size, with_keys=with_keys)
    if reason is not None:
        raise UsageError(reason)


def objection(who: Any, world_size: int, *, with_keys: bool) -> str | None:
    """Why it must not ask, and what to write instead; None if it may."""
    is_collating = getattr(who, "auto_collation", getattr(who, "_auto_collation", False))
    right = _right(who.collate_fn) if is_collating is True else None
    if right is not None:
        return NESTED + right
    names = {base.__name__ for base in type(who).__mro__}
    if "IterableDatasetShard" in names:
        return (
            "a Stream has split its batches among the ranks, and accelerate would split them once"
            f" more: {ACCELERATE}"
        )
    if "DataLoaderDispatcher" not in names:
        return None
    if world_size > 1:
        return (
            "a Stream has split its batches among the ranks, and accelerate would give those of"
            f" rank 0 to all of them: {ACCELERATE}"
        )
    if with_keys:
        return f"accelerate passes tensors on, and with_keys adds text: {ACCELERATE}"
    return None


def _right(collate: object) -> str | None:
    module = str(getattr(collate, "__module__", ""))
    return RIGHT.get(module.partition(".")[0])
