"""formats.md: its snippets run as they stand, without shardkit."""

from __future__ import annotations

import gc
import re
import subprocess
import sys
import warnings
from pathlib import Path
from typing import Any

import pytest

from shardkit.formats import FORMATS
from shardkit.sample import Value

TEXT = (Path(__file__).parents[1] / "formats.md").read_text()
SECTIONS = re.findall(r"^## (\w+)\n(.*?)(?=^## )", TEXT, re.MULTILINE | re.DOTALL)
SNIPPETS = [
    (name, code)
    for name, text in SECTIONS
    for code in re.findall(r"^```python\n(.*?)^```$", text, re.MULTILINE | re.DOTALL)
]

KEYS = [b"cat/IMG.%d" % i for i in range(6)]
COLUMNS: dict[str, list[Value | None]] = {
    "cls": [b"%d" % (i % 4) for i in range(6)],
    "jpg": [bytes([255, 216, i]) * (i * 500) for i in range(6)],
    "txt": [b"a caption" if i % 3 else None for i in range(6)],
}


@pytest.fixture
def datasets(tmp_path: Path) -> Path:
    for name, made in FORMATS.items():
        folder = tmp_path / f"pictures-{name}"
        folder.mkdir()
        made.write(folder, "train-00000", KEYS, COLUMNS, None)
    return tmp_path


def test_every_format_has_a_section_and_a_snippet() -> None:
    assert [name for name, _ in SNIPPETS] == list(FORMATS)


@pytest.mark.parametrize(("name", "code"), SNIPPETS)
def test_snippet(name: str, code: str, datasets: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(datasets)
    scope: dict[str, Any] = {}
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", ResourceWarning)  # webdataset leaves its tars open
        exec(compile(code, f"formats.md ({name})", "exec"), scope)
        gc.collect()
    assert "shardkit" not in code.replace("pictures", "")
    assert bytes(scope["key"]) == KEYS[3]
    assert bytes(scope["picture"]) == COLUMNS["jpg"][3]
    assert scope["label"] == 3


def test_snippets_need_no_shardkit(datasets: Path) -> None:
    """In an interpreter of their own, in a folder without it."""
    code = "".join(code for name, code in SNIPPETS if name != "webdataset")  # that imports torch
    code += "import sys; assert 'shardkit' not in sys.modules"
    said = subprocess.check_output(
        [sys.executable, "-c", code], cwd=datasets, text=True, timeout=60
    )
    assert said == "b'cat/IMG.3' 3 4500\n" * 3
