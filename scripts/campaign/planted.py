"""Datasets, and folders to write into, that somebody else made: what lies outside stays as it is.

Under the names of our own files there are links, devices, FIFOs and the like, and records of killed
calls have something else in them than was written. A command may refuse that, in one line, or do
its work; it changes nothing outside the folder.
"""

from __future__ import annotations

import json
import os
import random
import shutil
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from unittest import mock

import mutate
import xxhash
from cases import Case, Kind, Outcome, Place
from trial import Trial

import shardkit
from shardkit.commit.records import read_record, write_record
from shardkit.commit.work_folder import WorkFolder
from shardkit.packing.finish import Conclusion
from shardkit.versions.revision import Revision

Random = random.Random
QUIET: dict[str, Any] = {"progress": False}
PACKED: dict[str, Any] = {"to": "webdataset", "workers": 0, "shard_size": "2kB", **QUIET}


@dataclass(frozen=True)
class Scene:
    """The folders of a case. ``at`` is the one that somebody else made."""

    corpora: Path
    root: Path

    @property
    def at(self) -> Path:
        return self.root / "in" / "at"

    @property
    def outside(self) -> Path:
        return self.root / "outside"

    @property
    def source(self) -> Path:
        return self.corpora / "sources" / "pictures"

    @property
    def good(self) -> Path:
        return self.corpora / "packed" / "pictures-webdataset"

    @property
    def more(self) -> Path:
        return self.root / "more"

    @property
    def second(self) -> Path:
        return self.root / "second"

    def prepare(self) -> None:
        """What is not to be touched, and what can be added."""
        for name in ("thesis.txt", "shardkit.json", "sub/more.txt", f"{'a' * 32}/x.txt"):
            path = self.outside / name
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(f"keep {name}")
        for path in (*self.outside.rglob("*"), self.outside):
            os.utime(path, (1e9, 1e9))
        self.at.parent.mkdir()
        picture = next(path for path in sorted(self.source.rglob("*")) if path.is_file())
        (self.more / picture.parent.name).mkdir(parents=True)
        shutil.copy(picture, self.more / picture.parent.name / f"another{picture.suffix}")

    def seen_outside(self) -> dict[str, Any]:
        """What must stay: names, contents, modes and times of change."""
        found: dict[str, Any] = {}
        for path in (self.outside, *sorted(self.outside.rglob("*"))):
            status = path.lstat()
            held = path.read_bytes() if path.is_file() and not path.is_symlink() else b""
            found[str(path)] = (status.st_mode, status.st_mtime_ns, held)
        return found


# --- commands -----------------------------------------------------------------------------

Step = Callable[[Scene], Any]


def _edit(scene: Scene) -> Any:
    return shardkit.edit(scene.at, drop_keys=[shardkit.open(scene.good).keys()[0]], **QUIET)


def _pack_second(scene: Scene) -> Path:
    if not scene.second.exists():
        shardkit.pack(scene.more, scene.second, **PACKED)
    return scene.second


def _export(scene: Scene) -> Any:
    return shardkit.convert(scene.good, scene.at, to="parquet", overwrite=True, **QUIET)


def _index_tars(scene: Scene) -> Any:
    """As tars of somebody else."""
    for path in [*scene.at.iterdir()]:
        if path.suffix not in (".tar", "") or path.name.startswith(".shardkit."):
            path.unlink()
    return shardkit.info(scene.at)


COMMANDS: dict[str, Step] = {
    "edit": _edit,
    "append": lambda scene: shardkit.append(scene.at, scene.more, workers=0, **QUIET),
    "append a dataset": lambda scene: shardkit.append(scene.at, _pack_second(scene)),
    "prune": lambda scene: shardkit.prune(scene.at),
    "pack": lambda scene: shardkit.pack(scene.source, scene.at, **PACKED),
    "pack anew": lambda scene: shardkit.pack(scene.source, scene.at, **PACKED, overwrite=True),
    "pack shuffled": lambda scene: shardkit.pack(
        scene.source, scene.at, **PACKED, overwrite=True, shuffle=True
    ),
    "convert": lambda scene: shardkit.convert(
        scene.good, scene.at, to="npy", workers=0, overwrite=True, **QUIET
    ),
    "convert it": lambda scene: shardkit.convert(
        scene.at, scene.root / "made", to="lmdb", workers=0, **QUIET
    ),
    "stage": lambda scene: shardkit.stage(scene.good, scene.at, overwrite=True, **QUIET),
    "stage it": lambda scene: shardkit.stage(scene.at, scene.root / "made", **QUIET),
    "merge": lambda scene: shardkit.merge(
        [scene.good, _pack_second(scene)], scene.at, overwrite=True
    ),
    "merge it": lambda scene: shardkit.merge(
        [scene.at, _pack_second(scene)], scene.root / "made", **QUIET
    ),
    "merge parts": lambda scene: shardkit.merge(
        [scene.at, scene.root / "part2"], scene.root / "made", **QUIET
    ),
    "unpack": lambda scene: shardkit.unpack(scene.good, scene.at, **QUIET),
    "unpack it": lambda scene: shardkit.unpack(scene.at, scene.root / "made", **QUIET),
    "export": _export,
    "verify": lambda scene: shardkit.verify(scene.at, **QUIET),
    "dali": lambda scene: shardkit.dali.write_index(scene.at),
    "tars": _index_tars,
}


