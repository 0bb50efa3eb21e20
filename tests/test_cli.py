"""The command line: whole outputs, exit codes, one line an error, a bar on a terminal only."""

from __future__ import annotations

import dataclasses
import errno
import inspect
import json
import os
import pty
import re
import shutil
import subprocess
import sys
import termios
from pathlib import Path

import click
import numpy as np
import PIL
import pytest
import torch
from conftest import Ran, Run, make_arrays, make_images, picture, tree, write

import shardkit
from shardkit.cli import group
from shardkit.cli.command_group import options_of, with_options
from shardkit.operations.info import in_class_order
from shardkit.operations.unpack import UnpackResult
from shardkit.operations.verify import VerifyResult
from shardkit.packing.conversion import OPTIONS
from shardkit.packing.options import PackOptions

ENV = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)}


@pytest.fixture
def packed(run: Run) -> Run:
    """The same, where ``pictures`` are packed as ``pictures-npy``."""
    assert run("pack", "pictures", "--to", "npy", "--shard-size", "3kB", "--workers", 0).code == 0
    return run


# --- outputs ------------------------------------------------------------------------------


def test_pack(run: Run, tmp_path: Path) -> None:
    write(tmp_path / "pictures" / "class0" / "Thumbs.db", "x")
    assert run("pack", "pictures", "--to", "h5", "--shard-size", "3kB") == Ran(
        0,
        f"packed 36 samples (images) into 9 shards of hdf5: {tmp_path}/pictures-hdf5\n"
        "  SIZE in, SIZE out, TIME\n"
        "  files passed over: 1 Thumbs.db\n"
        "  cls is of 3 classes, the folders: class0, class1, class2\n"
        f"  next: shardkit info {tmp_path}/pictures-hdf5\n",
        "",
    )


def test_pack_with_all_there_is_to_say(run: Run, tmp_path: Path) -> None:
    write(tmp_path / "pictures" / "class0" / "bad.jpg", "no picture")
    options = ["--on-error", "skip", "--max-rejects", "0.1", "--val-fraction", "0.25"]
    got = run("pack", "pictures", "my data", "--to", "lmdb", *options)
    dest = tmp_path / "my data"
    assert got.code == 0 and got.err == ""
    assert got.out.splitlines()[2:] == [
        "  splits: train 27, val 9",
        f"  1 input rejected: {dest}/rejected.jsonl",
        "  cls is of 3 classes, the folders: class0, class1, class2",
        f"  next: shardkit info '{dest}'",
    ]
    (line,) = (dest / "rejected.jsonl").read_text().splitlines()
    assert json.loads(line)["path"] == "class0/bad.jpg"


def test_info(packed: Run) -> None:
    assert packed("info", "pictures-npy") == Ran(
        0,
        "pictures-npy: npy, packed from images\n"
        "  3 classes: class0, class1, class2\n"
        "  train: 36 samples in 9 shards, SIZE + SIZE index\n"
        "    cls: class number (3 classes)\n"
        "    jpg: bytes\n"
        "    labels in class order: shuffle fully when training, or pack with --shuffle\n"
        "  open with:\n"
        "    shardkit.open('pictures-npy', split='train')\n"
        "    numpy.load('pictures-npy/train-00000.cls.npy', mmap_mode='r')\n"
        "  with other tools: shardkit info pictures-npy --open\n",
        "",
    )


def test_info_of_arrays_and_many_classes(run: Run, tmp_path: Path) -> None:
    make_arrays(tmp_path / "arrays")
    run("pack", "arrays", "--to", "hdf5", "--compression", 3, "--workers", 0)
    run("pack", make_arrays(tmp_path / "ragged", ragged=True), "--to", "npy", "--workers", 0)
    make_images(tmp_path / "many", per_class=1, classes=7)
    run("pack", "many", "--to", "lmdb", "--shuffle", "--seed", 3, "--workers", 0)
    assert "    npy: array <i2[4, 5]\n" in run("info", "arrays-hdf5").out
    assert "    npy: ragged <i2[-1, 5]\n" in run("info", "ragged-npy").out
    lines = run("info", "many-lmdb").out.splitlines()
    assert lines[1] == "  7 classes: class0, class1, class2, class3, class4, ..."
    assert "    labels are mixed" in lines
    assert not any("class order" in line for line in lines)


