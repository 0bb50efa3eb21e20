"""Each fault of a server, of credentials or of an address has its own line, and has it soon."""

from __future__ import annotations

import os
import socket
import ssl
import subprocess
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest
from conftest import make_images
from keepers import cache as cache
from range_server import RangeServer, serving

import shardkit
from shardkit.errors import StorageError
from shardkit.remote import cached_storage, connection, object_store
from shardkit.remote.object_store import said

SOON_S = 30
"""It takes 5 s or less; a machine that does other work may need more. Retries would take 120."""

BODIES = {
    "ExpiredToken": (400, "The provided token has expired."),
    "InvalidAccessKeyId": (403, "The AWS Access Key Id you provided does not exist."),
    "SignatureDoesNotMatch": (403, "The request signature does not match."),
    "AuthorizationHeaderMalformed": (400, "the region 'us-east-1' is wrong; expecting 'eu'"),
    "RequestTimeTooSkewed": (403, "The difference is too large."),
    "AccessDenied": (403, "Access Denied"),
    "NoSuchBucket": (404, "The specified bucket does not exist"),
    "PermanentRedirect": (301, "The bucket must be addressed elsewhere."),
    "AuthenticationFailed": (403, "Server failed to authenticate the request.\nRequestId:1"),
    "ContainerNotFound": (404, "The specified container does not exist."),
    "PublicAccessNotPermitted": (409, "Public access is not permitted on this storage account."),
    "Unauthorized": (401, "Anonymous caller does not have access."),
}


class Refusing(ThreadingHTTPServer):
    """Answers all with one error. As object stores do, it says which only where there is a body."""

    daemon_threads = True

    def __init__(self, code: str) -> None:
        super().__init__(("127.0.0.1", 0), _Handler)
        self.code = code
        self.requests: list[str] = []

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.server_port}"


class _Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    server: Refusing

    def log_message(self, format: str, *args: object) -> None:
        pass

    def do_HEAD(self) -> None:
        self.do_GET()

    def do_GET(self) -> None:
        status, words = BODIES[self.server.code]
        self.server.requests.append(self.command)
        error = f"<Error><Code>{self.server.code}</Code><Message>{words}</Message></Error>"
        body = f"\ufeff<?xml version='1.0' encoding='UTF-8'?>{error}".encode()
        self.send_response(status)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(body)


@pytest.fixture(autouse=True)
def _bare(monkeypatch: pytest.MonkeyPatch, tmp_path: Path, cache: Path) -> None:
    """Retries as they are for users, and nothing that the machine says of clouds."""
    for name in list(os.environ):
        if name.startswith(("AWS_", "GOOGLE_", "AZURE_", "HF_")):
            monkeypatch.delenv(name)
    monkeypatch.setattr(cached_storage, "RETRY_S", 120.0)
    monkeypatch.setattr(connection, "LINGER_S", 0.2)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "home"))


def options_of(scheme: str, server: str) -> dict[str, Any]:
    options: dict[str, Any] = {"endpoint": server, "region": "us-east-1"}
    if scheme == "s3":
        options |= {"AWS_ACCESS_KEY_ID": "an-id-of-a-key", "AWS_SECRET_ACCESS_KEY": "s"}
    elif scheme == "gs":
        options |= {"anonymous": True}
    elif scheme == "az":
        options |= {"AZURE_STORAGE_ACCOUNT_NAME": "me", "AZURE_STORAGE_ACCOUNT_KEY": "c2VjcmV0"}
    return options


def refused(url: str, cache: Path, options: dict[str, Any] | None = None) -> str:
    """Say what the error of opening a URL says, and check that it comes soon."""
    began = time.monotonic()
    with pytest.raises(StorageError) as caught:
        shardkit.open(url, cache_dir=cache, storage_options=options)
    assert time.monotonic() - began < SOON_S
    return str(caught.value)


