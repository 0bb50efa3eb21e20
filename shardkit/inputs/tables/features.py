"""What Hugging Face ``datasets`` says of columns of a table: pictures, sounds, names of classes.

It says so in the schema of a file, as JSON under ``huggingface``; in ``dataset_info.json`` beside
the files; or, on the hub, in the head of ``README.md`` (YAML) and in ``dataset_infos.json``. It is
read without that library.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from shardkit.errors import CorpusError, FormatError
from shardkit.inputs.yaml_text import load_yaml
from shardkit.memory.whole_files import read_file
from shardkit.system.paths import show_path

Features = dict[str, Any]
"""Column -> its feature, as the JSON of ``datasets`` has it: ``{"_type": "Image"}``."""

SCHEMA_KEY = b"huggingface"
INFOS_NAME = "dataset_infos.json"
CARD_NAME = "README.md"

MAX_BYTES = 64 << 20
"""Of a file that says what columns are."""

_LISTS = ("list", "large_list", "sequence")
_IN_YAML = {"image": "Image", "audio": "Audio", "video": "Video", "json": "Json"}


def type_of(feature: Any) -> str:
    """``Image``, ``ClassLabel``, ...; ``""`` for a feature that is not named."""
    return str(feature.get("_type", "")) if isinstance(feature, dict) else ""


def in_schema(metadata: Mapping[bytes, bytes] | None) -> Features:
    """Those of an Arrow schema's metadata; none if it has none.

    Raises:
        FormatError: they are damaged.
    """
    raw = (metadata or {}).get(SCHEMA_KEY)
    if raw is None:
        return {}
    try:
        return _features(json.loads(raw).get("info"))
    except (ValueError, AttributeError, RecursionError) as error:
        raise FormatError(f"is damaged: its entry 'huggingface' is no JSON: {error}") from error


def in_info(path: Path) -> Features:
    """Those of a ``dataset_info.json``; none if it is not there.

    Raises:
        FormatError: it is damaged.
    """
    return _features(_json(path)) if path.is_file() else {}


def of_hub(folder: Path) -> Features:
    """Those that the card of a dataset, or its ``dataset_infos.json``, tells of: of several
    configurations what all of them say alike.

    Raises:
        FormatError: that is damaged. CorpusError: it is YAML, and no library is there to read it.
    """
    found = [*_in_card(folder / CARD_NAME)]
    infos = folder / INFOS_NAME
    if not found and infos.is_file():
        found = [_features(info) for info in _json(infos).values()]
    found = [features for features in found if features]
    names = {name for features in found for name in features}
    return {
        name: first
        for name in sorted(names)
        if (first := next(f[name] for f in found if name in f)) is not None
        and all(features.get(name, first) == first for features in found)
    }


def class_names(feature: Any, path: str = "") -> dict[str, list[str]]:
    """Names of classes in a feature, by where in it they are: ``""`` is the feature itself.

    Raises:
        FormatError: what says so is damaged.
    """
    if isinstance(feature, list):
        feature = {"_type": "List", "feature": feature[0] if feature else None}
    if not isinstance(feature, dict):
        return {}
    kind = type_of(feature)
    if kind == "ClassLabel":
        return {path: _names(feature)}
    if kind in ("List", "LargeList", "Sequence"):
        return class_names(feature.get("feature"), path)
    if kind:
        return {}
    found: dict[str, list[str]] = {}
    for name, own in feature.items():
        found |= class_names(own, f"{path}.{name}" if path else name)
    return found


def _names(feature: dict[str, Any]) -> list[str]:
    names = feature.get("names")
    if names is None and isinstance(feature.get("num_classes"), int):
        names = [str(i) for i in range(feature["num_classes"])]
    if not isinstance(names, list) or not all(isinstance(name, str) for name in names):
        raise FormatError("is damaged: the names of its classes are no list of texts")
    return names


def _features(info: Any) -> Features:
    held = info.get("features") if isinstance(info, dict) else None
    return held if isinstance(held, dict) else {}


def _json(path: Path) -> dict[str, Any]:
    try:
        held = json.loads(read_file(path, MAX_BYTES))
        if not isinstance(held, dict):
            raise ValueError("it holds no object")
    except (ValueError, RecursionError) as error:
        raise FormatError(f"{show_path(path)} is damaged: {error}; fetch it again") from error
    return held


# --- the card of a dataset ----------------------------------------------------------------


def _in_card(path: Path) -> Iterator[Features]:
    infos = read_card(path, "dataset_info").get("dataset_info", [])
    try:
        for info in infos if isinstance(infos, list) else [infos]:
            yield from_yaml(info.get("features") or [])
    except (KeyError, TypeError, AttributeError, ValueError) as error:
        what = str(error).partition("\n")[0]
        raise FormatError(f"{show_path(path)} is damaged: its dataset_info: {what}") from error


def read_card(path: Path, key: str) -> dict[str, Any]:
    """The head of a dataset's card, if it has that key; else, and where there is no card, nothing.

    Raises:
        FormatError: it is damaged. CorpusError: no library is there to read YAML.
    """
    if not path.is_file():
        return {}
    head = card_head(read_file(path, MAX_BYTES).decode("utf-8", "replace"))
    if key not in head:
        return {}
    try:
        held = load_yaml(head)
    except ImportError as error:
        raise CorpusError(
            f"{show_path(path)} says what its {_TOLD[key]} are, in YAML:"
            " pip install 'shardkit[parquet]'"
        ) from error
    except ValueError as error:
        raise FormatError(f"{show_path(path)} is damaged: its {key}: {error}") from error
    if not isinstance(held, dict):
        raise FormatError(f"{show_path(path)} is damaged: its {key}: the head is no mapping")
    return held


_TOLD = {"dataset_info": "columns", "configs": "configurations"}


def card_head(text: str) -> str:
    """The YAML at the beginning of a card, between two lines of ``---``; ``""`` if it has none."""
    lines = text.removeprefix("\ufeff").split("\n")
    stripped = [line.rstrip() for line in lines]
    if stripped[0] != "---" or "---" not in stripped[1:]:
        return ""
    return "\n".join(lines[1 : stripped.index("---", 1)])


def from_yaml(entries: list[dict[str, Any]]) -> Features:
    """Features as the JSON has them, of a list as the YAML has them."""
    return {str(entry["name"]): _from_yaml(entry) for entry in entries}


def _from_yaml(entry: Any) -> Any:
    if isinstance(entry, list):
        return from_yaml(entry)
    if isinstance(entry, str):
        return {"_type": _IN_YAML.get(entry, "Value"), "dtype": entry}
    for word in _LISTS:
        if word in entry:
            return {"_type": "List", "feature": _from_yaml(entry[word])}
    if "struct" in entry:
        return from_yaml(entry["struct"])
    if "class_label" in entry:
        return {"_type": "ClassLabel", "names": _yaml_names(entry["class_label"]["names"])}
    for word, kind in _IN_YAML.items():
        if word in entry:
            return {"_type": kind}
    return _from_yaml(entry["dtype"]) if "dtype" in entry else {}


def _yaml_names(names: Any) -> list[str]:
    """``{"0": "cat", "1": "dog"}`` -> ``["cat", "dog"]``."""
    if isinstance(names, list):
        return [str(name) for name in names]
    numbers = sorted(names, key=int)
    if [int(number) for number in numbers] != [*range(len(numbers))]:
        raise ValueError("some numbers of classes have no name")
    return [str(names[number]) for number in numbers]
