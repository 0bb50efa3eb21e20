"""What Hugging Face ``datasets`` makes of a field, and how it is told the names of classes.

No tar holds those. ``load_dataset(folder)`` takes all features from ``.huggingface.yaml`` beside
the tars (since datasets 2.17), as it does from the head of a README.md; but a README is its
owner's, who may have written one and may change ours. It takes all of them from there or none: so
the file is written only where each field's is known for certain.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal

from shardkit.images.sniff import IMAGE_EXTENSIONS

CARD = ".huggingface.yaml"

Feature = Literal["image", "audio", "video", "string", "int64"]

_ENDINGS: dict[Feature, str] = {
    "audio": "aiff flac mp3 ogg opus wav",
    "video": "avi mkv mov mp4",
    "string": "text transcript txt",
    "int64": "cls cls2 id index inx",
}
"""Endings of fields that its own reader of tars decodes, or leaves to these features."""

_FEATURES: dict[str, Feature] = {
    ending: feature for feature, endings in _ENDINGS.items() for ending in endings.split()
}
_FEATURES |= {ending.removeprefix("."): "image" for ending in IMAGE_EXTENSIONS}

_HEAD = (
    "# Written by shardkit: what Hugging Face datasets is to make of the tars beside this file.\n"
)


def feature_of(field: str) -> Feature | None:
    """The feature of a field, by its ending; None where that depends on its values."""
    return _FEATURES.get(field.rpartition(".")[2])


def card_of(fields: Sequence[str], classes: Sequence[str] | None) -> bytes | None:
    """The contents of :data:`CARD`; None where there is nothing to say, or not enough is known."""
    if "cls" not in fields or not classes or not _can_be_labels(classes):
        return None
    features = {field: feature_of(field) for field in fields}
    if None in features.values():
        return None
    lines = ["dataset_info:", "  features:"]
    for field, feature in features.items():
        lines.append(f"  - name: {quoted(field)}")
        lines += _labels(classes) if field == "cls" else [f"    dtype: {feature}"]
    for name in ("__key__", "__url__"):  # which the reader adds to the fields
        lines += [f"  - name: {name}", "    dtype: string"]
    return (_HEAD + "\n".join(lines) + "\n").encode()


def _labels(classes: Sequence[str]) -> list[str]:
    names = [f'          "{number}": {quoted(name)}' for number, name in enumerate(classes)]
    return ["    dtype:", "      class_label:", "        names:", *names]


def _can_be_labels(classes: Sequence[str]) -> bool:
    """A ``ClassLabel`` wants each name once; half a surrogate pair is no text to YAML."""
    is_text = not any("\ud800" <= c <= "\udfff" for name in classes for c in name)
    return is_text and len(set(classes)) == len(classes)


def quoted(text: str) -> str:
    """A string of YAML, in ASCII on one line. It is JSON's, but for what takes more than 16 bits,
    which JSON writes as two halves, and YAML would read as two characters."""
    return '"' + "".join(map(_escaped, text)) + '"'


def _escaped(character: str) -> str:
    number = ord(character)
    if character in '"\\':
        return "\\" + character
    if " " <= character <= "~":
        return character
    return f"\\u{number:04x}" if number < 1 << 16 else f"\\U{number:08x}"
