"""A work that all peers do: each prepares, shows that it returns the same, and is timed in turn."""

from __future__ import annotations

import hashlib
import shutil
from collections import Counter
from collections.abc import Mapping
from contextlib import ExitStack
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

from peer_process import PeerError, PeerProcess
from plain_folder import PlainFolder, read_file

from shardkit.measure.timing import Case, Result, Work, interleave
from shardkit.system.page_cache import Cache, cache_state, evict, resident_fraction

PROGRAMS = Path(__file__).parent / "peers"

FAR = 12
"""Levels of 255 that the mean of all crops may differ by: crops are random, colours are not."""


@dataclass(frozen=True)
class Race:
    """What all peers are given, and how they are timed."""

    folder: Path
    workdir: Path
    rounds: int
    is_cold: bool
    timeout_s: float


@dataclass(frozen=True)
class Ready:
    """A peer that answered as it should: loaded, idle, its files read once."""

    process: PeerProcess
    versions: dict[str, str]
    files: list[Path]
    num_samples: int

    def warm_epochs(self, num_epochs: int) -> Work:
        return self._read(cache_state(resident_fraction(self.files)), num_epochs)

    def cold_epoch(self) -> Work:
        """Loaded anew: pages that a loader has mapped could not be dropped."""
        self.process.ask("load")
        return self._read(cache_state(evict(self.files)))

    def _read(self, cache: Cache, num_epochs: int = 1) -> Work:
        seconds = 0.0
        for _ in range(num_epochs):
            answer = self.process.ask("epoch")
            seconds += answer["seconds"]
            if answer["samples"] != self.num_samples:
                why = f"an epoch had {answer['samples']} samples of {self.num_samples}"
                raise PeerError(self.process.name, why)
        return Work(num_epochs * self.num_samples, seconds=seconds, cache=cache)


@dataclass(frozen=True)
class Raced:
    """The versions and times of those that could, and why the others could not."""

    versions: dict[str, dict[str, str]]
    failed: dict[str, str]
    result: Result | None


EPOCHS = {"crop": 1, "raw": 5, "tiny": 1, "small": 10, "small-threads": 10}
"""Epochs a round, where warm: one of raw files lasts a tenth of a second."""


SIDES = {"crop": 224, "tiny": 32}
"""Of the pictures that a work returns (pixels)."""


def race(race: Race, work: str, pythons: Mapping[str, Path]) -> Raced:
    """All peers at one work, as of :data:`EPOCHS`; what they wrote is removed again."""
    failed, ready = dict[str, str](), dict[str, Ready]()
    expected = expect(race.folder, SIDES.get(work, 0))
    with ExitStack() as stack:
        stack.callback(shutil.rmtree, race.workdir / "stores", ignore_errors=True)
        for name, python in pythons.items():
            print(f"{work}: {name} ...", flush=True)
            try:
                ready[name] = get_ready(race, stack, name, python, work, expected)
            except PeerError as why:
                failed[name] = str(why)
        result = time_all(race, ready, failed, EPOCHS[work])
    return Raced({name: peer.versions for name, peer in ready.items()}, failed, result)


def get_ready(
    race: Race, stack: ExitStack, name: str, python: Path, work: str, expected: dict[str, Any]
) -> Ready:
    """Start a peer, let it write its own format, and check what it returns."""
    store, log = race.workdir / "stores" / name, race.workdir / "logs" / f"{name}-{work}.log"
    store.mkdir(parents=True)
    log.parent.mkdir(exist_ok=True)
    log.unlink(missing_ok=True)
    command = [python, PROGRAMS / f"{name}_peer.py", race.folder, store, work]
    process = PeerProcess(name, command, log, race.timeout_s)
    stack.callback(process.stop)
    process.ask("prepare")
    versions = process.ask("load")
    refuse_wrong(name, process.ask("check"), expected)
    files = regular_files(store) or regular_files(race.folder)
    return Ready(process, versions, files, sum(expected["labels"].values()))


def regular_files(folder: Path) -> list[Path]:
    return [path for path in folder.rglob("*") if path.is_file()]


def time_all(
    race: Race, ready: Mapping[str, Ready], failed: dict[str, str], num_epochs: int
) -> Result | None:
    """If one fails on the way, the others start again without it."""
    while names := [name for name in ready if name not in failed]:
        print(f"timing {', '.join(names)} ...", flush=True)
        cases: dict[str, Case] = {}
        for name in names:
            peer = ready[name]
            cases[name] = peer.cold_epoch if race.is_cold else partial(peer.warm_epochs, num_epochs)
        try:
            return interleave(cases, race.rounds)
        except PeerError as why:
            failed[why.name] = str(why)
    return None


# --- the same data ------------------------------------------------------------------------


def expect(folder: Path, side: int) -> dict[str, Any]:
    """What every peer must return: labels, and a hash over all files or the shape of pictures."""
    files = PlainFolder.of(folder)
    hashes = sorted(hashlib.sha1(read_file(path)).hexdigest() for path in files.paths)
    return {
        "labels": {str(label): num for label, num in Counter(files.labels).items()},
        "files": hashlib.sha1(" ".join(hashes).encode()).hexdigest(),
        "shapes": [f"uint8 ({side}, {side}, 3)"],
    }


def refuse_wrong(name: str, answer: Mapping[str, Any], expected: dict[str, Any]) -> None:
    """What it answers must be expected. The first peer's mean of pixels is expected of the next."""
    for what in ("labels", "files", "shapes"):
        if what in answer and answer[what] != expected[what]:
            raise PeerError(name, f"returned {what} {answer[what]}, expected {expected[what]}")
    if "mean" in answer:
        mean = expected.setdefault("mean", answer["mean"])
        if abs(answer["mean"] - mean) > FAR:
            why = f"its pixels are {answer['mean']:.0f} of 255 on average, others' {mean:.0f}"
            raise PeerError(name, why)
