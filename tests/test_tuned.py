"""Settings that are kept, and what Loader(workers="auto") makes of them."""

from __future__ import annotations

import functools
import json
import os
import random
import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from conftest import make_images, write

import shardkit
from shardkit import Loader, TokenDataset, images
from shardkit.batches.words import in_words
from shardkit.errors import UsageError
from shardkit.loading import auto, tuned
from shardkit.loading.settings import Settings
from shardkit.system.resources import Allowance

FOUND = Allowance("Some CPU", 8, 4.0, 10**12, 10**12, None)

TUNED = Settings(2, "process", 4)


def plain(sample: dict[str, Any]) -> dict[str, Any]:
    return {"cls": sample["cls"]}


def drawing(sample: dict[str, Any]) -> dict[str, Any]:
    return {"cls": sample["cls"], "noise": random.random()}


@pytest.fixture(scope="module")
def dataset(tmp_path_factory: pytest.TempPathFactory) -> shardkit.Dataset:
    root = tmp_path_factory.mktemp("tuned")
    shardkit.pack(
        make_images(root / "source"), root / "packed", to="npy", workers=0, progress=False
    )
    return shardkit.open(root / "packed")


@pytest.fixture(autouse=True)
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A cache folder of its own, and a machine of 4 processors."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    monkeypatch.delenv("LOCAL_WORLD_SIZE", raising=False)
    monkeypatch.setattr(auto, "allowance", lambda: FOUND)
    return tmp_path / "cache" / "shardkit" / "tune.json"


def about(loader: Loader, found: Allowance = FOUND, ranks: int = 1) -> dict[str, Any]:
    return tuned.about(loader.maker, found, ranks)


def settings_of(dataset: shardkit.Dataset, **options: Any) -> Settings:
    return Loader(dataset, **{"batch_size": 4, "workers": "auto", **options}).settings


# --- Loader -------------------------------------------------------------------------------


def test_the_rule(dataset: shardkit.Dataset) -> None:
    assert settings_of(dataset) == Settings(1)
    assert settings_of(dataset, transform=images.train(8)) == Settings(4, "thread")
    assert settings_of(dataset, transform=plain) == Settings(4, "thread")
    chosen = settings_of(dataset, transform=drawing)
    assert chosen == Settings(4, "process")
    assert chosen.why == "by rule: a process for each core this process may use"
    given = settings_of(dataset, transform=plain, worker_type="process")
    assert given.why == "by rule: a process for each core this process may use"
    given = settings_of(dataset, worker_type="process")
    assert given.why == "by rule: a process is enough for bytes as they are"
    with pytest.raises(UsageError, match='workers must be a whole number or "auto", got \'autom'):
        Loader(dataset, 4, workers="automatic")  # type: ignore[arg-type]


def test_ranks_share_the_machine(
    dataset: shardkit.Dataset, monkeypatch: pytest.MonkeyPatch
) -> None:
    for ranks, workers in [("", 4), ("2", 2), ("3", 1), ("8", 1)]:
        monkeypatch.setenv("LOCAL_WORLD_SIZE", ranks)
        assert settings_of(dataset, transform=plain).workers == workers
    for nonsense in ("0", "-1", "two"):
        monkeypatch.setenv("LOCAL_WORLD_SIZE", nonsense)
        with pytest.raises(UsageError, match="LOCAL_WORLD_SIZE must be 1 or more"):
            settings_of(dataset)


def test_what_was_tuned_is_used(dataset: shardkit.Dataset, cache: Path) -> None:
    loader = Loader(dataset, 4, transform=plain)
    assert tuned.save(about(loader), TUNED, 1234.5) == cache
    chosen = settings_of(dataset, transform=plain)
    assert chosen == TUNED
    assert chosen.why == "tuned on this machine"
    assert "2 processes, prefetch 4 (tuned on this machine)>" in repr(
        Loader(dataset, 4, workers="auto", transform=plain)
    )
    assert [batch["cls"].tolist() for batch in Loader(dataset, 4, workers="auto", transform=plain)]


