"""Splits that names tell of: ``x_train``, ``mnist-train.tfrecord``, ``cifar_test.npz``."""

from __future__ import annotations

import re
from collections.abc import Sequence

from shardkit.samples.sample import SPLIT_NAMES
from shardkit.system.paths import show_path

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


def mixed_names(names: Sequence[str]) -> list[str]:
    """What there is to say of files that are all of split train, where some names tell another."""
    if splits_by_words(names) is not None:
        return []
    told = next((n for n in names if (splits_by_words([n]) or ["train"]) != ["train"]), None)
    if told is None:
        return []
    other = next(name for name in names if splits_by_words([name]) is None)
    number = "several splits" if _words(other) else "no split"
    return [f"all of split train, {show_path(told)} too, since {show_path(other)} names {number}"]


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
