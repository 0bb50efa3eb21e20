"""Where a large text can be cut so that its parts have the ids of the whole.

Before a single space or newline between two letters, or before a comma or full stop of Chinese and
Japanese: GPT-2's pattern, and all that came of it, begin a new piece of text there. A tokenizer
that puts a space before each text (Llama 2's) has the same ids if the space at the cut is left out.
Whether a tokenizer does either is tried on awkward text and on the beginning of each large text.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import NamedTuple

import numpy as np

from shardkit.arrays import Tokens
from shardkit.errors import SampleError
from shardkit.tokens.awkward import TEXTS

PIECE_CHARS = 1 << 20
"""Longer texts are encoded in parts of about that. ``tokenizers`` takes up to 250 bytes of memory a
character; tiktoken takes a run of a million letters in half a second, and longer ones no slower."""

WHOLE_CHARS = 4 << 20
"""What is encoded at once where no way of cutting is good: up to 1 GB of memory."""

TRIED_CHARS = 50_000
"""How much of the beginning of a document cutting is tried on; some 20 ms."""


class Cut(NamedTuple):
    """A way of cutting: before each match of ``place``, of which ``num_dropped`` characters go."""

    place: re.Pattern[str]
    num_dropped: int


CUTS = (
    Cut(re.compile(r"(?<=[^\W\d_])(?:[ \n](?=[^\W\d_])|[、。，](?=[^\W\d_]))"), 0),
    Cut(re.compile(r"(?<=[^\W\d_]) (?=[^\W\d_])"), 1),
)
"""In the order in which they are tried."""

Encode = Callable[[Sequence[str]], list[Tokens]]


def last_place(cut: Cut, text: str) -> int:
    """The last place where a text can be cut; 0 if there is none."""
    for size in (1 << 12, 1 << 16, len(text)):
        places = [match.start() for match in cut.place.finditer(text, max(len(text) - size, 0))]
        if places:
            return places[-1]
    return 0


def all_parts(cut: Cut, text: str) -> list[str]:
    """A text, cut wherever it can be."""
    places = [match.start() for match in cut.place.finditer(text)]
    starts = [0, *(place + cut.num_dropped for place in places)]
    return [text[a:b] for a, b in zip(starts, [*places, len(text)], strict=True)]


def choose_cut(encode: Encode, beginning: str) -> Cut | None:
    """The first way of cutting that changes no ids, if there is one."""
    texts = [" and ".join(TEXTS), beginning]
    whole = encode(texts)
    for cut in CUTS:
        parts = [np.concatenate(encode(all_parts(cut, text))) for text in texts]
        if all(map(np.array_equal, whole, parts)):
            return cut
    return None


def encode_parts(encode: Encode, chunks: Iterable[str]) -> Iterator[Tokens]:
    """The ids of a large text that comes in chunks.

    A text without a place to cut for :data:`PIECE_CHARS` characters is cut after them: there, and
    only there, ids may differ from those of the whole; decoded, they are the same text.

    Raises:
        SampleError: no way of cutting is good, and the text is over :data:`WHOLE_CHARS`.
    """
    text, cut, is_first = "", None, True
    for chunk in chunks:
        text += chunk
        if is_first:
            cut, is_first = choose_cut(encode, text[:TRIED_CHARS]), False
        if cut is None:
            _refuse_larger(text)
        while cut is not None and len(text) >= PIECE_CHARS:
            place = last_place(cut, text[:PIECE_CHARS])
            yield encode([text[: place or PIECE_CHARS]])[0]
            text = text[place + cut.num_dropped if place else PIECE_CHARS :]
    if text:
        yield encode([text])[0]


def _refuse_larger(text: str) -> None:
    if len(text) > WHOLE_CHARS:
        raise SampleError(
            f"a document of over {WHOLE_CHARS:,} characters, and this tokenizer's ids change"
            " wherever text is cut: cut it up before packing"
        )
