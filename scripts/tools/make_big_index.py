"""Make up a dataset whose index has many millions of rows, to see that opening stays instant.

    python scripts/tools/make_big_index.py DEST --rows 100000000
    python scripts/tools/make_big_index.py DEST --rows 100000000 --sparse

All shards are links to one small .npy file, and row i of each points at the same 1 KB value. The
whole index is written (9 GB for 100 million rows); with --sparse only every 4,096th row is, and the
file system keeps holes for the others.
"""

from __future__ import annotations

import argparse
import os
from pathlib import Path

import numpy as np
import xxhash

from shardkit.index.manifest import DatasetInfo, ShardInfo, SplitInfo, dump_info
from shardkit.index.provenance import Provenance
from shardkit.index.rows import row_columns, row_sums, rows_header
from shardkit.samples.encoding import Encoding, npy_header

ROWS_A_SHARD = 250_000
FINGERPRINT = "0" * 32
VALUE_BYTES = 1024
CHUNK = 1 << 20
SPARSE_STEP = 4096
FIELDS = ["cls", "jpg"]


def make_rows(first: int, count: int) -> np.ndarray[tuple[int, int], np.dtype[np.int64]]:
    """Rows [first, first + count): (count, columns) int64."""
    columns = row_columns(FIELDS)
    number = np.arange(first, first + count, dtype=np.int64)
    rows = np.zeros((count, len(columns)), np.int64)
    rows[:, columns.index("key")] = number
    rows[:, columns.index("cls.start")] = len(npy_header("<i8", (VALUE_BYTES,)))
    rows[:, columns.index("cls.size")] = 8
    rows[:, columns.index("jpg.start")] = len(npy_header("|u1", (VALUE_BYTES,)))
    rows[:, columns.index("jpg.size")] = VALUE_BYTES
    rows[:, columns.index("cls")] = number % 1000
    rows[:, columns.index("name.xxh3")] = np.uint64(xxhash.xxh3_64_intdigest(b"")).astype(np.int64)
    rows[:, -1] = row_sums(rows, number, FINGERPRINT).view(np.int64)
    return rows


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("dest", type=Path)
    parser.add_argument("--rows", type=int, default=100_000_000)
    parser.add_argument("--sparse", action="store_true")
    args = parser.parse_args()
    args.dest.mkdir(parents=True)
    header = rows_header(FIELDS, args.rows)
    width = 8 * len(row_columns(FIELDS))
    with (args.dest / "train.rows").open("wb") as file:
        file.write(header)
        file.truncate(len(header) + args.rows * width)
        step = SPARSE_STEP if args.sparse else CHUNK
        count = 1 if args.sparse else CHUNK
        for first in range(0, args.rows, step):
            file.seek(len(header) + first * width)
            file.write(make_rows(first, min(count, args.rows - first)).tobytes())
    shards = link_shards(args.dest, args.rows)
    sizes = {"rows": len(header) + args.rows * width, "names": 0, "find": 0, "sums": 0}
    for kind in ("names", "find", "sums"):
        (args.dest / f"train.{kind}").touch()
    files = {f"train.{kind}": (size, xxhash.xxh3_64_intdigest(b"")) for kind, size in sizes.items()}
    layout = {"cls": Encoding("int"), "jpg": Encoding()}
    info = DatasetInfo("npy", FIELDS, None, Provenance({"kind": "images"}))
    info.splits["train"] = SplitInfo("train", args.rows, FINGERPRINT, [layout], shards, files)
    (args.dest / "shardkit.json").write_bytes(dump_info(info))


def link_shards(dest: Path, num_rows: int) -> list[ShardInfo]:
    """One file a field, and links to it for every shard."""
    values = np.arange(VALUE_BYTES, dtype=np.uint8)
    np.save(dest / "train-00000.jpg.npy", values)
    np.save(dest / "train-00000.cls.npy", np.arange(VALUE_BYTES, dtype=np.int64))
    shards = []
    for number in range(-(-num_rows // ROWS_A_SHARD)):
        sizes = {}
        for field in FIELDS:
            name = f"train-{number:05d}.{field}.npy"
            if number:
                (dest / name).symlink_to(f"train-00000.{field}.npy")
            sizes[name] = os.stat(dest / name).st_size
        rows = min(ROWS_A_SHARD, num_rows - number * ROWS_A_SHARD)
        shards.append(ShardInfo(rows, 0, sizes))
    return shards


if __name__ == "__main__":
    main()
