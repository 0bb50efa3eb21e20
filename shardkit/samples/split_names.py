"""Splits that names tell of: ``x_train``, ``mnist-train.tfrecord``, ``cifar_test.npz``."""

from __future__ import annotations

import re
from collections.abc import Sequence

from shardkit.samples.sample import SPLIT_NAMES

_BETWEEN = re.compile(r"[/_.\-]+")


def splits_by_words(names: Sequence[str]) -> list[str] | None:
    """The split of each file: the one split name among the words of its own; None unless every
    name has one.

    ``imagenet-train-000`` beside ``imagenet-val-000`` must not become one split.
    """
    found = [SPLIT_NAMES.intersection(re.findall("[a-z]+", name.lower())) for name in names]
    if not names or any(len(words) != 1 for words in found):
        return None
    return [word for words in found for word in words]


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
