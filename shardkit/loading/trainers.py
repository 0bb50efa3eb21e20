"""Trainers that number their epochs for a loader, as Lightning does.

Lightning tells what a loader has as ``batch_sampler.sampler`` each number, right before the epoch.
Where it begins or resumes, it has asked for the iterator by then. It loads a loader's state where
it restarts within an epoch, and wherever ``max_steps`` is set, but not at an epoch's end: there the
number is all that it says. With ``max_steps`` its numbers run ahead after a resume. Hence these
rules, which are law: if the code disagrees, it is a bug.

- A loader that was just made begins the epoch of the number.
- A position that was loaded stays, unless the number is higher than its epoch: then the next epoch
  begins, and right after a resume no epoch is left out, however high the number is.
- A number that was said before begins its epoch again, as for validation. A lower one is another
  training.
- A higher one never goes back to an epoch of which something was handed over.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import NoReturn

from shardkit.errors import SamplerMissingError, UsageError


@dataclass(frozen=True)
class LoopPlace:
    """Where a loader is: what it handed over last ends before this position of this epoch.

    Attributes:
        skipped: rows that were replaced in this epoch until there.
    """

    epoch: int
    position: int = 0
    skipped: int = 0

    @property
    def next_epoch(self) -> int:
        """The first of which nothing was handed over."""
        return self.epoch + (self.position > 0)


@dataclass(frozen=True)
class Said:
    """What a trainer said last, since the loader was made or a state was loaded.

    Attributes:
        number: of its epoch, None before the first. epoch: what the loader ran for it.
        is_resumed: a state was loaded, and no batch was handed over before the number was said.
        is_after_end: the number led to the next epoch, from a loaded place after several batches.
    """

    number: int | None = None
    epoch: int = 0
    is_resumed: bool = False
    is_after_end: bool = False


def place_of(
    number: int, said: Said, at: LoopPlace, received: int, batch: int
) -> tuple[LoopPlace, Said]:
    """Where epoch ``number`` of a trainer begins, and what is to be remembered of that.

    Args:
        at: where the loader is. received: batches that it handed over since ``said``. batch:
            positions that one batch of all ranks takes.
    """
    is_resumed = said.is_resumed and not received
    is_after_end = False
    if said.number is None:
        place = _first(number, said, at, received)
        is_after_end = is_resumed and at.position > batch and place != at
    elif number == said.number:
        place = LoopPlace(said.epoch) if received else at
        is_after_end = said.is_after_end and not received
    elif number < said.number:
        place = LoopPlace(number)
    else:
        place = _higher(number - said.number, said, at, received)
    return place, Said(number, place.epoch, is_resumed, is_after_end)


def _first(number: int, said: Said, at: LoopPlace, received: int) -> LoopPlace:
    if not said.is_resumed:
        return LoopPlace(number)
    if received:  # a loop of its own went on from the state, and now a trainer does
        return LoopPlace(max(number, at.next_epoch))
    if number <= at.epoch:
        return at
    # At the beginning of an epoch it is a copy of a loader that was just made.
    return LoopPlace(at.next_epoch if at.position else number)


def _higher(by: int, said: Said, at: LoopPlace, received: int) -> LoopPlace:
    if said.is_resumed and not received:
        return LoopPlace(at.next_epoch)
    if said.is_after_end and received == 1:
        # Lightning 2.6 that resumes at an epoch's end with max_steps takes one batch for the epoch
        # that had ended, and then begins another: the rest of this one is still to come.
        return at
    return LoopPlace(max(said.epoch + by, at.next_epoch))


@dataclass(frozen=True)
class NumberedEpochs:
    """``loader.batch_sampler``: it gives no rows, Lightning only looks for ``sampler.set_epoch``.

    Attributes:
        set_epoch: takes the number of a trainer's epoch.
    """

    set_epoch: Callable[[int], None]

    @property
    def sampler(self) -> NumberedEpochs:
        """Itself."""
        return self


def refuse_sampler() -> NoReturn:
    """For whoever would take rows from a loader, past its transform and its workers.

    Raises:
        SamplerMissingError: it is an AttributeError, too, so that ``getattr`` with a default works.
    """
    raise SamplerMissingError(
        "a Loader has no sampler, and nobody but itself can skip its batches. For transformers'"
        " Trainer, which skips those it has trained on, get_train_dataloader must return"
        " accelerate.data_loader.DataLoaderShard(dataset.stream(batch_size, ...), batch_size=None)"
        " with the Loader's options: it goes on from the same checkpoint. With accelerate, use"
        " register_for_checkpointing(loader) in place of skip_first_batches"
    )


def refuse_index() -> NoReturn:
    """For torch's DataLoader, which asks for samples by number.

    Raises:
        UsageError: always.
    """
    raise UsageError(
        "a Loader gives whole batches, and none by its number: iterate over it as it is, without a"
        " DataLoader around it; for torch's own workers write"
        " DataLoader(dataset.stream(batch_size, ...), batch_size=None, num_workers=2)"
    )
