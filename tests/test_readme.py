"""What the README and the pages of docs/ say: their commands and code run as they stand there."""

from __future__ import annotations

import ast
import os
import pkgutil
import re
import shlex
import shutil
import subprocess
import sys
from collections.abc import Callable
from dataclasses import dataclass
from importlib import metadata
from pathlib import Path
from typing import Any

import click
import pytest
from conftest import Run, make_images, thorough, tree, write
from test_layers import LAYERS

import shardkit
from shardkit.cli import group
from shardkit.cli.option_sets import KINDS

ROOT = Path(__file__).parent.parent

DOCUMENTS = ["README.md", "CONTRIBUTING.md", "CHANGELOG.md"]
DOCUMENTS += sorted(f"docs/{path.name}" for path in (ROOT / "docs").glob("*.md"))

TEXTS = {name: (ROOT / name).read_text(encoding="utf-8") for name in DOCUMENTS}

ALL = "\n".join(TEXTS.values())

TABLE_OF_ROOMS = TEXTS["docs/architecture.md"].partition("## How a sample gets in")[0]


@dataclass(frozen=True)
class Block:
    language: str
    line: int
    text: str


def blocks(text: str) -> list[Block]:
    """The fenced blocks, in order; ``line`` is that of their first line of code."""
    fence = re.compile(r"^```(\w*)\n(.*?)^```$", re.MULTILINE | re.DOTALL)
    return [Block(m[1], text.count("\n", 0, m.start(2)) + 1, m[2]) for m in fence.finditer(text)]


def prose(text: str) -> str:
    """What is not in fenced blocks."""
    return re.sub(r"^```.*?^```$", "", text, flags=re.MULTILINE | re.DOTALL)


def spans(text: str) -> list[str]:
    """What is set as code within the prose."""
    return [" ".join(span.split()) for span in re.findall(r"`([^`]+)`", prose(text))]


def needs_dali(block: Block) -> bool:
    """Whether its code runs in test_with_dali.py, where DALI is."""
    return block.language == "python" and "nvidia.dali" in block.text


def script(block: Block) -> str | None:
    """The name of a script that the block is, as its first line says. Those are run as programs, in
    test_with_trainers.py, where their libraries are."""
    first = re.match(r"# (\w+\.py)\n", block.text)
    return first[1] if block.language == "python" and first else None


def commands(text: str, program: str) -> list[list[str]]:
    """The command lines in bash that start with ``program``, cut into words."""
    lines = [line for b in blocks(text) if b.language == "bash" for line in b.text.splitlines()]
    return [w for line in lines if (w := shlex.split(line, comments=True)) and w[0] == program]


def test_blocks_are_found_with_their_lines() -> None:
    text = "a\n```bash\nmake x\n```\n\n```python\nimport os\nos\n```\n"
    assert blocks(text) == [Block("bash", 3, "make x\n"), Block("python", 7, "import os\nos\n")]


@pytest.mark.parametrize("document", DOCUMENTS)
def test_every_block_says_its_language(document: str) -> None:
    text = TEXTS[document]
    assert {block.language for block in blocks(text)} <= {"bash", "python", "text"}
    assert text.count("```") == 2 * len(blocks(text))


# --- commands and code --------------------------------------------------------------------

QUICK = {
    "pack": ["--workers", "0"],
    "append": ["--workers", "0"],  # the result is the same, and each worker would import numpy
    "convert": ["--workers", "0"],
    "bench": ["--rounds", "1", "--workers", "0"],
    "tune": ["--seconds", "2"],
}
"""Options that make those commands short that start processes, or measure."""

FIRST = {"doctor": ["--quick", "--steps", "12"]}
"""Likewise, of commands whose line ends in another's."""

TRAIN = """
import time
from pathlib import Path
import torch
from torch.utils.data import DataLoader

class Pictures(torch.utils.data.Dataset):
    paths = sorted(Path("pictures").rglob("*.jpg"))
    def __len__(self): return 400
    def __getitem__(self, i): return len(self.paths[i % len(self.paths)].read_bytes())

model = torch.nn.Linear(4, 1)
optimizer = torch.optim.SGD(model.parameters(), 1e-9)
for sizes in DataLoader(Pictures(), 4):
    model(sizes.float()).mean().backward()
    optimizer.step()
    time.sleep(0.002)
"""
"""``train.py`` of the documents."""

