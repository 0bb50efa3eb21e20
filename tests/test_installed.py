"""What is installed is what is imported, wherever Python is started."""

from __future__ import annotations

import os
import subprocess
import sys
from importlib import metadata
from pathlib import Path

import pytest


def test_from_the_folder_that_a_clone_lies_in(tmp_path: Path) -> None:
    """There, a folder ``shardkit`` without ``__init__.py`` is found before what is installed, and
    would do for a package, an empty one, if the package itself were not on the path after it."""
    try:
        metadata.version("shardkit")
    except metadata.PackageNotFoundError:
        pytest.skip("shardkit is on the path, not installed")
    (tmp_path / "shardkit" / "shardkit").mkdir(parents=True)
    env = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}
    run = [sys.executable, "-c", "import shardkit; print(shardkit.__version__, shardkit.__file__)"]
    done = subprocess.run(run, cwd=tmp_path, env=env, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    version, file = done.stdout.split(maxsplit=1)
    assert version == metadata.version("shardkit") and str(tmp_path) not in file
