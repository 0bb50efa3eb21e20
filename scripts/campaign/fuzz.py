"""Spoilt datasets, tars of others and inputs: errors of ours or the right data, nothing else."""

from __future__ import annotations

import random
import shutil
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any, Literal

import flips
import mutate
from cases import Case, Kind, Outcome, Place
from compare import tree
from corpora import CONTAINERS, PACKED, SOURCES, TAR_FORMATS, TOKENIZER
from processes import forget_peak, status
from trial import NOTHING, Trial

import shardkit

MOST_MEMORY = 600 << 20
"""Bytes a case may need more than its process had at its begin."""

Random = random.Random
Boundaries = Literal["ignore", "mask", "fit"]
BOUNDARIES: tuple[Boundaries, ...] = ("ignore", "mask", "fit")


def fuzz(case: Case, place: Place) -> Outcome:
    rng = case.random()
    trial = Trial()
    # So deep that a path that climbs out by `../../..` ends in the case's own folder.
    deep = place.work / "a" / "b" / "c"
    deep.mkdir(parents=True)
    target = rng.choices([dataset, tars, source], [5, 1, 4])[0]
    before = forget_peak()
    what = target(rng, trial, place.corpora, deep)
    if (more := status("VmHWM") - before) > MOST_MEMORY:
        trial.outcome.finding(f"memory: {more >> 20} MiB more than before")
    known = {
        "in",
        "good",
        "unpacked",
        "converted",
        "packed",
        "stdout.txt",
        "stderr.txt",
        "sheet.png",
    }
    for folder, allowed in ((deep, known), (deep.parent, {"c"}), (place.work / "a", {"b"})):
        if extra := sorted({path.name for path in folder.iterdir()} - allowed):
            trial.outcome.finding(f"written outside of the destination: {extra} in {folder}")
    if trial.outcome.findings:
        trial.outcome.findings.insert(0, what)
    return trial.outcome


# --- datasets of ours ---------------------------------------------------------------------


def dataset(rng: Random, trial: Trial, corpora: Path, deep: Path) -> str:
    """A packed dataset, spoilt in one to three places; resealed or not."""
    name = f"{rng.choice(PACKED)}-{rng.choice(CONTAINERS)}"
    good, bad = corpora / "packed" / name, deep / "in"
    shutil.copytree(good, bad)
    done = [spoil_dataset(rng, bad, corpora) for _ in range(rng.choice([1, 1, 1, 2, 3]))]
    is_resealed = rng.random() < 0.5
    if is_resealed:
        try:
            mutate.reseal(bad)
        except Exception:
            is_resealed = False  # what is left is no index: it stays as it is
    is_meant = is_resealed or any("sealed" in each for each in done)
    what = f"{name}: {', '.join(done)}{', resealed' * is_resealed}"
    use_dataset(rng, trial, bad, deep, None if is_meant else good, what)
    return what


def spoil_dataset(rng: Random, bad: Path, corpora: Path) -> str:
    """What was done, in words."""
    way = rng.choices(
        ["blind", "json", "rows", "names", "swap", "tar", "npy"], [6, 3, 3, 1, 1, 1, 1]
    )
    try:
        match way[0]:
            case "json":
                is_sealed = rng.random() < 0.7
                return mutate.edit_json(rng, bad, is_sealed) + " sealed" * is_sealed
            case "rows":
                return mutate.edit_rows(rng, bad)
            case "names":
                return mutate.edit_names(rng, bad)
    except Exception:
        pass  # an earlier change left nothing that Python or NumPy could read, to be edited
    files = sorted(path for path in bad.iterdir() if path.is_file())
    path = rng.choice(files)
    data = path.read_bytes()
    match way[0]:
        case "swap":
            other = rng.choice([*files, *_elsewhere(rng, corpora, path.suffix)])
            path.write_bytes(other.read_bytes())
            return f"{path.name} is {other.parent.name}/{other.name}"
        case "tar" if path.suffix == ".tar":
            path.write_bytes(mutate.tar_header(rng, data))
            return f"a header in {path.name}"
        case "npy" if data.startswith(b"\x93NUMPY"):
            path.write_bytes(mutate.npy_header(rng, data))
            return f"the header of {path.name}"
    how, changed = mutate.blind(rng, data, rng.choice(files).read_bytes())
    path.write_bytes(changed)
    return f"{how} of {path.name}"


def _elsewhere(rng: Random, corpora: Path, suffix: str) -> list[Path]:
    """Files of the same kind of another dataset."""
    return sorted((corpora / "packed" / f"pairs-{rng.choice(CONTAINERS)}").glob(f"*{suffix}"))


