"""Packing on a Ray cluster of several nodes, all on this machine; skipped where Ray is not.

Nothing of Ray runs in this process but what starts nodes: each command is a driver of its own.
"""

from __future__ import annotations

import fcntl
import json
import os
import random
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from conftest import make_images, make_texts, tree, write
from ray_nodes import Nodes

import shardkit

pytest.importorskip("ray")


@pytest.fixture(scope="module")
def nodes() -> Iterator[Nodes]:
    with Nodes(2) as started:
        yield started


@pytest.fixture(scope="module")
def pictures(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_images(tmp_path_factory.mktemp("pictures") / "source", per_class=100)


def command(*words: object) -> list[str]:
    return [sys.executable, "-W", "error", "-m", "shardkit", *map(str, words)]


def on_ray(nodes: Nodes, *words: object) -> list[str]:
    return command(*words, "--engine", "ray", "--address", nodes.address)


def ran(args: list[str], code: int = 0) -> subprocess.CompletedProcess[str]:
    done = subprocess.run(args, capture_output=True, text=True)
    assert done.returncode == code, done.stderr
    return done


def started(args: list[str], until: Callable[[], bool]) -> subprocess.Popen[str]:
    process = subprocess.Popen(args, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    while not until():
        assert process.poll() is None, process.communicate()
        time.sleep(0.01)
    return process


@contextmanager
def descriptor(path: Path) -> Iterator[int]:
    """A number under which this process has a file or folder, and no other has any."""
    opened = os.open(path, os.O_RDONLY)
    fd = fcntl.fcntl(opened, fcntl.F_DUPFD_CLOEXEC, 500)
    os.close(opened)
    try:
        yield fd
    finally:
        os.close(fd)


def num_done(dest: Path) -> int:
    return len(list((dest / ".packing").glob("*.part")))


def test_objects(nodes: Nodes, tmp_path: Path) -> None:
    """A dataset, and a function over inputs, of a script that no node could import."""
    script = write(
        tmp_path / "script.py",
        f"""
import sys
import shardkit
class Rows:
    def __len__(self):
        return 500
    def __getitem__(self, row):
        return {{"txt": f"row {{row}}", "cls": row % 3}}
def make(number):
    yield from ({{"txt": f"{{number}} {{part}}"}} for part in range(number % 3))
options = dict(to="npy", shard_size="1kB", progress=False)
ray = dict(engine="ray", address={nodes.address!r})
for name, more in ("local", dict(workers=0)), ("ray", ray):
    shardkit.pack(Rows(), f"{tmp_path}/rows-{{name}}", **options, **more)
    shardkit.pack([*range(300)], f"{tmp_path}/fn-{{name}}", fn=make, **options, **more)
""",
    )
    ran([sys.executable, str(script)])
    for kind in ("rows", "fn"):
        assert tree(tmp_path / f"{kind}-ray") == tree(tmp_path / f"{kind}-local")


@pytest.mark.parametrize("to", ["npy", "webdataset"])
def test_the_same_bytes(to: str, nodes: Nodes, pictures: Path, tmp_path: Path) -> None:
    options = ["--to", to, "--shard-size", "8kB", "--shuffle", "--max-side", 12]
    options += ["--val-fraction", 0.2]
    done = ran(on_ray(nodes, "pack", pictures, tmp_path / "ray", *options, "--json"))
    assert json.loads(done.stdout)["num_shards"] > 10 and done.stderr == ""
    ran(command("pack", pictures, tmp_path / "local", *options))
    assert tree(tmp_path / "ray") == tree(tmp_path / "local")
    again = ran(on_ray(nodes, "pack", pictures, tmp_path / "ray", *options))
    assert "complete already" in again.stdout


def test_tokens_and_their_conversion(nodes: Nodes, tmp_path: Path) -> None:
    pytest.importorskip("tokenizers")
    source = make_texts(tmp_path / "source")
    options = ["--train-tokenizer", 300, "--shard-size", "100B"]
    ran(on_ray(nodes, "pack", source, tmp_path / "ray", *options))
    ran(command("pack", source, tmp_path / "local", *options, "--workers", 1))
    assert tree(tmp_path / "ray") == tree(tmp_path / "local")
    ran(on_ray(nodes, "convert", tmp_path / "ray", tmp_path / "copy", "--to", "lmdb"))
    ran(command("convert", tmp_path / "local", tmp_path / "other", "--to", "lmdb"))
    assert tree(tmp_path / "copy") == tree(tmp_path / "other")


def test_tars_of_others_by_a_pattern(nodes: Nodes, pictures: Path, tmp_path: Path) -> None:
    shardkit.pack(pictures, tmp_path / "made", to="webdataset", shard_size="30kB", progress=False)
    (tmp_path / "made" / "shardkit.json").unlink()
    tars = tmp_path / "made" / "train-{00000..00002}.tar"
    ran(on_ray(nodes, "convert", tars, tmp_path / "ray", "--to", "npy"))
    ran(command("convert", tars, tmp_path / "local", "--to", "npy"))
    assert tree(tmp_path / "ray") == tree(tmp_path / "local")


def test_verify(nodes: Nodes, pictures: Path, tmp_path: Path) -> None:
    """The same report, in the same order, of a dataset that is whole and of one that is not."""
    dest = tmp_path / "dest"
    options = {"shard_size": "8kB", "val_fraction": 0.3, "progress": False}
    shardkit.pack(pictures, dest, to="npy", **options)
    for broken in (False, True):
        if broken:
            for number in (1, 4, 7):
                shard = dest / f"train-{number:05d}.jpg.npy"
                data = bytearray(shard.read_bytes())
                data[200 * number] ^= 1
                shard.write_bytes(data)
            (dest / "val-00000.jpg.npy").unlink()
        local = ran(command("verify", dest, "--json"), int(broken))
        ours = ran(on_ray(nodes, "verify", dest, "--json"), int(broken))
        assert ours.stdout == local.stdout and ours.stderr == ""
    assert len(json.loads(ours.stdout)["problems"]) == 4
    whole = ran(on_ray(nodes, "verify", dest, "--against", pictures), 1)
    assert "not compared with" in whole.stdout


def test_verify_of_a_file_that_a_node_does_not_see(
    nodes: Nodes, pictures: Path, tmp_path: Path
) -> None:
    """It is whole here, so nothing of the dataset is broken; but something is."""
    dest = tmp_path / "dest"
    shardkit.pack(pictures, dest, to="npy", shard_size="8kB", progress=False)
    hidden = (dest / "train-00003.jpg.npy").rename(tmp_path / "hidden")
    with descriptor(hidden) as fd:
        (dest / "train-00003.jpg.npy").symlink_to(f"/proc/self/fd/{fd}")
        args = on_ray(nodes, "verify", dest)
        done = subprocess.run(args, capture_output=True, text=True, pass_fds=[fd])
    assert done.returncode == 1
    first, second, *_ = done.stdout.splitlines()
    assert first.startswith("BROKEN train-00003: node ") and "is missing" in first
    assert "this machine does not" in first and ": 1 problem (300 samples" in second


def test_bad_inputs(nodes: Nodes, tmp_path: Path) -> None:
    source = make_images(tmp_path / "source")
    write(source / "class1" / "bad.jpg", "no picture")
    options = ["--to", "npy", "--shard-size", "3kB"]
    ours = ran(on_ray(nodes, "pack", source, tmp_path / "ray", *options), 1)
    local = ran(command("pack", source, tmp_path / "local", *options), 1)
    assert ours.stderr == local.stderr != ""
    options += ["--on-error", "skip", "--max-rejects", 0.1]
    ran(on_ray(nodes, "pack", source, tmp_path / "ray", *options))
    ran(command("pack", source, tmp_path / "local", *options))
    assert tree(tmp_path / "ray") == tree(tmp_path / "local")
    assert (tmp_path / "ray" / "rejected.jsonl").exists()


def test_a_folder_that_a_node_does_not_see(nodes: Nodes, tmp_path: Path) -> None:
    """What a process sees by its own descriptor, no other does."""
    source = make_images(tmp_path / "source")
    with descriptor(source) as fd:
        own = f"/proc/self/fd/{fd}"
        args = on_ray(nodes, "pack", own, tmp_path / "dest", "--to", "npy")
        done = subprocess.run(args, capture_output=True, text=True, pass_fds=[fd])
    assert done.returncode == 2
    assert "does not see the source" in done.stderr and done.stderr.count("\n") == 1
    assert not (tmp_path / "dest").exists()


def test_a_mount_that_a_node_does_not_have(nodes: Nodes, tmp_path: Path) -> None:
    """A part of the source is another folder for each process: nobody would notice the difference,
    where what is missing is skipped."""
    source = make_images(tmp_path / "source")
    hidden = make_images(tmp_path / "hidden", classes=1)
    with descriptor(hidden / "class0") as fd:
        (source / "class9").symlink_to(f"/proc/self/fd/{fd}")
        for mode in (["skip", "--max-rejects", "0.9"], ["fail"]):
            args = on_ray(nodes, "pack", source, tmp_path / "dest", "--to", "npy")
            args += ["--on-error", *mode]
            done = subprocess.run(args, capture_output=True, text=True, pass_fds=[fd])
            assert done.returncode == 2
            assert "could not read inputs of shard train-00000 that this machine" in done.stderr


@pytest.fixture(scope="module")
def undisturbed(pictures: Path, tmp_path_factory: pytest.TempPathFactory) -> dict[str, bytes]:
    """300 shards of a picture each, packed on this machine."""
    dest = tmp_path_factory.mktemp("undisturbed") / "dest"
    shardkit.pack(pictures, dest, to="npy", shard_size="700B", progress=False)
    return tree(dest)


MANY = ["--to", "npy", "--shard-size", "700B"]


def test_workers_and_a_node_die(
    nodes: Nodes, pictures: Path, undisturbed: dict[str, bytes], tmp_path: Path
) -> None:
    rng = random.Random(1)
    dest = tmp_path / "dest"
    nodes.add()
    process = started(on_ray(nodes, "pack", pictures, dest, *MANY), lambda: num_done(dest) > 0)
    kills = 0
    while process.poll() is None and kills < 6:
        kills += nodes.kill_worker(rng)
        if kills == 2:
            nodes.kill_raylet()
            kills += 1
        time.sleep(0.1)
    out, err = process.communicate()
    assert process.returncode == 0, err
    assert kills == 6 and err == "" and out.startswith("packed 300 samples")
    assert tree(dest) == undisturbed


def test_the_driver_dies(
    nodes: Nodes, pictures: Path, undisturbed: dict[str, bytes], tmp_path: Path
) -> None:
    """Its cluster lives on; the same command goes on at once, on this machine or on the cluster."""
    dest = tmp_path / "dest"
    args = on_ray(nodes, "pack", pictures, dest, *MANY, "--json")
    for wanted in (10, 100):
        process = started(args, lambda wanted=wanted: num_done(dest) >= wanted)
        process.kill()
        process.communicate()
        assert list((dest / ".packing").glob("attempts-*"))
    done = json.loads(ran(args).stdout)
    assert done["resumed_shards"] >= 100
    assert tree(dest) == undisturbed


def test_ctrl_c(nodes: Nodes, pictures: Path, tmp_path: Path) -> None:
    dest = tmp_path / "dest"
    process = started(on_ray(nodes, "pack", pictures, dest, *MANY), lambda: num_done(dest) > 3)
    process.send_signal(signal.SIGINT)
    _, err = process.communicate(timeout=30)
    assert process.returncode == 130
    assert err.strip() == (
        "shardkit: error: interrupted; what is done is kept, run the same command again to go on"
    )
    assert not list((dest / ".packing").glob("attempts-*"))
    assert not list((dest / ".packing").glob("lease-*"))


def test_a_driver_that_was_thought_dead(
    nodes: Nodes, pictures: Path, undisturbed: dict[str, bytes], tmp_path: Path
) -> None:
    """Another machine took its lease over, and the folder of its tasks away."""
    dest = tmp_path / "dest"
    process = started(on_ray(nodes, "pack", pictures, dest, *MANY), lambda: num_done(dest) > 3)
    (dest / ".packing" / "lease-1").unlink()
    _, err = process.communicate()
    assert process.returncode == 1 and "was taken over by another process" in err
    assert 3 < num_done(dest) < 300
    ran(on_ray(nodes, "pack", pictures, dest, *MANY))
    assert tree(dest) == undisturbed


def test_a_cluster_of_its_own(pictures: Path, tmp_path: Path) -> None:
    """No address: a cluster of this machine, which ends with the command."""
    env = {name: value for name, value in os.environ.items() if name != "RAY_ADDRESS"}
    args = command("pack", pictures, tmp_path / "ray", "--to", "lmdb", "--engine", "ray")
    subprocess.run([*args, "--workers", "1"], check=True, env=env)
    ran(command("pack", pictures, tmp_path / "local", "--to", "lmdb"))
    assert tree(tmp_path / "ray") == tree(tmp_path / "local")


CONNECTED = """
import logging, pathlib, sys
import ray, shardkit
address, said, *args = sys.argv[1:]
ray.init(address=address, log_to_driver=False, logging_level=logging.ERROR)
packed = shardkit.pack(*args, to="npy", shard_size="8kB", engine="ray", workers=1)
assert shardkit.verify(packed.dest, engine="ray").ok
try:
    shardkit.verify(packed.dest, engine="ray", address="auto")
except shardkit.errors.UsageError as error:
    pathlib.Path(said).write_text(f"{error} {ray.is_initialized()}")
"""


def test_a_connection_that_is_there_is_used_and_stays(
    nodes: Nodes, pictures: Path, tmp_path: Path
) -> None:
    # Into a file: Ray prints there what becomes of other nodes, log_to_driver or not.
    said = tmp_path / "said"
    args = [sys.executable, "-W", "error", "-c", CONNECTED, nodes.address, str(said)]
    ran([*args, str(pictures), str(tmp_path / "ray")])
    expected = "address is given, and this process is connected to Ray: leave it out True"
    assert said.read_text() == expected
    shardkit.pack(pictures, tmp_path / "local", to="npy", shard_size="8kB", progress=False)
    assert tree(tmp_path / "ray") == tree(tmp_path / "local")


@pytest.mark.parametrize(
    ("address", "said"),
    [
        ("127.0.0.1:1", "no Ray cluster answers at 127.0.0.1:1: [Errno 111] Connection refused"),
        ("ray://127.0.0.1:1", "address ray://127.0.0.1:1 is for Ray Client"),
    ],
)
def test_no_cluster(address: str, said: str, pictures: Path, tmp_path: Path) -> None:
    args = command("pack", pictures, tmp_path / "dest", "--to", "npy", "--engine", "ray")
    done = subprocess.run([*args, "--address", address], capture_output=True, text=True)
    assert done.returncode in (1, 2)
    assert said in done.stderr and done.stderr.count("\n") == 1
    assert not (tmp_path / "dest").exists()
