"""What turns text into ids: the seam between a tokenizer and the library that runs it."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

from shardkit.arrays import Tokens
from shardkit.errors import FormatError
from shardkit.tokens.spec import TokenizerSpec

INSTALL = "pip install 'shardkit[tokens]'"


class Backend(Protocol):
    """Encodes on one thread, for one thread at a time. Made in each process: never pickled."""

    def encode(self, texts: Sequence[str]) -> list[Tokens]:
        """(n,) ids a text, of the spec's dtype; special tokens in the text are text.

        Raises:
            FormatError: an id that the vocabulary does not have.
        """


def narrow(ids: Tokens, spec: TokenizerSpec) -> Tokens:
    """Ids of the spec's dtype, checked before they are narrowed. Raises FormatError."""
    if len(ids) and ids.max() >= spec.vocab_size:
        raise FormatError(
            f"the tokenizer gives id {ids.max()}, its vocabulary ends at {spec.vocab_size - 1}"
        )
    return ids.astype(spec.dtype)


def is_refusal(error: BaseException) -> bool:
    """Whether a library of Rust refused: by an exception, or by a panic, which pyo3 derives from
    BaseException."""
    return isinstance(error, Exception) or type(error).__name__ == "PanicException"
