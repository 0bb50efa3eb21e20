"""Ranges that lie close together in a file, as one."""

from __future__ import annotations

import mmap

import numpy as np

from shardkit.arrays import Integers


def merged(
    numbers: Integers, starts: Integers, sizes: Integers
) -> tuple[Integers, Integers, Integers]:
    """One range for those that follow one another in a file with at most a page between."""
    ends = starts + sizes
    gaps = starts[1:] - ends[:-1]
    is_first = np.ones(len(numbers), np.bool_)
    is_first[1:] = (numbers[1:] != numbers[:-1]) | (gaps < 0) | (gaps > mmap.PAGESIZE)
    firsts = np.flatnonzero(is_first)
    lasts = np.append(firsts[1:], len(numbers)) - 1
    return numbers[firsts], starts[firsts], ends[lasts] - starts[firsts]


def worth_announcing(
    numbers: Integers, starts: Integers, sizes: Integers, at_least: int
) -> tuple[Integers, Integers, Integers]:
    """The :func:`merged` ranges of those that have so many bytes, and any at all."""
    large = sizes >= max(at_least, 1)
    chosen = numbers[large], starts[large], sizes[large]
    return merged(*chosen) if len(chosen[0]) else chosen
