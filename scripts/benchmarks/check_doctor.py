"""Fourteen training scripts, each sick in one way: what the doctor says, and what a cure brings.

    check_doctor.py [--runs 10] [--busy] [--only NAME ...] [--json FILE]
    check_doctor.py --record FOLDER [--only NAME ...]

Each script of ``tests/sick`` is diagnosed ``--runs`` times, then run as it is and as advised, by
turns: what that brought is set beside what the doctor predicted. Most scripts can cure themselves
(``--cure``); of the one that decodes pictures, these are packed; and the one that has too few
workers gets as many as the doctor says, by ``--apply``. ``--busy`` keeps one core busy with
something else meanwhile; then no gains are measured. ``--record`` writes the evidence of one run of
each that was diagnosed, from which ``tests/test_doctor_sick.py`` has the verdict without running
anything.
"""

from __future__ import annotations

import argparse
import json
import multiprocessing
import os
import re
import subprocess
import sys
import tempfile
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from statistics import median
from typing import Any

import shardkit

SICK = Path(__file__).parents[2] / "tests" / "sick"

EXPECTED = {
    "slow_disk": {"storage"},
    "big_jpegs": {"decoding"},
    "heavy_transform": {"transform"},
    "tokenize_on_the_fly": {"tokenizing"},
    "too_few_workers": {"too few workers"},
    "restart_workers": {"epoch starts"},
    "iterator_each_step": {"iterator per step"},
    "huge_collate": {"collating"},
    "item_each_step": {"synchronising"},
    "tiny_kernels": {"launching"},
    "log_each_step": {"logging"},
    "checkpoint_often": {"checkpointing"},
    "straggler": {"straggler"},
    "healthy": {"nothing to gain"},
}
"""What each is sick of."""

BESIDE_OTHERS = {"too few cores"}
"""What a healthy script may lack beside a busy process."""

MORE = {"straggler": ["--ranks", "4"]}
"""As on two machines of two: one report, of all."""

PAIRS = 3
"""Times that a script is run as it is and cured."""

STEPS = 24

APPLIED = "too_few_workers"
"""The script whose cure is a number that depends on the machine."""

PICTURES, SIDE, COPIES = "big_jpegs", 96, 8
"""The script whose pictures are to be packed; the size it makes them; how often each is packed."""


def diagnose(name: str, data: Path, *options: str, applies: bool = False) -> dict[str, Any]:
    """The doctor's report on a script with some options, as JSON."""
    with tempfile.TemporaryDirectory() as folder:
        report = Path(folder) / "report.json"
        program = "from shardkit.cli import main; main()"
        ours = ["--steps", str(STEPS), "--json", str(report), *(["--apply"] if applies else [])]
        command = [sys.executable, str(SICK / f"{name}.py"), "--data", str(data), *options]
        done = subprocess.run(
            [sys.executable, "-c", program, "doctor", *ours, "--", *command],
            capture_output=True,
            text=True,
            cwd=folder,
        )
        if not report.exists():
            raise SystemExit(f"{name}: {done.stderr}")
        left = {path.name for path in Path(folder).iterdir()} - {report.name}
        if left:
            raise SystemExit(f"{name}: left in its folder: {left}")
        return dict(json.loads(report.read_text()))


def record(name: str, data: Path, folder: Path) -> None:
    """Write the evidence of one run, in few bytes: three digits a figure, no step of its own."""
    report = diagnose(name, data, *MORE.get(name, []))
    seen = rounded(report["evidence"])
    for rank in seen["ranks"]:
        rank["timeline"] = []
    seen["command"][0], seen["folder"] = "python", "/home/me"
    words = json.dumps(seen).replace(str(data), "/data").replace(str(SICK), "/home/me")
    if report["diagnosis"]["cause"] in EXPECTED[name]:
        (folder / f"{name}.json").write_text(f"{words}\n")
    print(
        f"{name:20} {report['diagnosis']['cause']}: {report['diagnosis']['sentence']}", flush=True
    )


def rounded(value: Any) -> Any:
    """The same with three digits a figure."""
    if isinstance(value, dict):
        return {key: rounded(one) for key, one in value.items()}
    if isinstance(value, list):
        return [rounded(one) for one in value]
    return float(f"{value:.3g}") if isinstance(value, float) else value


