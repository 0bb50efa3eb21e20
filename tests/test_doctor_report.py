"""What the doctor says: in a terminal, as JSON, and as a page."""

from __future__ import annotations

import json
import math
import re
from collections.abc import Callable
from dataclasses import fields, is_dataclass, replace
from itertools import pairwise
from pathlib import Path
from types import UnionType
from typing import Any, get_args, get_type_hints

import pytest
from doctor_samples import (
    sample_applied,
    sample_diagnosis,
    sample_evidence,
    sample_evidence_of_ranks,
    sample_evidence_on_gpu,
    sample_loader,
    sample_rank,
    sample_straggler,
    sample_system,
    sample_timeline,
    sample_workers,
)
from hypothesis import given
from hypothesis import strategies as st
from pages import Page, assert_nothing_is_loaded, look

from shardkit.errors import StorageError
from shardkit.measure.doctor.diagnosis import Diagnosis, Gain
from shardkit.measure.doctor.evidence import (
    CodeLine,
    Evidence,
    FilesRead,
    Phase,
    RankEvidence,
    Rate,
    Rates,
    StepTimes,
    SystemEvidence,
    Utilisation,
    WorkerTimes,
)
from shardkit.measure.doctor.report import facts, hardware
from shardkit.measure.doctor.report import page as html
from shardkit.measure.doctor.report.data import VERSION, printable, to_json
from shardkit.measure.doctor.report.timeline import MOST_BARS, Bar, in_bars, timeline
from shardkit.measure.doctor.report.words import MOST_RANKS, WIDTH, gain_in_words, lines

EVIL = "<script>alert(1)</script>"

VILE = ["'\"`$&", EVIL, "a\udcff\n\x00\u202eb", "x" * 5000, "-" * 300, "", "{{ 7 * 7 }}"]

WHOLE = """\
verdict: decode-bound: the loop waits 71 % of its time for batches, and 76 % of making one is
         decoding pictures
change:  shardkit pack /data/train /data/train-packed --max-side 256
gain:    2.40 times the rate is predicted (2.00 to 2.70): min(G 27.8, 2 workers / 0.1 s) / 8.33
         steps/s
applied: 2.23 times the rate was measured: from 533 to 1,190 samples/s (predicted 2.40)
because: a step waits 85 ms of 120 ms for its batch
         with loading free the loop does 27.8 steps/s, as it is 8.33

a step: 120 ms, 8.33 steps/s, 533 samples/s
  wait for the batch     85.0 ms   71 %  #####################
  copies to the device   2.00 ms    2 %
  forward, and the rest  10.0 ms    8 %  ##
  backward               18.0 ms   15 %  ####
  optimizer              4.00 ms    3 %  #
  .item() and its like   1.00 ms  0.8 %

making a batch: 170 ms; DataLoader over ImageFolder, batches of 64, 2 processes, 2 ahead each
  reading                    12.0 ms   7 %  ##
  decoding pictures           130 ms  76 %  #######################
  the rest of the transform  18.0 ms  11 %  ###
  collating                  4.00 ms   2 %  #
  sending to the loop        6.00 ms   4 %  #
  of all that, on a core      150 ms  88 %
  files: 64.0 a batch, 110.0 kB each (.jpg, .png), below /data/train (ext4)

  rate                 steps/s         range  steps
  as it is                8.33  8.10 to 8.51    180
  loading free (G)        27.8  27.1 to 28.3     80
  files in memory (P)     8.70  8.41 to 8.90     80
  epochs: the first batch comes after 1.25 s, 3 % of the time (2 epochs)

machine, in 60.0 s
  cores:       2, of which 1.92 were busy; the script used 1.85
  CPU quota:   it stopped the script 12 % of the time
  memory:      3.2 GB were free at the least
  /dev/shm:    12.0 MB free at the least
  accelerator: it works 30 % of the time that it would with loading free (does not pass in MLPerf
               Storage)
  in use:      compile, fused_optimizer

costly lines of code
  data.py:30   __getitem__  76 % of the workers' time on a core
  train.py:41  loss.item()  1.00 ms a step, 1.00 calls

then: 4 workers in place of 2, if the machine had more cores
run:  watched for 62.0 s; Python 3.11.7, torch 2.13.0+cpu"""