def test_info_of_the_system(run: Run) -> None:
    got = run("info", "--system")
    assert got.code == 0 and got.err == ""
    head, *lines = got.out.splitlines()
    assert re.fullmatch(r"shardkit [\d.]+, Python [\d.]+ on .*, \d+ cores, \d+ GiB", head)
    names = ["JPEGs", "other pictures", "resizing", "kernel", "on the GPU", "torch"]
    assert [line.strip().partition(": ")[0] for line in lines[: len(names)]] == names
    found = dict(line.strip().split(": ", 1) for line in lines[: len(names)])
    assert found["JPEGs"] == ", ".join(shardkit.images.backends())
    simd = ".post" in PIL.__version__
    assert found["resizing"].startswith("pillow-simd " if simd else "pillow ")
    assert all(line.startswith("    ") for line in lines[len(names) + 1 :])


def test_info_of_the_system_as_json(run: Run) -> None:
    found = json.loads(run("info", "--system", "--json").out)
    assert list(found) == [
        "machine",
        "jpeg_backends",
        "pillow",
        "kernel",
        "nvjpeg",
        "torch",
        "advice",
    ]
    assert found["jpeg_backends"] == shardkit.images.backends()
    assert found["pillow"]["is_simd"] is shardkit.images.is_pillow_simd()
    assert found["pillow"]["version"] == PIL.__version__
    assert isinstance(found["kernel"]["is_available"], bool)
    assert found["torch"]["version"] == torch.__version__
    assert found["torch"]["cuda"] is torch.cuda.is_available()


def test_info_of_tars_made_by_others(packed: Run, tmp_path: Path) -> None:
    packed("convert", "pictures-npy", "wds", "--to", "wds", "--workers", 0)
    (tmp_path / "theirs").mkdir()
    shutil.copy(tmp_path / "wds" / "train-00000.tar", tmp_path / "theirs" / "x-7.tar")
    lines = packed("info", "theirs").out.splitlines()
    assert lines[0] == "theirs: webdataset, packed from tars" and "    cls: class number" in lines
    tar = f"{tmp_path}/theirs/x-7.tar"
    assert lines[-2] == f"    webdataset.WebDataset({tar!r}, shardshuffle=False)"
    checked = "4 samples, SIZE; these tars carry no checksums, only sizes were checked"
    assert packed("verify", "theirs").out == f"theirs: whole ({checked})\n"


def test_what_open_with_says_works(packed: Run, tmp_path: Path) -> None:
    for to in ("npy", "lmdb", "hdf5", "webdataset"):
        packed("convert", "pictures-npy", f"it's {to}", "--to", to, "--workers", 0)
        ours, theirs = shardkit.info(tmp_path / f"it's {to}").open_with
        assert len(eval(ours, {"shardkit": shardkit})) == 36
        library = theirs.partition(".")[0]
        assert eval(theirs, {library: __import__(library)}) is not None


@pytest.mark.parametrize(
    ("labels", "expected"),
    [
        ([], None),
        ([0, 0, 1, 1, 2], True),
        ([1, 1, 2, 2, 0, 0], True),
        ([0, 0, 1, 1, 0], False),
        ([3, 2, 1], True),
        ([2, 3, 1], False),
    ],
)
def test_class_order(labels: list[int], expected: bool | None) -> None:
    assert in_class_order(np.array(labels, np.int64)) is expected


def test_verify_and_unpack(packed: Run, tmp_path: Path) -> None:
    whole = "pictures-npy: whole (36 samples, SIZE"
    assert packed("verify", "pictures-npy") == Ran(0, f"{whole})\n", "")
    against = packed("verify", "pictures-npy", "--against", "pictures")
    assert against == Ran(0, f"{whole}; 36 compared with pictures)\n", "")
    assert packed("unpack", "pictures-npy", "back") == Ran(
        0, "unpacked 36 files (SIZE) into back\n", ""
    )
    assert tree(tmp_path / "back") == tree(tmp_path / "pictures")


def test_verify_of_a_broken_one(packed: Run, tmp_path: Path) -> None:
    path = tmp_path / "pictures-npy" / "train-00002.jpg.npy"
    path.write_bytes(path.read_bytes()[:-1])
    size = path.stat().st_size
    broken = (
        f"BROKEN train-00002.jpg.npy: has {size} bytes, expected {size + 1}; its 4 samples were"
        " not checked\n"
    )
    told = f"{broken}pictures-npy: 1 problem (32 samples, SIZE"
    assert packed("verify", "pictures-npy") == Ran(1, f"{told})\n", "")
    against = packed("verify", "pictures-npy", "--against", "pictures").out
    assert against == f"{told}; not compared with pictures while it is broken)\n"


