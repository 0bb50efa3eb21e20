"""Imports go down only, and what is heavy is imported by those who need it, when they need it."""

from __future__ import annotations

import ast
import inspect
import json
import os
import re
import subprocess
import sys
from collections.abc import Iterator, Sequence
from graphlib import TopologicalSorter
from pathlib import Path

import pytest
from conftest import make_images, make_pairs, run_python, thorough

import shardkit
from shardkit.cli import option_sets
from shardkit.formats import FORMATS
from shardkit.images import choice as image_choice

ROOT = Path(shardkit.__file__).parent

LAYERS = [
    {"arrays", "errors", "watching"},
    {"arguments", "system"},
    {"commit", "memory"},
    {"storage"},
    {"samples"},
    {"images", "tokens", "order"},
    {"formats"},
    {"index"},
    {"tars", "remote"},
    {"shards"},
    {"inputs", "batches"},
    {"packing", "reading"},
    {"sequences"},
    {"loading", "operations", "dali", "readers"},
    {"versions"},
    {"measure"},
    {"cli"},
]
"""A module may import from its own layer's package and from layers above it in this list."""

LEVEL = {name: level for level, names in enumerate(LAYERS) for name in names}

HEAVY = {
    *("torch", "webdataset", "h5py", "lmdb", "PIL", "tqdm", "zstandard", "pandas", "pyarrow"),
    *("torchvision", "simplejpeg", "cv2", "tokenizers", "tiktoken", "transformers"),
    *("jinja2", "obstore", "boto3", "botocore", "ray"),
}

PUBLIC = [
    "__version__",
    "dali",
    "errors",
    "images",
    "readers",
    "pack",
    "PackResult",
    "Writer",
    "merge",
    "append",
    "edit",
    "prune",
    "VersionResult",
    "convert",
    "unpack",
    "verify",
    "info",
    "show",
    "diff",
    "open",
    "Dataset",
    "TokenDataset",
    "concat",
    "mix",
    "Order",
    "BatchSampler",
    "Sampler",
    "Source",
    "Stream",
    "Loader",
    "CudaPrefetcher",
    "normalize",
    "bench",
    "stage",
    "tune",
    "Tuning",
    "watch",
    "ShardkitError",
]


def modules() -> dict[str, ast.Module]:
    """Dotted name below ``shardkit`` -> its syntax tree; the top modules apart."""
    found = {}
    for path in sorted(ROOT.rglob("*.py")):
        name = ".".join(path.relative_to(ROOT).with_suffix("").parts).removesuffix(".__init__")
        if name not in ("__init__", "__main__"):
            found[name] = ast.parse(path.read_text(encoding="utf-8"))
    return found


MODULES = modules()


