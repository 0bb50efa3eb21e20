"""Tables that no corpus reads, and Hugging Face ``datasets`` does: advice for messages."""

from __future__ import annotations

from collections.abc import Iterable

LOADERS = {".arrow": "arrow", ".csv": "csv", ".tsv": "csv", ".json": "json"}
"""By the ending of a file, what ``load_dataset`` calls its kind; JSON may lie beside others and
tell of them."""

_OF_CSV = "; if its first line is a row, with column_names=[...], too, or that row is lost"


def load_advice(endings: Iterable[str], where: str, what: str = "data_dir") -> str:
    """What to run for files of these endings, as the end of a message; ``""`` if nothing is known.

    ``what``: the argument that takes ``where``: a folder, or ``data_files``.
    """
    there = {*endings}
    known = [ending for ending in LOADERS if ending in there]
    if not known:
        return ""
    tabs = ", delimiter='\\t', quoting=3" if known[0] == ".tsv" else ""
    loaded = f"datasets.load_dataset({LOADERS[known[0]]!r}, {what}={where!r}{tabs})"
    more = _OF_CSV if LOADERS[known[0]] == "csv" else ""
    return f"; if it is a table, in Python: shardkit.pack({loaded}, DEST, to=...){more}"
