"""``convert`` of token ids that nanoGPT or Megatron wrote."""

from __future__ import annotations

from pathlib import Path

from shardkit.corpus.token_files import open_token_file
from shardkit.corpus.tokens import TokenFileCorpus, largest_id
from shardkit.errors import UsageError
from shardkit.index.provenance import Provenance
from shardkit.packing.finish import Origin
from shardkit.packing.options import PackOptions
from shardkit.packing.pack import refuse_choice
from shardkit.packing.result import PackResult
from shardkit.packing.run import run_pack
from shardkit.system.paths import show_path
from shardkit.system.refusals import os_errors
from shardkit.system.stamps import size_and_stamp
from shardkit.tokens.spec import MAX_VOCABULARY, TokenizerSpec, smallest_dtype


def convert_token_file(
    source: Path, dest: Path, options: PackOptions, eos: int | None, started: float
) -> PackResult:
    """Pack the documents of a file of ids; ``eos`` as of :func:`open_token_file`.

    The file is read once before, for its largest id: the smallest dtype that holds the vocabulary
    is that of the result.

    Raises:
        UsageError: the call or the destination is wrong. DataError: the file is damaged.
    """
    refuse_choice(options.images, f"{show_path(source)} holds tokens")
    if eos is not None and not 0 <= eos < MAX_VOCABULARY:
        raise UsageError(f"eos is an id from 0 to {MAX_VOCABULARY - 1}, got {eos}")
    with os_errors(f"reading {show_path(source)}"):
        file = open_token_file(source, eos)
        vocab_size = max(largest_id(file), -1 if eos is None else eos) + 1
        inputs = {path.name: [*size_and_stamp(path)] for path in file.files}
    dtype = smallest_dtype(vocab_size)
    spec = TokenizerSpec(vocab_size=vocab_size, dtype=dtype, eos=eos)
    origin = Origin(Provenance({"kind": file.kind}, tokens=spec.to_json()), inputs=inputs)
    corpus = TokenFileCorpus(source, dtype, file)
    return run_pack(source, corpus, dest, options, started, origin)
