"""An HTTP server of a folder, which answers ranges, counts, and fails as it is told to."""

from __future__ import annotations

import contextlib
import os
import random
import re
import socket
import struct
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from urllib.parse import unquote

FAULTS = (
    "500",
    "503",
    "429",
    "reset",
    "truncated",
    "wrong bytes",
    "short delay",
    "long delay",
)
"""What is asked for again; a server may also send the "whole body" or the "wrong range"."""


PACKET = 64 << 10
"""Bytes that an answer sends at once."""


@dataclass
class Faults:
    """What goes wrong. Only ranges of shards fail, unless ``everywhere``.

    Attributes:
        kind: one of :data:`FAULTS` or of the two others, ``mixed`` for any of :data:`FAULTS`, or
            none. rate: which part of the requests fails. first: so many fail, from the first.
        delay: seconds before each answer. is_down: connections are reset.
        delays: seconds of the two faults that are delays.
    """

    kind: str = ""
    rate: float = 0.0
    first: int = 0
    delay: float = 0.0
    delays: tuple[float, float] = (0.05, 2.0)
    is_down: bool = False
    everywhere: bool = False
    draws: random.Random = field(default_factory=lambda: random.Random(1))

    def now(self, name: str) -> str:
        if self.is_down:
            return "reset"
        if not self.kind or not (self.everywhere or name.endswith(SHARDS)):
            return ""
        if self.first > 0:
            self.first -= 1
        elif self.draws.random() >= self.rate:
            return ""
        return self.draws.choice(FAULTS) if self.kind == "mixed" else self.kind


SHARDS = (".tar", ".mdb", ".h5", ".hdf5", ".npy", ".bin", ".values")


class RangeServer(ThreadingHTTPServer):
    """Of a folder.

    Attributes:
        faults: see there. requests: (name, bytes asked for) of each. failed: how many did.
        failed_bytes: that those asked for. signed: what their Authorization headers said.
        packets: of the shards, (bytes sent with it, bytes asked for until then) of each.
            sends_on: the part of a path before ``->``, and the address that has it, or nothing.
    """

    daemon_threads = True
    request_queue_size = 256

    def __init__(self, root: Path, port: int = 0) -> None:
        super().__init__(("127.0.0.1", port), _Handler)
        self.root = root
        self.faults = Faults()
        self.requests: list[tuple[str, int]] = []
        self.failed = 0
        self.failed_bytes = 0
        self.packets: list[tuple[int, int]] = []
        self._line = threading.Lock()
        self.signed: set[str] = set()
        self.sends_on: tuple[str, str] | None = None

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.server_port}"

    @property
    def num_bytes(self) -> int:
        return sum(size for _, size in self.requests)

    def num_bytes_of(self, ending: str) -> int:
        """That were asked for, of files with such names."""
        return sum(size for name, size in self.requests if name.endswith(ending))

    def count_packet(self, name: str, size: int) -> None:
        """Before it is sent."""
        if name.endswith(SHARDS):
            with self._line:
                sent = self.packets[-1][0] if self.packets else 0
                self.packets.append((sent + size, sum(map(self.num_bytes_of, SHARDS))))

    def handle_error(self, request: object, client_address: object) -> None:
        """Who was reset, or went, is no news."""


class _Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    server: RangeServer
    disable_nagle_algorithm = True
    wbufsize = 1 << 16

    def log_message(self, format: str, *args: object) -> None:
        pass

    def do_HEAD(self) -> None:
        self.do_GET(is_head=True)

    def do_GET(self, is_head: bool = False) -> None:
        server, name = self.server, unquote(self.path.lstrip("/"))
        server.signed.add(self.headers.get("Authorization", ""))
        time.sleep(server.faults.delay)
        if server.sends_on and name.startswith(server.sends_on[0]):
            self.send_response(302)
            self.send_header("Location", name.replace(*server.sends_on))
            self.send_header("Content-Length", "0")
            self.end_headers()
            return
        fault = server.faults.now(name)
        server.failed += bool(fault)
        if server.faults.is_down:
            self._cut_off(is_reset=True)
            return
        if fault.endswith("delay"):
            time.sleep(server.faults.delays[fault == "long delay"])
        if fault in ("500", "503", "429"):
            server.requests.append((name, 0))
            self._refuse(int(fault))
            return
        path = os.path.join(server.root, name)
        if not os.path.isfile(path):
            server.requests.append((name, 0))
            self._refuse(404)
            return
        size = os.path.getsize(path)
        start, stop = self._asked(size)
        server.failed_bytes += stop - start if fault and not is_head else 0
        server.requests.append((name, 0 if is_head else stop - start))
        self._send(path, size, start, stop, "" if is_head and fault != "reset" else fault, is_head)

    def _asked(self, size: int) -> tuple[int, int]:
        asked = re.match(r"bytes=(\d+)-(\d*)", self.headers.get("Range") or "")
        if asked is None:
            return 0, size
        return int(asked[1]), min(int(asked[2]) + 1 if asked[2] else size, size)

    def _refuse(self, status: int) -> None:
        self.send_response(status)
        self.send_header("Content-Length", "0")
        if status in (429, 503):
            self.send_header("Retry-After", "1")
        self.end_headers()

    def _send(self, path: str, size: int, start: int, stop: int, fault: str, is_head: bool) -> None:
        if fault == "whole body":
            start, stop = 0, size
        if fault == "wrong range":
            step = stop - start
            start = start - step if start >= step else start + step
            start, stop = min(start, size - 1), min(start + step, size)
        with open(path, "rb") as file:
            body = b"" if is_head else os.pread(file.fileno(), stop - start, start)
        if fault == "wrong bytes" and body:
            at = self.server.faults.draws.randrange(len(body))
            body = body[:at] + bytes([body[at] ^ 1]) + body[at + 1 :]
        is_part = "Range" in self.headers and fault != "whole body"
        self.send_response(206 if is_part else 200)
        if is_part:
            self.send_header("Content-Range", f"bytes {start}-{stop - 1}/{size}")
        self.send_header("Content-Length", str(stop - start))
        self.send_header("ETag", f'"{size}-{os.stat(path).st_mtime_ns}"')
        self.send_header("Last-Modified", "Mon, 23 Nov 2026 10:00:00 GMT")
        self.end_headers()
        body = body[: len(body) // 2] if fault in ("reset", "truncated") else body
        for at in range(0, len(body), PACKET):
            self.server.count_packet(path, len(body[at : at + PACKET]))
            self.wfile.write(body[at : at + PACKET])
        if fault in ("reset", "truncated"):
            self._cut_off(is_reset=fault == "reset")

    def _cut_off(self, *, is_reset: bool) -> None:
        self.close_connection = True
        with contextlib.suppress(OSError):
            self.wfile.flush()
            if is_reset:  # closing then sends RST
                linger = struct.pack("ii", 1, 0)
                self.connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, linger)
            else:
                self.connection.shutdown(socket.SHUT_WR)


@contextmanager
def serving(root: Path) -> Iterator[RangeServer]:
    """A server of a folder, for as long as the block runs."""
    server = RangeServer(root)
    thread = threading.Thread(target=server.serve_forever, args=(0.02,), daemon=True)
    thread.start()
    try:
        yield server
    finally:
        server.shutdown()
        server.server_close()
        thread.join()
