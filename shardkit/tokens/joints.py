"""Where a text can be cut so that its parts have the ids of the whole.

Between a letter and a single space or newline that another letter follows: GPT-2's pattern and all
that came of it begin a new piece there. Whether a tokenizer does so is tried on the document's own
first characters; one that does not gets documents whole.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Sequence

import numpy as np

from shardkit.tokens.library import Ids

_JOINT = re.compile(r"(?<=[^\W\d_])(?=[ \n][^\W\d_])")

Encode = Callable[[Sequence[str]], list[Ids]]

TRIED = 50_000
"""Characters on which is tried whether cutting changes ids."""

MAX_RUN = 4 << 20
"""Characters without a place to cut, after which a text is cut between any two: ids at that place
may differ from those of the whole, its text does not."""


def last_joint(text: str) -> int:
    """The last place to cut; 0 if there is none."""
    for size in (1 << 12, 1 << 16, len(text)):
        start = max(len(text) - size, 0)
        places = [match.start() for match in _JOINT.finditer(text, start)]
        if places:
            return places[-1]
    return 0


def cuts_change_ids(encode: Encode, text: str) -> bool:
    """Whether a text cut at all places has other ids than the whole."""
    whole, parts = encode([text])[0], encode(_JOINT.split(text))
    return not np.array_equal(whole, np.concatenate(parts))


class Joints:
    """Text comes in as it is read, and goes out as ids, cut at good places."""

    def __init__(self, encode: Encode) -> None:
        self._encode = encode
        self._text = ""
        self._is_cut: bool | None = None

    def add(self, text: str) -> None:
        self._text += text
        if self._is_cut is None:
            self._is_cut = not cuts_change_ids(self._encode, text[:TRIED])

    def finished(self) -> Iterator[Ids]:
        """Ids of what can be encoded by now."""
        if not self._is_cut:
            return
        end = last_joint(self._text)
        if not end and len(self._text) >= MAX_RUN:
            end = len(self._text)
        if end:
            yield self._encode([self._text[:end]])[0]
            self._text = self._text[end:]

    def rest(self) -> Iterator[Ids]:
        if self._text:
            yield self._encode([self._text])[0]
        self._text = ""