def use_dataset(
    rng: Random, trial: Trial, bad: Path, deep: Path, good: Path | None, what: str
) -> None:
    """All that can be done with it; ``good`` is what it was, if what it says now is not meant."""
    trial.attempt("info", lambda: shardkit.info(bad))
    trial.attempt("verify", lambda: shardkit.verify(bad, progress=False))
    opened = trial.attempt("open", lambda: shardkit.open(bad, decode=rng.choice([True, False])))
    if opened is not NOTHING:
        read_all(trial, opened)
    checked = trial.attempt("open, verify=True", lambda: shardkit.open(bad, verify=True))
    if checked is not NOTHING and good is not None:
        truth = flips.read_whole(good)
        for name, check in {"samples": flips.samples, "labels": flips.labels}.items():
            wrong = trial.attempt(name, partial(check, checked, truth))
            if wrong is not NOTHING and wrong:
                trial.outcome.finding(f"{name}, verify=True: {wrong}")
    expensive = rng.choice([unpack, convert, command, feed, tokens])
    expensive(rng, trial, bad, deep)


def read_all(trial: Trial, opened: shardkit.Dataset) -> None:
    """By rows, batches, columns and keys."""
    trial.attempt("len", lambda: len(opened))
    for row in range(min(len(opened), 40)):
        trial.attempt(f"ds[{row}]", partial(opened.__getitem__, row))
    trial.attempt("read", lambda: opened.read(range(len(opened))))
    trial.attempt("ds[-1]", lambda: opened[-1], (IndexError,))
    trial.attempt("column", lambda: opened.column("cls"))
    trial.attempt("advise", lambda: opened.advise(range(len(opened))))
    keys = trial.attempt("keys", opened.keys)
    for key in [*(keys[:10] if keys is not NOTHING else ()), "no such key"]:
        trial.attempt("find", partial(opened.find, key), (KeyError,))


def unpack(rng: Random, trial: Trial, bad: Path, deep: Path) -> None:
    trial.attempt("unpack", lambda: shardkit.unpack(bad, deep / "unpacked", progress=False))


def convert(rng: Random, trial: Trial, bad: Path, deep: Path) -> None:
    to = rng.choice(CONTAINERS)
    options: dict[str, Any] = {"to": to, "workers": 0, "progress": False}
    made = trial.attempt(
        f"convert to {to}", lambda: shardkit.convert(bad, deep / "converted", **options)
    )
    if made is not NOTHING:
        result = trial.attempt(
            "verify what was converted", lambda: shardkit.verify(deep / "converted", progress=False)
        )
        if result is not NOTHING and not result.ok:
            trial.outcome.finding(f"what was converted is broken: {result.problems[:3]}")


def command(rng: Random, trial: Trial, bad: Path, deep: Path) -> None:
    to = ["--to", rng.choice(CONTAINERS), "--workers", "0", "--json"]
    lines: list[list[object]] = [
        ["info", bad],
        ["verify", bad],
        ["verify", bad, "--json"],
        ["show", bad, "--out", deep / "sheet.png"],
        ["show", bad],
        ["unpack", bad, deep / "unpacked"],
        ["convert", bad, deep / "converted", *to],
    ]
    trial.command(deep, *rng.choice(lines))


def feed(rng: Random, trial: Trial, bad: Path, deep: Path) -> None:
    """Through a loader, pictures through the decoder."""

    def run() -> None:
        opened = shardkit.open(bad)
        decode = shardkit.images.train(16) if "jpg" in opened.info.fields else None
        options: dict[str, Any] = {"shuffle": "full", "workers": 0, "transform": decode}
        for _ in shardkit.Loader(opened, 3, on_error=rng.choice(["skip", "fail"]), **options):
            pass

    trial.attempt("Loader", run)


def tokens(rng: Random, trial: Trial, bad: Path, deep: Path) -> None:
    boundaries = rng.choice(BOUNDARIES)

    def run() -> None:
        opened = shardkit.TokenDataset(bad, seq_len=16, boundaries=boundaries)
        for _ in shardkit.Loader(opened, 2, workers=0):
            pass

    trial.attempt(f"TokenDataset, {boundaries}", run)


# --- tars of others -----------------------------------------------------------------------


