"""train_images.py: as many processes, on CPUs with gloo; stopped, resumed, killed."""

from __future__ import annotations

import os
import re
import signal
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType

import pytest
import torch
from conftest import make_images, write
from jobs import (
    EXAMPLES,
    assert_close,
    finished,
    imported,
    launched,
    losses,
    members,
    on_ranks,
    run_script,
    torchrun,
)

import shardkit

SCRIPT = EXAMPLES / "train_images.py"

# 45 pictures: five global batches of 8 an epoch, and five pictures that fill none.
TINY = ["--device", "cpu", "--epochs", "2", "--global-batch-size", "8", "--width", "8"]
TINY += ["--size", "32", "--lr", "0.001", "--precision", "fp32", "--log-every", "1"]
TINY += ["--workers", "1"]
BATCHES = 5
STEPS = 2 * BATCHES


@pytest.fixture(scope="module")
def dataset(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("pictures")
    make_images(folder / "source" / "train", per_class=15)
    make_images(folder / "source" / "val", per_class=3)
    return shardkit.pack(folder / "source", folder / "packed", to="npy", workers=0).dest


@pytest.fixture(scope="module")
def script() -> Iterator[ModuleType]:
    with imported("train_images") as module:
        yield module


def run(ranks: int, *args: object) -> str:
    return on_ranks(ranks, run_script, SCRIPT, *TINY, *args)


def ranks_and_workers(parent: int, mark: str) -> tuple[list[int], list[int]]:
    found = members(mark)
    ranks = [pid for pid, above in found.items() if above == parent]
    return ranks, [pid for pid, above in found.items() if above in ranks]


def wait_until_gone(mark: str, seconds: float) -> None:
    deadline = time.monotonic() + seconds
    while left := members(mark):
        assert time.monotonic() < deadline, f"left behind: {left}"
        time.sleep(0.05)


def accuracies(out: str) -> dict[str, str]:
    return dict(re.findall(r"epoch (\d+): (\S+%) of val", out))


# --- several ranks ------------------------------------------------------------------------


@pytest.fixture(scope="module")
def undisturbed(dataset: Path) -> str:
    """With torchrun, as a person starts it."""
    return finished(torchrun(2, SCRIPT, *TINY, dataset))


@pytest.fixture(scope="module")
def stopped(dataset: Path, tmp_path_factory: pytest.TempPathFactory) -> tuple[str, bytes]:
    """Output and checkpoint of two ranks that stopped in the middle of the first epoch."""
    path = tmp_path_factory.mktemp("run") / "run.pt"
    out = run(2, dataset, "--steps", 3, "--checkpoint", path)
    return out, path.read_bytes()


def test_ranks_end_together_when_the_batch_divides_nothing(undisturbed: str) -> None:
    assert list(losses(undisturbed)) == [*range(1, STEPS + 1)]
    # 9 pictures to evaluate, padded to two batches of 8.
    assert {*accuracies(undisturbed)} == {"0", "1"}
    assert {*accuracies(undisturbed).values()} <= {f"{right / 9:.2%}" for right in range(10)}


@pytest.mark.thorough
@pytest.mark.parametrize("ranks", [2, 4])
def test_a_stopped_run_goes_on_with_the_same_batches(
    ranks: int, dataset: Path, undisturbed: str, stopped: tuple[str, bytes], tmp_path: Path
) -> None:
    first, checkpoint = stopped
    path = tmp_path / "run.pt"
    path.write_bytes(checkpoint)
    # Other workers, too: how batches are made is no part of what they are.
    rest = run(ranks, dataset, "--checkpoint", path, "--resume", "--worker-type", "process")
    assert "going on after step 3" in rest
    joined = losses(first) | losses(rest)
    assert list(losses(rest)) == [*range(4, STEPS + 1)]
    if ranks == 2:
        assert joined == losses(undisturbed)
    assert_close(joined, losses(undisturbed))
    assert accuracies(rest) == accuracies(undisturbed)


@pytest.mark.thorough
@pytest.mark.parametrize("end", ["rank killed", "torchrun terminated", "torchrun killed"])
def test_nothing_outlives_a_job(end: str, dataset: Path) -> None:
    options = ["--epochs", 10_000, "--global-batch-size", 2, "--worker-type", "process"]
    with launched(torchrun(2, SCRIPT, *TINY, dataset, *options)) as (process, mark):
        assert process.stdout
        for line in process.stdout:
            if "step 3:" in line:
                break
        deadline = time.monotonic() + 30
        ranks, workers = ranks_and_workers(process.pid, mark)
        while not (len(ranks) == 2 and workers):  # between two epochs there are none
            assert time.monotonic() < deadline
            ranks, workers = ranks_and_workers(process.pid, mark)
        if end == "rank killed":
            os.kill(ranks[1], signal.SIGKILL)
        elif end == "torchrun terminated":
            process.terminate()
        else:  # which tells nobody
            process.kill()
        out, _ = process.communicate(timeout=60)
        assert process.returncode != 0, out
        # Worker processes look every second whether their parent is still there.
        wait_until_gone(mark, 10)


# --- one process --------------------------------------------------------------------------


def train(
    script: ModuleType, capsys: pytest.CaptureFixture[str], dataset: Path, *args: object
) -> str:
    script.main([str(dataset), *TINY, *map(str, args)])
    return capsys.readouterr().out


def test_one_process_needs_no_torchrun(dataset: Path, undisturbed: str) -> None:
    """As a person starts it."""
    with launched([sys.executable, "-W", "error", str(SCRIPT), str(dataset), *TINY]) as (one, _):
        out, _ = one.communicate(timeout=60)
    assert one.returncode == 0, out
    assert_close(losses(out), losses(undisturbed))
    assert re.fullmatch(
        r"epoch 0 step 1: loss \d\.\d+, [\d,]+ pictures/s, waited \d+\.\d%", out.splitlines()[0]
    )


@pytest.mark.parametrize(
    ("precision", "stop"), [("fp32", 2), ("fp32", BATCHES), ("fp32", STEPS), ("bf16", 7)]
)
def test_resumed_losses_are_exact_wherever_it_stopped(
    script: ModuleType,
    dataset: Path,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    precision: str,
    stop: int,
) -> None:
    options = [dataset, "--precision", precision, "--checkpoint"]
    whole = train(script, capsys, *options, tmp_path / "whole.pt")
    first = train(script, capsys, *options, tmp_path / "run.pt", "--steps", stop)
    # Asked for as many steps as there were, it does nothing.
    again = [*options, tmp_path / "run.pt", "--resume"]
    said = train(script, capsys, *again, "--steps", stop)
    assert said == f"{tmp_path / 'run.pt'}: done after step {stop}\n"
    rest = train(script, capsys, *again)
    assert losses(first) | losses(rest) == losses(whole)
    assert len(losses(rest)) == STEPS - stop
    assert accuracies(first) | accuracies(rest) == accuracies(whole)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["run.pt", "whole.pt"]


def test_a_kill_loses_no_more_than_the_steps_since_the_last_checkpoint(
    script: ModuleType,
    dataset: Path,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    whole = train(script, capsys, dataset)

    def broken_off(state: object, file: object) -> None:
        raise KeyboardInterrupt

    path = tmp_path / "run.pt"
    options = ["--checkpoint", path, "--checkpoint-every", 2]
    train(script, capsys, dataset, *options, "--steps", 4)
    saved = path.read_bytes()
    monkeypatch.setattr(torch, "save", broken_off)
    with pytest.raises(SystemExit) as stopped:
        train(script, capsys, dataset, *options, "--resume")
    assert stopped.value.code == 130
    assert path.read_bytes() == saved
    assert [each for each in threading.enumerate() if each.name.startswith("shardkit")] == []
    monkeypatch.undo()
    capsys.readouterr()
    rest = losses(train(script, capsys, dataset, *options, "--resume"))
    assert rest == {step: loss for step, loss in losses(whole).items() if step > 4}


def test_fp16_scales_and_bf16_differs_a_little_from_fp32(
    script: ModuleType, dataset: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    found = {}
    for precision in ("fp32", "bf16", "fp16"):
        path = tmp_path / precision
        options = ["--precision", precision, "--steps", 2, "--checkpoint", path]
        found[precision] = losses(train(script, capsys, dataset, *options))
    assert found["bf16"] != found["fp32"]
    for precision in ("bf16", "fp16"):
        assert found[precision][1] == pytest.approx(found["fp32"][1], rel=0.02)
    scaler = torch.load(tmp_path / "fp16", weights_only=True)["scaler"]
    assert scaler["scale"] >= 1


@pytest.mark.parametrize(
    ("args", "code", "message"),
    [
        (["no-such"], 2, "DatasetMissingError: "),
        (["{dataset}", "--resume"], 2, "--resume needs --checkpoint"),
        (["{dataset}", "--checkpoint", "no/such/run.pt"], 2, "no folder no/such"),
        (["{dataset}", "--log-every", "0"], 2, "at least 1"),
        (["{dataset}", "--global-batch-size", "46"], 2, "45 pictures: make --global-batch-size at"),
        (["{dataset}", "--width", "12"], 2, "--width is a multiple of 8, got 12"),
        (["{texts}"], 2, "UsageError: "),
    ],
)
def test_errors_are_one_line(
    script: ModuleType,
    dataset: Path,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    args: list[str],
    code: int,
    message: str,
) -> None:
    write(tmp_path / "texts" / "a.txt", "no picture")
    texts = shardkit.pack(tmp_path / "texts", tmp_path / "packed", to="npy", workers=0).dest
    command = [word.format(dataset=dataset, texts=texts) for word in args]
    tiny = [word for word in TINY if not ("--log-every" in args and word == "--log-every")]
    with pytest.raises(SystemExit) as stopped:
        script.main([*tiny[: tiny.index("--width")], *command])
    assert stopped.value.code == code
    assert message in capsys.readouterr().err.splitlines()[-1]


def test_a_checkpoint_of_another_dataset_is_refused(
    script: ModuleType, dataset: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "run.pt"
    train(script, capsys, dataset, "--steps", 1, "--checkpoint", path)
    with pytest.raises(SystemExit) as stopped:
        train(script, capsys, dataset, "--seed", 1, "--checkpoint", path, "--resume")
    assert stopped.value.code == 2
    assert "the state is of another run: its seed is 0, here it is 1" in capsys.readouterr().err


def test_a_checkpoint_of_another_model_is_refused(
    script: ModuleType, dataset: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "run.pt"
    resume = ["--steps", 1, "--checkpoint", path, "--resume"]
    assert "is not there yet: beginning at step 0" in train(script, capsys, dataset, *resume)
    with pytest.raises(SystemExit) as stopped:
        train(script, capsys, dataset, "--width", 16, "--checkpoint", path, "--resume")
    assert stopped.value.code == 2
    assert "holds another model: use the options it was made with" in capsys.readouterr().err
