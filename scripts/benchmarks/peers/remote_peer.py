"""Epochs by URL through what people use otherwise, in an environment that has it: see
``bench_remote.py``, which runs this.

    python remote_peer.py write KIND SOURCE DEST
    python remote_peer.py read KIND ENDPOINT CACHE EPOCHS

LitData and MosaicML Streaming read ``s3://bucket`` at the endpoint, shuffled, in batches of 64 with
2 workers, from chunks of 16 MB, at the settings that their documentation has. h5py reads a file
object whose blocks of 64 kB are fetched over HTTP when they are needed, sample by sample in random
order.
Prints a line of JSON: seconds to open, to the first batch, and of each epoch, and the sum of the
hashes of all samples.
"""

from __future__ import annotations

import hashlib
import io
import json
import os
import random
import sys
import time
import urllib.request
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import Any

BATCH = 64
WORKERS = 2
CHUNK = "16mb"
BUFFER = 1 << 16
H5_SAMPLES = 100


def digest(samples: Iterable[Any]) -> int:
    """Of samples in any order."""
    found = (hashlib.blake2b(bytes(one), digest_size=8).digest() for one in samples)
    return sum(int.from_bytes(one, "little") for one in found) % 2**64


def entry(path: str) -> dict[str, bytes]:
    return {"jpg": Path(path).read_bytes()}


def write(kind: str, source: Path, dest: Path) -> None:
    paths = [str(path) for path in sorted(source.iterdir())]
    if kind == "litdata":
        from litdata import optimize

        optimize(fn=entry, inputs=paths, output_dir=str(dest), chunk_bytes=CHUNK, num_workers=1)
        return
    import no_torchvision  # noqa: F401
    from streaming import MDSWriter

    with MDSWriter(out=str(dest), columns={"jpg": "bytes"}, size_limit=CHUNK) as writer:
        for path in paths:
            writer.write(entry(path))


def litdata(endpoint: str, cache: str) -> Iterable[Any]:
    from litdata import StreamingDataLoader, StreamingDataset
    from litdata.streaming import downloader

    # It has no option for a server without TLS.
    options = dict(downloader._OBSTORE_CLIENT_OPTIONS or {})
    downloader._OBSTORE_CLIENT_OPTIONS = {**options, "allow_http": True}

    class Pictures(StreamingDataset):
        def __getitem__(self, index: Any) -> dict[str, bytes]:  # views are not pickled
            return {"jpg": bytes(super().__getitem__(index)["jpg"])}

    dataset = Pictures(
        "s3://bucket/litdata",
        cache_dir=cache,
        shuffle=True,
        storage_options={"endpoint_url": endpoint},
    )
    loader: Iterable[Any] = StreamingDataLoader(
        dataset, batch_size=BATCH, num_workers=WORKERS, persistent_workers=True, collate_fn=list
    )
    return loader


def mosaicml(endpoint: str, cache: str) -> Iterable[Any]:
    import no_torchvision  # noqa: F401
    from streaming import StreamingDataset
    from torch.utils.data import DataLoader

    os.environ["S3_ENDPOINT_URL"] = endpoint
    dataset = StreamingDataset(
        remote="s3://bucket/mosaicml", local=cache, shuffle=True, batch_size=BATCH
    )
    # It keeps the connection over which the index came, and forked workers would share it: each got
    # bytes of the other's shard then, or waited for a minute for an answer that the other had got.
    for stream in dataset.streams:
        stream._downloader.clean_up()
    return DataLoader(dataset, BATCH, num_workers=WORKERS, persistent_workers=True, collate_fn=list)


class HttpFile(io.RawIOBase):
    """An object that can be read anywhere, each read a request."""

    def __init__(self, url: str) -> None:
        self._url, self._at = url, 0
        with urllib.request.urlopen(urllib.request.Request(url, method="HEAD")) as answer:
            self._size = int(answer.headers["Content-Length"])

    def readable(self) -> bool:
        return True

    def seekable(self) -> bool:
        return True

    def seek(self, offset: int, whence: int = 0) -> int:
        self._at = offset + (0, self._at, self._size)[whence]
        return self._at

    def readinto(self, out: Any) -> int:
        stop = min(self._at + len(out), self._size)
        if stop <= self._at:
            return 0
        asked = urllib.request.Request(self._url)
        asked.add_header("Range", f"bytes={self._at}-{stop - 1}")
        with urllib.request.urlopen(asked) as answer:
            data = answer.read()
        out[: len(data)] = data
        self._at += len(data)
        return len(data)


def h5py_(endpoint: str, cache: str) -> Iterable[Any]:
    """Some samples of a shard of ours, which is an HDF5 file: values end to end, and their rows."""
    import h5py

    file = io.BufferedReader(HttpFile(f"{endpoint}/bucket/hdf5/train-00000.h5"), BUFFER)
    opened = h5py.File(file, "r")
    values, offsets = opened["jpg"], opened["jpg.offsets"][:]
    rows = random.Random(1).sample(range(len(offsets) - 1), min(H5_SAMPLES, len(offsets) - 1))
    for row in rows:
        yield [{"jpg": values[int(offsets[row]) : int(offsets[row + 1])].tobytes()}]


KINDS: dict[str, Callable[[str, str], Iterable[Any]]] = {
    "litdata": litdata,
    "mosaicml": mosaicml,
    "h5py": h5py_,
}


def values(batches: Iterable[Any]) -> Iterator[bytes]:
    for batch in batches:
        yield from (one["jpg"] for one in batch)


def read(kind: str, endpoint: str, cache: str, epochs: int) -> dict[str, Any]:
    import torch  # noqa: F401  so that no first batch waits for its import

    began = time.perf_counter()
    made = KINDS[kind](endpoint, cache)
    opened = time.perf_counter() - began
    first, seconds, samples = 0.0, [], []
    for number in range(epochs):
        began = time.perf_counter()
        for sample in values(made):
            first = first or time.perf_counter() - began
            if not number:
                samples.append(sample)
        seconds.append(time.perf_counter() - began)
    num_bytes = sum(map(len, samples))
    return {
        "open": opened,
        "first": first,
        "epochs": seconds,
        "samples": len(samples),
        "bytes": num_bytes,
        "digest": digest(samples),
    }


if __name__ == "__main__":
    what, kind, *given = sys.argv[1:]
    if what == "write":
        write(kind, Path(given[0]), Path(given[1]))
    else:
        print(json.dumps(read(kind, given[0], given[1], int(given[2]))))