@pytest.mark.parametrize(
    ("scheme", "code", "advice"),
    [
        ("s3", "ExpiredToken", "renew AWS_SESSION_TOKEN"),
        ("s3", "InvalidAccessKeyId", "check AWS_ACCESS_KEY_ID and"),
        ("s3", "SignatureDoesNotMatch", "and AWS_SECRET_ACCESS_KEY"),
        ("s3", "AuthorizationHeaderMalformed", "set AWS_REGION"),
        ("s3", "PermanentRedirect", "set AWS_REGION"),
        ("s3", "RequestTimeTooSkewed", "the clock of this machine"),
        ("s3", "AccessDenied", "these credentials may not do that"),
        ("s3", "NoSuchBucket", "there is no such bucket"),
        ("gs", "NoSuchBucket", "there is no such bucket"),
        ("gs", "AccessDenied", "GOOGLE_APPLICATION_CREDENTIALS"),
        ("gs", "Unauthorized", "GOOGLE_APPLICATION_CREDENTIALS"),
        ("az", "AuthenticationFailed", "check AZURE_STORAGE_ACCOUNT_KEY"),
        ("az", "ContainerNotFound", "there is no such bucket"),
        ("az", "PublicAccessNotPermitted", "not permitted"),
    ],
)
def test_the_server_s_own_word_and_what_to_do(
    scheme: str,
    code: str,
    advice: str,
    cache: Path,
) -> None:
    """A HEAD brings no word; one GET after it does, and nothing is asked again."""
    with _refusing(code) as server:
        text = refused(f"{scheme}://bucket/ds", cache, options_of(scheme, server.url))
        words = BODIES[code][1].partition("\n")[0].rstrip(".")
        if code != "PermanentRedirect":  # which obstore tells in words of its own
            assert f"{code}: {words}" in text
        assert advice in text and len(server.requests) <= 2


@contextmanager
def _refusing(code: str) -> Iterator[Refusing]:
    """Run such a server."""
    server = Refusing(code)
    thread = threading.Thread(target=server.serve_forever, args=(0.02,), daemon=True)
    thread.start()
    try:
        yield server
    finally:
        server.shutdown()
        server.server_close()
        thread.join()