# --- what calls that were killed leave ----------------------------------------------------


class Killed(BaseException):
    """Ends a call where a kill -9 would."""


def _killed_in(target: Any, name: str, step: Step) -> Step:
    def run(scene: Scene) -> None:
        with mock.patch.object(target, name, side_effect=Killed):
            try:
                step(scene)
            except Killed:
                pass

    return run


def _dataset(scene: Scene) -> None:
    shutil.copytree(scene.good, scene.at, dirs_exist_ok=True)


def _versions(scene: Scene) -> None:
    _dataset(scene)
    _edit(scene)


def _on_dataset(target: Any, name: str, step: Step) -> Step:
    def run(scene: Scene) -> None:
        _dataset(scene)
        _killed_in(target, name, step)(scene)

    return run


def _parts(scene: Scene) -> None:
    for number, dest in ((1, scene.at), (2, scene.root / "part2")):
        shardkit.pack(scene.source, dest, **PACKED, part=f"{number}/2")


def _pruned(scene: Scene) -> None:
    _versions(scene)
    _killed_in(WorkFolder, "_put", COMMANDS["prune"])(scene)


def _unpacking(scene: Scene) -> None:
    """Leave what a killed unpack leaves."""
    (scene.at / ".unpacking").mkdir(parents=True)
    (scene.at / ".unpacking" / "lock").write_bytes(b"")
    (scene.at / ".unpacking" / "file").write_bytes(b"half")


STATES: dict[str, tuple[Step, tuple[str, ...]]] = {
    "a dataset": (
        _dataset,
        (
            *("edit", "append", "append a dataset", "pack anew", "pack shuffled", "convert"),
            *("convert it", "stage", "stage it", "merge", "merge it", "unpack it", "verify"),
            *("dali", "tars"),
        ),
    ),
    "two versions": (_versions, ("prune", "edit", "merge it", "stage it")),
    "nothing": (lambda scene: scene.at.mkdir(), ("pack", "unpack", "export", "stage")),
    "an edit": (_on_dataset(WorkFolder, "_put", _edit), ("edit", "prune", "append")),
    "an append": (_on_dataset(WorkFolder, "_put", COMMANDS["append"]), ("append", "prune")),
    "a prune": (_pruned, ("prune", "edit")),
    "a begun append": (
        _on_dataset(Revision, "publish", COMMANDS["append"]),
        ("append", "append a dataset"),
    ),
    "a begun pack": (
        _killed_in(Conclusion, "publish", COMMANDS["pack"]),
        ("pack", "pack anew", "edit"),
    ),
    "a pack": (_killed_in(WorkFolder, "_put", COMMANDS["pack"]), ("pack", "pack anew", "edit")),
    "a stage": (_killed_in(WorkFolder, "_put", COMMANDS["stage"]), ("stage",)),
    "a merge": (_killed_in(WorkFolder, "_put", COMMANDS["merge"]), ("merge",)),
    "an unpack": (_unpacking, ("unpack",)),
    "a part": (_parts, ("merge parts", "pack")),
}
"""What lies there -> how it comes, and the commands that are tried on it."""


# --- links and the like -------------------------------------------------------------------

FOLDERS = ["new", "scratch", "added", "tmp-train-00000"]
RECORDS = ["options", "source", "started", "change", "part", "listing", "record"]
OTHERS = [
    "lock",
    "lease-1",
    "lease-99999999999999999999",
    "listing",
    "listing.new",
    "listing.tmp",
    "listing.old",
    "unknown",
    "tokenizer.record",
    "added/.packing",
    "train-00000.part",
    ".train-00000.part.tmp",
    "new/.shardkit.json.tmp",
    "new/shardkit.json",
    "new/rejected.jsonl",
    "new/train-00000.tar",
    "new/.train-00000.tar.link",
    "new/train~2.rows",
    "new/.train~2.rows.tmp",
]
BESIDE = f"""
shardkit.json shardkit~1.json .shardkit~1.json.tmp train.rows train~2.rows train.names
train.sums train-00000.tar train-00001.tar rejected.jsonl data.mdb train-00000.idx
.train-00000.idx.tmp .shardkit .shardkit/{"a" * 32} .unpacking.json .export.json
../.at.exporting ../.at.exporting/lock ../.at.exporting/new ../.at.exporting/old
""".split()
UNPACKING = ["file", "0", "0/1", "lock", "unknown"]


