"""Random generators that a transform draws from: found, seeded for each sample, and put back.

The global ones are noticed by trying (:mod:`shardkit.batches.transform`). One of the transform's
own, as albumentations has them, is found in what the transform refers to: each worker process has a
copy of it, and all would draw the same.
"""

from __future__ import annotations

import functools
import gc
import random
import sys
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from types import CodeType, FunctionType, ModuleType
from typing import Any, NamedTuple

import numpy as np

from shardkit.errors import UsageError

MOST_OBJECTS, MOST_ITEMS, FEW_ITEMS = 5_000, 1_000, 100
"""How many objects are looked at, the nearest first, and of each how many of those that it refers
to: a transform may refer to a whole dataset. What refers to more than a few is data, as a table of
annotations is, and comes last. At most 25 ms; those of albumentations are found among the first
700."""

_MOST_MODULES = 4
"""Modules in modules, as in ``a.b.c.RNG``."""

_LIBRARIES = {"numpy", "torch", "torchvision", "PIL", "cv2", "scipy", "shardkit"}
"""Packages whose code is not followed, like the standard library's: it draws from the global
generators, or from one that it is given."""

_HOLDERS = {"builtins", "functools", "collections", "types", "itertools", "operator", "_thread"}
"""Modules of the standard library whose objects are followed: they hold what others gave them.
From a logger or a lock everything else of a program can be reached."""

_LOW = 0xFFFFFFFF

_SPREAD = 0x2360ED051FC65DA44385DF649FCCF645
"""An odd number of 128 bits, that of the PCG family (O'Neill 2014)."""

_ATOMS = (str, bytes, int, float, complex, type(None), np.ndarray, CodeType, ModuleType)


class Handle(NamedTuple):
    """The calls that get the state of one generator, put it back, and seed it with 64 bits."""

    name: str
    get: Callable[[], Any]
    put: Callable[[Any], Any]
    seed: Callable[[int], Any]


def global_handles(device: Any = None) -> list[Handle]:
    """Return those of Python, of NumPy, of torch if it is imported, and of a CUDA device."""
    name = "the global random generators"
    found = [
        Handle(name, random.getstate, random.setstate, random.seed),
        Handle(name, np.random.get_state, np.random.set_state, lambda k: np.random.seed(k & _LOW)),
    ]
    torch = sys.modules.get("torch")
    if torch is not None:
        # Not torch.manual_seed: that would reseed every CUDA device, too.
        seed = torch.default_generator.manual_seed
        found.append(Handle(name, torch.get_rng_state, torch.set_rng_state, seed))
    if device is not None and device.type == "cuda":
        cuda = sys.modules["torch"].cuda
        get = functools.partial(cuda.get_rng_state, device)
        found.append(Handle(name, get, cuda.set_rng_state, cuda.manual_seed))
    return found


def states(handles: Sequence[Handle]) -> list[Any]:
    """The state of each."""
    return [handle.get() for handle in handles]


def is_same(one: Any, two: Any) -> bool:
    """Return True if nothing was drawn between two :func:`states`."""
    if isinstance(one, dict):
        return all(is_same(one[name], two[name]) for name in one)
    if isinstance(one, list | tuple):
        return all(map(is_same, one, two))
    equal = one == two
    return bool(equal.all()) if hasattr(equal, "all") else bool(equal)


@contextmanager
def put_back(handles: Sequence[Handle]) -> Iterator[list[Any]]:
    """Whatever is drawn inside, these generators are as before afterwards."""
    before = states(handles)
    try:
        yield before
    finally:
        for handle, state in zip(handles, before, strict=True):
            handle.put(state)


# --- a transform's own --------------------------------------------------------------------


