"""A fault at a write of a command: the right result, or one clear line, and then the same again.

`make campaign` tries all commands and more faults, by the same code.
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from importlib import import_module
from pathlib import Path
from typing import Any

import pytest

import shardkit

CAMPAIGN = Path(__file__).parent.parent / "scripts" / "campaign"

DRAWN = ("pack to lmdb", "pack to hdf5", "pack jsonl.gz")
DRAWN += ("append files", "unpack lines", "export documents")
"""Jobs that differ most in what writes."""


@pytest.fixture(scope="module")
def writes(tmp_path_factory: pytest.TempPathFactory) -> Any:
    """The campaign's module; ``run`` of it does a job by name."""
    sys.path.insert(0, str(CAMPAIGN))
    try:
        writes, corpora = import_module("writes"), import_module("corpora")
    finally:
        sys.path.remove(str(CAMPAIGN))
    folder = tmp_path_factory.mktemp("writes")
    library = writes.built(folder)
    if library is None:
        pytest.skip("no C compiler, or not Linux")
    for kind in ("pairs", "pictures", "jsonl", "jsonl_gz", "tokens"):
        (folder / "sources" / kind).mkdir(parents=True)
        corpora.SOURCES[kind](folder / "sources" / kind, writes.Random(kind))
    corpora._write_tokenizer(folder / "tokenizer.json")
    for kind, to in (("pictures", "npy"), ("tokens", "npy")):
        source, dest = folder / "sources" / kind, folder / "packed" / f"{kind}-{to}"
        shardkit.pack(source, dest, **corpora.pack_options(folder, kind, to))
    writes.more_data(folder)
    jobs = {job.name: job for job in writes.jobs()}

    def run(name: str, work: Path, **options: Any) -> dict[str, Any]:
        made: dict[str, Any] = writes.run_job(jobs[name], folder, work, library, name, **options)
        return made

    writes.run = run
    return writes


@pytest.mark.parametrize("name", DRAWN)
def test_faults_at_writes(name: str, writes: Any, tmp_path: Path) -> None:
    made = writes.run(name, tmp_path / "work", most=3)
    assert made["findings"] == []
    assert made["faults"] == 5 and made["of"] > 50


PLANTED = """
import os
from shardkit.formats import writev
writev.write_full = lambda fd, buffers, at: os.pwritev(fd, buffers, at) and sum(map(len, buffers))
"""
"""What a call of the system returns is ignored."""


def test_a_write_whose_result_is_ignored_is_found(writes: Any, tmp_path: Path) -> None:
    made = writes.run("pack to npy", tmp_path / "work", most=9, first=PLANTED)
    assert any("exit status 0, and another result" in text for text in made["findings"]), made


def test_workers_ignore_the_signal_of_a_limit(tmp_path: Path) -> None:
    """So that they raise an error and are not killed: Python ignores it in each process."""
    command = [sys.executable, "-P", "-m", "shardkit.packing.local", str(os.getpid())]
    worker = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.DEVNULL)
    try:
        signals = ""
        while "SigIgn" not in signals or not int(signals.split()[1], 16) >> 24 & 1:
            status = Path(f"/proc/{worker.pid}/status").read_text().splitlines()
            signals = next(line for line in status if line.startswith("SigIgn"))
            assert worker.poll() is None
        assert signal.SIGXFSZ == 25
    finally:
        worker.kill()
        worker.communicate()
