"""A byte-level BPE of one's own."""

from __future__ import annotations

from collections.abc import Iterable

from shardkit.errors import UsageError
from shardkit.tokens.backend import library

END_OF_TEXT = "<|endoftext|>"
"""Its only special token, id 0."""

MIN_VOCABULARY = 257
"""The bytes, and the end of a text."""

MAX_TRAINED = 1 << 20
"""Four times the largest in use."""


def train(texts: Iterable[str], vocab_size: int) -> bytes:
    """Train on texts, which are all held in memory word by word.

    Pieces are cut by GPT-2's pattern. The result depends on the texts alone, not on the number of
    threads. Few texts may give fewer entries than asked for.

    Args:
        vocab_size: entries, the 256 bytes and the special token among them.

    Returns:
        A ``tokenizer.json``.

    Raises:
        UsageError: a vocabulary of no use, or the library is missing.
    """
    if not MIN_VOCABULARY <= vocab_size <= MAX_TRAINED:
        raise UsageError(
            f"a vocabulary has {MIN_VOCABULARY} to {MAX_TRAINED} entries, got {vocab_size}"
        )
    module = library("tokenizers")
    made = module.Tokenizer(module.models.BPE())
    made.pre_tokenizer = module.pre_tokenizers.ByteLevel(add_prefix_space=False)
    made.decoder = module.decoders.ByteLevel()
    trainer = module.trainers.BpeTrainer(
        vocab_size=vocab_size,
        special_tokens=[END_OF_TEXT],
        initial_alphabet=module.pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    made.train_from_iterator(texts, trainer)
    text: str = made.to_str()
    return text.encode()
