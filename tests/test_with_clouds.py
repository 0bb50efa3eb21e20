"""Each scheme against a server that others made: written, read, killed, refused, replaced.

``make test-clouds`` runs this.
"""

from __future__ import annotations

import os
import signal
from pathlib import Path
from typing import Any

import pytest
from cloud_servers import ACCOUNT, Cloud, _servers, cloud  # noqa: F401
from conftest import Run, make_images, picture, settle, tree, write
from dying import end_of, forked
from range_server import serving

import shardkit
from shardkit.errors import DatasetMissingError, DestinationError, ShardkitError, StorageError
from shardkit.remote import bucket_transfers, cached_storage, connection

FOLDER = "a b/bilder-ä"


@pytest.fixture(autouse=True)
def _quickly(forked_keepers: None, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """Keepers end soon, errors come soon, and all that is kept lies in this test's folder."""
    monkeypatch.setattr(connection, "LINGER_S", 0.2)
    monkeypatch.setattr(cached_storage, "RETRY_S", 20.0)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))


@pytest.fixture
def source(tmp_path: Path) -> Path:
    return make_images(tmp_path / "source")


def pack(source: Path | str, dest: Path | str, to: str = "webdataset", **options: Any) -> Any:
    options = {"shard_size": "3kB", "workers": 0, "progress": False, **options}
    return shardkit.pack(source, dest, to=to, **options)


def test_a_dataset_there_is_the_local_one(
    source: Path,
    cloud: Cloud,  # noqa: F811
    run: Run,
    tmp_path: Path,
) -> None:
    """By each command that reads a URL, or writes to one; the others refuse it."""
    local, url = tmp_path / "local", f"{cloud.url}/{FOLDER}"
    pack(source, local)
    pack(source, url, workers=1)
    want = tree(local)
    assert cloud.objects(FOLDER) == want
    assert run("verify", url).code == run("info", url).code == 0
    loader = shardkit.Loader(shardkit.open(url, decode=False), 4, seed=1, workers=2)
    same = shardkit.Loader(shardkit.open(local, decode=False), 4, seed=1, workers=0)
    assert [batch["jpg"] for batch in loader] == [batch["jpg"] for batch in same]
    shardkit.stage(url, tmp_path / "staged", progress=False)
    assert tree(tmp_path / "staged") == want
    shardkit.stage(url, f"{cloud.url}/again", progress=False)
    assert cloud.objects("again") == want
    shardkit.unpack(url, tmp_path / "unpacked", progress=False)
    assert tree(tmp_path / "unpacked") == tree(source)
    shardkit.convert(url, f"{cloud.url}/npy", to="npy", workers=0, progress=False)
    shardkit.convert(local, tmp_path / "npy", to="npy", workers=0, progress=False)
    assert cloud.objects("npy") == tree(tmp_path / "npy")
    for words in (("append", url, source), ("edit", url, "--drop", "key=0"), ("merge", url, url)):
        assert run(*words).code == 2


def test_overwriting(source: Path, cloud: Cloud, tmp_path: Path) -> None:  # noqa: F811
    url = f"{cloud.url}/ds"
    pack(source, url)
    before = cloud.objects("ds")
    with pytest.raises(DestinationError, match="already holds a dataset"):
        pack(source, url, to="npy")
    assert cloud.objects("ds") == before
    pack(source, tmp_path / "npy", to="npy")
    pack(source, url, to="npy", overwrite=True)
    assert cloud.objects("ds") == tree(tmp_path / "npy")
    cloud.put("other/file", b"not ours")
    with pytest.raises(DestinationError, match="is no shardkit dataset"):
        pack(source, f"{cloud.url}/other", overwrite=True)


def test_a_large_shard_goes_in_parts(cloud: Cloud, tmp_path: Path) -> None:  # noqa: F811
    data = os.urandom(bucket_transfers.WHOLE_BYTES + 99)
    write(tmp_path / "large" / "large.bin", data)
    pack(tmp_path / "large", f"{cloud.url}/ds", corpus="files")
    assert shardkit.verify(f"{cloud.url}/ds", against=tmp_path / "large", progress=False).ok


def test_killed_the_same_call_resumes(tmp_path: Path, cloud: Cloud) -> None:  # noqa: F811
    """Meanwhile nothing opens, and another may not write there."""
    source, url = make_images(tmp_path / "source", 60), f"{cloud.url}/ds"
    pack(source, tmp_path / "local")
    child = forked(lambda: pack(source, url))
    sent = tmp_path / "cache/shardkit/staging"
    walk = lambda: (name for _, _, names in os.walk(sent) for name in names)  # noqa: E731
    assert settle(lambda: sum(name.endswith(".sent") for name in walk()) > 2, 60)
    os.kill(int(child.pid or 0), signal.SIGKILL)
    assert end_of(child) == -signal.SIGKILL
    with pytest.raises(DatasetMissingError):
        shardkit.open(url)
    with pytest.raises(DestinationError, match="is being written by another"):
        pack(source, url, staging=tmp_path / "elsewhere")
    assert "shardkit.json" not in cloud.objects("ds")
    pack(source, url)
    assert cloud.objects("ds") == tree(tmp_path / "local")


