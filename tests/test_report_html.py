"""The page of a bench's report: all figures, nothing from elsewhere, whatever names are like."""

from __future__ import annotations

import copy
import json
import math
import re
from dataclasses import fields, replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from conftest import Run, make_images
from hypothesis import given
from hypothesis import strategies as st
from pages import Page, assert_nothing_is_loaded, look

import shardkit
from shardkit.errors import FormatError, StorageError
from shardkit.measure.bench import pace
from shardkit.measure.bench.evaluate import batch_times
from shardkit.measure.report import page as html
from shardkit.measure.report.data import Row, from_json, load
from shardkit.measure.report.page import is_complete
from shardkit.measure.report.shapes import MOST_STEPS, Scale, even_steps, in_thousands, steps
from shardkit.measure.report.template import showable
from shardkit.measure.report.words import amount, in_words, shortened, workers_in_words

Report = dict[str, Any]

EVIL = "<script>alert(1)</script>"


@pytest.fixture(scope="module")
def report(tmp_path_factory: pytest.TempPathFactory) -> Report:
    """Of a real run, if a short one: two batches a worker."""
    root = tmp_path_factory.mktemp("report")
    images = make_images(root / "images")
    for to in ("lmdb", "npy"):
        shardkit.pack(images, root / to, to=to, workers=0, progress=False)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(pace, "LEAST_EACH", 2)
        patch.setattr(pace, "pieces", lambda wanted, workers: 2 * workers)
        made = shardkit.bench(
            images, root / "lmdb", root / "npy", workers=[0, 2], batch_size=8, rounds=6
        )
    plain = json.loads(json.dumps(made.to_json(), allow_nan=False))
    assert from_json(plain) == made
    return {**plain, "command": "shardkit bench images lmdb npy"}


def page(reports: list[Report]) -> str:
    return html.page([from_json(report) for report in reports])


def rows_of(report: Report, *rows: dict[str, Any]) -> tuple[Row, ...]:
    """Those of the report, or these, as they are read."""
    return from_json({**report, "rows": [*(rows or report["rows"])]}).rows


def said(report: Report) -> list[str]:
    return in_words(rows_of(report), report["notes"])


def changed(report: Report, **values: Any) -> Report:
    """The report with these values in its first row."""
    other = copy.deepcopy(report)
    other["rows"][0] |= values
    return other


def as_cold(report: Report) -> Report:
    """Ten times slower."""
    other = copy.deepcopy(report)
    for row in other["rows"]:
        row["cache"] = "cold"
        row["samples_per_s"] = {k: v / 10 for k, v in row["samples_per_s"].items()}
    return other


def many(report: Report, num: int) -> Report:
    """With so many targets, some with names that are long or vile."""
    names = [f"{'a-dataset-of-' * 5}{i}" if i % 3 else f"{EVIL}'\"&{i}" for i in range(num)]
    other = copy.deepcopy(report)
    rows = [copy.deepcopy(report["rows"][i % len(report["rows"])]) for i in range(num)]
    other["rows"] = [row | {"target": name} for row, name in zip(rows, names, strict=True)]
    for row in other["rows"][-5:]:
        row |= {"workers": 16, "worker_type": "process", "path": "/somewhere" * 30}
    return other


# --- what is on it ------------------------------------------------------------------------


def test_the_verdict_comes_first_then_what_it_was_measured_on(report: Report) -> None:
    text = page([report])
    found = Page(text)
    lines = said(report)
    assert found.inside["p"] == lines
    order = [lines[0], report["machine"]["cpu"], report["machine"]["packages"]["numpy"]]
    order += [report["commit"] or "–", report["checked"], report["command"], "<svg", "<table"]
    places = [text.index(one) for one in order]
    assert places == sorted(places)
    assert [tag for tag, _ in found.tags].count("svg") == 3
    assert "Cold against warm" not in text