def tars(rng: Random, trial: Trial, corpora: Path, deep: Path) -> str:
    """Made by Python's tarfile, spoilt by a header or blindly."""
    form = rng.choice([*TAR_FORMATS])
    bad = deep / "in"
    shutil.copytree(corpora / "foreign" / form, bad)
    path = bad / "some.tar"
    data = path.read_bytes()
    if rng.random() < 0.6:
        how, changed = "a header", mutate.tar_header(rng, data)
    else:
        how, changed = mutate.blind(rng, data, data)
    path.write_bytes(changed)
    use_dataset(rng, trial, rng.choice([bad, path]), deep, None, how)
    return f"foreign {form} tar: {how}"


# --- inputs -------------------------------------------------------------------------------


def source(rng: Random, trial: Trial, corpora: Path, deep: Path) -> str:
    """What is to be packed. What packs must then compare equal with it, byte for byte."""
    kind = rng.choice([*SOURCES])
    bad = deep / "in"
    shutil.copytree(corpora / "sources" / kind, bad)
    done = [spoil_source(rng, bad) for _ in range(rng.choice([1, 1, 2, 4]))]
    what = f"input of {kind}: {', '.join(done)}"
    use_source(rng, trial, kind, corpora, bad, deep)
    return what


def spoil_source(rng: Random, bad: Path) -> str:
    files = sorted(path for path in bad.rglob("*") if path.is_file())
    path = rng.choice(files)
    data = path.read_bytes()
    if data.startswith(b"\x93NUMPY") and rng.random() < 0.6:
        how, changed = "npy header", mutate.npy_header(rng, data)
    else:
        how, changed = mutate.blind(rng, data, rng.choice(files).read_bytes())
    path.write_bytes(changed)
    return f"{how} of {path.relative_to(bad)}"


def use_source(rng: Random, trial: Trial, kind: str, corpora: Path, bad: Path, deep: Path) -> None:
    options: dict[str, Any] = {"to": rng.choice(CONTAINERS), "workers": 0, "progress": False}
    options |= {"on_error": rng.choice(["fail", "skip"]), "max_rejects": 1.0, "shard_size": "2kB"}
    is_changed = False
    if kind == "megatron":
        path = rng.choice([bad / "ids", bad / "ids.bin"])
        feed_ids(rng, trial, path)
    elif kind == "tokens":
        options |= {"tokenizer": corpora / TOKENIZER}
        options |= {"invalid_utf8": rng.choice(["reject", "replace"])}
        path, is_changed = bad, options["invalid_utf8"] == "replace"
    else:
        path = bad
    if kind == "pictures":
        options["check_images"] = rng.random() < 0.5
        if rng.random() < 0.3:
            options |= {"max_side": 8}
            is_changed = True
    made = trial.attempt(f"pack {options}", lambda: shardkit.pack(path, deep / "packed", **options))
    if made is NOTHING:
        return
    against = None if is_changed else path
    result = trial.attempt(
        "verify against the input",
        lambda: shardkit.verify(deep / "packed", against=against, progress=False),
    )
    if result is not NOTHING and not result.ok:
        trial.outcome.finding(f"packed, and not verified: {[*map(str, result.problems[:3])]}")
    opened = trial.attempt("open", lambda: shardkit.open(deep / "packed", verify=True))
    if opened is not NOTHING:
        read_all(trial, opened)
    if kind == "pictures":
        feed(rng, trial, deep / "packed", deep)
    if kind in ("pairs", "arrays", "ragged", "texts") and not made.num_rejects:
        back(trial, bad, deep)


def back(trial: Trial, bad: Path, deep: Path) -> None:
    """Unpacking gives the input again."""
    unpacked = trial.attempt(
        "unpack", lambda: shardkit.unpack(deep / "packed", deep / "unpacked", progress=False)
    )
    if unpacked is not NOTHING:
        got, expected = tree(deep / "unpacked"), tree(bad)
        wrong = [name for name in got if got[name] != expected.get(name)]
        if wrong:
            trial.outcome.finding(f"unpacked, {wrong[:3]} differ from what was packed")


def feed_ids(rng: Random, trial: Trial, path: Path) -> None:
    """Token ids of other programs, read where they lie."""

    def run(boundaries: Boundaries) -> Callable[[], None]:
        def go() -> None:
            opened = shardkit.TokenDataset(path, seq_len=8, boundaries=boundaries)
            for _ in shardkit.Loader(opened, 2, workers=0):
                pass

        return go

    for boundaries in BOUNDARIES:
        trial.attempt(f"TokenDataset, {boundaries}", run(boundaries))


KIND = Kind(
    "fuzz",
    "spoilt datasets, tars and inputs",
    fuzz,
    default=1000,
    batch=50,
    deadline_s=60,
    address_space=2 << 30,
)
