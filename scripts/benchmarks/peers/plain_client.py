"""obstore downloads files whole, 64 at once: see ``bench_remote.py``, which runs this.

    python plain_client.py URL OUT NAME...

Prints the seconds from the first request to the last byte written.
"""

from __future__ import annotations

import sys
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import obstore
from obstore.store import HTTPStore

AT_ONCE = 64
WRITE_BYTES = 1 << 20


def main(url: str, out: str, *names: str) -> None:
    store = HTTPStore.from_url(url, client_options={"allow_http": True})

    def download(name: str) -> None:
        with (Path(out) / name).open("wb") as file:
            for piece in obstore.get(store, name).stream(min_chunk_size=WRITE_BYTES):
                file.write(piece)

    began = time.perf_counter()
    with ThreadPoolExecutor(AT_ONCE) as threads:
        list(threads.map(download, names))
    print(time.perf_counter() - began)


if __name__ == "__main__":
    main(*sys.argv[1:])
