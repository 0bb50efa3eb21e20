"""Words of torch's and of others, given to what calls them otherwise: each refusal says ours."""

from __future__ import annotations

import inspect
import subprocess
import sys
from collections.abc import Callable
from dataclasses import fields
from itertools import islice
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from torch.utils.data import ConcatDataset, DataLoader, WeightedRandomSampler, random_split
from trained import Rows

import shardkit
from shardkit.arguments import OTHER_WORDS
from shardkit.batches.batch_options import BatchKeywords, BatchOptions, OrderKeywords
from shardkit.errors import ShardkitError, UsageError

TAKERS: dict[str, Callable[..., Any]] = {
    "Loader": lambda **given: shardkit.Loader(Rows(96), 8, **given),
    "Stream": lambda **given: shardkit.Stream(Rows(96), 8, **given),
    "BatchSampler": lambda **given: shardkit.BatchSampler(96, 8, **given),
    "open": lambda **given: shardkit.open("nowhere", **given),
    "Dataset": lambda **given: shardkit.Dataset("nowhere", **given),
    "TokenDataset": lambda **given: shardkit.TokenDataset("nowhere", seq_len=8, **given),
    "mix": lambda **given: shardkit.mix({"a": Rows(96)}, **given),
    "concat": lambda **given: shardkit.concat([Rows(96)], **given),
    "pack": lambda **given: shardkit.pack("nowhere", **given),
    "convert": lambda **given: shardkit.convert("nowhere", to="npy", **given),
}


@pytest.mark.parametrize("taker", TAKERS)
@pytest.mark.parametrize("word", [*OTHER_WORDS, "colour"])
def test_each_word_of_others(taker: str, word: str) -> None:
    takes_order = taker in ("Loader", "Stream", "BatchSampler")
    if (taker, word) == ("Loader", "pin_memory") or (takes_order and word == "drop_last"):
        pytest.skip(f"{taker} has it")
    with pytest.raises(UsageError, match=f"^{taker} takes no option '{word}'") as told:
        TAKERS[taker](**{word: 3})
    assert str(told.value).endswith(OTHER_WORDS.get(word, f"'{word}'"))


def test_help_shows_what_there_is() -> None:
    assert "cache_dir" in inspect.signature(shardkit.open).parameters
    assert "world_size" in inspect.signature(shardkit.BatchSampler).parameters


def test_what_torch_makes_of_datasets() -> None:
    rows = Rows(96)
    part = random_split(rows, [0.5, 0.5])[0]  # type: ignore[arg-type]
    for given, ours in (
        (part, "dataset.select(subset.indices)"),
        (ConcatDataset([rows, rows]), "shardkit.concat"),  # type: ignore[list-item]
        (DataLoader(rows), "its dataset"),  # type: ignore[arg-type]
    ):
        for take in (
            lambda given: shardkit.Loader(given, 8),
            lambda given: shardkit.concat([given]),
        ):
            with pytest.raises(UsageError) as told:
                take(given)
            assert ours in str(told.value) and "\n" not in str(told.value)
    with pytest.raises(UsageError, match=r"shardkit\.mix\(\.\.\., weights=\)"):
        shardkit.Loader(rows, 8, sampler=WeightedRandomSampler([1.0] * 96, 96))  # type: ignore[call-arg]


def mixed(weights: dict[str, float], **options: Any) -> shardkit.Loader:
    parts = {"a": Rows(48), "b": Rows(96)}
    return shardkit.Loader(shardkit.mix(parts, weights, **options), 4, shuffle="full", workers=0)


def test_a_state_of_a_mix_with_other_weights() -> None:
    one = mixed({"a": 1, "b": 1})
    list(islice(one, 3))
    state = one.state_dict()
    said = r"other weights: {'a': 0.5, 'b': 0.5}, here {'a': 0.25, 'b': 0.75}. .* with set_epoch"
    with pytest.raises(UsageError, match=said):
        mixed({"a": 1, "b": 3}).load_state_dict(state)
    with pytest.raises(UsageError, match="other seed: 0, here 1"):
        mixed({"a": 1, "b": 1}, seed=1).load_state_dict(state)
    with pytest.raises(UsageError, match=r"other length: .*, here 20"):
        mixed({"a": 1, "b": 1}, length=20).load_state_dict(state)
    del state["mixture"]
    with pytest.raises(UsageError, match="the state is of another dataset"):
        mixed({"a": 1, "b": 3}).load_state_dict(state)
    mixed({"a": 1, "b": 1}).load_state_dict(state)


UNGUARDED = """
import multiprocessing, sys
import numpy as np, shardkit
class Rows:
    def __len__(self):
        return 8
    def read(self, rows):
        return {"id": rows}
multiprocessing.set_start_method("spawn", force=True)
try:
    list(shardkit.Loader(Rows(), 4, workers=1, worker_type="process"))
except shardkit.ShardkitError as error:
    print(error)
    sys.exit(3)
"""


@pytest.mark.parametrize("is_stdin", [False, True])
def test_a_main_script_that_cannot_be_imported(tmp_path: Path, is_stdin: bool) -> None:
    path = tmp_path / "script.py"
    path.write_text(UNGUARDED)
    where = ["-"] if is_stdin else [str(path)]
    done = subprocess.run(
        [sys.executable, *where], input=UNGUARDED if is_stdin else "", capture_output=True,
        text=True, timeout=240, check=False,
    )  # fmt: skip
    assert done.returncode == 3
    said = done.stdout.splitlines()[-1]
    assert "if __name__ == '__main__':" in said and "ransform" not in said
    assert issubclass(UsageError, ShardkitError)


# --- the options of batches: one list, whoever takes them ---------------------------------


def test_every_option_is_a_keyword() -> None:
    names = {each.name for each in fields(BatchOptions)}
    assert names == {*BatchKeywords.__annotations__, "batch_size"}


@pytest.mark.parametrize(
    ("taker", "keywords"),
    [
        (shardkit.Loader, BatchKeywords),
        (shardkit.Stream, BatchKeywords),
        (shardkit.dali.source, OrderKeywords),
    ],
)
def test_a_signature_shows_each_with_its_default(taker: Any, keywords: Any) -> None:
    shown = inspect.signature(taker).parameters
    for name in keywords.__annotations__:
        assert shown[name].default == getattr(BatchOptions, name)
        assert shown[name].kind is inspect.Parameter.KEYWORD_ONLY
    assert "options" not in shown


def test_what_is_given_is_put_in_one_form() -> None:
    given: dict[str, Any] = {"shuffle": True, "seed": np.int64(3), "as_buffer": ["jpg"]}
    options = BatchOptions.of("Loader", np.int32(4), {**given, "block_rows": np.int64(8)})
    assert options == BatchOptions(4, "full", 3, as_buffer=("jpg",), block_rows=8)
    assert type(options.seed) is type(options.batch_size) is int
    assert options.of_order == {"block_rows": 8}


def test_who_takes_what() -> None:
    with pytest.raises(UsageError, match="source takes no option 'transform'"):
        BatchOptions.of("source", 1, {"transform": None}, OrderKeywords)