def own_generators(transform: Any) -> dict[int, Handle]:
    """Find the generators that a transform refers to, by their ids, but for the global ones.

    Looked through are attributes, those of classes too, items, closures, defaults, what partials
    and bound methods hold, and of globals those that the code names. Nothing of it is run, no
    property either. The order is the same in every process.

    Raises:
        UsageError: one is a ``random.SystemRandom``, which nobody can seed.
    """
    torch = sys.modules.get("torch")
    shared: list[Any] = [random.random.__self__, np.random.mtrand._rand]  # type: ignore[attr-defined]
    if torch is not None:
        shared += [torch.default_generator, *torch.cuda.default_generators]
    seen = {id(value): value for value in shared}  # which keeps them, and so their ids
    found: dict[int, Handle] = {}
    near, far = deque([transform]), deque[Any]()
    while (near or far) and len(seen) < MOST_OBJECTS:
        value = (near or far).popleft()
        # type(), as isinstance() asks for __class__, which may be a property.
        if id(value) in seen or issubclass(type(value), _ATOMS):
            continue
        seen[id(value)] = value
        handle = _handle(value, torch)
        if handle is not None:
            found[id(value)] = handle
        else:
            referents = _referents(value)
            (near if len(referents) <= FEW_ITEMS else far).extend(referents)
    return found


def _handle(value: Any, torch: Any) -> Handle | None:
    kind = type(value)
    if issubclass(kind, random.SystemRandom):
        raise UsageError(
            "the transform has a random.SystemRandom, which cannot be seeded: use random.Random, or"
            " give the transform a parameter named rng"
        )
    if issubclass(kind, random.Random):
        return Handle("a random.Random", value.getstate, value.setstate, value.seed)
    if issubclass(kind, np.random.RandomState):

        def reseed(key: int) -> None:
            if isinstance(value._bit_generator, np.random.MT19937):
                value.seed([key & _LOW, key >> 32])  # 12 us; by a state of its own 110
            else:
                made = _state(type(value._bit_generator), key)
                value.set_state({**made, "has_gauss": 0, "gauss": 0.0})

        get = functools.partial(value.get_state, legacy=False)
        return Handle("a numpy RandomState", get, value.set_state, reseed)
    if issubclass(kind, np.random.BitGenerator):
        put = functools.partial(setattr, value, "state")
        seed = lambda key: put(_state(kind, key))  # noqa: E731
        return Handle("a numpy Generator", lambda: value.state, put, seed)
    if torch is None or not issubclass(kind, torch.Generator):
        return None
    return Handle("a torch.Generator", value.get_state, value.set_state, value.manual_seed)


def _state(kind: type[Any], key: int) -> Any:
    """The state of a bit generator that a key chooses."""
    if kind is not np.random.PCG64:
        return kind(key).state
    # That of default_rng(), without hashing the key, which is a hash, once more: 2 us, not 13.
    state = {"state": (key * _SPREAD + 1) % 2**128, "inc": _SPREAD}
    return {"bit_generator": "PCG64", "state": state, "has_uint32": 0, "uinteger": 0}


def _referents(value: Any) -> list[Any]:
    kind = type(value)
    if kind is FunctionType:
        held = [*(value.__closure__ or ()), value.__defaults__, value.__kwdefaults__]
        named = [] if _is_library(value.__module__) else _named_globals(value)
        return [*held, value.__dict__, *named]
    if issubclass(kind, type):
        is_library = _is_library(value.__module__)
        return [] if is_library else [*vars(value).values(), *value.__mro__[1:], type(value)]
    if issubclass(kind, np.random.Generator):
        return [value.bit_generator]
    root = str(kind.__module__).partition(".")[0]
    is_followed = root in _HOLDERS or root not in sys.stdlib_module_names
    return gc.get_referents(value)[:MOST_ITEMS] if is_followed else []


def _is_library(module: object) -> bool:
    root = str(module).partition(".")[0]
    return root in _LIBRARIES or root in sys.stdlib_module_names


def _named_globals(function: FunctionType) -> list[Any]:
    names: dict[str, None] = {}
    codes = [function.__code__]
    for code in codes:  # which grows
        names |= dict.fromkeys(code.co_names)
        codes += [inner for inner in code.co_consts if isinstance(inner, CodeType)]
    return _named(function.__globals__, [*names], _MOST_MODULES)


def _named(namespace: dict[str, Any], names: list[str], depth: int) -> list[Any]:
    """The values of these names, in a module's modules, too."""
    found = []
    for value in [namespace[name] for name in names if name in namespace]:
        if type(value) is not ModuleType:
            found.append(value)
        elif depth and not _is_library(value.__name__):
            found += _named(vars(value), names, depth - 1)
    return found
