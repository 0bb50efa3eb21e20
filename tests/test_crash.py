"""kill -9 at random moments, then the same command again: the result of an undisturbed pack."""

from __future__ import annotations

import os
import random
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import pytest
from conftest import Run, make_images, picture, settle, thorough, tree, write
from dying import end_of, forked

import shardkit
from shardkit.errors import DestinationError, ResumeError, StorageError
from shardkit.packing.local import _end

KILLS = 5
"""A container; `make campaign` does it hundreds of times."""
STAMP = (1, 1)
BAD = b"no picture".ljust(len(picture(5)))


def command(source: Path, dest: Path, *more: str) -> list[str]:
    return [sys.executable, "-m", "shardkit", "pack", str(source), str(dest), *more]


def start(args: list[str]) -> subprocess.Popen[bytes]:
    return subprocess.Popen(args, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE)


def runs_at(is_running: Callable[[], bool], work: Path, num_parts: int, delay: float) -> bool:
    """Whether a pack is still running ``delay`` seconds after so many shards are done."""
    while is_running() and (
        not (work / "options.json").exists() or len(list(work.glob("*.part"))) < num_parts
    ):
        time.sleep(0.0005)
    time.sleep(delay)
    return is_running()


def kill_at(process: subprocess.Popen[bytes], work: Path, num_parts: int, delay: float) -> bool:
    """Kill ``delay`` seconds after so many shards are done; whether the pack was still running."""
    running = runs_at(lambda: process.poll() is None, work, num_parts, delay)
    process.kill()
    process.wait()
    if process.stderr:
        process.stderr.close()
    return running


def pack_killed_at(
    num_parts: int, delay: float, source: Path, dest: Path, **options: object
) -> bool:
    """The same of a pack in a fork of this process, which costs a tenth of a command."""
    process = forked(lambda: shardkit.pack(source, dest, progress=False, **options))
    running = runs_at(process.is_alive, dest / ".packing", num_parts, delay)
    process.kill()
    end_of(process)
    return running


def test_kill_at_random_moments(container: str, tmp_path: Path) -> None:
    source = make_images(tmp_path / "source", per_class=40)
    options = {"to": container, "shard_size": "5kB", "on_error": "skip", "max_rejects": 0.1}
    options["dali_index"] = container == "webdataset"
    write(source / "class1" / "broken.jpg", "this is no picture")
    undisturbed = tmp_path / "undisturbed"
    result = shardkit.pack(source, undisturbed, workers=1, **options)
    shards, shard_s = result.num_shards, result.seconds / result.num_shards
    assert shards > 10
    expected = tree(undisturbed)
    assert "rejected.jsonl" in expected
    rng = random.Random(container)
    interrupted = 0
    for number in range(KILLS):
        dest = tmp_path / f"killed{number}"
        options["workers"] = 1 + number % 2
        for _ in range(2 if number % 5 == 4 else 1):
            moment = rng.randrange(shards + 1), rng.uniform(0, 2 * shard_s)
            interrupted += pack_killed_at(*moment, source, dest, **options)
        shardkit.pack(source, dest, **options)
        assert tree(dest) == expected and not (dest / ".packing").exists()
    assert interrupted >= KILLS // 2, "most kills must hit a running pack"


def test_workers_die_with_the_packer(tmp_path: Path) -> None:
    source = make_images(tmp_path / "source", per_class=200)  # so that one is not done at once
    dest = tmp_path / "dest"
    process = start(command(source, dest, "--to", "npy", "--shard-size", "3kB", "--workers", "2"))
    workers: list[str] = []
    assert settle(lambda: len(children_of(process.pid, workers)) == 2)
    forked = b"packing.local" not in Path(f"/proc/{workers[0]}/cmdline").read_bytes()
    assert forked, "the command has imported all, and a copy starts in no time"
    assert kill_at(process, dest / ".packing", 3, 0)
    assert settle(lambda: not any(map(is_running, workers)), 5)


def children_of(pid: int, found: list[str]) -> list[str]:
    """Put into a list which processes one has started, and return it."""
    found[:] = Path(f"/proc/{pid}/task/{pid}/children").read_text().split()
    return found