def test_what_is_given_wins(dataset: shardkit.Dataset) -> None:
    tuned.save(about(Loader(dataset, 4, transform=plain)), TUNED, 1.0)
    given: dict[str, Any] = {"transform": plain}
    assert settings_of(dataset, **given, prefetch=1) == replace(TUNED, prefetch=1)
    assert settings_of(dataset, **given, worker_type="process") == TUNED
    assert settings_of(dataset, **given, worker_type="thread") == Settings(4, "thread")
    assert settings_of(dataset, **given, workers=5) == Settings(5, "thread", 2)
    assert settings_of(dataset, **given, workers=5).why == "given"


@pytest.mark.parametrize(
    "other",
    [{"batch_size": 5}, {"transform": drawing}, {"as_buffer": ["jpg"]},
     {"transform": functools.partial(plain)}, {"shuffle": "full"}, {"window_blocks": 8}],
)  # fmt: skip
def test_other_work_is_not_it(dataset: shardkit.Dataset, other: dict[str, Any]) -> None:
    tuned.save(about(Loader(dataset, 4, transform=plain)), TUNED, 1.0)
    assert settings_of(dataset, **{"transform": plain, **other}) != TUNED


def test_another_machine_or_dataset_is_not_it(
    dataset: shardkit.Dataset, monkeypatch: pytest.MonkeyPatch
) -> None:
    tuned.save(about(Loader(dataset, 4)), TUNED, 1.0)
    assert settings_of(dataset) == TUNED
    assert settings_of(dataset, seed=3) == TUNED
    assert settings_of(dataset.select(range(20))) != TUNED
    assert settings_of(shardkit.open(dataset.path, decode=False)) != TUNED
    monkeypatch.setenv("LOCAL_WORLD_SIZE", "2")
    assert settings_of(dataset) != TUNED
    monkeypatch.delenv("LOCAL_WORLD_SIZE")
    monkeypatch.setattr(auto, "allowance", lambda: replace(FOUND, cpu_quota=2.0))
    assert settings_of(dataset) != TUNED
    # What changes from minute to minute.
    monkeypatch.setattr(auto, "allowance", lambda: replace(FOUND, memory_bytes=5, open_files=7))
    assert settings_of(dataset) == TUNED


def test_the_container_is_what_it_is_about(dataset: shardkit.Dataset, tmp_path: Path) -> None:
    tuned.save(about(Loader(dataset, 4)), TUNED, 1.0)
    shardkit.convert(dataset.path, tmp_path / "other", to="hdf5", workers=0, progress=False)
    other = shardkit.open(tmp_path / "other")
    assert other.fingerprint == dataset.fingerprint
    assert settings_of(other) != TUNED


def test_the_container_of_tokens(tmp_path: Path) -> None:
    np.arange(4000, dtype=np.uint16).tofile(tmp_path / "tokens.bin")
    assert about(Loader(TokenDataset(tmp_path / "tokens.bin", seq_len=8), 4))["container"] is None
    for number in range(3):
        write(tmp_path / "pairs" / f"{number}.txt", "x")
        with (tmp_path / "pairs" / f"{number}.tokens").open("wb") as file:
            np.save(file, np.arange(90, dtype=np.uint16))
    found = set()
    for container in ("npy", "lmdb"):
        packed = tmp_path / container
        shardkit.pack(
            tmp_path / "pairs", packed, to=container, corpus="paired", workers=0, progress=False
        )
        found.add(about(Loader(TokenDataset(packed, seq_len=8), 4))["container"])
    assert found == {"npy", "lmdb"}


class Scaled:
    """As torchvision's transforms are: an object that says what it does."""

    def __init__(self, factor: int) -> None:
        self.factor = factor

    def __repr__(self) -> str:
        return f"Scaled({self.factor})"

    def __call__(self, sample: dict[str, Any]) -> dict[str, Any]:
        return sample


class Bare(Scaled):
    __repr__ = object.__repr__


def test_what_an_object_says_of_itself() -> None:
    assert in_words(Scaled(3)) == "Scaled(3)"
    assert in_words(Bare(3)) == "Bare"
    long, other = in_words(Scaled(10**3000)), in_words(Scaled(10**3000 + 1))
    assert len(long) < 350 and long != other


WORDS = """
import sys
sys.path[:0] = [{tests!r}]
import functools
from test_tuned import plain, images, in_words
print([in_words(each) for each in (plain, images.train(8), functools.partial(plain, a=1))])
"""


