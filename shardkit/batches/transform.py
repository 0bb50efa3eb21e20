"""A user's transform, given the same randomness wherever and whenever it runs.

Randomness is keyed by (seed, epoch, position): a sample gets the same crop in whichever process
it is decoded, on whichever rank, before or after a resume. A transform with a parameter named
``rng`` gets a :class:`numpy.random.Generator`. One with a method ``batch(columns, keys)``, as
:func:`shardkit.images.train` makes, gets a whole batch at once, and 64 bits for each sample to
draw from. One that draws from Python's, numpy's or torch's
*global* generators instead (as torchvision's do) is noticed on its first sample; those are then
seeded around each call. Threads share the global generators with the training loop, whose dropout
that would rewind: such a transform is refused wherever batches are made in another thread than the
loop's.
"""

from __future__ import annotations

import inspect
import random
import sys
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from copy import copy
from functools import cached_property
from typing import Any

import numpy as np

from shardkit.arrays import Hashes, Integers
from shardkit.batches.samples import Sample, samples_of
from shardkit.batches.source import Source
from shardkit.batches.words import in_words
from shardkit.errors import ShardkitError, UsageError
from shardkit.order.permutation import derive, derive_each

Transform = Callable[..., Any]

_DRAWS, _AGAIN = 3, 7


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
        is_global: whether it draws from the global generators, see :func:`draws_globally`.
    """

    def __init__(self, transform: Transform, is_global: bool) -> None:
        self.transform = transform
        self.is_global = is_global
        self._takes_rng = takes_rng(transform)
        # Ours say what they are, and are known not to draw globally.
        self._to_watch = 0 if is_global or _is_ours(transform) else WATCHED

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
        own = {"rng": draws.at(position)} if self._takes_rng else {}
        if self.is_global:
            with global_generators():
                _seed_globals(int(draws.keys(np.array([position]))[0]))
                return self.transform(sample, **own)
        return self.transform(sample, **own)

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
        before = global_states()
        made = make(*args)
        if differ(before, global_states()) and all(_draws_again(make, args) for _ in range(3)):
            raise UsageError(
                "the transform draws from the global random generators, though not for the first"
                f" {PROBES} samples, on which it was tried: give it a parameter named rng (a numpy"
                " Generator), or a batch() the keys that it is given, and draw from those alone"
            )
        return made


def _draws_again(make: Callable[..., Any], args: tuple[Any, ...]) -> bool:
    """Whether it was not another thread that drew; nothing is drawn for good."""
    with global_generators() as before:
        try:
            make(*args)
        except Exception:  # noqa: BLE001  samples that it has changed it may not know again
            return False
        return differ(before, global_states())


WATCHED = 64
"""Batches, of each worker, in which a transform is watched: less than a millisecond each."""

PROBES = 3
"""Samples a transform is tried on, to see whether it draws globally."""


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


def draws_globally(transform: Transform, samples: list[Sample]) -> bool:
    """Whether it draws from the global generators, found by trying; they are put back after.

    What it raises is left for the batch in which it matters.
    """
    has_rng = takes_rng(transform)
    with global_generators() as before:
        for sample in samples:
            try:
                transform(sample, **({"rng": np.random.default_rng(0)} if has_rng else {}))
            except (Exception, SystemExit):  # noqa: BLE001  it is raised again by its batch
                pass
        return differ(before, global_states())


def _is_ours(transform: Any) -> bool:
    return isinstance(getattr(transform, "words", None), str)


def _refuse_global_batch(transform: Any, source: Source, batch_size: int) -> None:
    """Raise UsageError for a ``batch`` that draws from the global generators: seeded by a batch, it
    would draw otherwise with another number of ranks. Ours are not tried."""
    if _is_ours(transform):
        return
    rows = np.arange(min(batch_size, len(source)))
    with global_generators() as before:
        try:
            transform.batch(source.read(rows), derive_each(0, rows))
        except (Exception, SystemExit):  # noqa: BLE001  it is raised again by its batch
            pass
        draws = differ(before, global_states())
    if draws:
        raise UsageError(
            "the transform's batch() draws from the global random generators, and would draw"
            " otherwise on other ranks and workers: draw from the keys that it is given"
        )


def randomised(transform: Transform, source: Source, batch_size: int) -> Randomised:
    """A transform, and how it draws.

    Raises:
        UsageError: it takes batches, and draws from the global generators.
    """
    if hasattr(transform, "batch"):
        _refuse_global_batch(transform, source, batch_size)
        return Randomised(transform, is_global=False)
    return Randomised(transform, draws_globally(transform, first_samples(source)))


def refuse_in_threads(transform: Randomised | None) -> None:
    """Raises UsageError for a transform that draws globally."""
    if transform is not None and transform.is_global:
        raise UsageError(
            "the transform draws from the global random generators, which threads share with the"
            " training loop: give it a parameter named rng (a numpy Generator) and draw from that"
            " alone, or make batches in processes (worker_type='process') or in the loop's own"
            " thread"
        )


@contextmanager
def global_generators() -> Iterator[dict[str, Any]]:
    """Whatever is drawn inside, the global generators are as before afterwards."""
    states = global_states()
    try:
        yield states
    finally:
        random.setstate(states["random"])
        np.random.set_state(states["numpy"])
        if "torch" in states:
            sys.modules["torch"].set_rng_state(states["torch"])


def global_states(device: Any = None) -> dict[str, Any]:
    """Of Python's, NumPy's and torch's generators; and a CUDA device's, if one is given."""
    states = {"random": random.getstate(), "numpy": np.random.get_state()}
    if "torch" in sys.modules:
        states["torch"] = sys.modules["torch"].get_rng_state()
    if device is not None and device.type == "cuda":
        states["cuda"] = sys.modules["torch"].cuda.get_rng_state(device)
    return states


def differ(before: dict[str, Any], after: dict[str, Any]) -> bool:
    """Whether something was drawn between two :func:`global_states`."""
    numpy_moved = any(
        not np.array_equal(a, b) for a, b in zip(before["numpy"], after["numpy"], strict=True)
    )
    torch_moved = any(
        not bool((before[name] == after[name]).all())
        for name in ("torch", "cuda")
        if name in before
    )
    return before["random"] != after["random"] or numpy_moved or torch_moved


def _seed_globals(seed: int) -> None:
    random.seed(seed)
    np.random.seed(seed & 0xFFFFFFFF)
    if "torch" in sys.modules:
        # Not torch.manual_seed: that would reseed every CUDA device, too.
        sys.modules["torch"].default_generator.manual_seed(seed)
