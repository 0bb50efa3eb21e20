"""The options of batches: one list, whoever takes them."""

from __future__ import annotations

import inspect
from dataclasses import fields
from typing import Any

import numpy as np
import pytest

import shardkit
from shardkit.batches.options import BatchKeywords, BatchOptions, OrderKeywords
from shardkit.errors import UsageError


def test_every_option_is_a_keyword() -> None:
    names = {each.name for each in fields(BatchOptions)}
    assert names == {*BatchKeywords.__annotations__, "batch_size"}


@pytest.mark.parametrize(
    ("taker", "keywords"),
    [
        (shardkit.Loader, BatchKeywords),
        (shardkit.Stream, BatchKeywords),
        (shardkit.dali.source, OrderKeywords),
    ],
)
def test_a_signature_shows_each_with_its_default(taker: Any, keywords: Any) -> None:
    shown = inspect.signature(taker).parameters
    for name in keywords.__annotations__:
        assert shown[name].default == getattr(BatchOptions, name)
        assert shown[name].kind is inspect.Parameter.KEYWORD_ONLY
    assert "options" not in shown


def test_what_is_given_is_put_in_one_form() -> None:
    given: dict[str, Any] = {"shuffle": True, "seed": np.int64(3), "as_buffer": ["jpg"]}
    options = BatchOptions.of("Loader", np.int32(4), {**given, "block_rows": np.int64(8)})
    assert options == BatchOptions(4, "full", 3, as_buffer=("jpg",), block_rows=8)
    assert type(options.seed) is type(options.batch_size) is int
    assert options.of_order == {"block_rows": 8}


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"batch_size": 0}, "batch_size must be at least 1"),
        ({"max_skips": -1}, "max_skips must be at least 0"),
        ({"readahead": 1.5}, "readahead must be a whole number"),
        ({"window_blocks": 0}, "window_blocks must be at least 1"),
        ({"on_error": "ignore"}, "on_error must be 'fail' or 'skip', got 'ignore'"),
    ],
)
def test_what_makes_no_sense(options: dict[str, Any], message: str) -> None:
    with pytest.raises(UsageError, match=message):
        BatchOptions(**{"batch_size": 1, **options})


def test_who_takes_what() -> None:
    with pytest.raises(UsageError, match="source takes no option 'transform'"):
        BatchOptions.of("source", 1, {"transform": None}, OrderKeywords)
