"""A pack in parts, made apart and merged, is the pack of the whole, to the byte."""

from __future__ import annotations

import errno
import os
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from conftest import Run, make_images, picture, tree, write
from dying import dies_before_change
from hypothesis import given
from hypothesis import strategies as st

import shardkit
from shardkit.commit.records import read_record, write_record
from shardkit.errors import DestinationError, PartError, ResumeError, ShardkitError, UsageError
from shardkit.index.journal import read_finished, write_finished
from shardkit.packing.options import Part

SMALL: dict[str, Any] = {"shard_size": "4kB", "workers": 0, "progress": False}
PARTS = 3


def make_parts(source: Path, where: Path, count: int = PARTS, **options: Any) -> list[Path]:
    """All parts, the last first."""
    for number in range(count, 0, -1):
        shardkit.pack(source, where / f"part{number}", part=f"{number}/{count}", **options)
    return [where / f"part{number}" for number in range(1, count + 1)]


@given(jobs=st.integers(0, 300), total=st.integers(1, 40))
def test_each_job_is_of_one_part(jobs: int, total: int) -> None:
    parts = [Part(number, total) for number in range(1, total + 1)]
    owners = [[part for part in parts if part.has(job)] for job in range(jobs)]
    assert all(len(own) == 1 for own in owners)
    sizes = [sum(part.has(job) for job in range(jobs)) for part in parts]
    assert max(sizes) - min(sizes) <= 1
    assert all(Part.parse(str(part)) == part for part in parts)


@pytest.mark.parametrize("text", ["", "3", "0/3", "4/3", "1/0", "-1/3", "1/3/5", "a/b", "1 / 3"])
def test_part_is_refused(text: str, tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="part must be as 3/64"):
        shardkit.pack(make_images(tmp_path / "s", 1), tmp_path / "d", to="npy", part=text)
    assert not (tmp_path / "d").exists()


def test_each_kind_of_input(corpus: Path, tmp_path: Path) -> None:
    options = {**SMALL, "to": "webdataset", "shard_size": "200"}
    shardkit.pack(corpus, tmp_path / "whole", **options)
    parts = make_parts(corpus, tmp_path, **options)
    shardkit.merge(parts[::-1], tmp_path / "merged")
    assert tree(tmp_path / "merged") == tree(tmp_path / "whole")


VARIANTS: dict[str, dict[str, Any]] = {
    "plain": {},
    "shuffled": {"shuffle": True, "seed": 3, "val_fraction": 0.3, "limit": 31},
    "smaller": {"max_side": 8},
    "raw": {"crop": 8, "image_format": "raw"},
    "growing": {"shard_size": None},
}


@pytest.mark.parametrize("variant", VARIANTS)
def test_each_format(container: str, variant: str, tmp_path: Path) -> None:
    source = make_images(tmp_path / "source")
    options = {**SMALL, "to": container, **VARIANTS[variant]}
    whole = shardkit.pack(source, tmp_path / "whole", **options)
    parts = make_parts(source, tmp_path, **options)
    merged = shardkit.merge(parts, tmp_path / "merged")
    assert tree(tmp_path / "merged") == tree(tmp_path / "whole")
    assert (merged.splits, merged.num_samples) == (whole.splits, whole.num_samples)
    assert (merged.num_shards, merged.input_bytes) == (whole.num_shards, whole.input_bytes)
    for part in parts:
        shutil.rmtree(part)
    assert shardkit.verify(tmp_path / "merged", against=source).ok
    assert shardkit.pack(source, tmp_path / "merged", **options).was_complete


@pytest.mark.parametrize("to", ["npy", "lmdb"])
def test_tokens(to: str, tmp_path: Path) -> None:
    for number in range(40):
        write(tmp_path / "source" / f"{number}.txt", f"the text of number {number}, again " * 9)
    options = {**SMALL, "to": to, "train_tokenizer": 300, "shard_size": "1kB"}
    whole = shardkit.pack(tmp_path / "source", tmp_path / "whole", **options)
    merged = shardkit.merge(make_parts(tmp_path / "source", tmp_path, **options), tmp_path / "m")
    assert tree(tmp_path / "m") == tree(tmp_path / "whole")
    assert merged.num_tokens == whole.num_tokens > 0
    assert merged.num_shards > PARTS
    (tmp_path / "part1" / ".packing" / "new" / "tokenizer.json").write_bytes(b"{}")
    with pytest.raises(PartError, match="the tokenizer, is damaged; pack that part again"):
        shardkit.merge([tmp_path / f"part{number}" for number in (1, 2, 3)], tmp_path / "none")


