"""Pack by Ray while its workers, a node and the driver are killed, and compare with a local pack.

    python scripts/tools/prove_ray.py --within /var/tmp

A cluster of nodes of one CPU each is started on this machine. 60,000 pictures, and 300 MB of text
to tokens, are packed locally and by Ray, in turns, which gives what Ray costs here; then by Ray
while a worker is killed every two seconds in the middle of a job, then a raylet, and then the
driver, whose command is given again. All trees must be the same to the byte. Exit code 1 where one
is not.
"""

from __future__ import annotations

import argparse
import filecmp
import json
import os
import random
import resource
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime
from importlib.metadata import version
from pathlib import Path
from statistics import median
from typing import Any

sys.path.insert(0, str(Path(__file__).parents[2]))  # a clone that is not installed
sys.path.insert(0, str(Path(__file__).parents[2] / "tests"))

import numpy as np
from make_pictures import Pictures
from ray_nodes import Nodes  # type: ignore[import-not-found]

from shardkit.measure.machine import commit, describe, machine

KILL_EVERY_S = 2.0
DISTINCT = 500
DOCUMENT_BYTES = 2000
FILE_BYTES = 10_000_000


def main() -> None:
    args = parse_arguments()
    print(f"{datetime.now(UTC):%Y-%m-%d}, {describe(machine())}, ray {version('ray')}, {commit()}")
    with tempfile.TemporaryDirectory(prefix="prove-ray-", dir=args.within) as folder:
        root = Path(folder)
        make_pictures(root / "pictures", args.files)
        make_text(root / "text", args.text_bytes)
        tokenizer = train(root)
        corpora = {
            "pictures": ["--to", "webdataset"],
            "text": ["--tokenizer", str(tokenizer), "--text-field", "text"],
        }
        # By default Ray's workers give way to what else runs here, which a local pack's do not.
        os.environ["RAY_worker_niceness"] = "0"  # noqa: SIM112  Ray wants it so
        with Nodes(args.nodes) as nodes:
            proofs = [Proof(root, name, options, nodes, args) for name, options in corpora.items()]
            same = [proof.run() for proof in proofs]
    if not all(same):
        raise SystemExit("a tree differs")


def parse_arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--files", type=int, default=60_000, help="pictures (%(default)s)")
    parser.add_argument("--text-bytes", type=int, default=300_000_000, help="(%(default)s)")
    parser.add_argument("--nodes", type=int, default=2, help="of one CPU each (%(default)s)")
    parser.add_argument(
        "--rounds", type=int, default=3, help="local and Ray in turns (%(default)s)"
    )
    parser.add_argument("--within", help="folder to work in (the system's for temporary files)")
    return parser.parse_args()


@dataclass
class Run:
    """A command that packs.

    ``seconds``: what it says itself, without connecting to the cluster. ``cpu_s``: on a core, of
    all processes that had a part in it.
    """

    dest: Path
    wall: float = 0.0
    seconds: float = 0.0
    cpu_s: float = 0.0
    shards: int = 0
    resumed: int = 0
    what: list[str] = field(default_factory=list)


