"""What takes folders of this machine refuses a URL by one line, and makes no folder of its name."""

from __future__ import annotations

import importlib.util
from collections.abc import Callable
from pathlib import Path

import pytest
from conftest import Run

import shardkit
from shardkit.errors import UsageError

URL = "s3://bucket/data"

REFUSED = [
    ("pack", URL, "--to", "npy", "--estimate", "--resize", "8"),
    ("convert", "packed", URL, "--to", "parquet"),
    ("unpack", "packed", URL),
    ("verify", "packed", "--against", URL),
    ("show", "packed", "--out", f"{URL}.png"),
    ("bench", "packed", "--also", URL),
    ("bench", "packed", "--json", URL),
]


@pytest.mark.parametrize("args", REFUSED, ids=" ".join)
def test_commands_refuse(run: Run, tmp_path: Path, args: tuple[str, ...]) -> None:
    if "packed" in args:
        assert run("pack", "pictures", "packed", "--to", "npy", "--workers", 0).code == 0
    before = sorted(tmp_path.iterdir())
    got = run(*args)
    assert (got.code, got.out) == (2, "")
    assert "s3://... is a URL, and this takes what is on this machine" in got.err
    assert got.err.count("\n") == 1
    assert sorted(tmp_path.iterdir()) == before


@pytest.mark.parametrize("call", [shardkit.open, shardkit.info, shardkit.verify])
def test_a_path_that_was_a_url_is_refused(call: Callable[[Path], object]) -> None:
    with pytest.raises(UsageError, match=r"s3:/bucket/data is a URL that was made a Path"):
        call(Path(URL))


def test_secrets_in_a_url_are_not_printed() -> None:
    for url in ("https://me:secret@host/ds", "https://host/ds?signature=secret"):
        for call in (shardkit.open, shardkit.verify, shardkit.info):
            with pytest.raises(UsageError) as caught:
                call(url)
            assert "secret" not in str(caught.value)


def test_without_the_library_one_line_says_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("shardkit.shards.locate.find_spec", lambda name: None)
    with pytest.raises(UsageError, match=r"obstore library: pip install 'shardkit\[cloud\]'"):
        shardkit.open(URL)
    assert importlib.util.find_spec("shardkit.remote.store") is not None


def test_a_cache_is_for_what_lies_behind_a_url(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="cache_bytes needs cache_dir"):
        shardkit.open(tmp_path, cache_bytes=1)


def test_a_folder_called_as_a_scheme_is_a_folder() -> None:
    with pytest.raises(UsageError, match=r"is not a shardkit dataset|there is no"):
        shardkit.info("file")
