"""What turns text into ids: the seam between a tokenizer and the library that runs it."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from importlib import import_module
from typing import Any, Protocol

from shardkit.arrays import Tokens
from shardkit.errors import FormatError, UsageError
from shardkit.tokens.spec import TokenizerSpec

INSTALL = "pip install 'shardkit[tokens]'"


def library(name: str) -> Any:
    """The module of a library of tokenizers. Raises UsageError where it is not installed."""
    try:
        return import_module(name)
    except ImportError as error:
        raise UsageError(f"this needs the library {name}: {INSTALL}") from error


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


@contextmanager
def refusals(what: str) -> Iterator[None]:
    """Turn what a library of Rust refuses into a FormatError that says what was refused."""
    try:
        yield
    except BaseException as error:
        if not is_refusal(error):
            raise
        raise FormatError(f"{what}: {str(error)[:120]}") from error


def is_refusal(error: BaseException) -> bool:
    """Whether a library of Rust refused: by an exception, or by a panic, which pyo3 derives from
    BaseException."""
    return isinstance(error, Exception) or type(error).__name__ == "PanicException"