ON_GPU = """\
  GPU NVIDIA H200: utilisation 97 % (which only says that some kernel ran), memory 40.0 GB of 150.0
                   GB; held back by power cap 40 %, thermal 0.0 %
  accelerator:     it works 30 % of the time that it would with loading free (does not pass in
                   MLPerf Storage)
  arithmetic:      120 TFLOP/s, an MFU of 12 % of 990 TFLOP/s
  reference:       16 % of the 3,300 a second that you gave
  trace:           1.20 s; the GPU was idle 62 % of the time, 41,000 kernels/s of 6.20 µs, only
                   copying 4 %
"""

RANKS = """\
  rank           step     wait  own time  all-reduces  cores
  0 on node0  90.0 ms  4.00 ms   36.0 ms      50.0 ms  0.400
  1 on node0  90.0 ms  4.00 ms   36.0 ms      50.0 ms  0.400
  2 on node0  90.0 ms  4.00 ms   84.0 ms      2.00 ms  0.400  <- slow
  3 on node0  90.0 ms  4.00 ms   36.0 ms      50.0 ms  0.400
"""


def said(evidence: Evidence, diagnosis: Diagnosis | None = None) -> str:
    return "\n".join(lines(evidence, diagnosis or sample_diagnosis()))


def with_rank(**changes: Any) -> Evidence:
    return sample_evidence(ranks=(sample_rank(**changes),))


# --- in a terminal ------------------------------------------------------------------------


def test_the_whole_report() -> None:
    assert lines(sample_evidence(), sample_diagnosis(), sample_applied()) == WHOLE.split("\n")


def test_a_gpu_and_a_trace() -> None:
    assert ON_GPU in said(sample_evidence_on_gpu()) + "\n"


def test_ranks_have_a_line_each_and_the_slow_one_is_marked() -> None:
    text = said(sample_evidence_of_ranks(4), sample_straggler(2)) + "\n"
    assert RANKS in text
    assert "a step on rank 2: 90.0 ms" in text, "the slow one is looked at"


def test_of_many_ranks_some_are_named_and_the_slow_one_is_among_them() -> None:
    text = said(sample_evidence_of_ranks(64, slow=50), sample_straggler(50))
    assert len(re.findall(r"^  \d+ on node0", text, re.MULTILINE)) == MOST_RANKS
    assert re.search(r"^  50 on node0 .*<- slow$", text, re.MULTILINE)
    assert f"and {64 - MOST_RANKS} more, which --json has" in text


@pytest.mark.parametrize(
    ("evidence", "diagnosis"),
    [
        (sample_evidence(), sample_diagnosis()),
        (sample_evidence_on_gpu(), sample_workers()),
        (sample_evidence_of_ranks(8), sample_straggler()),
    ],
)
def test_it_fits_a_terminal(evidence: Evidence, diagnosis: Diagnosis) -> None:
    made = lines(evidence, diagnosis)
    assert 25 <= len(made) <= 60
    assert max(map(len, made)) <= WIDTH


def test_nothing_was_seen() -> None:
    nothing = sample_evidence(
        ranks=(), system=bare_system(), utilisation=Utilisation(), notes=("no step was seen",)
    )
    verdict = Diagnosis("not enough evidence", "not enough evidence: no step was seen", (), "wait")
    assert lines(nothing, verdict) == [
        "verdict: not enough evidence: no step was seen",
        "change:  wait",
        "",
        "machine, in 60.0 s",
        "  cores:  2, of which 1.92 were busy; the script used 1.85",
        "  memory: 3.2 GB were free at the least",
        "",
        "note: no step was seen",
        "run:  watched for 62.0 s; Python 3.11.7, torch 2.13.0+cpu",
    ]
    assert Page(html.page(nothing, verdict)).inside["p"][0] == verdict.sentence