def test_every_figure_of_the_tables_is_the_reports(report: Report) -> None:
    found = Page(page([report]))
    tables = [found.table(name) for name in found.tables]
    rates, batches, rounds, targets, limits = tables
    for row, rate, batch, spent in zip(report["rows"], rates, batches, rounds, strict=True):
        for line in (rate, batch, spent):
            assert (line["target"], line["workers"]) == (row["target"], str(row["workers"]))
        assert number(rate["samples/s"]) == near(row["samples_per_s"]["median"])
        low, high = rate["95 % interval"].split(" to ")
        assert number(low) == near(row["samples_per_s"]["low"])
        assert number(high) == near(row["samples_per_s"]["high"])
        assert number(rate["MB/s"]) == near(row["bytes_per_s"]["median"] / 1e6)
        assert row["verdict"] in rate["against the first"]
        if row["ratio"]:
            assert float(rate["against the first"].split()[0]) == pytest.approx(
                row["ratio"]["median"], abs=0.006
            )
        assert rate["nearest limit"] == (row["limit"] or "–")
        assert number(rate["of it"]) / 100 == pytest.approx(row["of_limit"], abs=0.006)
        assert number(rate["samples a round"]) == row["samples"]
        assert number(rate["bytes of the dataset"]) == row["dataset_bytes"]
        if row["device_bytes"] is None:  # nobody counts them, as in memory
            assert rate["bytes from the device"] == "–"
        else:
            assert number(rate["bytes from the device"]) == row["device_bytes"]
        assert [number(text) for text in [*batch.values()][3:]] == [
            near(ms) for ms in row["batch_ms"].values()
        ]
        assert {name: number(spent[name]) for name in row["seconds"]} == {
            name: near(1e6 * s / row["samples"]) for name, s in row["seconds"].items()
        }
    assert [line["path"] for line in targets] == [row["path"] for row in report["rows"][:3]]
    for limit, line in zip(report["limits"], limits, strict=True):
        assert line["limit"] == limit["name"]
        assert number(line["samples/s"]) == near(limit["samples_per_s"])
        assert number(line["MB/s"]) == near(limit["bytes_per_s"] / 1e6)


def number(text: str) -> float:
    return float("nan") if text == "–" else float(text.replace(",", "").removesuffix(" %"))


def near(value: float) -> Any:
    return pytest.approx(value, rel=5e-3, abs=1e-12)


def test_the_report_can_be_copied_whole(report: Report) -> None:
    (text,) = Page(page([report])).inside["pre"]
    assert json.loads(text) == report


def test_the_charts_say_what_is_in_them(report: Report) -> None:
    text = page([report])
    for row in rows_of(report):
        rate = amount(row.samples_per_s.median)
        assert f">{row.target}, {workers_in_words(row)}: {rate}" in text
        assert f">{rate}</text>" in text
        assert f"{amount(row.batch_ms.p50)} ms, 99 %:" in text
    assert text.count("<title>") > 20, "what a mouse over a bar shows"


# --- nothing from elsewhere ---------------------------------------------------------------


@pytest.mark.parametrize("num", [1, 30])
def test_nothing_is_loaded_and_nothing_runs(report: Report, num: int) -> None:
    assert_nothing_is_loaded(page([many(report, num)]))


def test_names_are_text(report: Report) -> None:
    vile = changed(report, target=EVIL, path=f"/{EVIL}", where='"><b>', limit=EVIL)
    vile |= {"command": EVIL, "commit": EVIL, "checked": EVIL, "notes": [EVIL]}
    vile["machine"]["cpu"] = EVIL
    vile["limits"][0]["name"] = EVIL
    text = page([vile])
    assert "<script" not in text and "<b>" not in text
    found = Page(text)
    assert found.table("Rates")[0]["target"] == f'{EVIL} on "><b>'
    assert EVIL in found.inside["title"][0]


def test_names_of_any_bytes_can_be_written(report: Report, tmp_path: Path) -> None:
    odd = changed(report, target="a\udcff\n\x00\u202eb", path="/\udcff")
    html.write(tmp_path / "report.html", from_json(odd))
    found = Page((tmp_path / "report.html").read_text("utf-8"))
    assert found.table("Rates")[0]["target"] == r"a\udcff\n\x00\u202eb"


# --- reports of all kinds -----------------------------------------------------------------


@pytest.mark.parametrize("num", [1, 2, 30])
def test_any_number_of_rows(report: Report, num: int) -> None:
    found = Page(page([many(report, num)]))
    assert len(found.table("Rates")) == num


