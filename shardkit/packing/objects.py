"""``pack`` of Python objects: which kind of source it is, and what comes with it."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import Any

from shardkit.errors import UsageError
from shardkit.inputs.base import Corpus
from shardkit.inputs.objects.iterables import StreamCorpus
from shardkit.inputs.objects.numbered_rows import (
    NumberedRows,
    RowsCorpus,
    described,
    is_map_style,
    iterator_of,
    splits_of,
)
from shardkit.inputs.objects.sample_forms import SampleForm
from shardkit.memory.maps import read_file
from shardkit.packing.options import PackOptions
from shardkit.packing.result import PackResult
from shardkit.packing.run import run_pack
from shardkit.remote.urls import as_place
from shardkit.system.functions import load_function
from shardkit.system.paths import as_path, show_path
from shardkit.system.refusals import os_errors

MAX_LIST_BYTES = 1 << 30
"""The largest file of inputs that is read."""


def pack_objects(
    source: Any,
    dest: str | Path,
    made: PackOptions,
    fn: Callable[[Any], Any] | str | None,
    names: Sequence[str] | None,
    fields: Sequence[str] | None,
    classes: Sequence[str] | None,
    started: float,
) -> PackResult:
    """Pack the samples of an object. Arguments are as of :func:`shardkit.packing.pack.pack`.

    Raises:
        UsageError: it cannot be packed, or not with these options.
    """
    if isinstance(fn, str):
        fn = load_function(fn, "fn")
    if isinstance(source, (str, os.PathLike)):
        source = inputs_in(as_path(source, "the source"))
    given = check_names(classes, "classes")
    known = classes_of(splits_of(source)) if given is None else [*given]
    opened = open_objects(source, fn, form_of(made, names, fields, known), known)
    if opened.is_read_once:
        refuse_for_streams(made)
    return run_pack(Path(described(source)), opened, as_place(dest, "dest"), made, started)


def form_of(
    made: PackOptions,
    names: Sequence[str] | None,
    fields: Sequence[str] | None,
    classes: Sequence[str] | None,
) -> SampleForm:
    """Return how samples are read. Raises UsageError for names that cannot be."""
    return SampleForm(
        names=check_names(names, "names"),
        fields=None if fields is None else tuple(fields),
        num_classes=None if classes is None else len(classes),
        is_reencoded=made.images.image_format not in ("keep", "png"),
    )


def check_names(given: Sequence[str] | None, option: str) -> tuple[str, ...] | None:
    """Return names as a tuple. Raises UsageError for what is no list of texts."""
    made = None if isinstance(given, str) or not isinstance(given, Iterable) else tuple(given)
    if given is not None and (made is None or not all(isinstance(name, str) for name in made)):
        raise UsageError(f"{option} must be a list of texts, got {given!r:.200}")
    return made


def open_objects(
    source: Any, fn: Callable[[Any], Any] | None, form: SampleForm, classes: list[str] | None
) -> Corpus:
    """Return the samples of an object as a corpus. Raises UsageError for what gives none."""
    splits = splits_of(source)
    for own in splits.values() if fn is None else ():
        _refuse_paths(own)
    if all(map(is_map_style, splits.values())):
        rows = {name: NumberedRows(own, fn) for name, own in splits.items()}
        return RowsCorpus(rows, form, classes)
    if fn is not None:
        raise UsageError("fn takes inputs that have a number: pass a list of them")
    for own in splits.values():
        if not callable(own):  # a function may do much before its iterator is there
            iterator_of(own)
    return StreamCorpus(splits, form, classes)


def _refuse_paths(source: Any) -> None:
    """Raise UsageError for a text, or paths as texts, which would be packed as texts."""
    if isinstance(source, str | bytes):
        raise UsageError(f"the source of a split is {source[:200]!r}: pass a list or a dataset")
    first = source[0] if isinstance(source, list | tuple) and source else None
    values = [*first.values()] if isinstance(first, dict) else first
    for value in values if isinstance(values, list | tuple) else [values]:
        if isinstance(value, str) and len(value) < 4096 and os.path.isfile(value):
            raise UsageError(
                f"the first sample holds the path of a file as a text, {value[:200]!r}: pass"
                " pathlib.Path(...) to pack the file, or fn= to read it"
            )


def inputs_in(path: Path) -> list[Any]:
    """Return the inputs that a path stands for: the files of a folder, or the lines of a file.

    Raises:
        UsageError: there is no such thing, or nothing in it.
    """
    with os_errors(f"reading {show_path(path)}"):
        if path.is_dir():
            found: list[Any] = sorted(own for own in path.rglob("*") if own.is_file())
        else:
            lines = read_file(path, MAX_LIST_BYTES).decode("utf-8", "surrogateescape").split("\n")
            found = [line.rstrip("\r") for line in lines if line.strip()]
    if not found:
        raise UsageError(f"{show_path(path)} has no inputs for fn")
    return found


def classes_of(splits: dict[str, Any]) -> list[str] | None:
    """Return the names of classes that the source itself says, alike in all of its splits."""
    found = [getattr(own, "classes", None) for own in splits.values()]
    first = found[0]
    if not isinstance(first, list | tuple) or not all(isinstance(name, str) for name in first):
        return None
    return [*first] if all(other == first for other in found) else None


def refuse_for_streams(made: PackOptions) -> None:
    """Raise UsageError for options that need rows by number."""
    if made.part is not None or made.engine == "ray":
        name = "engine='ray'" if made.part is None else "part"
        raise UsageError(
            f"{name} needs rows by number, and the source can only be iterated over; pass a dataset"
            " with __len__ and __getitem__, or a list of inputs and fn="
        )
