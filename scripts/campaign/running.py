"""A campaign: data made from the seed, then cases of each kind, and what came of them."""

from __future__ import annotations

import itertools
import tempfile
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import closing, contextmanager
from importlib import import_module
from pathlib import Path

import corpora
from cases import Case, Kind
from report import Report
from runner import Runner, in_a_process
from writes import more_data

WARM = (
    *("torch", "torch.utils.data", "lmdb", "h5py", "PIL.Image", "simplejpeg", "pyarrow.parquet"),
    *("tokenizers", "shardkit.cli", "shardkit.packing.pack", "shardkit.operations.exports"),
    *("shardkit.loading.loader", "shardkit.operations.verify", "shardkit.operations.unpack"),
    *("shardkit.batches.stream", "shardkit.operations.show", "shardkit.images.kernel"),
)
"""Imported before the first fork, so that no case pays for it."""


def campaign(
    kinds: Sequence[Kind],
    seed: int,
    counts: Mapping[str, int | None],
    minutes: float | None,
    workers: int,
    kept: Path,
) -> int:
    """Run cases of each kind; the exit status.

    Args:
        counts: kind -> cases, None for the default. minutes: run so long instead, each kind for
            its share. kept: where the files of findings go.
    """
    report = Report(seed, kept)
    with _data(seed) as folder:
        for kind in kinds:
            given = counts.get(kind.name)
            number = kind.default if given is None else given
            seconds = None if minutes is None else minutes * 60 / len(kinds)
            _run(kind, seed, number, seconds, Runner(kind, folder, workers), report)
    print(f"\n{report.table()}", flush=True)
    return 1 if report.failed else 0


def _run(
    kind: Kind, seed: int, number: int, seconds: float | None, runner: Runner, report: Report
) -> None:
    started = time.monotonic()
    numbers = range(number) if seconds is None else itertools.count()
    planned = f"{number:,}" if seconds is None else "as many as fit"

    def cases() -> Iterator[Case]:
        for each in numbers:
            if seconds is not None and time.monotonic() - started > seconds:
                return
            yield Case(kind.name, seed, each)

    with closing(runner.run(cases())) as outcomes:
        for done in outcomes:
            report.add(done, time.monotonic() - started, planned)


def reproduce(kind: Kind, case: Case, kept: Path) -> int:
    """Run one case again; the exit status."""
    report = Report(case.seed, kept)
    with _data(case.seed) as folder, closing(Runner(kind, folder, 1).run(iter([case]))) as outcomes:
        for done in outcomes:
            report.add(done, 0.0, "1")
    print("the finding is there again" if report.failed else f"nothing was found: {case}")
    return 1 if report.failed else 0


@contextmanager
def _data(seed: int) -> Iterator[Path]:
    """A folder with what the seed makes."""
    for name in WARM:
        import_module(name)
    with tempfile.TemporaryDirectory(prefix="shardkit-campaign-") as name:
        folder = Path(name)
        in_a_process(lambda: corpora.make(folder / "corpora", seed))
        in_a_process(lambda: more_data(folder / "corpora"))
        yield folder
