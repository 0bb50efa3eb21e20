"""train_gpt.py: text is learnt; stopped and resumed; documents that see no other."""

from __future__ import annotations

import math
import re
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np
import pytest
import torch
from conftest import make_texts, write
from hypothesis import given
from hypothesis import strategies as st
from jobs import (
    EXAMPLES,
    ROOT,
    assert_close,
    imported,
    losses,
    on_ranks,
    run_script,
)
from token_data import npy

import shardkit

SCRIPT = EXAMPLES / "train_gpt.py"
SEQ_LEN = 32

TINY: list[object] = [
    "--device",
    "cpu",
    "--global-batch-size",
    "8",
    "--seq-len",
    SEQ_LEN,
    "--width",
    "16",
]
TINY += ["--depth", "2", "--heads", "2", "--precision", "fp32", "--log-every", "1"]
TINY += ["--vocab-size", "256", "--epochs", "2"]
BATCHES = 6
STEPS = 2 * BATCHES


def pack_texts(folder: Path, splits: dict[str, list[bytes]], to: str = "npy") -> Path:
    """Documents of one token a byte."""
    for split, texts in splits.items():
        for i, text in enumerate(texts):
            tokens = np.frombuffer(text, np.uint8)
            write(folder / "source" / split / f"{i:03d}.tokens", npy(tokens))
    options: dict[str, Any] = {"corpus": "paired", "workers": 0, "progress": False}
    return shardkit.pack(folder / "source", folder / "packed", to=to, **options).dest


def pieces(text: bytes, size: int) -> list[bytes]:
    return [text[at : at + size] for at in range(0, len(text), size)]


LICENCE = (ROOT / "LICENSE").read_bytes()


