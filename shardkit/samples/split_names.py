"""Splits that names tell of: ``x_train``, ``mnist-train.tfrecord``, ``cifar_test.npz``."""

from __future__ import annotations

import re
from collections.abc import Sequence

from shardkit.samples.sample import SPLIT_NAMES

LONG_NAMES = {"training": "train", "testing": "test"}
"""What others call a split -> the split."""

_BETWEEN = re.compile(r"[/_.\-]+")


def splits_by_words(names: Sequence[str]) -> list[str] | None:
    """The split of each file: the one split name among the words of its own; None unless every
    name has one.

    ``imagenet-train-000`` beside ``imagenet-val-000`` must not become one split.
    """
    splits: list[str] = []
    for name in names:
        words = _words(name)
        if len(words) != 1:
            return None  # at the first: there may be a million names
        splits += words
    return splits or None


def _words(name: str) -> frozenset[str]:
    found = re.findall("[a-z]+", name.lower())
    return SPLIT_NAMES.intersection(LONG_NAMES.get(word, word) for word in found)


def split_word(name: str) -> tuple[str, str] | None:
    """The split that an array's name tells of, and the name without it: ``x_train`` gives
    ``("train", "x")``, and ``train`` alone ``("train", "data")``. None if no word is a split, or
    several are."""
    words = _BETWEEN.split(name)
    found = [i for i, word in enumerate(words) if word.lower() in SPLIT_NAMES]
    if len(found) != 1:
        return None
    gaps = ["", *_BETWEEN.findall(name)]
    parts = [gap + word for gap, word in zip(gaps, words, strict=True)]
    split = words[found[0]].lower()
    del parts[found[0]]
    return split, "".join(parts).strip("/_.-") or "data"
