"""How what lies behind a URL is reached, and where it is kept: by arguments, and by options."""

from __future__ import annotations

import os
import pickle
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from conftest import Run, make_images
from keepers import cache  # noqa: F401
from range_server import RangeServer, serving

import shardkit
from shardkit.errors import DatasetMissingError, StorageError, UsageError
from shardkit.operations.cache import clear_cache
from shardkit.remote import connection
from shardkit.remote.object_store import said
from shardkit.remote.urls import as_settings


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder that holds the dataset ``ds``, as a bucket would."""
    folder = tmp_path_factory.mktemp("made")
    source = make_images(folder / "source")
    dest = folder / "at" / "bucket" / "ds"
    shardkit.pack(source, dest, to="npy", workers=0, progress=False)
    return folder / "at"


@pytest.fixture
def server(made: Path, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Iterator[RangeServer]:
    """Whatever may be set on the machine that runs this does not count."""
    for name in list(os.environ):
        if name.startswith(("AWS_", "GOOGLE_", "AZURE_", "SHARDKIT_")):
            monkeypatch.delenv(name)
    monkeypatch.setattr(connection, "LINGER_S", 0.2)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "home"))
    with serving(made) as server:
        yield server


def read_all(dataset: shardkit.Dataset) -> list[bytes]:
    return [bytes(value) for value in dataset.read(range(len(dataset)))["jpg"]]


@pytest.mark.parametrize("scheme", ["s3", "gs", "az"])
def test_a_public_bucket_of_another_server(
    server: RangeServer,
    cache: Path,  # noqa: F811
    made: Path,
    scheme: str,
) -> None:
    options: dict[str, Any] = {"endpoint": server.url, "anonymous": True}
    if scheme == "az":
        options["AZURE_STORAGE_ACCOUNT_NAME"] = "anyone"
    dataset = shardkit.open(f"{scheme}://bucket/ds", cache_dir=cache, storage_options=options)
    there = pickle.loads(pickle.dumps(dataset))
    assert read_all(there) == read_all(shardkit.open(made / "bucket/ds"))
    assert server.signed == {""}


def test_options_are_in_no_repr_and_wrong_ones_say_no_value() -> None:
    given = {"AWS_SECRET_ACCESS_KEY": "hush"}
    options = shardkit.remote.urls.RemoteOptions.of(None, None, given)
    assert "hush" not in repr(options)
    with pytest.raises(UsageError, match="storage_options has no 'key'") as caught:
        as_settings({"key": "hush"})
    assert "hush" not in str(caught.value)
    with pytest.raises(UsageError, match="has a NUL in its value") as caught:
        as_settings({"AWS_SESSION_TOKEN": "hu\0sh"})
    with pytest.raises(UsageError, match="must be a dict, not a list"):
        as_settings(["hush"])  # type: ignore[arg-type]


@pytest.mark.parametrize(
    "address",
    ["minio:9000", "http://me:hush@host:9000", "http://", "https://host?key=hush", "http://[hush"],
)
def test_an_endpoint_that_is_no_address_or_holds_a_password(
    cache: Path,  # noqa: F811
    address: str,
) -> None:
    with pytest.raises(UsageError, match="AWS_ENDPOINT_URL: an address begins with http") as caught:
        shardkit.open("s3://bucket/ds", cache_dir=cache, storage_options={"endpoint": address})
    assert "hush" not in str(caught.value)


def test_a_token_that_was_read_with_its_line_end(cache: Path) -> None:  # noqa: F811
    with pytest.raises(UsageError, match="AWS_SESSION_TOKEN has the end of a line") as caught:
        shardkit.open(
            "s3://bucket/ds", cache_dir=cache, storage_options={"AWS_SESSION_TOKEN": "hush\n"}
        )
    assert "hush" not in str(caught.value)


def test_a_tab_in_a_url_is_not_left_out() -> None:
    with pytest.raises(UsageError, match="a tab, a line's end or the like in a URL"):
        shardkit.open("s3://bucket/a\tb")


@pytest.mark.parametrize("url", ["http://[::1/x", "http://me:hush@ho\u2100st/x"])
def test_a_url_whose_host_is_none(url: str) -> None:
    with pytest.raises(UsageError, match="cannot be a host") as caught:
        shardkit.open(url)
    assert "hush" not in str(caught.value)


def test_a_long_secret_is_not_said_in_part() -> None:
    """What servers answer may repeat a token, and is cut."""
    token = "hush" * 300
    assert "hush" not in said(ValueError(f"the token {token} has expired"), [token])


def test_what_servers_say_of_a_token_is_not_said() -> None:
    """S3's answer to one that has expired, and one that escapes it."""
    text = "400: <Error><Code>ExpiredToken</Code><Message>It has expired.</Message>"
    assert said(ValueError(text + "<Token-0>hush</Token-0></Error>")) == (
        "400: ExpiredToken: It has expired."
    )
    assert "hu" not in said(ValueError("the token hush&amp;hush is none"), ["hush&hush"])


