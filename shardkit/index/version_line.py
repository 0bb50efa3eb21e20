"""The history of a dataset: a line for each of its versions."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import Any

_MAX_WHAT = 10_000
"""Characters; what is written is cut to fewer, so that it can be read again."""

_CUT_AT = 1000


@dataclass(frozen=True)
class VersionLine:
    """One version of a dataset.

    Attributes:
        number: from 1, which is what was packed.
        when: it was made, as ``2026-11-25T10:00:00Z``; of the first, nothing says.
        what: was done, in words.
        num_rows, fingerprints: of each split.
        asked: a checksum of the call that made it, by which the same call is known again.
    """

    number: int
    when: str | None
    what: str
    num_rows: dict[str, int]
    fingerprints: dict[str, str]
    asked: str | None = None

    def to_json(self) -> dict[str, Any]:
        what = self.what if len(self.what) <= _CUT_AT else f"{self.what[: _CUT_AT - 3]}..."
        return asdict(self) | {"what": what}

    @classmethod
    def from_json(cls, raw: Any) -> VersionLine:
        """Check and build; entries that newer writers add are left out. Raises ValueError, KeyError
        or TypeError for what is none."""
        made = cls(**{name: raw[name] for name in cls.__dataclass_fields__ if name in raw})
        ok = type(made.number) is int and isinstance(made.what, str) and len(made.what) < _MAX_WHAT
        ok = ok and all(isinstance(each, str | None) for each in (made.when, made.asked))
        ok = ok and all(type(rows) is int for rows in made.num_rows.values())
        if not (ok and all(isinstance(each, str) for each in made.fingerprints.values())):
            raise ValueError("bad history")
        return made
