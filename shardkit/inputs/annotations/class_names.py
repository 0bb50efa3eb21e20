"""Names of classes beside YOLO's labels: ``data.yaml``, ``classes.txt``, ``obj.names``."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field
from os.path import isfile
from pathlib import Path
from typing import Any

from shardkit.errors import CorpusError
from shardkit.inputs.folders import peek
from shardkit.inputs.names import extension, join
from shardkit.inputs.yaml_text import load_yaml
from shardkit.memory.whole_files import read_file
from shardkit.system.paths import show_path

LISTS = frozenset({"classes.txt", "obj.names", "classes.names", "_darknet.labels"})
"""Files of a name a line."""

_YAML = frozenset({".yaml", ".yml"})

_MAX_BYTES = 1 << 20


_BOM = "\ufeff"


@dataclass(frozen=True)
class ClassNames:
    """Names in order of their numbers; None if no file has them. ``files``: those that have, by
    path relative to the source, with their text."""

    names: list[str] | None = None
    files: dict[str, str] = field(default_factory=dict)


def find_class_names(source: Path, folders: Iterable[str]) -> ClassNames:
    """The names in the files at the top of a source, or in one of some ``folders`` of it.

    Raises:
        CorpusError: two files have other names, or numbers are left out; or a .yaml is there and
            the library that reads it is not.
    """
    found: dict[str, list[str]] = {}
    texts: dict[str, str] = {}
    for base in ("", *folders):
        for name in peek(source, base).names:
            path = join(base, name)
            is_yaml = not base and extension(name) in _YAML
            if (is_yaml or name in LISTS) and isfile(source / path):
                text = _text(source / path)
                plain = text.removeprefix(_BOM)
                names = _of_yaml(source / path, plain) if is_yaml else _of_lines(plain)
                if names:
                    found[path], texts[path] = names, text
    for path, names in found.items():
        first, expected = next(iter(found.items()))
        if names != expected:
            raise CorpusError(
                f"{show_path(source)}: {show_path(path)} and {show_path(first)} have other names of"
                " classes; keep one"
            )
    return ClassNames(next(iter(found.values()), None), texts)


def _text(path: Path) -> str:
    try:
        return read_file(path, _MAX_BYTES).decode()
    except ValueError as error:
        raise CorpusError(
            f"{show_path(path)} cannot be read for names of classes: {error}; move it away"
        ) from error


def _of_lines(text: str) -> list[str]:
    return [line.strip() for line in text.splitlines() if line.strip()]


def _of_yaml(path: Path, text: str) -> list[str] | None:
    """The entry ``names``, which is a list, or numbers and names; None if there is none."""
    try:
        held = load_yaml(text)
    except ImportError as error:
        raise CorpusError(
            f"{show_path(path)} needs the pyyaml library: pip install 'shardkit[yolo]'"
        ) from error
    except ValueError as error:
        raise CorpusError(f"{show_path(path)} is no YAML file: {error}; mend it") from error
    return _in_order(held.get("names"), path) if isinstance(held, dict) else None


def _in_order(names: Any, path: Path) -> list[str] | None:
    if isinstance(names, dict):
        missing = next((i for i in range(len(names)) if i not in names), None)
        if missing is not None:
            raise CorpusError(
                f"{show_path(path)} names {len(names)} classes, but none of number {missing};"
                " number them from 0"
            )
        return [str(names[i]) for i in range(len(names))]
    return [str(name) for name in names] if isinstance(names, list) else None
