"""What a dataset of so many samples comes to, on paper: files, requests, memory, time and money.

    PYTHONPATH=. python scripts/tools/sizing.py

Bytes of the index are measured: datasets of two sizes are packed, and what a sample, and a shard,
adds to each file is what they differ by. The rest is arithmetic with the package's own constants,
and with prices and speeds that options change. Prints tables in Markdown.
"""

from __future__ import annotations

import argparse
import tempfile
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

import shardkit
from shardkit.index.file_names import INDEX_NAME
from shardkit.index.manifest import MAX_INDEX_BYTES
from shardkit.packing.options import PackOptions
from shardkit.packing.plan import SHARD_ENTRIES
from shardkit.remote.lookahead import GROUP_BLOCKS
from shardkit.system.file_io import BLOCK_BYTES

_MOST = PackOptions.shard_bytes
MOST_BYTES = _MOST if isinstance(_MOST, int) else _MOST[1]
"""Of a shard, once there are many; the first ones are smaller."""

SIZES = {"1 kB": 1_000, "110 kB": 110_000}
COUNTS = (10**6, 10**9, 10**12)

BYTES_A_BLOCK = 8 + 4 + 8 + 4 + 1 + 16
"""Of the cache server: checksum, stamp, and of Evictor and NextUses: touched, held, there; next
and last use."""


@dataclass(frozen=True)
class Measured:
    """What the index takes: of each sample, its rows and names; of each shard, in shardkit.json; of
    each block of shards, in the checksums."""

    row_bytes: float
    shard_bytes: float
    fixed_bytes: float


@dataclass(frozen=True)
class Prices:
    """Dollars for 1,000 requests that read, and that write, and for a GB a month."""

    read: float
    write: float
    month: float


@dataclass(frozen=True)
class Paper:
    """A dataset on paper."""

    num_samples: int
    sample_bytes: int
    measured: Measured

    @property
    def num_bytes(self) -> int:
        return self.num_samples * self.sample_bytes

    @property
    def num_shards(self) -> int:
        return max(-(-self.num_bytes // MOST_BYTES), -(-self.num_samples // SHARD_ENTRIES))

    @property
    def num_blocks(self) -> int:
        return self.num_bytes // BLOCK_BYTES + self.num_shards

    @property
    def manifest_bytes(self) -> float:
        """Of shardkit.json, which is read as a whole."""
        return self.measured.fixed_bytes + self.num_shards * self.measured.shard_bytes

    @property
    def index_bytes(self) -> float:
        """Of all files of the index."""
        rows = self.num_samples * self.measured.row_bytes
        return self.manifest_bytes + rows + 8 * self.num_blocks

    @property
    def server_bytes(self) -> int:
        return self.num_blocks * BYTES_A_BLOCK

    @property
    def epoch_requests(self) -> int:
        """Of an epoch in block order, or in full order with room for all."""
        return self.num_blocks // GROUP_BLOCKS + self.num_shards


def packed(folder: Path, num_samples: int, shard_size: int) -> dict[str, int]:
    """Name of each file of a dataset of labelled samples -> its bytes."""
    source = folder / "source"
    for number in range(num_samples):
        path = source / f"{number % 10}" / f"{number:012}.jpg"
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(b"\xff\xd8\xff" + bytes(97))
    dest = folder / "ds"
    options: dict[str, Any] = {"workers": 0, "progress": False, "shard_size": shard_size}
    shardkit.pack(source, dest, to="webdataset", **options)
    return {path.name: path.stat().st_size for path in dest.iterdir()}


def measure(within: Path, small: int = 1_000, large: int = 3_000) -> Measured:
    """By the difference of two datasets, and of few and many shards."""
    few = packed(within / "few", small, 10**9)
    more = packed(within / "more", large, 10**9)
    cut = packed(within / "cut", large, 10_000)
    rows = sum(more[f"train.{end}"] - few[f"train.{end}"] for end in ("rows", "names"))
    shards = [sum(name.endswith(".tar") for name in found) for found in (more, cut)]
    shard_bytes = (cut[INDEX_NAME] - more[INDEX_NAME]) / (shards[1] - shards[0])
    return Measured(rows / (large - small), shard_bytes, more[INDEX_NAME] - shard_bytes)


def amount(num: float) -> str:
    """``1536000`` -> ``"1.5 M"``."""
    for unit in ("", " k", " M", " G", " T", " P"):
        if num < 1000:
            return f"{num:.3g}{unit}"
        num /= 1000
    return f"{num:.3g} E"


def row(paper: Paper, name: str, prices: Prices, bytes_per_s: float) -> list[str]:
    puts = paper.num_bytes // (8 << 20) + paper.num_shards
    return [
        f"10^{len(str(paper.num_samples)) - 1}",
        name,
        amount(paper.num_bytes) + "B",
        amount(paper.num_shards),
        amount(paper.manifest_bytes) + "B",
        amount(paper.index_bytes) + "B",
        amount(paper.server_bytes) + "B",
        amount(puts),
        amount(paper.epoch_requests),
        amount(paper.num_bytes / bytes_per_s / 3600) + " h",
        f"${amount(puts / 1000 * prices.write)}",
        f"${amount(paper.epoch_requests / 1000 * prices.read)}",
        f"${amount(paper.num_bytes / 1e9 * prices.month)}",
    ]


HEADS = [
    "samples", "each", "in all", "shards", "shardkit.json", "index", "cache server's memory",
    "requests to upload", "an epoch's", "an epoch's time", "to upload", "an epoch", "a month",
]  # fmt: skip


def limit_samples(sample_bytes: int, measured: Measured) -> int:
    """At how many samples shardkit.json is too large to be opened."""
    shards = (MAX_INDEX_BYTES - measured.fixed_bytes) / measured.shard_bytes
    return int(shards * min(MOST_BYTES / sample_bytes, SHARD_ENTRIES))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--read", type=float, default=0.0004, help="dollars, 1,000 requests")
    parser.add_argument("--write", type=float, default=0.005, help="dollars, 1,000 requests")
    parser.add_argument("--month", type=float, default=0.023, help="dollars a GB")
    parser.add_argument("--rate", type=float, default=1.25e9, help="bytes a second of the network")
    given = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        measured = measure(Path(folder))
    print(
        f"measured: {measured.row_bytes:.1f} bytes of index a sample,"
        f" {measured.shard_bytes:.0f} a shard in shardkit.json\n"
    )
    prices = Prices(given.read, given.write, given.month)
    print("|", " | ".join(HEADS), "|")
    print("|", " | ".join("---" for _ in HEADS), "|")
    for count in COUNTS:
        for name, size in SIZES.items():
            cells = row(Paper(count, size, measured), name, prices, given.rate)
            print("|", " | ".join(cells), "|")
    print()
    for name, size in SIZES.items():
        most = np.format_float_scientific(limit_samples(size, measured), precision=1)
        print(f"shardkit.json reaches {MAX_INDEX_BYTES >> 20} MiB at {most} samples of {name}")


if __name__ == "__main__":
    main()
