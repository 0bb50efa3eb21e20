"""How fast epochs come by URL, beside plain clients that download the same files whole.

    PYTHONPATH=. python scripts/benchmarks/bench_remote.py --within /dev/shm --rounds 3

nginx serves, with 20 ms before each answer (Debian: `apt-get install nginx-light
libnginx-mod-http-echo`); curl and obstore download with 64 connections each. Each round: both of
these, epoch 1 by URL in full order, then later epochs by URL and from disk by turns, of each
format. First of all, both sides' batches are compared. MB/s are of the bytes of the dataset.

Server and client share this machine, so its processors are the limit, of which a client that checks
what comes, and makes batches of it, needs more. For a network that is the limit:
``tc qdisc add dev lo root tbf rate 5gbit burst 4mb latency 50ms`` before, and ``tc qdisc del dev lo
root`` after.

In memory (``--within /dev/shm``), as some virtual machines give what is free back to their host,
and whoever writes a file on a disk next waits for it: 2.0 s for 550 MB, else 0.15 s.

With ``--peers PYTHON``, of an environment which has litdata, mosaicml-streaming, boto3 and h5py,
these read the same samples from the same server, which stands for S3, as ``peers/remote_peer.py``
says; what they return is compared, too, but for h5py, which reads some samples of our own HDF5.
"""

from __future__ import annotations

import argparse
import gc
import json
import os
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
from collections import defaultdict
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import numpy as np
import torch  # noqa: F401  so that no first batch waits for its import

import shardkit

sys.path.insert(0, str(Path(__file__).parent / "peers"))

from remote_peer import digest

PEER = Path(__file__).parent / "peers" / "remote_peer.py"
PLAIN = Path(__file__).parent / "peers" / "plain_client.py"
PEERS = ("litdata", "mosaicml", "h5py")
FORMATS = ("webdataset", "hdf5", "lmdb", "npy")
PORT = 18099
PAUSE_S = 0.5
"""After first epochs: what nobody needed is still on its way."""

LATER = 11
"""Epochs from the second on, by URL and from disk by turns: one takes some hundredths of a second,
and noise is a tenth of that."""

CONFIG = """
load_module modules/ngx_http_echo_module.so;
worker_processes 2; pid {root}/pid; error_log {root}/error.log; daemon off;
events {{ worker_connections 4096; }}
http {{ access_log off; sendfile on; keepalive_requests 1000000;
  client_body_temp_path {root}/t1; proxy_temp_path {root}/t2; fastcgi_temp_path {root}/t3;
  uwsgi_temp_path {root}/t4; scgi_temp_path {root}/t5;
  server {{ listen 127.0.0.1:{port} backlog=4096; root {root}/www;
    location / {{ echo_sleep {delay}; echo_exec @file; }} location @file {{ }} }} }}
"""


@contextmanager
def nginx(root: Path, delay: float) -> Iterator[str]:
    config = root / "nginx.conf"
    config.write_text(CONFIG.format(root=root, port=PORT, delay=delay))
    server = subprocess.Popen(["nginx", "-p", "/usr/share/nginx", "-c", str(config)])
    try:
        time.sleep(0.5)
        if server.poll() is not None:
            sys.exit("nginx does not start: see above, and is its echo module installed?")
        yield f"http://127.0.0.1:{PORT}"
    finally:
        server.terminate()
        server.wait()


def remove(cache: Path) -> None:
    """And what of it is still mapped, which takes room until then."""
    gc.collect()
    while cache.exists():  # what fetches ahead may still write a file there
        shutil.rmtree(cache, ignore_errors=True)


def make(root: Path, num_samples: int, peers: str | None) -> None:
    draws, source = np.random.default_rng(1), root / "source"
    source.mkdir()
    for number in range(num_samples):
        data = b"\xff\xd8\xff" + draws.bytes(int(draws.integers(60_000, 160_000)))
        (source / f"{number:06}.jpg").write_bytes(data)
    for name in FORMATS:
        shardkit.pack(source, root / "www" / name, to=name, progress=False)
    if peers is not None:
        bucket = root / "www" / "bucket"
        bucket.mkdir()
        (bucket / "hdf5").symlink_to(root / "www" / "hdf5")
        for name in PEERS[:2]:
            run_peer(peers, "write", name, str(source), str(bucket / name))
    shutil.rmtree(source)


def run_peer(python: str, *args: str) -> str:
    env = {**os.environ, "AWS_ACCESS_KEY_ID": "any", "AWS_SECRET_ACCESS_KEY": "any"}
    env["AWS_REGION"] = env["AWS_DEFAULT_REGION"] = "us-east-1"
    done = subprocess.run([python, str(PEER), *args], env=env, stdout=subprocess.PIPE, check=True)
    return done.stdout.decode().strip().rpartition("\n")[2]


def peer_round(python: str, name: str, url: str, cache: Path, expected: int) -> dict[str, float]:
    """As :func:`one_round`, as far as that is to be had."""
    epochs = 1 if name == "h5py" else 2
    found = json.loads(run_peer(python, "read", name, url, str(cache), str(epochs)))
    if name != "h5py" and found["digest"] != expected:
        sys.exit(f"{name} returned {found['samples']} samples, and not those that were written")
    size, (first, *second) = found["bytes"] / 1e6, found["epochs"]
    rates = {"epoch 1": size / first, "samples/s": found["samples"] / first}
    rates |= {"open s": found["open"], "first batch s": found["first"]}
    return rates | ({"epoch 2": size / second[0]} if second else {})


