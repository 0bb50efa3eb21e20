"""What a pack knows of its input once all of it is listed."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from shardkit.inputs.base import Corpus
from shardkit.packing.listing import Listing


@dataclass(frozen=True)
class ListedInput:
    """Plain values, so that who has no access to the input may have them.

    Attributes:
        kind, classes, spec, ignored, notes: as of :class:`shardkit.inputs.base.Corpus`.
        num_entries, num_bytes: listed. contents, seen: checksums of that, as of
            :class:`shardkit.packing.listing.Listing`.
    """

    kind: str
    classes: list[str] | None
    spec: dict[str, Any]
    ignored: dict[str, int]
    notes: list[str]
    num_entries: int
    num_bytes: int
    contents: str
    seen: str

    @classmethod
    def of(cls, corpus: Corpus, listing: Listing) -> ListedInput:
        return cls(
            kind=corpus.kind,
            classes=corpus.classes,
            spec=corpus.spec(),
            ignored=dict(corpus.ignored),
            notes=[*corpus.notes],
            num_entries=listing.num_entries,
            num_bytes=listing.num_bytes,
            contents=listing.contents,
            seen=listing.seen,
        )
