"""A user's transform, given the same randomness wherever and whenever it runs.

Randomness is keyed by (seed, epoch, position): a sample gets the same crop in whichever process
it is decoded, on whichever rank, before or after a resume. A transform with a parameter named
``rng`` gets a :class:`numpy.random.Generator`. One with a method ``batch(columns, keys)``, as
:func:`shardkit.images.train` makes, gets a whole batch at once, and 64 bits for each sample to
draw from. One that draws from Python's, numpy's or torch's
*global* generators instead (as torchvision's do) is noticed on its first sample, and one with
generators of its own (as albumentations') by what it refers to; those are then seeded before each
call, and as they were after each batch. Threads share the global generators with the training loop,
whose dropout that would rewind, and the transform's own with one another: such a transform is
refused in threads.
"""

from __future__ import annotations

import inspect
import os
import threading
from collections.abc import Callable, Sequence
from copy import copy
from functools import cached_property
from typing import Any, Literal

import numpy as np

from shardkit.arrays import Hashes, Integers
from shardkit.batches.columns_to_samples import Sample, samples_of
from shardkit.batches.generators import (
    Handle,
    global_handles,
    is_same,
    own_generators,
    put_back,
    states,
)
from shardkit.batches.source import Source
from shardkit.batches.words import in_words, in_words_of
from shardkit.errors import ShardkitError, UsageError
from shardkit.order.permutation import derive, derive_each

Transform = Callable[..., Any]

_DRAWS, _AGAIN, _OWN = 3, 7, 11


class Draws:
    """Generators of one epoch, not to be shared by threads: they share a bit generator that is
    set anew for each position (3 us, making one costs 10)."""

    def __init__(self, seed: int, epoch: int) -> None:
        self._key = derive(seed, epoch, _DRAWS)

    def again(self, step: int) -> Draws:
        """Of rows that stand in for others, found ``step`` positions after theirs."""
        if not step:
            return self
        other = copy(self)
        other._key = derive(self._key, _AGAIN, step)
        return other

    def at_steps(self, steps: Sequence[int]) -> Draws:
        """Of a batch whose rows were each found so many positions further on."""
        return _Steps(self, steps) if any(steps) else self

    @cached_property
    def _philox(self) -> tuple[Any, Any, np.random.Generator]:
        """Made where one is asked for: whole batches draw from keys."""
        bits = np.random.Philox(key=[0, 0])
        return bits, bits.state, np.random.Generator(bits)

    def at(self, position: int) -> np.random.Generator:
        """The generator of one position, at its beginning; valid until the next call.

        Philox 4x64 (Salmon et al., "Parallel random numbers: as easy as 1, 2, 3", SC 2011) under
        the 128-bit key (seed and epoch, position).
        """
        bits, state, generator = self._philox
        state["state"]["key"][:] = (self._key, position)
        bits.state = state
        return generator

    def keys(self, positions: Integers) -> Hashes:
        """(B,) uint64 for (B,) positions: 64 bits each, to draw from or to seed generators with."""
        return derive_each(self._key, positions)


class _Steps(Draws):
    """Keys of a batch in which rows stand in for others."""

    def __init__(self, draws: Draws, steps: Sequence[int]) -> None:
        self._draws = draws
        self._steps = steps

    def keys(self, positions: Integers) -> Hashes:
        each = zip(self._steps, positions, strict=True)
        return np.concatenate([self._draws.again(step).keys(np.array([at])) for step, at in each])


def takes_rng(transform: Transform) -> bool:
    """Whether it has a parameter named ``rng``."""
    try:
        return "rng" in inspect.signature(transform).parameters
    except (TypeError, ValueError):  # some callables written in C have no signature
        return False


