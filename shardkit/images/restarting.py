"""Restart markers in the JPEGs of a dataset: added and counted while packing, put into words, and
removed again while unpacking."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping

from shardkit.images.markers import is_jpeg
from shardkit.images.restarts import Outcome, add_restarts, has_restarts, remove_restarts
from shardkit.samples.sample import Value
from shardkit.system.byte_sizes import format_bytes

FIELD = "jpg"
"""The only field whose values are given markers."""

_PREFIX = "restarts "
"""Of what is counted here, among what else is counted of pictures."""

OTHER, ELSEWHERE, BEFORE, AFTER = "other", "elsewhere", "before", "after"
"""Counted beside each outcome: pictures that are no JPEGs, JPEGs in fields of other names, and the
bytes of JPEGs that were rewritten, before and after."""

_WORDS = {
    Outcome.SMALL: "too small to gain by it",
    Outcome.HAS_OWN: "with restart markers of their own",
    Outcome.UNSUITED: "of another kind (CMYK, arithmetic codes, 12 bits) or too large",
    Outcome.UNLIKE: "which would not come back to the byte",
    Outcome.BROKEN: "damaged or cut off",
    OTHER: "no JPEGs",
    ELSEWHERE: "in fields of other names than jpg",
}


def with_restarts(value: Value, kind: str, counts: Counter[str] | None = None) -> Value:
    """A picture as it is stored with restart markers: itself, if it is no JPEG or not for them.

    Args:
        kind: the name of its field, which in tars of others need not be what it is. counts: counts
            what became of it.

    Raises:
        UsageError: this needs a module that was not built.
    """
    counts = Counter() if counts is None else counts
    if kind != FIELD or not is_jpeg(value):
        left_as_it_is(value, counts)
        return value
    made, outcome = add_restarts(value)
    if outcome is Outcome.ADDED:
        counts[_PREFIX + BEFORE] += len(value)
        counts[_PREFIX + AFTER] += len(made)
    counts[_PREFIX + outcome] += 1
    return made


def left_as_it_is(value: Value, counts: Counter[str]) -> None:
    """Count what is in a field that is given no markers, or no JPEG."""
    counts[_PREFIX + (ELSEWHERE if is_jpeg(value) else OTHER)] += 1


def without_restarts(value: Value) -> Value:
    """What :func:`with_restarts` was given.

    Raises:
        BadImageError: it is damaged. UsageError: this needs a module that was not built.
    """
    return remove_restarts(value) if has_restarts(value) else value


def counted(counts: Mapping[str, int]) -> dict[str, int]:
    """Of what was counted of pictures, the part of :func:`with_restarts`."""
    return {
        name.removeprefix(_PREFIX): number
        for name, number in counts.items()
        if name.startswith(_PREFIX)
    }


def told(counts: Mapping[str, int]) -> str:
    """What was :func:`counted`, in words; ``""`` if nothing was."""
    if not counts:
        return ""
    number = counts.get(Outcome.ADDED, 0)
    said = f"restart markers: {number:,} JPEG{'s' * (number != 1)} rewritten"
    if number:
        before, after = counts[BEFORE], counts[AFTER]
        said += (
            f", {100 * (after / before - 1):+.1f} % in bytes ({format_bytes(before)} became"
            f" {format_bytes(after)})"
        )
    if noted := counts.get(Outcome.NOTED):
        said += f"; {noted:,} had shardkit's already"
    left = {words: counts[name] for name, words in _WORDS.items() if counts.get(name)}
    if left:
        reasons = ", ".join(f"{many:,} {words}" for words, many in left.items())
        said += f"; {sum(left.values()):,} left as they are: {reasons}"
    return said
