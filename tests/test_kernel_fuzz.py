"""The compiled kernel fed with damaged files, under the address, leak and undefined sanitizers."""

from __future__ import annotations

import os
import random
import re
import shutil
import subprocess
from pathlib import Path

import pytest
from jpegs import LAYOUTS, jpeg, three_scans, without_segment
from test_kernel_faults import saved
from test_kernel_scan import with_restarts

DRIVER = Path(__file__).parent / "kernel_fuzz.c"
SECONDS = 6
FLAGS = ["-g", "-O1", "-fsanitize=address,undefined", "-fno-sanitize-recover=all"]
LIBRARIES = ["-ljpeg", "-lpthread", "-lm"]
TRIAL = """
#include <stdio.h>
#include <jpeglib.h>
int main(void) { struct jpeg_error_mgr errors; return !jpeg_std_error(&errors); }
"""


def compile_c(source: Path, program: Path, *flags: str) -> subprocess.CompletedProcess[str]:
    command = ["cc", *FLAGS, *flags, str(source), "-o", str(program), *LIBRARIES]
    return subprocess.run(command, capture_output=True, text=True)


def compiled_driver(source: Path, folder: Path) -> Path:
    """What feeds compiled code, and that code. Only a compiler that lacks something skips."""
    if not shutil.which("cc"):
        pytest.skip("no C compiler")
    trial = folder / "trial.c"
    trial.write_text(TRIAL)
    done = compile_c(trial, folder / "trial")
    if done.returncode or subprocess.run([folder / "trial"]).returncode:
        pytest.skip(f"no sanitizers or no libjpeg: {done.stderr.strip()[-200:]}")
    done = compile_c(source, folder / source.stem, "-Wall", "-Wextra", "-Werror")
    assert done.returncode == 0, done.stderr
    return folder / source.stem


def seeds(folder: Path) -> list[Path]:
    """Files to mutate: all layouts in several sizes, and some odd ones."""
    shapes = [(1, 1), (17, 9), (40, 56), (130, 33)]
    files = [jpeg(*shape, layout) for shape in shapes for layout in LAYOUTS]
    files += [saved("CMYK"), three_scans(jpeg(50, 40, "grey"))]
    files += [with_restarts(97, 80, mcus, subsampling=mcus % 3) for mcus in (1, 2, 3, 5, 8)]
    files += [with_restarts(130, 60, 4, mode="L", optimize=True)]
    files += [without_segment(jpeg(40, 40), marker) for marker in (0xDB, 0xC4, 0xC0)]
    paths = [folder / f"{number:03d}.jpg" for number in range(len(files))]
    for path, data in zip(paths, files, strict=True):
        path.write_bytes(data)
    return paths


def fuzzed(source: Path, folder: Path) -> dict[str, int]:
    """What a driver has counted, fed with mutants for :data:`SECONDS`."""
    seed = random.randrange(1 << 32)
    command = [compiled_driver(source, folder), str(SECONDS), str(seed), *seeds(folder)]
    options = {
        # Fresh memory full of NaN: where a value of it is used, pixels tell.
        "ASAN_OPTIONS": "malloc_fill_byte=255:max_malloc_fill_size=1000000",
        "UBSAN_OPTIONS": "print_stacktrace=1",
    }
    env = {**os.environ, **options}
    done = subprocess.run(command, capture_output=True, text=True, cwd=folder, env=env)
    assert done.returncode == 0, f"seed {seed}\n{done.stderr[-5000:]}"
    print(done.stdout)
    return {name: int(count) for name, count in re.findall(r"(\S+) (\d+)", done.stdout)}


@pytest.mark.thorough
def test_mutated_pictures_do_no_harm(tmp_path: Path) -> None:
    found = fuzzed(DRIVER, tmp_path)
    assert found["ok"] > 1000 < found["broken"], "too little of it was decoded"
    assert min(found[name] for name in ("elsewhere", "too-large", "bad-box", "more")) > 0


# --- the rewriter of JPEGs ----------------------------------------------------------------


@pytest.mark.thorough
def test_mutated_pictures_are_rewritten_without_harm(tmp_path: Path) -> None:
    found = fuzzed(Path(__file__).parent / "restarts_fuzz.c", tmp_path)
    assert found["undone"] > 1000, "too little of it was rewritten"
    assert min(found.values()) > 0