def is_running(pid: str) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except (FileNotFoundError, ProcessLookupError):
        return False


def test_ctrl_c_keeps_a_state_to_go_on_from(run: Run, tmp_path: Path) -> None:
    source = make_images(tmp_path / "source", per_class=150)
    dest = tmp_path / "dest"
    args = ["--to", "npy", "--shard-size", "3kB", "--workers"]
    process = start(command(source, dest, *args, "2"))
    while not list((dest / ".packing").glob("*.part")):
        time.sleep(0.001)
    process.send_signal(signal.SIGINT)
    _, stderr = process.communicate(timeout=20)
    assert process.returncode == 130
    assert stderr.decode().split("\n", 1)[1].splitlines() == [  # the first line ends the ^C's own
        "shardkit: error: interrupted; what is done is kept, run the same command again to go on"
    ]
    assert not (dest / "shardkit.json").exists()
    assert "found done from an earlier run" in run("pack", source, dest, *args, "0").out
    assert shardkit.verify(dest, against=source).ok


def started(source: Path, dest: Path, **options: object) -> None:
    """Leave a pack half done: its last file has gone bad."""
    bad = write(source / "class9" / "bad.jpg", BAD)
    os.utime(bad, STAMP)
    with pytest.raises(shardkit.errors.SampleError, match=r"class9/bad\.jpg"):
        shardkit.pack(source, dest, to="npy", shard_size="3kB", workers=0, **options)
    assert list((dest / ".packing").glob("*.part"))
    bad.write_bytes(picture(5))
    os.utime(bad, STAMP)


