"""The same work through what people use otherwise, by the side of shardkit: each at the settings
that its documentation recommends, in an environment of its own that is made here and kept.

    python scripts/benchmarks/compare_peers.py --jpegs my-pictures
    python scripts/benchmarks/compare_peers.py --jpegs my-pictures --only shardkit dali --cold

Works are shuffled epochs in batches of 64 with 2 workers at most: ``crop`` (decode, random-resized
crop to 224, uint8) and ``raw`` (files and labels). Some are for shardkit and FFCV alone, in batches
of 512: ``tiny`` (decode 32x32), and samples of 1 KB as one buffer a batch: ``small``, where
shardkit has no worker, and ``small-threads``, where it has two threads, as FFCV has in all. FFCV
writes pictures anew: ``shardkit_q90`` crops from pictures that were written as FFCV writes them.
Peers live on between their epochs, which run in turn. Before anything is timed, each is shown to
return every label, and every file or crop. Cold epochs begin with starting workers, and FFCV's with
compiling (0.3 to 1 s), as a first does.

The environments take 1 to 2 GB each, if torch comes without CUDA: where pip does not do so by
itself, set PIP_EXTRA_INDEX_URL=https://download.pytorch.org/whl/cpu
"""

from __future__ import annotations

import argparse
import json
import shutil
import signal
import sys
from collections.abc import Mapping
from dataclasses import asdict, dataclass, replace
from functools import partial
from pathlib import Path
from statistics import median
from typing import Any

import numpy as np
from bench_corpora import FULL, large_corpus, make_once
from peer_process import PeerError, make_environment
from peer_timing import Race, Raced, race

from shardkit.measure.machine import describe, machine

REFERENCE = "shardkit"
WORKS = {
    "crop": "decode + random-resized crop to 224, uint8",
    "raw": "JPEG files and labels",
    "tiny": "decode JPEGs of 32x32 at quality 90, uint8, batches of 512",
    "small": "samples of 1 KB as one buffer, batches of 512; shardkit without workers",
    "small-threads": "samples of 1 KB as one buffer, batches of 512; shardkit with 2 threads",
}
SMALL_BYTES = 1024
TINY = replace(FULL.small, quality=90)


@dataclass(frozen=True)
class Peer:
    """How a library is used, in words, its pinned packages (none: it runs in this Python), and what
    it takes part in."""

    settings: str
    packages: tuple[str, ...] = ()
    works: tuple[str, ...] = ("crop", "raw")


TORCH = ("torch==2.13.0", "numpy==2.1.3", "pillow==13.0.0")
PEERS = {
    "shardkit": Peer(
        "LMDB, Loader, full shuffle, 2 threads, for raw files 1; `as_buffer`", works=tuple(WORKS)
    ),
    "shardkit_restarts": Peer("the same, packed with --restarts", works=("crop",)),
    "shardkit_q90": Peer(
        "the same, packed with --max-side 500 --image-format jpeg --quality 90", works=("crop",)
    ),
    "dataloader": Peer("plain folder, Pillow, torch's DataLoader, 2 processes", TORCH),
    "webdataset": Peer(
        "20 tars, buffer of 1,000, Pillow, WebLoader, 2 processes", ("webdataset==1.0.2", *TORCH)
    ),
    "litdata": Peer(
        "chunks of 64 MB, Pillow, StreamingDataLoader, 2 processes", ("litdata==0.2.76", *TORCH)
    ),
    "mosaicml": Peer(
        "local MDS shards of 64 MB, Pillow, torch's DataLoader, 2 processes",
        ("mosaicml-streaming==0.13.0", *TORCH),
    ),
    "huggingface": Peer(
        "Arrow, with_transform, Pillow, torch's DataLoader, 2 processes",
        ("datasets==5.2.0", *TORCH),
    ),
    "dali": Peer(
        "plain folder, readers.file, decoders.image_random_crop, CPU, 2 threads",
        ("nvidia-dali-cuda130==2.4.0", "numpy==2.1.3"),
    ),
    "ffcv": Peer(
        "JPEGs written anew (500 pixels at most, quality 90), 2 threads",
        ("ffcv==1.0.2", *TORCH),
        tuple(WORKS),
    ),
}


def main() -> None:
    args = parse_arguments()
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))
    args.workdir.mkdir(parents=True, exist_ok=True)
    shutil.rmtree(args.workdir / "stores", ignore_errors=True)
    corpus = large_corpus(args.workdir, replace(FULL, num_large=args.count), args.jpegs)
    here = machine()
    report: dict[str, Any] = {
        "machine": asdict(here),
        "files": args.count,
        "small_files": args.small,
        "rounds": args.rounds,
        "is_cold": args.cold,
        "works": {},
    }
    print(describe(here), flush=True)
    pythons, failed = find_pythons(args)
    settings = Race(corpus.folder.resolve(), args.workdir, args.rounds, args.cold, args.timeout)
    folders = {
        "tiny": partial(tiny_files, args.workdir / "tiny", args.small),
        "small": partial(small_files, args.workdir / "bytes", args.small),
    }
    for work, title in WORKS.items():
        made = folders.get(work.partition("-")[0])
        folder = made().resolve() if made else settings.folder
        names = [name for name in args.only if work in PEERS[name].works]
        able = {name: pythons[name] for name in names if name in pythons}
        rows = rows_of(names, race(replace(settings, folder=folder), work, able), failed)
        print(f"\n{work}: {title}\n\n{table(rows)}\n", flush=True)
        report["works"][work] = rows
    print(f"{args.count} files, {args.small} small ones, {args.rounds} rounds in turn; rates are")
    print("medians, ratios within a round. How each was used:\n")
    for name in args.only:
        print(f"- {name}: {PEERS[name].settings}{with_versions(name, report)}")
    if args.json:
        args.json.write_text(json.dumps(report, indent=1))


