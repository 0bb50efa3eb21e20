"""``estimate``: what choices for pictures cost and gain, measured on some; nothing is written."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import numpy as np

from shardkit.errors import SampleError, UsageError
from shardkit.images import decoders
from shardkit.images.choice import ImageChoice
from shardkit.images.encode import require_writers, why_not_written
from shardkit.images.losses import NAMES as LOSSES
from shardkit.images.restarting import counted
from shardkit.inputs.open import open_corpus
from shardkit.packing.drawn import draw_entries, read_samples
from shardkit.packing.pack import parse_fields, parse_options, refuse_choice
from shardkit.packing.picture_cost import Cost, Costs, measure_all
from shardkit.system.paths import as_path, show_path

USUAL = (
    ImageChoice(resize=256),
    ImageChoice(resize=512),
    ImageChoice(max_side=512, image_format="webp"),
    ImageChoice(resize=256, crop=224, image_format="raw"),
    ImageChoice(restarts=True),
)


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
        left_out: usual choices that were not measured, and why: something is not installed, or a
            sample is refused that the caller's choice takes.
    """

    num_samples: int
    num_measured: int
    num_bad: int
    workers: int
    choices: list[Estimate]
    left_out: dict[str, str]


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
    """Measure, on samples drawn by ``seed``, what it takes to keep them, and what was chosen.

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
    require_writers(made.images)
    decoders.best()  # what is not there is said now, not at the first picture
    opened = open_corpus(
        as_path(source, "the source"), corpus, labels, text_field, parse_fields(fields)
    )
    if not opened.has_pictures:
        refuse_choice(made.images, f"{show_path(source)} is taken for {opened.kind}")
        raise UsageError(f"{show_path(source)} is taken for {opened.kind}: no pictures to estimate")
    left_out = {one: why for one in USUAL if usual and (why := why_not_written(one))}
    others = [one for one in USUAL if usual and one not in left_out]
    with TemporaryDirectory(prefix="shardkit-") as scratch:
        drawn, num_samples = draw_entries(opened, made, Path(scratch))
        samples = read_samples(opened, drawn, Path(scratch))
        found = measure_all(samples, made.images, others, max_s)
    if not len(found):
        raise SampleError(
            f"none of {len(drawn)} samples drawn from {show_path(source)} has a picture that can be"
            f" measured; {found.bad[0] if found.bad else 'choose the kind of input with --corpus'}"
        )
    return Estimates(
        num_samples,
        len(found),
        len(found.bad),
        made.num_workers,
        [_estimate(one, found, num_samples, max(made.num_workers, 1)) for one in found.costs],
        {str(one): why for one, why in (left_out | found.left_out).items()},
    )


def _estimate(choice: ImageChoice, found: Costs, num_samples: int, workers: int) -> Estimate:
    mean, counts = Cost(*np.mean(found.costs[choice], axis=0).tolist()), found.counts[choice]
    return Estimate(
        choice=str(choice),
        sample_bytes=mean.num_bytes,
        total_bytes=round(mean.num_bytes * num_samples),
        decodes_per_s=mean.num_pictures / max(mean.decode_s, 1e-9),
        made_per_s=mean.num_pictures / max(mean.rewrite_s, 1e-9) if choice else None,
        psnr_db=10 * math.log10(255**2 / mean.square) if mean.square else None,
        added_s=mean.rewrite_s * num_samples / workers if choice else 0.0,
        lost={name: number for name, number in counts.items() if name in LOSSES},
        restarts=counted(counts),
    )
