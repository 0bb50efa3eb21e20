"""The two folders of pictures that `make bench` packs and reads: many small files, fewer large."""

from __future__ import annotations

import json
import os
import shutil
import sys
import tempfile
from collections.abc import Callable
from dataclasses import asdict, dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

from plain_folder import PlainFolder, read_file

from shardkit.packing.pack import pack
from shardkit.reading.dataset import Dataset
from shardkit.system.page_cache import Cache, cache_state, resident_fraction

sys.path.append(str(Path(__file__).parents[1] / "tools"))
from make_pictures import Pictures

FORMATS = ("lmdb", "hdf5", "npy", "webdataset")


@dataclass(frozen=True)
class Scale:
    """How much to do. ``num_large`` files repeat the large pictures."""

    small: Pictures
    large: Pictures
    num_large: int
    small_shard: str
    large_shard: str


FULL = Scale(
    small=Pictures(count=60_000, size=32),
    large=Pictures(count=300, size=560, quality=95, grain=80),
    num_large=3000,
    small_shard="4MB",
    large_shard="32MB",
)
QUICK = Scale(
    small=Pictures(count=200, size=32),
    large=Pictures(count=20, size=96),
    num_large=40,
    small_shard="64KB",
    large_shard="64KB",
)


class Corpus:
    """A folder of pictures, and the places it is packed into."""

    def __init__(self, folder: Path, scratch: Path, shard_size: str) -> None:
        self.folder = folder
        self.scratch = scratch
        self.shard_size = shard_size
        scratch.mkdir(parents=True, exist_ok=True)

    @cached_property
    def files(self) -> PlainFolder:
        return PlainFolder.of(self.folder)

    @cached_property
    def num_bytes(self) -> int:
        return sum(os.path.getsize(path) for path in self.files.paths)

    def warm(self) -> Cache:
        """Read every file once; what the page cache then holds."""
        for path in self.files.paths:
            read_file(path)
        return cache_state(resident_fraction(self.files.paths))

    def fresh(self, name: str) -> Path:
        """A path in the scratch folder where nothing is, with nothing left to be written.

        What an earlier case left in the cache must not go to the disk on the next one's time.
        """
        path = self.scratch / name
        if path.is_dir():
            shutil.rmtree(path)
        path.unlink(missing_ok=True)
        os.sync()
        return path

    def pack(self, to: str, workers: int) -> float:
        """Pack anew; the seconds that the command itself reports."""
        return self._pack(self.fresh(f"{to}-{workers}"), to, workers)

    def packed(self, to: str) -> Path:
        """The dataset of one format, packed now if it is not there."""
        dest = self.scratch / f"{to}-1"
        if not dest.exists():
            self._pack(dest, to, workers=0)
        return dest

    def _pack(self, dest: Path, to: str, workers: int) -> float:
        size = self.shard_size
        made = pack(self.folder, dest, to=to, workers=workers, shard_size=size, progress=False)
        return made.seconds

    def check_same(self) -> None:
        """All four formats return what is in the folder."""
        for to in FORMATS:
            self.files.check_same(to, Dataset(self.packed(to)))


def small_corpus(workdir: Path, scale: Scale) -> Corpus:
    """Files of about 1 KB, all different."""
    folder = workdir / "small"
    make_once(folder, asdict(scale.small), lambda: scale.small.write(folder))
    return Corpus(folder, workdir / "packed" / "small", scale.small_shard)


def large_corpus(workdir: Path, scale: Scale, jpegs: Path | None) -> Corpus:
    """Files of about 110 KB: pictures of ours, or the user's JPEGs, repeated to ``num_large``."""
    folder = workdir / "large"
    recipe = {"jpegs": str(jpegs.resolve())} if jpegs else asdict(scale.large)

    def write() -> None:
        if jpegs:
            repeat_files(jpegs, folder, scale.num_large)
            return
        with tempfile.TemporaryDirectory(dir=workdir) as made:
            scale.large.write(Path(made))
            repeat_files(Path(made), folder, scale.num_large)

    make_once(folder, recipe | {"num_large": scale.num_large}, write)
    return Corpus(folder, workdir / "packed" / "large", scale.large_shard)


def repeat_files(source: Path, folder: Path, count: int, classes: int = 10) -> None:
    """Copy the JPEGs anywhere under ``source``, again and again, until there are ``count``."""
    paths = sorted(path for path in source.rglob("*") if path.is_file() and is_jpeg(path))
    if not paths:
        raise SystemExit(f"{source} holds no JPEG file")
    for number in range(count):
        target = folder / f"class{number * classes // count:02d}" / f"picture{number:06d}.jpg"
        target.parent.mkdir(parents=True, exist_ok=True)
        shutil.copyfile(paths[number % len(paths)], target)


def is_jpeg(path: Path) -> bool:
    """By content: of 300 files of ImageNet named .JPEG, one may be a PNG."""
    with open(path, "rb") as file:
        return file.read(3) == b"\xff\xd8\xff"


def make_once(folder: Path, recipe: dict[str, Any], write: Callable[[], object]) -> None:
    """Fill the folder, unless an earlier run did so by the same recipe."""
    marker = folder.with_suffix(".json")
    if marker.exists() and json.loads(marker.read_text()) == recipe:
        return
    if folder.exists():
        if not marker.exists():
            raise SystemExit(f"{folder} is not from an earlier run; move it, or name a --workdir")
        marker.unlink()
        shutil.rmtree(folder)
    folder.parent.mkdir(parents=True, exist_ok=True)
    print(f"making {folder} ...", flush=True)
    write()
    marker.write_text(json.dumps(recipe))
