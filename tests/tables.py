"""Parquet files, and folders as Hugging Face ``datasets`` saves them, made with pyarrow alone."""

from __future__ import annotations

import io
from collections.abc import Sequence
from typing import Any

import pyarrow as pa
from pyarrow import parquet as pq

Texts = Sequence[str | bytes | None]


def parquet(texts: Texts, column: str = "text", group: int = 1000, **others: Any) -> bytes:
    """A ``.parquet`` file of one column of texts, and others; ``group`` rows a row group."""
    out = io.BytesIO()
    pq.write_table(pa.table({**others, column: texts}), out, row_group_size=group)
    return out.getvalue()
