"""pack again on a dataset it made: complete already, if it is what it would make."""

from __future__ import annotations

import os
import shutil
import tarfile
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from conftest import Run, make_images, make_pairs, tree, write

import shardkit
from shardkit.errors import DestinationError
from shardkit.packing import finish, local
from shardkit.packing import job as pack_job

OPTIONS: dict[str, Any] = {"to": "npy", "workers": 0, "progress": False}


@pytest.fixture
def source(tmp_path: Path) -> Path:
    return make_images(tmp_path / "source")


@pytest.mark.parametrize(
    "options",
    [
        {},
        {"shuffle": True, "val_fraction": 0.2, "limit": 20},
        {"shard_size": "3kB", "resize": 8},
        {"workers": 2, "on_error": "skip", "max_rejects": 0.5},
    ],
    ids=str,
)
def test_the_same_again(source: Path, tmp_path: Path, options: dict[str, Any]) -> None:
    if "on_error" in options:
        write(source / "class0" / "bad.jpg", "no picture")
    given = OPTIONS | options
    first = shardkit.pack(source, tmp_path / "d", **given)
    before = tree(tmp_path / "d")
    second = shardkit.pack(source, tmp_path / "d", **{**given, "workers": 0})
    assert second.notes == ["complete already, from an earlier run"]
    for name, value in vars(first).items():
        is_own = name in ("seconds", "notes", "was_complete")
        assert is_own or vars(second)[name] == value, name
    assert tree(tmp_path / "d") == before
    copied = shardkit.pack(source, tmp_path / "e", **given)
    assert tree(copied.dest) == before, "what it was made of says nothing of when or where"


def test_pairs_and_lines(tmp_path: Path) -> None:
    make_pairs(tmp_path / "pairs")
    write(tmp_path / "in.jsonl", '{"n": 1}\n' * 9)
    for source in ("pairs", "in.jsonl"):
        for notes in (0, 1):
            result = shardkit.pack(tmp_path / source, tmp_path / f"{source}-d", **OPTIONS)
            assert len(result.notes) == notes


def test_tokens(tmp_path: Path) -> None:
    for i in range(40):
        write(tmp_path / "text" / f"{i}.txt", f"some words and number {i}\n" * 9)
    options = {**OPTIONS, "train_tokenizer": 300}
    first = shardkit.pack(tmp_path / "text", tmp_path / "d", **options)
    second = shardkit.pack(tmp_path / "text", tmp_path / "d", **options)
    assert second.notes == ["complete already, from an earlier run"]
    assert (second.num_tokens, second.dataset_bytes) == (first.num_tokens, first.dataset_bytes)
    with pytest.raises(DestinationError, match="already holds a dataset; pass --overwrite"):
        shardkit.pack(tmp_path / "text", tmp_path / "d", **{**options, "train_tokenizer": 290})


def test_another_call_is_refused(source: Path, tmp_path: Path) -> None:
    shardkit.pack(source, tmp_path / "d", **OPTIONS)
    for other in ({"to": "lmdb"}, {"shuffle": True}, {"shard_size": "3kB"}, {"limit": 5}):
        with pytest.raises(DestinationError, match="already holds a dataset; pass --overwrite"):
            shardkit.pack(source, tmp_path / "d", **(OPTIONS | other))
    make_images(source, per_class=13)
    with pytest.raises(DestinationError, match="already holds a dataset; pass --overwrite"):
        shardkit.pack(source, tmp_path / "d", **OPTIONS)


OTHERS = "of inputs of these names and sizes, but some .* changed or touched since: .* --against"


def make_arrays(root: Path, first: float = 0) -> Path:
    """Files of one size that differ in what they hold: cat/000.npy..., dog/000.npy..."""
    for number, name in enumerate(("cat", "dog")):
        for i in range(9):
            (root / name).mkdir(parents=True, exist_ok=True)
            np.save(root / name / f"{i:03d}.npy", np.full(4, first + i + 1000 * number))
    return root


def rewritten(file: Path, *, keep_time: bool) -> None:
    """Other contents of the same size."""
    status = file.stat()
    np.save(file, np.full(4, 77.0))
    if keep_time:  # as rsync and tar do it
        os.utime(file, ns=(status.st_atime_ns, status.st_mtime_ns))


def test_a_changed_input_is_refused(tmp_path: Path) -> None:
    """By its time: contents of the same size and time are those that were packed."""
    source = make_arrays(tmp_path / "source")
    shardkit.pack(source, tmp_path / "d", **OPTIONS)
    file = source / "dog" / "003.npy"
    rewritten(file, keep_time=True)
    assert shardkit.pack(source, tmp_path / "d", **OPTIONS).was_complete
    rewritten(file, keep_time=False)
    with pytest.raises(DestinationError, match=OTHERS):
        shardkit.pack(source, tmp_path / "d", **OPTIONS)
    problems = shardkit.verify(tmp_path / "d", against=source).problems
    assert any("dog/003" in problem.where for problem in problems)
    shardkit.pack(source, tmp_path / "d", **OPTIONS, overwrite=True)
    assert shardkit.pack(source, tmp_path / "d", **OPTIONS).was_complete