RAN = {
    "README.md": ["doctor", "pack", "verify", "info", "python", "python"],
    "docs/buckets.md": ["pack", "info", *3 * ["python"]],
    "docs/changing.md": [*("pack", "append", "edit", "info", "diff", "verify"), "python", "prune"],
    "docs/choosing-a-format.md": ["pack", "convert", "convert", "info", "convert"],
    "docs/clusters.md": [*3 * ["pack"], "merge", "verify", "python"],
    "docs/dali.md": ["pack"],
    "docs/doctor.md": ["doctor", "doctor", "doctor"],
    "docs/feeding.md": ["pack", *9 * ["python"]],
    "docs/measuring.md": ["pack", *4 * ["bench"], "python", "stage", "bench", "tune", "python"],
    "docs/pack-anything.md": [*6 * ["python"]],
    "docs/packing.md": [
        *("pack", "info", "info", "show", "verify", "convert", "diff", "info", "unpack"),
        *("pack", "edit", "convert"),
    ],
    "docs/pictures.md": [
        *("pack", "python", "pack", "pack", "convert"),
        *("pack", "verify", "unpack", "python"),
    ],
    "docs/text.md": ["pack", "pack", "show", "verify", "python", "convert", "convert"],
    "docs/trainers.md": ["pack"],
}
"""What runs of each document; of the others nothing does."""


@pytest.mark.parametrize(
    "document", ["README.md", *thorough(*[d for d in DOCUMENTS if d != "README.md"])]
)
def test_commands_and_code_run_in_order(
    document: str, run: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """In a folder of their own, with ``pictures/`` and ``texts/`` in it."""
    for number, path in enumerate(sorted((ROOT / "shardkit").rglob("*.py"))[:60]):
        write(tmp_path / "texts" / f"{number:02d}.txt", path.read_bytes())
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))  # what tune found
    monkeypatch.setenv("PATH", f"{Path(sys.executable).parent}:{os.environ['PATH']}")
    write(tmp_path / "train.py", TRAIN)
    make_other_data(tmp_path)
    ran, namespace = [], {"__name__": "document"}
    for block in blocks(TEXTS[document]):
        if needs_dali(block) or script(block):
            continue
        if block.language == "python":
            # Padded with empty lines, so that a traceback names the document's own line.
            exec(compile("\n" * (block.line - 1) + block.text, document, "exec"), namespace)
            ran.append("python")
            continue
        for line in block.text.splitlines() if block.language == "bash" else []:
            words = shlex.split(line, comments=True)
            if words[:1] == ["shardkit"]:
                command, *rest = words[1:]
                first = FIRST.get(command, []) if "--" in rest else []
                done = run(command, *first, *rest, *QUICK.get(command, []))
                assert done.code == 0, f"{line}\n{done.out}{done.err}"
                ran.append(words[1])
    assert ran == RAN.get(document, [])
    if document in CHECKS:
        CHECKS[document](tmp_path, namespace)


def check_readme(folder: Path, names: dict[str, Any]) -> None:
    """The comments beside the commands and the code are true. So below."""
    first = sorted((folder / "pictures").rglob("*.jpg"))[0]
    assert bytes(names["columns"]["jpg"][1]) == first.read_bytes()
    assert names["sample"].keys() == {"__key__", "cls", "jpg"}
    assert names["images"].shape == (8, 3, 48, 48)
    assert (names["labels"].shape, str(names["labels"].dtype)) == ((8,), "torch.int64")
    assert names["checkpoint"]["loader"]["position"] == 32


def check_formats(folder: Path, names: dict[str, Any]) -> None:
    assert tree(folder / "again") == tree(folder / "pictures-lmdb")


def check_clusters(folder: Path, names: dict[str, Any]) -> None:
    shardkit.pack(folder / "pictures", folder / "whole", to="npy", shard_size="100kB")
    assert tree(folder / "pictures-npy") == tree(folder / "whole")
    assert len(list((folder / "parts").iterdir())) == 3


def check_changing(folder: Path, names: dict[str, Any]) -> None:
    assert (names["now"].version, names["before"].version) == (3, 1)
    assert (len(names["now"]), len(names["before"])) == (28, 36)
    assert shardkit.info(folder / "pictures-lmdb").versions == [
        3,
        4,
    ]  # every picture is large enough
    compact = shardkit.open(folder / "compact", verify=True)
    assert list(compact) == list(shardkit.open(folder / "pictures-lmdb"))


