"""Folders that somebody else made: whatever lies in them, nothing outside is touched."""

from __future__ import annotations

import fcntl
import os
import random
import shutil
import signal
import sys
import tempfile
from collections.abc import Callable, Iterator
from contextlib import suppress
from importlib import import_module
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np
import pytest
from conftest import Run, make_images, picture, tree, write

import shardkit
from shardkit.commit import locks
from shardkit.commit.own_files import remove_own
from shardkit.commit.records import from_record, read_record, write_record
from shardkit.errors import (
    DestinationError,
    IndexFileError,
    PartError,
    ResumeError,
    ShardkitError,
)
from shardkit.index.journal import read_receipt

CAMPAIGN = Path(__file__).parent.parent / "scripts" / "campaign"
QUIET: dict[str, Any] = {"workers": 0, "progress": False}


@pytest.fixture(scope="module")
def planted() -> Iterator[ModuleType]:
    """What the campaign plants."""
    sys.path.insert(0, str(CAMPAIGN))
    yield import_module("planted")
    sys.path.remove(str(CAMPAIGN))


@pytest.fixture(scope="module")
def corpora(planted: ModuleType, tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("corpora")
    source = make_images(folder / "sources" / "pictures", 3, 3)
    shardkit.pack(source, folder / "packed" / "pictures-webdataset", **planted.PACKED)
    return folder


@pytest.fixture
def scenes(planted: ModuleType, corpora: Path, tmp_path: Path) -> Iterator[Any]:
    """Makes a scene at each call, of which nothing is there before. A FIFO must not hang it."""
    made: list[Path] = []

    def scene() -> Any:
        made.append(tmp_path / f"scene{len(made)}")
        if len(made) > 1:
            shutil.rmtree(made[-2])
        made[-1].mkdir()
        found = planted.Scene(corpora, made[-1])
        found.prepare()
        signal.alarm(600)
        return found

    yield scene
    signal.alarm(0)


def cases() -> list[tuple[str, str]]:
    sys.path.insert(0, str(CAMPAIGN))
    states = import_module("planted").STATES
    sys.path.remove(str(CAMPAIGN))
    return [(state, command) for state, (_, commands) in states.items() for command in commands]


def refused(planted: ModuleType, scene: Any, command: str, what: str) -> bool:
    """Whether a command was refused; nothing outside changes, and what it raises is ours."""
    trial = import_module("trial").Trial()
    planted.judge(trial, scene, command, what)
    assert trial.outcome.findings == []
    return bool(trial.outcome.counts["refused"])


# --- links --------------------------------------------------------------------------------


@pytest.mark.thorough
@pytest.mark.parametrize(("state", "command"), cases())
def test_links_in_a_folder_of_others(
    state: str, command: str, planted: ModuleType, scenes: Any
) -> None:
    """Under each name that may be there, some of the ways."""
    begin = planted.STATES[state][0]
    scene = scenes()
    begin(scene)
    inside = sorted(path.relative_to(scene.at).as_posix() for path in scene.at.rglob("*"))
    rng = random.Random(f"{state} {command}")
    names = [*inside, ".packing", ".unpacking", ".packing/unknown/x", ".unpacking/unknown/x"]
    is_first = (
        next(first for first, (_, done) in planted.STATES.items() if command in done) == state
    )
    beside = [name for name in planted.BESIDE if name not in inside] if is_first else []
    rng.shuffle(names)
    for number, name in enumerate([*names[:8], *beside]):
        scene = scenes()
        begin(scene)
        how = planted.HOWS[(number + len(state + command)) % 3]  # links
        planted.plant(how, scene.at / name, scene)
        refused(planted, scene, command, f"{name} is {how}")


@pytest.mark.parametrize("work", [".packing", ".unpacking"])
def test_a_work_folder_holds_files_and_folders(work: str, planted: ModuleType, scenes: Any) -> None:
    own_files = import_module("shardkit.commit.own_files")
    scene = scenes()
    for number, name in enumerate(n for n in planted.names() if n.startswith(f"{work}/")):
        for how in (planted.HOWS[number % len(planted.HOWS)], planted.HOWS[number % 3]):
            (scene.at / work).mkdir(parents=True)
            own_files.refuse_others(scene.at / work)
            planted.plant(how, scene.at / name, scene)
            if how in ("a folder", "another name of a file"):
                own_files.refuse_others(scene.at / work)
            else:
                with pytest.raises(DestinationError, match=rf"{name} is a (symb|dev).*; remove it"):
                    own_files.refuse_others(scene.at / work)
            shutil.rmtree(scene.at)


def test_what_is_written_replaces_links(tmp_path: Path) -> None:
    own_files = import_module("shardkit.commit.own_files")
    other = write(tmp_path / "other", "keep")
    for name, lead in {"symlink": os.symlink, "link": os.link}.items():
        lead(other, tmp_path / name)
        with own_files.create(tmp_path / name) as file:
            file.write(b"new")
        assert (tmp_path / name).read_bytes() == b"new" and other.read_bytes() == b"keep"


def test_a_lock_with_another_name(tmp_path: Path) -> None:
    """What is locked has the number of a process written into it."""
    locks = import_module("shardkit.commit.locks")
    other = write(tmp_path / "other", "keep")
    (tmp_path / "work").mkdir()
    os.link(other, tmp_path / "work" / "lock")
    with pytest.raises(DestinationError, match="lock is a file with another name, where shardkit"):
        locks.Lock(tmp_path / "work" / "lock")
    assert other.read_bytes() == b"keep"


@pytest.mark.parametrize("where", ["class0", ".unpacking"])
def test_a_link_in_the_destination_of_an_unpack(where: str, corpora: Path, tmp_path: Path) -> None:
    other = write(tmp_path / "other" / "thesis.txt", "keep")
    (tmp_path / "out").mkdir()
    (tmp_path / "out" / where).symlink_to(other.parent)
    with pytest.raises(DestinationError, match=where):
        shardkit.unpack(
            corpora / "packed" / "pictures-webdataset", tmp_path / "out", progress=False
        )
    assert tree(other.parent) == {"thesis.txt": b"keep"}


def test_an_unpack_goes_on_with_no_other_name(corpora: Path, tmp_path: Path) -> None:
    """What a killed one left is removed, not written to: it may be a file elsewhere, too."""
    other = write(tmp_path / "other", "keep")
    (tmp_path / "out" / ".unpacking").mkdir(parents=True)
    for name in ("file", "0"):
        os.link(other, tmp_path / "out" / ".unpacking" / name)
    shardkit.unpack(corpora / "packed" / "pictures-webdataset", tmp_path / "out", progress=False)
    assert other.read_text() == "keep"
    assert tree(tmp_path / "out") == tree(corpora / "sources" / "pictures")


@pytest.mark.parametrize("step", ["publish", "commit"])
def test_a_link_in_the_place_of_a_version(
    step: str, planted: ModuleType, scenes: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Put there while it is made: nothing is moved from where it leads."""
    scene = scenes()
    planted.STATES["a dataset"][0](scene)
    made_by = planted.Revision if step == "publish" else planted.WorkFolder
    go_on = getattr(made_by, step)

    def swap(self: Any, *args: Any, **more: Any) -> Any:
        self.stage.rename(scene.root / "aside")
        self.stage.symlink_to(scene.outside)
        return go_on(self, *args, **more)

    monkeypatch.setattr(made_by, step, swap)
    before, held = scene.seen_outside(), tree(scene.at)
    with pytest.raises(DestinationError, match=r"new is a symbolic link"):
        planted.COMMANDS["edit"](scene)
    assert scene.seen_outside() == before
    assert {name: data for name, data in tree(scene.at).items() if name in held} == held
    assert len(shardkit.open(scene.at)) == 9


@pytest.mark.parametrize("command", ["append", "edit", "overwrite", "restore", "unpack"])
def test_a_link_in_the_place_of_a_work_folder(
    command: str, corpora: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Put there after it was looked through: nothing of where it leads is removed or moved."""
    source, at, out = corpora / "sources" / "pictures", tmp_path / "at", tmp_path / "out"
    shutil.copytree(corpora / "packed" / "pictures-webdataset", at)
    shardkit.edit(at, drop_classes=["class0"])
    others = ("thesis.txt", "new/thesis.txt", "parts/thesis.txt", "added/t.txt")
    kept = {name: write(tmp_path / "other" / name, "keep") for name in others}
    look = locks.refuse_others

    def swap(folder: Path) -> None:
        look(folder)
        folder.rename(tmp_path / "aside")
        folder.symlink_to(tmp_path / "other")

    monkeypatch.setattr(locks, "refuse_others", swap)
    with suppress(ShardkitError):
        if command == "append":
            shardkit.append(at, source, **QUIET)
        elif command == "edit":
            shardkit.edit(at, drop_classes=["class1"])
        elif command == "overwrite":
            shardkit.pack(source, at, to="lmdb", overwrite=True, **QUIET)
        elif command == "restore":
            shardkit.edit(at, restore=1)
        else:
            shardkit.unpack(at, out, progress=False)
    assert (tmp_path / "aside").is_dir()
    assert {name: path.read_text() for name, path in kept.items()} == dict.fromkeys(others, "keep")


def test_a_copy_goes_on_with_no_other_name(
    corpora: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    good, dest = corpora / "packed" / "pictures-webdataset", tmp_path / "out"
    with monkeypatch.context() as patched:
        looks = iter([None, None])
        patched.setattr("shardkit.operations.stage.evict", lambda path: next(looks))
        with pytest.raises(StopIteration):
            shardkit.stage(good, dest, progress=False)
    other = write(tmp_path / "other", "keep")
    for name in ("copy.part", *(f"new/.{path.name}.tmp" for path in good.iterdir())):
        write(dest / ".packing" / name, "").unlink()
        os.link(other, dest / ".packing" / name)
    os.utime(other, (1e9, 1e9))
    shardkit.stage(good, dest, progress=False)
    assert other.read_text() == "keep" and other.stat().st_mtime == 1e9
    assert tree(dest) == tree(good)


@pytest.mark.parametrize("text", [b"9" * 40, "\u00b2".encode(), b"-1", b"1" * (1 << 20), None])
def test_a_forged_lock(text: bytes | None, tmp_path: Path, monkeypatch: Any) -> None:
    """Somebody else holds it, and has written no process id into it."""
    locks = import_module("shardkit.commit.locks")
    monkeypatch.setattr(locks, "LOCK_PATIENCE_S", 0.1)
    path = write(tmp_path / "work" / "lock", text or b"")
    if text is None:
        os.truncate(path, 1 << 42)
    with path.open("r+b") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        with pytest.raises(DestinationError, match=r"written by another process; wait"):
            locks.Lock(path)


@pytest.mark.parametrize("how", ["a FIFO", "a link to a device", "sparse", "deep"])
def test_a_forged_mark_of_an_export(how: str, planted: ModuleType, scenes: Any) -> None:
    scene = scenes()
    path = write(scene.at / ".export.json", b"[" * 100_000)
    if how == "sparse":
        os.truncate(path, 1 << 42)
    elif how != "deep":
        planted.plant(how, path, scene)
    assert refused(planted, scene, "export", f".export.json is {how}")


def test_an_index_of_tars_leads_nowhere_else(
    planted: ModuleType, scenes: Any, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """A link in place of the folder of indexes: they go into the user's cache."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    scene = scenes()
    planted.STATES["a dataset"][0](scene)
    planted.plant("a link to a folder", scene.at / ".shardkit", scene)
    assert not refused(planted, scene, "tars", ".shardkit")
    assert any((tmp_path / "cache").rglob("shardkit.json"))


# --- records ------------------------------------------------------------------------------


@pytest.mark.parametrize(("state", "command"), [own for own in cases() if own[0] != "a dataset"])
def test_forged_records(state: str, command: str, planted: ModuleType, scenes: Any) -> None:
    rng = random.Random(f"{state} {command}")
    for _ in range(4):
        scene = scenes()
        planted.STATES[state][0](scene)
        if not (found := planted.records(scene)):
            return
        what = planted.change_record(rng, rng.choice(found), scene)
        refused(planted, scene, command, what)


@pytest.mark.parametrize(
    "forged",
    [
        {"moves": [["new/shardkit.json", "../../outside/made"]]},
        {"moves": [["../../../outside/thesis.txt", "train-00009.tar"]]},
        {"moves": [["new/../../../../outside/thesis.txt", "train-00009.tar"]]},
        {"moves": [["new/train~2.rows", "thesis.txt"]]},
        {"removes": ["../../outside/thesis.txt"]},
        {"removes": ["../../outside/x-00000.idx"]},
        {"removes": ["thesis.txt"]},
        {"removes": "rejected.jsonl"},
        {"moves": 1},
        {"result": None},
        {"result": {"version": "2"}},
        {"recipe": []},
        {"more": 1},
    ],
)
def test_a_forged_change(forged: dict[str, Any], planted: ModuleType, scenes: Any) -> None:
    scene = scenes()
    planted.STATES["an edit"][0](scene)
    write(scene.at / "thesis.txt", "mine")
    path = scene.at / ".packing" / "change.json"
    record = read_record(path)
    assert record is not None
    write_record(path, record | forged)
    before = tree(scene.at)
    for command in ("prune", "edit"):
        with pytest.raises(ResumeError, match="the record of a change, is damaged, or"):
            planted.COMMANDS[command](scene)
        assert tree(scene.at) == before
    write_record(path, record)
    planted.COMMANDS["prune"](scene)
    assert shardkit.verify(scene.at, progress=False).ok


def test_types_of_a_record() -> None:
    journal = import_module("shardkit.index.journal")
    good = {"split": "train", "shard": 0, "segment": 1, "seen": 2, "num_rows": 3, "num_sums": 1}
    good |= {"file_bytes": {"train-00000.tar": 5}, "encodings": {"x": {}}, "names_bytes": 9}
    good |= {"rejects": [["a", "b"]], "counts": {"lost": 1}}
    assert from_record(journal.Receipt, good).rejects == [["a", "b"]]
    for name, wrong in {
        "split": 1,
        "shard": "0",
        "seen": True,
        "num_rows": 2.0,
        "file_bytes": [],
        "encodings": {"x": 1},
        "rejects": [["a"]],
        "counts": {"lost": None},
        "other": 1,
    }.items():
        with pytest.raises(TypeError):
            from_record(journal.Receipt, good | {name: wrong})
    for missing in ("split", "num_sums"):
        with pytest.raises(TypeError):
            from_record(journal.Receipt, {k: v for k, v in good.items() if k != missing})
    for no_object in (None, [], "x", 1):
        with pytest.raises(TypeError):
            from_record(journal.Receipt, no_object)


def test_a_forged_journal(planted: ModuleType, scenes: Any) -> None:
    """It is none: the shard is packed again, and a part of it is refused."""
    rng = random.Random(7)
    scene = scenes()
    planted.STATES["a part"][0](scene)
    path = next(path for path in planted.records(scene) if path.suffix == ".part")
    data = path.read_bytes()
    for _ in range(30):
        path.write_bytes(data)
        planted.change_record(rng, path, scene)
        receipt = read_receipt(path)
        assert receipt is None or receipt.stem == path.stem or receipt.split == "train"
    path.write_bytes(data[:-1])
    with pytest.raises(PartError, match=r"\.part is damaged; run the command that packed part 1/2"):
        planted.COMMANDS["merge parts"](scene)


# --- datasets made of links ---------------------------------------------------------------


@pytest.fixture
def snapshot(corpora: Path, tmp_path: Path) -> Path:
    """As the cache of Hugging Face's hub has it: each file is a link to one that is called by its
    hash, which nobody may change."""
    folder = tmp_path / "hub" / "snapshots" / "main"
    blobs = tmp_path / "hub" / "blobs"
    folder.mkdir(parents=True)
    blobs.mkdir()
    for number, path in enumerate(sorted((corpora / "packed" / "pictures-webdataset").iterdir())):
        shutil.copy(path, blobs / f"{number:064x}")
        (blobs / f"{number:064x}").chmod(0o444)
        (folder / path.name).symlink_to(f"../../blobs/{number:064x}")
    return folder


def test_a_dataset_made_of_links_is_read(snapshot: Path, corpora: Path, tmp_path: Path) -> None:
    good = corpora / "packed" / "pictures-webdataset"
    before = tree(snapshot.parent.parent)
    expected, opened = shardkit.open(good), shardkit.open(snapshot, verify=True)
    assert opened.keys() == expected.keys()
    np.testing.assert_equal(opened.read(range(9)), expected.read(range(9)))
    assert len([*shardkit.Loader(opened, 3, workers=0)]) == 3
    assert shardkit.verify(snapshot, progress=False).ok
    shardkit.convert(snapshot, tmp_path / "npy", to="npy", **QUIET)
    shardkit.stage(snapshot, tmp_path / "staged", progress=False)
    shardkit.unpack(snapshot, tmp_path / "files", progress=False)
    assert tree(tmp_path / "files") == tree(corpora / "sources" / "pictures")
    assert tree(tmp_path / "staged") == tree(good)
    write(tmp_path / "more" / "class0" / "new.jpg", picture(99))
    shardkit.pack(tmp_path / "more", tmp_path / "mine", to="webdataset", **QUIET)
    shardkit.append(tmp_path / "mine", snapshot)
    shardkit.merge([snapshot, tmp_path / "mine"][:1], tmp_path / "merged")
    for made in ("npy", "mine", "merged"):
        assert shardkit.verify(tmp_path / made, progress=False).ok
        assert not any(path.is_symlink() for path in (tmp_path / made).iterdir())
    assert tree(snapshot.parent.parent) == before


def test_a_dataset_made_of_links_is_changed(snapshot: Path, tmp_path: Path) -> None:
    """What is new takes the place of a link, and what the links lead to stays as it is."""
    blobs = snapshot.parent.parent / "blobs"
    before = tree(blobs)
    write(tmp_path / "more" / "class0" / "new.jpg", picture(99))
    keys = shardkit.open(snapshot).keys()
    shardkit.append(snapshot, tmp_path / "more", **QUIET)
    shardkit.edit(snapshot, drop_keys=[keys[0]], progress=False)
    assert len(shardkit.open(snapshot)) == 9 and len(shardkit.open(snapshot, version=1)) == 9
    assert shardkit.verify(snapshot, progress=False).ok
    shardkit.prune(snapshot)
    assert len(shardkit.open(snapshot)) == 9
    assert shardkit.verify(snapshot, progress=False).ok
    assert tree(blobs) == before


# --- what cannot be read ------------------------------------------------------------------


def deep(folder: Path, levels: int = 1300) -> None:
    """Folders in folders, deeper than Python recurses."""
    folder.mkdir(parents=True)
    fd = os.open(folder, os.O_RDONLY)
    for _ in range(levels):
        os.mkdir("d", dir_fd=fd)
        inner = os.open("d", os.O_RDONLY, dir_fd=fd)
        os.close(fd)
        fd = inner
    os.close(fd)


READ_BY = (
    *("info IT", "show IT", "verify IT", "unpack IT OUT", "convert IT OUT --to lmdb --workers 0"),
    *("stage IT OUT", "diff IT GOOD", "diff GOOD IT", "append MINE IT", "merge IT MINE OUT"),
    *("convert IT OUT --to parquet", "edit IT --drop-class class0", "append IT SOURCE --workers 0"),
    *("pack IT OUT --to npy --workers 0", "prune IT", "verify GOOD --against IT"),
)


SAID = ("show", "veri", "diff")
"""Begin those that tell of what is wrong on stdout."""


@pytest.fixture
def commands(corpora: Path, tmp_path: Path, run: Run) -> Iterator[Any]:
    """Runs each command on a dataset that was spoilt, and sees that what it says is a line."""
    good = corpora / "packed" / "pictures-webdataset"
    write(tmp_path / "more" / "class0" / "new.jpg", picture(99))
    shardkit.pack(tmp_path / "more", tmp_path / "second", to="webdataset", **QUIET)

    def of(spoil: Callable[[Path], Path | None], lines: tuple[str, ...] = READ_BY) -> None:
        for number, line in enumerate(lines):
            root = tmp_path / f"{number}-{spoil.__name__}"
            shutil.copytree(good, root / "it")
            shutil.copytree(tmp_path / "second", root / "mine")
            at = spoil(root / "it") or root / "it"
            names = {"IT": at, "OUT": root / "out", "GOOD": good, "MINE": root / "mine"}
            names["SOURCE"] = tmp_path / "more"
            signal.alarm(600)
            ran = run(*(names.get(word, word) for word in line.split()))
            signal.alarm(0)
            assert ran.code in (0, 1, 2), (line, ran)
            assert "Traceback" not in ran.err and "cannot write the output" not in ran.err
            assert ran.code == 0 or ran.err.startswith("shardkit: error: ") or line[:4] in SAID
            assert ran.err.count("\n") <= 1 or ran.code == 0, (line, ran)
            remove_own(root)

    yield of
    signal.alarm(0)


@pytest.mark.parametrize(
    ("name", "how"),
    [
        ("train-00001.tar", "/dev/zero"),
        ("train-00001.tar", "itself"),
        ("train-00001.tar", "a FIFO"),
        ("train.names", "a folder"),
        ("shardkit.json", "a FIFO"),
    ],
)
def test_no_regular_file(name: str, how: str, commands: Any) -> None:
    def spoil(dataset: Path) -> None:
        path = dataset / name
        path.unlink()
        if how == "a FIFO":
            os.mkfifo(path)
        elif how == "a folder":
            path.mkdir()
        else:
            path.symlink_to(name if how == "itself" else how)

    commands(spoil)


def test_a_shard_of_another_size(corpora: Path, tmp_path: Path) -> None:
    """It is not taken into another dataset, of whatever size it is."""
    good = corpora / "packed" / "pictures-webdataset"
    write(tmp_path / "more" / "class0" / "new.jpg", picture(99))
    shardkit.pack(tmp_path / "more", tmp_path / "mine", to="webdataset", **QUIET)
    shutil.copytree(good, tmp_path / "it")
    with (tmp_path / "it" / "train-00001.tar").open("ab") as file:
        file.write(bytes(512))
    before = tree(tmp_path / "mine")
    for step in (
        lambda: shardkit.append(tmp_path / "mine", tmp_path / "it"),
        lambda: shardkit.merge([tmp_path / "mine", tmp_path / "it"], tmp_path / "merged"),
        lambda: shardkit.stage(tmp_path / "it", tmp_path / "staged", progress=False),
    ):
        with pytest.raises(ShardkitError, match=r"train-00001\.tar (has \d+ bytes, e|is damaged)"):
            step()
    assert tree(tmp_path / "mine") == before


def test_folders_that_lead_nowhere(commands: Any) -> None:
    def loop(dataset: Path) -> Path:
        (dataset.parent / "loop").symlink_to("loop")
        return dataset.parent / "loop"

    def device(dataset: Path) -> Path:
        (dataset.parent / "device").symlink_to("/dev/zero")
        return dataset.parent / "device"

    def long_name(dataset: Path) -> Path:
        return dataset.with_name("n" * 300)

    def deep_inside(dataset: Path) -> None:
        deep(dataset / "deep")

    def deep_work_folder(dataset: Path) -> None:
        deep(dataset / ".packing" / "deep")

    for spoil in (loop, device, long_name):
        commands(spoil)
    changing = ("edit IT --drop-class class0", "pack SOURCE IT --to npy --overwrite --workers 0")
    commands(deep_inside, ("verify IT", "stage IT OUT"))
    commands(deep_work_folder, changing)


@pytest.mark.parametrize("fingerprint", ["x", "", "0" * 31, "scan:", 7, None, ["0" * 32]])
def test_a_wrong_fingerprint(
    fingerprint: Any, commands: Any, planted: ModuleType, corpora: Path, tmp_path: Path
) -> None:
    dataset = tmp_path / "dataset"
    shutil.copytree(corpora / "packed" / "pictures-webdataset", dataset)
    raw = planted.mutate.load(dataset)
    raw["splits"]["train"]["fingerprint"] = fingerprint
    planted.mutate.write_sealed(dataset, raw)
    with pytest.raises(IndexFileError, match=r"shardkit\.json is damaged"):
        shardkit.merge([dataset, dataset], tmp_path / "merged")


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can be somebody else")
@pytest.mark.parametrize("closed", [".", "shardkit.json", ".packing", "train-00000.tar"])
def test_what_somebody_may_not_read(closed: str, corpora: Path) -> None:
    """In a process of its own, which becomes nobody."""
    good = corpora / "packed" / "pictures-webdataset"
    at = Path(tempfile.mkdtemp(dir="/dev/shm" if Path("/dev/shm").is_dir() else None))
    at.chmod(0o777)

    def steps(it: Path, out: Path) -> list[Callable[[], object]]:
        return [
            lambda: shardkit.info(it),
            lambda: shardkit.open(it, verify=True).read([0]),
            lambda: shardkit.verify(it, progress=False),
            lambda: shardkit.convert(it, out / "npy", to="npy", **QUIET),
            lambda: shardkit.convert(it, out / "parquet", to="parquet", progress=False),
            lambda: shardkit.merge([it, at / "second"], out / "merged"),
            lambda: shardkit.pack(it, out / "packed", to="npy", **QUIET),
            lambda: shardkit.pack(at / "more", it, to="npy", **QUIET),
            lambda: shardkit.append(it, at / "more", **QUIET),
            lambda: shardkit.edit(it, drop_classes=["class0"]),
            lambda: shardkit.unpack(it, out / "files", progress=False),
            lambda: shardkit.unpack(it, it, progress=False),
            lambda: shardkit.stage(it, out / "staged", progress=False),
            lambda: shardkit.diff(it, at / "second"),
        ]

    def run_all(it: Path, out: Path) -> str:
        said = ""
        for number, step in enumerate(steps(it, out)):
            try:
                step()
            except ShardkitError as error:
                said += f"{number}: two lines: {error}\n" if "\n" in str(error) else ""
            except (OSError, ValueError, LookupError, RuntimeError) as error:
                said += f"{number}: {error!r}\n"
        return said

    write(at / "more" / "class0" / "new.jpg", picture(99))
    shardkit.pack(at / "more", at / "second", to="webdataset", **QUIET)
    shutil.copytree(good, at / "good")
    assert run_all(at / "good", at / "first") == ""  # what it imports, nobody may not read
    shutil.copytree(good, at / "it")
    (at / "it" / ".packing").mkdir()
    (at / "it" / closed).chmod(0)
    pid = os.fork()
    if pid == 0:
        try:
            os.setgid(65534)
            os.setuid(65534)
            (at / "said").write_text(run_all(at / "it", at / "out"))
        finally:
            os._exit(0)
    os.waitpid(pid, 0)
    said = (at / "said").read_text()
    shutil.rmtree(at)
    assert said == ""