def names() -> list[str]:
    """All names of our own, in the folder that is written into."""
    own = [form for name in RECORDS for form in (f"{name}.json", f".{name}.json.tmp")]
    inner = [*FOLDERS, *own, *OTHERS]
    found = [".packing", *(f".packing/{name}" for name in inner), *BESIDE]
    return [*found, ".unpacking", *(f".unpacking/{name}" for name in UNPACKING)]


def plant(how: str, path: Path, scene: Scene) -> None:
    """Put something in the place of a file or folder."""
    path.parent.mkdir(parents=True, exist_ok=True)
    if path.is_dir() and not path.is_symlink():
        shutil.rmtree(path)
    path.unlink(missing_ok=True)
    match how:
        case "a link to a file":
            path.symlink_to(scene.outside / "thesis.txt")
        case "a link to a folder":
            path.symlink_to(scene.outside)
        case "a link to nothing":
            path.symlink_to(scene.outside / "made")
        case "another name of a file":
            os.link(scene.outside / "thesis.txt", path)
        case "a link to a device":
            path.symlink_to("/dev/zero")
        case "a loop":
            path.symlink_to(path.name)
        case "a FIFO":
            os.mkfifo(path)
        case "a folder":
            (path / "deep").mkdir(parents=True)


HOWS = [
    "a link to a file",
    "a link to a folder",
    "a link to nothing",
    "another name of a file",
    "a link to a device",
    "a loop",
    "a FIFO",
    "a folder",
]


# --- records ------------------------------------------------------------------------------


def records(scene: Scene) -> list[Path]:
    """The records, and the journals of finished shards, that lie there."""
    files = [path for path in sorted(scene.at.rglob("*")) if path.is_file()]
    return [path for path in files if path.match("*-*.part") or _is_record(path)]


def _is_record(path: Path) -> bool:
    return path.suffix == ".json" and read_record(path) is not None


def change_record(rng: Random, path: Path, scene: Scene) -> str:
    """Set one value of a record to something else, or leave it out; its checksum is right."""
    data = path.read_bytes()
    line, _, rest = data[:-8].partition(b"\n")
    raw: Any = json.loads(line) if path.suffix == ".part" else read_record(path)
    holder, key = rng.choice(mutate.places(raw))
    wrong = [*mutate.WRONG, "../../outside/thesis.txt", str(scene.outside / "thesis.txt"), ".."]
    wrong += [["new/shardkit.json", "../../outside/made"], ["../../../outside/thesis.txt", "x"]]
    if rng.random() < 0.15 and isinstance(holder, dict):
        del holder[key]
    elif rng.random() < 0.15 and isinstance(holder, dict):
        holder[rng.choice(["x", "../x", "../../outside/made"])] = holder.pop(key)
    elif rng.random() < 0.2 and isinstance(holder, list):
        holder.append(rng.choice(wrong))
    else:
        holder[key] = rng.choice(wrong)
    if path.suffix == ".part":
        body = json.dumps(raw).encode() + b"\n" + rest
        path.write_bytes(body + xxhash.xxh3_64_digest(body))
    else:
        write_record(path, raw)
    return f"{path.name}[{key!r}]"


# --- cases --------------------------------------------------------------------------------


def judge(trial: Trial, scene: Scene, command: str, what: str) -> None:
    """Run a command there, and then again: refused or not, nothing outside has changed."""
    before = scene.seen_outside()
    for _ in range(2):
        trial.attempt(f"{command}, {what}", lambda: COMMANDS[command](scene))
        if (after := scene.seen_outside()) != before:
            changed = sorted(p for p in before.keys() | after if before.get(p) != after.get(p))
            trial.outcome.finding(f"{command}, {what}: changed outside: {changed}")
            return


def planted(case: Case, place: Place) -> Outcome:
    rng, trial = case.random(), Trial()
    scene = Scene(place.corpora, place.work)
    scene.prepare()
    state = rng.choice([*STATES])
    begin, commands = STATES[state]
    begin(scene)
    command = rng.choice(commands)
    found = records(scene)
    if found and rng.random() < 0.6:
        what = [change_record(rng, rng.choice(found), scene) for _ in range(rng.choice([1, 1, 2]))]
        judge(trial, scene, command, f"{state}, {', '.join(what)}")
    else:
        inside = [str(path.relative_to(scene.at)) for path in sorted(scene.at.rglob("*"))]
        name, how = rng.choice([*names(), *inside]), rng.choice(HOWS)
        plant(how, scene.at / name, scene)
        judge(trial, scene, command, f"{state}, {name} is {how}")
    return trial.outcome


KIND = Kind(
    "planted",
    "folders of somebody else, with links and forged records in them",
    planted,
    default=300,
    batch=20,
    deadline_s=90,
)