def test_of_two_at_once_one_goes_on(source: Path, cloud: Cloud, tmp_path: Path) -> None:  # noqa: F811
    """s3rver replaces what it was told to put only if absent: there, both may end with an error,
    as of those that have no claim by then, but never is there a mixture."""
    url, kinds = f"{cloud.url}/ds", ("npy", "hdf5")
    for kind in kinds:
        pack(source, tmp_path / kind, to=kind)

    def write_one(kind: str) -> None:
        try:
            pack(source, url, to=kind, staging=tmp_path / f"staging-{kind}")
        except DestinationError:
            os._exit(2)

    children = [forked(lambda kind=kind: write_one(kind)) for kind in kinds]
    ends = [end_of(child) for child in children]
    assert sorted(ends) == [0, 2] or (cloud.scheme == "s3" and ends == [2, 2])
    if 0 in ends:
        assert cloud.objects("ds") == tree(tmp_path / kinds[ends.index(0)])


def test_another_dataset_in_its_place(source: Path, cloud: Cloud, tmp_path: Path) -> None:  # noqa: F811
    url = f"{cloud.url}/ds"
    pack(source, url)
    dataset = shardkit.open(url, decode=False, cache_dir=tmp_path / "reads")
    first = dataset[0]
    for number, path in enumerate(sorted(source.rglob("*.jpg"))):
        path.write_bytes(picture(1000 + number))
    pack(source, url, overwrite=True)
    with pytest.raises(ShardkitError, match="has been replaced by another dataset"):
        dataset.read(range(len(dataset)))
    assert shardkit.open(url, decode=False)[0] != first


def test_what_lies_in_a_bucket_is_packed(source: Path, cloud: Cloud, tmp_path: Path) -> None:  # noqa: F811
    for name, data in tree(source).items():
        cloud.put(f"raw ü/{name}", data)
    pack(f"{cloud.url}/raw ü", tmp_path / "there")
    pack(source, tmp_path / "here")
    assert tree(tmp_path / "there") == tree(tmp_path / "here")


WRONG = {
    "s3": [({"AWS_ACCESS_KEY_ID": "ANOTHER"}, "InvalidAccessKeyId: .*; check AWS_ACCESS_KEY_ID")],
    "gs": [({"GOOGLE_SERVICE_ACCOUNT": "/not/there"}, "/not/there.*names no valid JSON")],
    "az": [
        (
            {"AZURE_STORAGE_ACCOUNT_KEY": "YW5vdGhlcg=="},
            "AuthorizationFailure: .*AZURE_STORAGE_ACCOUNT_KEY",
        ),
        ({"AZURE_STORAGE_ACCOUNT_KEY": "?"}, "AZURE_STORAGE_ACCOUNT_KEY is not base64"),
    ],
}


def test_wrong_credentials_and_no_bucket(
    source: Path,
    cloud: Cloud,  # noqa: F811
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    nowhere = cloud.url.replace("bucket", "no-bucket")
    if cloud.scheme != "gs":  # fake-gcs-server does not say which of the two is missing
        with pytest.raises(StorageError, match="there is no such bucket"):
            shardkit.open(nowhere)
        with pytest.raises(StorageError, match="there is no such bucket"):
            pack(source, nowhere)
    pack(source, f"{cloud.url}/ds")
    for settings, said in WRONG[cloud.scheme]:
        for name, value in settings.items():
            monkeypatch.setenv(name, value)
        with pytest.raises(StorageError, match=said):
            shardkit.open(f"{cloud.url}/ds")
        with pytest.raises(StorageError, match=said):
            pack(source, f"{cloud.url}/ds", overwrite=True)
        for name in settings:
            monkeypatch.setenv(name, cloud.settings[name])


def test_a_repository_of_a_hub(
    source: Path, run: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """By a server that sends on to another, as the Hub does."""
    pack(source, tmp_path / "files/data/ds")
    with serving(tmp_path / "files") as files, serving(tmp_path) as hub:
        hub.sends_on = ("datasets/me/mine/resolve/main/", f"{files.url}/")
        monkeypatch.setenv("HF_ENDPOINT", hub.url)
        monkeypatch.setenv("HF_TOKEN", "a-token-of-hf")
        url = "hf://datasets/me/mine/data/ds"
        assert run("verify", url).code == run("info", url).code == 0
        shardkit.stage(url, tmp_path / "staged", progress=False)
        assert tree(tmp_path / "staged") == tree(tmp_path / "files/data/ds")
        shardkit.unpack(url, tmp_path / "unpacked", progress=False)
        assert tree(tmp_path / "unpacked") == tree(source)
        assert run("pack", source, url, "--to", "npy").code == 2
        assert hub.signed == {"Bearer a-token-of-hf"} and files.signed == {""}
