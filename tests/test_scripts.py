"""The scripts, the Makefile and what CI runs."""

from __future__ import annotations

import io
import json
import os
import re
import runpy
import shutil
import subprocess
import sys
from collections.abc import Callable, Iterator
from importlib import import_module
from pathlib import Path
from typing import Any
from unittest import mock

import jobs
import pytest
import torch
from conftest import CONTAINERS, pytest_runtest_setup, thorough, tree
from dying import end_of, forked
from PIL import Image

Bench = Callable[..., Any]

ROOT = Path(__file__).parent.parent
SCRIPTS = ROOT / "scripts"


def run_script(name: str, *args: object, check: bool = True) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, str(SCRIPTS / name), *map(str, args)]
    env = {**os.environ, "PYTHONPATH": str(ROOT)}  # this checkout, installed or not
    done = subprocess.run(command, capture_output=True, text=True, env=env)
    assert not check or done.returncode == 0, done.stdout + done.stderr
    return done


# --- make_pictures ------------------------------------------------------------------------


@pytest.fixture(scope="module")
def pictures(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("pictures")
    run_script("tools/make_pictures.py", folder, "--count", 50, "--classes", 10, "--size", 48)
    return folder


def test_pictures_are_jpegs_in_equal_class_folders(pictures: Path) -> None:
    files = tree(pictures)
    assert len(files) == 50
    folders = [name.partition("/")[0] for name in files]
    assert {name: folders.count(name) for name in folders} == {
        f"class{k:02d}": 5 for k in range(10)
    }
    for data in files.values():
        image = Image.open(io.BytesIO(data))
        assert (image.format, image.mode, image.size) == ("JPEG", "RGB", (48, 48))


def test_the_same_seed_makes_the_same_pictures(pictures: Path, tmp_path: Path) -> None:
    options = ["--count", 50, "--classes", 10, "--size", 48]
    run_script("tools/make_pictures.py", tmp_path / "same", *options)
    run_script("tools/make_pictures.py", tmp_path / "other", *options, "--seed", 1)
    assert tree(tmp_path / "same") == tree(pictures)
    other = tree(tmp_path / "other")
    assert other.keys() == tree(pictures).keys()
    assert not set(other.values()) & set(tree(pictures).values())


def test_more_classes_than_pictures_are_refused(tmp_path: Path) -> None:
    done = run_script("tools/make_pictures.py", tmp_path, "--count", 3, "--classes", 4, check=False)
    assert done.returncode == 1
    assert "cannot make 3 pictures of 4 classes" in done.stderr
    assert tree(tmp_path) == {}


# --- demo ---------------------------------------------------------------------------------


def demonstrate(*options: object) -> None:
    """The demo, whose commands are forked from it: they import nothing anew."""
    sys.path.insert(0, str(SCRIPTS))
    sys.argv = ["demo.py", *map(str, options)]
    demo = import_module("demo")
    demo.run_indented = run_forked
    demo.main()


def run_forked(command: list[str], **env: str) -> None:
    python, *words = command
    assert python == sys.executable

    def work() -> None:
        os.environ.update(env)
        if words[0] == "-m":
            sys.argv = words[1:]
            runpy.run_module(words[1], run_name="__main__", alter_sys=True)
        else:
            jobs.run_script(Path(words[0]), *words[1:])

    sys.stdout.flush()  # which it would print, too
    assert end_of(forked(work)) == 0


@pytest.mark.thorough
def test_demo_packs_verifies_and_compares(tmp_path: Path) -> None:
    folder = tmp_path / "demo"
    out = jobs.on_ranks(1, demonstrate, "--folder", folder, "--count", 100, "--text", 100_000)
    for to in CONTAINERS:
        assert f"$ shardkit pack {folder}/pictures {folder}/pictures-{to} --to {to}" in out
        assert f"{folder}/pictures-{to}: whole" in out
        assert (folder / f"pictures-{to}" / "shardkit.json").is_file()
    assert "All five hold the same 100 pictures and labels" in out
    table = [line.split() for line in out.splitlines() if " MB" in line and " x " in line]
    assert {row[0] for row in table} == set(CONTAINERS)
    trained = re.findall(r"epoch \d step (\d): loss [\d.]+, [\d,]+ pictures/s, waited [\d.]+%", out)
    assert trained == [*"123456"]
    assert f"$ shardkit show {folder}/text-npy --num 1" in out
    assert " windows of 128 tokens each" in out and "inputs: (64, 128) torch.int64" in out
    assert "Done." in out


def test_demo_starts_afresh_in_its_own_folder(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.syspath_prepend(str(SCRIPTS))
    demo = import_module("demo")
    demo.start_afresh(tmp_path / "demo")
    made = tree(tmp_path / "demo")
    (tmp_path / "demo" / "pictures").mkdir()
    demo.start_afresh(tmp_path / "demo")
    assert tree(tmp_path / "demo") == made == {demo.MARKER: b""}
    assert not (tmp_path / "demo" / "pictures").exists()


def test_demo_leaves_a_strangers_folder_alone(tmp_path: Path) -> None:
    (tmp_path / "thesis.tex").write_text("years of work")
    done = run_script("demo.py", "--folder", tmp_path, check=False)
    assert done.returncode == 1
    assert "was not made by this demo" in done.stderr
    assert tree(tmp_path) == {"thesis.tex": b"years of work"}


# --- bench --------------------------------------------------------------------------------


@pytest.fixture
def bench(monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]) -> Iterator[Bench]:
    """Runs a benchmark as a person does, but in this process, which has imported torch already.
    What it sets in the environment, such as how libraries use threads, ends with the test."""

    def run(name: str, *args: object) -> Any:
        path = SCRIPTS / "benchmarks" / name
        monkeypatch.syspath_prepend(str(path.parent))
        monkeypatch.setattr(sys, "argv", [str(path), *map(str, args)])
        runpy.run_path(str(path), run_name="__main__")
        return capfd.readouterr()

    with mock.patch.dict(os.environ):
        yield run


READS = ["small-warm", "small-cold", "pictures-warm", "pictures-cold"]
SECTIONS = {
    "bench_pack_read.py": ["pack-small", "pack-large", "read-small", "read-large", "cold"],
    "bench_feed.py": ["decode", "overhead", "wait", "cold"],
    "bench_images.py": ["decode-crop", "packed-smaller", "small-pictures", "raw-pictures"],
    "bench_tokens.py": ["pack-text", "read-windows"],
    "bench_claims.py": [*READS, "settings", "settings-cold", "with-a-step", "short-epochs"],
}
REFERENCES = {
    "pack-small": "tar cf",
    "pack-large": "cp -r",
    "cold": "folder",
    "overhead": "read and collate",
    "read-windows": "bare loop",
}
"""What some sections compare with."""


@pytest.mark.skipif(not shutil.which("tar"), reason="a bench compares with tar")
@pytest.mark.parametrize(
    "program", ["bench_feed.py", *thorough(*(SECTIONS.keys() - {"bench_feed.py"}))]
)
def test_a_bench_runs_every_section(
    program: str, bench: Bench, pictures: Path, tmp_path: Path
) -> None:
    report, data = tmp_path / "report.json", tmp_path / "data"
    options = ["--quick", "--workdir", data, "--json", report]
    if program not in ("bench_pack_read.py", "bench_tokens.py"):
        options += ["--jpegs", pictures]
    if program == "bench_images.py":
        options += ["--peer", sys.executable]
    done = bench(program, *options)
    found = json.loads(report.read_text())
    assert found["machine"]["cores"] >= 1 and list(found["sections"]) == SECTIONS[program]
    for name, rows in found["sections"].items():
        assert f"\n{name}: " in done.out
        assert all(row["median_s"] > 0 and row["rounds"] == 1 for row in rows)
        # Not all need be "warm": some kernels take idle pages back, and the row says so.
        if name.startswith("read") or name.endswith("warm"):
            assert "cold" not in {row["cache"] for row in rows}
        if name in REFERENCES and (program, name) != ("bench_feed.py", "cold"):
            assert {row["reference"] for row in rows} == {None, REFERENCES[name]}
    assert "target" not in done.out and done.err == ""
    assert not {"packed", "cold"} & {path.name for path in data.iterdir()}


def test_bench_takes_the_users_jpegs(pictures: Path, tmp_path: Path) -> None:
    (pictures / "class00" / "not-a.jpg").write_text("no JPEG")
    data = tmp_path / "data"
    try:
        options = ["--quick", "--only", "read-large", "--workdir", data]
        run_script("benchmarks/bench_pack_read.py", *options, "--jpegs", pictures)
    finally:
        (pictures / "class00" / "not-a.jpg").unlink()
    used = set(tree(data / "large").values())
    assert used <= set(tree(pictures).values())
    assert len(tree(data / "large")) == 40


@pytest.mark.parametrize("change", ["pixels", "label"])
def test_bench_claims_notices_other_pictures(change: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(str(SCRIPTS / "benchmarks"))
    settings = import_module("bench_claims_settings")
    pixels, labels = torch.arange(24).reshape(2, 2, 2, 3), torch.tensor([0, 1])
    turned = [(pixels.flip(0), labels.flip(0))]  # another order is no other picture
    first = {"first": lambda persistent: [(pixels, labels)]}
    settings.check_pixels({**first, "turned": lambda persistent: turned})
    other = (pixels + 1, labels) if change == "pixels" else (pixels, labels.flip(0))
    with pytest.raises(SystemExit, match="other does not return the pictures of first"):
        settings.check_pixels({**first, "other": lambda persistent: [other]})


def test_find_text_collects_what_is_text(tmp_path: Path) -> None:
    out = run_script("tools/find_text.py", tmp_path / "text", "--megabytes", 0.5).stdout
    found = tree(tmp_path / "text")
    assert out == f"{len(found)} files in {tmp_path}/text\n"
    assert len(found) > 10 and 500_000 <= sum(map(len, found.values())) < 900_000
    assert all(data.decode() and name.endswith(".txt") for name, data in found.items())
    again = run_script("tools/find_text.py", tmp_path / "text", check=False)
    assert again.returncode == 1 and "exists; choose another" in again.stderr


def test_bench_programs_share_a_report_and_the_names_of_sections(
    bench: Bench, tmp_path: Path
) -> None:
    report = tmp_path / "report.json"
    options = ["--quick", "--workdir", tmp_path / "data", "--json", report]
    bench("bench_pack_read.py", *options, "--only", "read-small", "overhead")
    bench("bench_feed.py", *options, "--only", "read-small", "overhead")
    assert list(json.loads(report.read_text())["sections"]) == ["read-small", "overhead"]
    out = bench("bench_feed.py", *options, "--only", "read-small").out
    assert "No section of this program is chosen" in out


# --- check_tune ---------------------------------------------------------------------------


@pytest.mark.thorough
def test_check_tune_times_the_choice_beside_the_grid(bench: Bench, tmp_path: Path) -> None:
    done = bench("check_tune.py", "--quick", "--only", "raw-small", "--workdir", tmp_path)
    section = done.out.partition("raw-small: ")[2].splitlines()
    assert section[1].split()[:2] == ["cache", "samples/s"]
    assert any(re.match(r"no worker|\d (thread|process)", line) for line in section[2:])
    (whole,) = (line for line in section if line.startswith("the choice, a whole epoch "))
    assert whole.endswith("what the trials reckon with is 1.00")
    assert done.err == ""


# --- soak ---------------------------------------------------------------------------------


@pytest.mark.thorough
@pytest.mark.skipif(sys.platform != "linux", reason="reads /proc")
def test_soak_says_what_is_held() -> None:
    done = run_script("tools/soak.py", 0.02, "--every", 0.5)
    lines = done.stdout.splitlines()
    assert lines[-1] == "nothing grew"
    assert done.stderr == ""
    assert sum(" threads " in line and " children" in line for line in lines) >= 3


@pytest.mark.skipif(sys.platform != "linux", reason="reads /proc")
def test_soak_notices_growth(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(str(SCRIPTS / "tools"))
    soak = import_module("soak")
    held = [soak.Held(i, (100 + 5 * i) << 20, i << 30, 0, 3, 9 + i // 6, 0) for i in range(12)]
    grown = soak.growth(held, ["rss", "own", "threads", "files", "children"])
    assert [words.partition(" ")[0] for words in grown] == ["rss", "files"]
    assert soak.growth(held[:2], ["rss"]) == []


# --- system packages, make, CI ------------------------------------------------------------


def run_sh(tools: Path, *args: str, **env: str) -> subprocess.CompletedProcess[str]:
    """Run the check where only the programs in ``tools`` are to be found."""
    command = ["/bin/sh", str(SCRIPTS / "system_packages.sh"), *args]
    env = {"PATH": str(tools), **env}
    return subprocess.run(command, capture_output=True, text=True, env=env)


@pytest.fixture
def bare(tmp_path: Path) -> Path:
    """A folder of programs with nothing but Python in it."""
    tools = tmp_path / "bin"
    tools.mkdir()
    (tools / "python3").symlink_to(sys.executable)
    return tools


def test_missing_system_packages_are_named_with_the_apt_line(bare: Path) -> None:
    done = run_sh(bare, "build", "test")
    assert done.returncode == 1
    line = next(line for line in done.stderr.splitlines() if "apt-get install" in line)
    assert {"gcc", "lmdb-utils", "hdf5-tools", "chromium"} <= set(line.split())
    assert "a C compiler" in done.stderr
    assert done.stdout == ""


def test_missing_headers_are_found_by_the_compiler(bare: Path) -> None:
    cc = bare / "cc"
    cc.write_text(
        "#!/bin/sh\nwhile read -r line; do case $line in *jpeglib*) exit 1;; esac; done\n"
    )
    cc.chmod(0o755)
    done = run_sh(bare, "--list", "build")
    assert done.returncode == 0
    packages = done.stdout.split()
    assert "libjpeg-dev" in packages
    assert not {"gcc", "zlib1g-dev"} & set(packages)


def test_an_old_python_is_refused(bare: Path) -> None:
    old = bare / "python3.9"
    old.write_text('#!/bin/sh\n[ "$1" = --version ] && echo "Python 3.9.2"\nexit 1\n')
    old.chmod(0o755)
    done = run_sh(bare, "build", PYTHON="python3.9")
    assert done.returncode == 1
    assert "needs Python 3.11 or newer; Python 3.9.2 is older" in done.stderr


@pytest.mark.parametrize("ci", ["", "true"])
def test_a_missing_program_skips_its_test_and_fails_it_in_ci(
    request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch, ci: str
) -> None:
    monkeypatch.setenv("CI", ci)
    request.node.add_marker(pytest.mark.needs_program("no-such-program", "its-package"))
    outcome = pytest.fail.Exception if ci else pytest.skip.Exception
    with pytest.raises(outcome, match="needs no-such-program: apt-get install its-package"):
        pytest_runtest_setup(request.node)


def test_ci_runs_the_readmes_test_commands() -> None:
    script = ROOT / ".ci" / "run"
    assert os.access(script, os.X_OK)
    assert subprocess.run(["bash", "-n", script]).returncode == 0
    lines = script.read_text().splitlines()
    assert lines[0] == "#!/usr/bin/env bash"
    assert "set -euo pipefail" in lines
    made = [line.removeprefix("make ") for line in lines if line.startswith("make ")]
    tests = ["test-all", "test-dali", "test-open", "test-clouds", "test-floors"]
    assert made == ["check", *tests, "wheel"]
