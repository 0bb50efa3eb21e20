"""Arguments: numbers in range, options that there are, or one clear line."""

from __future__ import annotations

import functools
import inspect
import math
import operator
from collections.abc import Callable, Collection, Iterable
from typing import Any, TypeVar

from shardkit.errors import UsageError

F = TypeVar("F", bound=Callable[..., Any])

_ORDER = (
    "shuffle= and seed= choose the order, dataset.select(rows) the samples, and"
    " shardkit.mix(..., weights=) how often each dataset comes"
)

OTHER_WORDS = {
    "num_workers": "a Loader has workers=, and of a stream it is the DataLoader's option",
    "prefetch_factor": "a Loader has prefetch=, and of a stream it is the DataLoader's option",
    "pin_memory": "a Loader has pin_memory= and device=",
    "persistent_workers": "leave it out: workers begin each epoch anew, where the loop is",
    "multiprocessing_context": "a Loader has worker_type='process'",
    "worker_init_fn": "leave it out: seed= seeds random numbers for each sample, in any worker",
    "timeout": "leave it out: a worker that ends is noticed at once",
    "sampler": _ORDER,
    "batch_sampler": _ORDER,
    "collate_fn": "transform= takes each sample, or whole batches, and arrays become tensors",
    "generator": "use seed=",
    "drop_last": "a Loader, a Stream and samplers take it",
    "num_replicas": "use world_size=",
    "format": "use to= to pack; to read, leave it out, as a dataset says its format",
}
"""Words of torch's, and of other libraries, for what is called otherwise here."""


def refuse_unknown(names: Collection[str], fields: Collection[str]) -> None:
    """Raise UsageError for a name that is no field."""
    if unknown := sorted(set(names) - set(fields)):
        raise UsageError(f"no field {unknown[0]!r} here, only {', '.join(fields)}")


def unknown_option(taker: str, given: Iterable[str]) -> UsageError:
    """The error for options that there are not; the first one, and what to write instead."""
    name = min(given)
    hint = f"; {OTHER_WORDS[name]}" if name in OTHER_WORDS else ""
    return UsageError(f"{taker} takes no option {name!r}{hint}")


def known_options(taker: str) -> Callable[[F], F]:
    """Have a function raise UsageError, not TypeError, for options that it does not take."""

    def decorate(function: F) -> F:
        known = inspect.signature(function).parameters.keys()

        @functools.wraps(function)
        def call(*args: Any, **given: Any) -> Any:
            if not given.keys() <= known:
                raise unknown_option(taker, given.keys() - known)
            return function(*args, **given)

        return call  # type: ignore[return-value]

    return decorate


def integer(name: str, value: object, least: int | None = 0) -> int:
    """``value`` as an int. Raises UsageError for anything else, or for less than ``least``."""
    try:
        if isinstance(value, bool):
            raise TypeError
        number = operator.index(value)  # type: ignore[arg-type]
    except TypeError as error:
        raise UsageError(f"{name} must be a whole number, got {value!r}") from error
    if least is not None and number < least:
        raise UsageError(f"{name} must be at least {least}, got {number}")
    return number


def positive(name: str, value: float) -> None:
    """Raises UsageError for nothing, less, infinity and what is no number."""
    if not (value > 0 and math.isfinite(value)):
        raise UsageError(f"{name} must be more than 0, and finite, got {value}")