def repoint(link: Path, target: Path) -> None:
    link.unlink()
    link.symlink_to(target)


@pytest.mark.parametrize("what", ["folders", "source", "folder", "file"])
def test_another_input_in_its_place_is_refused(what: str, tmp_path: Path) -> None:
    """Folders that were swapped, and links that lead elsewhere: no file of them changed."""
    given = source = make_arrays(tmp_path / "source")
    other = make_arrays(tmp_path / "other", 5000)
    cat, one = source / "cat", source / "cat" / "000.npy"
    if what == "source":
        given = tmp_path / "link"
        given.symlink_to(source)
    elif what == "folder":
        cat.rename(tmp_path / "cats")
        cat.symlink_to(tmp_path / "cats")
    elif what == "file":
        one.rename(tmp_path / "one.npy")
        one.symlink_to(tmp_path / "one.npy")
    shardkit.pack(given, tmp_path / "d", **OPTIONS)
    if what == "folders":
        cat.rename(tmp_path / "t")
        (source / "dog").rename(cat)
        (tmp_path / "t").rename(source / "dog")
    elif what == "source":
        repoint(given, other)
    elif what == "folder":
        repoint(cat, other / "cat")
    else:
        repoint(one, other / "cat" / "000.npy")
    with pytest.raises(DestinationError, match=OTHERS):
        shardkit.pack(given, tmp_path / "d", **OPTIONS)


def test_an_input_that_changes_while_it_is_packed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """After it was read, and before the first file of the dataset was whole."""
    source = make_arrays(tmp_path / "source")
    read = pack_job.read_job

    def changing(*args: Any) -> Any:
        samples = read(*args)
        rewritten(source / "dog" / "003.npy", keep_time=False)
        return samples

    with monkeypatch.context() as patch:
        patch.setattr(pack_job, "read_job", changing)
        shardkit.pack(source, tmp_path / "d", **OPTIONS)
    with pytest.raises(DestinationError, match=OTHERS):
        shardkit.pack(source, tmp_path / "d", **OPTIONS)


def test_what_is_not_packed_may_change(tmp_path: Path) -> None:
    """And inputs may be moved, or copied with their times; nothing is read of them."""
    source = make_arrays(tmp_path / "source")
    shardkit.pack(source, tmp_path / "d", **OPTIONS)
    write(source / "job.log", "a line\n")
    shutil.copytree(source, tmp_path / "copy")
    for file in (tmp_path / "copy").rglob("*.npy"):
        status = file.stat()
        file.write_bytes(bytes(status.st_size))
        os.utime(file, ns=(status.st_atime_ns, status.st_mtime_ns))
    assert shardkit.pack(tmp_path / "copy", tmp_path / "d", **OPTIONS).was_complete


def test_without_times_names_and_sizes_decide(tmp_path: Path) -> None:
    """As in a copy of the dataset, on a file system without attributes, or in another format."""
    source = make_arrays(tmp_path / "source")
    shardkit.pack(source, tmp_path / "d", **OPTIONS)
    shardkit.convert(tmp_path / "d", tmp_path / "l", to="lmdb", workers=0, progress=False)
    for file in (tmp_path / "d" / "shardkit.json", tmp_path / "l" / "shardkit.json"):
        if finish.SEEN in os.listxattr(file):
            os.removexattr(file, finish.SEEN)
    rewritten(source / "dog" / "003.npy", keep_time=False)
    for dest, to in (("d", "npy"), ("l", "lmdb")):
        assert shardkit.pack(source, tmp_path / dest, **(OPTIONS | {"to": to})).was_complete
    again = shardkit.convert(tmp_path / "d", tmp_path / "l", to="lmdb", workers=0, progress=False)
    assert again.was_complete, "checksums say that it is a copy"
    np.save(source / "dog" / "003.npy", np.zeros(5))
    with pytest.raises(DestinationError, match="already holds a dataset; pass"):
        shardkit.pack(source, tmp_path / "d", **OPTIONS)


def test_what_was_rejected_is_part_of_it(tmp_path: Path) -> None:
    source = make_arrays(tmp_path / "source")
    write(source / "cat" / "bad.npy", "no array")
    options = OPTIONS | {"on_error": "skip", "max_rejects": 0.5}
    shardkit.pack(source, tmp_path / "d", **options)
    assert shardkit.pack(source, tmp_path / "d", **options).was_complete
    for other in ({"max_rejects": 0.0}, {"on_error": "fail"}):
        with pytest.raises(DestinationError, match="already holds a dataset; pass"):
            shardkit.pack(source, tmp_path / "d", **(options | other))


