"""What the doctor says: in a terminal, as JSON, and as a page."""

from __future__ import annotations

import json
import math
import re
from dataclasses import fields, is_dataclass, replace
from pathlib import Path
from types import UnionType
from typing import Any, get_args, get_type_hints

import pytest
from doctor_evidence import GPU_TRACE, evidence, rank, recorded
from pages import Page, assert_nothing_is_loaded, look

from shardkit.measure.doctor import doctor_report as sections
from shardkit.measure.doctor.diagnose import diagnose
from shardkit.measure.doctor.doctor_report import (
    MOST_RANKS,
    VERSION,
    as_page,
    lines,
    to_json,
)
from shardkit.measure.doctor.evidence import (
    Applied,
    CodeLine,
    Diagnosis,
    Epochs,
    Evidence,
    FilesRead,
    Gain,
    Phase,
    RankEvidence,
    Rate,
    Rates,
    StepTimes,
    Utilisation,
    WorkerTimes,
)

EVIL = "<script>alert(1)</script>"

VILE = ["'\"`$&", EVIL, "a\udcff\n\x00\u202eb", "x" * 5000, "", "{{ 7 * 7 }}"]

APPLIED = Applied("samples/s", 413.0, 533.0, 1.28)

WHOLE = """\
verdict: This machine is shared: other processes use 1.6 of 2 cores, and the script got 0.4. Batches
         come too late, and reading files takes 78% of making one with 2 workers.
change:  Pack the files, so that reading is one long read: `shardkit pack /data/arrays --to lmdb`,
         then shardkit.Loader(shardkit.open("arrays-lmdb"), 16, shuffle="full", workers="auto").
gain:    1.28 times the rate is predicted (1.00 to 1.65): 38.8 ms a step now, 30.2 ms then: measured
         with the files in memory, 33.1 steps/s
applied: 1.29 times the rate was measured: from 413 to 533 samples/s (predicted 1.28)

a step: 36.2 ms, 25.8 steps/s, 413 samples/s
  wait for the batch      16.6 ms  46 %  ##############
  forward, and the rest   6.80 ms  19 %  ######
  backward                12.1 ms  33 %  ##########
  optimizer              0.724 ms   2 %  #

making a batch: 56.7 ms
  reading                    30.8 ms  54 %  ################
  the rest of the transform  4.00 ms   7 %  ##
  collating                  2.66 ms   5 %  #
  sending to the loop        1.95 ms   3 %  #
  waiting for a core         17.3 ms  31 %  #########
  of all that, on a core     9.31 ms  16 %  #####

rates
  rate                 steps/s         range  steps
  as it is                25.8  21.6 to 35.9     24
  loading free (G)        38.8  30.3 to 59.8     24
  files in memory (P)     33.1  27.3 to 44.5     24

loop
  loader: DataLoader over Arrays, batches of 16, 2 processes, 2 ahead each
  files:  16.0 a batch, 27.6 kB each (.bin), below /data/arrays (ext4)
  epochs: the first batch comes after 0.421 s, 4 % of the time (1 epoch)

machine, in 25.6 s
  cores:     2, of which 2.00 were busy; the script used 0.370
  CPU quota: it never stopped the script

costly lines of code
  slow_disk.py:27  SlowFile.readinto           78 % of the workers' time on a core
  slow_disk.py:79  main calls _…ped_call_impl  28 % of the main thread's time on a core
  slow_disk.py:77  main calls __next__         22 % of the main thread's time on a core
  slow_disk.py:80  main calls backward         8 % of the main thread's time on a core
  slow_disk.py:20  SlowFile.__init__           6 % of the workers' time on a core
  slow_disk.py:81  main calls wrapper          3 % of the main thread's time on a core

run: watched for 25.7 s; stopped by the doctor, which had seen enough; Python 3.11.7, torch
     2.13.0+cpu"""

SAID = Diagnosis("decoding", "Batches come late.", "pack", Gain(2, 1, 3, "how"))

PHASES: tuple[Phase, ...] = ("own", "replay", "warm")