def test_verify_against_others(packed: Run, tmp_path: Path) -> None:
    write(tmp_path / "pictures" / "class1" / "new.jpg", picture(1))
    (tmp_path / "pictures" / "class2" / "img.000.jpg").unlink()
    assert packed("verify", "pictures-npy", "--against", "pictures") == Ran(
        1,
        "BROKEN sample 'class1/new': is not in the dataset\n"
        "BROKEN sample 'class2/img.000' (row 24, train-00006): has no original in pictures\n"
        "pictures-npy: 2 problems (36 samples, SIZE; 35 compared with pictures)\n",
        "",
    )


def test_verify_against_the_wrong_folder(packed: Run, tmp_path: Path) -> None:
    for i in range(30):
        write(tmp_path / "wrong" / "k" / f"{i:02d}.jpg", picture(i))
    *lines, more, verdict = packed("verify", "pictures-npy", "--against", "wrong").out.splitlines()
    assert lines[0] == (
        "BROKEN wrong: has nothing in common with the dataset: none of its 30 samples is there, and"
        " none of the dataset's 36 is here; give what the dataset was packed from"
    )
    assert lines[1:] == [f"BROKEN sample 'k/{i:02d}': is not in the dataset" for i in range(19)]
    assert more == "and 47 more; --json lists all"
    assert verdict == "pictures-npy: 67 problems (36 samples, SIZE; 0 compared with wrong)"


# --- for machines -------------------------------------------------------------------------


def test_json_holds_what_python_returns(packed: Run, tmp_path: Path) -> None:
    found = json.loads(packed("info", "pictures-npy", "--json").out)
    assert found == dataclasses.asdict(shardkit.info("pictures-npy"))
    for args, made in {
        ("pack", "pictures", "j", "--to", "npy"): shardkit.PackResult,
        ("convert", "pictures-npy", "k", "--to", "lmdb"): shardkit.PackResult,
        ("unpack", "pictures-npy", "u"): UnpackResult,
        ("verify", "pictures-npy"): VerifyResult,
    }.items():
        got = packed(*args, "--json")
        names = [field.name for field in dataclasses.fields(made)]
        assert got.code == 0 and got.err == "" and {*json.loads(got.out)} >= {*names}
    (tmp_path / "pictures-npy" / "train-00001.jpg.npy").unlink()
    got = packed("verify", "pictures-npy", "--json")
    assert got.code == 1
    assert json.loads(got.out)["problems"] == [
        {
            "where": "train-00001.jpg.npy",
            "what": "is missing; its 4 samples were not checked",
            "split": "train",
            "shard": 1,
            "key": "",
        }
    ]


# --- options ------------------------------------------------------------------------------

COMMANDS = {
    "pack": shardkit.pack,
    "merge": shardkit.merge,
    "append": shardkit.append,
    "edit": shardkit.edit,
    "prune": shardkit.prune,
    "convert": shardkit.convert,
    "unpack": shardkit.unpack,
    "verify": shardkit.verify,
    "info": shardkit.info,
    "show": shardkit.show,
    "diff": shardkit.diff,
}


def test_commands() -> None:
    assert {*group.commands} == {*COMMANDS, "bench", "stage", "tune", "doctor", "cache"}


@pytest.mark.parametrize("name", [*COMMANDS, "tune"])
def test_help_says_every_option(run: Run, name: str) -> None:
    got = run(name, "--help")
    assert got.code == 0 and got.err == ""
    assert got.out.startswith(f"Usage: shardkit {name} [OPTIONS] ")
    assert got == run(name, "-h")
    for parameter in group.commands[name].params:
        if isinstance(parameter, click.Option):
            if parameter.hidden:  # it is gone, and refused with what to do instead
                continue
            assert parameter.help
            for flag in parameter.opts:
                assert re.search(rf"^  {flag}[ \n]", got.out, re.MULTILINE), flag
        else:
            assert parameter.human_readable_name in got.out


