"""Leases: one holder at a time, on whichever machine, though no lock reaches that far."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from conftest import make_images, settle

import shardkit
from shardkit.commit import leases
from shardkit.commit.leases import Lease, refuse_leased
from shardkit.errors import DestinationError, StorageError

HOLD = """
import sys, time
from pathlib import Path
from shardkit.commit import leases
leases.BEAT_S = 0.1
if sys.argv[2:]:
    leases._machine = lambda: sys.argv[2]
with leases.Lease(Path(sys.argv[1])):
    print("held", flush=True)
    time.sleep(60)
"""


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Half a minute of patience, and the beats of a lease, in a fiftieth of the time."""
    monkeypatch.setattr(leases, "BEAT_S", 0.1)
    monkeypatch.setattr(leases, "PATIENCE_S", 0.6)
    work = tmp_path / "dest" / ".packing"
    work.mkdir(parents=True)
    return work


@pytest.fixture
def holders(folder: Path) -> Iterator[list[subprocess.Popen[str]]]:
    found: list[subprocess.Popen[str]] = []
    yield found
    for process in found:
        process.kill()
        process.communicate()


def hold(folder: Path, *machine: str) -> subprocess.Popen[str]:
    """Another process that holds it; of another machine, if that has a name."""
    env = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)}
    args = [sys.executable, "-c", HOLD, str(folder), *machine]
    process = subprocess.Popen(args, stdout=subprocess.PIPE, text=True, env=env)
    assert process.stdout is not None and process.stdout.readline() == "held\n"
    return process


def names(folder: Path) -> list[str]:
    return sorted(path.name for path in folder.iterdir())


def test_it_is_one_and_leaves_nothing(folder: Path) -> None:
    with Lease(folder) as held:
        held.check()
        said = rf"dest is being written by another process \(process {os.getpid()} on"
        with pytest.raises(DestinationError, match=said):
            Lease(folder)
        with pytest.raises(DestinationError, match=said):
            refuse_leased(folder)
        assert names(folder) == ["lease-1"]
    assert names(folder) == []
    refuse_leased(folder)


@pytest.mark.parametrize("machine", [[], ["elsewhere"]])
def test_a_living_holder_keeps_it(
    machine: list[str], folder: Path, holders: list[subprocess.Popen[str]]
) -> None:
    holders.append(hold(folder, *machine))
    with pytest.raises(DestinationError, match=rf"\(process {holders[0].pid} on"):
        Lease(folder)


def test_a_dead_one_of_this_machine_is_not_waited_for(
    folder: Path, holders: list[subprocess.Popen[str]], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(leases, "PATIENCE_S", 1000)
    holders.append(hold(folder))
    holders[0].kill()
    holders[0].wait()
    with Lease(folder):
        assert names(folder) == ["lease-2"]


def test_one_of_another_machine_is_watched_until_it_must_be_dead(
    folder: Path, holders: list[subprocess.Popen[str]]
) -> None:
    holders.append(hold(folder, "elsewhere"))
    holders[0].kill()
    holders[0].wait()
    started = time.monotonic()
    with Lease(folder) as held:
        assert time.monotonic() - started >= 0.5
        held.check()


def test_whoever_was_thought_dead_stops(folder: Path) -> None:
    """It writes to its own file only, which is gone, and not to one that has the same name."""
    with Lease(folder) as old:
        (folder / "lease-1").unlink()
        with Lease(folder) as new:
            assert names(folder) == ["lease-1"]
            for _ in range(5):
                old._beat()
                time.sleep(0.1)
                new.check()
                with pytest.raises(StorageError, match="dest was taken over by another process"):
                    old.check()
    assert names(folder) == []


def test_a_stopped_holder_loses_it(folder: Path, holders: list[subprocess.Popen[str]]) -> None:
    holders.append(hold(folder, "elsewhere"))
    holders[0].send_signal(signal.SIGSTOP)
    with Lease(folder) as held:
        holders[0].send_signal(signal.SIGCONT)
        time.sleep(0.5)
        held.check()
        assert names(folder) == ["lease-2"]


def test_of_many_that_find_a_dead_one_one_takes_it(
    folder: Path, holders: list[subprocess.Popen[str]]
) -> None:
    holders.append(hold(folder))
    holders[0].kill()
    holders[0].wait()
    held: list[Lease] = []
    refused: list[DestinationError] = []

    def take() -> None:
        try:
            held.append(Lease(folder))
        except DestinationError as error:
            refused.append(error)

    threads = [threading.Thread(target=take) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(held) == 1 and len(refused) == 7
    held[0].check()
    held[0].close()


def test_what_was_cut_short_is_watched_too(folder: Path) -> None:
    (folder / "lease-3").write_bytes(b"")
    with Lease(folder):
        assert names(folder) == ["lease-4"]


@pytest.mark.parametrize(
    "forged",
    [
        {},
        {"pid": "x"},
        {"pid": None},
        {"pid": float("nan")},
        {"pid": 10**30},
        {"pid": "own"},
        "",
        0,
    ],
)
def test_a_forged_one_of_this_machine(folder: Path, forged: object) -> None:
    """Somebody else made it: nobody holds it."""
    path = folder / "lease-3"
    if isinstance(forged, dict):
        own = {"pid": os.getpid()} if forged.get("pid") == "own" else forged
        path.write_text(json.dumps({"machine": leases._machine(), **own}))
    else:
        path.write_text("[" * 100_000)
        os.truncate(path, 1 << 42 if forged == 0 else 100_000)
    refuse_leased(folder)
    with Lease(folder):
        assert names(folder) == ["lease-4"]


def test_a_pack_of_this_machine_respects_that_of_another(
    folder: Path, tmp_path: Path, holders: list[subprocess.Popen[str]]
) -> None:
    source, dest = make_images(tmp_path / "source", per_class=2), folder.parent
    holders.append(hold(folder, "elsewhere"))
    with pytest.raises(DestinationError, match=r"is being written by another process \(process"):
        shardkit.pack(source, dest, to="npy", workers=0)
    assert json.loads((folder / "lease-1").read_bytes())["machine"] == "elsewhere"
    holders[0].kill()
    holders[0].wait()
    shardkit.pack(source, dest, to="npy", workers=0)
    assert settle(lambda: not folder.exists(), 1)
