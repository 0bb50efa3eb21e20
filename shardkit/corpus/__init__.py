"""What can be packed: one file a kind of input, and the table of them all.

Adding one is a class derived from :class:`shardkit.corpus.base.Input` and a line in
:mod:`shardkit.corpus.kinds`.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

from shardkit.corpus.base import Corpus, Input, Run
from shardkit.corpus.census import detect, require_folder
from shardkit.corpus.kinds import CONVERTED, CORPORA
from shardkit.errors import CorpusError
from shardkit.system.paths import show_path

__all__ = ["CORPORA", "Corpus", "Run", "detect", "from_spec", "open_corpus"]


def open_corpus(
    source: str | Path,
    kind: str | None = None,
    labels: str | Path | None = None,
    text_field: str | None = None,
) -> Input:
    """The corpus at ``source``; its kind is detected unless given.

    Raises:
        CorpusError: no such input, of no or several kinds, or an option that its kind has not.
        StorageError: a folder cannot be listed.
    """
    source = Path(source)
    if kind is not None and kind not in CORPORA:
        raise CorpusError(f"{kind!r} is no kind of corpus; choose one of {', '.join(CORPORA)}")
    if kind is None:
        kind = detect(source)
    elif not CORPORA[kind].is_one_file or not source.is_file():
        require_folder(source)
    made = CORPORA[kind]
    given = {"labels": labels, "text_field": text_field}
    options: dict[str, Any] = {name: value for name, value in given.items() if value is not None}
    for name in options.keys() - made.options:
        raise CorpusError(
            f"--{name.replace('_', '-')} does not go with {kind}, which is what"
            f" {show_path(source)} is taken for; leave it out, or choose with --corpus"
        )
    return made(source, **options)


def from_spec(source: Path, spec: dict[str, Any]) -> Corpus:
    """The corpus whose ``spec()`` this is, made without looking at the input; for reading runs."""
    kinds: dict[str, type[Corpus]] = {**CORPORA, **CONVERTED}
    return kinds[spec["kind"]].from_spec(source, spec)