class Proof:
    """One corpus, packed in all ways."""

    def __init__(
        self, root: Path, name: str, options: list[str], nodes: Nodes, args: argparse.Namespace
    ) -> None:
        self._root = root
        self._name = name
        self._options = options
        self._nodes = nodes
        self._args = args
        self._ray = ["--engine", "ray", "--address", nodes.address]

    def run(self) -> bool:
        local, by_ray = [], []
        for number in range(self._args.rounds):
            local.append(self._pack(f"local{number}", "--workers", str(self._args.nodes)))
            by_ray.append(self._pack(f"ray{number}", *self._ray))
        self._tell(local, by_ray)
        faulty = self._under_fire(local[0].shards)
        print(f"  under fire: {faulty.wall:.1f} s; {', '.join(faulty.what)}", flush=True)
        others = [*by_ray, faulty]
        same = all(same_trees(local[0].dest, other.dest) for other in others)
        print(
            f"  {len(others)} trees: {'the same to the byte' if same else 'DIFFERENT'}", flush=True
        )
        return same

    def _tell(self, local: list[Run], by_ray: list[Run]) -> None:
        print(f"{self._name}, {len(local)} rounds:")
        for way, runs in {"local": local, "Ray": by_ray}.items():
            packing, wall = median(r.seconds for r in runs), median(r.wall for r in runs)
            used = median(r.cpu_s for r in runs)
            print(
                f"  {way}: packing {packing:.1f} s, the command {wall:.1f} s, on cores {used:.1f} s"
            )
        for what in ("seconds", "wall", "cpu_s"):
            pairs = zip(by_ray, local, strict=True)
            ratios = [getattr(ours, what) / getattr(theirs, what) for ours, theirs in pairs]
            spread = f"{min(ratios):.2f} to {max(ratios):.2f}"
            print(f"  Ray/local, {what}: {median(ratios):.2f} ({spread})", flush=True)

    def _command(self, dest: Path, *more: str) -> list[str]:
        source = str(self._root / self._name)
        words = ["pack", source, str(dest), *self._options, *more, "--json"]
        return [sys.executable, "-m", "shardkit", *words]

    def _pack(self, name: str, *more: str) -> Run:
        run = Run(self._root / f"{self._name}-{name}")
        started, used = time.perf_counter(), self._cpu_s()
        process = start(self._command(run.dest, *more))
        while process.poll() is None:  # what it prints fits into a pipe
            self._cpu_s()
            time.sleep(0.05)
        run.wall = time.perf_counter() - started
        finish(run, process)
        run.cpu_s = self._cpu_s() - used
        return run

    def _cpu_s(self) -> float:
        """Of the commands that have ended, with their workers, and of the cluster."""
        ended = resource.getrusage(resource.RUSAGE_CHILDREN)
        own: float = ended.ru_utime + ended.ru_stime + self._nodes.cpu_s()
        return own

    def _under_fire(self, num_shards: int) -> Run:
        """Everything dies once or more, and in the end the same command has been given twice."""
        self._nodes.add()
        run = Run(self._root / f"{self._name}-faulty")
        command = self._command(run.dest, *self._ray)
        started = time.perf_counter()
        with Fire(self._nodes) as fire:
            process = start(command)
            await_parts(process, run.dest, num_shards // 4)
            self._nodes.kill_raylet()
            await_parts(process, run.dest, num_shards // 2)
            process.kill()
            process.communicate()
            finish(run, start(command))
        run.wall = time.perf_counter() - started
        run.what = [f"{fire.kills} workers, a raylet and the driver killed"]
        run.what.append(f"the second driver found {run.resumed} of {run.shards} shards done")
        return run


class Fire:
    """Meanwhile a process that does a job is killed every so often."""

    def __init__(self, nodes: Nodes) -> None:
        self.kills = 0
        self._nodes = nodes
        self._ended = threading.Event()
        self._thread = threading.Thread(target=self._run)

    def _run(self) -> None:
        rng = random.Random(1)
        while not self._ended.wait(KILL_EVERY_S):
            # Between two jobs, and while Ray starts workers, none is busy.
            while not (killed := self._nodes.kill_worker(rng)) and not self._ended.wait(0.01):
                pass
            self.kills += killed

    def __enter__(self) -> Fire:
        self._thread.start()
        return self

    def __exit__(self, *error: object) -> None:
        self._ended.set()
        self._thread.join()


def start(command: Sequence[str]) -> subprocess.Popen[str]:
    path = os.pathsep.join(
        filter(None, [str(Path(__file__).parents[2]), os.environ.get("PYTHONPATH")])
    )
    env = {**os.environ, "PYTHONPATH": path}
    return subprocess.Popen(command, stdout=subprocess.PIPE, text=True, env=env)


def finish(run: Run, process: subprocess.Popen[str]) -> None:
    out, _ = process.communicate()
    if process.returncode:
        raise SystemExit(f"packing {run.dest.name} ended with exit code {process.returncode}")
    told: dict[str, Any] = json.loads(out)
    run.seconds, run.shards = told["seconds"], told["num_shards"]
    run.resumed = told["resumed_shards"]


def await_parts(process: subprocess.Popen[str], dest: Path, wanted: int) -> None:
    while len(list((dest / ".packing").glob("*.part"))) < wanted:
        if process.poll() is not None:
            raise SystemExit(f"packing {dest.name} ended before {wanted} shards were done")
        time.sleep(0.01)


def same_trees(one: Path, other: Path) -> bool:
    names = sorted(path.name for path in one.iterdir())
    if names != sorted(path.name for path in other.iterdir()):
        return False
    return filecmp.cmpfiles(one, other, names, shallow=False)[0] == names


# --- what is packed -----------------------------------------------------------------------


def make_pictures(root: Path, count: int) -> None:
    """Pictures of 64 pixels; what follows the end of a JPEG makes each file one of its own."""
    made = [data for _, data in Pictures(count=DISTINCT).files()]
    for number in range(count):
        folder = root / f"class{number % 20:02d}"
        if number < 20:
            folder.mkdir(parents=True)
        (folder / f"{number:06d}.jpg").write_bytes(made[number % DISTINCT] + b"%d" % number)


def make_text(root: Path, num_bytes: int) -> None:
    """Lines of JSON with made-up words, some of them far more frequent than others."""
    root.mkdir()
    random_words = np.random.default_rng(1)
    letters = random_words.integers(97, 123, (20_000, 9), np.uint8)
    sizes = random_words.integers(2, 10, len(letters)).tolist()
    words = [bytes(row[:size]).decode() for row, size in zip(letters, sizes, strict=True)]
    for number, start_byte in enumerate(range(0, num_bytes, FILE_BYTES)):
        left = min(FILE_BYTES, num_bytes - start_byte)
        with (root / f"{number:03d}.jsonl").open("w") as file:
            while left > 0:
                drawn = np.minimum(random_words.zipf(1.3, DOCUMENT_BYTES // 6), len(words)) - 1
                line = json.dumps({"text": " ".join(words[i] for i in drawn.tolist())}) + "\n"
                left -= file.write(line)


def train(root: Path) -> Path:
    """A tokenizer of the first file."""
    sample = root / "sample"
    sample.mkdir()
    (sample / "000.jsonl").write_bytes((root / "text" / "000.jsonl").read_bytes())
    dest = root / "sample-packed"
    words = ["pack", str(sample), str(dest), "--train-tokenizer", "8192", "--text-field", "text"]
    finish(Run(dest), start([sys.executable, "-m", "shardkit", *words, "--json"]))
    return dest / "tokenizer.json"


if __name__ == "__main__":
    main()