def tiny_files(folder: Path, count: int) -> Path:
    """JPEGs of 32x32, all different."""
    pictures = replace(TINY, count=count)
    make_once(folder, asdict(pictures), lambda: pictures.write(folder))
    return folder


def small_files(folder: Path, count: int) -> Path:
    """Random files of 1 KB in ten classes; those of an earlier run, if they were as many."""

    def write() -> None:
        random = np.random.default_rng(0)
        for label in range(10):
            (folder / f"class{label}").mkdir(parents=True)
        for number in range(count):
            path = folder / f"class{number % 10}" / f"{number:07d}.bin"
            path.write_bytes(random.bytes(SMALL_BYTES))

    make_once(folder, {"count": count}, write)
    return folder


def find_pythons(args: argparse.Namespace) -> tuple[dict[str, Path], dict[str, str]]:
    """The Python of each peer; and of those that cannot be installed, why."""
    pythons, failed = dict[str, Path](), dict[str, str]()
    for name in args.only:
        packages = () if args.here else PEERS[name].packages
        try:
            folder = args.workdir.resolve() / "environments" / name
            pythons[name] = (
                make_environment(name, folder, packages) if packages else Path(sys.executable)
            )
        except PeerError as why:
            failed[name] = str(why)
    return pythons, failed


def rows_of(
    names: list[str], raced: Raced, not_installed: Mapping[str, str]
) -> list[dict[str, Any]]:
    failed = {**not_installed, **raced.failed}
    rows = []
    for name in names:
        row: dict[str, Any] = {"peer": name, "settings": PEERS[name].settings}
        if raced.result is None or name in failed:
            rows.append(row | {"why_not": failed[name]})
            continue
        timed = raced.result[name]
        rates = timed.rates("samples")
        has_reference = REFERENCE in raced.result.measurements
        rows.append(
            row
            | {
                "versions": raced.versions[name],
                "cache": timed.cache,
                "samples_per_s": {"median": median(rates), "low": min(rates), "high": max(rates)},
                "ratio": raced.result.ratio(name, REFERENCE) if has_reference else None,
                "why_not": None,
            }
        )
    return rows


def with_versions(name: str, report: Mapping[str, Any]) -> str:
    """Of all that it uses, if it ran."""
    rows = [row for rows in report["works"].values() for row in rows if row["peer"] == name]
    found: Mapping[str, str] = next((row["versions"] for row in rows if "versions" in row), {})
    return "".join(f"; {package} {version}" for package, version in found.items())


def table(rows: list[dict[str, Any]]) -> str:
    """As Markdown, which reads well in a terminal, too."""
    head = ("peer", "version", "samples/s", "low to high", "of shardkit", "page cache")
    lines = [head, ("---", "---", "---:", "---:", "---:", "---"), *map(cells, rows)]
    widths = [max(len(line[i]) for line in lines) for i in range(len(head) - 1)]
    return "\n".join(
        f"| {' | '.join(map(str.ljust, line, widths))} | {line[-1]} |" for line in lines
    )


def cells(row: Mapping[str, Any]) -> tuple[str, ...]:
    if row["why_not"]:
        return (row["peer"], "-", "-", "-", "-", row["why_not"].replace("|", "\\|"))
    rate, (version, *_) = row["samples_per_s"], row["versions"].values()
    return (
        row["peer"],
        version,
        f"{rate['median']:,.0f}",
        f"{rate['low']:,.0f} to {rate['high']:,.0f}",
        "-" if row["ratio"] is None else f"{row['ratio']:.2f}",
        row["cache"],
    )


def parse_arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n\n")[0])
    add = parser.add_argument
    add("--jpegs", type=Path, help="a folder of JPEGs, copied up to --count (else made here)")
    names = f"({', '.join(PEERS)})"
    add("--only", nargs="+", choices=PEERS, metavar="PEER", default=[*PEERS], help=names)
    add("--count", type=int, default=FULL.num_large, help="files of an epoch (%(default)s)")
    add("--small", type=int, default=102_400, help="small ones, in whole batches (%(default)s)")
    add("--rounds", type=int, default=5, help="timed rounds, after an untimed one (%(default)s)")
    add("--cold", action="store_true", help="drop the page cache, and load anew, for each epoch")
    add("--here", action="store_true", help="run all peers in this Python; install nothing")
    add(
        "--timeout", type=float, default=600, help="seconds a peer may take to answer (%(default)g)"
    )
    add("--workdir", type=Path, default=Path("bench-peers"), help="(%(default)s)")
    add("--json", type=Path, help="write the rows to this file, too")
    return parser.parse_args()


if __name__ == "__main__":
    try:
        main()
    except KeyboardInterrupt:
        sys.exit(130)
