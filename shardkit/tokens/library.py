"""The backend for any ``tokenizer.json``: Hugging Face's ``tokenizers``."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from shardkit.arrays import Tokens
from shardkit.errors import FormatError
from shardkit.tokens.backend import is_refusal, library, narrow, refusals
from shardkit.tokens.spec import TokenizerSpec


def parse_tokenizer(data: bytes) -> Any:
    """The library's tokenizer, made to encode whole text as text.

    Truncation and padding, which some files ask for, are off; special tokens that occur in the text
    are text.

    Raises:
        FormatError: the file is damaged or hostile. UsageError: the library is missing.
    """
    module = library("tokenizers")
    with refusals("tokenizer.json is refused by tokenizers"):
        made = module.Tokenizer.from_buffer(data)
        made.no_truncation()
        made.no_padding()
        made.encode_special_tokens = True
    return made


class LibraryBackend:
    """Encodes by ``tokenizers``."""

    def __init__(self, data: bytes, spec: TokenizerSpec) -> None:
        self._tokenizer = parse_tokenizer(data)
        self._spec = spec

    def encode(self, texts: Sequence[str]) -> list[Tokens]:
        # One text a call, since the library spreads a batch over all cores.
        return [self.encode_batch([text])[0] for text in texts]

    def encode_batch(self, texts: Sequence[str]) -> list[Tokens]:
        """As :meth:`encode`, on all cores."""
        try:  # not refusals(): 1 us for each text
            found = self._tokenizer.encode_batch_fast(list(texts), add_special_tokens=False)
        except BaseException as error:
            if not is_refusal(error):
                raise
            raise FormatError(f"tokenizers cannot encode a text: {str(error)[:120]}") from error
        return [narrow(np.array(one.ids, np.uint32), self._spec) for one in found]

    def decode(self, ids: Tokens) -> bytes:
        """The text of ids, as the library makes it."""
        with refusals("tokenizers cannot decode these ids"):
            text: str = self._tokenizer.decode(ids.tolist(), skip_special_tokens=False)
        return text.encode()