def imports(tree: ast.AST) -> Iterator[str]:
    """Full names of all modules that a piece of code imports, in functions too."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, "imports are absolute"
            base = node.module or ""
            for alias in node.names:
                whole = f"{base}.{alias.name}"
                yield whole if whole.removeprefix("shardkit.") in MODULES else base


def at_module_level(node: ast.AST) -> Iterator[ast.stmt]:
    """Statements that run on import."""
    for child in ast.iter_child_nodes(node):
        if isinstance(child, ast.FunctionDef | ast.AsyncFunctionDef):
            continue
        if isinstance(child, ast.stmt):
            yield child
        yield from at_module_level(child)


def ours(tree: ast.AST) -> set[str]:
    return {
        name.removeprefix("shardkit.") for name in imports(tree) if name.startswith("shardkit.")
    }


OURS = {name: ours(tree) for name, tree in MODULES.items()}
"""Module -> those of ours that it imports."""


def test_every_module_has_a_layer() -> None:
    assert {name.partition(".")[0] for name in MODULES} == set(LEVEL)


def test_imports_go_down() -> None:
    for name, others in OURS.items():
        own = name.partition(".")[0]
        for other in others:
            package = other.partition(".")[0]
            assert package == own or LEVEL[package] < LEVEL[own], f"{name} imports {other}"


def inner_room(name: str) -> str:
    """The room within ``inputs`` that a module of it lies in; ``""`` for its hall."""
    return name.split(".")[1] if name.count(".") == 2 else ""


def test_kinds_of_input_know_little_of_one_another() -> None:
    """Tables and containers stand on the seam and on folders, annotations and objects on tables
    besides."""
    over_all = {"inputs.detection"}
    for name in {name for name in MODULES if name.startswith("inputs.")} - over_all:
        below = {"", inner_room(name)}
        if inner_room(name) in ("annotations", "objects"):
            below.add("tables")
        for other in OURS[name]:
            if other.startswith("inputs"):
                is_below = other not in over_all and inner_room(other) in below
                assert is_below, f"{name} imports {other}"


def test_no_module_imports_itself_by_way_of_others() -> None:
    graph = {name: others - {name} for name, others in OURS.items()}
    assert list(TopologicalSorter(graph).static_order())


def test_a_file_name_occurs_once() -> None:
    """So that it answers where something is changed; and no package hides a public function."""
    names = [path.name for path in ROOT.rglob("*.py") if not path.name.startswith("__")]
    assert len(names) == len(set(names))
    functions = {name for name in PUBLIC if inspect.isfunction(getattr(shardkit, name))}
    assert functions.isdisjoint({path.stem for path in ROOT.iterdir()})


def test_no_two_classes_have_one_name() -> None:
    """A reader who meets a name knows which class it is, whatever room it is in."""
    homes: dict[str, list[str]] = {}
    for name, tree in MODULES.items():
        for node in tree.body:
            if isinstance(node, ast.ClassDef) and node.name[0] != "_":
                homes.setdefault(node.name, []).append(name)
    assert not {name for name, own in homes.items() if len(own) > 1}


def texts(tree: ast.AST) -> Iterator[str]:
    """Strings that are data, parts of f-strings too: docstrings are not."""
    said = {node.value for node in ast.walk(tree) if isinstance(node, ast.Expr)}
    for node in ast.walk(tree):
        if isinstance(node, ast.Constant) and isinstance(node.value, str) and node not in said:
            yield node.value


NAMES_FORMATS = {"readers", "watching.fetching", "measure.doctor.loading_causes"}
NAMES_FORMATS |= {"inputs.detection", "inputs.records.containers", "inputs.rows.row_columns"}
"""Whose public classes have a format's name each, what recommends one by name, and what knows the
files of others."""


def test_only_formats_know_their_names() -> None:
    """So that one more is a file, a line in the table, and a section of ``formats.md``."""
    names = {word for made in FORMATS.values() for word in (made.name, made.library, made.suffix)}
    # NumPy's own, and what any tar is called, mean other things as well; help is for people.
    words = re.compile(rf"\b({'|'.join(names - {'npy', 'numpy', 'tar'})})\b")
    own = {type(made).__module__.removeprefix("shardkit.") for made in FORMATS.values()}
    for name in set(MODULES) - NAMES_FORMATS:
        package = name.partition(".")[0]
        if package not in ("formats", "cli"):
            said = [text for text in texts(MODULES[name]) if words.search(text)]
            assert not said, f"{name} says {said}"
        if package != "formats":
            assert not OURS[name] & own, name


TORCH_CLASSES = {"batches.stream", "order.sampler"}
"""Modules whose classes derive from torch's, which cannot be put off."""


def test_nothing_heavy_on_import() -> None:
    for name in set(MODULES) - TORCH_CLASSES:
        statements = [
            s for s in at_module_level(MODULES[name]) if isinstance(s, ast.Import | ast.ImportFrom)
        ]
        found = {module.partition(".")[0] for s in statements for module in imports(s)}
        assert not found & HEAVY, name


def test_the_command_line_loads_nothing_for_its_help() -> None:
    """A command took 0.2 s more once ``pack --help`` imported the report of a bench."""
    code = """
import sys
from shardkit.cli import main
try:
    main()
finally:
    print(*sys.modules)
"""
    loaded = run_python(code, "pack", "--help").split()
    assert "shardkit.cli.packing_commands" in loaded
    assert not {"shardkit.loading", "shardkit.batches", "shardkit.index", "numpy"} & set(loaded)
    assert [*image_choice.FORMATS] == option_sets.IMAGE_FORMATS
    names = [name for made in FORMATS.values() for name in (made.name, *made.aliases)]
    assert names == option_sets.CONTAINERS


def test_only_functions_that_need_it_import_torch() -> None:
    def uses_torch(tree: ast.AST) -> bool:
        return any(name.partition(".")[0] == "torch" for name in imports(tree))

    using = {name for name, tree in MODULES.items() if uses_torch(tree)}
    feeding = {name for name in MODULES if name.partition(".")[0] == "loading"}
    elsewhere = {"images.nvjpeg", "batches.collate", "batches.maker"}
    elsewhere |= {"watching.session"}
    elsewhere |= {"batches.parcels"}
    assert using - feeding == elsewhere | TORCH_CLASSES | {"measure.machine"}


def test_public_names() -> None:
    assert shardkit.__all__ == PUBLIC
    assert dir(shardkit) == sorted(PUBLIC)
    for name in PUBLIC:
        assert getattr(shardkit, name) is not None
    with pytest.raises(AttributeError, match="no attribute 'nothing'"):
        shardkit.nothing  # noqa: B018


RAW_CALLS = {"write", "writev", "pwrite", "pwritev", "sendfile", "copy_file_range"}
RAW_CALLS |= {"pread", "readv", "preadv"}
"""Functions of os that may do a part of what was asked for; one module calls them."""

