"""Which keys lines of JSON have: what is left out of them, and what was chosen and is not there."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from shardkit.errors import CorpusError
from shardkit.inputs.tables.columns import CLASS_WORDS, LABEL_NAMES, field_base

HEAD_BYTES = 256 << 10
"""Of a file whose keys are looked at, so that those that are left out can be named."""

SHOWN_KEYS = 10


def first_keys(head: bytes, is_whole: bool) -> dict[str, Any]:
    """The keys of the first lines of a file, in the order they come in, each with its first value
    that is not null; ``is_whole``: ``head`` is all of it, and does not end in the middle of a
    line."""
    lines = head.split(b"\n")
    found: dict[str, Any] = {}
    for line in lines if is_whole else lines[:-1]:
        try:
            held = json.loads(line.decode("utf-8-sig"))
        except (ValueError, RecursionError):
            continue  # reading makes a reject of it
        for key, value in held.items() if isinstance(held, dict) else ():
            if found.get(key) is None:
                found[key] = value
    return found


def notes_on_keys(
    seen: Mapping[str, Any], fields: Sequence[str] | None, text: str | None
) -> list[str]:
    """What is left out of lines that have such keys, what was chosen and was not seen, and what is
    no class though it is called as one."""
    packed = fields if fields is not None else [text]
    others = [key for key in seen if key not in packed]
    notes = []
    if others:
        shown = ", ".join(map(repr, others[:SHOWN_KEYS])) + (", ..." * (len(others) > SHOWN_KEYS))
        how = "not among --fields"
        if fields is None:
            how = (
                f"--fields {','.join([str(text), *others[:SHOWN_KEYS]])} keeps them beside the text"
            )
        notes.append(f"left out of each line: {shown} ({how})")
    label = next((key for key in LABEL_NAMES if key in packed and key != text), None)
    notes += [
        f"key {key!r} is field {field_base(key)}.{'txt' if isinstance(seen[key], str) else 'json'},"
        f" not cls, which is a whole number under {', '.join(LABEL_NAMES)}"
        for key in fields or ()
        if key.lower() in CLASS_WORDS and key != text and seen.get(key) is not None
        if label is None or type(seen.get(label)) is not int
    ]
    missing = [key for key in fields or () if key not in seen]
    if missing and seen:
        notes.append(f"the first lines of the first file have no {', '.join(map(repr, missing))}")
    return notes


class KeySearch:
    """Whether chosen keys that are not in the first lines are in any later ones: who misspelt a key
    is told so, and who chose one that comes late is not refused.

    Keys are looked for as bytes, quotes and all, wherever they stand, in what is read to list lines
    anyway.
    """

    def __init__(self, keys: Sequence[str], seen: Sequence[str]) -> None:
        self.missing = [key for key in keys if key not in seen] if seen else []
        self._seen = seen

    def reader(self, read: Callable[[int], bytes]) -> Callable[[int], bytes]:
        """``read``, of which each block is looked through."""
        if not self.missing:
            return read
        longest = max(len(form) for key in self.missing for form in _written(key))
        tail = b""

        def searched(size: int) -> bytes:
            nonlocal tail
            block = read(size)
            self.look(tail + block[:longest])
            self.look(block)
            tail = (tail + block)[-longest:]
            return block

        return searched

    def look(self, block: bytes) -> None:
        self.missing = [
            key for key in self.missing if not any(form in block for form in _written(key))
        ]

    def refuse(self, where: str) -> None:
        """Raise CorpusError if a key is in no line."""
        if self.missing:
            shown = ", ".join(map(repr, self._seen[:SHOWN_KEYS]))
            raise CorpusError(
                f"no line of {where} has {', '.join(map(repr, self.missing))}, which --fields"
                f" names; the first ones have {shown}{', ...' * (len(self._seen) > SHOWN_KEYS)}"
            )


def _written(key: str) -> set[bytes]:
    """How JSON may have a key: as it is, or in ASCII."""
    forms = {json.dumps(key), json.dumps(key, ensure_ascii=False)}
    return {form.encode("utf-8", "surrogatepass") for form in forms}