def check_packing(folder: Path, names: dict[str, Any]) -> None:
    assert (folder / "pictures-lmdb-webdataset" / "train-00000.tar").is_file()
    assert tree(folder / "restored") == tree(folder / "pictures")
    assert (folder / "sheet.png").is_file()


def check_feeding(folder: Path, names: dict[str, Any]) -> None:
    first = sorted((folder / "pictures").rglob("*.jpg"))[0]
    assert bytes(names["columns"]["jpg"][1]) == first.read_bytes()
    assert names["row"] == 3
    assert len(names["cats"]) == 12
    assert names["sample"].keys() == {"__key__", "cls", "jpg"}
    assert str(names["images"].dtype) == "torch.uint8"
    assert names["images"].shape == (8, 12, 12, 3)
    assert names["batch"]["image"].shape == (4, 12, 12, 3)
    assert len(names["evaluated"]["cls"]) == len(names["ds"]) % 8
    assert names["checkpoint"]["loader"]["position"] == 16
    assert names["resumed"].epoch == 2
    assert {key.partition("/")[0] for key in names["mixed"]["__key__"]} == {"all", "rare"}
    assert len(names["grown"]) == len(names["ds"]) + len(names["rare"])
    assert names["squares"]["square"].tolist() == [n * n for n in names["squares"]["number"]]
    assert (len(names["torchs"]["jpg"]), names["torchs"]["cls"].shape) == (8, (8,))


def check_pictures(folder: Path, names: dict[str, Any]) -> None:
    pixels = names["batch"]["image"]
    assert pixels.shape == (8, 3, 48, 48) and str(pixels.dtype) == "torch.float32"
    assert names["train"].state.count(" + ") <= 2
    assert names["pixels"].shape == (16, 16, 3)
    assert names["flipped"]["image"].shape == (16, 32, 32, 3)
    assert tree(folder / "as-they-were") == tree(folder / "pictures")


def check_text(folder: Path, names: dict[str, Any]) -> None:
    assert 0 < names["packed"].padding < 0.5


def make_other_data(folder: Path) -> None:
    """Make the images that some pages begin with."""
    make_images(folder / "week-48", 2)
    for path in sorted((folder / "week-48").rglob("*.jpg")):
        path.rename(path.with_name(f"new.{path.name}"))


def check_measuring(folder: Path, names: dict[str, Any]) -> None:
    assert (folder / "page.html").is_file()
    assert "<h3>Rates</h3>" in (folder / "report.html").read_text(encoding="utf-8")
    why = names["loader"].settings.why
    assert why == "tuned on this machine" or why.startswith("by rule"), "2 s may be too few"


CHECKS: dict[str, Callable[[Path, dict[str, Any]], None]] = {
    "README.md": check_readme,
    "docs/choosing-a-format.md": check_formats,
    "docs/feeding.md": check_feeding,
    "docs/measuring.md": check_measuring,
    "docs/clusters.md": check_clusters,
    "docs/changing.md": check_changing,
    "docs/packing.md": check_packing,
    "docs/pictures.md": check_pictures,
    "docs/text.md": check_text,
}


# --- what they name -----------------------------------------------------------------------


def test_make_targets_exist() -> None:
    makefile = (ROOT / "Makefile").read_text(encoding="utf-8")
    targets = set(re.findall(r"^([a-z-]+):[^#\n]*##", makefile, re.MULTILINE))
    named = {words[1] for words in commands(ALL, "make")}
    named |= {span.split()[1] for span in spans(ALL) if span.startswith("make ")}
    assert named == targets - {"help"}


def test_extras_exist() -> None:
    pyproject = (ROOT / "pyproject.toml").read_text(encoding="utf-8")
    named = re.findall(r"(?:\.|shardkit)\[([\w,]+)\]", ALL)
    extras = {extra for group in named for extra in group.split(",")}
    assert extras == {
        *("simd", "pillow", "tokens", "parquet", "zstd", "yolo", "doctor", "cloud", "dev"),
        "ray",
    }
    assert all(re.search(rf"^{extra} = \[", pyproject, re.MULTILINE) for extra in extras)


def test_options_exist() -> None:
    """Of the commands; those of scripts are named with the script."""
    known = {option for made in group.commands.values() for p in made.params for option in p.opts}
    named = {span.split()[0] for span in spans(ALL) if span.startswith("--")}
    assert len(named) > 20
    assert named - known == {"--help", "--"}


