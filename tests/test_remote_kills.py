"""Keepers and readers that are killed or stopped, and caches that were hurt: the next recovers."""

from __future__ import annotations

import multiprocessing
import os
import random
import shutil
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from conftest import settle, thorough
from keepers import cache as cache
from keepers import keepers, kill_keepers
from range_server import RangeServer, serving
from remote_sets import make_set, open_set, plain

from shardkit import Loader
from shardkit.errors import StorageError
from shardkit.remote import connection


@pytest.fixture
def forked_keepers() -> None:
    """Here keepers are started as users' are, not forked."""


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_set(tmp_path_factory.mktemp("made"), "arrays", "npy", 60, 100_000)


@pytest.fixture
def server(made: Path) -> Iterator[RangeServer]:
    with serving(made.parent) as server:
        yield server


def delete(path: Path) -> None:
    """As a person does with `rm -r`: again, where a keeper wrote a file meanwhile."""
    assert settle(lambda: shutil.rmtree(path, ignore_errors=True) or not path.exists())


class Case:
    """A dataset, by path and by URL."""

    def __init__(self, server: RangeServer, made: Path, cache: Path) -> None:
        self.url = f"{server.url}/{made.name}"
        self.cache = cache
        self.local = open_set(made, "arrays")

    def open(self, **options: Any) -> Any:
        return open_set(self.url, "arrays", cache_dir=self.cache, **options)

    def is_right(self, remote: Any) -> bool:
        options: dict[str, Any] = {"workers": 0, "seed": 4}
        return plain(Loader(remote, 4, **options)) == plain(Loader(self.local, 4, **options))


@pytest.fixture
def case(server: RangeServer, made: Path, cache: Path) -> Case:
    return Case(server, made, cache)


def test_keepers_are_killed_while_batches_are_read(case: Case, server: RangeServer) -> None:
    server.faults.delay = 0.02
    remote = case.open(cache_bytes=4 << 20)
    is_over = threading.Event()
    killed = []

    def kill() -> None:
        while not is_over.wait(2.0):  # one needs half a second to begin, or more
            killed.append(kill_keepers(case.cache))

    thread = threading.Thread(target=kill)
    thread.start()
    try:
        while sum(killed) < 4:
            assert case.is_right(remote)
    finally:
        is_over.set()
        thread.join()


READER = """
import sys, shardkit
from shardkit import Loader
from shardkit.remote import connection
connection.LINGER_S = 0.1
remote = shardkit.open(sys.argv[1], cache_dir=sys.argv[2], cache_bytes=4 << 20)
while True:
    for batch in Loader(remote, 4, workers=2, worker_type=sys.argv[3]):
        print("batch", flush=True)
"""


@pytest.mark.parametrize("worker_type", ["thread", *thorough("process")])
@pytest.mark.parametrize("victims", [*thorough("reader"), "all"])
def test_readers_are_killed(case: Case, victims: str, worker_type: str) -> None:
    """What they held is free again, and the keeper ends when the last has gone."""
    reader = subprocess.Popen(
        [sys.executable, "-c", READER, case.url, case.cache, worker_type],
        stdout=subprocess.PIPE,
        env={**os.environ, "PYTHONPATH": str(Path(__file__).parents[1])},
        start_new_session=True,
    )
    with reader:
        assert reader.stdout is not None
        for _ in range(5):
            assert reader.stdout.readline() == b"batch\n"
        reader.kill()
        if victims == "all":
            kill_keepers(case.cache)
    assert settle(lambda: not keepers(case.cache), 30)
    assert case.is_right(case.open(cache_bytes=4 << 20))


def _data_files(cache: Path) -> list[Path]:
    return sorted(path for path in cache.glob("*/*.npy") if path.stat().st_size)


@pytest.mark.parametrize(
    "hurt",
    ["zeros", "stamps", *thorough("truncated", "noise", "no stamps", "no index", "longer")],
)
def test_power_cuts(case: Case, hurt: str, server: RangeServer) -> None:
    draws = random.Random(3)
    assert case.is_right(case.open())
    kill_keepers(case.cache)
    for path in _data_files(case.cache):
        size = path.stat().st_size
        at = draws.randrange(size)
        with path.open("r+b") as file:
            if hurt == "truncated":
                file.truncate(at)
            elif hurt == "longer":
                file.truncate(size + 5000)
            elif hurt in ("zeros", "noise"):
                file.seek(at)
                file.write((draws.randbytes if hurt == "noise" else bytes)(min(70_000, size - at)))
    for path in case.cache.glob("*/*.stamps"):
        if hurt == "stamps":
            path.write_bytes(draws.randbytes(path.stat().st_size))
        elif hurt == "no stamps":
            path.unlink()
    for path in case.cache.glob("*/*.rows" if hurt == "no index" else "*/none"):
        path.write_bytes(b"")
    for path in case.cache.glob("*/*.sums" if hurt == "no index" else "*/none"):
        path.write_bytes(bytes(path.stat().st_size))
    server.requests.clear()
    assert case.is_right(case.open())
    is_fetched = any(count > 100_000 for _, count in server.requests)
    assert is_fetched == (hurt in ("truncated", "zeros", "noise"))


def test_a_socket_and_a_lock_that_nobody_holds(case: Case) -> None:
    case.cache.mkdir()
    stale = socket.socket(socket.AF_UNIX)
    stale.bind(str(case.cache / "keeper.sock"))
    stale.close()
    (case.cache / "keeper.lock").touch()
    assert case.is_right(case.open())


