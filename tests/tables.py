"""Parquet files, and folders as Hugging Face ``datasets`` saves them, made with pyarrow alone."""

from __future__ import annotations

import io
import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pyarrow as pa
from conftest import write
from pyarrow import parquet as pq

Texts = Sequence[str | bytes | None]


def parquet(texts: Texts, column: str = "text", group: int = 1000, **others: Any) -> bytes:
    """A ``.parquet`` file of one column of texts, and others; ``group`` rows a row group."""
    out = io.BytesIO()
    pq.write_table(pa.table({**others, column: texts}), out, row_group_size=group)
    return out.getvalue()


def arrow_stream(table: pa.Table, batch: int = 1000) -> bytes:
    """An Arrow IPC stream of ``batch`` rows a record batch."""
    out = io.BytesIO()
    with pa.ipc.new_stream(out, table.schema) as stream:
        for part in table.to_batches(batch):
            stream.write_batch(part)
    return out.getvalue()


def state(names: Sequence[str], **others: Any) -> str:
    """What ``datasets`` 5.2 writes into ``state.json``."""
    held = {"_data_files": [{"filename": name} for name in names], "_split": None}
    return json.dumps(held | others)


def save(folder: Path, parts: Sequence[Texts], **others: Any) -> Path:
    """A folder as ``Dataset.save_to_disk`` writes it: one file for each part."""
    names = [f"data-{i:05d}-of-{len(parts):05d}.arrow" for i in range(len(parts))]
    for name, texts in zip(names, parts, strict=True):
        write(folder / name, arrow_stream(pa.table({"text": texts}), 7))
    write(folder / "state.json", state(names, **others))
    features = {"text": {"dtype": "string", "_type": "Value"}}
    write(folder / "dataset_info.json", json.dumps({"features": features}))
    return folder


def save_dict(folder: Path, splits: dict[str, Sequence[Texts]]) -> Path:
    """A folder as ``DatasetDict.save_to_disk`` writes it."""
    for name, parts in splits.items():
        save(folder / name, parts)
    write(folder / "dataset_dict.json", json.dumps({"splits": [*splits]}))
    return folder
