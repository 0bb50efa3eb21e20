"""What every peer of compare_peers.py does alike: answer the driver, a line of JSON a line.

A peer gives two functions:

    prepare(folder, store, work)    write the peer's own format from a folder of class folders
    load(folder, store, work)       -> a function; each call reads one shuffled epoch, and yields
                                    batches: (images or files, labels)

``work`` is ``"crop"`` (uint8 (B, 224, 224, 3)), ``"tiny"`` (uint8 (B, 32, 32, 3)), ``"raw"`` (B
files, bytes-like), or ``"small"`` or ``"small-threads"`` (B files of one size, as uint8 (B, size)).
Needs numpy.
"""

from __future__ import annotations

import gc
import hashlib
import json
import os
import signal
import sys
import time
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from contextlib import suppress
from importlib import metadata
from pathlib import Path
from typing import Any

import numpy as np

BATCH = 64
SMALL_BATCH = 512
WORKERS = 2
SIZE = 224
TINY = 32
PICTURES = ("crop", "tiny")
"""Works that return pixels."""

Epoch = Callable[[], Iterable[tuple[Any, Any]]]
Prepare = Callable[[Path, Path, str], None]
Load = Callable[[Path, Path, str], Epoch]


def serve(packages: Sequence[str], prepare: Prepare, load: Load) -> None:
    """The whole program; ends with the driver's end of the pipe. ``packages``: those to name."""
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(1))  # so that atexit cleans shared memory
    answers = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)  # what libraries print goes to the log
    folder, store, work = Path(sys.argv[1]), Path(sys.argv[2]), sys.argv[3]
    epoch: Epoch = tuple
    for line in sys.stdin:
        answer: dict[str, Any] = {}
        match json.loads(line):
            case "prepare":
                prepare(folder, store, work)
            case "load":
                epoch = tuple  # what was loaded before goes first: its workers, maps and buffers
                gc.collect()
                epoch = load(folder, store, work)
                answer = versions(packages)
            case "check":
                answer = seen(epoch(), work)
            case "epoch":
                answer = timed(epoch())
        print(json.dumps(answer), file=answers, flush=True)


def versions(packages: Sequence[str]) -> dict[str, str]:
    """Of those that are installed: Pillow may be either of two."""
    found = {}
    for name in packages:
        with suppress(metadata.PackageNotFoundError):
            found[name] = metadata.version(name)
    return found


def timed(batches: Iterable[tuple[Any, Any]]) -> dict[str, Any]:
    num, started = 0, time.perf_counter()
    for _, labels in batches:
        num += len(labels)
    return {"samples": num, "seconds": time.perf_counter() - started}


def seen(batches: Iterable[tuple[Any, Any]], work: str) -> dict[str, Any]:
    """What an epoch returned: its labels, and its files by hash or its pictures by shape."""
    labels = Counter[str]()
    files, shapes, sums = [], set(), []
    for images, numbers in batches:
        labels.update(str(int(number)) for number in numbers)
        if work not in PICTURES:
            files += [hashlib.sha1(file).hexdigest() for file in images]
            continue
        pixels = np.asarray(images)
        shapes.add(f"{pixels.dtype} {pixels.shape[1:]}")
        sums.append(pixels.sum(dtype=np.int64) / pixels[0].size)
    answer: dict[str, Any] = {"labels": dict(labels)}
    if work not in PICTURES:
        return answer | {"files": hashlib.sha1(" ".join(sorted(files)).encode()).hexdigest()}
    return answer | {"shapes": sorted(shapes), "mean": sum(sums) / labels.total()}


def files_of(folder: Path) -> list[tuple[str, int]]:
    """(path, label) of each file, classes in sorted order, as torchvision's ImageFolder has it."""
    classes = sorted(entry.name for entry in folder.iterdir())
    return [
        (str(path), label)
        for label, name in enumerate(classes)
        for path in sorted((folder / name).iterdir())
    ]


def read(path: str) -> bytes:
    with open(path, "rb") as file:
        return file.read()
