"""A ``tokenizer.json``, as the JSON it is: what can be said of it without the library.

Nothing in the file is trusted: it may come with a dataset from anywhere.
"""

from __future__ import annotations

import json
from typing import Any

from shardkit.errors import FormatError
from shardkit.tokens.spec import MAX_VOCABULARY


def parse_definition(data: bytes) -> dict[str, Any]:
    """The file's JSON.

    Raises:
        FormatError: not JSON, or not of a tokenizer.
    """
    try:
        raw = json.loads(data)
    except (ValueError, RecursionError, MemoryError) as error:
        what = f"{type(error).__name__} {error}"[:120]
        raise FormatError(f"tokenizer.json is not JSON ({what})") from error
    if not isinstance(raw, dict) or not isinstance(raw.get("model"), dict):
        raise FormatError("tokenizer.json is JSON, but of no tokenizer: it has no model")
    return raw


def vocabulary(raw: dict[str, Any]) -> dict[str, int]:
    """Token -> id of the model, without added tokens; empty if it is kept in another way.

    Raises:
        FormatError: something else than text and numbers.
    """
    found = raw["model"].get("vocab")
    if not isinstance(found, dict):
        return {}
    if not all(map(_is_id, found.values())):
        raise FormatError(f"tokenizer.json: an id in model.vocab is not in 0 to {MAX_VOCABULARY}")
    return found


def added_tokens(raw: dict[str, Any]) -> list[dict[str, Any]]:
    """Tokens that are found in the text before the model sees it.

    Raises:
        FormatError: not a list of tokens.
    """
    found = raw.get("added_tokens") or []
    if not isinstance(found, list) or not all(_is_added(token) for token in found):
        raise FormatError("tokenizer.json: added_tokens is no list of tokens")
    return found


def _is_added(token: Any) -> bool:
    return (
        isinstance(token, dict)
        and isinstance(token.get("content"), str)
        and _is_id(token.get("id"))
    )


def _is_id(value: Any) -> bool:
    return type(value) is int and 0 <= value < MAX_VOCABULARY


def parts(raw: dict[str, Any], name: str, within: str) -> list[dict[str, Any]]:
    """The steps of a normalizer, pre-tokenizer or decoder: those of a ``Sequence``, or the one.

    ``within`` is where a ``Sequence`` keeps them.
    """
    step = raw.get(name)
    steps = (
        step.get(within) if isinstance(step, dict) and step.get("type") == "Sequence" else [step]
    )
    return [s for s in steps if isinstance(s, dict)] if isinstance(steps, list) else []
