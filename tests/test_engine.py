"""Jobs of a pack: done elsewhere, in worker processes, and counted by the bar."""

from __future__ import annotations

import json
import os
import pickle
import subprocess
import sys
import time
from collections.abc import Iterable, Iterator
from dataclasses import asdict
from pathlib import Path

import pytest
from conftest import make_images, make_texts, tree, write

import shardkit
from shardkit.commit.locks import Lock
from shardkit.errors import SampleError
from shardkit.index.journal import Receipt
from shardkit.inputs.corpus import Corpus
from shardkit.inputs.detection import open_corpus
from shardkit.packing.destination import Destination
from shardkit.packing.engine import Engine
from shardkit.packing.job import Setup
from shardkit.packing.listing import Job, Listing, list_jobs
from shardkit.packing.options import PackOptions
from shardkit.system.progress import Progress

ELSEWHERE = """
import pickle, sys
from shardkit.errors import ShardkitError
from shardkit.packing.job import (commit_job, write_job)
setup, job = pickle.load(sys.stdin.buffer)
try:
    done = commit_job(write_job(setup.open_corpus(), job, setup, lambda *counts: None), setup)
except ShardkitError as error:
    done = error
sys.stdout.buffer.write(pickle.dumps(done))
"""


class Elsewhere:
    """Each job is done by a program of its own: in another folder, with no environment and no open
    file of this one. All are drawn first, and done from the last to the first."""

    def __init__(self, setup: Setup, folder: Path) -> None:
        self._setup = setup
        self._folder = folder

    def run(self, jobs: Iterable[Job], progress: Progress) -> Iterator[Receipt]:
        for job in reversed(list(jobs)):
            told = pickle.dumps((self._setup, job))
            assert len(told) < 4_000
            done = subprocess.run(
                [sys.executable, "-c", ELSEWHERE],
                input=told,
                stdout=subprocess.PIPE,
                cwd=self._folder,
                env={"PYTHONPATH": os.pathsep.join(sys.path)},
                check=True,
            )
            answer = pickle.loads(done.stdout)
            if not isinstance(answer, Receipt):
                raise answer
            progress.add(job.num_entries, job.num_bytes)
            yield answer

    def close(self) -> None:
        pass


