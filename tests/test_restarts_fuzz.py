"""The rewriter of JPEGs fed with damaged files, under the sanitizers."""

from __future__ import annotations

import os
import random
import re
import shutil
import subprocess
from pathlib import Path

import pytest
from test_kernel_fuzz import TRIAL, compile_c, seeds

DRIVER = Path(__file__).parent / "restarts_fuzz.c"
SECONDS = 6


@pytest.fixture(scope="module")
def driver(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The rewriter and what feeds it, compiled. Only a compiler that lacks something skips."""
    if not shutil.which("cc"):
        pytest.skip("no C compiler")
    folder = tmp_path_factory.mktemp("driver")
    trial = folder / "trial.c"
    trial.write_text(TRIAL)
    done = compile_c(trial, folder / "trial")
    if done.returncode or subprocess.run([folder / "trial"]).returncode:
        pytest.skip(f"no sanitizers or no libjpeg: {done.stderr.strip()[-200:]}")
    done = compile_c(DRIVER, folder / "restarts_fuzz", "-Wall", "-Wextra", "-Werror")
    assert done.returncode == 0, done.stderr
    return folder / "restarts_fuzz"


def test_mutated_pictures_do_no_harm(driver: Path, tmp_path: Path) -> None:
    seed = random.randrange(1 << 32)
    command = [driver, str(SECONDS), str(seed), *seeds(tmp_path)]
    env = {**os.environ, "ASAN_OPTIONS": "malloc_fill_byte=255:max_malloc_fill_size=1000000"}
    done = subprocess.run(command, capture_output=True, text=True, cwd=tmp_path, env=env)
    assert done.returncode == 0, f"seed {seed}\n{done.stderr[-5000:]}"
    found = dict(re.findall(r"(\S+) (\d+)", done.stdout))
    print(done.stdout)
    assert int(found["undone"]) > 1000, "too little of it was rewritten"
    assert min(int(found[name]) for name in found) > 0