def bare_system() -> SystemEvidence:
    """Without what a machine may not tell."""
    return sample_system(throttled=None, shm_free=None)


LACKING: dict[str, tuple[Evidence, str]] = {
    "throttled": (sample_evidence(system=sample_system(throttled=None)), "CPU quota"),
    "shm_free": (sample_evidence(system=sample_system(shm_free=None)), "12.0 MB free"),
    "files": (with_rank(files=None), "files:"),
    "epochs": (with_rank(epochs=replace(sample_rank().epochs, num=0)), "epochs:"),
    "flags": (with_rank(flags=frozenset()), "in use"),
    "samples_per_step": (with_rank(samples_per_step=None), "533 samples/s"),
    "replay": (with_rank(rates=replace(sample_rank().rates, replay=None)), "(G)"),
    "warm": (with_rank(rates=replace(sample_rank().rates, warm=None)), "(P)"),
    "other rates": (with_rank(rates=Rates(sample_rank().rates.own)), "steps/s  "),
    "lines": (with_rank(lines=()), "costly lines of code"),
    "batch_size": (with_rank(loader=sample_loader(batch_size=None)), "batches of 64"),
    "prefetch_factor": (with_rank(loader=sample_loader(prefetch_factor=None)), "ahead"),
    "step": (with_rank(step=StepTimes()), "a step:"),
    "worker": (with_rank(worker=WorkerTimes()), "making a batch"),
    "accelerator": (sample_evidence(utilisation=Utilisation()), "accelerator"),
    "then": (sample_evidence(), "note:"),
}


@pytest.mark.parametrize("name", LACKING)
def test_what_was_not_seen_is_left_out(name: str) -> None:
    evidence, words = LACKING[name]
    text = said(evidence, sample_diagnosis())
    assert words not in text and "None" not in text and "nan" not in text
    if name != "then":
        assert words in said(sample_evidence(), sample_diagnosis())


GPU_LACKING: dict[str, tuple[Callable[[Evidence], Evidence], str]] = {
    "gpus": (lambda e: replace(e, system=replace(e.system, gpus=())), "GPU NVIDIA"),
    "trace": (lambda e: replace(e, trace=None), "trace:"),
    "flops": (lambda e: replace(e, utilisation=Utilisation()), "arithmetic:"),
    "mfu": (lambda e: replace(e, utilisation=replace(e.utilisation, mfu=None)), "MFU"),
    "peak": (lambda e: replace(e, utilisation=replace(e.utilisation, peak=None)), "990 T"),
    "reference": (
        lambda e: replace(e, utilisation=replace(e.utilisation, reference=None)),
        "reference:",
    ),
    "of_reference": (
        lambda e: replace(e, utilisation=replace(e.utilisation, of_reference=None)),
        "16 % of the",
    ),
    "throttle": (
        lambda e: replace(
            e, system=replace(e.system, gpus=(replace(e.system.gpus[0], throttle={}),))
        ),
        "held back",
    ),
    "notes": (lambda e: replace(e, notes=()), "py-spy"),
}


@pytest.mark.parametrize("name", GPU_LACKING)
def test_what_was_not_seen_of_a_gpu_is_left_out(name: str) -> None:
    change, words = GPU_LACKING[name]
    whole = re.sub(r"\s+", " ", said(sample_evidence_on_gpu()))
    less = re.sub(r"\s+", " ", said(change(sample_evidence_on_gpu())))
    assert words in whole and words not in less and "None" not in less


@pytest.mark.parametrize(
    ("changes", "words"),
    [({"gain": None}, "gain:"), ({"because": ()}, "because:"), ({"then": ()}, "then:")],
)
def test_what_the_doctor_does_not_say(changes: dict[str, Any], words: str) -> None:
    assert words in said(sample_evidence())
    assert words not in said(sample_evidence(), sample_diagnosis(**changes))