@pytest.fixture(scope="module")
def dataset(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Six global batches an epoch, and some tokens that fill none; 11 windows to evaluate."""
    train = pieces(LICENCE[: BATCHES * 8 * SEQ_LEN + 90], 111)
    val = pieces(LICENCE[-11 * SEQ_LEN - 1 :], 100)
    return pack_texts(tmp_path_factory.mktemp("texts"), {"train": train, "val": val})


@pytest.fixture(scope="module")
def script() -> Iterator[ModuleType]:
    with imported("train_gpt") as module:
        yield module


def val_losses(out: str) -> dict[str, float]:
    return {
        epoch: float(loss) for epoch, loss in re.findall(r"epoch (\d+): loss (\S+) on val", out)
    }


def train(
    script: ModuleType, capsys: pytest.CaptureFixture[str], dataset: Path, *args: object
) -> str:
    script.main([str(word) for word in (dataset, *TINY, *args)])
    return capsys.readouterr().out


# --- several ranks ------------------------------------------------------------------------


def run(ranks: int, *args: object) -> str:
    return on_ranks(ranks, run_script, SCRIPT, *args)


def test_ranks_with_unequal_numbers_of_labels_are_as_one(
    script: ModuleType, dataset: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """One sequence each, of as much padding and as many ends of documents as it happens to have."""
    options = ["--boundaries", "fit", "--global-batch-size", 2, "--steps", 6]
    apart = run(2, dataset, *TINY, *options)
    assert_close(losses(apart), losses(train(script, capsys, dataset, *options)))


# --- one process --------------------------------------------------------------------------


def entropy(counts: np.ndarray[Any, Any]) -> float:
    """In nats."""
    shares = counts[counts > 0] / counts.sum()
    return -float((shares * np.log(shares)).sum())


def test_text_is_learnt(
    script: ModuleType, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Better than a byte can be told from the one before it, by who knows all such pairs."""
    paths = sorted((ROOT / "shardkit").rglob("*.py"))[::11]
    texts = [path.read_bytes() for path in paths]
    packed = pack_texts(
        tmp_path,
        {"train": [text for i, text in enumerate(texts) if i % 10], "validation": texts[::10]},
    )
    options = ["--width", 32, "--depth", 1, "--lr", 0.008, "--global-batch-size", 12]
    out = train(script, capsys, packed, *options)
    loss = [*losses(out).values()]
    assert loss[0] == pytest.approx(math.log(256), rel=0.05)
    ids = np.frombuffer(b"".join(texts), np.uint8).astype(np.int64)
    of_pairs = entropy(np.bincount(ids[:-1] * 256 + ids[1:])) - entropy(np.bincount(ids))
    assert np.mean(loss[-10:]) < of_pairs < 0.5 * math.log(256)
    assert val_losses(out)["1"] < of_pairs


def test_the_loss_of_val_is_the_mean_of_all_its_labels(
    script: ModuleType, dataset: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """11 windows in batches of 8, of which padding is not counted; the windows one by one."""
    path = tmp_path / "run.pt"
    out = train(script, capsys, dataset, "--epochs", 1, "--checkpoint", path)
    model = script.GPT(256, SEQ_LEN, 16, 2, 2)
    model.load_state_dict(torch.load(path, weights_only=True)["model"])
    ids = np.frombuffer(LICENCE[-11 * SEQ_LEN - 1 :], np.uint8).astype(np.int64)
    inputs, labels = (torch.from_numpy(part).view(11, SEQ_LEN) for part in (ids[:-1], ids[1:]))
    with torch.no_grad():
        each = [
            torch.nn.functional.cross_entropy(model(inputs[[i]])[0], labels[i]) for i in range(11)
        ]
    assert val_losses(out)["0"] == pytest.approx(float(torch.stack(each).mean()), rel=1e-5)


@pytest.mark.parametrize("boundaries", ["mask", "fit"])
def test_resumed_losses_are_exact_with_any_boundaries(
    boundaries: str,
    script: ModuleType,
    dataset: Path,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
) -> None:
    options = [dataset, "--boundaries", boundaries, "--checkpoint"]
    whole = train(script, capsys, *options, tmp_path / "whole.pt")
    first = train(script, capsys, *options, tmp_path / "run.pt", "--steps", 8)
    rest = train(script, capsys, *options, tmp_path / "run.pt", "--resume")
    assert losses(first) | losses(rest) == losses(whole)
    assert val_losses(first) | val_losses(rest) == val_losses(whole)
    assert losses(whole) != losses(train(script, capsys, dataset))


def without_vocab_size() -> list[object]:
    at = TINY.index("--vocab-size")
    return TINY[:at] + TINY[at + 2 :]


def test_a_dataset_says_how_many_tokens_there_are(
    script: ModuleType, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    texts = make_texts(tmp_path / "texts")
    for i in range(20):
        write(texts / f"long{i}.txt", LICENCE[i * 400 : i * 400 + 400])
    packed = shardkit.pack(texts, tmp_path / "packed", train_tokenizer=300, workers=0).dest
    script.main([str(word) for word in (packed, *without_vocab_size(), "--steps", 1)])
    loss = losses(capsys.readouterr().out)
    assert loss[1] == pytest.approx(math.log(320), rel=0.03)  # the next multiple of 64


def test_files_of_nanogpt(
    script: ModuleType, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    for name, text in (("train.bin", LICENCE), ("val.bin", LICENCE[-999:])):
        write(tmp_path / name, np.frombuffer(text, np.uint8).astype("<u2").tobytes())
    options = ["--val", tmp_path / "val.bin", "--epochs", 1]
    out = train(script, capsys, tmp_path / "train.bin", *options)
    assert val_losses(out)["0"] < losses(out)[1]
    documents = ["--boundaries", "mask", "--eos", ord("\n")]
    assert losses(train(script, capsys, tmp_path / "train.bin", *options, *documents)) != losses(
        out
    )
    with pytest.raises(SystemExit) as stopped:
        script.main([str(word) for word in (tmp_path / "train.bin", *without_vocab_size())])
    assert stopped.value.code == 2
    assert "does not say how large its vocabulary is: --vocab-size" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("args", "code", "message"),
    [
        (["{dataset}", "--seq-len", "100000"], 2, "UsageError: "),
        (["{dataset}", "--width", "12", "--heads", "5"], 2, "--width is a multiple of --heads"),
        (["{dataset}", "--val", "no-such"], 2, "DatasetMissingError: "),
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
    texts = shardkit.pack(
        make_texts(tmp_path / "texts"), tmp_path / "packed", to="npy", workers=0
    ).dest
    name, *options = [word.format(dataset=dataset, texts=texts) for word in args]
    with pytest.raises(SystemExit) as stopped:
        train(script, capsys, Path(name), *options)
    assert stopped.value.code == code
    assert message in capsys.readouterr().err.splitlines()[-1]


# --- the model ----------------------------------------------------------------------------


@pytest.fixture(scope="module")
def model(script: ModuleType) -> Any:
    torch.manual_seed(0)
    made = script.GPT(50, 24, 16, 2, 2)
    for parameter in made.parameters():  # as if trained: at first all tokens look alike
        torch.nn.init.normal_(parameter, std=0.3)
    return made.eval()


def test_no_token_sees_what_comes_after_it(model: Any) -> None:
    ids = torch.randint(50, (2, 24))
    other = ids.clone()
    other[:, 10:] = (other[:, 10:] + 1) % 50
    with torch.no_grad():
        seen, unseen = model(ids), model(other)
    torch.testing.assert_close(seen[:, :10], unseen[:, :10])
    assert not torch.isclose(seen[:, 10:], unseen[:, 10:]).all(-1).any()


@given(st.lists(st.integers(1, 10), min_size=1, max_size=8))
def test_a_document_among_others_is_as_alone(model: Any, lengths: list[int]) -> None:
    lengths = [length for i, length in enumerate(lengths) if sum(lengths[: i + 1]) <= 24]
    docs = [torch.randint(50, (1, length)) for length in lengths]
    positions = torch.cat([torch.arange(length) for length in lengths])[None]
    with torch.no_grad():
        together = model(torch.cat(docs, 1), positions)
        alone = torch.cat([model(doc) for doc in docs], 1)
    torch.testing.assert_close(together, alone, rtol=1e-4, atol=1e-5)


def test_input_and_output_share_their_weights(model: Any) -> None:
    assert model.head.weight is model.tokens.weight
    per_block = 12 * 16**2 + 13 * 16
    expected = 50 * 16 + 24 * 16 + 2 * per_block + 2 * 16
    assert sum(parameter.numel() for parameter in model.parameters()) == expected
