"""The seam that engines stand behind: what a job is told is enough to do it elsewhere."""

from __future__ import annotations

import os
import pickle
import subprocess
import sys
from collections.abc import Iterable, Iterator
from pathlib import Path

import pytest
from conftest import make_images, make_texts, tree

import shardkit
from shardkit.errors import SampleError
from shardkit.index.journal import Receipt
from shardkit.inputs.base import Corpus
from shardkit.packing.destination import Destination
from shardkit.packing.engine import Engine
from shardkit.packing.job import Job, Setup
from shardkit.packing.options import PackOptions
from shardkit.system.progress import Progress

ELSEWHERE = """
import pickle, sys
from shardkit.errors import ShardkitError
from shardkit.packing.job import commit_job, write_job
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

    def __enter__(self) -> Elsewhere:
        return self

    def __exit__(self, *error: object) -> None:
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