def test_more_parts_than_shards(tmp_path: Path) -> None:
    source = make_images(tmp_path / "source", 2)
    options = {**SMALL, "to": "npy", "shard_size": "1MB"}
    whole = shardkit.pack(source, tmp_path / "whole", **options)
    parts = make_parts(source, tmp_path, 4, **options)
    assert whole.num_shards == 1
    shardkit.merge(parts, tmp_path / "merged")
    assert tree(tmp_path / "merged") == tree(tmp_path / "whole")


def test_rejects(tmp_path: Path) -> None:
    source = make_images(tmp_path / "source")
    for number in (1, 5, 9):
        write(source / "class1" / f"bad{number}.jpg", b"no picture")
    options = {**SMALL, "to": "lmdb", "on_error": "skip", "max_rejects": 0.1}
    shardkit.pack(source, tmp_path / "whole", **options)
    parts = make_parts(source, tmp_path, **options)
    assert shardkit.merge(parts, tmp_path / "merged").num_rejects == 3
    assert tree(tmp_path / "merged") == tree(tmp_path / "whole")
    assert "rejected.jsonl" in tree(tmp_path / "merged")


def test_too_many_rejects_in_all(tmp_path: Path) -> None:
    """Each part alone is below the share."""
    source = make_images(tmp_path / "source")
    for each in sorted((source / "class0").iterdir())[:3]:
        each.write_bytes(b"no picture".ljust(900))
    options = {**SMALL, "to": "lmdb", "on_error": "skip", "shard_size": "1kB", "max_rejects": 0.06}
    parts = make_parts(source, tmp_path, **options)
    with pytest.raises(shardkit.errors.TooManyRejectsError, match="3 of 36"):
        shardkit.merge(parts, tmp_path / "merged")
    assert not (tmp_path / "merged").exists()


# --- what is refused ------------------------------------------------------------------------


@pytest.fixture
def parts(tmp_path: Path) -> list[Path]:
    return make_parts(make_images(tmp_path / "source"), tmp_path, to="webdataset", **SMALL)


def again(parts: list[Path], number: int, **options: Any) -> None:
    """Pack that part anew, otherwise."""
    shutil.rmtree(parts[number - 1])
    given = {**SMALL, "to": "webdataset", "part": f"{number}/{PARTS}", **options}
    shardkit.pack(parts[0].parent / "source", parts[number - 1], **given)


def new_input(parts: list[Path]) -> None:
    write(parts[0].parent / "source" / "class1" / "new.jpg", picture(77))
    again(parts, 2)


def touched_input(parts: list[Path]) -> None:
    os.utime(parts[0].parent / "source" / "class1" / "img.003.jpg", (1, 1))
    again(parts, 2)


def unfinished(parts: list[Path]) -> None:
    (parts[1] / ".packing" / "part.json").unlink()


def cut_short(parts: list[Path]) -> None:
    shard = next((parts[1] / ".packing" / "new").iterdir())
    os.truncate(shard, shard.stat().st_size - 1)