@pytest.mark.parametrize("name", COMMANDS)
def test_options_are_those_of_python(name: str) -> None:
    """One to one, with the same names and defaults."""
    python = {
        key: parameter.default
        for key, parameter in inspect.signature(COMMANDS[name]).parameters.items()
        if parameter.kind is not parameter.VAR_KEYWORD
    }
    own = {f.name: f.default for f in dataclasses.fields(PackOptions)}
    if name == "pack":
        python |= {key: default for key, default in own.items() if key != "shard_bytes"}
    if name == "convert":
        python |= {key: own[key] for key in OPTIONS}
    # --system is a question of its own: shardkit.measure.machine.system() in Python.
    shared = {"source", "dataset", "parts", "first", "second", "dest", "to", "progress", "as_json"}
    shared |= {"system", "only_estimate", "only_open"}
    shared |= {"names", "classes"}  # of Python objects
    shared |= {"endpoint", "anonymous", "profile", "cache_dir", "cache_bytes"}  # environment
    shared |= {p.name for p in group.commands[name].params if getattr(p, "hidden", False)}
    arguments = ["x", "y"] if name in ("unpack", "merge", "append", "diff") else ["x"]
    required = ["--to", "npy"] if name in ("pack", "convert") else []
    parent = click.Context(group, **group.context_settings)
    context = group.commands[name].make_context(name, [*arguments, *required], parent)
    found = {key: value for key, value in context.params.items() if key not in shared}
    assert found == {key: value for key, value in python.items() if key not in shared}


def test_no_arguments_and_version(run: Run) -> None:
    got = run()
    assert "Usage: shardkit [OPTIONS] COMMAND [ARGS]..." in got.out + got.err
    assert run("--version") == Ran(0, f"shardkit, version {shardkit.__version__}\n", "")


def test_as_a_module() -> None:
    command = [sys.executable, "-m", "shardkit", "--help"]
    done = subprocess.run(command, capture_output=True, text=True, env=ENV, check=True)
    assert done.stdout.startswith("Usage: shardkit [OPTIONS] COMMAND [ARGS]...\n")
    assert all(f"\n  {name} " in done.stdout for name in COMMANDS)


def test_the_help_says_how_to_complete(run: Run) -> None:
    assert '\n    eval "$(_SHARDKIT_COMPLETE=bash_source shardkit)"\n' in run("--help").out


# --- errors -------------------------------------------------------------------------------

FORMATS = "'lmdb', 'hdf5', 'h5', 'webdataset', 'wds', 'tar', 'npy'"

LONG = "n" * 300

ERRORS = {
    ("pack", "pictures", "--to", "zip"): (
        2,
        f"Invalid value for '--to': 'zip' is not one of {FORMATS}; see shardkit pack --help",
    ),
    ("pack",): (2, "Missing argument 'SOURCE'; see shardkit pack --help"),
    ("pack", "pictures", "--to", "npy", "--workers", "many"): (
        2,
        "Invalid value for '--workers': 'many' is not a valid integer; see shardkit pack --help",
    ),
    ("pack", "pictures", "--to", "npy", "--workers", "-1"): (
        2,
        "--workers must be at least 0, got -1",
    ),
    ("pack", "pictures", "--to", "npy", "--compression", "3"): (
        2,
        "--compression is for arrays in hdf5; npy has none",
    ),
    ("pack", "pictures", "--to", "npy", "--shard-size", "big"): (
        2,
        "'big' is no size: write a number and a unit, as in 256MB or 1GiB",
    ),
    ("pack", "none", "--to", "npy"): (2, "none does not exist; give the folder of files to pack"),
    ("pack", "empty", "--to", "npy"): (2, "nothing to pack in empty: it is empty"),
    ("pack", "pictures", "other", "--to", "npy"): (
        2,
        "{here}/other exists and is no shardkit dataset, so nothing in it will be replaced;"
        " choose another destination",
    ),
    ("pack", "pictures", "pictures-npy", "--to", "npy"): (
        2,
        "{here}/pictures-npy already holds a dataset; pass --overwrite to replace it, or choose"
        " another destination",
    ),
    ("pack", "pictures", "pictures/out", "--to", "npy"): (
        2,
        "the destination {here}/pictures/out and the source {here}/pictures overlap; choose a"
        " destination outside the source",
    ),
    ("convert", "pictures-npy", "pictures-npy/x", "--to", "npy"): (
        2,
        "the destination {here}/pictures-npy/x and the source {here}/pictures-npy overlap; choose a"
        " destination outside the source",
    ),
    ("info", "none"): (2, "none is not a shardkit dataset (no such folder)"),
    ("verify", "pictures"): (
        2,
        "pictures is not a shardkit dataset (pack one with `shardkit pack`)",
    ),
    ("unpack", "pictures-npy", "other"): (
        2,
        "other holds file, which is not of this dataset; choose an empty folder",
    ),
    ("unpack", "pictures-npy", "pictures-npy/a/b"): (
        2,
        "pictures-npy/a/b lies in the dataset {here}/pictures-npy; choose another",
    ),
    ("unpack", "pictures-npy", "file/x"): (1, "unpacking into file/x: Not a directory (file/x)"),
    ("info", "file"): (2, "file is not a shardkit dataset (pack one with `shardkit pack`)"),
    ("info", LONG): (1, f"the dataset: {LONG}: File name too long"),
    ("infi",): (2, None),
    ("info", "pictures-npy", "--colour"): (2, None),
    ("info",): (2, "give either a DATASET or --system; see shardkit info --help"),
    ("info", "pictures-npy", "--system"): (
        2,
        "give either a DATASET or --system; see shardkit info --help",
    ),
}


