"""Fixtures and helpers all tests share."""

from __future__ import annotations

import gc
import io
import json
import multiprocessing
import os
import re
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Generator, Iterator
from contextlib import contextmanager
from functools import cache, lru_cache
from multiprocessing import forkserver, resource_tracker
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pytest
from hypothesis import settings
from keeper_forks import Forks
from PIL import Image

import shardkit
from shardkit.cli import main
from shardkit.commit import locks
from shardkit.memory import gather
from shardkit.remote import connection
from shardkit.tokens import pattern as patterns

# Examples differ in size, and machines in speed: faulthandler_timeout catches what hangs.
settings.register_profile("quick", deadline=None, max_examples=25)
settings.register_profile("thorough", deadline=None, max_examples=100)  # of `make test-all`
settings.load_profile("quick")

# `nohup` and shells that run a command behind them have these ignored, and programs inherit that:
# those that the tests stop by them would go on.
signal.signal(signal.SIGINT, signal.default_int_handler)
signal.signal(signal.SIGHUP, signal.SIG_DFL)

_wait_for_the_disk = os.fsync


def _fsync(fd: int) -> None:
    """Does not wait for the disk, which others that write at the same time keep busy: only a power
    cut tells, and nothing here cuts it. Commands, in processes of their own, do wait; so does what
    drops pages from the page cache, which it needs. ``test_durable.py`` sees that all is synced.
    """
    if sys._getframe(1).f_globals["__name__"] == "shardkit.system.page_cache":
        _wait_for_the_disk(fd)


os.fsync = _fsync

# What each library takes for a letter is asked for by every pack of text, 0.4 s of it; it is the
# same as long as a process lives.
patterns._members_oniguruma = cache(patterns._members_oniguruma)
patterns._members_rust = cache(patterns._members_rust)

# A busy machine takes long to end the processes of what was killed, and to start others.
locks.LOCK_PATIENCE_S = 60.0
connection.START_S = 300

CONTAINERS = ["lmdb", "hdf5", "webdataset", "npy"]


def thorough(*values: object) -> list[Any]:
    """Return parameters that are left to `make test-all`."""
    return [pytest.param(value, marks=pytest.mark.thorough) for value in values]


EACH_FORMAT = ["npy", *thorough("lmdb", "hdf5", "webdataset")]
"""Parameters of tests that prove the same of all formats: one is quick, the conformance suites have
the others."""


def examples(factor: float) -> settings:
    """Return Hypothesis settings of that many times the usual number of examples."""
    return settings(max_examples=round(factor * settings.default.max_examples))


@lru_cache(1024)  # most tests want the same
def picture(seed: int, size: int = 16, kind: str = "JPEG") -> bytes:
    """A small real picture: a smooth gradient of its own."""
    grid = np.mgrid[0:size, 0:size].sum(0) * (seed % 7 + 1) + seed * 13
    pixels = np.stack([grid, grid[::-1], grid.T[::-1]], axis=-1).astype(np.uint8)
    out = io.BytesIO()
    Image.fromarray(pixels).save(out, kind)
    return out.getvalue()


def write(path: Path, data: bytes | str) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(data.encode() if isinstance(data, str) else data)
    return path


def flip(path: Path, at: int, bit: int = 1) -> None:
    data = bytearray(path.read_bytes())
    data[at] ^= bit
    path.write_bytes(data)


def run_python(code: str, *args: object, **env: str) -> str:
    """What code prints that runs, and ends well, in a process of its own."""
    path = os.pathsep.join([str(Path(__file__).parent), *filter(None, sys.path)])
    command = [sys.executable, "-c", code, *map(str, args)]
    env = {**os.environ, "PYTHONPATH": path, **env}
    done = subprocess.run(command, capture_output=True, text=True, env=env, timeout=120)
    assert done.returncode == 0, done.stderr
    return done.stdout