@pytest.fixture
def elsewhere(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Packs in a folder of its own, by jobs that are done in another."""
    for name in ("here", "there"):
        (tmp_path / name).mkdir()
    monkeypatch.chdir(tmp_path / "here")

    def choose(setup: Setup, corpus: Corpus, options: PackOptions, held: Destination) -> Engine:
        return Elsewhere(setup, tmp_path / "there")

    monkeypatch.setattr("shardkit.packing.run.choose_engine", choose)
    return tmp_path / "here"


def test_a_job_can_be_done_elsewhere(
    elsewhere: Path, container: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    make_images(elsewhere / "source")
    options = {"to": container, "shard_size": "10kB", "shuffle": True, "max_side": 8}
    result = shardkit.pack("source", "dest", **options)
    assert result.num_shards > 2
    monkeypatch.undo()
    shardkit.pack(elsewhere / "source", elsewhere / "same", workers=0, **options)
    assert tree(elsewhere / "dest") == tree(elsewhere / "same")


def test_tokens_too(elsewhere: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    make_texts(elsewhere / "source")
    shardkit.pack("source", "dest", train_tokenizer=300)
    shardkit.convert("dest", "copy", to="lmdb")
    monkeypatch.undo()
    shardkit.pack(elsewhere / "source", elsewhere / "same", train_tokenizer=300, workers=0)
    assert tree(elsewhere / "dest") == tree(elsewhere / "same")
    shardkit.convert(elsewhere / "copy", elsewhere / "back", to="npy", workers=0)
    assert tree(elsewhere / "back") == tree(elsewhere / "same")


def test_its_error_is_that_of_the_pack(elsewhere: Path) -> None:
    make_images(elsewhere / "source", per_class=2)
    (elsewhere / "source" / "class1" / "bad.jpg").write_bytes(b"no picture")
    with pytest.raises(SampleError, match=r"class1/bad\.jpg: not an image.*; pass --on-error skip"):
        shardkit.pack("source", "dest", to="npy")


# --- packing processes and the three files every process is born with ---------------------

ENV = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)}

CHATTY = """
import ctypes, os, sys
from shardkit.packing import local
read = local.write_job
def write_job(*args):
    os.write(1, b"noise on 1\\n")
    os.write(2, b"noise on 2\\n")
    print("noise")
    return read(*args)
local.write_job = write_job
local.main()
"""


def in_shell(redirect: str, *args: object) -> subprocess.CompletedProcess[str]:
    """Run Python by way of a shell that closes some of its files."""
    command = ["sh", "-c", f'exec "$0" "$@" {redirect}', sys.executable, *map(str, args)]
    return subprocess.run(command, capture_output=True, text=True, env=ENV, timeout=60)


@pytest.mark.thorough
@pytest.mark.parametrize("workers", [1, 2])
@pytest.mark.parametrize("redirect", ["2>&-", "<&- 2>&-", "<&- >&- 2>&-"])
def test_packing_with_files_closed(redirect: str, workers: int, tmp_path: Path) -> None:
    source = make_images(tmp_path / "source")
    options = ["--to", "npy", "--shard-size", "3kB", "--workers", workers]
    done = in_shell(redirect, "-m", "shardkit", "pack", source, tmp_path / "dest", *options)
    assert done.returncode == 0 and done.stderr == ""
    shardkit.pack(source, tmp_path / "expected", to="npy", shard_size="3kB", workers=0)
    assert tree(tmp_path / "dest") == tree(tmp_path / "expected")


@pytest.mark.parametrize("redirect", ["2>&-", "2>/dev/null"])
def test_what_libraries_print_is_no_answer(redirect: str, tmp_path: Path) -> None:
    """Whatever is written to 1 or 2 in a worker, its answers are JSON lines alone."""
    corpus = open_corpus(make_images(tmp_path / "source"))
    setup = Setup(str(tmp_path / "source"), str(tmp_path / "dest"), corpus.spec(), "npy")
    for folder in (setup.stage, setup.scratch):
        folder.mkdir(parents=True)
    jobs = list_jobs(corpus, Listing(setup.work), PackOptions(to="npy"), corpus.runs(setup.scratch))
    told = [{**asdict(setup), "objects": 0}, *map(asdict, jobs)]
    talk = "".join(json.dumps(message) + "\n" for message in told)
    run = f'exec "$0" -c "$1" {os.getpid()} {redirect}'
    command = ["sh", "-c", run, sys.executable, CHATTY]
    done = subprocess.run(command, input=talk, capture_output=True, text=True, env=ENV)
    answers = [json.loads(line) for line in done.stdout.splitlines()]
    assert [*answers[0]] == ["ready"] and answers[-1]["done"]["num_rows"] == 36
    assert done.returncode == 0


def test_a_lock_is_not_mistaken_for_stderr(tmp_path: Path) -> None:
    """Its number must not be one under which a child gets another file."""
    saved = os.dup(2)
    os.close(2)
    try:
        with Lock(tmp_path / "work" / "lock") as lock:
            fd = lock.fd
    finally:
        os.dup2(saved, 2)
        os.close(saved)
    assert fd > 2


# --- the bar ------------------------------------------------------------------------------


def test_what_was_done_before_is_no_part_of_the_rate() -> None:
    with Progress("packing", show=True) as progress:
        bar = progress._bar
        progress.expect(1000)
        progress.skip(900)
        time.sleep(0.2)
        progress.add(10, 10)
        bar.refresh()
        assert (bar.n, bar.initial, bar.total) == (910, 900, 1000)
        assert bar.format_dict["n"] == 910 and (bar.format_dict["rate"] or 0) < 60
        assert progress.num_samples == 10


class Seen(Progress):
    """Notes what it is told."""

    def __init__(self, what: str, show: bool | None = None) -> None:
        super().__init__(what, False)
        told.append(("begin", 0))

    def expect(self, num_samples: int) -> None:
        told.append(("expect", num_samples))

    def skip(self, num_samples: int) -> None:
        told.append(("skip", num_samples))

    def add(self, num_samples: int, num_bytes: int) -> None:
        told.append(("add", num_samples))


told: list[tuple[str, int]] = []


@pytest.fixture
def _seen(monkeypatch: pytest.MonkeyPatch) -> None:
    told.clear()
    monkeypatch.setattr("shardkit.packing.run.Progress", Seen)


@pytest.mark.usefixtures("_seen")
@pytest.mark.parametrize("workers", [1, 2])
def test_resumed_shards_count_from_the_start(workers: int, tmp_path: Path) -> None:
    source, dest = make_images(tmp_path / "source"), tmp_path / "dest"
    bad = write(source / "class9" / "bad.jpg", "no picture")
    options = {"to": "npy", "shard_size": "3kB", "workers": workers}
    with pytest.raises(SampleError):
        shardkit.pack(source, dest, **options)
    told.clear()
    result = shardkit.pack(source, dest, on_error="skip", max_rejects=1, **options)
    skipped = [number for what, number in told if what == "skip"]
    kinds = [what for what, _ in told]
    assert len(skipped) == result.resumed_shards > 0
    assert "add" not in kinds[: kinds.index("expect")] and kinds.index("skip") == 1
    added = sum(number for what, number in told if what == "add")
    assert sum(skipped) + added == 37 and ("expect", 37) in told
    assert bad.exists()


@pytest.mark.usefixtures("_seen")
def test_several_workers_know_the_total_early(tmp_path: Path) -> None:
    """All is listed while the first shards are packed, not when the last is handed out."""
    source = make_images(tmp_path / "source", per_class=40)
    shardkit.pack(source, tmp_path / "d", to="npy", shard_size="3kB", workers=2)
    before = told[: told.index(("expect", 120))]
    assert sum(number for what, number in before if what == "add") < 60