@pytest.mark.parametrize("args", ERRORS, ids=lambda args: " ".join(args)[:60])
def test_errors_are_one_line(packed: Run, tmp_path: Path, args: tuple[str, ...]) -> None:
    write(tmp_path / "file", "x")
    write(tmp_path / "other" / "file", "x")
    (tmp_path / "empty").mkdir()
    before = tree(tmp_path)
    code, said = ERRORS[args]
    got = packed(*args)
    assert (got.code, got.out) == (code, "")
    if said is not None:
        assert got.err == f"shardkit: error: {said.replace('{here}', str(tmp_path))}\n"
    assert got.err.startswith("shardkit: error: ") and got.err.count("\n") == 1
    assert tree(tmp_path) == before


def test_a_bad_input_is_one_line(run: Run, tmp_path: Path) -> None:
    write(tmp_path / "pictures" / "class0" / "two\nlines  .jpg", "no picture")
    got = run("pack", "pictures", "--to", "npy")
    assert got.code == 1 and got.out == ""
    assert got.err.count("\n") == 1 and "lines  .jpg" in got.err


def test_compression_of_nothing_is_said(run: Run, tmp_path: Path) -> None:
    (tmp_path / "arrays").mkdir()
    np.save(tmp_path / "arrays" / "a.npy", np.zeros((64, 2), np.int16))
    compress = ["--to", "hdf5", "--compression", 3, "--workers", 0]
    assert "no effect" not in run("pack", "arrays", *compress).out
    what = "no field holds arrays of one shape with 256 bytes or more each"
    said = f"  compression had no effect: {what}"
    assert said in run("pack", "pictures", *compress).out.splitlines()
    assert said in run("convert", "pictures-hdf5", "x", *compress).out.splitlines()
    assert said[2:] in json.loads(run("pack", "pictures", "y", *compress, "--json").out)["notes"]


# --- states of a destination --------------------------------------------------------------


def test_overwrite_removes_what_is_ours_alone(packed: Run, tmp_path: Path) -> None:
    dest = tmp_path / "pictures-npy"
    write(dest / "README", "mine")
    write(dest / "train-00000.notes.txt", "mine")
    write(dest / "sub" / "train-00000.jpg.npy", "mine")
    mine = {"README", "train-00000.notes.txt", "sub/train-00000.jpg.npy"}
    got = packed("pack", "pictures", dest, "--to", "lmdb", "--overwrite", "--workers", 0)
    assert got.code == 0
    ours = {f"train.{kind}" for kind in ("rows", "names", "find", "sums")}
    assert tree(dest).keys() == mine | ours | {"shardkit.json", "train-00000.lmdb", "data.mdb"}
    assert all(tree(dest)[name] == b"mine" for name in mine)


# --- names of all kinds -------------------------------------------------------------------


