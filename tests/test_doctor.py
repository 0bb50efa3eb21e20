"""``shardkit doctor`` on whole scripts, however these are started and however they end."""

from __future__ import annotations

import html
import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from conftest import Run, write
from jobs import torchrun
from test_doctor_profile import speedscope

from shardkit.measure.doctor import collect
from shardkit.measure.doctor import examine as examine_module
from shardkit.measure.doctor.diagnose import diagnose
from shardkit.measure.doctor.doctor_report import lines
from shardkit.measure.doctor.evidence import Arguments, Diagnosis, Gain, StepTimes
from shardkit.measure.doctor.examine import Examined, RunOptions, apply, examine
from shardkit.watching.session import Plan

pytestmark = pytest.mark.usefixtures("lean_torch")

TRAIN = """
import os, sys, time
import torch
from torch.utils.data import DataLoader, Dataset

class Numbers(Dataset):
    def __init__(self, folder):
        self.paths = [os.path.join(folder, name) for name in sorted(os.listdir(folder))]
    def __len__(self):
        return 4 * {batches}
    def __getitem__(self, i):
        with open(self.paths[i % len(self.paths)], "rb") as file:
            file.read()
        {load}
        return torch.ones(8) * i

def main():
    torch.set_num_threads(1)
    model = torch.nn.Linear(8, 1)
    optimizer = torch.optim.SGD(model.parameters(), 1e-6)
    {hook}
    for epoch in range({epochs}):
        loader = DataLoader(Numbers({folder!r}), 4, num_workers={workers}{more})
        for batch in loader:
            loss = model(batch).sum()
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            {each}
            time.sleep({step_s})
    print("trained", os.getcwd(), flush=True)

if __name__ == "__main__":
    main()
    {after}
"""


@pytest.fixture
def train(tmp_path: Path) -> Callable[..., Path]:
    """Writes a training script, in a folder of its own."""
    data = tmp_path / "data"
    data.mkdir()
    for number in range(8):
        write(data / f"{number}.bin", "x" * 1000)

    def make(name: str = "train.py", **changes: Any) -> Path:
        chosen = {
            "batches": 40,
            "epochs": 1,
            "workers": 0,
            "more": "",
            "hook": "",
            "after": "",
            "each": "",
        }
        chosen |= {"after": "", "each": ""}
        chosen |= {"load": f"time.sleep({changes.get('load_s', 0.001)})"}
        chosen |= {"load_s": 0.001, "step_s": 0.004, "folder": str(data), **changes}
        folder = tmp_path / "scripts"
        folder.mkdir(exist_ok=True)
        return write(folder / name, TRAIN.format(**chosen))

    return make


QUICK = Plan(steps=10, rounds=2, rereads=False)


def watch(command: list[Any], tmp_path: Path, plan: Plan = QUICK, to_end: bool = True) -> Examined:
    with open(tmp_path / "out", "wb") as out:
        return examine([str(word) for word in command], plan, RunOptions(to_end=to_end), out)


# --- attaching ----------------------------------------------------------------------------


