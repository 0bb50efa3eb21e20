"""A keyed shuffle of 0..n-1 as arithmetic: any position at any time, in memory that does not grow.

A Feistel network over pairs (left, right) of numbers below ``side``, where ``side`` is about
``sqrt(n)``, and cycle-walking for the few values that are not below n. After Black
and Rogaway, "Ciphers with Arbitrary Finite Domains" (CT-RSA 2002), with splitmix64's finaliser
as the round function. It shuffles well; it hides nothing from anyone.

Few rows are put in the order of their hashes instead. Halves of a few values are too little for a
Feistel network: of 12 to 40 rows, the next row followed 2 to 3 % too often. A sort is as fast.

``permute.c`` computes the network in a third of NumPy's time. It also keeps the GIL, of which NumPy
lets go in each of some 100 passes, and then waits for other threads that make batches.
"""

from __future__ import annotations

import math
from functools import cache, lru_cache
from importlib import import_module
from types import ModuleType

import numpy as np

from shardkit.arrays import Hashes, Integers
from shardkit.samples.checksums import mix64

ROUNDS = 8
"""Four make a pseudorandom permutation (Luby and Rackoff 1988); small domains want some more."""

SORTED_ROWS = 4096
"""Up to so many rows are sorted, in 0.3 ms; eight rounds would take 0.4."""

_KEPT_TABLES = 64
"""Tables kept, each of at most 32 kB: a mix reads from many short orders in turn."""

MAX_ROWS = 2**60
"""Above it a value and a side no longer fit into 64 bits together."""

_GOLDEN = 0x9E3779B97F4A7C15
_HALF = np.uint64(32)


@cache
def compiled() -> ModuleType | None:
    """The module made from ``permute.c``, if it was built with this installation."""
    try:
        return import_module("shardkit.order._permute")
    except ImportError:
        return None


def derive(key: int, *more: int) -> int:
    """A 64-bit key from numbers: a seed, an epoch, and what the key is for. What it is for is
    negative, which no epoch and no number of a dataset or a window is: so no two keys are one."""
    state = np.array([key & (2**64 - 1)], np.uint64)
    for number in more:
        with np.errstate(over="ignore"):
            state = mix64(state + np.uint64(_GOLDEN)) + np.uint64(number & (2**64 - 1))
    return int(mix64(state)[0])


def derive_each(key: int, numbers: Integers) -> Hashes:
    """(B,) uint64: :func:`derive` of a key with each of (B,) numbers."""
    with np.errstate(over="ignore"):
        first = mix64(np.array([key], np.uint64) + np.uint64(_GOLDEN))
        return mix64(first + numbers.astype(np.uint64))


def permute(positions: Integers, size: int, key: int) -> Integers:
    """Where each position goes in the shuffle of ``range(size)`` that ``key`` chooses.

    Args:
        positions: (B,) int64, each in [0, size). size: at most 2**60.

    Returns:
        (B,) int64, each in [0, size); over all positions, each value once.
    """
    if size <= SORTED_ROWS:
        return _table(size, key)[positions]
    side = _side(size)
    if (module := compiled()) is not None:
        positions = np.ascontiguousarray(positions, np.int64)
        rows = np.empty_like(positions)
        module.permute(positions, size, side, np.array(_salts(key)), rows)
        return rows
    values = _encrypt(positions.astype(np.uint64), side, key)
    outside = np.flatnonzero(values >= size)
    while len(outside):
        values[outside] = _encrypt(values[outside], side, key)
        outside = outside[values[outside] >= size]
    return values.view(np.int64)


def unpermute(value: int, size: int, key: int) -> int:
    """The position that :func:`permute` sends to ``value``."""
    if size <= SORTED_ROWS:
        return int(np.flatnonzero(_table(size, key) == value)[0])
    side = _side(size)
    values = np.array([value], np.uint64)
    while True:
        values = _decrypt(values, side, key)
        if values[0] < size:
            return int(values[0])


def turn(epoch: int, size: int, key: int) -> int:
    """A number below ``size`` for each epoch: any ``size`` epochs on end have each of them once."""
    return int(permute(np.array([epoch % size]), size, key)[0])


@lru_cache(_KEPT_TABLES)
def _table(size: int, key: int) -> Integers:
    """(size,) int64. No two hashes are equal, since splitmix64's finaliser is a bijection."""
    return derive_each(key, np.arange(size, dtype=np.int64)).argsort()


def _side(size: int) -> int:
    """The least even side whose square holds ``size``. Even, because rounds over an odd side are
    all even permutations."""
    side = math.isqrt(size - 1) + 1
    return side + side % 2


def _encrypt(values: Hashes, side: int, key: int) -> Hashes:
    base = np.uint64(side)
    left = values // base
    right = values - left * base
    for salt in _salts(key):
        # Both are below the side; where they are not above it together, this is a huge number.
        total = _spread(right, salt, side)
        total += left
        left, right = right, np.minimum(total, total - base)
    left *= base
    left += right
    return left


def _decrypt(values: Hashes, side: int, key: int) -> Hashes:
    left, right = np.divmod(values, np.uint64(side))
    for salt in reversed(_salts(key)):
        left, right = _add(right, np.uint64(side) - _spread(left, salt, side), side), left
    return left * np.uint64(side) + right


def _salts(key: int) -> list[np.uint64]:
    steps = np.arange(1, ROUNDS + 1, dtype=np.uint64) * np.uint64(_GOLDEN)
    return list(mix64(steps + np.uint64(key)))


def _add(a: Hashes, b: Hashes, side: int) -> Hashes:
    total = a + b
    return np.where(total >= side, total - np.uint64(side), total)


def _spread(half: Hashes, salt: np.uint64, side: int) -> Hashes:
    """A number below ``side`` (and so below 2**32) that depends on one half alone."""
    mixed = mix64(half + salt)
    mixed >>= _HALF
    mixed *= np.uint64(side)
    mixed >>= _HALF
    return mixed


def counted(sizes: Integers) -> Integers:
    """(sum,) int64: 0, 1, ... within each of (N,) pieces laid end to end."""
    ends = np.cumsum(sizes)
    return np.arange(ends[-1] if len(ends) else 0) - np.repeat(ends - sizes, sizes)
