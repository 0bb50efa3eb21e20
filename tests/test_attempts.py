"""Attempts at jobs by whoever was given up, and comes back: nothing of theirs counts."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from conftest import Run, make_images, tree

import shardkit
from shardkit.errors import StorageError, UsageError
from shardkit.index.journal import Receipt
from shardkit.packing.job import Setup
from shardkit.packing.listing import Job
from shardkit.packing.options import PackOptions
from shardkit.packing.ray_engine import Attempts, attempt
from shardkit.system.progress import Progress

OPTIONS = {"to": "npy", "shard_size": "6kB", "progress": False}


class Late:
    """An engine of this process that does each job by an attempt. What is told to the first job is
    kept, for somebody who does it at a bad moment."""

    last: Late

    def __init__(self, setup: Setup, *_: Any) -> None:
        self.setup = setup
        self.attempts = Attempts(setup)
        self.first: Job | None = None
        Late.last = self

    def do(self, job: Job) -> dict[str, Any]:
        corpus = self.setup.open_corpus()
        return attempt(corpus, job, self.setup, str(self.attempts.folder), "node a")

    def run(self, jobs: Any, progress: Progress) -> Any:
        for job in jobs:
            self.first = self.first or job
            self.do(job)  # lost on its way back, and so begun once more
            done = self.do(job)
            receipt = Receipt(**done["receipt"])
            self.attempts.accept(done["folder"], receipt)
            yield receipt

    def close(self) -> None:
        self.attempts.close()


@pytest.fixture
def late(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("shardkit.packing.run.choose_engine", Late)


@pytest.fixture
def source(tmp_path: Path) -> Path:
    return make_images(tmp_path / "source")


def test_done_twice_is_as_done_once(
    late: None, source: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    shardkit.pack(source, tmp_path / "late", **OPTIONS)
    monkeypatch.undo()
    shardkit.pack(source, tmp_path / "local", workers=0, **OPTIONS)
    assert tree(tmp_path / "late") == tree(tmp_path / "local")


def test_an_attempt_that_outlives_its_run_finds_nothing_to_write_to(
    late: None, source: Path, tmp_path: Path
) -> None:
    dest = tmp_path / "dest"
    shardkit.pack(source, dest, **OPTIONS)
    before = tree(dest)
    old = Late.last
    assert old.first is not None
    for again in (True, False):
        with pytest.raises(UsageError, match="node a does not see the destination"):
            old.do(old.first)
        assert tree(dest) == before and sorted(dest.iterdir()) == sorted(map(dest.joinpath, before))
        if again:
            shardkit.pack(source, dest, overwrite=True, **OPTIONS | {"shard_size": "9kB"})
            before = tree(dest)


def test_a_new_run_takes_the_place_of_an_old_one(tmp_path: Path) -> None:
    """Between its look at the lease and the move, an old driver is stopped; then it goes on."""
    work = tmp_path / ".packing"
    (work / "new").mkdir(parents=True)
    setup = Setup("source", str(tmp_path), {}, "npy")
    old = Attempts(setup)
    folder = old.folder / "train-00000-x"
    folder.mkdir()
    (folder / "train-00000.jpg.npy").write_bytes(b"of other options")
    receipt = Receipt("train", 0, 1, 1, 1, {"train-00000.jpg.npy": 16}, {}, 0, 0)
    new = Attempts(setup)
    assert not old.folder.exists() and new.folder.exists()
    with pytest.raises(StorageError, match="committing shard train-00000: No such file"):
        old.accept(folder.name, receipt)
    assert list((work / "new").iterdir()) == []
    new.close()
    assert [path.name for path in work.iterdir()] == ["new"]


def test_ray_that_is_not_there_is_named(run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("shardkit.packing.options.find_spec", lambda name: None)
    got = run("pack", "pictures", "d", "--to", "npy", "--engine", "ray")
    assert (got.code, got.out) == (2, "") and not Path("d").exists()
    assert got.err == (
        "shardkit: error: engine ray needs Ray: pip install 'shardkit[ray]', on all machines of"
        " the cluster\n"
    )


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"engine": "slurm"}, "engine must be local or ray, got 'slurm'"),
        ({"address": "auto"}, "address is of a Ray cluster: pass engine ray, too"),
        ({"engine": "ray", "workers": 0}, "workers 0 packs in this process, and engine ray never"),
        ({"engine": "ray", "address": "ray://head:10001"}, "is for Ray Client"),
    ],
)
def test_nonsense_is_refused(options: dict[str, Any], said: str) -> None:
    with pytest.raises(UsageError, match=said):
        PackOptions(to="npy", **options)


def test_the_engine_is_none_of_what_decides_the_result() -> None:
    assert not {"engine", "address"} & PackOptions(to="npy").lasting().keys()