def test_a_script_that_a_shell_starts(
    train: Callable[..., Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    script = train()
    monkeypatch.chdir(script.parent)
    before = sorted(os.listdir(script.parent))
    found = watch(["sh", "-c", f"cd . && {sys.executable} train.py"], tmp_path)
    assert found.exit_code == 0 and found.evidence.ended == "exit code 0"
    (rank,) = found.evidence.ranks
    assert rank.loader.dataset == "Numbers" and rank.loader.batch_size == 4
    assert rank.rates.replay is not None and rank.rates.replay.num_steps == 10
    assert rank.step.other > 0 and rank.step.backward > 0 and rank.step.optimizer > 0
    assert rank.num_ops is not None and rank.num_ops > 3
    assert rank.dtype == "float32"
    assert rank.flops == pytest.approx(2 * 4 * 8 + 2 * 4 * 8, rel=0.6)
    assert len(rank.timeline) == 39  # but the step that was counted
    assert (tmp_path / "out").read_text() == f"trained {script.parent}\n"
    left = set(os.listdir(script.parent)) - {"__pycache__"}
    assert sorted(left) == before


def test_workers_are_watched_and_files_found(train: Callable[..., Path], tmp_path: Path) -> None:
    script = train(workers=2, batches=100)
    found = watch([sys.executable, script], tmp_path, Plan(steps=10, rounds=2))
    (rank,) = found.evidence.ranks
    assert rank.loader.num_workers == 2 and rank.loader.worker_type == "process"
    assert rank.worker.reading >= 0.004  # four samples that sleep for a millisecond
    assert rank.files is not None and rank.files.folder == str(tmp_path / "data")
    assert rank.files.endings == {".bin": 8} and rank.files.mean_bytes == 1000
    assert 3.9 < rank.files.per_batch < 4.1
    rates = rank.rates
    assert rates.warm is not None and rates.replay is not None


def test_it_runs_as_ever(
    train: Callable[..., Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Replayed batches count as the epoch's own, so that schedulers and progress bars agree; a
    sitecustomize of the user's own is imported; and the exit code is the script's."""
    lean = (Path(__file__).parent / "lean" / "sitecustomize.py").read_text()
    write(tmp_path / "own" / "sitecustomize.py", lean + "import builtins\nbuiltins.here = 'own'\n")
    monkeypatch.setenv("PYTHONPATH", str(tmp_path / "own"))
    script = train(
        batches=20,
        epochs=3,
        workers=1,
        hook="global steps; steps = 0",
        after='print("steps", steps, here); sys.exit(7)',
    )
    count = "optimizer.zero_grad(); steps += 1"
    script.write_text(script.read_text().replace("optimizer.zero_grad()", count))
    found = watch([sys.executable, script], tmp_path)
    assert (tmp_path / "out").read_text().splitlines()[-1] == "steps 60 own"
    assert found.exit_code == 7 and found.evidence.ended == "exit code 7"
    assert found.evidence.failed
    (rank,) = found.evidence.ranks
    assert rank.epochs.num == 3


# --- how it ends --------------------------------------------------------------------------


@pytest.mark.thorough
def test_an_iterator_for_each_step(train: Callable[..., Path], tmp_path: Path) -> None:
    """The iterator is gone before the step begins, which is timed all the same."""
    script = train(workers=1)
    anew = "for batch in (next(iter(loader)) for _ in range(45)):"
    script.write_text(script.read_text().replace("for batch in loader:", anew))
    (rank,) = watch([sys.executable, script], tmp_path).evidence.ranks
    assert rank.epochs.steps == 1 and rank.epochs.num >= 44
    assert rank.step.backward > 0 and rank.step.optimizer > 0 and rank.step.other >= 0.004
    assert rank.rates.replay is not None  # which is spared making the iterator
    assert rank.step.wait >= rank.worker.reading >= 0.004
    line = script.read_text().splitlines().index(f"        {anew}") + 1
    places = [(one.file, one.line) for one in rank.lines if one.kind == "wait"]
    assert places == [(str(script), line)]


@pytest.mark.thorough
def test_a_loop_that_ends_with_its_iterator_alive(
    train: Callable[..., Path], tmp_path: Path
) -> None:
    """Its last step never ends: of four, three are seen, which are too few, but are a loop."""
    loop = "for batch in [next(it) for it in [globals().setdefault('it', iter(loader))] * 4]:"
    script = train()
    script.write_text(script.read_text().replace("for batch in loader:", loop))
    seen = watch([sys.executable, script], tmp_path).evidence
    assert seen.ranks == () and seen.short_loop == 3
    assert "only 3 steps of it" in diagnose(seen).sentence


AFTER_60_STEPS = """
            done = globals().setdefault("done", []); done.append(1)
            if len(done) == 60: time.sleep(0.3)  # what was gathered is written with the next step
            if len(done) == 62: {}"""
"""Whatever the machine does meanwhile."""


@pytest.mark.thorough
def test_killed_in_the_middle(train: Callable[..., Path], tmp_path: Path) -> None:
    """As the kernel does when memory is short."""
    script = train(batches=9999, each=AFTER_60_STEPS.format("os.kill(os.getpid(), 9)"))
    found = watch([sys.executable, script], tmp_path)
    assert found.exit_code == 128 + signal.SIGKILL and found.evidence.ended == "signal SIGKILL"
    assert found.evidence.failed and diagnose(found.evidence).cause == "script failed"
    (rank,) = found.evidence.ranks
    assert rank.rates.own.steps_per_s > 0


@pytest.mark.thorough
def test_torchrun_says_nothing_of_its_end(
    train: Callable[..., Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It would call it an error, in thirty lines. This one has all of torch."""
    monkeypatch.delenv("PYTHONPATH")
    command = torchrun(1, train(batches=99999))
    found = watch(command, tmp_path, to_end=False)
    assert found.evidence.ended.startswith("stopped by the doctor") and found.evidence.ranks
    assert (tmp_path / "out").read_text() == ""


def test_a_signal_still_gives_the_report(train: Callable[..., Path], tmp_path: Path) -> None:
    script = train(each=AFTER_60_STEPS.format('open("ready", "w").close()'), batches=99999)
    report = tmp_path / "report.json"
    command = ["shardkit", "doctor", "--quick", "--steps", "3000", "--json", str(report), "--"]
    program = "import sys; from shardkit.cli import main; main()"
    process = subprocess.Popen(
        [sys.executable, "-c", program, *command[1:], sys.executable, str(script)],
        cwd=script.parent,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    while not (script.parent / "ready").exists():
        assert process.poll() is None
        time.sleep(0.05)
    process.send_signal(signal.SIGINT)
    _, err = process.communicate(timeout=60)
    assert process.returncode == 128 + signal.SIGINT
    assert "verdict:" in err
    seen = json.loads(report.read_text())
    assert seen["evidence"]["ranks"][0]["loader"]["dataset"] == "Numbers"


# --- the command --------------------------------------------------------------------------


def shardkit_doctor(*words: Any, cwd: Path) -> subprocess.CompletedProcess[str]:
    program = "import sys; from shardkit.cli import main; main()"
    command = [sys.executable, "-c", program, "doctor", *map(str, words)]
    return subprocess.run(command, cwd=cwd, capture_output=True, text=True, timeout=300)


def test_a_report_of_all_kinds(
    train: Callable[..., Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    script = train(load_s=0.005, step_s=0.002, batches=400)
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join(sys.path))  # with all of torch
    files = [tmp_path / name for name in ("report.json", "page.html", "trace.json.gz")]
    done = shardkit_doctor(
        *("--steps", 12, "--json", files[0], "--html", files[1], "--trace", files[2]),
        *("--", sys.executable, script),
        cwd=tmp_path,
    )
    assert done.returncode == 0, done.stderr
    assert done.stdout == ""
    first, *lines = done.stderr.splitlines()
    assert first == "shardkit doctor: 0 s: no training loop was seen yet"
    assert any(" steps were looked at" in line for line in lines)
    report = json.loads(files[0].read_text())
    sentence = report["diagnosis"]["sentence"]
    assert " ".join(done.stderr.split()).count(f"verdict: {sentence} change: ") == 1
    assert report["evidence"]["trace"] is None  # there is no GPU in it
    assert sentence in html.unescape(files[1].read_text())
    assert files[2].stat().st_size > 1000


def test_a_change_is_made_and_measured(train: Callable[..., Path], tmp_path: Path) -> None:
    script = train(load_s=0.004, step_s=0.015, batches=400)
    before = watch([sys.executable, script], tmp_path, to_end=False).evidence
    change: Arguments = {"num_workers": 2, "persistent_workers": True}
    said = Diagnosis("too few workers", "", "", Gain(2.0, 1.8, 2.2, ""), change)
    with open(tmp_path / "again", "wb") as out:
        done = apply(before, said, QUICK, RunOptions(), out)
    assert done is not None and done.what == "samples/s" and done.predicted == 2.0
    assert done.before == 4 * before.ranks[0].rates.own.steps_per_s and done.after > 0
    assert apply(before, replace(said, apply=None), QUICK, RunOptions()) is None


@pytest.mark.parametrize(
    ("words", "message"),
    [
        ([], "give either a script to run"),
        (["some/folder", "--", "python"], "give either a script to run"),
        (["--", "no-such-program"], "cannot run no-such-program: No such file"),
        (["--", "python3", "no-such.py", "--lr", "3"], r"doctor: no-such.py: no such file"),
        (["--steps", "2", "--", "true"], "steps must be at least 12, got 2"),
        (["--seconds", "-3", "--", "true"], "must be more than 0"),
        (["--peak-tflops", "0", "--", "true"], "must be more than 0"),
        (["--json", "no/such/folder", "--", "true"], "there is no such folder"),
        (["no-such-dataset"], "no-such-dataset"),
        (["--quick", "python", "train.py"], "before a command belongs --, as in `shardkit doctor"),
        (["some/folder", "--html", "page.html"], "--html is for a script, after --"),
        (["--ranks", "8", "--", "true"], "--ranks is for a dataset"),
        (["train.py"], "train.py is a script, not a dataset: `shardkit doctor -- python train.py`"),
        (["--quick", "--watch-only", "--", "true"], "give one of the two"),
        (["--trace", "steps.json", "--", "true"], "a name that ends in .json.gz"),
    ],
)
def test_a_call_that_makes_no_sense(run: Run, words: list[str], message: str) -> None:
    done = run("doctor", *words)
    assert done.code == 2
    assert message in done.err and done.err.count("\n") == 1


def test_a_script_that_crashes_is_said_to(tmp_path: Path) -> None:
    script = write(tmp_path / "train.py", "import torch.utils.data\nraise KeyError('data')\n")
    done = shardkit_doctor("--apply", "--", sys.executable, script, cwd=tmp_path)
    report = done.stderr.partition("\n\n")[2].partition("\n\n")[2]
    assert done.returncode == 1 and "\nverdict:" not in done.stderr
    assert report.startswith("failed: The script failed, so there is no verdict: exit code 1.")
    assert "nothing was applied: the script failed" in done.stderr


def test_a_script_without_a_loop_is_ended(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """nanoGPT trains by a loop that nothing sees, for days. The profile says where it is."""

    def taken(pid: int, output: Path, seconds: int) -> str:
        output.write_text(json.dumps(speedscope()))
        return ""

    monkeypatch.setattr(examine_module, "START_S", 0.2)
    monkeypatch.setattr(examine_module, "NO_LOOP_S", 0.1)
    monkeypatch.setattr(examine_module, "take_profile", taken)
    command = [sys.executable, str(write(tmp_path / "train.py", "import time; time.sleep(60)"))]
    with open(tmp_path / "out", "wb") as out:
        found = examine(command, QUICK, RunOptions(seconds=0.3, profiles=True), out)
    seen, said = found.evidence, diagnose(found.evidence)
    assert seen.seconds < 50 and seen.cut_s == 0.3 and not seen.failed and seen.ranks == ()
    assert seen.ended.startswith("stopped by the doctor, since --seconds was over")
    assert found.exit_code == 0 and found.is_profiled
    assert said.sentence.count("No process was seen that runs a loop") == 1
    assert "The run was cut after 0.3" in said.notes[-1]
    assert "/home/me/train.py:12" in "\n".join(lines(seen, said))


def test_an_epoch_is_as_long_as_the_loop_makes_it() -> None:
    """A loop that takes 5 of 100 batches, and waits 0.5 s for the first."""
    steps = [
        {"is": "step", "loop": 1, "epoch": number // 5, "phase": "own", "starts": not number % 5}
        | {"first": None if number % 5 else 0.5, "wait": (0.1, 0.0)}
        for number in range(48)
    ]
    times = StepTimes(wait=0.1, other=0.1)
    process = collect.Process(1, steps)
    epochs = collect._epochs(process, 1, 100, times)
    assert epochs.share == pytest.approx(0.4 / (0.4 + 5 * 0.2))
    whole = collect.Process(1, steps[:4])  # of one that was not seen to end
    epochs = collect._epochs(whole, 1, 100, times)
    assert epochs.share == pytest.approx(0.4 / (0.4 + 100 * 0.2))


def test_before_a_training(run: Run, tmp_path: Path) -> None:
    write(tmp_path / "data" / "a.txt", "some words")
    report = tmp_path / "checks.json"
    done = run("doctor", "data", "--ranks", 2, "--json", report)
    assert done.code in (0, 1), done.err
    names = {one["name"] for one in json.loads(report.read_text())}
    assert len(names) == 5  # plain files have no shards
    assert all(name in done.out for name in names)
