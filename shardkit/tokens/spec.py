"""What a dataset of tokens says about its tokenizer: ``corpus["tokens"]`` of ``shardkit.json``."""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import asdict, dataclass, fields
from typing import Any, Literal

import numpy as np
import xxhash

from shardkit.errors import FormatError

Kind = Literal["tokenizer.json", "tiktoken"]

FILES: dict[str | None, str | None] = {
    "tokenizer.json": "tokenizer.json",
    "tiktoken": "tokenizer.tiktoken",
    None: None,
}
"""Kind of tokenizer -> what its file in the dataset's folder is called."""

MAX_FILE_BYTES = 64 << 20
"""The largest published, Gemma's of 256,000 entries, has 34 MB; parsed, it is ten times that."""

MAX_VOCABULARY = 2**31
"""Ids of both libraries are 32 bits; Megatron's and PyTorch's are signed."""

MAX_PATTERN = 10_000
"""Characters; the longest known has 400."""

_DTYPES = ("|u1", "<u2", "<u4")
_XXH3 = re.compile("[0-9a-f]{16}")


def smallest_dtype(vocab_size: int) -> str:
    """The smallest dtype that holds ids below ``vocab_size``, as numpy writes it."""
    return next(name for name in _DTYPES if vocab_size <= capacity(name))


def capacity(dtype: str) -> int:
    """How many ids a dtype can tell apart."""
    return int(np.iinfo(dtype).max) + 1


@dataclass(frozen=True, kw_only=True)
class TokenizerSpec:
    """Everything that is needed to read a dataset's ids back to text.

    Attributes:
        kind: None if the tokenizer is unknown: ids that others made.
        file: its file's name in the dataset's folder.
        num_bytes: the size of that file; ``bytes`` in the JSON.
        xxh3: XXH3-64 of that file, 16 hex digits.
        name: what people call it, if known.
        pattern: of tiktoken: the regular expression that cuts text into pieces.
        special_tokens: of tiktoken: text -> id.
        vocab_size: the largest id + 1.
        dtype: of the ids on disk.
        eos: the id at the end of each document, None if there is none.
        bos: the id at the start of each document, None if there is none.
        invalid_utf8: what was done with text that is not UTF-8.
        is_lossless: whether decoded ids are the text, byte for byte.
    """

    kind: Kind | None = None
    file: str | None = None
    num_bytes: int = 0
    xxh3: str = "0" * 16
    name: str | None = None
    pattern: str | None = None
    special_tokens: dict[str, int] | None = None
    vocab_size: int
    dtype: str
    eos: int | None = None
    bos: int | None = None
    invalid_utf8: Literal["reject", "replace"] = "reject"
    is_lossless: bool = False

    def to_json(self) -> dict[str, Any]:
        return {_JSON_NAMES.get(name, name): value for name, value in asdict(self).items()}

    @classmethod
    def from_json(cls, raw: Any) -> TokenizerSpec:
        """Check and build; ``raw`` is not trusted.

        Raises:
            FormatError: anything :meth:`to_json` cannot have written.
        """
        names = {_JSON_NAMES.get(f.name, f.name): f.name for f in fields(cls)}
        if not isinstance(raw, dict) or raw.keys() != names.keys():
            raise FormatError(f"corpus.tokens must have the entries {', '.join(sorted(names))}")
        for name, is_good in _CHECKS.items():
            if not is_good(raw[name]):
                raise FormatError(f"corpus.tokens: {name} is {str(raw[name])[:60]!r}")
        made = cls(**{names[name]: value for name, value in raw.items()})
        if problem := _contradiction(made):
            raise FormatError(f"corpus.tokens: {problem}")
        return made

    def matches(self, data: bytes) -> bool:
        """Whether these are the bytes of the tokenizer's file."""
        return (len(data), checksum(data)) == (self.num_bytes, self.xxh3)


def checksum(data: bytes) -> str:
    """XXH3-64, 16 hex digits."""
    return f"{xxhash.xxh3_64_intdigest(data):016x}"


def _is_count(value: Any, most: int) -> bool:
    return type(value) is int and 0 <= value <= most


def _is_id(value: Any) -> bool:
    return value is None or _is_count(value, MAX_VOCABULARY - 1)


def _are_special_tokens(value: Any) -> bool:
    if value is None:
        return True
    return isinstance(value, dict) and all(_is_count(i, MAX_VOCABULARY) for i in value.values())


_JSON_NAMES = {"num_bytes": "bytes"}

_CHECKS: dict[str, Callable[[Any], bool]] = {
    "kind": lambda v: isinstance(v, str | None) and v in FILES,
    "file": lambda v: isinstance(v, str | None) and v in FILES.values(),
    "bytes": lambda v: _is_count(v, MAX_FILE_BYTES),
    "xxh3": lambda v: isinstance(v, str) and _XXH3.fullmatch(v) is not None,
    "name": lambda v: v is None or (isinstance(v, str) and len(v) <= 255 and v.isprintable()),
    "pattern": lambda v: v is None or (isinstance(v, str) and len(v) <= MAX_PATTERN),
    "special_tokens": _are_special_tokens,
    "vocab_size": lambda v: _is_count(v, MAX_VOCABULARY) and v > 0,
    "dtype": lambda v: v in _DTYPES,
    "eos": _is_id,
    "bos": _is_id,
    "invalid_utf8": lambda v: v in ("reject", "replace"),
    "is_lossless": lambda v: isinstance(v, bool),
}
"""Each entry by itself."""


def _contradiction(spec: TokenizerSpec) -> str | None:
    """What two entries say against each other, if they do."""
    is_tiktoken = spec.kind == "tiktoken"
    if spec.file != FILES[spec.kind]:
        return f"the file of a {spec.kind} tokenizer is {FILES[spec.kind]}, got {spec.file}"
    if is_tiktoken != (spec.pattern is not None) or is_tiktoken != (
        spec.special_tokens is not None
    ):
        return "pattern and special_tokens are tiktoken's, and it needs both"
    if spec.vocab_size > capacity(spec.dtype):
        return f"{spec.vocab_size} ids do not fit {spec.dtype}"
    ids = [spec.eos, spec.bos, *(spec.special_tokens or {}).values()]
    if any(i is not None and i >= spec.vocab_size for i in ids):
        return f"a special token's id is not below vocab_size {spec.vocab_size}"
    return None
