"""From a source and options to its corpus."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from shardkit.errors import CorpusError
from shardkit.inputs.annotations.one_name import or_parallel
from shardkit.inputs.base import Input
from shardkit.inputs.class_folders import (
    find_odd_classes,
    refuse_odd_classes,
    refuse_splits_below,
)
from shardkit.inputs.detect import detect, require_folder
from shardkit.inputs.folders import peeking_once
from shardkit.inputs.images import ImageCorpus
from shardkit.inputs.kinds import CORPORA
from shardkit.inputs.label_files import label_advice
from shardkit.system.paths import show_path

SPLITS_AT_TOP = frozenset({"paired", "companions", "metadata", "captions", "text", "arrays"})
"""Kinds that know the splits of a source by its first folders alone."""

CLASSES_BY_FOLDER = frozenset({"images", "companions", "text", "arrays", "media", "files"})
"""Kinds that may take folders for classes, and say what speaks against it."""

_MOST_LABELS = 3
"""Files of labels spoken of where a source is refused."""


def open_corpus(
    source: str | Path,
    kind: str | None = None,
    labels: str | Path | None = None,
    text_field: str | None = None,
    fields: Sequence[str] | None = None,
    tokenized: bool = False,
) -> Input:
    """The corpus at ``source``; its kind is detected unless given.

    ``fields`` chooses columns of tables, or keys of lines. ``tokenized``: the text is to become
    ids, so that of those, unless some are chosen, it alone is taken, and of folders no classes.

    Raises:
        CorpusError: no such input, of no or several kinds, or an option that its kind has not.
        StorageError: a folder cannot be listed.
    """
    source = Path(source)
    is_given = kind is not None
    if kind is not None and kind not in CORPORA:
        raise CorpusError(f"{kind!r} is no kind of corpus; choose one of {', '.join(CORPORA)}")
    if kind is None:
        with peeking_once():
            kind = _detect(source, labels is None)
            if CORPORA[kind].class_files and labels is None and source.is_dir():
                _refuse_odd_classes(source, kind)
            elif kind in SPLITS_AT_TOP and source.is_dir():
                refuse_splits_below(source)
    elif not CORPORA[kind].is_one_file or not source.is_file():
        require_folder(source)
    made = CORPORA[kind]
    given = {"labels": labels, "text_field": text_field, "fields": fields}
    options: dict[str, Any] = {name: value for name, value in given.items() if value is not None}
    for name in options.keys() - made.options:
        raise CorpusError(
            f"--{name.replace('_', '-')} does not go with {kind}, which is what"
            f" {show_path(source)} is taken for; leave it out, or choose with --corpus"
        )
    if tokenized and not made.options.isdisjoint({"fields", "tokenized"}):
        options["tokenized"] = True
    corpus = made(source, **options)
    if is_given and kind in CLASSES_BY_FOLDER:
        corpus.odd = _oddity(corpus, source)
    return corpus


def _detect(source: Path, may_have_labels: bool) -> str:
    """The kind of a source; where it is not clear, labels of pictures at the top are spoken of."""
    try:
        return detect(source)
    except CorpusError as error:
        if may_have_labels and source.is_dir():
            _raise_with_labels(
                error, source, ImageCorpus.extensions, f", with --corpus {ImageCorpus.kind}"
            )
        raise


def _refuse_odd_classes(source: Path, kind: str) -> None:
    """Raise CorpusError if folders are hardly classes, and say which table may have these."""
    extensions = CORPORA[kind].class_files
    try:
        refuse_odd_classes(source, kind, extensions, or_parallel)
    except CorpusError as error:
        _raise_with_labels(error, source, extensions)
        raise


def _raise_with_labels(
    error: CorpusError, source: Path, extensions: frozenset[str], between: str = ""
) -> None:
    """Raise what was, and what ``--labels`` could take, if there is such a file."""
    beside = label_advice(source, extensions)
    usable = [each.said(between) for each in beside if each.how.startswith("--labels")]
    if usable:
        raise CorpusError("; ".join([str(error), *usable[:_MOST_LABELS]])) from None


def _oddity(corpus: Input, source: Path) -> str:
    """What speaks against its folders being classes, though its kind was given."""
    if corpus.classes is None or "labels" in corpus.spec():
        return ""
    extensions = corpus.extensions or corpus.class_files or None
    odd = find_odd_classes(source, corpus.kind, extensions)
    return "" if odd is None else f"the folders may be no classes: {odd.why}; if so, {odd.advice}"
