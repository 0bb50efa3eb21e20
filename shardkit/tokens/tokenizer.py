"""A tokenizer: its file, what is known of it, and the backend that runs it."""

from __future__ import annotations

import codecs
from collections.abc import Iterator, Sequence
from functools import cached_property

import numpy as np

from shardkit.arrays import Tokens
from shardkit.errors import FormatError
from shardkit.tokens import joints
from shardkit.tokens.backend import Backend
from shardkit.tokens.bytelevel import byte_table, is_byte_level
from shardkit.tokens.definition import parse_definition
from shardkit.tokens.fast import fast_backend
from shardkit.tokens.library import LibraryBackend
from shardkit.tokens.named import named_backend, parse_ranks
from shardkit.tokens.spec import TokenizerSpec

FAST = "tiktoken"

CAREFUL = "tiktoken+tokenizers"
"""tiktoken, but for texts with a character that the two libraries do not class alike."""

STEP_BYTES = 1 << 20
"""How much of a large document is read at a time."""


class Tokenizer:
    """Text to ids and back, on one thread; not for several threads at once.

    Decoding needs no library if ids stand for bytes; encoding needs that of ``backend``, which is
    imported when first used.

    Attributes:
        spec: what is stored of it.
        file: the bytes of its file.
        backend: what encodes: ``tokenizers``, ``tiktoken``, or :data:`CAREFUL`.
    """

    def __init__(self, spec: TokenizerSpec, file: bytes, backend: str) -> None:
        self.spec = spec
        self.file = file
        self.backend = backend

    def encode(self, texts: Sequence[str]) -> list[Tokens]:
        """The ids of each text: (n,) of ``spec.dtype``, without BOS and EOS.

        Special tokens that occur in a text are encoded as any other text.

        Raises:
            FormatError: the tokenizer's file is damaged, or it cannot encode a text.
            SampleError: a text of over 4 million characters, and the tokenizer does not allow it to
                be cut.
            UsageError: the library is not installed.
        """
        if all(len(text) <= joints.PIECE_CHARS for text in texts):
            return self._backend.encode(texts)
        return [self._encode_any(text) for text in texts]

    def _encode_any(self, text: str) -> Tokens:
        if len(text) <= joints.PIECE_CHARS:
            return self._backend.encode([text])[0]
        size = joints.PIECE_CHARS
        chunks = (text[start : start + size] for start in range(0, len(text), size))
        return np.concatenate([*joints.encode_parts(self._backend.encode, chunks)])

    def encode_pieces(self, data: bytes | memoryview, errors: str = "strict") -> Iterator[Tokens]:
        """The ids of a document of any size, in order; joined, they are those of :meth:`encode`.

        Memory: some hundred MB, however large the document.

        Args:
            data: UTF-8.
            errors: ``strict``, or ``replace`` for U+FFFD where it is not UTF-8.

        Raises:
            UnicodeDecodeError: it is not UTF-8. Others as :meth:`encode`.
        """
        return joints.encode_parts(self._backend.encode, _chunks(data, errors))

    def decode(self, ids: Tokens) -> bytes:
        """The bytes that ids stand for: exact if byte-level, and so not always whole characters.

        Raises:
            FormatError: an id that is not in the vocabulary, or a damaged file.
        """
        if self._bytes is None:
            return self._library.decode(ids)
        try:
            return b"".join(map(self._bytes.__getitem__, ids.tolist()))
        except KeyError as error:
            raise FormatError(f"id {error} is not in the tokenizer's vocabulary") from error

    @cached_property
    def _backend(self) -> Backend:
        if self.spec.kind == "tiktoken":
            return named_backend(self.file, self.spec)
        if self.backend in (FAST, CAREFUL):
            raw = parse_definition(self.file)
            return fast_backend(raw, self.spec, self._by_library, self.backend == CAREFUL)
        return self._library

    @cached_property
    def _library(self) -> LibraryBackend:
        return LibraryBackend(self.file, self.spec)

    def _by_library(self, text: str) -> Tokens:
        return self._library.encode([text])[0]

    @cached_property
    def _bytes(self) -> dict[int, bytes] | None:
        """Id -> bytes, None where ids have no bytes of their own."""
        if self.spec.kind == "tiktoken":
            special = (self.spec.special_tokens or {}).items()
            table = {i: token for token, i in parse_ranks(self.file).items()}
            return table | {i: text.encode() for text, i in special}
        raw = parse_definition(self.file)
        return byte_table(raw) if is_byte_level(raw) else None


def _chunks(data: bytes | memoryview, errors: str) -> Iterator[str]:
    decoder = codecs.getincrementaldecoder("utf-8")(errors)
    for start in range(0, len(data), STEP_BYTES):
        end = start + STEP_BYTES
        yield decoder.decode(data[start:end], end >= len(data))