def steps_of(num: int) -> Any:
    """A timeline: blocks of 20 steps of each phase in turn."""
    return tuple((0.1 * n, PHASES[n // 20 % 3], 0.03, 0.1) for n in range(num))


def seen_on_gpu() -> Evidence:
    """With all that can be seen."""
    lines_ = (CodeLine("/home/me/train.py", 44, "x.cpu()", "sync", 0.004, 2.0),)
    one = rank(
        0.1,
        0.05,
        device="cuda",
        flags=frozenset({"amp", "cuda"}),
        reading=0.1,
        cpu=0.05,
        epochs=Epochs(1.25, 0.03, 2),
        lines=lines_,
        timeline=steps_of(100),
    )
    used = Utilisation(1.2e14, 0.121, 9.895e14)
    return evidence(one, trace=GPU_TRACE, utilisation=used, notes=("no py-spy",))


def many_ranks(num: int) -> Evidence:
    ranks = [rank(0.1, number=n, world_size=num, timeline=steps_of(5000)) for n in range(num)]
    return evidence(*ranks)


# --- in a terminal ------------------------------------------------------------------------


def test_the_whole_report() -> None:
    seen = recorded("slow_disk")
    assert lines(seen, diagnose(seen), APPLIED) == WHOLE.split("\n")


def test_a_gpu_and_a_trace() -> None:
    said = re.sub(r"\s+", " ", "\n".join(lines(seen_on_gpu(), SAID)))
    for words in (
        "trace: 1.00 s; the GPU was idle 5 % of the time, 10,000 kernels/s of 50.0 µs, only copying"
        " 0.0 %",
        "arithmetic: 120 TFLOP/s, an MFU of 12 % of 990 TFLOP/s",
        "train.py:44 x.cpu() 4.00 ms a step, 2.00 calls",
        "in use: amp, cuda",
        "note: no py-spy",
    ):
        assert words in said


def test_of_many_ranks_some_are_named_and_the_slow_one_is_among_them() -> None:
    said = "\n".join(lines(many_ranks(64), replace(SAID, cause="straggler", rank=50)))
    assert len(re.findall(r"^  \d+ on node0", said, re.MULTILINE)) == MOST_RANKS
    assert re.search(r"^  50 on node0 .*<- slow$", said, re.MULTILINE)
    assert f"{64 - MOST_RANKS} more: --json" in said and "a step on rank 50: " in said


def test_nothing_was_seen() -> None:
    nothing = evidence(throttled=None)
    assert lines(nothing, diagnose(nothing))[-4:] == [
        "machine, in 60.0 s",
        "  cores: 4, of which 2.20 were busy; the script used 2.10",
        "",
        "run: watched for 60.0 s; Python 3.12.3, torch 2.13.0",
    ]
    assert Page(as_page(nothing, SAID)).inside["p"][0] == SAID.sentence


def none_of(value: Any, name: str) -> Any:
    """The same with this field None wherever it is."""
    if isinstance(value, tuple):
        return tuple(none_of(one, name) for one in value)
    if not is_dataclass(value) or isinstance(value, type):
        return value
    changes = {one.name: none_of(getattr(value, one.name), name) for one in fields(value)}
    hint = get_type_hints(type(value)).get(name)
    if isinstance(hint, UnionType) and type(None) in get_args(hint):
        changes[name] = None
    return replace(value, **changes)


def test_any_field_may_be_none() -> None:
    kinds = (Evidence, RankEvidence, Rates, FilesRead, Utilisation, type(rank().loader))
    for name in sorted({name for kind in kinds for name in get_type_hints(kind)}):
        seen = none_of(seen_on_gpu(), name)
        assert "None" not in "\n".join(lines(seen, SAID)), name
        assert "None" not in as_page(seen, SAID), name
        json.dumps(to_json(seen, SAID), allow_nan=False)


def test_figures_that_are_none_break_nothing() -> None:
    nan = math.nan
    odd = rank(
        rates=Rates(Rate(nan, nan, math.inf, 0), Rate(0.0, 0.0, 0.0, 0)),
        lines=(CodeLine("a.py", 1, "x", "sync", nan), CodeLine("a.py", 2, "x", "profile")),
        timeline=((0.0, "own", nan, nan), (0.0, "own", 0.0, 0.0)),
    )
    odd = replace(odd, step=StepTimes(wait=nan), worker=WorkerTimes(reading=math.inf))
    assert "nan" not in "\n".join(lines(evidence(odd), SAID))
    as_page(evidence(odd), SAID)
    json.dumps(to_json(evidence(odd), SAID), allow_nan=False)


def test_a_change_that_made_it_slower_is_advised_against() -> None:
    slower = sections.applied_in_words(replace(APPLIED, before=600.0))
    assert slower.endswith("(predicted 1.28). Do not make this change: it is slower.")
    assert sections.applied_in_words(replace(APPLIED, predicted=None)) == (
        "1.29 times the rate was measured: from 413 to 533 samples/s (no prediction)"
    )
    stalled = replace(APPLIED, before=0.0)
    assert sections.applied_in_words(stalled) == "from 0 to 533 samples/s (predicted 1.28)"
    assert to_json(evidence(), SAID, stalled)["applied"]["factor"] is None


def test_a_gain_that_is_a_limit_is_said_to_be_one() -> None:
    gain = Gain(2.5, 2.0, 3.0, "the formula", is_limit=True)
    assert sections.gain_in_words(gain).startswith("up to 2.50 times the rate is predicted (2.00")


def hostile(evil: str) -> tuple[Evidence, Diagnosis]:
    """This text wherever a name comes from outside."""
    line = CodeLine(evil, 3, evil, "sync", 0.1, 1.0)
    one = rank(
        host=evil,
        device=evil,
        dtype=evil,
        kind=evil,
        dataset=evil,
        worker_type=evil,
        files=FilesRead(evil, {evil: 3}, 1.0, 2.0, evil),
        lines=(line, replace(line, kind="profile", share=0.5)),
        flags=frozenset({evil}),
        timeline=steps_of(100),
    )
    seen = evidence(one, replace(one, rank=1), notes=(evil,))
    names = dict.fromkeys(("folder", "ended", "python", "torch"), evil)
    said = replace(SAID, sentence=evil, change=evil, notes=(evil,))
    return replace(seen, command=(evil,), **names), said


@pytest.mark.parametrize("evil", VILE)
def test_hostile_names_break_nothing(evil: str) -> None:
    made = lines(*hostile(evil), APPLIED, width=60)
    assert max(map(len, made)) <= 60 and all(line.isprintable() for line in made)
    plain = to_json(*hostile(evil))
    json.dumps(plain, allow_nan=False, ensure_ascii=False).encode()
    text = as_page(*hostile(evil), APPLIED, evil)
    assert_nothing_is_loaded(text)
    assert "<script" not in text and "<title>49" not in text
    text.encode()


# --- what it is made of -------------------------------------------------------------------


def test_every_part_has_a_name() -> None:
    for kind, names in [(StepTimes, sections.STEP), (WorkerTimes, sections.MAKING)]:
        assert set(names) == {one.name for one in fields(kind)} - {"blocked", "cpu"}


def test_lines_of_several_ranks_are_named_once_the_dearest_first() -> None:
    def line(number: int, ms: float) -> CodeLine:
        return CodeLine("a.py", number, "x", "sync", ms / 1000)

    sampled = CodeLine("a.py", 20, "f", "profile", share=0.07)
    first = rank(0.12, lines=(*(line(n, n) for n in range(10)), sampled))
    second = rank(0.12, number=1, lines=(line(3, 50.0),))
    found = sections.costly_lines(evidence(first, second))
    assert [one.line for one in found] == [3, 9, 20, 8, 7, 6], "of steps of 120 ms"
    assert sections.cost(sampled) == "7 % of the main thread's time on a core"


@pytest.mark.parametrize(
    ("file", "folder", "shown"),
    [
        ("/a/b/train.py", "/a", "b/train.py:7"),
        ("/c/train.py", "/a", "/c/train.py:7"),
        ("train.py", "", "train.py:7"),
        ("/a/" + "x" * 50 + "/t.py", "/a", "xxxxxxxxxxxxxxxxx…xxxxxxxxxxxxx/t.py:7"),
    ],
)
def test_where_a_line_is(file: str, folder: str, shown: str) -> None:
    assert sections.place(CodeLine(file, 7, "", "sync"), folder) == shown


# --- JSON and the page --------------------------------------------------------------------


def test_json_has_all_of_it() -> None:
    made = to_json(seen_on_gpu(), SAID, APPLIED)
    assert made == json.loads(json.dumps(made, allow_nan=False))
    assert made["version"] == VERSION == 1
    assert {*made["evidence"]} == {one.name for one in fields(Evidence)}
    assert {*made["diagnosis"]} == {one.name for one in fields(Diagnosis)}
    (one,) = made["evidence"]["ranks"]
    assert {*one} == {each.name for each in fields(RankEvidence)}
    assert one["flags"] == ["amp", "cuda"] and one["timeline"][0] == [0.0, "own", 0.03, 0.1]
    assert made["applied"]["factor"] == 533.0 / 413.0


def test_the_page_says_the_same_as_the_terminal() -> None:
    seen = recorded("straggler")
    text = as_page(seen, diagnose(seen), APPLIED, "profile.json")
    order = ["Rank 2 on vm is slow", "Look at rank 2", "1.67 times the rate", "profile.json, for"]
    order += ["a step on rank 2", "loading free (G)", ">2 on vm<", "straggler.py:49"]
    places = [text.index(one) for one in order]
    assert places == sorted(places)
    found = Page(text)
    assert [line["steps/s"] for line in found.table("rates")] == ["8.39", "12.9", "15.7"]
    assert [line["wait"] for line in found.table("ranks")][2] == "5.06 ms"


def test_a_page_of_very_many_steps_and_ranks_stays_small() -> None:
    assert len(as_page(many_ranks(64), SAID)) < 900_000


@pytest.mark.needs_program("chromium", "chromium")
@pytest.mark.parametrize("evil", ["", EVIL * 20])
def test_in_chromium(tmp_path: Path, evil: str) -> None:
    path, width = tmp_path / "report.html", 360
    seen, said = hostile(evil) if evil else (many_ranks(8), SAID)
    path.write_text(as_page(seen, said, APPLIED))
    found, console = look(path, width, tmp_path)
    assert console == [], "errors on the console"
    assert found["title"].startswith("shardkit doctor: ")
    assert found["scripts"] == found["loaded"] == 0
    assert found["wide"] <= width, "the page scrolls sideways"