def test_credentials_that_were_renewed_are_used(
    server: RangeServer,
    cache: Path,  # noqa: F811
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Of the environment as it is at each request: tokens of a session expire."""
    monkeypatch.setenv("AWS_ENDPOINT_URL", server.url)
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "hush")
    monkeypatch.setenv("AWS_ACCESS_KEY_ID", "FIRST")
    dataset = shardkit.open("s3://bucket/ds", cache_dir=cache)
    dataset[0]
    assert any("FIRST" in words for words in server.signed)
    monkeypatch.setenv("AWS_ACCESS_KEY_ID", "SECOND")
    clear_cache(cache_dir=cache)
    server.signed.clear()
    dataset[len(dataset) - 1]
    assert server.signed
    assert all("SECOND" in words for words in server.signed)


def test_no_credentials_at_all(
    server: RangeServer,
    cache: Path,  # noqa: F811
    monkeypatch: pytest.MonkeyPatch,
    tmp_path: Path,
) -> None:
    """Said in time, and not as an error of an address that nobody has heard of."""
    for name in ("AWS_SHARED_CREDENTIALS_FILE", "AWS_CONFIG_FILE"):
        monkeypatch.setenv(name, str(tmp_path / "none"))
    nobody = {"AWS_METADATA_ENDPOINT": "http://127.0.0.1:1", "endpoint": server.url}
    began = time.monotonic()
    with pytest.raises(StorageError, match="there are no credentials in the environment"):
        shardkit.open("s3://bucket/ds", cache_dir=cache, storage_options=nobody)
    assert time.monotonic() - began < 30


CREDENTIALS = """
[default]
aws_access_key_id = of-default
aws_secret_access_key = hush
[other]
aws_access_key_id = of-other
aws_secret_access_key = hush
"""


@pytest.mark.parametrize(
    ("profile", "keys", "used"),
    [
        (None, False, "of-default"),
        ("other", False, "of-other"),
        (None, True, "of-environment"),
        ("other", True, "of-other"),
    ],
)
def test_profiles(
    server: RangeServer,
    cache: Path,  # noqa: F811
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    profile: str | None,
    keys: bool,
    used: str,
) -> None:
    """As with other tools of Amazon: keys of the environment count before its profile, and not
    before one that is given. A profile may say where the server is."""
    pytest.importorskip("boto3")
    (tmp_path / "credentials").write_text(CREDENTIALS)
    names = ("default", "profile other")
    sections = [f"[{name}]\nregion = eu-west-1\nendpoint_url = {server.url}\n" for name in names]
    (tmp_path / "config").write_text("".join(sections))
    monkeypatch.setenv("AWS_SHARED_CREDENTIALS_FILE", str(tmp_path / "credentials"))
    monkeypatch.setenv("AWS_CONFIG_FILE", str(tmp_path / "config"))
    if keys:
        monkeypatch.setenv("AWS_ACCESS_KEY_ID", "of-environment")
        monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "hush")
        monkeypatch.setenv("AWS_ENDPOINT_URL", server.url)
        monkeypatch.setenv("AWS_REGION", "eu-west-1")
    options = {} if profile is None else {"profile": profile}
    dataset = shardkit.open("s3://bucket/ds", cache_dir=cache, storage_options=options)
    assert len(read_all(dataset)) == len(dataset)
    assert server.signed
    for signed in server.signed:
        assert f"Credential={used}/" in signed
        assert "/eu-west-1/s3/" in signed


def test_a_profile_that_is_not_there(
    server: RangeServer,
    cache: Path,  # noqa: F811
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("AWS_CONFIG_FILE", str(tmp_path / "none"))
    monkeypatch.setenv("AWS_SHARED_CREDENTIALS_FILE", str(tmp_path / "none"))
    with pytest.raises(StorageError, match="'absent'"):
        shardkit.open("s3://bucket/ds", cache_dir=cache, storage_options={"profile": "absent"})


def test_hugging_face(
    server: RangeServer,
    cache: Path,  # noqa: F811
    made: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """A hub sends on to another server, which is not told the token."""
    with serving(made) as hub:
        prefix = "datasets/user/name/resolve/v1/"
        hub.sends_on = (prefix, f"{server.url}/bucket/")
        monkeypatch.setenv("HF_ENDPOINT", hub.url)
        monkeypatch.setenv("HF_TOKEN", "hush")
        dataset = shardkit.open("hf://datasets/user/name@v1/ds", cache_dir=cache)
        assert read_all(dataset) == read_all(shardkit.open(made / "bucket/ds"))
        assert hub.signed == {"Bearer hush"}
        assert server.signed == {""}
        with pytest.raises(UsageError, match="names no repository"):
            shardkit.open("hf://datasets/user", cache_dir=cache)
        with pytest.raises(DatasetMissingError, match="hf://user/model is no dataset"):
            shardkit.open("hf://user/model", cache_dir=cache)
        assert hub.requests[-1][0] == "user/model/resolve/main/shardkit.json"


def test_commands_take_them_as_options(server: RangeServer, run: Run, tmp_path: Path) -> None:
    reach = ("--endpoint", server.url, "--anonymous")
    keep = ("--cache-dir", tmp_path / "kept", "--cache-bytes", "10MB")
    got = run("verify", "s3://bucket/ds", *reach, *keep)
    assert (got.code, got.err) == (0, "")
    assert list((tmp_path / "kept").glob("*/shardkit.json"))
    assert not (tmp_path / "home").exists()
    assert not {"AWS_ENDPOINT_URL", "SHARDKIT_CACHE_DIR"} & os.environ.keys()
    got = run("verify", "s3://bucket/ds", *reach, "--cache-dir", tmp_path / "small")
    assert got.code == 0
    for size in ("many", "0", "-1"):
        got = run("info", "s3://bucket/ds", "--cache-bytes", size)
        assert (got.code, got.out) == (2, "")


def test_a_cache_before_a_slow_disk(made: Path, cache: Path) -> None:  # noqa: F811
    """What is on this machine is read through a cache, too, if one is named."""
    local = shardkit.open(made / "bucket/ds")
    cached = shardkit.open(made / "bucket/ds", cache_dir=cache, cache_bytes="10MB")
    assert read_all(cached) == read_all(local)
    assert repr(cached) == repr(local)
    blocks = sum(path.stat().st_blocks for path in cache.rglob("*.npy"))
    assert blocks
    again = shardkit.open(made / "bucket/ds", cache_dir=cache)
    loader = shardkit.Loader(again, 4, seed=1, workers=2, as_buffer=["jpg"])
    theirs = shardkit.Loader(local, 4, seed=1, workers=2, as_buffer=["jpg"])
    for ours, other in zip(loader, theirs, strict=True):
        assert bytes(ours["jpg"].data) == bytes(other["jpg"].data)


def test_what_a_path_has_no_use_for(made: Path) -> None:
    for options in ({"cache_bytes": 1}, {"storage_options": {"anonymous": True}}):
        with pytest.raises(UsageError, match="is on this machine, and read where it lies"):
            shardkit.open(made / "bucket/ds", **options)  # type: ignore[arg-type]
