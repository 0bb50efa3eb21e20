"""The README's commands and code run as they stand there."""

from __future__ import annotations

import os
import re
import shlex
import shutil
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path

import pytest
from conftest import make_images, write

ROOT = Path(__file__).parent.parent
README = (ROOT / "README.md").read_text(encoding="utf-8")
"""Commands run this checkout, installed or not."""


@dataclass(frozen=True)
class Block:
    language: str
    line: int
    text: str


def blocks(text: str) -> list[Block]:
    """The fenced blocks, in order; ``line`` is that of their first line of code."""
    fence = re.compile(r"^```(\w*)\n(.*?)^```$", re.MULTILINE | re.DOTALL)
    return [Block(m[1], text.count("\n", 0, m.start(2)) + 1, m[2]) for m in fence.finditer(text)]


def needs_dali(block: Block) -> bool:
    """Whether its code runs in test_with_dali.py, where DALI is."""
    return block.language == "python" and "nvidia.dali" in block.text


def commands(program: str) -> list[list[str]]:
    """The README's command lines that start with ``program``, cut into words."""
    lines = [line for b in blocks(README) if b.language == "bash" for line in b.text.splitlines()]
    return [w for line in lines if (w := shlex.split(line, comments=True)) and w[0] == program]


FEW = {"bench": ["--rounds", "1"], "tune": ["--seconds", "2"]}
"""Options that make those commands short that measure."""


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The current folder, with the README's ``pictures/`` and ``texts/`` in it."""
    make_images(tmp_path / "pictures")
    for number, path in enumerate(sorted((ROOT / "shardkit").rglob("*.py"))[:60]):
        write(tmp_path / "texts" / f"{number:02d}.txt", path.read_bytes())
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))  # what tune found
    return tmp_path


def test_blocks_are_found_with_their_lines() -> None:
    text = "a\n```bash\nmake x\n```\n\n```python\nimport os\nos\n```\n"
    assert blocks(text) == [Block("bash", 3, "make x\n"), Block("python", 7, "import os\nos\n")]


def test_every_block_says_its_language() -> None:
    assert {block.language for block in blocks(README)} == {"bash", "python", "text"}
    assert README.count("```") == 2 * len(blocks(README))


def test_commands_and_code_run_in_order(folder: Path) -> None:
    ran, namespace = [], {"__name__": "readme"}
    for block in blocks(README):
        if needs_dali(block):
            continue
        if block.language == "python":
            # Padded with empty lines, so that a traceback names the README's own line.
            exec(compile("\n" * (block.line - 1) + block.text, "README.md", "exec"), namespace)
            ran.append("python")
            continue
        for line in block.text.splitlines():
            words = shlex.split(line, comments=True)
            if words[:1] == ["shardkit"]:
                command = [sys.executable, "-m", *words, *FEW.get(words[1], [])]
                done = subprocess.run(
                    command,
                    capture_output=True,
                    text=True,
                    env={**os.environ, "PYTHONPATH": str(ROOT)},
                )
                assert done.returncode == 0, f"{line}\n{done.stdout}{done.stderr}"
                ran.append(words[1])
    quick_start = ["pack", "info", "info", "show", "verify", "convert", "unpack"]
    smaller, tokens = ["pack", "pack", "convert", "python"], ["pack", "pack", "show", "verify"]
    measured = [*5 * ["bench"], "python", "stage", "tune", "python"]
    assert ran == [*quick_start, *6 * ["python"], *smaller, *tokens, "python", "pack", *measured]
    check_quick_start(folder, namespace)


def check_quick_start(folder: Path, namespace: dict[str, object]) -> None:
    """The comments beside the quick start's commands and code are true."""
    assert (folder / "pictures-lmdb-webdataset" / "train-00000.tar").is_file()
    originals = sorted((folder / "pictures").rglob("*.jpg"))
    restored = sorted((folder / "restored").rglob("*.jpg"))
    assert [p.read_bytes() for p in restored] == [p.read_bytes() for p in originals]
    columns, images = namespace["columns"], namespace["images"]
    assert bytes(columns["jpg"][1]) == originals[0].read_bytes()  # type: ignore[index]
    assert namespace["row"] == 3
    assert len(namespace["cats"]) == 12  # type: ignore[arg-type]
    assert namespace["sample"].keys() == {"__key__", "cls", "jpg"}  # type: ignore[attr-defined]
    assert str(images.dtype) == "torch.uint8"  # type: ignore[attr-defined]
    assert images.shape[1:] == (64, 64, 3)  # type: ignore[attr-defined]
    position = namespace["checkpoint"]["loader"]["position"]  # type: ignore[index]
    assert position == 16
    assert namespace["resumed"].epoch == 2  # type: ignore[attr-defined]
    assert {key.partition("/")[0] for key in namespace["mixed"]["__key__"]} == {"all", "rare"}  # type: ignore[index]
    batch = namespace["batch"]["image"]  # type: ignore[index]
    assert batch.shape == (8, 3, 48, 48) and str(batch.dtype) == "torch.float32"
    assert namespace["train"].state.count(" + ") <= 2  # type: ignore[attr-defined]
    assert namespace["pixels"].shape == (16, 16, 3)  # type: ignore[attr-defined]
    assert namespace["flipped"]["image"].shape == (16, 32, 32, 3)  # type: ignore[attr-defined]
    assert (folder / "page.html").is_file()
    assert (folder / "report.html").read_text(encoding="utf-8").count("<figure>") == 7
    why = namespace["loader"].settings.why  # type: ignore[attr-defined]
    assert why == "tuned on this machine" or why.startswith("by rule"), "2 s may be too few"
    assert 0 < namespace["packed"].padding < 0.5  # type: ignore[attr-defined]


def test_make_targets_exist() -> None:
    makefile = (ROOT / "Makefile").read_text(encoding="utf-8")
    targets = set(re.findall(r"^([\w-]+):", makefile, re.MULTILINE))
    named = {words[1] for words in commands("make")} | set(re.findall(r"`make ([\w-]+)`", README))
    assert named == {"demo", "test", "test-dali", "check", "campaign", "bench", "clean"}
    assert named <= targets


def test_extras_exist() -> None:
    pyproject = (ROOT / "pyproject.toml").read_text(encoding="utf-8")
    extras = re.findall(r"\.\[(\w+)\]", README)
    assert set(extras) == {"simd", "pillow", "tokens", "parquet", "zstd"}
    assert all(re.search(rf"^{extra} = \[", pyproject, re.MULTILINE) for extra in extras)


def test_links_lead_somewhere() -> None:
    targets = re.findall(r"\]\((?!http)([^)#]+)", README)
    assert targets
    assert [target for target in targets if not (ROOT / target).exists()] == []


def test_console_script_is_installed() -> None:
    """What the README calls ``shardkit`` is the module that the tests run."""
    script = shutil.which("shardkit", path=Path(sys.executable).parent)
    if script is None:
        pytest.skip("shardkit is on the path, not installed: there is no script to look at")
    done = subprocess.run([script, "--version"], capture_output=True, text=True, check=True)
    assert done.stdout.startswith("shardkit")
