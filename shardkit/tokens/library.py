"""The engine for any ``tokenizer.json``: Hugging Face's ``tokenizers``."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from shardkit.errors import FormatError, UsageError

if TYPE_CHECKING:
    import tokenizers

Ids = np.ndarray[Any, np.dtype[Any]]

INSTALL = "pip install 'shardkit[tokens]'"


def import_tokenizers() -> Any:
    """The module. Raises UsageError where it is not installed."""
    try:
        import tokenizers
    except ImportError as error:
        raise UsageError(f"this tokenizer needs the library tokenizers: {INSTALL}") from error
    return tokenizers


def parse_tokenizer(data: bytes) -> tokenizers.Tokenizer:
    """The library's tokenizer, made to encode whole text as text.

    Truncation and padding, which some files ask for, are off; special tokens that occur in the text
    are text.

    Raises:
        FormatError: the file is damaged or hostile. UsageError: the library is missing.
    """
    module = import_tokenizers()
    try:
        made: tokenizers.Tokenizer = module.Tokenizer.from_buffer(data)
        made.no_truncation()
        made.no_padding()
        made.encode_special_tokens = True
    # The library raises bare Exceptions, and where it panics, pyo3's PanicException.
    except BaseException as error:
        if isinstance(error, KeyboardInterrupt | SystemExit):
            raise
        raise FormatError(f"tokenizer.json is refused by tokenizers: {str(error)[:120]}") from error
    return made


class LibraryEngine:
    """Encodes by ``tokenizers``, on one thread."""

    name = "tokenizers"

    def __init__(self, data: bytes) -> None:
        self._tokenizer = parse_tokenizer(data)

    def encode(self, texts: Sequence[str]) -> list[Ids]:
        """(n,) uint32 a text."""
        encode = self._tokenizer.encode_batch_fast
        # One text a call, since the library spreads a batch over all cores.
        found = [encode([text], add_special_tokens=False)[0].ids for text in texts]
        return [np.array(ids, np.uint32) for ids in found]

    def decode(self, ids: Ids) -> bytes:
        text: str = self._tokenizer.decode(ids.tolist(), skip_special_tokens=False)
        return text.encode()
