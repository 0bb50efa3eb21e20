"""Tables that no corpus reads, and Hugging Face ``datasets`` does: advice for messages."""

from __future__ import annotations

from collections.abc import Mapping

LOADERS = {".arrow": "arrow", ".csv": "csv", ".tsv": "csv", ".json": "json"}
"""By the ending of a file, what ``load_dataset`` calls its kind; JSON may lie beside others and
tell of them."""

_OF_SEVERAL = (
    "; of several files it makes one table, without their names and folders, unless"
    " data_files={'train': ..., 'test': ...} tells them apart"
)

_OF_CSV = "; if its first line is a row, with column_names=[...], too, or that row is lost"


def load_advice(endings: Mapping[str, int], where: str, what: str = "data_dir") -> str:
    """What to run for so many files of each ending, as the end of a message; ``""`` if nothing is
    known.

    ``what``: the argument that takes ``where``: a folder, or ``data_files``.
    """
    known = [ending for ending in LOADERS if endings.get(ending)]
    if not known:
        return ""
    tabs = ", delimiter='\\t', quoting=3, keep_default_na=False" if known[0] == ".tsv" else ""
    loaded = f"datasets.load_dataset({LOADERS[known[0]]!r}, {what}={where!r}{tabs})"
    is_csv = LOADERS[known[0]] == "csv"
    more = _OF_CSV * is_csv + _OF_SEVERAL * (is_csv and endings[known[0]] > 1)
    return f"; if it is a table, in Python: shardkit.pack({loaded}, DEST, to=...){more}"
