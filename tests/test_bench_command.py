"""bench: what it packs for itself, what it says, and the command."""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from benches import bench, make_folder, quick, shorten  # noqa: F401
from conftest import Run, write

import shardkit
from shardkit.errors import DestinationError
from shardkit.measure.bench import benchmark as bench_module
from shardkit.measure.bench.bench_report import BatchTimes, Row, Seconds, in_words
from shardkit.measure.timing import Interval

# --- made for the bench -------------------------------------------------------------------


@pytest.fixture
def _unchanged(tmp_path: Path) -> Iterator[None]:
    """Nothing is left beside the source."""
    yield
    assert not list(tmp_path.rglob(".shardkit-bench-*"))


@quick
@pytest.mark.usefixtures("_unchanged")
def test_formats(images: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    said: list[str] = []
    write(images / "class0" / "bad.jpg", "no picture")
    report = bench(images, formats="all", say=said.append)
    assert [row["target"] for row in report["rows"]] == [
        "folder", "lmdb", "hdf5", "webdataset", "npy",
    ]  # fmt: skip
    assert re.fullmatch(
        rf"packing 37 samples \(about [\d.]+ kB\) into lmdb, hdf5, webdataset, npy in"
        rf" {images.parent}/.shardkit-bench-\w+, which is removed afterwards",
        said[0],
    )
    chosen = bench(images, formats=["tar", "npy"], limit=7, batch_size=4)
    assert [row["target"] for row in chosen["rows"]] == ["folder", "webdataset", "npy"]
    assert re.search("3 targets returned the same [67] samples", chosen["checked"])
    monkeypatch.setattr(bench_module, "NUM_BYTES", 4000)
    found = re.search(r"same (\d+) samples", bench(images, formats="npy", batch_size=1)["checked"])
    assert found is not None
    assert 2 <= int(found[1]) <= 12


@pytest.mark.usefixtures("_unchanged")
def test_where_the_source_cannot_be_written_beside_the_current_folder_serves(
    images: Path, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    other = tmp_path / "here"
    other.mkdir()
    monkeypatch.chdir(other)
    real = bench_module.tempfile.mkdtemp
    refused = [images.parent]

    def refuse(prefix: str, dir: Path) -> str:
        if dir in refused:
            raise PermissionError(13, "Permission denied")
        return real(prefix=prefix, dir=dir)

    monkeypatch.setattr(bench_module.tempfile, "mkdtemp", refuse)
    said: list[str] = []
    bench(images, formats="npy", say=said.append, rounds=1)
    assert f" in {other}/.shardkit-bench-" in said[0]
    refused.append(other)
    with pytest.raises(DestinationError, match="Permission denied"):
        bench(images, formats="npy")


@quick
@pytest.mark.usefixtures("_unchanged")
@pytest.mark.parametrize("where", ["packing", "measuring"])
def test_interrupted_nothing_is_left(
    images: Path, where: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    def interrupt(*args: object, **options: object) -> None:
        raise KeyboardInterrupt

    if where == "packing":
        monkeypatch.setattr(bench_module, "run_pack", interrupt)
    else:
        monkeypatch.setattr(bench_module, "interleave", interrupt)
    with pytest.raises(KeyboardInterrupt):
        bench(images, formats="npy")


def left_in(folder: Path) -> list[str]:
    return [path.name for path in folder.iterdir() if path.name.startswith(".shardkit-bench")]


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGKILL])
def test_ended_from_outside_it_leaves_nothing_for_long(images: Path, number: int) -> None:
    command = [sys.executable, "-m", "shardkit", "bench", images, "--formats", "npy"]
    env = {**os.environ, "PYTHONPATH": str(Path(shardkit.__file__).parents[1])}
    process = subprocess.Popen(command, stderr=subprocess.PIPE, text=True, env=env)
    assert process.stderr is not None
    while "measuring" not in process.stderr.readline():
        assert process.poll() is None
    assert len(left_in(images.parent)) == 1
    process.send_signal(number)
    said = process.communicate(timeout=60)[1]
    if number == signal.SIGKILL:
        assert len(left_in(images.parent)) == 1
        with bench_module._scratch(images.parent) as mine:
            assert left_in(images.parent) == [mine.name], "the next one removes it"
            with bench_module._scratch(images.parent):
                assert len(left_in(images.parent)) == 2, "but not what is in use"
    else:
        assert process.returncode == 128 + number
        assert said.splitlines()[-1].endswith("interrupted; temporary files are removed")
    assert left_in(images.parent) == []


# --- words and the command line -----------------------------------------------------------


def row(target: str, rate: float, **more: Any) -> Row:
    ratio = more.pop("ratio", None)
    given: dict[str, Any] = {
        "target": target, "format": target, "path": target, "workers": 2,
        "worker_type": "thread", "cache": "warm", "rounds": 12,
        "samples": 8, "samples_per_s": Interval(rate, rate, rate),
        "bytes_per_s": Interval(rate, rate, rate),
        "ratio": ratio and Interval(ratio, ratio - 0.1, ratio + 0.1),
        "verdict": "faster" if ratio else "reference", "limit": "bare decoder", "of_limit": 0.5,
        "batch_ms": BatchTimes(1, 1, 1), "seconds": Seconds(3.0, 0.0, 1.0, 9.0),
        "device_bytes": None, "dataset_bytes": 8,
    }  # fmt: skip
    return Row(**given | more)


READING = "75 % of the work is finding and reading samples"


@pytest.mark.parametrize(
    ("rows", "lines"),
    [
        (
            [row("folder", 100), row("lmdb", 290, ratio=2.9), row("npy", 300, ratio=3.0)],
            [
                "fastest: npy with 2 threads, 300 samples/s, 3.00 times folder (2.90 to 3.10),"
                " faster",
                f"it reaches 50 % of the limit, bare decoder; {READING}",
            ],
        ),
        (
            [row("lmdb", 100), row("npy", 103, ratio=1.03, verdict="no difference", of_limit=0.9)],
            [
                "fastest: npy with 2 threads, 103 samples/s, 1.03 times lmdb (0.93 to 1.13), no"
                " difference",
                "it reaches 90 % of the limit, bare decoder; little is left to win",
            ],
        ),
        (
            [row("lmdb", 99), row("npy", 100, ratio=0.97, verdict="unclear", of_limit=0.5)],
            [
                "fastest: lmdb with 2 threads, 99 samples/s",
                f"it reaches 50 % of the limit, bare decoder; {READING}",
                "unclear: the rounds of npy differ too much; try --rounds 24",
            ],
        ),
        (
            [
                row("lmdb", 100, workers=1, worker_type="process", rounds=5),
                row("npy", 90, workers=1, ratio=2.0, verdict="unclear", limit=None),
            ],
            [
                "fastest: lmdb with 1 process, 100 samples/s",
                f"it reaches 50 % of the limit, bare decoder; {READING}",
                "too few rounds to judge npy: try --rounds 6 or more",
            ],
        ),
        (
            [row("npy", 1, cache="cold", limit=None), row("lmdb", 1, cache="unknown",
             verdict="unclear")],
            [
                "fastest: npy with 2 threads, 1 samples/s",
                READING,
                "not compared: lmdb: one side came from the disk, the other may not have",
            ],
        ),
    ],
)  # fmt: skip
def test_words(rows: list[Row], lines: list[str]) -> None:
    assert in_words(rows, []) == lines


NUMBERS = {
    r"\d[\d,]*-\d[\d,]*(?= )": "INTERVAL",
    r"\d+\.\d{2,3} \(\d+\.\d{2,3}-\d+\.\d{2,3}\)": "RATIO",
    r"\d+\.\d [kM]?B": "SIZE",
    r"(?<= )\d[\d,]{2,}(?= |$)": "NUM",
    r" +": " ",
}


def plain(text: str) -> str:
    for pattern, name in NUMBERS.items():
        text = re.sub(pattern, name, text, flags=re.MULTILINE)
    return text


@quick
def test_output(run: Run) -> None:
    assert run("pack", "pictures", "--to", "npy").code == 0
    options = ["--workers", "0", "--batch-size", "36", "--rounds", "2"]
    got = run("bench", "pictures", "pictures-npy", *options, "--json", "report.json")
    assert (got.code, got.err) == (0, "measuring 2 cases in 2 rounds\n")
    lines = plain(got.out).splitlines()
    assert lines[0].startswith("2 targets returned the same 36 samples of cls, jpg, SIZE: raw,")
    assert re.fullmatch(
        r" target workers cache samples/s 95 % interval MB/s( from disk)? against the first",
        lines[1],
    )
    assert re.match(r" folder 0 \w+ NUM INTERVAL .*reference", lines[2])
    assert re.match(r" npy 0 \w+ NUM INTERVAL .*RATIO unclear", lines[3])
    assert lines[4].startswith("fastest: ")
    assert lines[-3] == "too few rounds to judge npy: try --rounds 6 or more"
    assert lines[-2].startswith("folder: its files, opened and read one by one")
    assert lines[-1] == "nothing was decoded: what training gets of it, --read train says"
    assert max(map(len, got.out.splitlines()[1:4])) <= 100
    report = json.loads(Path("report.json").read_text())
    assert report["command"] == (
        "shardkit bench pictures pictures-npy --workers 0 --batch-size 36 --rounds 2"
        " --json report.json"
    )
    other = run("bench", "pictures-npy", "pictures", *options, "--json", "-")
    assert [row["target"] for row in json.loads(other.out)["rows"]] == ["npy", "folder"]


def test_refusals_are_one_line(run: Run) -> None:
    for args in (
        ["bench"],
        ["bench", "pictures", "--workers", "two"],
        ["bench", "pictures", "--formats", "zip"],
        ["bench", "nothing"],
        ["bench", "pictures", "--json", "none/there.json"],
        ["bench", "pictures", "--html", "none/there.html"],
        ["bench", "pictures", "--workers", "5000"],
    ):
        got = run(*args)
        assert got.code == 2
        assert got.err.splitlines()[-1].startswith("shardkit: error: ")
