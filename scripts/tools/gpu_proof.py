"""What `make gpu` runs: the tests that need a GPU, and what can only be measured on one.

    python scripts/tools/gpu_proof.py

It ends within 8 minutes, and needs no network and no root; of libraries it takes what is there.
Each figure is a process with a time limit of its own: one that fails, or lacks its library, is
named with the reason, and the others still run. The result is gpu.json and a page, gpu.md, in
docs/. Where torch sees no GPU, nothing is run, and the page stays as it is.

    python scripts/tools/gpu_proof.py --device cpu --quick --out rehearsal   # does it run?
"""

from __future__ import annotations

import argparse
import json
import os
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from importlib import metadata
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parents[2]))  # a clone that is not installed
import torch
from make_pictures import Pictures

from shardkit.measure.machine import commit, describe, machine
from shardkit.packing.pack import pack

HERE = Path(__file__).parent
ROOT = HERE.parents[1]

FIGURES = ("overlap", "wait", "bus", "prefetcher", "decode", "launches")
TOTAL_S = 470
TESTS_S = 150
FIGURE_S = 60
LIBRARIES = ("torchvision", "nvidia-dali-cuda130", "nvidia-dali-cuda120")


def main() -> None:
    args = parse_arguments()
    if args.device == "cuda" and not torch.cuda.is_available():
        raise SystemExit(
            f"torch {torch.__version__} sees no GPU: nothing was run, nothing is written"
        )
    clock = Clock(time.monotonic() + TOTAL_S)
    proof: dict[str, Any] = {"date": datetime.now(UTC).isoformat("T", "minutes")}
    proof |= {"device": device_facts(args.device), "machine": describe(machine())}
    proof["commit"] = commit()
    print(f"{proof['device']['name']}; {proof['machine']}\n", flush=True)
    proof["tests"] = run_tests(args.tests, clock)
    with tempfile.TemporaryDirectory(prefix="shardkit-gpu-") as folder:
        data = make_data(Path(folder), args.quick)
        proof["figures"] = {
            name: run_figure(name, data, args, clock) for name in args.only or FIGURES
        }
    args.out.mkdir(parents=True, exist_ok=True)
    (args.out / "gpu.json").write_text(json.dumps(proof, indent=1) + "\n")
    (args.out / "gpu.md").write_text(page(proof))
    print(f"\nWritten to {args.out}/gpu.json and {args.out}/gpu.md")
    failed = [] if proof["tests"]["passed"] else ["tests"]
    failed += [name for name, figure in proof["figures"].items() if "failed" in figure]
    if failed:
        raise SystemExit(f"failed: {', '.join(failed)}")


def parse_arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--device", choices=("cuda", "cpu"), default="cuda", help="(%(default)s)")
    parser.add_argument("--quick", action="store_true", help="tiny sizes: does it run?")
    parser.add_argument("--out", type=Path, help="folder for gpu.json and gpu.md (docs)")
    parser.add_argument("--only", nargs="+", choices=FIGURES, help="figures (all)")
    parser.add_argument("--figure-s", type=float, default=FIGURE_S, help="limit (%(default)s)")
    parser.add_argument("--tests", nargs="+", default=marked(), help="files with tests")
    args = parser.parse_args()
    if args.out is None:
        if args.device == "cpu" or args.quick or args.only:
            parser.error("the page in docs/ is for a whole run on a GPU: give another --out")
        args.out = ROOT / "docs"
    return args


def marked() -> list[str]:
    """The files of tests that may be marked gpu: the others need libraries that may be missing."""
    paths = sorted((ROOT / "tests").glob("test_*.py"))
    return [str(path) for path in paths if "mark.gpu" in path.read_text()]


@dataclass(frozen=True)
class Clock:
    """When all must be over."""

    ends: float

    def limit(self, seconds: float) -> float:
        """So long, or what is left."""
        return max(1.0, min(seconds, self.ends - time.monotonic()))


def device_facts(device: str) -> dict[str, Any]:
    facts: dict[str, Any] = {"name": "CPU (a rehearsal)", "torch": torch.__version__}
    for name in LIBRARIES:
        try:
            facts[name] = metadata.version(name)
        except metadata.PackageNotFoundError:
            pass
    if device == "cuda":
        seen = torch.cuda.get_device_properties(0)
        facts["name"] = seen.name
        facts["memory_bytes"] = seen.total_memory
        facts["capability"] = f"{seen.major}.{seen.minor}"
        facts["cuda"] = torch.version.cuda
    return facts


# --- parts --------------------------------------------------------------------------------


class TimeLimitError(Exception):
    """Raised for a process that was ended at its limit."""


