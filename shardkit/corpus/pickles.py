"""Folders of pickles, as CIFAR's, which are refused: to read one may run any code."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from shardkit.corpus.names import extension
from shardkit.errors import CorpusError
from shardkit.system.paths import show_path

MAX_FILES = 64
"""Files looked into: a folder of more is hardly one of a few large pickles."""

_ENDINGS = frozenset({"", ".pkl", ".pickle"})

_BEGIN = (b"\x80\x02", b"\x80\x03", b"\x80\x04", b"\x80\x05")
"""Of a pickle by protocol 2 to 5."""

_LINES = """\
import pickle, numpy as np
for name in {names!r}:
    with open(name, "rb") as file:
        old = pickle.load(file, encoding="latin1")  # a dict of arrays and lists
    np.savez("plain-" + name + ".npz", **{{str(key): np.array(old[key]) for key in old}})"""


def refuse_pickles(source: Path, names: Sequence[str], num_known: int) -> None:
    """Refuse a folder with more pickles among ``names``, those at its top, than files that can be
    packed.

    Raises:
        CorpusError: so it is. Its note has lines of Python that make plain files of them.
    """
    there = [name for name in names if extension(name) in _ENDINGS]
    if not num_known < len(there) <= MAX_FILES:
        return
    pickles = [name for name in there if _is_pickle(source / name)]
    if len(pickles) <= num_known:
        return
    error = CorpusError(
        f"{show_path(source)} holds pickles ({show_path(pickles[0])}, ...), which shardkit never"
        " reads, since they may run any code; if you trust whoever made them, these lines make"
        " plain files of them, which --corpus rows packs from a folder of their own"
    )
    error.add_note(_LINES.format(names=pickles))
    raise error


def _is_pickle(path: Path) -> bool:
    try:
        with path.open("rb") as file:
            return file.read(2) in _BEGIN
    except OSError:
        return False
