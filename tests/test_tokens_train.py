"""A tokenizer of one's own: the same from the same texts."""

from __future__ import annotations

import hashlib
import json

import pytest
from conftest import run_python

from shardkit.errors import UsageError
from shardkit.tokens.load import load_tokenizer
from shardkit.tokens.train import train

CODE = """
import hashlib
import tokenizer_data as data
from shardkit.tokens.train import train
text = data.prose() + "".join(chr(c) for c in range(0x4E00, 0x5000)) * 2
print(hashlib.sha256(train(text.splitlines(keepends=True), 3000)).hexdigest())
"""


def test_it_does_not_depend_on_threads_nor_hashes():
    runs = [
        run_python(CODE, RAYON_NUM_THREADS="1"),
        run_python(CODE, RAYON_NUM_THREADS="4"),
        run_python(CODE, TOKENIZERS_PARALLELISM="false"),
        run_python(CODE, PYTHONHASHSEED="1"),
    ]
    assert len(set(runs)) == 1
    assert len(runs[0].strip()) == len(hashlib.sha256().hexdigest())


def test_it_is_byte_level_and_knows_the_end_of_a_text(tmp_path):
    (tmp_path / "t.json").write_bytes(train(["aaa bbb aaa bbb"] * 5, 260))
    tokenizer = load_tokenizer(tmp_path / "t.json")
    assert (tokenizer.spec.eos, tokenizer.spec.is_lossless) == (0, True)
    assert tokenizer.spec.vocab_size == 260
    text = "any text at all: \u00e9\u65e5\U0001f600\0"
    assert tokenizer.decode(tokenizer.encode([text])[0]) == text.encode()


@pytest.mark.parametrize("texts", [[], [""], ["a"]])
def test_few_texts_give_the_bytes_alone(texts):
    assert len(json.loads(train(texts, 5000))["model"]["vocab"]) == 257


@pytest.mark.parametrize("size", [0, 256, -1, 2**20 + 1])
def test_sizes_of_no_use_are_refused(size):
    with pytest.raises(UsageError, match=f"257 to 1048576 entries, got {size}"):
        train([], size)


def test_all_texts_are_read_once():
    read = []
    train((read.append(i) or f"text {i}" for i in range(50)), 300)
    assert read == list(range(50))
