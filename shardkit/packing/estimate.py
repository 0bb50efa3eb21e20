"""``estimate``: what choices for pictures cost and gain, measured on some; nothing is written."""

from __future__ import annotations

import math
import time
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import groupby
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, NamedTuple

import numpy as np
import xxhash

from shardkit.corpus.base import Corpus, Run
from shardkit.corpus.open import open_corpus
from shardkit.errors import SampleError, UsageError
from shardkit.images.choice import ImageChoice
from shardkit.images.decode import decode
from shardkit.images.encode import can_write, require_encoder, require_writers, rewrite
from shardkit.images.losses import NAMES as LOSSES
from shardkit.images.restarting import counted, without_restarts
from shardkit.images.sniff import IMAGE_FIELDS
from shardkit.packing.options import PackOptions
from shardkit.packing.pack import parse_fields, parse_options, refuse_choice
from shardkit.packing.pictures import two_pictures
from shardkit.packing.plan import draw, take
from shardkit.samples.encoding import parse_npy
from shardkit.samples.sample import Value
from shardkit.system.paths import as_path, show_path

NUM_PICTURES = 300
MIN_PICTURES = 16
"""Measured even if time is up."""

USUAL = (
    ImageChoice(resize=256),
    ImageChoice(resize=512),
    ImageChoice(max_side=512, image_format="webp"),
    ImageChoice(resize=256, crop=224, image_format="raw"),
    ImageChoice(restarts=True),
)

KEEP = ImageChoice()


@dataclass(frozen=True)
class Estimate:
    """What one choice comes to.

    Attributes:
        choice: in the words of the command line.
        sample_bytes: a sample, on average. total_bytes: all of them. Without index and padding.
        decodes_per_s: pictures decoded to RGB a second, on one thread, as they would be stored.
        made_per_s: pictures written as they would be stored a second, on one thread; None where
            nothing is done to them.
        psnr_db: of what is stored to the same pixels before compression; None where none is lost.
        added_s: what it adds to packing, by all workers.
        lost: what is lost of how many of the pictures that were measured, as
            :mod:`shardkit.images.losses` calls it.
        restarts: what became of how many that were to have restart markers, and their bytes before
            and after, as :mod:`shardkit.images.restarting` calls it.
    """

    choice: str
    sample_bytes: float
    total_bytes: int
    decodes_per_s: float
    made_per_s: float | None
    psnr_db: float | None
    added_s: float
    lost: dict[str, int]
    restarts: dict[str, int]


@dataclass(frozen=True)
class Estimates:
    """One estimate a choice.

    Attributes:
        num_samples: in the whole input. num_measured: those looked at.
        num_bad: of those drawn, the ones that do not decode. workers: processes that would pack.
    """

    num_samples: int
    num_measured: int
    num_bad: int
    workers: int
    choices: list[Estimate]


def estimate(
    source: str | Path,
    *,
    to: str | None = None,
    corpus: str | None = None,
    labels: str | Path | None = None,
    text_field: str | None = None,
    fields: str | Sequence[str] | None = None,
    shard_size: str | int | None = None,
    usual: bool = True,
    max_s: float = 20.0,
    **options: Any,
) -> Estimates:
    """Measure, on pictures drawn by ``seed``, what it takes to keep them, and what was chosen.

    Args:
        source, to, corpus, labels, text_field, fields, shard_size, options: as of
            :func:`shardkit.pack`; the source is a path.
        usual: measure some usual choices, too.
        max_s: end after about so many seconds.

    Raises:
        UsageError: the call is wrong, or the source has no pictures.
        SampleError: none of those drawn decodes.
    """
    made = parse_options(to, shard_size, options)
    require_encoder(made.images)
    require_writers(made.images)
    opened = open_corpus(
        as_path(source, "the source"), corpus, labels, text_field, parse_fields(fields)
    )
    if not opened.has_pictures:
        refuse_choice(made.images, f"{show_path(source)} is taken for {opened.kind}")
        raise UsageError(f"{show_path(source)} is taken for {opened.kind}: no pictures to estimate")
    wanted = [KEEP, made.images, *(filter(can_write, USUAL) if usual else [])]
    choices = [*dict.fromkeys(wanted)]
    with TemporaryDirectory(prefix="shardkit-") as scratch:
        drawn, num_samples = draw_entries(opened, made, Path(scratch))
        pictures = _pictures(opened, drawn, Path(scratch))
        counts = [Counter[str]() for _ in choices]
        measured, bad = _measure(pictures, choices, time.perf_counter() + max_s, counts)
    if not measured:
        raise SampleError(
            f"none of {len(drawn)} samples drawn from {show_path(source)} has a picture that can be"
            f" measured; {bad[0] if bad else 'choose the kind of input with --corpus'}"
        )
    numbers = np.array(measured).mean(axis=0)
    workers = max(made.num_workers, 1)
    return Estimates(
        num_samples,
        len(measured),
        len(bad),
        made.num_workers,
        [
            _estimate(choice, Cost(*own), num_samples, workers, became)
            for choice, own, became in zip(choices, numbers.tolist(), counts, strict=True)
        ],
    )