def test_figures_that_are_missing_are_shown_as_such(report: Report) -> None:
    nan = float("nan")
    lacking = changed(
        report,
        samples_per_s={"median": nan, "low": None, "high": math.inf},
        device_bytes=None,
        limit=None,
        of_limit=None,
    )
    lacking["limits"].append(
        {"name": "a drive", "cache": "warm", "samples_per_s": None, "bytes_per_s": nan}
    )
    lacking["commit"] = None
    text = page([lacking])
    first = Page(text).table("Rates")[0]
    assert first["samples/s"] == first["nearest limit"] == first["bytes from the device"] == "–"
    assert "nan" not in re.sub(r"<pre>.*</pre>", "", text, flags=re.DOTALL).lower().split()
    assert '"median": null' in Page(text).inside["pre"][0]


def test_a_report_without_a_whole_row_is_a_table(report: Report) -> None:
    lacking = changed(report, seconds=dict.fromkeys(report["rows"][0]["seconds"]))
    lacking["rows"] = lacking["rows"][:1]
    found = Page(page([lacking]))
    assert found.inside["p"] == ["no row has all its figures"]
    assert "svg" not in {tag for tag, _ in found.tags}
    assert len(found.table("Rates")) == 1


@pytest.mark.parametrize(
    "values",
    [
        {"samples_per_s": {"median": -1, "low": -2, "high": -0.5}},
        {"samples_per_s": {"median": 0, "low": 0, "high": 0}},
        {"batch_histogram": {"edges_ms": [1.0, 1.0], "counts": [3]}},
        {"batch_histogram": {"edges_ms": [0, 1.0], "counts": [3]}},
        {"batch_histogram": {"edges_ms": [], "counts": []}},
    ],
)
def test_figures_that_make_no_sense_break_no_page(report: Report, values: dict[str, Any]) -> None:
    odd = changed(report, **values)
    assert len(Page(page([odd, as_cold(odd)])).table("Rates")) > 1
    odd["rows"] = odd["rows"][:1]
    assert len(Page(page([odd])).table("Rates")) == 1


def test_cold_beside_warm(report: Report) -> None:
    cold = as_cold(report)
    pairs = html.cold_with_warm(rows_of(report, *cold["rows"], *report["rows"]))
    if report["rows"][0]["cache"] != "warm":
        pytest.skip("the file system of this machine cannot tell what is warm")
    assert [(a.target, a.workers) for a, _ in pairs] == [
        (row["target"], row["workers"]) for row in report["rows"]
    ]
    text = page([cold, report])
    assert text.count("Cold against warm") == 2  # the heading and what screen readers are told
    assert text.count(" cold, 10 %</text>") == len(report["rows"])
    assert [tag for tag, _ in Page(text).tags].count("svg") == 7
    assert "different machines" not in text
    elsewhere = copy.deepcopy(report)
    elsewhere["machine"]["cpu"] = "another"
    assert "different machines" in page([cold, elsewhere])


def test_only_the_same_case_is_set_beside_a_cold_one(report: Report) -> None:
    warm = replace(rows_of(report)[0], cache="warm")
    cold, pairs = replace(warm, cache="cold"), html.cold_with_warm
    assert pairs([cold, warm]) == pairs([warm, cold]) == [(cold, warm)]
    others: list[dict[str, Any]] = [{"workers": 7}, {"read": "decode"}, {"batch_size": 3}]
    for other in [*others, {"path": "/x"}, {"cache": "unknown"}]:
        assert pairs([cold, replace(warm, **other)]) == []


# --- a report that is read back -----------------------------------------------------------


def test_a_report_is_read_back(report: Report, tmp_path: Path) -> None:
    path = tmp_path / "report.json"
    path.write_text(json.dumps(report))
    assert load(path) == from_json(report)
    assert json.loads(json.dumps(load(path).to_json())) == report


@pytest.mark.parametrize(
    ("text", "why"),
    [
        ("{", "is not JSON"),
        ("\udcff", "is not JSON"),
        ("[]", "it has no version"),
        ('{"version": 2}', "its version is 2, this shardkit reads 1"),
        ('{"version": 1}', "it has no checked"),
    ],
)
def test_what_is_no_report(tmp_path: Path, text: str, why: str) -> None:
    path = tmp_path / "other.json"
    path.write_bytes(text.encode("utf-8", "surrogateescape"))
    with pytest.raises(FormatError, match=why):
        load(path)