def optional_fields() -> set[str]:
    """All that may be None in the evidence."""
    found, waiting = set(), [Evidence]
    while waiting:
        kind = waiting.pop()
        for name, hint in get_type_hints(kind).items():
            for one in [hint, *get_args(hint)]:
                if is_dataclass(one) and isinstance(one, type):
                    waiting.append(one)
            if isinstance(hint, UnionType) and type(None) in get_args(hint):
                found.add(f"{kind.__name__}.{name}")
    return found


def none_of(value: Any, name: str) -> Any:
    """The same with this field None wherever it is."""
    if isinstance(value, tuple):
        return tuple(none_of(one, name) for one in value)
    if not is_dataclass(value) or isinstance(value, type):
        return value
    kind, _, field = name.partition(".")
    changes = {one.name: none_of(getattr(value, one.name), name) for one in fields(value)}
    if type(value).__name__ == kind:
        changes[field] = None
    return replace(value, **changes)


@pytest.mark.parametrize("name", sorted(optional_fields()))
def test_any_field_may_be_none(name: str) -> None:
    evidence = none_of(sample_evidence_on_gpu(), name)
    text = said(evidence)
    assert "None" not in text
    shown = re.sub(r"<pre>.*</pre>", "", html.page(evidence, sample_diagnosis()), flags=re.DOTALL)
    assert "None" not in shown
    json.dumps(to_json(evidence, sample_diagnosis()), allow_nan=False)


def test_a_change_that_made_it_slower_is_advised_against() -> None:
    slower = sample_applied(before=100.0, after=90.0, tried=(("num_workers=2", 90.0),))
    text = " ".join(lines(sample_evidence(), sample_workers(), slower))
    assert "0.90 times the rate was measured" in text
    assert "num_workers=2. Do not make this change: it is slower." in text
    assert "Do not make" not in " ".join(
        lines(sample_evidence(), sample_workers(), sample_applied())
    )


def test_a_gain_that_leaves_nothing_of_its_cause_is_a_limit() -> None:
    gain = Gain(3.0, 2.5, 3.5, "figures")
    assert gain_in_words(gain) == "3.00 times the rate is predicted (2.50 to 3.50): figures"
    assert gain_in_words(replace(gain, is_limit=True)).startswith("up to 3.00 times the rate")


def test_applied_without_a_prediction() -> None:
    (line,) = [
        one
        for one in lines(sample_evidence(), sample_workers(), sample_applied(predicted=None))
        if one.startswith("applied:")
    ]
    assert line.endswith("from 533 to 1,190 samples/s (no prediction)")
    stalled = lines(sample_evidence(), sample_workers(), sample_applied(before=0.0))
    assert "applied: from 0 to 1,190 samples/s (predicted 2.40)" in stalled
    plain = to_json(sample_evidence(), sample_workers(), sample_applied(before=0.0))
    assert plain["applied"]["factor"] is None


@pytest.mark.parametrize("evil", VILE)
@pytest.mark.parametrize("width", [60, WIDTH])
def test_hostile_names_break_no_line(evil: str, width: int) -> None:
    made = lines(hostile(evil), hostile_diagnosis(evil), width=width)
    assert max(map(len, made)) <= width
    assert all(line.isprintable() for line in made)
    "\n".join(made).encode()


def hostile(evil: str) -> Evidence:
    """This text wherever a name comes from outside."""
    line = CodeLine(evil, 3, evil, "sync", 0.1, 1.0)
    whole = sample_evidence_on_gpu()
    rank = replace(
        sample_rank(),
        host=evil,
        device=evil,
        dtype=evil,
        loader=sample_loader(kind=evil, dataset=evil, worker_type=evil),
        files=FilesRead(evil, {evil: 3}, 1.0, 2.0, evil),
        lines=(line, replace(line, kind="profile", share=0.5)),
        flags=frozenset({evil}),
    )
    gpu = replace(whole.system.gpus[0], name=evil, throttle={evil: 0.5})
    return replace(
        whole,
        command=(evil,),
        folder=evil,
        ended=evil,
        python=evil,
        torch=evil,
        ranks=(rank, replace(rank, rank=1)),
        system=replace(whole.system, gpus=(gpu,)),
        utilisation=whole.utilisation,
        notes=(evil,),
    )


