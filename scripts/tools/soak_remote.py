"""Read small epochs by URL from a server that fails as told, and compare each with the local ones.

    PYTHONPATH=. python scripts/tools/soak_remote.py --epochs 1000 --rate 0.1 --within /var/tmp

Prints a line each tenth of the way: requests, bytes, faults, and threads, files and memory of the
keeper and of this process, which serves, too. At last every block in the cache is compared with its
checksum. Exit code 1 where a batch or a block was wrong.
"""

from __future__ import annotations

import argparse
import os
import re
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parents[2] / "tests"))

import numpy as np
import xxhash
from keepers import keepers  # type: ignore[import-not-found]
from range_server import RangeServer, serving  # type: ignore[import-not-found]
from remote_sets import make_set, open_set, plain  # type: ignore[import-not-found]

from shardkit import Loader
from shardkit.errors import StorageError
from shardkit.index.manifest import read_info
from shardkit.remote import connection
from shardkit.remote.cached_split import BlockMap
from shardkit.system.file_io import BLOCK_BYTES


def usage(pid: int) -> str:
    status = Path(f"/proc/{pid}/status").read_text()
    words = dict(re.findall(r"^(Threads|VmRSS):\s+(\d+)", status, re.MULTILINE))
    files = len(os.listdir(f"/proc/{pid}/fd"))
    return f"{words['Threads']} threads {files} files {int(words['VmRSS']) / 1024:.0f} MB"


def wrong_blocks(folder: Path) -> tuple[int, int]:
    """(blocks that readers may take, those of them that differ from their checksum)."""
    number = wrong = 0
    for split in read_info(folder).splits.values():
        blocks = BlockMap.of(split)
        sums = np.fromfile(folder / f"{split.name}.sums", "<u8")
        stamps = np.fromfile(folder / f"{split.name}.stamps", np.uint32)[: len(blocks)]
        for block in stamps.nonzero()[0].tolist():
            file, start, size = blocks.place(block)
            with (folder / blocks.names[file]).open("rb") as opened:
                data = os.pread(opened.fileno(), min(size, BLOCK_BYTES), start)
            number += 1
            wrong += xxhash.xxh3_64_intdigest(data) != int(sums[block])
    return number, wrong


class Soak:
    """One cache of half the dataset, and epochs read through it."""

    def __init__(self, within: Path, server: RangeServer, path: Path) -> None:
        self.cache = within / "cache"
        self._local = open_set(path, "arrays")
        url = f"{server.url}/{path.relative_to(server.root)}"
        half = sum(x.stat().st_size for x in path.iterdir()) // 2
        self._remote = open_set(url, "arrays", cache_dir=self.cache, cache_bytes=half)
        self.wrong = self.errors = 0

    def epoch(self, number: int) -> None:
        options: dict[str, Any] = {"seed": number, "shuffle": "full"}
        want = plain(Loader(self._local, 1, workers=0, **options))
        try:
            got = plain(Loader(self._remote, 1, workers=2, worker_type="thread", **options))
            self.wrong += got != want
        except StorageError as error:
            self.errors += 1
            print(f"epoch {number}: {error}", flush=True)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--epochs", type=int, default=1000)
    parser.add_argument("--rate", type=float, default=0.1)
    parser.add_argument("--kind", default="mixed")
    parser.add_argument("--long-delay", type=float, default=2.0, help="seconds")
    parser.add_argument("--within", type=Path, default=None)
    given = parser.parse_args()
    connection.LINGER_S = 1.0
    with tempfile.TemporaryDirectory(dir=given.within) as name, serving(Path(name)) as server:
        path = make_set(Path(name), "arrays", "webdataset", rows=40, size=60_000)
        soak = Soak(Path(name), server, path)
        server.faults.kind, server.faults.rate = given.kind, given.rate
        server.faults.delays = (0.05, given.long_delay)
        requests, num_bytes, began = 0, 0, time.monotonic()
        for number in range(given.epochs):
            soak.epoch(number)
            requests += len(server.requests)
            num_bytes += server.num_bytes
            server.requests.clear()
            if (number + 1) % max(given.epochs // 10, 1) == 0:
                (keeper,) = keepers(soak.cache)
                print(
                    f"{number + 1} epochs {time.monotonic() - began:.0f} s: {requests} requests"
                    f" {num_bytes >> 20} MB {server.failed} faults, {soak.wrong} wrong epochs,"
                    f" {soak.errors} errors; keeper {usage(keeper)}; reader {usage(os.getpid())}",
                    flush=True,
                )
        (folder,) = (x for x in soak.cache.iterdir() if x.is_dir())
        blocks, wrong = wrong_blocks(folder)
        print(f"{blocks} blocks in the cache, {wrong} of them wrong")
    return int(bool(soak.wrong or wrong))


if __name__ == "__main__":
    sys.exit(main())
