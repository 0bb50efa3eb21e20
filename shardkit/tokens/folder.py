"""A tokenizer in a folder as transformers saves it."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from shardkit.errors import FormatError, UsageError
from shardkit.memory.maps import read_file
from shardkit.system.paths import show_path
from shardkit.tokens.backend import is_refusal, library
from shardkit.tokens.spec import MAX_FILE_BYTES

CONFIGS = ("tokenizer_config.json", "special_tokens_map.json")
"""What says which token ends a document, the first that does."""

_GPT2_CLASSES = (None, "GPT2Tokenizer", "GPT2TokenizerFast")
"""Tokenizers that are their vocab.json and merges.txt, and nothing else."""


def read_folder(folder: Path) -> tuple[bytes, str | None]:
    """A ``tokenizer.json``, and the text of the token that ends a document, if the folder says so.

    Where there is no ``tokenizer.json``, it is made: of GPT-2's files, or else by the library
    transformers. No code from the folder is ever run.

    Raises:
        UsageError: there is no tokenizer, or transformers is needed and missing.
        FormatError: a file is damaged.
    """
    configs = [_read_config(folder / name) for name in CONFIGS]
    eos = next((text for raw in configs if (text := _text(raw.get("eos_token")))), None)
    if (folder / "tokenizer.json").is_file():
        return read_file(folder / "tokenizer.json", MAX_FILE_BYTES), eos
    is_gpt2 = configs[0].get("tokenizer_class") in _GPT2_CLASSES
    if is_gpt2 and all((folder / name).is_file() for name in ("vocab.json", "merges.txt")):
        return _from_gpt2_files(folder, eos), eos
    return _by_transformers(folder), eos


def _read_config(path: Path) -> dict[str, Any]:
    if not path.is_file():
        return {}
    try:
        raw = json.loads(read_file(path, MAX_FILE_BYTES))
    except (ValueError, RecursionError) as error:
        raise FormatError(f"{show_path(path)} is not JSON ({error!s:.80})") from error
    return raw if isinstance(raw, dict) else {}


def _text(token: Any) -> str | None:
    """A token's text, as one of the two ways in which configurations name it."""
    found = token.get("content") if isinstance(token, dict) else token
    return found if isinstance(found, str) else None


def _from_gpt2_files(folder: Path, eos: str | None) -> bytes:
    module = library("tokenizers")
    paths = [str(folder / name) for name in ("vocab.json", "merges.txt")]
    try:
        made = module.Tokenizer(module.models.BPE.from_file(*paths))
    except BaseException as error:
        if not is_refusal(error):
            raise
        raise FormatError(f"{show_path(folder)}: vocab.json and merges.txt: {error}") from error
    made.pre_tokenizer = module.pre_tokenizers.ByteLevel(add_prefix_space=False)
    made.decoder = module.decoders.ByteLevel()
    made.add_special_tokens([eos or "<|endoftext|>"])
    text: str = made.to_str()
    return text.encode()


def _by_transformers(folder: Path) -> bytes:
    try:
        from transformers import AutoTokenizer
    except ImportError as error:
        raise UsageError(
            f"{show_path(folder)} has no tokenizer.json; pip install transformers, which may make"
            " one of what is there"
        ) from error
    try:
        made = AutoTokenizer.from_pretrained(
            str(folder), local_files_only=True, trust_remote_code=False
        )
        text: str = made.backend_tokenizer.to_str()
    except Exception as error:
        what = f"{type(error).__name__}: {error}".splitlines()[0][:120]
        raise UsageError(
            f"{show_path(folder)} has no tokenizer for transformers ({what})"
        ) from error
    return text.encode()
