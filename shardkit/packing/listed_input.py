"""What a pack knows of its input once all of it is listed."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from shardkit.corpus.base import Corpus
from shardkit.packing.left_out import LeftOut
from shardkit.packing.listing import Listing


@dataclass(frozen=True)
class ListedInput:
    """Plain values, so that who has no access to the input may have them.

    Attributes:
        kind, classes, spec, ignored, notes: as of :class:`shardkit.corpus.base.Corpus`.
        num_entries, num_bytes: listed. contents, state, seen: checksums of that, as of
            :class:`shardkit.packing.listing.Listing`.
        left_out: what was left out as duplicates and is not listed, as JSON of
            :class:`shardkit.packing.left_out.LeftOut`; None where none was looked for.
    """

    kind: str
    classes: list[str] | None
    spec: dict[str, Any]
    ignored: dict[str, int]
    notes: list[str]
    num_entries: int
    num_bytes: int
    contents: str
    state: str
    seen: str
    left_out: dict[str, int] | None = None

    @classmethod
    def of(cls, corpus: Corpus, listing: Listing, left_out: LeftOut | None = None) -> ListedInput:
        return cls(
            kind=corpus.kind,
            classes=corpus.classes,
            spec=corpus.spec(),
            ignored=dict(corpus.ignored),
            notes=[*corpus.notes],
            num_entries=listing.num_entries,
            num_bytes=listing.num_bytes,
            contents=listing.contents,
            state=listing.state,
            seen=listing.seen,
            left_out=None if left_out is None else left_out.to_json(),
        )

    @property
    def num_duplicates(self) -> int:
        """Inputs that were left out."""
        return 0 if self.left_out is None else self.left_out["inputs"]

    @property
    def all_notes(self) -> list[str]:
        """What there is to say of the input, and of what was left out."""
        told = [] if self.left_out is None else [LeftOut(**self.left_out).note]
        return [*self.notes, *told]