def test_a_cache_that_was_deleted(case: Case) -> None:
    remote = case.open()
    assert case.is_right(remote)
    delete(case.cache)
    assert case.is_right(remote)  # what is mapped stays
    assert case.is_right(case.open())
    folder = next(path for path in case.cache.iterdir() if path.is_dir())
    delete(folder)
    assert case.is_right(case.open())


@pytest.mark.parametrize("gone", ["a file", "the folder"])
def test_what_was_deleted_of_one_dataset_harms_no_other(
    case: Case, gone: str, server: RangeServer, made: Path
) -> None:
    """Programs that tidy up may take an old file; room is made then, too."""
    other = made.parent / "other"
    if not other.exists():
        shutil.copytree(made, other)
        index = other / "shardkit.json"
        index.write_text(index.read_text() + "\n")
    first = case.open(cache_bytes="1MB")
    assert case.is_right(first)
    folder = next(path for path in case.cache.iterdir() if path.is_dir())
    if gone == "the folder":
        delete(folder)
        assert case.is_right(case.open(cache_bytes="1MB"))
    else:
        sorted(folder.glob("train-0*"))[0].unlink()
    case.url = f"{server.url}/other"
    assert case.is_right(case.open(cache_bytes="1MB"))
    del first


def _reads_until(case: Case, has_read: Any, may_end: Any) -> None:
    remote = case.open()
    remote.read([0])
    has_read.set()
    may_end.wait(60)


def test_a_keeper_of_a_cache_that_was_emptied_leaves_the_next_one_alone(case: Case) -> None:
    """When it ends, the socket there is another's."""
    context = multiprocessing.get_context("fork")
    has_read, may_end = context.Event(), context.Event()
    reader = context.Process(target=_reads_until, args=(case, has_read, may_end))
    reader.start()
    assert has_read.wait(60)
    (old,) = keepers(case.cache)
    for path in case.cache.iterdir():
        delete(path) if path.is_dir() else path.unlink()
    remote = case.open()
    may_end.set()
    reader.join()
    assert settle(lambda: old not in keepers(case.cache))
    connection._connections.drop(str(case.cache))
    assert case.is_right(case.open())
    del remote


def test_a_folder_that_cannot_be_written(case: Case, tmp_path: Path) -> None:
    (tmp_path / "file").write_text("no folder")
    with pytest.raises(StorageError, match="cannot be made"):
        open_set(case.url, "arrays", cache_dir=tmp_path / "file" / "cache")


LISTENS = """
import os, socket, sys
listening = socket.socket(socket.AF_UNIX)
os.fchdir(int(sys.argv[1]))
os.setuid(65534)
listening.bind("keeper.sock")
listening.listen()
print("listening", flush=True)
print(listening.accept()[0].recv(99))
"""


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can start a process of another user")
def test_a_keeper_of_another_user_is_told_nothing(case: Case) -> None:
    """Who listens where the keeper would, in a folder that all could write to before."""
    case.cache.mkdir(exist_ok=True)
    folder = os.open(case.cache, os.O_RDONLY)
    case.cache.chmod(0o777)
    try:
        with subprocess.Popen(
            [sys.executable, "-c", LISTENS, str(folder)],
            stdout=subprocess.PIPE,
            pass_fds=[folder],
        ) as other:
            assert other.stdout and other.stdout.readline() == b"listening\n"
            case.cache.chmod(0o700)
            with pytest.raises(StorageError, match="runs as another user"):
                case.open()
            assert other.stdout.read() == b"b''\n"
    finally:
        os.close(folder)


def test_a_stopped_keeper_is_an_error(case: Case, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(connection, "SILENT_S", 1.5)
    remote = case.open()
    (pid,) = keepers(case.cache)
    os.kill(pid, signal.SIGSTOP)
    began = time.monotonic()
    with pytest.raises(StorageError, match=rf"said nothing for 2 s.*kill -9 {pid}`"):
        remote.read([0])
    assert time.monotonic() - began < 3
    os.kill(pid, signal.SIGKILL)
    assert case.is_right(remote)


@pytest.fixture
def small_disk(case: Case, request: pytest.FixtureRequest) -> Iterator[Case]:
    """A case whose cache is a disk of some megabytes."""
    case.cache.mkdir()
    options = f"size={request.param}m,mode=700"
    mount = ["mount", "-t", "tmpfs", "-o", options, "none", case.cache]
    if subprocess.run(mount, capture_output=True, check=False).returncode:
        pytest.skip("only root mounts")
    yield case
    kill_keepers(case.cache)
    subprocess.run(["umount", "-l", case.cache], check=True)


@pytest.mark.parametrize("small_disk", [40], indirect=True)
def test_a_disk_with_less_than_is_left_to_others(small_disk: Case) -> None:
    remote = small_disk.open()
    said = r"holds 0 bytes \(its disk has \d+ free, of which 1073741824 are left to others\)"
    with pytest.raises(StorageError, match=said):
        remote.read([0])
    assert small_disk.is_right(small_disk.open(cache_bytes=20 << 20))


@pytest.mark.parametrize("small_disk", [3], indirect=True)
def test_a_full_disk(small_disk: Case) -> None:
    """A clear error, and when there is space again all is well."""
    remote = small_disk.open(cache_bytes=100 << 20)
    with pytest.raises(StorageError, match="the disk is full; make cache_bytes smaller"):
        small_disk.is_right(remote)
    remount = ["mount", "-o", "remount,size=40m,mode=700", small_disk.cache]
    subprocess.run(remount, check=True)
    assert small_disk.is_right(remote)