def tree(folder: Path) -> dict[str, bytes]:
    """Relative path -> bytes of every file below a folder."""
    return {
        os.fsdecode(os.fsencode(path.relative_to(folder))): path.read_bytes()
        for path in sorted(folder.rglob("*"))
        if path.is_file()
    }


def make_images(root: Path, per_class: int = 12, classes: int = 3) -> Path:
    for c in range(classes):
        for i in range(per_class):
            write(root / f"class{c}" / f"img.{i:03d}.jpg", picture(c * 100 + i))
    return root


def pack_all(root: Path) -> dict[str, Path]:
    """One corpus of 55 pictures, in all formats."""
    source = make_images(root / "source", per_class=11, classes=5)
    for to in CONTAINERS:
        shardkit.pack(source, root / to, to=to, shard_size="8kB", workers=0, progress=False)
    return {to: root / to for to in CONTAINERS}


def make_pairs(root: Path) -> Path:
    """Absent fields, empty values, odd cls and json bytes, arrays, names with dots."""
    for i in range(12):
        stem = f"{i:04d}"
        write(root / f"{stem}.jpg", picture(i))
        write(root / f"{stem}.cls", [b"7", b"-3\n", b" 12", b"0"][i % 4])
        if i % 3:
            write(root / f"{stem}.txt", "" if i == 4 else f"caption {i}\r\n")
        if i % 4 == 0:
            write(root / f"{stem}.json", f'{{ "b" : 1,\n  "a": [1.0, {i}] }}\n')
        if i % 5 == 0:
            out = io.BytesIO()
            np.save(out, np.arange(i * 3, dtype=np.float32).reshape(i, 3))
            write(root / f"{stem}.feat.npy", out.getvalue())
    write(root / "dotted.dir" / "IMG 50%.jpg", picture(90))
    write(root / "dotted.dir" / "IMG 50%.txt", "x")
    return root


def make_arrays(root: Path, ragged: bool = False) -> Path:
    for i in range(10):
        out = io.BytesIO()
        np.save(out, np.full((i if ragged else 4, 5), i, np.int16))
        write(root / f"a{i}.npy", out.getvalue())
    return root


def make_jsonl(root: Path) -> Path:
    lines = [json.dumps({"text": f"line {i} \u00e9", "n": i}) for i in range(40)]
    write(root / "a.jsonl", "\n".join(lines[:25]) + "\n")
    write(root / "b.jsonl", "\r\n".join(lines[25:]))
    return root


def make_sounds(root: Path) -> Path:
    """Files of any kind, in class folders."""
    for i in range(9):
        write(root / f"class{i % 3}" / f"clip.{i}.mp3", b"ID3" + bytes([i]) * (200 * i + 1))
    return root


def make_texts(root: Path) -> Path:
    for i in range(9):
        write(root / f"doc{i}.txt", "" if i == 3 else f"text {i}\n" * i)
    write(root / "sub" / "read.me.md", "# title\r\n")
    return root


def make_parallel(root: Path) -> Path:
    """Pictures, and masks and boxes of some of them, in folders of their own."""
    for i in range(9):
        write(root / "images" / f"{i:03d}.jpg", picture(i))
        if i % 3:
            write(root / "masks" / f"{i:03d}.png", picture(i, kind="PNG"))
        if i % 2:
            write(root / "boxes" / f"{i:03d}.json", f"[{i}, 2.50]")
    return root


def make_companions(root: Path) -> Path:
    """Class folders of pictures with masks and texts beside them."""
    for i in range(8):
        stem = root / ("cat", "dog")[i % 2] / f"IMG ({i}).0"
        write(Path(f"{stem}.jpg"), picture(i))
        write(Path(f"{stem}_mask.png"), picture(i, kind="PNG"))
        if i % 3:
            write(Path(f"{stem}.txt"), f"caption {i}")
    return root


