"""make campaign: a little of each kind finds nothing, and each oracle finds what is put there."""

from __future__ import annotations

import os
import re
import runpy
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import closing
from importlib import import_module
from pathlib import Path
from typing import Any
from unittest import mock

import numpy as np
import pytest
import torch
from conftest import Ran

import shardkit

pytestmark = pytest.mark.thorough

ROOT = Path(__file__).parent.parent
FOLDER = ROOT / "scripts" / "campaign"

SEED = 1


@pytest.fixture(scope="module", autouse=True)
def _importable() -> Iterator[None]:
    sys.path.insert(0, str(FOLDER))
    threads = torch.get_num_threads()
    yield
    torch.set_num_threads(threads)
    sys.path.remove(str(FOLDER))


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory, _importable: None) -> Path:
    """The data of one seed."""
    made = tmp_path_factory.mktemp("campaign")
    corpora, runner = import_module("corpora"), import_module("runner")
    runner.in_a_process(lambda: corpora.make(made / "corpora", SEED))
    return made


def found(folder: Path, kind: str, *numbers: int, **changed: Any) -> dict[int, list[str]]:
    """Findings of some cases, by number, run as a campaign does: in forked processes."""
    from dataclasses import replace

    case, runner = import_module("cases").Case, import_module("runner").Runner
    chosen = replace(import_module("kinds").KINDS[kind], **changed)
    cases = (case(kind, SEED, number) for number in numbers)
    with closing(runner(chosen, folder, 2).run(cases)) as outcomes:
        all_of_them = {done.case.number: done.outcome.findings for done in outcomes}
    assert all_of_them.keys() == {*numbers}
    return {number: findings for number, findings in all_of_them.items() if findings}


# --- nothing is found ---------------------------------------------------------------------


@pytest.mark.parametrize(
    ("kind", "numbers"),
    [
        ("fuzz", range(10)),
        ("flips", range(10)),
        ("kills", range(3)),
        ("contract", range(5)),
        ("faults", [0, 3, 8]),
        ("splitters", range(200)),
        ("planted", range(10)),
    ],
)
def test_a_handful_finds_nothing(folder: Path, kind: str, numbers: Any) -> None:
    assert found(folder, kind, *numbers) == {}


# --- what is wrong is found ---------------------------------------------------------------


def test_a_verify_that_sees_nothing(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    fine = mock.Mock(ok=True)
    monkeypatch.setattr(shardkit, "verify", lambda *args, **options: fine)
    findings = found(folder, "flips", *range(4))
    assert findings.keys() == {*range(4)}
    assert all("verify does not find" in each[0] for each in findings.values())
    assert found(folder, "flips", 2) == {2: findings[2]}  # alone, it is the same


def test_reading_that_does_not_check(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    real = shardkit.open
    monkeypatch.setattr(
        shardkit, "open", lambda path, *args, verify=False, **options: real(path, *args, **options)
    )
    findings = found(folder, "flips", *range(12))
    assert any("verify=True: row" in text for each in findings.values() for text in each)


def test_a_sampler_that_is_split_twice(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("shardkit.order.sampler.refuse_second_split", lambda *args: None)
    findings = found(folder, "splitters", *range(200))
    assert any("samples were seen, 0 may be dropped" in each[0] for each in findings.values())


def leak(*args: object, **options: object) -> None:
    raise RuntimeError("what users must not see")


def crash(*args: object, **options: object) -> None:
    os.abort()


def hang(*args: object, **options: object) -> None:
    while True:
        pass


def escape(*args: object, **options: object) -> None:
    Path("../a/b/escaped").write_text("x")


def devour(*args: object, **options: object) -> None:
    np.ones(90_000_000)


@pytest.mark.parametrize(
    ("step", "words"),
    [
        (leak, r"RuntimeError: what users must not see"),
        (crash, r"the process ended: signal SIGABRT"),
        (hang, r"hangs: no end after 2 s"),
        (escape, r"written outside of the destination: \['escaped'\]"),
        (devour, r"memory: \d+ MiB more"),
    ],
)
def test_what_a_step_may_not_do(
    step: Callable[..., None],
    words: str,
    folder: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    for name in ("info", "pack"):
        monkeypatch.setattr(shardkit, name, step)
    changed = {"deadline_s": 2} if step is hang else {}
    findings = found(folder, "fuzz", 0, 1, **changed)
    texts = [text for each in findings.values() for text in each]
    assert any(re.search(words, text) for text in texts), texts


def test_a_pack_that_does_not_resume(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """It leaves a file of its own each time."""
    real = shardkit.pack

    def untidy(source: Any, dest: Any, **options: Any) -> Any:
        made = real(source, dest, **options)
        (Path(dest) / f"note-{os.getpid()}").write_text("")
        return made

    monkeypatch.setattr(shardkit, "pack", untidy)
    texts = [text for each in found(folder, "kills", *range(3)).values() for text in each]
    assert any("note-" in text for text in texts), texts


def test_batches_in_another_order(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Those of one container: its epochs are of another seed."""
    real = shardkit.Loader

    def moved(source: Any, *args: Any, **options: Any) -> Any:
        name = str(getattr(source, "path", ""))
        return real(
            source, *args, **options | {"seed": options["seed"] + (not name.endswith("npy"))}
        )

    monkeypatch.setattr(shardkit, "Loader", moved)
    texts = [text for each in found(folder, "contract", *range(6)).values() for text in each]
    assert any("global batch 0 differs" in text for text in texts)


# --- the command --------------------------------------------------------------------------

Command = Callable[..., Ran]


@pytest.fixture
def command(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> Command:
    """Runs a campaign as a person does, but in this process, which has imported torch already."""

    def run(*args: object) -> Ran:
        monkeypatch.chdir(tmp_path)
        monkeypatch.setattr(sys, "argv", ["campaign", *map(str, args)])
        with pytest.raises(SystemExit) as ended:
            runpy.run_path(str(FOLDER), run_name="__main__")
        return Ran(int(ended.value.code or 0), *capfd.readouterr())

    return run


def test_a_finding_can_be_made_again(
    command: Command, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with monkeypatch.context() as broken:
        broken.setattr(shardkit, "verify", lambda *args, **options: mock.Mock(ok=True))
        done = command("--only", "flips", "--seed", 5, "--flips", 1)
        again = command("--reproduce", "flips:5:0")
    mended = command("--reproduce", "flips:5:0")
    assert done.code == 1, done.err
    assert "seed 5\n" in done.out
    assert "FINDING flips:5:0: verify does not find" in done.out
    assert "python scripts/campaign --reproduce flips:5:0" in done.out
    kept = tmp_path / "campaign-findings" / "flips-5-0"
    assert "verify does not find" in (kept / "findings.txt").read_text()
    assert list(kept.glob("*/shardkit.json"))
    assert again.code == 1 and "the finding is there again" in again.out
    assert mended.code == 0 and "nothing was found: flips:5:0" in mended.out
    table = done.out.splitlines()
    assert any(re.match(r"flips +1 +1 +\d+", line) for line in table)


def test_a_case_that_is_none(tmp_path: Path) -> None:
    """As a person starts it."""
    line = [sys.executable, str(FOLDER), "--reproduce", "flops:1:2"]
    env = {**os.environ, "PYTHONPATH": str(ROOT)}
    done = subprocess.run(line, cwd=tmp_path, env=env, capture_output=True, text=True)
    assert done.returncode == 2 and "'flops:1:2' is no case" in done.stderr
