"""Names of the files of a dataset: its manifest, indexes and shards, and those for other tools."""

from __future__ import annotations

import re

from shardkit.formats import FORMATS
from shardkit.index.provenance import TOKENIZER_FILES

INDEX_NAME = "shardkit.json"
REJECTED_NAME = "rejected.jsonl"
PART_NAME = "part.json"
"""In the work folder of a part of a pack that is finished."""

INDEX_KINDS = ("rows", "names", "find", "sums")
"""Endings of the files that index a split."""

_NAME = re.compile(r"[A-Za-z0-9_][A-Za-z0-9_.-]{0,63}")
_SUFFIX = "|".join(made.suffix for made in FORMATS.values())
SHARD_FILE = re.compile(rf"[A-Za-z0-9_.-]{{1,64}}-\d{{5,}}\.[A-Za-z0-9_.-]{{0,99}}\b({_SUFFIX})")
"""Names of files of a shard; nothing else in the folder of a dataset is called so."""

DALI_INDEX = re.compile(r"(.+)-\d{5,}\.idx")
"""Names of DALI's index of a shard; others may make such files, too."""

SIGNPOSTS = frozenset(name for made in FORMATS.values() for name in made.signpost_names)
"""Names of files for other tools: see :meth:`shardkit.formats.format.Format.signposts`."""

VERSION_INDEX = re.compile(r"shardkit~([1-9][0-9]{0,8})\.json")
"""Names that :func:`index_name` gives."""

VERSIONED = re.compile(r"(.+?)(?:~[1-9][0-9]{0,8})?")
"""The stem of a split's index in any version: the name of the split, and maybe a number."""


def is_field_name(name: object) -> bool:
    """Return True if a field or split name is safe in file names, tar members and HDF5 paths."""
    return (
        isinstance(name, str)
        and _NAME.fullmatch(name) is not None
        and name != "__key__"
        and not name.endswith((".offsets", ".present", ".start", ".size"))
        and name not in ("name", "xxh3", "key")
    )


def is_file_of(stem: str, name: object) -> bool:
    """Return True if a file of this name may belong to the shard whose files begin so."""
    return (
        isinstance(name, str)
        and name.startswith(f"{stem}.")
        and (SHARD_FILE.fullmatch(name) is not None or name == f"{stem}.idx")
    )


def is_dataset_file(name: object) -> bool:
    """Return True for a plain name that a file of a dataset, but for shardkit.json, may have."""
    if not isinstance(name, str):
        return False
    of_dali = DALI_INDEX.fullmatch(name)
    return (
        name in {REJECTED_NAME} | SIGNPOSTS | TOKENIZER_FILES
        or SHARD_FILE.fullmatch(name) is not None
        or VERSION_INDEX.fullmatch(name) is not None
        or is_field_name(of_dali.group(1) if of_dali else split_of_index(name))
    )


def index_name(version: int) -> str:
    """Return the name of ``shardkit.json`` of a version once there is a newer one."""
    return f"shardkit~{version}.json"


def index_stem(split: str, version: int) -> str:
    """Return the name of a split's own files before their endings, from this version on."""
    return split if version == 1 else f"{split}~{version}"


def split_of_index(name: str) -> str:
    """Return the split that a file is the index of, in any version; ``""`` if it is none."""
    stem, _, kind = name.rpartition(".")
    found = VERSIONED.fullmatch(stem) if kind in INDEX_KINDS else None
    return found.group(1) if found else ""