MAY_BE_SHORT = {
    ("watching.event_log", "write"): "imports nothing of ours; compares, and stops at a torn line",
    ("watching.clock", "pread"): "a file of /proc, read in one call or not at all",
}


def test_one_module_makes_calls_that_may_be_short() -> None:
    """So that no write's result is ignored: a dataset would lose samples, and nobody would know."""
    seen = set()
    for name, tree in MODULES.items():
        for node in ast.walk(tree):
            if isinstance(node, ast.ImportFrom) and node.module == "os":
                called = {alias.name for alias in node.names}
            elif isinstance(node, ast.Attribute) and isinstance(node.value, ast.Name):
                called = {node.attr} if node.value.id == "os" else set()
            else:
                called = set()
            found = {(name, each) for each in called & RAW_CALLS if name != "system.file_io"}
            seen |= found
            assert found <= MAY_BE_SHORT.keys(), f"{name} line {node.lineno}: call file_io"
    assert seen == MAY_BE_SHORT.keys()


def test_no_file_is_written_unbuffered() -> None:
    """The method ``write`` of such a file returns how much it wrote, which is easily forgotten;
    ``numpy.tofile`` and ``fromfile`` do not tell every error."""
    for name, tree in MODULES.items():
        for node in ast.walk(tree):
            if not isinstance(node, ast.Call):
                continue
            called = node.func.attr if isinstance(node.func, ast.Attribute) else ""
            called = node.func.id if isinstance(node.func, ast.Name) else called
            assert called not in ("tofile", "fromfile", "FileIO"), f"{name}: line {node.lineno}"
            unbuffered = any(
                word.arg == "buffering" and ast.unparse(word.value) == "0" for word in node.keywords
            )
            modes = [arg.value for arg in node.args if isinstance(arg, ast.Constant)]
            reads = called == "open" and "rb" in modes
            assert not unbuffered or reads, f"{name}: line {node.lineno} writes unbuffered"


# --- in processes of their own ------------------------------------------------------------


COMMANDS = """
import json, runpy, sys
for args in json.loads(sys.argv[1]):
    sys.argv[1:] = args
    try:
        runpy.run_module("shardkit", run_name="__main__")
    except SystemExit as end:
        assert not end.code, args
"""
"""Each costs a start of Python where it is alone."""


def imported(*commands: Sequence[object]) -> set[str]:
    """Top-level names of all modules that commands, and the processes they start, imported."""
    listed = json.dumps([[*map(str, args)] for args in commands])
    env = {**os.environ, "PYTHONPROFILEIMPORTTIME": "1", "PYTHONPATH": os.pathsep.join(sys.path)}
    run = [sys.executable, "-c", COMMANDS, listed]
    done = subprocess.run(run, capture_output=True, text=True, env=env, check=True)
    lines = [line for line in done.stderr.splitlines() if line.startswith("import time:")]
    assert len(lines) > 100
    return {line.rpartition("|")[2].strip().partition(".")[0] for line in lines}


def test_help_is_light() -> None:
    names = ["pack", "convert", "unpack", "verify", "info", "show", "bench", "stage", "tune"]
    names += ["cache", "merge", "diff"]
    assert not imported(["--help"], *([name, "--help"] for name in names)) & HEAVY


@pytest.mark.parametrize("workers", [0, *thorough(2)])
def test_packing_never_imports_torch(container: str, workers: int, tmp_path: Path) -> None:
    options = ["--to", container, "--shard-size", "2kB", "--workers", workers]
    used = {"lmdb": {"lmdb"}, "hdf5": {"h5py"}}.get(container, set())
    source = make_images(tmp_path / "images")
    dest = tmp_path / "out"
    assert imported(["pack", source, dest, *options]) & HEAVY == used
    if workers == 0:
        commands = ["info", dest], ["verify", dest], ["unpack", dest, tmp_path / "back"]
        assert not imported(*commands) & HEAVY


def test_other_corpora_do_not_either(tmp_path: Path) -> None:
    source = make_pairs(tmp_path / "pairs")
    assert not imported(["pack", source, tmp_path / "out", "--to", "npy"]) & HEAVY
    checked = ["--check-images", "--workers", 0]
    pack = ["pack", source, tmp_path / "o", "--to", "npy", *checked]
    assert imported(pack) & HEAVY == {"simplejpeg"}


IMPORT_ALL = """
import os, sys, threading, warnings
import numpy, click, xxhash  # these may do what they like
before = dict(os.environ), list(warnings.filters), os.getcwd(), set(os.listdir("/proc/self/fd"))
for name in sys.argv[1:]:
    __import__(f"shardkit.{name}")
after = dict(os.environ), list(warnings.filters), os.getcwd(), set(os.listdir("/proc/self/fd"))
assert before == after
assert threading.active_count() == 1
"""


def test_nothing_happens_on_import() -> None:
    run_python(IMPORT_ALL, *sorted(set(MODULES) - TORCH_CLASSES))
