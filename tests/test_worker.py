"""Packing processes and the three files every process is born with."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from dataclasses import asdict
from pathlib import Path

import pytest
from conftest import make_images, tree

import shardkit
from shardkit.inputs.open import open_corpus
from shardkit.packing.job import Setup
from shardkit.packing.listing import Listing, list_jobs
from shardkit.packing.options import PackOptions
from shardkit.system.locks import Lock

ENV = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)}

CHATTY = """
import ctypes, os, sys
from shardkit.packing import worker
read = worker.write_job
def write_job(*args):
    os.write(1, b"noise on 1\\n")
    os.write(2, b"noise on 2\\n")
    print("noise")
    return read(*args)
worker.write_job = write_job
worker.main()
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
