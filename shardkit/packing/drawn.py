"""Samples drawn from all that would be packed, to be measured."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace
from itertools import groupby
from pathlib import Path

import numpy as np
import xxhash

from shardkit.images.sniff import IMAGE_FIELDS
from shardkit.inputs.base import Corpus, Run
from shardkit.packing.options import PackOptions
from shardkit.packing.plan import draw, take
from shardkit.samples.sample import SampleBatch
from shardkit.system.paths import show_path

NUM_SAMPLES = 300

Drawn = tuple[str, SampleBatch] | str
"""(key, a batch of this sample alone), or why there is none."""


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
            lowest = np.argsort(draws, kind="stable")[:NUM_SAMPLES].tolist()
            held += [
                (int(draws[i]), num_entries + i, run.slice(i, i + 1))
                for i in lowest
                if int(draws[i]) < most
            ]
            num_entries += len(run)
            if len(held) > 4 * NUM_SAMPLES:
                held = sorted(held, key=lambda entry: entry[:2])[:NUM_SAMPLES]
                most = held[-1][0]
    drawn = sorted(held, key=lambda entry: entry[:2])[:NUM_SAMPLES]
    return [run for _, _, run in drawn], num_entries


def read_samples(corpus: Corpus, drawn: Sequence[Run], scratch: Path) -> Iterator[Drawn]:
    """Those with pictures of the runs that were drawn, one by one, and what is bad of them."""
    for run in drawn:
        batch = corpus.read(run, scratch)
        for path, reason in batch.rejects:
            yield f"{path}: {reason}"
        for i in range(len(batch)):
            if not IMAGE_FIELDS.isdisjoint(batch.fields(i)):
                yield show_path(batch.keys[i]), replace(batch.take([i]), rejects=[])
