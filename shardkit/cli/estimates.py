"""``pack --estimate``: what choices for pictures cost and gain, measured on some of them."""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence
from heapq import nsmallest
from itertools import groupby
from pathlib import Path
from statistics import median
from tempfile import TemporaryDirectory
from typing import Any

import click
import numpy as np
import xxhash

from shardkit.cli.output import count, echo_json, echo_table
from shardkit.errors import SampleError, UsageError
from shardkit.images import decoders
from shardkit.images.choice import ImageChoice
from shardkit.images.decode import decode
from shardkit.images.encode import require_writers, why_not_written
from shardkit.images.naming import RAW_FIELD
from shardkit.images.sniff import IMAGE_FIELDS
from shardkit.inputs.corpus import Corpus, Run
from shardkit.inputs.detection import open_corpus
from shardkit.measure.timing import Work, interleave
from shardkit.packing.job import check_images, rewrite_images
from shardkit.packing.options import PackOptions, parse_fields, parse_options
from shardkit.packing.pack import refuse_choice
from shardkit.packing.plan import draw, take
from shardkit.samples.encoding import parse_npy
from shardkit.samples.sample import SampleBatch
from shardkit.system.byte_sizes import format_bytes
from shardkit.system.paths import as_path, show_path

NUM_SAMPLES = 300
ROUND_SAMPLES = 20
"""Samples that are measured at most, and in each round."""

MAX_S = 20.0
"""How long is measured, about."""

USUAL = (
    ImageChoice(),
    ImageChoice(resize=256),
    ImageChoice(resize=512),
    ImageChoice(max_side=512, image_format="webp"),
    ImageChoice(resize=256, crop=224, image_format="raw"),
    ImageChoice(restarts=True),
)

_OF_INPUT = ("corpus", "labels", "text_field", "fields")


def print_estimate(source: str, as_json: bool, options: dict[str, Any]) -> None:
    """Measure and print what it takes to keep pictures, what was chosen, and some usual choices.

    Raises:
        UsageError: the call is wrong, or the source has no pictures.
        SampleError: none of those drawn decodes.
    """
    kind, labels, text, fields = (options.pop(name) for name in _OF_INPUT)
    made = parse_options(options.pop("to"), options.pop("shard_size"), options)
    require_writers(made.images)
    decoders.best()  # what is not installed is said before anything is listed
    opened = open_corpus(as_path(source, "the source"), kind, labels, text, parse_fields(fields))
    if not opened.has_pictures:
        refuse_choice(made.images, f"{show_path(source)} is taken for {opened.kind}")
        raise UsageError(f"{show_path(source)} is taken for {opened.kind}: no pictures to estimate")
    with TemporaryDirectory(prefix="shardkit-") as scratch:
        drawn, num_samples = _draw(opened, made, Path(scratch))
        rounds, bad = _read(opened, drawn, Path(scratch))
    if not rounds:
        why = bad[0] if bad else "choose the kind of input with --corpus"
        raise SampleError(f"none of {len(drawn)} samples drawn has a picture to measure: {why}")
    choices = [one for one in dict.fromkeys((*USUAL, made.images)) if not why_not_written(one)]
    began = time.perf_counter()
    _measure(choices, rounds[:1])  # libraries are loaded before the clock runs
    rounds = rounds[: max(int(MAX_S / (time.perf_counter() - began)), 1)]
    rows, refused = _measure(choices, rounds)
    if as_json:
        echo_json(rows)
        return
    workers = max(made.num_workers, 1)
    click.echo(
        f"measured on {sum(map(len, rounds)):,} of {count(num_samples, 'sample')}, {len(bad):,} bad"
        f" ones apart; decoded/s and made/s by one thread, to make by {count(workers, 'worker')}"
    )
    head = ("choice", "a sample", "in all", "decoded/s", "made/s", "to make")
    echo_table([head, *(_cells(row, num_samples, workers) for row in rows)])
    for choice, why in refused.items():
        click.echo(f"  no estimate of {choice}: {why}")