def hostile_diagnosis(evil: str) -> Diagnosis:
    gain = sample_diagnosis().gain
    return sample_diagnosis(
        sentence=evil,
        because=(evil,),
        change=evil,
        then=(evil,),
        gain=gain and replace(gain, how=evil),
    )


def test_figures_that_are_none_break_nothing() -> None:
    nan = math.nan
    odd = with_rank(
        rates=Rates(Rate(nan, nan, math.inf, 0), Rate(0.0, 0.0, 0.0, 0)),
        cpu_share=nan,
        step=StepTimes(wait=nan),
        worker=WorkerTimes(reading=math.inf),
        lines=(CodeLine("a.py", 1, "x", "sync", nan), CodeLine("a.py", 2, "x", "profile")),
        timeline=((0.0, "own", nan, nan), (0.0, "own", 0.0, 0.0)),
    )
    assert "nan" not in said(odd)
    html.page(odd, sample_diagnosis())
    json.dumps(to_json(odd, sample_diagnosis()), allow_nan=False)


# --- what it is made of -------------------------------------------------------------------


def test_the_parts_add_up() -> None:
    rank = sample_rank()
    for times, names in [(rank.step, facts.STEP), (rank.worker, facts.MAKING)]:
        known = {one.name for one in fields(times)} - {"blocked", "cpu"}
        assert set(names) == known, "every part has a name"
        assert sum(facts.parts(times).values()) == pytest.approx(times.total)


def test_lines_of_several_ranks_are_named_once_the_dearest_first() -> None:
    def line(number: int, ms: float) -> CodeLine:
        return CodeLine("a.py", number, "x", "sync", ms / 1000)

    sampled = CodeLine("a.py", 20, "f", "profile", share=0.07)
    ranks = (
        sample_rank(lines=(*(line(n, n) for n in range(10)), sampled)),
        sample_rank(rank=1, lines=(line(3, 50.0),)),
    )
    found = facts.costly_lines(sample_evidence(ranks=ranks))
    assert [one.line for one in found] == [3, 9, 20, 8, 7, 6], "of steps of 120 ms"
    assert found[0].seconds == 0.05 and len(found) == facts.MOST_LINES


def test_a_hot_line_needs_no_loop() -> None:
    """A script without one has a main thread."""
    line = CodeLine("train.py", 4, "<module>", "profile", share=0.5)
    assert facts.cost(line) == "50 % of the main thread's time on a core"


def test_a_line_that_costs_next_to_nothing_is_not_named() -> None:
    cheap = CodeLine("a.py", 1, "x", "sync", 1e-5, 1.0)
    assert facts.costly_lines(with_rank(lines=(cheap,))) == []


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
    assert facts.place(CodeLine(file, 7, "", "sync"), folder) == shown


def test_floating_point_operations_have_a_unit() -> None:
    given_ = [2.5e15, 1.2e14, 3e9, 5e5]
    assert [*map(hardware.flops, given_)] == [
        "2.50 PFLOP/s",
        "120 TFLOP/s",
        "3.00 GFLOP/s",
        "0.500 MFLOP/s",
    ]


# --- JSON ---------------------------------------------------------------------------------


def test_json_has_all_of_it() -> None:
    made = to_json(sample_evidence_on_gpu(), sample_workers(), sample_applied())
    assert made == json.loads(json.dumps(made, allow_nan=False))
    assert made["version"] == VERSION == 1
    assert {*made["evidence"]} == {one.name for one in fields(Evidence)}
    assert {*made["diagnosis"]} == {one.name for one in fields(Diagnosis)}
    (rank,) = made["evidence"]["ranks"]
    assert {*rank} == {one.name for one in fields(RankEvidence)}
    assert rank["flags"] == ["amp", "cuda"]
    assert rank["timeline"][0] == [0.0, "own", *sample_timeline()[0][2:]]
    assert made["applied"] == {
        **{"what": "samples/s", "before": 533.0, "after": 1190.0, "predicted": 2.4},
        "tried": [],
        "factor": 1190.0 / 533.0,
    }
    assert to_json(sample_evidence(), sample_diagnosis())["applied"] is None


