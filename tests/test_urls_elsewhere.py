"""What takes folders of this machine refuses a URL by one line, and makes no folder of its name."""

from __future__ import annotations

import importlib.util
from collections.abc import Callable
from pathlib import Path

import pytest
from conftest import Run, tree

import shardkit
from shardkit.errors import DatasetMissingError, UsageError

URL = "s3://bucket/data"

REFUSED = [
    ("pack", URL, "--to", "npy", "--estimate", "--resize", "8"),
    ("convert", "packed", URL, "--to", "parquet"),
    ("unpack", "packed", URL),
    ("verify", "packed", "--against", URL),
    ("show", "packed", "--out", f"{URL}.png"),
    ("bench", "packed", "--json", URL),
    ("pack", "pictures", f"{URL}/there", "--to", "npy", "--staging", URL),
    ("pack", URL, "there", "--to", "npy", "--labels", f"{URL}/labels.csv"),
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
    monkeypatch.setattr("shardkit.remote.urls.find_spec", lambda name: None)
    with pytest.raises(UsageError, match=r"obstore library: pip install 'shardkit\[cloud\]'"):
        shardkit.open(URL)
    assert importlib.util.find_spec("shardkit.remote.object_store") is not None


@pytest.mark.parametrize("command", ["stage", "convert", "pack"])
@pytest.mark.parametrize("dest", ["ds", "link", "ds/in"])
@pytest.mark.parametrize("which", ["both", "source", "dest"])
def test_a_folder_and_its_url_are_one_place(
    run: Run, tmp_path: Path, command: str, dest: str, which: str
) -> None:
    """With --overwrite, what is read would have been removed first."""
    if command == "pack":
        (tmp_path / "pictures").rename(tmp_path / "ds")
    else:
        assert run("pack", "pictures", "ds", "--to", "npy", "--workers", 0).code == 0
    (tmp_path / "link").symlink_to("ds")
    before = tree(tmp_path)
    source, target = tmp_path / "ds", tmp_path / dest
    places = [
        source.as_uri() if which != "dest" else source,
        target.as_uri() if which != "source" else target,
    ]
    form = [] if command == "stage" else ["--to", "lmdb", "--workers", 0]
    got = run(command, *places, *form, "--overwrite")
    assert (got.code, got.err.count("\n")) == (2, 1)
    assert "overlap; choose a destination outside the source" in got.err
    assert tree(tmp_path) == before


def test_what_waits_does_not_lie_in_the_source(run: Run, tmp_path: Path) -> None:
    """It would be a class by the next time."""
    before = sorted(tmp_path.rglob("*"))
    there = (tmp_path / "there").as_uri()
    got = run("pack", "pictures", there, "--to", "npy", "--staging", "pictures/foo")
    assert (got.code, got.err.count("\n")) == (2, 1)
    assert "staging" in got.err
    assert sorted(tmp_path.rglob("*")) == before


def test_a_url_of_a_folder_that_is_not_there(tmp_path: Path) -> None:
    with pytest.raises(DatasetMissingError, match=r"is no dataset: there is no shardkit\.json"):
        shardkit.open((tmp_path / "nothing").as_uri(), cache_dir=tmp_path / "cache")
    with pytest.raises(UsageError, match="three slashes: file:///path"):
        shardkit.open("file://tmp/x")


@pytest.mark.parametrize("option", ["--endpoint", "--anonymous", "--cache-dir", "--cache-bytes"])
def test_options_of_urls_are_refused_where_there_is_none(run: Run, option: str) -> None:
    """Nothing would come of them."""
    value = {"--endpoint": ["http://host"], "--cache-dir": ["c"], "--cache-bytes": ["1GB"]}
    for command in (["info", "pictures"], ["pack", "pictures", "there", "--to", "npy"]):
        got = run(*command, option, *value.get(option, []))
        assert (got.code, got.err) == (
            2,
            f"shardkit: error: {option} is for what lies behind a URL, and none was given: leave"
            " it out\n",
        )
