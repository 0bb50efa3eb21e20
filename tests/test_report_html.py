"""The page of a bench's report: all figures, nothing from elsewhere, whatever names are like."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from conftest import Run, make_images
from hypothesis import given
from hypothesis import strategies as st
from pages import Page, assert_nothing_is_loaded, look

from shardkit.measure.bench.bench_report import (
    VERSION,
    BatchTimes,
    Limit,
    Report,
    Row,
    Seconds,
    as_page,
    in_words,
    write_page,
)
from shardkit.measure.bench.cases import BenchOptions
from shardkit.measure.figures import amount, shortened
from shardkit.measure.machine import machine
from shardkit.measure.page import BLOCK, showable
from shardkit.measure.timing import Interval

EVIL = "<script>alert(1)</script>"


def row(target: str, workers: int, rate: float, **more: Any) -> Row:
    given: dict[str, Any] = {
        "target": target, "format": target, "path": f"/data/{target}", "workers": workers,
        "worker_type": "thread", "cache": "warm", "rounds": 6, "samples": 800,
        "samples_per_s": Interval(rate, 0.9 * rate, 1.1 * rate),
        "bytes_per_s": Interval(1e4 * rate, 0.9e4 * rate, 1.1e4 * rate),
        "ratio": None, "verdict": "reference", "limit": "bare decoder, 2 threads", "of_limit": 0.6,
        "batch_ms": BatchTimes(1.23, 45.6, 789.0), "seconds": Seconds(0.3, 1.5, 0.05, 0.8),
        "device_bytes": None, "dataset_bytes": 8_000_000,
    }  # fmt: skip
    return Row(**given | more)


@pytest.fixture
def report() -> Report:
    return Report(
        version=VERSION,
        machine=machine(),
        commit=None,
        command="shardkit bench images lmdb",
        options=BenchOptions(rounds=6),
        checked="2 targets returned the same 36 samples of jpg, 36.0 kB",
        limits=(
            Limit("bare decoder, 2 threads", "warm", 2_000.0, 2e7),
            Limit("sequential read", "cold", 1e6, 1e10),
        ),
        rows=(
            row("folder", 0, 412.3),
            row("folder", 2, 900.0),
            row("lmdb", 0, 450, ratio=Interval(1.09, 1.05, 1.12), verdict="faster"),
            row("lmdb", 2, 1_234.0, ratio=Interval(1.37, 1.2, 1.5), verdict="faster"),
        ),
        notes=("a note",),
    )


def many(report: Report, num: int) -> Report:
    """With so many targets, some with names that are long or vile."""
    names = [f"{'a-dataset-of-' * 5}{i}" if i % 3 else f"{EVIL}'\"&{i}" for i in range(num)]
    rows = [replace(report.rows[i % 4], target=name) for i, name in enumerate(names)]
    last = {"workers": 16, "worker_type": "process", "path": "/somewhere" * 30}
    rows[-5:] = [replace(one, **last) for one in rows[-5:]]
    return replace(report, rows=tuple(rows))


# --- what is on it ------------------------------------------------------------------------


def test_the_verdict_comes_first_then_what_it_was_measured_on(report: Report) -> None:
    text = as_page(report)
    found = Page(text)
    lines = in_words(report.rows, report.notes)
    assert found.inside["p"] == lines
    order = [lines[0], report.machine.cpu, report.machine.packages["numpy"]]
    order += [report.checked, report.command, "<table"]
    places = [text.index(one) for one in order]
    assert places == sorted(places)
    assert json.loads(found.inside["pre"][0]) == json.loads(json.dumps(report.to_json()))


def test_every_figure_is_on_it(report: Report) -> None:
    found = Page(as_page(report))
    rates, times = found.table("Rates"), found.table("Where the time goes")
    assert rates[3] == {
        "target": "lmdb", "workers": "2", "cache": "warm", "samples/s": "1,234",
        "95 % interval": "1,111-1,357", "MB/s": "12", "of limit": "60 %",
        "against the first": "1.37 (1.20-1.50) faster", "": "",
    }  # fmt: skip
    assert [line["target"] for line in rates[4:]] == [
        "limit: bare decoder, 2 threads", "limit: sequential read",
    ]  # fmt: skip
    assert times[0] == {
        "target": "folder", "workers": "0", "cache": "warm", "read, µs a sample": "375",
        "transform, µs a sample": "1,875", "collate, µs a sample": "62.5",
        "wait, µs a sample": "1,000", "ms a batch": "1.23", "99 %": "45.6", "longest": "789",
        "nearest limit": "bare decoder, 2 threads", "path": "/data/folder",
    }  # fmt: skip
    bars = [tag["style"] for name, tag in found.tags if name == "i"]
    assert bars == [
        f"width: {4 * round(BLOCK * n / 1234)}px" for n in (412.3, 900, 450, *[1234] * 3)
    ]


# --- nothing from elsewhere ---------------------------------------------------------------


@pytest.mark.parametrize("num", [1, 30])
def test_nothing_is_loaded_and_nothing_runs(report: Report, num: int) -> None:
    text = as_page(many(report, num))
    assert_nothing_is_loaded(text)
    assert len(Page(text).table("Rates")) == num + 2


def test_names_are_text(report: Report) -> None:
    vile = row(EVIL, 0, 1.0, path=f"/{EVIL}", limit=EVIL)
    text = as_page(
        replace(
            report,
            rows=(vile,),
            command=EVIL + "\udcff",
            commit=EVIL,
            checked=EVIL,
            notes=(EVIL,),
            machine=replace(report.machine, cpu=EVIL),
            limits=(Limit(EVIL, "warm", 1.0, 1.0),),
        )
    )
    text.encode()
    assert "<script" not in text
    found = Page(text)
    assert found.table("Rates")[0]["target"] == EVIL
    assert EVIL in found.inside["title"][0]


# --- pure parts ---------------------------------------------------------------------------


def test_amounts_read_well() -> None:
    values = [39_852.7, 100, 12.345, 1.0, 0.04171, 0, float("nan")]
    assert [*map(amount, values)] == ["39,853", "100", "12.3", "1.00", "0.0417", "0", "–"]


@given(st.text(), st.integers(3, 50))
def test_shortened_names_keep_both_ends(text: str, most: int) -> None:
    got = shortened(text, most)
    assert len(got) <= most
    assert got == text if len(text) <= most else got[0] == text[0] and got[-1] == text[-1]


json_like = st.recursive(
    st.none() | st.floats() | st.text() | st.integers(),
    lambda inner: st.lists(inner) | st.dictionaries(st.text(), inner),
)


@given(json_like)
def test_what_is_shown_can_be_written(value: Any) -> None:
    json.dumps(showable(value), allow_nan=False, ensure_ascii=False).encode()


# --- the command, and a browser -----------------------------------------------------------


def test_the_command_writes_the_page(run: Run, tmp_path: Path) -> None:
    make_images(tmp_path / "pictures")
    short = ("--workers", "0", "--batch-size", "8", "--rounds", "1")
    got = run("bench", "pictures", *short, "--json", "report.json", "--html", "report.html")
    assert got.code == 0, got.err
    (text,) = Page(Path("report.html").read_text("utf-8")).inside["pre"]
    assert json.loads(text) == json.loads(Path("report.json").read_text())


@pytest.mark.needs_program("chromium", "chromium")
@pytest.mark.parametrize("width", [360, 1280])
def test_in_chromium(report: Report, tmp_path: Path, width: int) -> None:
    path = tmp_path / "report.html"
    write_page(path, many(report, 30))
    seen, said = look(path, width, tmp_path)
    assert said == [], "errors on the console"
    assert seen["title"].startswith("shardkit bench: ")
    assert seen["scripts"] == seen["loaded"] == 0
    assert seen["wide"] <= width, "the page scrolls sideways"


@pytest.mark.needs_program("chromium", "chromium")
def test_the_check_for_what_is_loaded_can_fail(tmp_path: Path) -> None:
    path = tmp_path / "bad.html"
    path.write_text(
        '<title>x</title><div style="width:2000px">x</div><img src="http://127.0.0.1:9/x.png">'
        "<script>console.error('said')</script>"
    )
    seen, said = look(path, 360, tmp_path)
    assert seen["loaded"] == 1 and seen["scripts"] == 1 and seen["wide"] > 2000
    assert len(said) >= 1