def samples_per_s(name: str, data: Path, is_cured: bool = False) -> float:
    """What a script says of itself, over its last half."""
    command = [sys.executable, str(SICK / f"{name}.py"), "--data", str(data)]
    if is_cured and name == PICTURES:
        script = Path(__file__).with_name("on_packed.py")
        command[1:1] = [str(script), str(packed(data)), str(SIDE)]
    elif is_cured:
        command.append("--cure")
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    return float(re.findall(r"([\d.]+) samples/s", done.stdout)[-1])


def measured_gain(name: str, data: Path) -> float:
    """The rate of a script that is cured, as a factor of the sick one's."""
    if name == APPLIED:
        return float(diagnose(name, data, applies=True)["applied"]["factor"])
    return samples_per_s(name, data, is_cured=True) / samples_per_s(name, data)


def packed(data: Path) -> Path:
    """The photographs as the doctor has them packed, each several times: the script draws from them
    as if there were many."""
    dest = data / "photos-lmdb"
    if not dest.exists():
        many = data / "photos-many"
        many.mkdir()
        for path in (data / "photos").iterdir():
            for number in range(COPIES):
                os.link(path, many / f"{path.stem}_{number}{path.suffix}")
        shardkit.pack(many, dest, to="lmdb", progress=False)
    return dest


def make_data(folder: Path) -> Path:
    """What the scripts train on, made once."""
    data = folder / "data"
    subprocess.run([sys.executable, str(SICK / "make_data.py"), str(data)], check=True)
    return data


@contextmanager
def busy(is_so: bool) -> Iterator[None]:
    """Another process wants a core meanwhile."""
    if not is_so:
        yield
        return
    other = multiprocessing.Process(target=_spin, daemon=True)
    other.start()
    try:
        yield
    finally:
        other.terminate()
        other.join()


def _spin() -> None:
    while True:
        sum(range(100_000))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--runs", type=int, default=10)
    parser.add_argument("--busy", action="store_true", help="beside a process that spins")
    parser.add_argument("--only", nargs="+", choices=list(EXPECTED), default=list(EXPECTED))
    parser.add_argument("--json", type=Path)
    parser.add_argument("--record", type=Path, metavar="FOLDER")
    parser.add_argument("--data", type=Path, help="made earlier by tests/sick/make_data.py")
    args = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder, busy(args.busy):
        data = args.data or make_data(Path(folder))
        if args.record:
            for name in args.only:
                record(name, data, args.record)
            return
        rows = [row(name, data, args.runs, not args.busy) for name in args.only]
    if args.json:
        args.json.write_text(json.dumps(rows, indent=1))
    if not all(one["right"] >= (0.9 if args.busy else 1.0) * args.runs for one in rows):
        raise SystemExit("not all verdicts were right")


def row(name: str, data: Path, runs: int, measures: bool) -> dict[str, Any]:
    """One script: how often the verdict was right, and what its cure brought."""
    reports = [diagnose(name, data) for _ in range(runs)]
    causes = Counter(report["diagnosis"]["cause"] for report in reports)
    expected = EXPECTED[name] | (BESIDE_OTHERS if name == "healthy" and not measures else set())
    right = sum(causes[cause] for cause in expected)
    gains = [r["diagnosis"]["gain"]["factor"] for r in reports if r["diagnosis"]["gain"]]
    found: dict[str, Any] = {"name": name, "right": right, "causes": dict(causes)}
    found["predicted"] = median(gains) if gains else None
    if measures and name != "healthy":
        found["measured"] = median(measured_gain(name, data) for _ in range(PAIRS))
    says = ", ".join(f"{cause} {num}" for cause, num in causes.most_common())
    gain = "" if not gains else f"predicted {median(gains):.2f} ({min(gains):.2f}-{max(gains):.2f})"
    cured = f", cured {found['measured']:.2f} times as fast" if "measured" in found else ""
    print(f"{name:20} {right:2}/{runs}  {says:32} {gain}{cured}", flush=True)
    for report in reports:
        if report["diagnosis"]["cause"] not in expected:
            print(f"  {report['diagnosis']['sentence']}", flush=True)
    return found


if __name__ == "__main__":
    main()