@pytest.mark.thorough
def test_names_that_are_no_text(run: Run, tmp_path: Path) -> None:
    """Other bytes than UTF-8, control characters: printed escaped, in whatever encoding."""
    source = tmp_path / "odd \udcff\x1b[2J"
    write(source / "two\nlines" / "a.jpg", picture(1))
    write(source / "\udcfe" / "b.jpg", picture(2))
    write(source / "\u65e5\u672c" / "c.jpg", picture(3))
    write(source / "\x1b]0;title" / "d.jpg", picture(4))
    dest = tmp_path / "dest \udcff\x07"
    for args in (
        ["pack", source, dest, "--to", "npy", "--workers", "0"],
        ["info", dest],
        ["verify", dest, "--against", source],
        ["unpack", dest, tmp_path / "back \udcff"],
        ["info", dest, "--json"],
        ["info", tmp_path / "none \udcff\n"],
    ):
        command = [sys.executable, "-m", "shardkit", *map(os.fspath, args)]
        env = {**ENV, "PYTHONIOENCODING": "latin-1"}
        done = subprocess.run(command, capture_output=True, env=env)
        assert done.returncode == (2 if "none" in str(args[1]) else 0), done.stderr
        assert b"Traceback" not in done.stderr and done.stderr.count(b"\n") <= 1
        assert done.stdout.isascii() and not set(done.stdout) & {0x1B, 0x07, 0x0D}
    assert tree(tmp_path / "back \udcff") == tree(source)


# --- terminals and pipes ------------------------------------------------------------------


def on_a_terminal(*args: object) -> str:
    """What a command shows on a terminal of 100 columns."""
    ours, theirs = pty.openpty()
    termios.tcsetwinsize(theirs, (25, 100))
    command = [sys.executable, "-m", "shardkit", *map(str, args)]
    env = {**ENV, "TERM": "xterm"}
    process = subprocess.Popen(command, stdin=theirs, stdout=theirs, stderr=theirs, env=env)
    os.close(theirs)
    shown = b""
    try:
        while piece := os.read(ours, 65536):
            shown += piece
    except OSError as error:
        if error.errno != errno.EIO:  # how Linux says that the other end is closed
            raise
    finally:
        os.close(ours)
    assert process.wait() == 0
    return shown.decode()


BAR = r"{what}: 100%\|.*\| 36\.0/36\.0 \[\d\d:\d\d<\d\d:\d\d, .* samples/s, .*B/s\]"


@pytest.mark.thorough
def test_a_bar_on_a_terminal(packed: Run, tmp_path: Path) -> None:
    for what, args in {
        "packing": ["pack", "pictures", "p", "--to", "npy", "--workers", 0],
        "verifying": ["verify", "pictures-npy"],
        "comparing": ["verify", "pictures-npy", "--against", "pictures"],
        "unpacking": ["unpack", "pictures-npy", "u"],
    }.items():
        assert re.search(BAR.format(what=what), on_a_terminal(*args)), what


def test_a_bar_with_workers_gets_to_the_end(run: Run) -> None:
    options = ["--to", "npy", "--workers", 2, "--shard-size", "3kB"]
    shown = on_a_terminal("pack", "pictures", "p", *options)
    assert re.search(BAR.format(what="packing"), shown), shown


def test_no_bar_with_json(packed: Run) -> None:
    shown = on_a_terminal("verify", "pictures-npy", "--json")
    assert json.loads(shown)["ok"] is True


def test_nothing_but_the_result_on_a_pipe(packed: Run, tmp_path: Path) -> None:
    for args in (
        ["pack", "pictures", "p", "--to", "npy", "--workers", "0"],
        ["verify", "p", "--against", "pictures"],
        ["unpack", "p", "u"],
    ):
        command = [sys.executable, "-m", "shardkit", *args]
        done = subprocess.run(command, capture_output=True, text=True, env=ENV, check=True)
        assert done.stderr == "" and "\r" not in done.stdout and "samples/s]" not in done.stdout


def test_a_pipe_that_is_closed(packed: Run) -> None:
    command = [sys.executable, "-m", "shardkit", "info", "pictures-npy"]
    reader, writer = os.pipe()
    os.close(reader)
    done = subprocess.run(command, stdout=writer, stderr=subprocess.PIPE, env=ENV)
    os.close(writer)
    assert done.returncode == 1 and done.stderr == b""


