"""S3 on this machine: moto's server, and a proxy before it that fails as it is told to.

``from s3_server import s3, s3_endpoint  # noqa: F401`` gives a test module both fixtures.
"""

from __future__ import annotations

import contextlib
import http.client
import os
import random
import signal
import socket
import struct
import subprocess
import sys
import threading
import time
import urllib.request
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from itertools import count
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import pytest

START_S = 60
_numbers = count(1)


@pytest.fixture(scope="session")
def s3_endpoint(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """Where moto's server answers, for as long as the session lasts. It dies with us."""
    pytest.importorskip("moto", reason="moto[s3] with flask is the S3 server of the tests")
    port = _free_port()
    log = tmp_path_factory.mktemp("moto") / "log"
    with log.open("wb") as out:
        server = subprocess.Popen(
            [sys.executable, "-c", _DIES_WITH_US, str(os.getpid()), "127.0.0.1", str(port)],
            stdin=subprocess.DEVNULL,
            stdout=out,
            stderr=out,
            cwd="/",
        )
    try:
        _wait_for(f"http://127.0.0.1:{port}/", server, log)
        yield f"http://127.0.0.1:{port}"
    finally:
        server.kill()
        server.wait()


_DIES_WITH_US = """
import ctypes, os, signal, sys
ctypes.CDLL(None).prctl(1, signal.SIGKILL)
if os.getppid() != int(sys.argv[1]):
    os.kill(os.getpid(), signal.SIGKILL)
import logging
from moto.server import MotoRequestHandler, create_backend_app
from werkzeug.serving import run_simple
logging.getLogger("werkzeug").setLevel(logging.ERROR)
app = create_backend_app("s3")
run_simple(sys.argv[2], int(sys.argv[3]), app, threaded=True, request_handler=MotoRequestHandler)
"""
"""Serves S3 alone: moto's own command looks through all services for each request, and logs each;
that was a quarter of its time."""


def _free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def _wait_for(url: str, server: subprocess.Popen[bytes], log: Path) -> None:
    end = time.monotonic() + START_S
    while True:
        try:
            urllib.request.urlopen(url, timeout=5).close()
            return
        except OSError:
            if server.poll() is not None or time.monotonic() > end:
                raise RuntimeError(f"moto's server did not start: {log.read_text()}") from None
            time.sleep(0.1)


@dataclass
class S3Faults:
    """What goes wrong between a client and the store.

    Attributes:
        kind: ``500``, ``503``, ``reset`` (before the store hears of it), ``lost answer`` (the store
            has done it, and the connection is reset), or none. rate: which part of the requests
            fails. methods: which may. delay: seconds before each request.
        hook: called with (method, path and query) before each; it may wait, or kill somebody.
    """

    kind: str = ""
    rate: float = 0.0
    methods: tuple[str, ...] = ("GET", "HEAD", "PUT", "POST", "DELETE")
    delay: float = 0.0
    hook: Callable[[str, str], None] | None = None
    draws: random.Random = field(default_factory=lambda: random.Random(1))


@dataclass
class S3:
    """A bucket of its own.

    Attributes:
        bucket: its name. url: of the bucket, ``s3://...``. endpoint: of the proxy. client: boto3's,
            which does not go through the proxy. faults: what the proxy does. requests: how often
            each (method, path without query) came. failed: how many failed.
    """

    bucket: str
    endpoint: str
    client: Any
    faults: S3Faults
    requests: Counter[tuple[str, str]]
    failed: Counter[str]

    @property
    def url(self) -> str:
        return f"s3://{self.bucket}"

    def objects(self, prefix: str = "") -> dict[str, bytes]:
        """Key -> bytes of all objects below a prefix."""
        pages = self.client.get_paginator("list_objects_v2").paginate(
            Bucket=self.bucket, Prefix=prefix
        )
        keys = [one["Key"] for page in pages for one in page.get("Contents", ())]
        return {key: self.get(key) for key in keys}

    def get(self, key: str) -> bytes:
        return bytes(self.client.get_object(Bucket=self.bucket, Key=key)["Body"].read())

    def put(self, key: str, data: bytes) -> None:
        self.client.put_object(Bucket=self.bucket, Key=key, Body=data)


@pytest.fixture
def s3(s3_endpoint: str, monkeypatch: pytest.MonkeyPatch) -> Iterator[S3]:
    """A new bucket behind the proxy; the environment says how to reach it."""
    boto3 = pytest.importorskip("boto3")
    for name in [name for name in os.environ if name.startswith("AWS_")]:
        monkeypatch.delenv(name)
    settings = {
        "AWS_ACCESS_KEY_ID": "testing-id",
        "AWS_SECRET_ACCESS_KEY": "testing-secret",
        "AWS_REGION": "us-east-1",
    }
    for name, value in settings.items():
        monkeypatch.setenv(name, value)
    client = boto3.client(
        "s3",
        endpoint_url=s3_endpoint,
        region_name="us-east-1",
        aws_access_key_id="testing-id",
        aws_secret_access_key="testing-secret",
    )
    bucket = f"bucket-{os.getpid()}-{next(_numbers)}"
    client.create_bucket(Bucket=bucket)
    server = _Proxy(s3_endpoint)
    thread = threading.Thread(target=server.serve_forever, args=(0.02,), daemon=True)
    thread.start()
    endpoint = f"http://127.0.0.1:{server.server_port}"
    monkeypatch.setenv("AWS_ENDPOINT_URL", endpoint)
    try:
        yield S3(bucket, endpoint, client, server.faults, server.requests, server.failed)
    finally:
        server.shutdown()
        server.server_close()
        thread.join()
        client.close()


class _Proxy(ThreadingHTTPServer):
    daemon_threads = True
    request_queue_size = 256

    def __init__(self, behind: str) -> None:
        super().__init__(("127.0.0.1", 0), _Passing)
        self.behind = urlsplit(behind).netloc
        self.faults = S3Faults()
        self.requests: Counter[tuple[str, str]] = Counter()
        self.failed: Counter[str] = Counter()

    def handle_error(self, request: object, client_address: object) -> None:
        """Who was reset, or went, is no news."""


class _Passing(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    server: _Proxy
    disable_nagle_algorithm = True
    wbufsize = 1 << 16

    def log_message(self, format: str, *args: object) -> None:
        pass

    def _pass(self) -> None:
        server, faults = self.server, self.server.faults
        server.requests[self.command, urlsplit(self.path).path] += 1
        if faults.hook is not None:
            faults.hook(self.command, self.path)
        time.sleep(faults.delay)
        body = self.rfile.read(int(self.headers.get("Content-Length") or 0))
        fails = self.command in faults.methods and faults.draws.random() < faults.rate
        fault = faults.kind if fails else ""
        server.failed[fault] += bool(fault)
        if fault in ("500", "503"):
            self._answer(int(fault), {}, b"")
        elif fault == "reset":
            self._reset()
        else:
            status, headers, data = self._ask(body)
            self._reset() if fault else self._answer(status, headers, data)

    def __getattr__(self, name: str) -> Callable[[], None]:
        if name.startswith("do_"):
            return self._pass
        raise AttributeError(name)

    def setup(self) -> None:
        super().setup()
        self.behind = http.client.HTTPConnection(self.server.behind, timeout=60)

    def finish(self) -> None:
        self.behind.close()
        super().finish()

    def _ask(self, body: bytes) -> tuple[int, dict[str, str], bytes]:
        self.behind.request(self.command, self.path, body, dict(self.headers))
        got = self.behind.getresponse()
        return got.status, dict(got.headers), got.read()

    def _answer(self, status: int, headers: dict[str, str], data: bytes) -> None:
        self.send_response_only(status)
        size = headers.get("Content-Length", "0") if self.command == "HEAD" else str(len(data))
        left_out = {"content-length", "connection", "transfer-encoding"}
        for name, value in headers.items():
            if name.lower() not in left_out:
                self.send_header(name, value)
        if status != 204:
            self.send_header("Content-Length", size)
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(data)

    def _reset(self) -> None:
        self.close_connection = True
        with contextlib.suppress(OSError):
            linger = struct.pack("ii", 1, 0)  # closing then sends RST
            self.connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, linger)


def kill(pid: int) -> None:
    """End a process as a crash would."""
    with contextlib.suppress(ProcessLookupError):
        os.kill(pid, signal.SIGKILL)
