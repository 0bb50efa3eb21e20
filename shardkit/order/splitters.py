"""Detect accelerate, also inside transformers' Trainer, where it would split once more what is
split among the ranks already.

accelerate registers each data loader in its ``GradientState`` before it iterates over it and tells
it the epoch. So a sampler or a dataset that is iterated over finds there the loaders that read it,
and the objects between them and itself. Nothing is imported here: without accelerate there is none.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator
from typing import Any

from shardkit.errors import UsageError

SPLITTERS = {"BatchSamplerShard", "IterableDatasetShard", "DataLoaderDispatcher"}
"""Classes of accelerate that give each process a part of what they read."""


def gradient_state() -> Any | None:
    """Return accelerate's registry of running loaders, or None where nothing uses accelerate."""
    kind = getattr(sys.modules.get("accelerate.state"), "GradientState", None)
    return kind() if kind is not None and kind._shared_state else None


def readers_of(ours: object) -> Iterator[tuple[Any, set[str]]]:
    """Yield the running loaders of accelerate that lead to ``ours``, each with the names of the
    :data:`SPLITTERS` on the way."""
    state = gradient_state()
    for loader in [] if state is None else state.dataloader_references:
        links = {id(loader): loader}
        for link in (rest := [loader]):  # it grows
            for name in ("dataset", "batch_sampler", "sampler"):
                if id(next_link := getattr(link, name, None)) not in links:
                    links[id(next_link)] = next_link
                    rest.append(next_link)
        if id(ours) in links:
            many = [link for link in rest if getattr(link, "num_processes", 2) > 1]
            yield (
                loader,
                {base.__name__ for link in many for base in type(link).__mro__} & SPLITTERS,
            )


def refuse_second_split(ours: object, taker: str, world_size: int) -> None:
    """Raise UsageError if accelerate splits a sampler that is one of ``world_size`` ranks."""
    if world_size > 1 and any(splitters for _, splitters in readers_of(ours)):
        raise UsageError(
            f"this {taker} gives rank by rank, and accelerate would split its part among the ranks"
            f" once more: give prepare() a shardkit.Loader, or make the {taker} with rank=0,"
            " world_size=1 and let accelerate split"
        )