@pytest.mark.parametrize("evil", VILE)
def test_json_of_hostile_names_can_be_written(evil: str) -> None:
    made = to_json(hostile(evil), hostile_diagnosis(evil))
    json.dumps(made, allow_nan=False, ensure_ascii=False).encode()


def test_what_is_printable_stays_as_it_is() -> None:
    evidence = sample_evidence_on_gpu()
    assert printable(evidence) == evidence
    assert printable(None) is None
    assert printable(hostile("\udcff")).command == (r"\udcff",)


# --- the page -----------------------------------------------------------------------------


def test_the_verdict_comes_first_on_the_page() -> None:
    text = html.page(sample_evidence(), sample_workers(), sample_applied(), "profile.json")
    text = text[text.index("<main>") :]
    workers = sample_workers()
    order = [">" + workers.sentence, workers.because[0], workers.change, "2.40 times the rate"]
    order += ["2.23 times the rate was measured", "python train.py --epochs 2", "Steps over time"]
    order.insert(-1, "profile.json, for speedscope")
    order += ["Where a step", "Rates", "The machine", "train.py:41"]
    places = [text.index(one) for one in order]
    assert places == sorted(places)


def test_the_tables_have_the_figures() -> None:
    found = Page(html.page(sample_evidence_of_ranks(3), sample_straggler(2)))
    step = {line["part"]: (line["ms"], line["share"]) for line in found.table("A step of rank 2")}
    assert step["forward, and the rest"] == ("60.0", "67 %")
    rates = found.table("Rates of rank 2")
    assert [line["steps/s"] for line in rates] == ["8.33", "27.8", "8.70"]
    assert [line["slow"] for line in found.table("Ranks")] == ["", "", "slow"]


def test_the_pages_json_is_the_report_but_for_the_steps() -> None:
    evidence, diagnosis = sample_evidence_of_ranks(2), sample_straggler(1)
    (text,) = Page(html.page(evidence, diagnosis)).inside["pre"]
    whole = to_json(evidence, diagnosis)
    for rank in whole["evidence"]["ranks"]:
        del rank["timeline"]
    assert json.loads(text) == whole


@pytest.mark.parametrize("evil", VILE)
def test_nothing_is_loaded_and_nothing_runs(evil: str) -> None:
    text = html.page(hostile(evil), hostile_diagnosis(evil), sample_applied(what=evil), evil)
    assert_nothing_is_loaded(text)
    assert "<script" not in text and "<title>49" not in text
    text.encode()


def test_a_page_of_very_many_steps_and_ranks_stays_small(tmp_path: Path) -> None:
    whole = sample_evidence_of_ranks(64)
    long = sample_timeline(20_000)
    many = replace(whole, ranks=tuple(replace(one, timeline=long) for one in whole.ranks))
    html.write(tmp_path / "report.html", many, sample_straggler())
    assert (tmp_path / "report.html").stat().st_size < 900_000
    few = replace(whole, ranks=(replace(whole.ranks[0], timeline=long),))
    assert len(html.page(few, sample_diagnosis())) < 300_000


def test_a_page_that_cannot_be_written(tmp_path: Path) -> None:
    with pytest.raises(StorageError, match=r"writing .*no/report\.html"):
        html.write(tmp_path / "no" / "report.html", sample_evidence(), sample_diagnosis())


@pytest.mark.needs_program("chromium", "chromium")
@pytest.mark.parametrize("width", [360, 1280])
@pytest.mark.parametrize("evil", ["", EVIL * 20, "x" * 500])
def test_in_chromium(tmp_path: Path, width: int, evil: str) -> None:
    path = tmp_path / "report.html"
    evidence = hostile(evil) if evil else sample_evidence_of_ranks(8)
    diagnosis = hostile_diagnosis(evil) if evil else sample_straggler()
    html.write(path, evidence, diagnosis, sample_applied())
    seen, console = look(path, width, tmp_path)
    assert console == [], "errors on the console"
    assert seen["title"].startswith("shardkit doctor: ")
    assert seen["scripts"] == seen["loaded"] == 0
    assert seen["wide"] <= width, "the page scrolls sideways"
    assert len(seen["drawn"]) >= 4
    assert all(w > 280 and h > 40 for w, h in seen["drawn"])
    assert seen["cut"] == [], "text that the drawing's edge cuts off"


