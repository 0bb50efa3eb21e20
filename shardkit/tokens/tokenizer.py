"""A tokenizer: its file, what is known of it, and the engine that runs it."""

from __future__ import annotations

import codecs
from collections.abc import Iterator, Sequence
from functools import cached_property

from shardkit.errors import FormatError
from shardkit.tokens.bytelevel import byte_table, is_byte_level
from shardkit.tokens.definition import parse_definition
from shardkit.tokens.joints import Joints
from shardkit.tokens.library import Ids, LibraryEngine
from shardkit.tokens.spec import TokenizerSpec

STEP_BYTES = 1 << 20
"""How much of a huge document is encoded at a time."""


class Tokenizer:
    """Text to ids and back. Not for several threads at once.

    Attributes:
        spec: what is stored of it.
        file: the bytes of its file.
        engine: what encodes: ``tokenizers`` or ``tiktoken``.
    """

    def __init__(self, spec: TokenizerSpec, file: bytes, engine: str = "tokenizers") -> None:
        self.spec = spec
        self.file = file
        self.engine = engine

    def encode(self, texts: Sequence[str]) -> list[Ids]:
        """The ids of each text: (n,) of ``spec.dtype``, without BOS and EOS.

        Special tokens that occur in a text are encoded as any other text.

        Raises:
            FormatError: the tokenizer gives an id that its own vocabulary does not have.
        """
        return [self._narrow(ids) for ids in self._library.encode(texts)]

    def encode_pieces(self, data: bytes | memoryview, errors: str = "strict") -> Iterator[Ids]:
        """The ids of a document too large to be encoded at once, in order.

        Joined, they are those of :meth:`encode`, but for what :mod:`shardkit.tokens.joints` says.
        Memory: some hundred MB, however large the document.

        Args:
            data: UTF-8.
            errors: ``strict``, or ``replace`` for U+FFFD where it is not UTF-8.

        Raises:
            UnicodeDecodeError: it is not UTF-8.
        """
        decoder = codecs.getincrementaldecoder("utf-8")(errors)
        joints = Joints(self.encode)
        for start in range(0, len(data), STEP_BYTES):
            end = start + STEP_BYTES
            joints.add(decoder.decode(data[start:end], end >= len(data)))
            yield from joints.finished()
        yield from joints.rest()

    def decode(self, ids: Ids) -> bytes:
        """The bytes that ids stand for: exact, so not always whole characters, if byte-level.

        Raises:
            FormatError: an id that is not in the vocabulary.
        """
        if self._bytes is None:
            return self._library.decode(ids)
        try:
            return b"".join(map(self._bytes.__getitem__, ids.tolist()))
        except KeyError as error:
            raise FormatError(f"id {error} is not in the tokenizer's vocabulary") from error

    def document_bytes(self, ids: Ids) -> bytes:
        """The text of a document: BOS and EOS taken off, and decoded."""
        bos, eos = self.spec.bos, self.spec.eos
        start = bos is not None and len(ids) > 0 and ids[0] == bos
        end = eos is not None and len(ids) > start and ids[-1] == eos
        return self.decode(ids[int(start) : len(ids) - int(end)])

    def _narrow(self, ids: Ids) -> Ids:
        if len(ids) and ids.max() >= self.spec.vocab_size:
            raise FormatError(
                f"the tokenizer gives id {ids.max()}, its vocabulary has {self.spec.vocab_size}"
            )
        return ids.astype(self.spec.dtype)

    @cached_property
    def _library(self) -> LibraryEngine:
        return LibraryEngine(self.file)

    @cached_property
    def _bytes(self) -> dict[int, bytes] | None:
        """Id -> bytes, None where ids have no bytes of their own."""
        raw = parse_definition(self.file)
        return byte_table(raw) if is_byte_level(raw) else None