def _cut(data: bytes) -> bytes:
    return data[: len(data) // 2]


def _flip(data: bytes) -> bytes:
    middle = len(data) // 2
    return data[:middle] + bytes([data[middle] ^ 0x55]) + data[middle + 1 :]


PIECES = ["options.json", "listing.json", "listing", "train-00001.part", "new/train-00001.jpg.npy"]
DAMAGE = {"cut": _cut, "flip": _flip, "empty": lambda data: b"", "gone": None}


@pytest.fixture(scope="module")
def undamaged(tmp_path_factory: pytest.TempPathFactory) -> dict[str, bytes]:
    """What the pack that was half done becomes when nothing is wrong with it."""
    source, dest = (tmp_path_factory.mktemp("undamaged") / name for name in ("source", "dest"))
    started(make_images(source), dest)
    shardkit.pack(source, dest, to="npy", shard_size="3kB", workers=1, overwrite=True)
    return tree(dest)


@pytest.mark.parametrize("piece", PIECES)
@pytest.mark.parametrize("damage", ["flip", *thorough("cut", "empty", "gone")])
def test_a_damaged_journal(
    piece: str, damage: str, undamaged: dict[str, bytes], tmp_path: Path
) -> None:
    """It is refused in one line, or what is damaged is made again; only contents are trusted."""
    if piece.startswith("new/") and damage == "flip":
        pytest.skip("finished shards are not read again: verify does that")
    source, dest = make_images(tmp_path / "source"), tmp_path / "dest"
    started(source, dest)
    path, change = dest / ".packing" / piece, DAMAGE[damage]
    path.write_bytes(change(path.read_bytes())) if change else path.unlink()
    workers = 2 * ((PIECES.index(piece) + [*DAMAGE].index(damage)) % 2)
    options = {"to": "npy", "shard_size": "3kB", "workers": workers}
    if piece == "options.json" and damage != "gone":
        with pytest.raises(ResumeError, match=r"options.json, the record of .* is damaged; pass"):
            shardkit.pack(source, dest, **options)
        return
    result = shardkit.pack(source, dest, **options)
    assert tree(dest) == undamaged
    kept = 0 if piece == "options.json" else result.num_shards - 1 - piece.count("train")
    assert result.resumed_shards == kept


@pytest.mark.parametrize("piece", ["listing.json", "listing"])
@pytest.mark.parametrize("damage", DAMAGE)
def test_a_damaged_journal_of_changed_input(piece: str, damage: str, tmp_path: Path) -> None:
    source, dest = make_images(tmp_path / "source"), tmp_path / "dest"
    started(source, dest)
    path, change = dest / ".packing" / piece, DAMAGE[damage]
    path.write_bytes(change(path.read_bytes())) if change else path.unlink()
    write(source / "class0" / "img.000.jpg", picture(9, 20))
    with pytest.raises(ResumeError, match="input files changed since this pack was started"):
        shardkit.pack(source, dest, to="npy", shard_size="3kB", workers=0)


def test_changed_input_is_refused(tmp_path: Path) -> None:
    options = {"to": "npy", "shard_size": "3kB", "workers": 0}
    for number, (change, said) in enumerate(
        [
            (lambda s: os.utime(s / "class0" / "img.000.jpg", (5, 5)), "img.000.jpg"),
            (
                lambda s: write(s / "class0" / "img.000.jpg", picture(9, 20)),
                "img.000.jpg.* changed",
            ),
            (lambda s: write(s / "class1" / "a.jpg", picture(1)), r"found|added"),
            (lambda s: (s / "class2" / "img.003.jpg").unlink(), "img.003.jpg"),
        ]
    ):
        source, dest = tmp_path / f"s{number}", tmp_path / f"d{number}"
        make_images(source)
        started(source, dest)
        change(source)
        with pytest.raises(ResumeError, match=said) as caught:
            shardkit.pack(source, dest, **options)
        assert "changed since this pack was started" in str(caught.value)
        shardkit.pack(source, dest, overwrite=True, **options)
        assert shardkit.verify(dest, against=source).ok


def test_changed_options_are_refused(tmp_path: Path) -> None:
    source, dest = make_images(tmp_path / "source"), tmp_path / "dest"
    started(source, dest)
    for other in ({"shuffle": True}, {"to": "lmdb"}, {"shard_size": "4kB"}, {"val_fraction": 0.1}):
        with pytest.raises(ResumeError, match="other options: "):
            shardkit.pack(source, dest, **{"to": "npy", "shard_size": "3kB", "workers": 0, **other})
    name = r"to was 'npy', now 'lmdb'"
    with pytest.raises(ResumeError, match=name):
        shardkit.pack(source, dest, to="lmdb", shard_size="3kB")


def test_a_second_packer_is_refused_while_the_first_lives(tmp_path: Path) -> None:
    source = make_images(tmp_path / "source", per_class=100)
    dest = tmp_path / "dest"
    first = start(command(source, dest, "--to", "npy", "--shard-size", "2kB", "--workers", "2"))
    while not (dest / ".packing" / "options.json").exists():
        time.sleep(0.0005)
    first.send_signal(signal.SIGSTOP)
    try:
        for overwrite in (False, True):
            with pytest.raises(DestinationError, match=f"another process .process {first.pid}"):
                shardkit.pack(source, dest, to="npy", shard_size="2kB", overwrite=overwrite)
    finally:
        first.kill()
        first.wait()
        first.stderr.close()
    shardkit.pack(source, dest, to="npy", shard_size="2kB", workers=0)
    assert shardkit.verify(dest, against=source).ok


@pytest.mark.parametrize("how", [signal.SIGKILL, signal.SIGTERM])
def test_a_dead_worker_is_said(how: signal.Signals, tmp_path: Path) -> None:
    source = make_images(tmp_path / "source", per_class=100)
    dest = tmp_path / "dest"
    run = command(source, dest, "--to", "npy", "--shard-size", "1kB", "--workers", "2")
    process = start(run)
    while not list((dest / ".packing").glob("*.part")):
        time.sleep(0.001)
    children = Path(f"/proc/{process.pid}/task/{process.pid}/children").read_text().split()
    os.kill(int(children[0]), how)
    _, stderr = process.communicate(timeout=20)
    assert process.returncode == 1
    line = stderr.decode()
    said = f"worker was killed by signal {int(how)} ({how.name})"
    assert line.count("\n") == 1 and said in line, line
    assert ("memory" in line) == (how == signal.SIGKILL)
    assert not (dest / "shardkit.json").exists()


def test_an_exit_status_is_said() -> None:
    assert _end(3, "") == "ended with exit status 3"
    assert _end(-64, " here") == "was killed by signal 64 (SIGRTMAX) here"


@pytest.mark.skipif(os.getuid() != 0, reason="mounting a small tmpfs needs root")
@pytest.mark.parametrize("workers", [1, *thorough(2)])
def test_full_disk(container: str, workers: int, tmp_path: Path) -> None:
    source = make_images(tmp_path / "source", per_class=200)
    small = tmp_path / "small"
    small.mkdir()
    mount = ["mount", "-t", "tmpfs", "-o", "size=256k", "tmpfs", str(small)]
    if subprocess.run(mount, capture_output=True).returncode:
        pytest.skip("this system does not let root mount a tmpfs")
    try:
        options = {"to": container, "shard_size": "40kB", "workers": workers}
        with pytest.raises(StorageError, match="the disk is full") as caught:
            shardkit.pack(source, small / "dest", **options)
        assert "\n" not in str(caught.value)
        assert not (small / "dest" / "shardkit.json").exists()
        subprocess.run(["mount", "-o", "remount,size=64m", str(small)], check=True)
        shardkit.pack(source, small / "dest", **options)
        assert shardkit.verify(small / "dest", against=source).ok
        shardkit.pack(source, tmp_path / "dest", **{**options, "workers": 0})
        assert tree(small / "dest") == tree(tmp_path / "dest")
    finally:
        subprocess.run(["umount", str(small)], check=True)


def test_overwriting_a_started_pack_leaves_nothing_of_it(tmp_path: Path) -> None:
    source = make_images(tmp_path / "source", per_class=100)
    dest = tmp_path / "dest"
    options = {"to": "npy", "shard_size": "2kB", "val_fraction": 0.5, "overwrite": True}
    for number_of_parts in (1, 20, 60):
        assert pack_killed_at(number_of_parts, 0.001, source, dest, **options)
    shardkit.pack(source, dest, to="lmdb", workers=0, overwrite=True)
    assert sorted(tree(dest)) == [
        "data.mdb",
        "shardkit.json",
        *(f"train-00000.{ending}" for ending in ("lmdb",)),
        *(f"train.{kind}" for kind in ("find", "names", "rows", "sums")),
    ]


def test_a_bad_file_can_be_skipped_after_all(tmp_path: Path) -> None:
    source, dest = make_images(tmp_path / "source"), tmp_path / "dest"
    started(source, dest)
    options = {"to": "npy", "shard_size": "3kB", "workers": 0, "max_rejects": 0.1}
    write(source / "class9" / "bad.jpg", BAD)
    os.utime(source / "class9" / "bad.jpg", STAMP)
    result = shardkit.pack(source, dest, on_error="skip", **options)
    assert (result.num_rejects, result.num_samples) == (1, 36) and result.resumed_shards > 2
    assert shardkit.verify(dest, against=source).ok


def test_a_pack_that_did_nothing_leaves_nothing(tmp_path: Path) -> None:
    source = tmp_path / "source"
    write(source / "a" / "bad.jpg", "no picture")
    for workers in (1, 2):
        with pytest.raises(shardkit.errors.SampleError):
            shardkit.pack(source, tmp_path / "dest", to="npy", workers=workers)
        assert not (tmp_path / "dest").exists()


@pytest.mark.parametrize("workers", [1, 2])
def test_a_pack_that_lacks_only_its_index_ends(tmp_path: Path, workers: int) -> None:
    """No job is left for the workers: they must not be waited for."""
    source = make_images(tmp_path / "source")
    undisturbed, dest = tmp_path / "undisturbed", tmp_path / "dest"
    options = {"to": "npy", "shard_size": "3kB", "workers": workers}
    num_parts = shardkit.pack(source, undisturbed, **options).num_shards
    for _ in range(50):
        pack_killed_at(num_parts, 0, source, dest, **options)
        if not (dest / "shardkit.json").exists():
            break
        shutil.rmtree(dest)
    shardkit.pack(source, dest, **options)
    assert tree(dest) == tree(undisturbed)