def test_a_full_disk_while_unpacking(packed: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(*args: object) -> int:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr("shardkit.operations.unpack.write_full", full)
    assert packed("unpack", "pictures-npy", "x") == Ran(
        1,
        "",
        "shardkit: error: unpacking into x: the disk is full; free some space and run the same"
        " command again\n",
    )


@pytest.mark.parametrize("args", [["info"], ["verify"], ["info", "--json"]], ids=" ".join)
def test_a_full_disk_under_the_output(packed: Run, args: list[str]) -> None:
    command = [sys.executable, "-m", "shardkit", args[0], "pictures-npy", *args[1:]]
    with open("/dev/full", "wb") as full:
        done = subprocess.run(command, stdout=full, stderr=subprocess.PIPE, env=ENV)
    assert done.returncode == 1
    assert done.stderr == (b"shardkit: error: cannot write the output: No space left on device\n")


INTERRUPTED = {
    "pack": "what is done is kept, run the same command again to go on",
    "convert": "what is done is kept, run the same command again to go on",
    "unpack": "what is done is kept, run the same command again to go on",
    "verify": "nothing was changed",
}


@pytest.mark.parametrize("name", INTERRUPTED)
def test_ctrl_c_says_how_to_go_on(packed: Run, name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    def interrupt(*args: object, **options: object) -> None:
        raise KeyboardInterrupt

    home = sys.modules[COMMANDS[name].__module__]
    monkeypatch.setattr(home, name, interrupt)
    args = {"pack": ["--to", "npy"], "convert": ["--to", "npy"], "unpack": [], "verify": []}
    dest = [] if name == "verify" else ["x"]
    got = packed(name, "pictures-npy", *dest, *args[name])
    said = f"\nshardkit: error: interrupted; {INTERRUPTED[name]}\n"
    assert got == Ran(130, "", said)


# --- errors name options as they are typed ------------------------------------------------

PACK = options_of(group.commands["pack"])


@pytest.mark.parametrize(
    ("said", "expected"),
    [
        ("workers must be at least 0, got -1", "--workers must be at least 0, got -1"),
        (
            "pass either tokenizer or train_tokenizer",
            "pass either --tokenizer or --train-tokenizer",
        ),
        (
            "pass resize, crop, or image_format jpeg",
            "pass --resize, --crop, or --image-format jpeg",
        ),
        ("other options: limit was 3, now 4; use", "other options: --limit was 3, now 4; use"),
        # Words that are no options.
        ("x has several columns of strings; pass --text-field", None),
        ("x already holds a dataset; pass --overwrite to replace it, or choose another", None),
        ("nothing to pack in x: it is empty", None),
        ("tokenizer x: no such file or folder", None),
        ("/data/shuffle/to exists and is no folder; choose another destination", None),
    ],
)
def test_names(said: str, expected: str | None) -> None:
    assert with_options(said, PACK) == (said if expected is None else expected)


def test_of_no_options_nothing_is_named() -> None:
    assert with_options("to is missing: pass max_rejects", {}) == "to is missing: pass max_rejects"


@pytest.mark.parametrize(
    ("words", "said"),
    [
        ("pack pictures", "--to is missing: choose a format, one of lmdb, hdf5, webdataset, npy"),
        (
            "pack pictures --to npy --resize 0",
            "--resize is a number of pixels from 1 to 65535, got",
        ),
        ("pack pictures --to npy --max-rejects 3", "--max-rejects is a share from 0 to 1, got 3.0"),
        ("pack pictures --to npy --dali-index", "--dali-index is of the tars of webdataset; npy"),
        ("pack pictures --to npy --bos x", "--bos is of tokens: pass --tokenizer or --train-token"),
        ("pack pictures --to npy --limit 0", "--limit must be at least 1, got 0"),
        ("show d --num 0", "--num must be at least 1, got 0"),
        ("show d --num 1 --rows 1", "give either --rows or --num: those samples, or so many"),
        ("convert d --eos 3 --to npy", "--eos is for files of token ids; d is none"),
        ("convert d --crop 8 --to parquet", "--crop is for datasets; parquet files are written as"),
        ("convert d", "Missing option '--to'. Choose from: lmdb, hdf5, h5, webdataset, wds, tar,"),
        ("convert d --to zip", "Invalid value for '--to': 'zip' is not one of 'lmdb', 'hdf5',"),
        ("bench d --batch-size 0", "--batch-size must be at least 1, got 0"),
    ],
)
def test_on_the_command_line(words: str, said: str, run: Run) -> None:
    assert run("pack", "pictures", "d", "--to", "npy", "--workers", 0).code == 0
    got = run(*words.split())
    assert got.code == 2 and got.out == "" and got.err.count("\n") == 1
    assert got.err.startswith(f"shardkit: error: {said}"), got.err