def test_a_resumed_pack_whose_input_was_set_back(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    source = make_arrays(tmp_path / "source")
    options = OPTIONS | {"shard_size": 1000}
    write_job = local.write_job

    def stopped(corpus: Any, job: Any, *rest: Any) -> Any:
        if job.shard == 2:
            raise KeyboardInterrupt
        return write_job(corpus, job, *rest)

    with monkeypatch.context() as patch:
        patch.setattr(local, "write_job", stopped)
        with pytest.raises(KeyboardInterrupt):
            shardkit.pack(source, tmp_path / "d", **options)
    rewritten(source / "cat" / "000.npy", keep_time=True)
    result = shardkit.pack(source, tmp_path / "d", **options)
    assert result.resumed_shards == 1, "the one with that input is made again"
    fresh = shardkit.pack(source, tmp_path / "fresh", **options)
    assert tree(result.dest) == tree(fresh.dest)


@pytest.mark.parametrize("made", [{}, {"resize": 8}], ids=str)
def test_convert_of_tars_again(made: dict[str, Any], tmp_path: Path) -> None:
    pictures = sorted(make_images(tmp_path / "pictures").rglob("*.jpg"))

    def pack_tar(paths: list[Path]) -> None:
        with tarfile.open(tmp_path / "a.tar", "w") as tar:
            for number, path in enumerate(paths):
                tar.add(path, f"{number:02d}.jpg")

    pack_tar(pictures)
    options: dict[str, Any] = {"to": "lmdb", "workers": 0, "progress": False, **made}
    assert not shardkit.convert(tmp_path / "a.tar", tmp_path / "d", **options).was_complete
    assert shardkit.convert(tmp_path / "a.tar", tmp_path / "d", **options).was_complete
    pack_tar(pictures[::-1])
    with pytest.raises(DestinationError, match="already holds a dataset"):
        shardkit.convert(tmp_path / "a.tar", tmp_path / "d", **options)


def test_converted_names_are_part_of_it(tmp_path: Path) -> None:
    for folder, name in (("one", "x.TXT"), ("two", "x.txt")):
        write(tmp_path / "in" / name, "1")
        (tmp_path / folder).mkdir()
        with tarfile.open(tmp_path / folder / "a.tar", "w") as tar:
            tar.add(tmp_path / "in" / name, name)
        shardkit.convert(tmp_path / folder, tmp_path / f"{folder}-l", to="lmdb", workers=0)
    shardkit.convert(tmp_path / "one-l", tmp_path / "d", to="npy", workers=0)
    with pytest.raises(DestinationError, match="already holds a dataset"):
        shardkit.convert(tmp_path / "two-l", tmp_path / "d", to="npy", workers=0)


def test_convert_again(source: Path, tmp_path: Path) -> None:
    shardkit.pack(source, tmp_path / "d", **OPTIONS)
    options: dict[str, Any] = {"to": "lmdb", "workers": 0, "progress": False}
    first = shardkit.convert(tmp_path / "d", tmp_path / "c", **options)
    before = tree(tmp_path / "c")
    second = shardkit.convert(tmp_path / "d", tmp_path / "c", **options)
    assert second.was_complete and not first.was_complete
    assert (second.num_samples, second.num_shards) == (first.num_samples, first.num_shards)
    assert tree(tmp_path / "c") == before
    with pytest.raises(DestinationError, match="overlap"):
        shardkit.convert(tmp_path / "c", tmp_path / "c", **options)
    for other in ({"to": "npy"}, {"resize": 8}):
        with pytest.raises(DestinationError, match="already holds a dataset"):
            shardkit.convert(tmp_path / "d", tmp_path / "c", **(options | other))
    os.truncate(tmp_path / "c" / "train-00000.lmdb", 4096)
    with pytest.raises(DestinationError, match=r"but train-00000\.lmdb has 4096 bytes, not "):
        shardkit.convert(tmp_path / "d", tmp_path / "c", **options)
    shardkit.pack(source, tmp_path / "other", **OPTIONS, limit=20)
    with pytest.raises(DestinationError, match="already holds a dataset"):
        shardkit.convert(tmp_path / "other", tmp_path / "c", **options)


@pytest.mark.parametrize("name", ["train-00000.jpg.npy", "train.names"])
@pytest.mark.parametrize("damage", ["gone", "short"])
def test_a_dataset_that_is_not_whole(name: str, damage: str, source: Path, tmp_path: Path) -> None:
    shardkit.pack(source, tmp_path / "d", **OPTIONS)
    file = tmp_path / "d" / name
    file.unlink() if damage == "gone" else os.truncate(file, 5)
    with pytest.raises(DestinationError, match=rf"but {name} (is missing|has 5 bytes, not \d+);"):
        shardkit.pack(source, tmp_path / "d", **OPTIONS)


def test_a_converted_dataset_is_no_pack_of_its_input(source: Path, tmp_path: Path) -> None:
    shardkit.pack(source, tmp_path / "d", **OPTIONS)
    shardkit.convert(tmp_path / "d", tmp_path / "small", to="npy", resize=8, workers=0)
    with pytest.raises(DestinationError, match="already holds a dataset; pass"):
        shardkit.pack(source, tmp_path / "small", **OPTIONS)


def test_on_the_command_line(run: Run) -> None:
    assert run("pack", "pictures", "--to", "npy").code == 0
    got = run("pack", "pictures", "--to", "npy")
    assert got.code == 0 and got.err == ""
    assert got.out.startswith(
        "complete already, from an earlier run: 36 samples in 1 shard of npy: "
    )