class Randomised:
    """A transform and how it draws. Pickles if the transform does.

    Args:
        transform: ``sample -> value`` or ``(sample, rng=) -> value``; or with a method ``batch``.
        is_global: whether it draws from the global generators, as :meth:`tried` finds out.

    Attributes:
        drew_globally: it did so while it was tried.
        process: the one in which its generators were found.
    """

    def __init__(self, transform: Transform, is_global: bool) -> None:
        self.transform = transform
        self.is_global = is_global
        self._takes_rng = takes_rng(transform)
        # Ours say what they are, and are known not to draw globally.
        self._to_watch = 0 if is_global or _is_ours(transform) else WATCHED
        self._own: dict[int, Handle] | None = own_generators(transform)
        self.process: int | None = os.getpid()
        self.drew_globally = False

    def __getstate__(self) -> dict[str, Any]:
        return {**self.__dict__, "_own": None, "process": None}

    def find_generators(self) -> bool:
        """Find its own generators again; return True if there are others than before."""
        before, self._own = self._own, own_generators(self.transform)
        return self._own.keys() != (before or {}).keys()

    @property
    def own(self) -> list[Handle]:
        """The generators that only the transform has."""
        if self._own is None:
            self._own = own_generators(self.transform)
        return [*self._own.values()]

    @property
    def seeded(self) -> list[Handle]:
        """Generators that are seeded before each sample."""
        if self.takes_batches:
            return []
        return self.own + (global_handles() if self.is_global else [])

    def seeds(self, draws: Draws, positions: Integers) -> list[list[int]]:
        """For each of :attr:`seeded` the seeds of (B,) positions."""
        keys = draws.keys(positions)
        numbers = keys.view(np.int64)
        own = [derive_each(_OWN + number, numbers).tolist() for number in range(len(self.own))]
        return own + [keys.tolist()] * (len(global_handles()) if self.is_global else 0)

    @property
    def takes_batches(self) -> bool:
        return hasattr(self.transform, "batch")

    @property
    def state(self) -> str | None:
        """What the transform says of itself that may make a difference of a rounding."""
        state = getattr(self.transform, "state", None)
        return state if isinstance(state, str) else None

    @property
    def words(self) -> str:
        """What it is, and what it was given: with another, other samples come."""
        return in_words(self.transform)

    def batch(self, columns: dict[str, Any], draws: Draws, positions: Integers) -> Any:
        """A whole batch, if the transform takes such."""
        return self.transform.batch(columns, draws.keys(positions))  # type: ignore[attr-defined]

    def __call__(self, sample: Sample, draws: Draws, position: int) -> Any:
        if self._takes_rng:
            return self.transform(sample, rng=draws.at(position))
        return self.transform(sample)

    def watched(self, make: Callable[..., Any], *args: Any) -> Any:
        """What ``make``, which calls the transform, makes of ``args``.

        The first batches are watched: a transform may draw for some samples only, and not have for
        those it was tried on. In a thread beside the loop's nobody could tell who drew.

        Raises:
            UsageError: it draws from the global generators after all.
        """
        if not self._to_watch or threading.current_thread() is not threading.main_thread():
            return make(*args)
        self._to_watch -= 1
        handles = self._to_refuse()
        before = states(handles)
        made = make(*args)
        if is_same(before, states(handles)):
            return made
        if all(_draws_again(make, args, handles) for _ in range(3)):
            raise UsageError(
                "the transform draws from the global random generators, though not for the first"
                f" {PROBES} samples, on which it was tried: give it a parameter named rng (a numpy"
                " Generator), or a batch() the keys that it is given, and draw from those alone"
            )
        return made

    def _to_refuse(self) -> list[Handle]:
        """Generators that it must not draw from."""
        return global_handles() + (self.own if self.takes_batches else [])

    def tried(self, source: Source, step: Literal[1, -1]) -> list[str]:
        """Return in words what it makes of some samples, from the first or from the last on, each
        with the same seeds each time; generators are put back after.

        What it raises is left for the batch in which it matters.
        """
        self.find_generators()
        samples, draws, shared = first_samples(source), Draws(0, 0), global_handles()
        seeds, made = self.seeds(draws, np.arange(len(samples))), [""] * len(samples)
        with put_back(self.seeded):
            for number in range(len(samples))[::step]:
                for handle, own in zip(self.seeded, seeds, strict=True):
                    handle.seed(own[number])
                before = states(shared)
                try:
                    made[number] = in_words_of(self(samples[number], draws, number))
                except (Exception, SystemExit):  # noqa: BLE001  it is raised again by its batch
                    pass
                self.drew_globally |= not is_same(before, states(shared))
        return made

    def refuse_batch_draws(self, source: Source, batch_size: int) -> None:
        """Raise UsageError for a ``batch`` that draws from any generator: seeded by a batch, it
        would draw otherwise with another number of ranks. Ours are not tried."""
        if _is_ours(self.transform):
            return
        rows = np.arange(min(batch_size, len(source)))
        handles = self._to_refuse()
        with put_back(handles) as before:
            try:
                self.transform.batch(source.read(rows), derive_each(0, rows))  # type: ignore[attr-defined]
            except (Exception, SystemExit):  # noqa: BLE001  it is raised again by its batch
                pass
            after = states(handles)
        for handle, then, now in zip(handles, before, after, strict=True):
            if not is_same(then, now):
                raise UsageError(
                    f"the transform's batch() draws from {handle.name}, and would draw otherwise on"
                    " other ranks and workers: draw from the keys that it is given"
                )


