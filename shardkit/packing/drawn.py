"""Pictures drawn from all that would be packed, to be measured."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import groupby
from pathlib import Path

import numpy as np
import xxhash

from shardkit.corpus.base import Corpus, Run
from shardkit.images.sniff import IMAGE_FIELDS
from shardkit.packing.options import PackOptions
from shardkit.packing.pictures import two_pictures
from shardkit.packing.plan import draw, take
from shardkit.samples.sample import Value
from shardkit.system.paths import show_path

NUM_PICTURES = 300

Picture = tuple[str, str, Value, int] | str
"""(key, kind, bytes, bytes of the sample's other fields), or why there is none."""


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


def read_pictures(corpus: Corpus, drawn: Sequence[Run], scratch: Path) -> Iterator[Picture]:
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