def parts_of(name: str) -> bool:
    """Whether it is made of other values."""
    return name in ("samples_per_s", "bytes_per_s", "batch_ms", "batch_histogram", "seconds")


@pytest.mark.parametrize("name", [one.name for one in fields(Row)])
def test_a_row_that_lacks_something(report: Report, tmp_path: Path, name: str) -> None:
    path = tmp_path / "report.json"
    parts: list[dict[str, Any]] = [{}] if parts_of(name) else []
    for value in [None, *parts]:
        other = changed(report)
        if value is None:
            del other["rows"][0][name]
        else:
            other["rows"][0][name] = value
        path.write_text(json.dumps(other))
        with pytest.raises(FormatError, match=f"its row 0 has no {name}"):
            load(path)


@pytest.mark.parametrize(
    "changes",
    [
        {"machine": {}},
        {"machine": {"packages": 3}},
        {"options": {"read": "fast"}},
        {"options": 3},
        {"limits": ["fast"]},
        {"limits": [{}]},
        {"rows": {"samples_per_s": {"median": "1", "low": 1, "high": 2}}},
        {"rows": {"seconds": {"read": [], "transform": 0, "collate": 0, "wait": 0}}},
    ],
)
def test_what_cannot_be_drawn_is_no_report(
    report: Report, tmp_path: Path, changes: dict[str, Any]
) -> None:
    other = changed(report)
    other["rows"][0] |= changes.pop("rows", {})
    path = tmp_path / "report.json"
    for name, value in changes.items():
        both = isinstance(value, dict) and value
        other[name] = {**other[name], **value} if both else value
    path.write_text(json.dumps(other))
    with pytest.raises(FormatError, match="is no report of shardkit bench --json: "):
        load(path)


def test_a_report_that_is_not_there(tmp_path: Path) -> None:
    with pytest.raises(StorageError, match="reading"):
        load(tmp_path / "none.json")


# --- pure parts ---------------------------------------------------------------------------


@given(st.floats(1e-9, 1e12))
def test_amounts_are_near(value: float) -> None:
    assert float(amount(value).replace(",", "")) == pytest.approx(value, rel=5.01e-3)


def test_amounts_read_well() -> None:
    values = [39_852.7, 100, 12.345, 1.0, 0.04171, 0, float("nan")]
    assert [*map(amount, values)] == ["39,853", "100", "12.3", "1.00", "0.0417", "0", "–"]


@given(st.text(), st.integers(3, 50))
def test_shortened_names_keep_both_ends(text: str, most: int) -> None:
    got = shortened(text, most)
    assert len(got) <= most
    assert got == text if len(text) <= most else got[0] == text[0] and got[-1] == text[-1]


@given(st.floats(1e-4, 1e4), st.floats(1.01, 1e4))
def test_steps_lie_on_the_axis(low: float, times: float) -> None:
    found = steps(low, low * times)
    assert found == sorted(set(found))
    assert len(found) <= MOST_STEPS and len(found) != 1
    assert all(low <= step <= low * times for step in found)
    if times >= 100:
        assert len(found) > 1


@given(st.floats(1e-6, 1e12))
def test_even_steps_are_few_and_from_0_to_the_top(top: float) -> None:
    found = even_steps(top)
    assert found[0] == 0 and 3 <= len(found) <= 7
    assert top - found[1] * (1 + 1e-9) <= found[-1] <= top * (1 + 1e-9)


def test_an_axis_is_labelled_in_thousands() -> None:
    assert [label for _, label in Scale(0, 7400).steps] == ["0", "2k", "4k", "6k"]
    assert [*map(in_thousands, [0, 0.5, 200, 1.5e6, 2e9])] == ["0", "0.5", "200", "1.5M", "2G"]
    assert [label for _, label in Scale(0.0008, 30).steps] == ["0.001", "0.01", "0.1", "1", "10"]
    assert [label for _, label in Scale(1.25, 1.75).steps] == ["1.25", "1.75"]


json_like = st.recursive(
    st.none() | st.floats() | st.text() | st.integers(),
    lambda inner: st.lists(inner) | st.dictionaries(st.text(), inner),
)