def _draws_again(make: Callable[..., Any], args: tuple[Any, ...], handles: list[Handle]) -> bool:
    """Whether it was not another thread that drew; nothing is drawn for good."""
    with put_back(handles) as before:
        try:
            make(*args)
        except Exception:  # noqa: BLE001  samples that it has changed it may not know again
            return False
        return not is_same(before, states(handles))


WATCHED = 64
"""Batches, of each worker, in which a transform is watched: less than a millisecond each."""

PROBES = 3
"""Samples a transform is tried on, to see what it draws from."""


def first_samples(source: Source) -> list[Sample]:
    """Some samples to try a transform on: the first good ones, if there are any near the front."""
    samples: list[Sample] = []
    for row in range(min(10 * PROBES, len(source))):
        if len(samples) < PROBES:
            try:
                samples += samples_of(source.read(np.array([row], np.int64)), 1)
            except ShardkitError:  # it is raised again by the batch it is in
                pass
    return samples


def _is_ours(transform: Any) -> bool:
    return isinstance(getattr(transform, "words", None), str)


def randomised(transform: Transform, source: Source, batch_size: int) -> Randomised:
    """A transform, and how it draws.

    Raises:
        UsageError: it takes batches, and draws from the global generators or its own; or it makes
            something else of a sample each time.
    """
    if hasattr(transform, "batch"):
        made = Randomised(transform, is_global=False)
        made.refuse_batch_draws(source, batch_size)
        return made
    trial = Randomised(transform, is_global=True)
    before, now = trial.tried(source, 1), trial.tried(source, -1)
    if before != now:  # it made generators on first use, or it is not to be trusted
        before, now = now, trial.tried(source, 1)
    # What raised, and may do so once in a while, is not compared.
    pairs = zip(before, now, strict=True)
    if any(one and two and one != two for one, two in pairs) and not _is_ours(transform):
        raise UsageError(
            "the transform makes something else of the same sample when it is called again, with"
            " all random generators that were found seeded alike: it counts its calls, reads a"
            " clock, or draws from what cannot be seeded here, as cv2.randn; give it a parameter"
            " named rng (a numpy Generator) and draw from that alone"
        )
    return Randomised(transform, trial.drew_globally)


def refuse_in_threads(transform: Randomised | None) -> None:
    """Raises UsageError for a transform that draws from generators that threads would share."""
    if transform is not None and transform.seeded:
        what = "the global random generators, which threads share with the training loop"
        if not transform.is_global:
            what = f"{transform.own[0].name} of its own, which threads would share"
        raise UsageError(
            f"the transform draws from {what}: make batches in processes (worker_type='process')"
            " or in the loop's own thread (workers=0), or give it a parameter named rng (a numpy"
            " Generator) and draw from that alone"
        )