def run(command: Sequence[object], limit_s: float) -> tuple[int, str]:
    """The exit status and all that was printed; the process and its children end with the call.

    Raises:
        TimeLimitError: the limit was reached.
    """
    path = os.pathsep.join(filter(None, [str(ROOT), os.environ.get("PYTHONPATH")]))
    with subprocess.Popen(
        [sys.executable, *map(str, command)],
        cwd=ROOT,
        env={**os.environ, "PYTHONPATH": path},
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        errors="replace",
        start_new_session=True,
    ) as process:
        try:
            out, _ = process.communicate(timeout=limit_s)
        except subprocess.TimeoutExpired:
            raise TimeLimitError(f"ended at its limit of {limit_s:.0f} s") from None
        finally:
            end_session(process)
    return process.returncode, out


def end_session(process: subprocess.Popen[str]) -> None:
    try:
        os.killpg(process.pid, signal.SIGKILL)
    except ProcessLookupError:  # all of it has ended
        pass


def run_tests(paths: Sequence[str], clock: Clock) -> dict[str, Any]:
    print("tests marked gpu", flush=True)
    command = ["-m", "pytest", "-m", "gpu", "-q", "-rfEs", "-p", "no:cacheprovider", *paths]
    try:
        status, out = run(command, clock.limit(TESTS_S))
    except TimeLimitError as late:
        status, out = 1, str(late)
    summary = out.rstrip().rpartition("\n")[2].strip("= ")
    print(out.rstrip(), flush=True)
    return {"passed": status == 0, "summary": summary}


def make_data(folder: Path, is_quick: bool) -> tuple[Path, Path]:
    """The same pictures packed as JPEG files and as pixels: some hundred, each several times."""
    num, times, size, crop = (24, 1, 64, 32) if is_quick else (512, 8, 400, 224)
    print(f"\n{num} pictures, {times} times", flush=True)
    pictures = folder / "pictures"
    Pictures(num, size=size, quality=90, grain=40).write(pictures)
    for path in list(pictures.rglob("*.jpg")):
        for number in range(1, times):
            os.link(path, path.with_stem(f"{path.stem}-{number}"))
    quiet: dict[str, Any] = {"to": "npy", "progress": False}
    pack(pictures, folder / "jpegs", **quiet)
    pack(pictures, folder / "raw", image_format="raw", crop=crop, **quiet)
    return folder / "jpegs", folder / "raw"


def run_figure(
    name: str, data: tuple[Path, Path], args: argparse.Namespace, clock: Clock
) -> dict[str, Any]:
    """What gpu_figures.py found, or ``{"failed": why}``."""
    print(f"\n{name}", flush=True)
    jpegs, raw = data
    out = jpegs.with_name(f"{name}.json")
    command: list[object] = [HERE / "gpu_figures.py", name, "--jpegs", jpegs, "--raw", raw]
    command += ["--out", out, "--device", args.device, *(["--quick"] * args.quick)]
    try:
        status, said = run(command, clock.limit(args.figure_s))
    except TimeLimitError as late:
        status, said = 1, str(late)
    if status:
        print(said.rstrip(), flush=True)
        return {"failed": said.rstrip().rpartition("\n")[2]}
    figure: dict[str, Any] = json.loads(out.read_text())
    print("\n".join(section(name, figure)[1:]), flush=True)
    return figure


# --- the page -----------------------------------------------------------------------------


def page(proof: dict[str, Any]) -> str:
    """Markdown."""
    device = proof["device"]
    versions = ", ".join(f"{name} {device[name]}" for name in LIBRARIES if name in device)
    cuda = f", CUDA {device['cuda']}" if "cuda" in device else ""
    lines = [
        "# Figures of a GPU\n",
        "`make gpu` runs the tests that need a GPU and measures what only one can show. This page"
        " is what it wrote; [gpu.json](gpu.json) has every number.\n",
        f"- Ran: {proof['date']}",
        f"- GPU: {device['name']}{cuda}",
        f"- Machine: {proof['machine']}",
        f"- Commit: {proof['commit'] or 'unknown'}",
        f"- Other libraries: {versions or 'neither torchvision nor NVIDIA DALI'}",
        f"- Tests marked `gpu`: {proof['tests']['summary']}",
    ]
    for name, figure in proof["figures"].items():
        lines += ["", *section(name, figure)]
    return "\n".join(lines) + "\n"


def section(name: str, figure: dict[str, Any]) -> list[str]:
    if "failed" in figure:
        return [f"## {name}\n", f"Failed: {figure['failed']}"]
    lines = [f"## {name}\n", f"{figure['title']}.\n"]
    if figure["rows"]:
        lines += ["| | samples/s | MB/s | ratio | |", "|---|---:|---:|---:|---|"]
    for row in figure["rows"]:
        bytes_per_s = f"{row['bytes_per_s'] / 1e6:,.0f}" if row["bytes_per_s"] else ""
        ratio = "" if row["ratio"] is None else f"{row['ratio']:.2f}"
        rate = f"{row['samples_per_s']:,.0f}"
        lines.append(f"| {row['name']} | {rate} | {bytes_per_s} | {ratio} | {row['note']} |")
    lacking = [f"- {what} was not measured: {why}" for what, why in figure["lacking"].items()]
    return lines + ([""] if figure["rows"] and lacking else []) + lacking


if __name__ == "__main__":
    main()
