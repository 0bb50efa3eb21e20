"""What columns several files of tables have: what the first undamaged file of each split says."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass

from shardkit.inputs.tables.columns import Facts

Look = tuple[str, str, Callable[[], Facts | None]]
"""A file's split, its name for messages, and what gives its columns, or None if it is damaged."""


@dataclass(frozen=True)
class Survey:
    """All columns of all splits.

    Attributes:
        facts: of every column, in the order in which they were found. where: the first file.
        lacking: split -> the columns that other splits have, and it has not.
    """

    facts: Facts
    where: str
    lacking: dict[str, frozenset[str]]

    def notes(self, packed: Sequence[str]) -> list[str]:
        """What there is to say of the columns that are packed, a line each."""
        return [
            f"split {split!r} has no column{'s' * (len(absent) > 1)} {', '.join(map(repr, absent))}"
            for split, lacking in self.lacking.items()
            if (absent := [name for name in packed if name in lacking])
        ]


def survey(files: Iterable[Look]) -> Survey | None:
    """Look at the first file of each split, and at more where a column has only nulls: it is one of
    whatever a later file has. None if there is no undamaged file."""
    facts: Facts = {}
    first = ""
    seen: dict[str, frozenset[str]] = {}
    for split, where, look in files:
        if split in seen and not _nulls(facts):
            continue
        own = look()
        if own is None:
            continue
        first = first or where
        if split not in seen:
            seen[split] = frozenset(own)
            _add(facts, own)
        facts.update({name: own[name] for name in _nulls(facts) if name in own})
    if not seen:
        return None
    lacking = {split: frozenset(facts.keys() - names) for split, names in seen.items()}
    return Survey(facts, first, lacking)


def _add(facts: Facts, own: Facts) -> None:
    """Columns of another split. A test split may have numbers of classes, and train their names."""
    for name, fact in own.items():
        known = facts.setdefault(name, fact)
        if known.names is None and known.how == fact.how:
            facts[name] = fact


def _nulls(facts: Facts) -> list[str]:
    return [name for name, fact in facts.items() if fact.how == "nothing"]