@pytest.mark.needs_program("chromium", "chromium")
def test_a_label_near_the_edge_is_not_cut(tmp_path: Path) -> None:
    """That of 40k, which stands at 99.5 % of the axis."""
    rate = Rate(32_950.0, 32_000.0, 32_950.0, 10)
    path = tmp_path / "report.html"
    html.write(path, with_rank(rates=Rates(rate)), sample_diagnosis())
    seen, _ = look(path, 360, tmp_path)
    assert seen["cut"] == []
    assert ">40k</text>" in path.read_text()


# --- the timeline -------------------------------------------------------------------------

PHASES: tuple[Phase, ...] = ("own", "replay", "warm")

Steps = list[tuple[float, Phase, float, float]]

some_steps = st.lists(
    st.tuples(st.sampled_from(PHASES), st.floats(0, 1), st.floats(1e-3, 1)),
    min_size=1,
    max_size=300,
)


def one_after_another(steps: list[tuple[Phase, float, float]]) -> Steps:
    now, made = 0.0, []
    for phase, share, total in steps:
        made.append((now, phase, share * total, total))
        now += total
    return made


@given(some_steps, st.integers(1, 50))
def test_bars_have_every_step_once(steps: Any, most: int) -> None:
    made = one_after_another(steps)
    bars = [*in_bars(made, most)]
    assert len(bars) <= len(PHASES) * most
    for phase in PHASES:
        time = sum(step[3] for step in made if step[1] == phase)
        waited = sum(step[2] for step in made if step[1] == phase)
        mine = [bar for bar in bars if bar.phase == phase]
        assert sum(bar.end - bar.start for bar in mine) == pytest.approx(time)
        in_all = sum(bar.wait / bar.total * (bar.end - bar.start) for bar in mine)
        assert in_all == pytest.approx(waited)
    for bar, after in pairwise(bars):
        assert bar.end <= after.start + 1e-9


def test_few_steps_have_a_bar_each() -> None:
    steps: Steps = [(0.0, "own", 0.1, 0.3), (0.5, "own", 0.0, 0.2), (0.7, "replay", 0.0, 0.1)]
    assert [*in_bars(steps, 10)] == [
        Bar(0.0, 0.3, "own", 0.1, 0.3),
        Bar(0.5, 0.7, "own", 0.0, 0.2),
        Bar(0.7, pytest.approx(0.8), "replay", 0.0, 0.1),
    ]


def test_a_long_step_does_not_flatten_the_others() -> None:
    steps = [(0.1 * n, "own", 0.05, 0.1) for n in range(100)]
    steps[50] = (5.0, "own", 0.0, 30.0)
    made = timeline([sample_rank(timeline=tuple(steps))])
    assert made is not None and made.top == pytest.approx(0.115)
    assert made.seconds == pytest.approx(35.0)
    assert made.rows[0].about.startswith("rank 0: 100 steps of")


def test_no_steps_no_timeline() -> None:
    assert timeline([]) is None
    assert timeline([sample_rank(timeline=())]) is None
    text = html.page(with_rank(timeline=()), sample_diagnosis())
    assert "Steps over time" not in text and "Where a step" in text


def test_a_timeline_of_many_ranks_has_few_bars() -> None:
    ranks = [sample_rank(rank=n, timeline=sample_timeline(5000)) for n in range(32)]
    made = timeline(ranks)
    assert made is not None
    boxes = sum(path.count("M") for row in made.rows for path in row.paths.values())
    assert boxes <= 2 * len(PHASES) * MOST_BARS