@given(json_like)
def test_what_is_shown_can_be_written(value: Any) -> None:
    json.dumps(showable(value), allow_nan=False, ensure_ascii=False).encode()


@given(st.lists(st.floats(1e-6, 10.0), min_size=1, max_size=200))
def test_a_histogram_has_every_batch(seconds: list[float]) -> None:
    made = batch_times(seconds)[1]
    edges = made.edges_ms
    assert sum(made.counts) == len(seconds)
    assert len(edges) == len(made.counts) + 1
    assert edges[0] > 0 and np.all(np.diff(edges) > 0)


def test_a_histogram_tells_what_was_ready_from_what_was_waited_for() -> None:
    counts = batch_times([1e-5] * 50 + [2e-5] * 50 + [1e-2] * 50)[1].counts
    assert [count for count in counts if count] == [50, 50, 50]


# --- the command --------------------------------------------------------------------------

SHORT = ("--workers", "0", "--batch-size", "8", "--rounds", "1")


def test_the_command_writes_the_page(run: Run, tmp_path: Path) -> None:
    make_images(tmp_path / "pictures")
    got = run("bench", "pictures", *SHORT, "--json", "earlier.json", "--html", "report.html")
    assert got.code == 0, got.err
    assert "folder" in got.out and "<" not in got.out, "the table is as without"
    report = json.loads(Path("earlier.json").read_text())
    (text,) = Page(Path("report.html").read_text("utf-8")).inside["pre"]
    assert json.loads(text) == report
    again = run("bench", "pictures", *SHORT, "--html", "2.html", "--with", "earlier.json")
    assert again.code == 0, again.err
    assert json.loads(Page(Path("2.html").read_text("utf-8")).inside["pre"][1]) == report
    piped = run("bench", "pictures", *SHORT, "--json", "-", "--html", "3.html")
    assert json.loads(piped.out)["rows"] and Path("3.html").stat().st_size > 10_000


def test_the_command_refuses_before_it_measures(run: Run, tmp_path: Path) -> None:
    make_images(tmp_path / "pictures")
    Path("no.json").write_text("[]")
    page_of = ["bench", "pictures", "--html", "report.html"]
    for words, code, why in [
        (["bench", "pictures", "--with", "no.json"], 2, "name that with --html FILE"),
        ([*page_of, "--with", "no.json"], 1, "is no report of shardkit bench --json"),
        ([*page_of, "--with", "none.json"], 1, "No such file"),
    ]:
        got = run(*words)
        assert (got.code, got.out) == (code, "")
        assert why in got.err and "measuring" not in got.err


# --- in a browser -------------------------------------------------------------------------


@pytest.mark.needs_program("chromium", "chromium")
@pytest.mark.parametrize("width", [360, 1280])
@pytest.mark.parametrize("num", [1, 30])
def test_in_chromium(report: Report, tmp_path: Path, width: int, num: int) -> None:
    shown = many(report, num)
    path = tmp_path / "report.html"
    html.write(path, from_json(as_cold(shown)), from_json(shown))
    seen, said = look(path, width, tmp_path)
    assert said == [], "errors on the console"
    assert seen["title"].startswith("shardkit bench: ")
    assert seen["scripts"] == seen["loaded"] == 0
    assert seen["wide"] <= width, "the page scrolls sideways"
    assert len(seen["drawn"]) >= 6
    assert all(w > 280 and h > 40 for w, h in seen["drawn"])
    assert seen["cut"] == [], "text that the drawing's edge cuts off"


@pytest.mark.needs_program("chromium", "chromium")
def test_the_check_for_what_is_loaded_can_fail(tmp_path: Path) -> None:
    path = tmp_path / "bad.html"
    path.write_text(
        '<title>x</title><div style="width:2000px">x</div><img src="http://127.0.0.1:9/x.png">'
        "<svg width=300 height=50><text x=290>a long text</text></svg>"
        "<script>console.error('said')</script>"
    )
    seen, said = look(path, 360, tmp_path)
    assert seen["loaded"] == 1 and seen["scripts"] == 1 and seen["wide"] > 2000
    assert seen["cut"] == ["a long text"] and len(said) >= 1


def test_a_row_is_complete(report: Report) -> None:
    assert all(map(is_complete, rows_of(report)))
