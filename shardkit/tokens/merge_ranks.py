"""A byte-level BPE of merges as one of ranks, the form that tiktoken runs.

``tokenizers`` merges the pairs that its list of merges names, in the list's order; tiktoken merges
any two neighbours whose bytes, joined, are in its vocabulary, in the order of the vocabulary. Let
the merges alone make the bytes of a token T: if they end at T, then two neighbours that make T are
never any others than the last two of that, whatever stands around them, since nothing was merged
over their border. So it does not matter that tiktoken would merge others, and the two agree on
every piece of text if each token's rank is the place of its merge, and tokens that the merges do
not make are left out.

With ``ignore_merges`` a piece that is a token as a whole is that token in both, so tokens that are
not made must stay in; that is good while none of them ends as two parts, which tiktoken would join.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

from shardkit.errors import FormatError
from shardkit.tokens.bytelevel import alphabet_bytes
from shardkit.tokens.definition import vocabulary

NumParts = Callable[[str], int]
"""How many tokens the merges make of a token's text."""


class Ranked(NamedTuple):
    """Tokens in the order of their merges: ``tokens[rank]`` is a token's bytes, ``ids[rank]`` its
    id."""

    tokens: list[bytes]
    ids: list[int]


def merges_of(model: dict[str, Any]) -> list[tuple[str, str]]:
    """The merges of a BPE, in order: written as pairs, or as in old files, as ``"a b"``.

    Raises:
        FormatError: neither.
    """
    found = []
    merges = model.get("merges")
    for merge in merges if isinstance(merges, list) else ():
        pair = merge.split(" ") if isinstance(merge, str) else merge
        if (
            not isinstance(pair, list)
            or len(pair) != 2
            or not all(isinstance(s, str) for s in pair)
        ):
            raise FormatError(f"tokenizer.json: {str(merge)[:60]!r} is no merge")
        found.append((pair[0], pair[1]))
    return found


def rank_tokens(raw: dict[str, Any], num_parts: NumParts) -> Ranked | str:
    """The ranks of a byte-level ``tokenizer.json``, or why it has none."""
    ids = {token: i for token, i in vocabulary(raw).items() if alphabet_bytes(token) is not None}
    singles = [token for token in ids if len(token) == 1]
    if len(singles) != 256:
        return f"its vocabulary has {len(singles)} of the 256 bytes"
    places = _places(merges_of(raw["model"]))
    if places is None:
        return "merges that make the same token lie apart"
    ordered = sorted((place, token) for token, place in places.items() if token in ids)
    made = [token for _, token in ordered if num_parts(token) == 1]
    if raw["model"].get("ignore_merges"):
        left = ids.keys() - set(made) - set(singles)
        if any(num_parts(token) == 2 for token in left):
            return "a token that its merges do not make would be merged"
        made += sorted(left)
    tokens = singles + made
    return Ranked([alphabet_bytes(token) or b"" for token in tokens], [ids[t] for t in tokens])


def _places(merges: list[tuple[str, str]]) -> dict[str, int] | None:
    """Token -> place of its first merge; None unless all merges of each token are neighbours."""
    places: dict[str, int] = {}
    before = None
    for place, (left, right) in enumerate(merges):
        token = left + right
        if token != before and places.setdefault(token, place) != place:
            return None
        before = token
    return places