CORPORA = {
    "images": make_images,
    "pairs": make_pairs,
    "arrays": make_arrays,
    "ragged": lambda root: make_arrays(root, ragged=True),
    "jsonl": make_jsonl,
    "texts": make_texts,
    "parallel": make_parallel,
    "companions": make_companions,
    "sounds": make_sounds,
}


@pytest.fixture(params=CORPORA)
def corpus(request: pytest.FixtureRequest, tmp_path: Path) -> Path:
    """One small folder of each kind of input."""
    return CORPORA[request.param](tmp_path / "source")


@pytest.fixture(params=EACH_FORMAT)
def container(request: pytest.FixtureRequest) -> str:
    return str(request.param)


@pytest.fixture(params=["compiled", *thorough("python")])
def _gathering(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """Rows of a batch are gathered by the compiled module, and without it."""
    if request.param == "python":
        without_gather(monkeypatch)
    elif not gather.is_available():
        pytest.skip("gather.c was not compiled")


def without_gather(monkeypatch: pytest.MonkeyPatch) -> None:
    """As if the compiled module had not been built."""
    monkeypatch.setattr(gather, "compiled", lambda: None)


@pytest.fixture
def start_method(request: pytest.FixtureRequest) -> Iterator[str]:
    """How multiprocessing starts processes, as the test's parameter says."""
    before = multiprocessing.get_start_method(allow_none=True)
    multiprocessing.set_start_method(request.param, force=True)
    yield request.param
    multiprocessing.set_start_method(before, force=True)


@pytest.fixture
def lean_torch(monkeypatch: pytest.MonkeyPatch) -> None:
    """Programs that a test starts import torch without what none of them uses."""
    lean = Path(__file__).parent / "lean"
    monkeypatch.setenv("PYTHONPATH", str(lean), prepend=os.pathsep)


@pytest.hookimpl(wrapper=True)
def pytest_collection() -> Generator[None, object, object]:
    """Modules and tests are a million objects that stay until the end. To look for garbage among
    them took a third of the time to collect the tests, and half a second each time that a test
    had it looked for later."""
    gc.disable()
    try:
        return (yield)
    finally:
        gc.freeze()
        gc.enable()


def pytest_runtest_setup(item: pytest.Item) -> None:
    """Skip a test whose program is missing; where CI is set, which installs them all, fail it."""
    for mark in item.iter_markers("needs_program"):
        name, package = mark.args
        if shutil.which(name) is None:
            reason = f"needs {name}: apt-get install {package}"
            pytest.fail(reason, pytrace=False) if os.environ.get("CI") else pytest.skip(reason)


@pytest.fixture(scope="session")
def _keeper_forks() -> Iterator[Forks]:
    forks = Forks()
    yield forks
    forks.end()


@pytest.fixture
def forked_keepers(_keeper_forks: Forks, monkeypatch: pytest.MonkeyPatch) -> None:
    """Keepers that this process starts import nothing anew; those that commands start do."""
    monkeypatch.setattr(connection, "_start", _keeper_forks.start)


@pytest.fixture(autouse=True)
def _keepers_end() -> Iterator[None]:
    """The keeper of a cache lives as long as a reader's connection, and takes 100 MB."""
    yield
    if connection._connections.to:
        connection._connections.__init__()  # type: ignore[misc]


# --- what stays behind --------------------------------------------------------------------


def settle(what: Callable[[], object], seconds: float = 10) -> bool:
    """Whether it becomes true within some seconds."""
    deadline = time.monotonic() + seconds
    while not what() and time.monotonic() < deadline:
        gc.collect()
        time.sleep(0.02)
    return bool(what())


def children() -> set[str]:
    """The processes that this one has started, but for torch's managers of shared memory, which
    stay from the first test that shares tensors by files until the end."""
    found = Path(f"/proc/self/task/{os.getpid()}/children").read_text().split()
    return {pid for pid in found if not _name(pid).startswith("torch_shm")}


def _name(pid: str) -> str:
    try:
        return Path(f"/proc/{pid}/comm").read_text(encoding="utf-8")
    except (FileNotFoundError, ProcessLookupError):
        return ""


def open_files() -> set[str]:
    """What this process has open: descriptor and file, without the one that lists them."""
    found = set()
    for name in os.listdir("/proc/self/fd"):
        try:
            found.add(f"{name} {os.readlink(f'/proc/self/fd/{name}')}")
        except FileNotFoundError:
            continue
    return found


@contextmanager
def nothing_left_open() -> Iterator[None]:
    """The block closes what it opens. What earlier tests left open may be closed meanwhile."""
    gc.collect()
    before = open_files()
    yield
    assert settle(lambda: open_files() <= before), open_files() - before


# --- the command line ---------------------------------------------------------------------

VARIABLE = {r"[\d.]+ s, [\d,]+ samples/s": "TIME", r"\b[\d.]+ (B|kB|MB)\b": "SIZE"}
"""What depends on the machine, and on the encoder that made the pictures."""


class Ran(NamedTuple):
    code: int
    out: str
    err: str


Run = Callable[..., Ran]


@pytest.fixture
def run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Run:
    """Runs a command in this process, in ``tmp_path``, which also has ``pictures/``."""
    make_images(tmp_path / "pictures")
    monkeypatch.chdir(tmp_path)

    def run(*args: object) -> Ran:
        monkeypatch.setattr(sys, "argv", ["shardkit", *map(str, args)])
        with pytest.raises(SystemExit) as caught:
            main()
        out, err = capsys.readouterr()
        for pattern, name in VARIABLE.items():
            out = re.sub(pattern, name, out)
        return Ran(int(caught.value.code or 0), out, err)

    return run


class Before(NamedTuple):
    """What was open before a test, and the folder that all tests' folders are in."""

    files: set[str]
    all_tests: Path


_BEFORE = pytest.StashKey[Before]()
_HAS_PASSED = pytest.StashKey[bool]()


def left_open(before: Before, own: Path | None) -> list[str]:
    """What a test opened and did not close. Not what lies in the folder of another: a dataset that
    a module keeps maps its files when they are first used. Nor 0 to 2, which pytest changes; nor
    what leads to processes that multiprocessing and torch start once and keep.
    """
    kept = [forkserver._forkserver._forkserver_alive_fd, resource_tracker._resource_tracker._fd]
    found = []
    for entry in sorted(open_files() - before.files):
        number, _, file = entry.partition(" ")
        is_others = before.all_tests in Path(file).parents and own not in Path(file).parents
        is_kept = int(number) in [0, 1, 2, *kept] or file.startswith("socket:")
        if not is_others and not is_kept:
            found.append(entry)
    return found


@pytest.hookimpl(wrapper=True)
def pytest_runtest_call(item: pytest.Item) -> Iterator[None]:
    yield
    item.stash[_HAS_PASSED] = True


@pytest.hookimpl(wrapper=True)
def pytest_runtest_teardown(item: pytest.Function) -> Iterator[None]:
    """After a test that passed, and after its fixtures: no descriptor is open that was not before.

    Garbage is collected only if one is.
    """
    yield
    if not item.stash.get(_HAS_PASSED, False):
        return  # what failed is still held by its traceback
    before, own = item.stash[_BEFORE], item.funcargs.get("tmp_path")
    item.funcargs.clear()
    if left_open(before, own) and not settle(lambda: not left_open(before, own), 3):
        pytest.fail(f"left open: {', '.join(left_open(before, own))}", pytrace=False)


@pytest.fixture(autouse=True)
def _nothing_left_behind(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[None]:
    """After each test: the same working directory, and no shared memory of ours."""
    request.node.stash[_BEFORE] = Before(open_files(), tmp_path_factory.getbasetemp())
    cwd = Path.cwd()
    yield
    assert Path.cwd() == cwd
    if Path("/dev/shm").is_dir():
        assert [name for name in os.listdir("/dev/shm") if f"_{os.getpid()}_" in name] == []