def _draw(corpus: Corpus, options: PackOptions, scratch: Path) -> tuple[list[Run], int]:
    """Return runs of one entry each, drawn by keys and ``seed``, and how many entries there are."""
    num_entries = 0

    def entries() -> Iterator[tuple[int, int, int, Run]]:
        nonlocal num_entries
        for _, runs in groupby(corpus.runs(scratch), key=lambda run: run.split):
            for run in take(runs, options.limit):
                digests = np.fromiter(map(xxhash.xxh3_64_intdigest, run.keys), np.uint64, len(run))
                for i, number in enumerate(draw(digests, options.seed, "estimate").tolist()):
                    yield number, num_entries + i, i, run
                num_entries += len(run)

    drawn = nsmallest(NUM_SAMPLES, entries(), key=lambda entry: entry[:2])
    return [run.slice(i, i + 1) for _, _, i, run in drawn], num_entries


def _read(
    corpus: Corpus, drawn: Sequence[Run], scratch: Path
) -> tuple[list[SampleBatch], list[str]]:
    """Return the samples with pictures that decode, in batches of a round, and what is bad."""
    samples = SampleBatch()
    for run in drawn:
        samples.extend(check_images(corpus.read(run, scratch)))
    bad = [f"{path}: {reason}" for path, reason in samples.rejects]
    samples.rejects = []
    rows = [i for i in range(len(samples)) if not IMAGE_FIELDS.isdisjoint(samples.fields(i))]
    starts = range(0, len(rows), ROUND_SAMPLES)
    return [samples.take(rows[start : start + ROUND_SAMPLES]) for start in starts], bad


class _Case:
    """What one choice makes of samples, as two cases of a bench: to make them, and to decode."""

    def __init__(self, choice: ImageChoice, rounds: Sequence[SampleBatch]) -> None:
        self.choice = choice
        self.num_samples = self.num_bytes = 0
        self.rejects: list[tuple[str, str]] = []
        self._rounds = iter(rounds)
        self._made = SampleBatch()

    def make(self) -> Work:
        """Rewrite the samples of a round."""
        given = next(self._rounds)
        began = time.perf_counter()
        made = rewrite_images(given, self.choice) if self.choice else given
        seconds = time.perf_counter() - began
        self._made = made
        self.rejects += made.rejects
        self.num_samples += len(made)
        self.num_bytes += sum(len(v) for i in range(len(made)) for v in made.fields(i).values())
        return Work(samples=len(given), seconds=seconds)

    def decode(self) -> Work:
        """Decode what was made of a round."""
        names = {RAW_FIELD} if self.choice.is_raw else IMAGE_FIELDS
        columns = [self._made.columns[name] for name in names & self._made.columns.keys()]
        for value in (value for column in columns for value in column if value is not None):
            parse_npy(value).copy() if self.choice.is_raw else decode(value)
        return Work(samples=max(len(self._made), 1))


def _measure(
    choices: Sequence[ImageChoice], rounds: Sequence[SampleBatch]
) -> tuple[list[dict[str, Any]], dict[str, str]]:
    """Return a row for each choice that takes all samples, and why others do not."""
    cases = [_Case(choice, rounds) for choice in choices]
    calls = {f"{c.choice}, {f.__name__}": f for c in cases for f in (c.make, c.decode)}
    result = interleave(calls, rounds=len(rounds), warmup=0)
    refused = {str(case.choice): case.rejects[0][1] for case in cases if case.rejects}
    rows = []
    for case in (case for case in cases if not case.rejects):
        made, decoded = (result[f"{case.choice}, {name}"] for name in ("make", "decode"))
        row = {"choice": str(case.choice), "sample_bytes": case.num_bytes / case.num_samples}
        row["decodes_per_s"] = median(decoded.rates("samples"))
        row["made_per_s"] = median(made.rates("samples")) if case.choice else None
        rows.append(row)
    return rows, refused


def _cells(row: dict[str, Any], num_samples: int, workers: int) -> tuple[str, ...]:
    num_bytes, made = row["sample_bytes"], row["made_per_s"]
    minutes = f"{num_samples / made / workers / 60:,.1f} min" if made else "-"
    sizes = format_bytes(num_bytes), format_bytes(num_bytes * num_samples)
    speeds = f"{row['decodes_per_s']:,.0f}", f"{made:,.0f}" if made else "-"
    return (row["choice"], *sizes, *speeds, minutes)
