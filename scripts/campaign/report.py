"""What is printed: progress, each finding with what makes it again, a table at the end."""

from __future__ import annotations

import platform
import shutil
import sys
import time
from collections import Counter
from dataclasses import dataclass, field
from importlib import metadata
from pathlib import Path

from cases import Case
from runner import Done

import shardkit

PACKAGES = ("numpy", "torch", "lmdb", "h5py", "webdataset", "pyarrow", "tokenizers")
EVERY_S = 1.0


@dataclass
class Tally:
    """Of one kind."""

    cases: int = 0
    findings: int = 0
    seconds: float = 0.0
    counts: Counter[str] = field(default_factory=Counter)


class Report:
    """Counts outcomes and says them; keeps the files of those with findings under ``kept``."""

    def __init__(self, seed: int, kept: Path) -> None:
        self.seed, self.kept = seed, kept
        self.tallies: dict[str, Tally] = {}
        self.failed: list[Case] = []
        self._shown = 0.0
        self._is_terminal = sys.stdout.isatty()

    def add(self, done: Done, seconds: float, planned: str) -> None:
        """An outcome, ``seconds`` after its kind began."""
        tally = self.tallies.setdefault(done.case.kind, Tally())
        tally.cases += 1
        tally.seconds = seconds
        tally.counts.update(done.outcome.counts)
        if done.outcome.findings:
            tally.findings += 1
            self.failed.append(done.case)
            self._keep(done)
        now = time.monotonic()
        if now - self._shown > (EVERY_S if self._is_terminal else 10 * EVERY_S):
            self._shown = now
            line = f"{done.case.kind}: {tally.cases:,} of {planned}, {tally.findings} findings"
            line += f", {seconds:.0f} s"
            print(f"\r{line}   ", end="", flush=True) if self._is_terminal else print(line)

    def _keep(self, done: Done) -> None:
        folder = self.kept / done.case.file_name
        shutil.rmtree(folder, ignore_errors=True)
        self.kept.mkdir(parents=True, exist_ok=True)
        if done.work.exists():
            shutil.copytree(done.work, folder, symlinks=True)
            shutil.rmtree(done.work, ignore_errors=True)
        folder.mkdir(exist_ok=True)
        text = "\n".join(done.outcome.findings)
        (folder / "findings.txt").write_text(text + "\n", errors="backslashreplace")
        print(f"\nFINDING {done.case}: {text}".encode(errors="backslashreplace").decode())
        print(f"  again: {reproducer(done.case)}", f"  files: {folder}", sep="\n", flush=True)

    def table(self) -> str:
        """The summary."""
        lines = [f"{'kind':10}{'cases':>8}{'findings':>10}{'seconds':>9}  what happened"]
        for kind, tally in self.tallies.items():
            what = ", ".join(f"{n:,} {name}" for name, n in sorted(tally.counts.items()))
            row = f"{kind:10}{tally.cases:8,}{tally.findings:10,}{tally.seconds:9.0f}"
            lines.append(f"{row}  {what}")
        lines += [f"seed {self.seed}; {versions()}"]
        lines += [f"again: {reproducer(case)}" for case in self.failed]
        return "\n".join(lines)


def reproducer(case: Case) -> str:
    """The command that runs a case again."""
    return f"python scripts/campaign --reproduce {case}"


def versions() -> str:
    """Of everything that decides the outcome."""
    found = [f"shardkit {shardkit.__version__}", f"Python {platform.python_version()}"]
    for name in PACKAGES:
        try:
            found.append(f"{name} {metadata.version(name)}")
        except metadata.PackageNotFoundError:
            found.append(f"no {name}")
    return ", ".join(found)