def flipped(parts: list[Path], name: str) -> None:
    path = next((parts[1] / ".packing").glob(name))
    data = bytearray(path.read_bytes())
    data[len(data) // 2] ^= 1
    path.write_bytes(data)


def lost(parts: list[Path]) -> None:
    next((parts[1] / ".packing").glob("*.part")).unlink()


def foreign(parts: list[Path]) -> None:
    shutil.copy(next((parts[0] / ".packing").glob("*.part")), parts[1] / ".packing")


FAULTS: dict[str, tuple[Callable[[list[Path]], object], str]] = {
    "missing": (lambda parts: parts.pop(1), "2 of 3 parts are given; these are missing: 2"),
    "twice": (lambda parts: parts.append(parts[1]), "are both part 2/3"),
    "none": (lambda parts: parts.clear(), "no parts are given"),
    "no part": (lambda parts: parts.append(parts[0].parent / "source"), "with --part makes one"),
    "no folder": (lambda parts: parts.append(parts[0].parent / "gone"), "no such folder"),
    "other count": (lambda parts: again(parts, 2, part="2/4"), "give parts of one pack"),
    "other options": (lambda parts: again(parts, 2, limit=9), "with other options"),
    "other format": (lambda parts: again(parts, 2, to="npy"), "with other options"),
    "new input": (new_input, "inputs that changed in between"),
    "touched input": (touched_input, "inputs that changed in between"),
    "unfinished": (unfinished, "its packing has not finished; run the same command again"),
    "cut short": (cut_short, "bytes, not .*; run the command that packed part 2/3 again"),
    "lost": (lost, "part 2/3, lacks shard train-0000"),
    "foreign": (foreign, "part 2/3, has, and should not have, shard train-0000"),
    "damaged journal": (lambda parts: flipped(parts, "*.part"), "is damaged"),
    "damaged part.json": (lambda parts: flipped(parts, "part.json"), "is damaged; pack that part"),
}


@pytest.mark.parametrize("fault", FAULTS)
def test_refused(parts: list[Path], fault: str, tmp_path: Path) -> None:
    spoil, words = FAULTS[fault]
    spoil(parts)
    with pytest.raises(ShardkitError, match=words):
        shardkit.merge(parts, tmp_path / "merged")
    assert not (tmp_path / "merged").exists()


def test_no_advice_that_never_ends(parts: list[Path], tmp_path: Path) -> None:
    """What the message says to run, mends it."""
    for spoil in (lost, foreign, lambda parts: flipped(parts, "*.part"), cut_short):
        spoil(parts)
        with pytest.raises(ShardkitError, match="run the command that packed part 2/3 again"):
            shardkit.merge(parts, tmp_path / "merged")
        shardkit.pack(tmp_path / "source", parts[1], to="webdataset", part="2/3", **SMALL)
    shardkit.merge(parts, tmp_path / "merged")
    assert shardkit.verify(tmp_path / "merged", tmp_path / "source").ok


def rewrite(parts: list[Path], **changed: Any) -> None:
    """Its record, as somebody would who wants harm, with a right checksum."""
    path = parts[1] / ".packing" / "part.json"
    record = read_record(path)
    assert record is not None
    write_record(path, record | changed)


BAD_RECORDS: list[dict[str, Any]] = [
    {"part": [None, 3]},
    {"part": 5},
    {"recipe": None},
    {"num_shards": None},
    {"num_shards": {"train": 10**30}},
    {"num_shards": {"../x": 3}},
    {"max_rejects": None},
    {"chosen": "x"},
    {"listed": []},
    {"extra": 1},
]


@pytest.mark.parametrize("changed", BAD_RECORDS, ids=str)
def test_records_of_wrong_types(parts: list[Path], changed: dict[str, Any], tmp_path: Path) -> None:
    rewrite(parts, **changed)
    with pytest.raises(PartError, match="part"):
        shardkit.merge(parts, tmp_path / "merged")
    assert not (tmp_path / "merged").exists()


@pytest.mark.parametrize("name", ["../../../victim", "victim", "train-00099.tar", "shardkit.json"])
def test_a_part_names_no_files_but_its_own(parts: list[Path], name: str, tmp_path: Path) -> None:
    path = sorted((parts[1] / ".packing").glob("*.part"))[0]
    finished = read_finished(path)
    source = parts[1] / ".packing" / "new" / name
    write(source, "evil")
    write(tmp_path / "victim", "mine")
    finished.receipt.file_bytes[name] = 4
    write_finished(path, finished)
    with pytest.raises(PartError, match="is damaged; run the command that packed part 2/3 again"):
        shardkit.merge(parts, tmp_path / "deep" / "merged")
    assert not (tmp_path / "deep" / "merged").exists()


def test_by_the_command(parts: list[Path], run: Run, tmp_path: Path) -> None:
    assert "merged 36 samples (images)" in run("merge", *parts, tmp_path / "merged").out
    assert shardkit.verify(tmp_path / "merged", tmp_path / "source").ok


def test_links_are_followed(parts: list[Path], tmp_path: Path) -> None:
    shutil.copytree(parts[1], tmp_path / "copied")
    for path in (tmp_path / "copied" / ".packing" / "new").iterdir():
        path.unlink()
        path.symlink_to(parts[1] / ".packing" / "new" / path.name)
    shardkit.merge([parts[0], tmp_path / "copied", parts[2]], tmp_path / "merged")
    assert not any(path.is_symlink() for path in (tmp_path / "merged").iterdir())
    for part in parts:
        shutil.rmtree(part)
    assert shardkit.verify(tmp_path / "merged", tmp_path / "source").ok


def test_a_killed_merge_that_pack_goes_on_with_leaves_parts_alone(tmp_path: Path) -> None:
    source = make_images(tmp_path / "source", 4)
    made = make_parts(source, tmp_path, to="webdataset", **SMALL)
    before, number = [tree(part) for part in made], 0
    dest = tmp_path / "killed"
    while dies_before_change(number, lambda: shardkit.merge(made, dest)):
        shardkit.pack(source, dest, to="webdataset", **SMALL)
        shutil.rmtree(dest)
        number += 3
    assert [tree(part) for part in made] == before


def test_two_parts_in_one_folder(parts: list[Path], tmp_path: Path) -> None:
    with pytest.raises(ResumeError, match="part was '1/3', now '2/3'"):
        shardkit.pack(tmp_path / "source", parts[0], to="webdataset", part="2/3", **SMALL)
    with pytest.raises(ResumeError, match="part was '1/3', now None"):
        shardkit.pack(tmp_path / "source", parts[0], to="webdataset", **SMALL)
    found = shardkit.pack(tmp_path / "source", parts[0], to="webdataset", part="1/3", **SMALL)
    assert found.resumed_shards == found.num_shards > 0


def test_part_is_no_dataset(parts: list[Path], tmp_path: Path) -> None:
    for read in (shardkit.open, shardkit.info, shardkit.verify):
        with pytest.raises(UsageError, match="it is a part of one: `shardkit merge`"):
            read(parts[0])
    shardkit.merge(parts, tmp_path / "merged")
    with pytest.raises(UsageError, match="convert takes no option 'part'"):
        shardkit.convert(tmp_path / "merged", tmp_path / "c", to="npy", part="1/3")
    url = (tmp_path / "url").as_uri()
    with pytest.raises(UsageError, match="part 1/3 is packed into a folder"):
        shardkit.pack(tmp_path / "source", url, to="npy", part="1/3")


def test_destinations(parts: list[Path], tmp_path: Path) -> None:
    with pytest.raises(DestinationError, match="overlap"):
        shardkit.merge(parts, parts[2] / "merged")
    shardkit.merge(parts, tmp_path / "merged")
    again = shardkit.merge(parts[::-1], tmp_path / "merged")
    assert again.was_complete
    assert again.notes == ["complete already, from an earlier run"]
    shardkit.pack(tmp_path / "source", tmp_path / "other", to="webdataset", limit=5, **SMALL)
    before = tree(tmp_path / "other")
    with pytest.raises(DestinationError, match="already holds a dataset"):
        shardkit.merge(parts, tmp_path / "other")
    assert tree(tmp_path / "other") == before
    shardkit.merge(parts, tmp_path / "other", overwrite=True)
    assert tree(tmp_path / "other") == tree(tmp_path / "merged")
    shardkit.edit(tmp_path / "merged", val_fraction=0.3, progress=False)
    assert shardkit.merge(parts, tmp_path / "merged").was_complete  # of these, and changed since


# --- where shards go, and what happens in between ---------------------------------------------


def test_shards_are_links(parts: list[Path], tmp_path: Path) -> None:
    shardkit.merge(parts, tmp_path / "merged")
    tars = sorted((tmp_path / "merged").glob("*.tar"))
    assert len(tars) > PARTS
    assert all(tar.stat().st_nlink == 2 for tar in tars)


def test_other_file_systems(
    parts: list[Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    shardkit.merge(parts, tmp_path / "linked")

    def refuse(*args: object) -> None:
        raise OSError(errno.EXDEV, os.strerror(errno.EXDEV))

    monkeypatch.setattr(os, "link", refuse)
    shardkit.merge(parts, tmp_path / "copied")
    assert tree(tmp_path / "copied") == tree(tmp_path / "linked")
    assert all(tar.stat().st_nlink == 1 for tar in (tmp_path / "copied").glob("*.tar"))


def test_into_a_bucket(parts: list[Path], tmp_path: Path) -> None:
    pytest.importorskip("obstore")
    shardkit.merge(parts, tmp_path / "merged")
    there = tmp_path / "there"
    shardkit.merge(parts, there.as_uri(), staging=tmp_path / "staging", staging_bytes="4kB")
    assert tree(there) == tree(tmp_path / "merged")
    assert shardkit.merge(parts, tmp_path / "merged").was_complete  # they are as they were


def test_killed_at_each_change(tmp_path: Path) -> None:
    parts = make_parts(make_images(tmp_path / "source", 4), tmp_path, to="webdataset", **SMALL)
    shardkit.merge(parts, tmp_path / "whole")
    expected, dest, number = tree(tmp_path / "whole"), tmp_path / "killed", 0
    while dies_before_change(number, lambda: shardkit.merge(parts, dest)):
        if (dest / "shardkit.json").exists():
            assert shardkit.verify(dest).ok
        shardkit.merge(parts, dest)
        assert tree(dest) == expected
        shutil.rmtree(dest)
        number += 1
    assert number > 20


def test_stale_shards_of_a_killed_merge(parts: list[Path], tmp_path: Path) -> None:
    """Parts that were packed anew since, of the same options and other inputs of equal sizes."""
    dest = tmp_path / "merged"
    assert dies_before_change(14, lambda: shardkit.merge(parts, dest))
    source = tmp_path / "source"
    for path in (source / "class0").iterdir():
        data = bytearray(path.read_bytes())
        data[-3] ^= 1
        path.write_bytes(data)
    for part in parts:
        shutil.rmtree(part)
    made = make_parts(source, tmp_path, to="webdataset", **SMALL)
    shardkit.merge(made, dest)
    shardkit.pack(source, tmp_path / "whole", to="webdataset", **SMALL)
    assert tree(dest) == tree(tmp_path / "whole")


SBATCH = """#!/bin/bash
set -e
array=0
while [[ $1 == --* ]]; do
    case $1 in
        --array=1-*) array=${1#--array=1-} ;;
        --dependency=*) [[ $1 == --dependency=afterok:7 ]] ;;
    esac
    shift
done
echo 7
if [ $array = 0 ]; then exec "$@" >&2; fi
for task in $(seq $array); do SLURM_ARRAY_TASK_ID=$task "$@" >&2; done
"""
"""It runs at once what Slurm runs later."""


def test_slurm_script(tmp_path: Path) -> None:
    script = Path(__file__).parents[1] / "scripts" / "examples" / "slurm_pack.sh"
    write(tmp_path / "bin" / "sbatch", SBATCH).chmod(0o755)
    path = f"{tmp_path / 'bin'}:{Path(sys.executable).parent}:{os.environ['PATH']}"
    environment = {**os.environ, "PATH": path, "PARTS": "3"}
    run = [str(script), str(make_images(tmp_path / "my source")), str(tmp_path / "my dest")]
    options = ["--to", "npy", "--shard-size", "4kB"]
    done = subprocess.run(
        [*run, *options], env=environment, check=True, capture_output=True, text=True
    )
    assert done.stdout == "parts are job 7, the merge is job 7\n"
    shardkit.pack(tmp_path / "my source", tmp_path / "whole", to="npy", **SMALL)
    assert tree(tmp_path / "my dest") == tree(tmp_path / "whole")
    none = subprocess.run([str(script)], env=environment, capture_output=True, text=True)
    assert none.returncode == 2
    assert "PARTS=64 scripts/examples/slurm_pack.sh SOURCE DEST" in none.stderr