def test_words_are_the_same_in_every_process() -> None:
    code = WORDS.format(tests=str(Path(__file__).parent))
    env = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)}
    texts = {
        subprocess.run(
            [sys.executable, "-c", code], check=True, capture_output=True, text=True,
            env={**env, "PYTHONHASHSEED": str(seed)},
        ).stdout
        for seed in (1, 2)
    }  # fmt: skip
    (text,) = texts
    assert text.startswith("['plain', 'Train(size=8, ")
    assert text.rstrip().endswith("'plain(a=1)']")
    assert in_words(np.random.default_rng(0)) == "Generator(PCG64)"


# --- the file -----------------------------------------------------------------------------


def key(number: int) -> dict[str, Any]:
    return {"batch_size": number}


def test_results_add_up_and_the_oldest_go(cache: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tuned, "MOST", 3)
    for number in (1, 2, 3, 1, 4):
        tuned.save(key(number), Settings(number, "thread", 7), 10.0 * number)
    loaded = {number: tuned.load(key(number)) for number in range(1, 6)}
    assert {number for number, found in loaded.items() if found} == {1, 3, 4}
    assert loaded[4] == Settings(4, "thread", 7)
    assert json.loads(cache.read_text())["version"] == 1
    assert sorted(path.name for path in cache.parent.iterdir()) == ["tune.json"]


@pytest.mark.parametrize(
    ("text", "why"),
    [
        ('{"version": 1, "results": {', "it is no JSON"),
        ("[" * 100_000, "it is no JSON"),
        ('{"version": 1, "results": []}', "it holds no results"),
        ('{"version": 2, "results": {}}', "it is of version 2, here it is 1"),
        ('{"version": 1, "results": {"KEY": {"workers": 1}}}', "the result KEY is damaged"),
        ('{"version": 1, "results": {"KEY": {"workers": 1000000000, "worker_type": "thread",'
         ' "prefetch": 2}}}', "the result KEY is damaged"),
        ('{"version": 1, "results": {"KEY": {"workers": 1, "worker_type": ["thread"],'
         ' "prefetch": 2}}}', "the result KEY is damaged"),
    ],
)  # fmt: skip
def test_a_damaged_file_is_no_file(cache: Path, text: str, why: str) -> None:
    name = tuned._key(key(1))
    cache.parent.mkdir(parents=True)
    cache.write_bytes(text.replace("KEY", name).encode("latin-1"))
    with pytest.warns(UserWarning, match=why.replace("KEY", name)) as warned:
        assert tuned.load(key(1)) is None
    assert len(warned) == 1
    assert str(warned[0].message).endswith("`shardkit tune` writes them anew")
    if "damaged" not in why:
        with pytest.warns(UserWarning, match=why):
            tuned.save(key(1), TUNED, 1.0)
        assert tuned.load(key(1)) == TUNED


def test_a_loader_goes_on_without_the_file(dataset: shardkit.Dataset, cache: Path) -> None:
    cache.mkdir(parents=True)
    with pytest.warns(UserWarning, match=r"tune\.json are ignored: Is a directory"):
        assert settings_of(dataset) == Settings(1)


def test_no_home(dataset: shardkit.Dataset, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", "relative/paths/are/to/be/ignored")
    monkeypatch.setenv("HOME", "")
    monkeypatch.setattr(os.path, "expanduser", lambda path: path)
    assert settings_of(dataset) == Settings(1)
    with pytest.raises(OSError, match="no home folder: set XDG_CACHE_HOME"):
        tuned.save(key(1), TUNED, 1.0)


SAVE = """
import sys
from shardkit.loading import tuned
from shardkit.loading.settings import Settings
for number in range(int(sys.argv[1]), int(sys.argv[1]) + 20):
    tuned.save({"batch_size": number}, Settings(number), 1.0)
"""


def test_several_at_once_lose_nothing() -> None:
    env = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)}
    programs = [
        subprocess.Popen([sys.executable, "-c", SAVE, str(first)], env=env) for first in (1, 21, 41)
    ]
    assert [program.wait() for program in programs] == [0, 0, 0]
    assert all(tuned.load(key(number)) == Settings(number) for number in range(1, 61))