def curl(url: str, files: list[Path], out: Path) -> float:
    out.mkdir()
    pairs = [part for file in files for part in ("-o", out / file.name, f"{url}/{file.name}")]
    limits = ["--parallel", "--parallel-immediate", "--parallel-max", "64"]
    began = time.perf_counter()
    subprocess.run(["curl", "-s", "--no-progress-meter", *limits, *pairs], check=True)
    seconds = time.perf_counter() - began
    shutil.rmtree(out)
    return seconds


def obstore(url: str, files: list[Path], out: Path) -> float:
    """In a process of its own: who has used it must not fork any more."""
    out.mkdir()
    command = [sys.executable, str(PLAIN), url, str(out), *(file.name for file in files)]
    done = subprocess.run(command, stdout=subprocess.PIPE, check=True)
    got, sent = ({f.name: f.stat().st_size for f in some} for some in (out.iterdir(), files))
    if got != sent:
        sys.exit(f"obstore wrote other files than those at {url}")
    shutil.rmtree(out)
    return float(done.stdout)


def epoch(loader: shardkit.Loader) -> tuple[float, float]:
    """(seconds to the first batch, seconds)."""
    began = time.perf_counter()
    first = 0.0
    for _ in loader:
        first = first or time.perf_counter() - began
    return first, time.perf_counter() - began


def loader_of(path: str | Path, cache: Path | None, batch_size: int) -> shardkit.Loader:
    dataset = shardkit.open(path, decode=False, cache_dir=cache)
    return shardkit.Loader(dataset, batch_size, seed=1, workers=2, as_buffer=["jpg"])


def refuse_other_batches(url: str, folder: Path, cache: Path, batch_size: int) -> None:
    ours, theirs = loader_of(url, cache, batch_size), loader_of(folder, None, batch_size)
    for one, other in zip(ours, theirs, strict=True):
        if not one["jpg"].data.equal(other["jpg"].data):
            sys.exit(f"{url} gives other batches than {folder}")


def one_round(url: str, folder: Path, within: Path, batch_size: int) -> dict[str, float]:
    files = list(folder.iterdir())
    size = sum(file.stat().st_size for file in files) / 1e6
    whole = curl(url, files, within / "out")
    quickest = obstore(url, files, within / "out")
    began = time.perf_counter()
    ours = loader_of(url, within / "cache", batch_size)
    opened = time.perf_counter() - began
    first, fetched = epoch(ours)
    time.sleep(PAUSE_S)
    local = loader_of(folder, None, batch_size)
    epoch(local)
    time.sleep(PAUSE_S)
    pairs = [(epoch(ours)[1], epoch(local)[1]) for _ in range(LATER)]
    cached = statistics.median(one for one, _ in pairs)
    ratio = statistics.median(other / one for one, other in pairs)
    rates = {"curl": size / whole, "obstore": size / quickest, "epoch 1": size / fetched}
    rates |= {"of curl": whole / fetched, "of obstore": quickest / fetched}
    seconds = {"open s": opened, "first batch s": first}
    return rates | seconds | {"epoch 2": size / cached, "of local": ratio}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--within", type=Path, default=Path("/var/tmp"))
    parser.add_argument("--samples", type=int, default=4000)
    parser.add_argument("--batch-size", type=int, default=64)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--peers", metavar="PYTHON", help="of an environment that has them")
    parser.add_argument("--delay", type=float, default=0.02, help="seconds a request")
    asked = parser.parse_args()
    with tempfile.TemporaryDirectory(dir=asked.within) as name:
        root = Path(name)
        root.chmod(0o755)
        (root / "www").mkdir()
        make(root, asked.samples, asked.peers)
        stored = shardkit.open(root / "www" / FORMATS[0], decode=False)
        expected = digest(stored.read([row])["jpg"][0] for row in range(len(stored)))
        found: dict[str, dict[str, list[float]]] = defaultdict(lambda: defaultdict(list))
        with nginx(root, asked.delay) as url:
            for name in FORMATS:
                at = root / "www" / name
                refuse_other_batches(f"{url}/{name}", at, root / "checked", 64)
                remove(root / "checked")
            for number in range(asked.rounds):
                for name in FORMATS:
                    within = root / f"{name}-{number}"
                    within.mkdir()
                    at = root / "www" / name
                    figures = one_round(f"{url}/{name}", at, within, asked.batch_size)
                    remove(within)
                    for what, figure in figures.items():
                        found[name][what].append(figure)
                for name in PEERS if asked.peers else ():
                    cache = root / f"{name}-{number}"
                    for what, figure in peer_round(asked.peers, name, url, cache, expected).items():
                        found[name][what].append(figure)
                    shutil.rmtree(cache, ignore_errors=True)
    columns = list(dict.fromkeys(what for row in found.values() for what in row))
    print(f"{'medians':12}" + "".join(f"{what:>14}" for what in columns))
    for name, row in found.items():
        cells = [f"{statistics.median(row[what]):.2f}" if what in row else "" for what in columns]
        print(f"{name:12}" + "".join(f"{cell:>14}" for cell in cells))


if __name__ == "__main__":
    main()
