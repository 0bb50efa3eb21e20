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
from conftest import write
from text_data import expected_ids, make_tokenizer

import shardkit
from shardkit.formats import FORMATS
from shardkit.samples.sample import Value
from shardkit.tokens.spec import TokenizerSpec

TEXT = (Path(__file__).parents[1] / "formats.md").read_text()
SECTIONS = re.findall(r"^## (\w+)\n(.*?)(?=^## )", TEXT, re.MULTILINE | re.DOTALL)
SNIPPETS = [
    (name, code)
    for name, text in SECTIONS
    for code in re.findall(r"^```python\n(.*?)^```$", text, re.MULTILINE | re.DOTALL)
]
OF_PICTURES = [(name, code) for name, code in SNIPPETS if name != "Tokens"]
OF_TOKENS = [code for name, code in SNIPPETS if name == "Tokens"]

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
    assert [name for name, _ in OF_PICTURES] == list(FORMATS)


@pytest.mark.parametrize(("name", "code"), OF_PICTURES)
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
    code = "".join(code for name, code in OF_PICTURES if name != "webdataset")  # imports torch
    code += "import sys; assert 'shardkit' not in sys.modules"
    said = subprocess.check_output(
        [sys.executable, "-c", code], cwd=datasets, text=True, timeout=60
    )
    assert said == "b'cat/IMG.3' 3 4500\n" * 3


def test_snippets_of_tokens(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    tokenizer = make_tokenizer(tmp_path / "t.json")
    for i in range(6):
        write(tmp_path / "in" / f"{i}.txt", f"document {i}: caf\u00e9")
    for name in FORMATS:
        dest = "texts" if name == "npy" else f"texts-{name}"
        shardkit.pack("in", dest, to=name, tokenizer=tokenizer, workers=0)
    reading, others = OF_TOKENS
    scope: dict[str, Any] = {}
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", ResourceWarning)
        exec(compile(reading + others, "formats.md (Tokens)", "exec"), scope)
        gc.collect()
    assert scope["text"] == "document 3: caf\u00e9"
    expected = [*expected_ids(tokenizer, scope["text"]), 0]
    for name in ("ids", "from_hdf5", "from_lmdb", "from_webdataset"):
        assert scope[name].tolist() == expected and scope[name].dtype == "<u2"


def test_the_table_of_tokens_names_all_entries() -> None:
    (text,) = [text for name, text in SECTIONS if name == "Tokens"]
    rows = re.findall(r"^\| (`.*?) \|", text, re.MULTILINE)
    named = {name for row in rows for name in re.findall(r"`(\w+)`", row)}
    assert named == TokenizerSpec(vocab_size=1, dtype="|u1").to_json().keys()