def table_rows(text: str) -> list[list[str]]:
    """The cells of all rows of tables."""
    lines = [line for line in prose(text).splitlines() if line.startswith("| ")]
    return [[cell.strip() for cell in line.strip("|").split(" | ")] for line in lines]


def test_the_table_of_data_has_every_kind_and_commands_that_exist() -> None:
    named, programs = set(), set()
    for row in table_rows(TEXTS["docs/your-data.md"].partition("## Labels")[0]):
        named |= set(re.findall(r"\(`(\w+)`\)|--corpus (\w+)", row[1]))
        for line in re.findall(r"`shardkit (.*?)`", row[1]):
            command, *words = shlex.split(line)
            parent = click.Context(group, **group.context_settings)
            group.commands[command].make_context(command, words, parent)  # else an error of usage
            programs.add(command)
    assert {kind for found in named for kind in found if kind} == set(KINDS)
    assert programs == {"pack", "convert", "info"}


def anchors(text: str) -> set[str]:
    """Of a page's headings, as GitHub makes them."""
    titles = re.findall(r"^#+ (.*)$", prose(text), re.MULTILINE)
    return {re.sub(r"[^\w -]", "", title.lower()).replace(" ", "-") for title in titles}


@pytest.mark.parametrize("document", DOCUMENTS)
def test_links_lead_somewhere(document: str) -> None:
    for target in re.findall(r"\]\(\s*(?!http)([^)\s]+)", prose(TEXTS[document])):
        name, _, anchor = target.partition("#")
        path = (ROOT / document).parent / name if name else ROOT / document
        assert path.exists(), target
        assert not anchor or anchor in anchors(path.read_text(encoding="utf-8")), target


def test_every_page_is_in_the_readmes_table() -> None:
    table = TEXTS["README.md"].partition("## Where to read on")[2]
    linked = set(re.findall(r"^\| \[.*?\]\((.*?)\)", table, re.MULTILINE))
    assert linked == {*DOCUMENTS, "formats.md"} - {"README.md"}


@pytest.mark.parametrize("document", [*DOCUMENTS, "formats.md"])
def test_files_and_names_of_code_exist(document: str) -> None:
    for span in spans((ROOT / document).read_text(encoding="utf-8")):
        word = span.partition("(")[0]
        if re.fullmatch(r"(shardkit|scripts|tests)/[\w./]*", word):
            assert (ROOT / word).exists(), span
        elif re.fullmatch(r"shardkit(\.\w+)+", word) and word != "shardkit.json":
            assert pkgutil.resolve_name(word) is not None, span


# --- the house ----------------------------------------------------------------------------


def house() -> list[set[str]]:
    """The floors that docs/architecture.md draws, from the ground up."""
    (drawing,) = [b for b in blocks(TEXTS["docs/architecture.md"]) if b.language == "text"]
    floors = [line for line in drawing.text.splitlines() if "|" in line]
    return [set(re.findall(r"\w+", floor)) for floor in reversed(floors)]


def test_the_house_is_drawn_as_it_stands() -> None:
    assert house() == LAYERS


def words_of(room: str) -> list[str]:
    """The paragraphs of what a room, or a module, says of itself, as Markdown."""
    path = ROOT / "shardkit" / room
    path = path / "__init__.py" if path.is_dir() else path.with_suffix(".py")
    said = ast.get_docstring(ast.parse(path.read_text(encoding="utf-8"))) or ""
    said = re.sub(r":\w+:`~?([^`]+)`", r"`\1`", said).replace("``", "`")
    return [" ".join(paragraph.split()) for paragraph in said.split("\n\n")]


def test_the_table_of_rooms_says_what_they_say() -> None:
    rows = re.findall(r"^\| `(\w+)` \| (.*?) \|(?: (.*?))? \|$", TABLE_OF_ROOMS, re.MULTILINE)
    told = {room: [what, *filter(None, [what_not])] for room, what, what_not in rows}
    rooms = set.union(*LAYERS)
    assert told == {room: words_of(room)[: 1 if room == "errors" else 2] for room in rooms}


def test_console_script_is_installed() -> None:
    """What the README calls ``shardkit`` is the module that the tests run."""
    script = shutil.which("shardkit", path=Path(sys.executable).parent)
    if script is None:
        pytest.skip("shardkit is on the path, not installed: there is no script to look at")
    done = subprocess.run([script, "--version"], capture_output=True, text=True, check=True)
    assert done.stdout.startswith("shardkit")


# --- what is installed is what is imported ------------------------------------------------


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