def draw_entries(corpus: Corpus, options: PackOptions, scratch: Path) -> tuple[list[Run], int]:
    """Runs of one entry each, drawn from all that would be packed, and how many that are.

    Those whose keys draw the lowest numbers: nothing but keys and ``seed`` decides, and the whole
    corpus is listed once, but never held.
    """
    held: list[tuple[int, int, Run]] = []
    num_entries, most = 0, 2**64
    for _, runs in groupby(corpus.runs(scratch), key=lambda run: run.split):
        for run in take(runs, options.limit):
            digests = np.fromiter(map(xxhash.xxh3_64_intdigest, run.keys), np.uint64, len(run))
            draws = draw(digests, options.seed, "estimate")
            lowest = np.argsort(draws, kind="stable")[:NUM_PICTURES].tolist()
            held += [
                (int(draws[i]), num_entries + i, run.slice(i, i + 1))
                for i in lowest
                if int(draws[i]) < most
            ]
            num_entries += len(run)
            if len(held) > 4 * NUM_PICTURES:
                held = sorted(held, key=lambda entry: entry[:2])[:NUM_PICTURES]
                most = held[-1][0]
    drawn = sorted(held, key=lambda entry: entry[:2])[:NUM_PICTURES]
    return [run for _, _, run in drawn], num_entries


class Cost(NamedTuple):
    """What one choice took of one sample, or on average."""

    num_bytes: float
    rewrite_s: float
    decode_s: float
    square: float
    """Mean square of what compression changes, in levels of 0 to 255."""


Picture = tuple[str, str, Value, int] | str
"""(key, kind, bytes, bytes of the sample's other fields), or why there is none."""


def _measure(
    pictures: Iterator[Picture],
    choices: Sequence[ImageChoice],
    until: float,
    counts: Sequence[Counter[str]],
) -> tuple[list[list[Cost]], list[str]]:
    """For each picture what each choice took, and why others are bad; ``counts``, one a choice,
    say what became of them."""
    measured: list[list[Cost]] = []
    bad: list[str] = []
    for picture in pictures:
        if isinstance(picture, str):
            bad.append(picture)
            continue
        key, kind, value, other_bytes = picture
        try:
            if not measured:  # libraries are loaded before the clock runs
                for choice in choices:
                    measure(choice, kind, value, other_bytes)
            kept = measure(KEEP, kind, value, other_bytes)
            own = [Counter[str]() for _ in choices]
            measured.append(
                [
                    measure(one, kind, value, other_bytes, kept, became)
                    for one, became in zip(choices, own, strict=True)
                ]
            )
            for total, became in zip(counts, own, strict=True):
                total.update(became)
        except SampleError as error:
            bad.append(f"{key}: {error}")
        if len(measured) >= MIN_PICTURES and time.perf_counter() > until:
            break
    return measured, bad


def _pictures(corpus: Corpus, drawn: Sequence[Run], scratch: Path) -> Iterator[Picture]:
    for run in drawn:
        batch = corpus.read(run, scratch)
        for path, reason in batch.rejects:
            yield f"{path}: {reason}"
        for i in range(len(batch)):
            fields = batch.fields(i)
            held = sorted(fields.keys() & IMAGE_FIELDS)
            key = show_path(batch.keys[i])
            if len(held) > 1:
                yield f"{key}: {two_pictures(held)}"
            elif held:
                value = fields.pop(held[0])
                yield key, held[0], value, sum(map(len, fields.values()))


def measure(
    choice: ImageChoice,
    kind: str,
    value: Value,
    other_bytes: int,
    kept: Cost | None = None,
    counts: Counter[str] | None = None,
) -> Cost:
    """Do to a picture what was chosen, and decode it. Raises SampleError if it does not decode.

    ``kept``: what it took as it is. If nothing is done to it, it is not decoded again: the same
    bytes would seem to differ by chance. ``counts`` counts what becomes of it.
    """
    started = time.perf_counter()
    made, stored = rewrite(value, kind, choice, counts) if choice else (kind, value)
    written = time.perf_counter()
    if kept is not None and stored is value:
        return kept._replace(rewrite_s=written - started)
    pixels = parse_npy(stored).copy() if made == "npy" else decode(stored)
    ended = time.perf_counter()
    square = 0.0
    if made in ("jpg", "webp") and not _is_of(stored, value, choice):
        uncompressed = replace(choice, image_format="raw", quality=None, restarts=False)
        exact = parse_npy(rewrite(value, kind, uncompressed)[1])
        square = float(((pixels.astype(np.float32) - exact) ** 2).mean())
    return Cost(len(stored) + other_bytes, written - started, ended - written, square)


def _is_of(stored: Value, value: Value, choice: ImageChoice) -> bool:
    """Whether nothing was done to a picture, but perhaps what can be undone."""
    return stored is value or (choice.restarts and without_restarts(stored) == value)


def _estimate(
    choice: ImageChoice, mean: Cost, num_samples: int, workers: int, counts: Counter[str]
) -> Estimate:
    return Estimate(
        choice=str(choice),
        sample_bytes=mean.num_bytes,
        total_bytes=round(mean.num_bytes * num_samples),
        decodes_per_s=1 / max(mean.decode_s, 1e-9),
        made_per_s=1 / max(mean.rewrite_s, 1e-9) if choice else None,
        psnr_db=10 * math.log10(255**2 / mean.square) if mean.square else None,
        added_s=mean.rewrite_s * num_samples / workers if choice else 0.0,
        lost={name: number for name, number in counts.items() if name in LOSSES},
        restarts=counted(counts),
    )