def test_a_web_server_and_a_hub_that_want_to_know_who_asks(
    cache: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    with _refusing("Unauthorized") as server:
        text = refused(f"{server.url}/ds", cache)
        assert "401" in text and "web servers get no credentials" in text
        monkeypatch.setenv("HF_ENDPOINT", server.url)
        assert "set HF_TOKEN to a token" in refused("hf://datasets/me/mine/ds", cache)


def test_writing_where_there_is_no_bucket(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("AWS_ACCESS_KEY_ID", "an-id-of-a-key")
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "s")
    source = make_images(tmp_path / "source", 1, 1)
    with _refusing("NoSuchBucket") as server:
        monkeypatch.setenv("AWS_ENDPOINT_URL", server.url)
        with pytest.raises(StorageError, match="there is no such bucket"):
            shardkit.pack(source, "s3://bucket/ds", to="npy", workers=0, progress=False)
        with pytest.raises(StorageError, match="there is no such bucket"):
            shardkit.pack("s3://bucket/raw", tmp_path / "ds", to="npy", workers=0, progress=False)


def _closed_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


@pytest.mark.thorough
def test_nothing_listens(
    tmp_path: Path,
    cache: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """For who reads, who writes, and who packs what lies there."""
    nowhere = f"http://127.0.0.1:{_closed_port()}"
    monkeypatch.setattr(object_store, "FIRST_S", 1.0)
    assert "nothing listens there" in refused(f"{nowhere}/ds", cache)
    source = make_images(tmp_path / "source", 1, 1)
    for name, value in options_of("s3", "").items():
        monkeypatch.setenv(name, value)
    monkeypatch.setenv("AWS_ENDPOINT_URL", nowhere)
    for one, other in ((source, "s3://bucket/ds"), ("s3://bucket/raw", tmp_path / "ds")):
        began = time.monotonic()
        with pytest.raises(StorageError, match="nothing listens there"):
            shardkit.pack(one, other, to="npy", workers=0, progress=False)
        assert time.monotonic() - began < SOON_S


def test_a_name_that_is_no_host(cache: Path) -> None:
    assert "no such host" in refused("http://no-such-host.invalid/ds", cache)


def test_tls_where_there_is_none_and_the_other_way(
    cache: Path,
    tmp_path: Path,
) -> None:
    with serving(tmp_path) as server:
        https = server.url.replace("http:", "https:")
        assert "write http:// in place of https://" in refused(f"{https}/ds", cache)
    key, certificate = tmp_path / "key", tmp_path / "certificate"
    made = subprocess.run(
        f"openssl req -x509 -newkey rsa:2048 -nodes -subj /CN=localhost -keyout {key} -out"
        f" {certificate}",
        shell=True,
        capture_output=True,
        check=False,
    )
    if made.returncode:
        pytest.skip("openssl makes the certificate")
    with serving(tmp_path) as server:
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        context.load_cert_chain(certificate, key)
        server.socket = context.wrap_socket(server.socket, server_side=True)
        assert "if it speaks TLS, write https://" in refused(f"{server.url}/ds", cache)
        https = server.url.replace("http:", "https:")
        assert "certificate of that server is not trusted" in refused(f"{https}/ds", cache)


@pytest.mark.parametrize("scheme", ["s3", "http"])
def test_a_server_without_ranges(scheme: str, cache: Path, tmp_path: Path) -> None:
    shardkit.pack(
        make_images(tmp_path / "source", 1, 1),
        tmp_path / "bucket/ds",
        to="npy", workers=0, progress=False,
    )  # fmt: skip
    with serving(tmp_path) as server:
        server.faults.kind, server.faults.rate, server.faults.everywhere = "whole body", 1.0, True
        url = "s3://bucket/ds" if scheme == "s3" else f"{server.url}/bucket/ds"
        text = refused(url, cache, options_of("s3", server.url))
        assert "sends whole objects" in text


def test_who_reads_already_waits_for_a_server_that_comes_back(
    cache: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Longer than one who begins, and who fails meanwhile does not end it."""
    monkeypatch.setattr(object_store, "FIRST_S", 0.5)
    source, made = make_images(tmp_path / "source"), tmp_path / "at/ds"
    shardkit.pack(source, made, to="npy", workers=0, progress=False)
    with serving(made.parent) as server:
        port = server.server_port
        dataset = shardkit.open(f"{server.url}/ds", cache_dir=cache, decode=False)
    got: list[Any] = []
    reading = threading.Thread(target=lambda: got.append(dataset[5]))
    reading.start()
    with pytest.raises(StorageError, match="nothing listens there"):
        shardkit.open(f"http://127.0.0.1:{port}/ds", cache_dir=cache)
    assert not got
    again = RangeServer(made.parent, port)
    serve = threading.Thread(target=again.serve_forever, args=(0.02,), daemon=True)
    serve.start()
    reading.join()
    assert got == [shardkit.open(made, decode=False)[5]]
    again.shutdown()
    again.server_close()
    serve.join()


# --- words ------------------------------------------------------------------------------------


def test_only_whole_secrets_are_masked() -> None:
    text = "the bucket of user keystone-secret is not secret"
    assert said(ValueError(text), ["s", "key", "secret"]) == text
    assert said(ValueError(text), ["keystone"]) == "the bucket of user ***-secret is not secret"
    assert said(ValueError("a hushhush1 b"), ["hushhush"]) == "a hushhush1 b"


@pytest.mark.parametrize("tag", ['"0x1"', "0x1", 'W/"0x1"'])
def test_entity_tags_are_compared_without_quotes(tag: str) -> None:
    assert object_store.version_of({"e_tag": tag}) == "0x1"
    assert object_store.version_of({"e_tag": None}) == ""


def test_paths_of_files_with_secrets_are_said(cache: Path) -> None:
    options = {"GOOGLE_APPLICATION_CREDENTIALS": "/not/there.json"}
    text = refused("gs://bucket/ds", cache, options)
    assert "/not/there.json" in text and "GOOGLE_APPLICATION_CREDENTIALS names no" in text


def test_azure_without_an_account_or_with_a_key_that_is_none(cache: Path) -> None:
    assert "set AZURE_STORAGE_ACCOUNT_NAME" in refused("az://bucket/ds", cache)
    options = {"AZURE_STORAGE_ACCOUNT_NAME": "me", "AZURE_STORAGE_ACCOUNT_KEY": "no base64!"}
    assert "is not base64" in refused("az://bucket/ds", cache, options)


def test_half_of_a_key(cache: Path) -> None:
    options = {"AWS_ACCESS_KEY_ID": "an-id-of-a-key", "endpoint": "http://127.0.0.1:1"}
    assert "and AWS_SECRET_ACCESS_KEY" in refused("s3://bucket/ds", cache, options)
