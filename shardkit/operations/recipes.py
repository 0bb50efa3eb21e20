"""How each tool opens one dataset: lines of Python that run as they stand, with its own paths.

What a tool cannot open is a comment that says how it gets what it can.
"""

from __future__ import annotations

import os
import shlex
from pathlib import Path

import numpy as np

from shardkit.formats import TARS
from shardkit.formats.dali_index import dali_reader
from shardkit.formats.huggingface_card import CARD
from shardkit.images.sniff import IMAGE_FIELDS
from shardkit.index.manifest import INDEX_NAME, SHARD_FILE
from shardkit.remote.urls import Url
from shardkit.samples.encoding import TOKENS
from shardkit.shards.locate import Located
from shardkit.shards.stored import ShardReader, container_of
from shardkit.system.paths import show_path

PEEKED_ROWS = 5
"""From so many samples ``datasets`` guesses features, and refuses tars if their fields differ."""

_TOLD = {
    **dict.fromkeys(["val", "valid", "validation", "dev"], "validation"),
    **dict.fromkeys(["eval", "evaluation"], "test"),
}
"""What ``datasets`` calls a split whose files are named so."""

DALI_BATCH = 8


def recipes(path: Path | Url, place: Located) -> dict[str, str]:
    """Tool -> lines of Python, for the first split. Of tars made by others, shardkit alone: what
    else opens them is known to those who made them; and of what lies behind a URL."""
    split = next(iter(place.info.splits.values()))
    reader = ShardReader(place.storage, place.info, split)
    made = {"shardkit": _with_shardkit(path, place, split.name)}
    if isinstance(path, Url) or place.tars or not split.num_rows:
        return made
    if _holds_more(path, place):
        made["other tools"] = _after(path, place.info.container, "`shardkit info {} --open`")
        return made
    first = int(np.flatnonzero(np.diff(reader.index.row_starts))[0])
    field, container = _field_of(reader), container_of(place.info)
    stems = [split.stem(shard) for shard in range(first, len(split.shards))]
    encoding = reader.encoding(first, field)
    made[container.library] = container.example(str(path), stems, field, encoding)
    made["Hugging Face datasets"] = _with_huggingface(path, place, reader)
    if TOKENS in place.info.fields:
        made["nanoGPT"] = _with_nanogpt(path, reader, first)
        made["Megatron"] = _after(path, "megatron", f"--data-path {{}}/{split.name}")
    if not IMAGE_FIELDS.isdisjoint(place.info.fields):
        made["DALI"] = _with_dali(path, place, reader)
    return made


def _holds_more(path: Path, place: Located) -> bool:
    """Whether shards in the folder have samples, or labels, that this version has not."""
    listed = place.info.file_bytes.keys()
    return any(split.is_view for split in place.info.splits.values()) or any(
        SHARD_FILE.fullmatch(name) and name not in listed for name in os.listdir(path)
    )


def _with_shardkit(path: Path | Url, place: Located, split: str) -> str:
    which = "" if place.index == INDEX_NAME else f", version={place.info.version}"
    lines = [
        "import shardkit",
        f"dataset = shardkit.open({str(path)!r}, split={split!r}{which})",
        f"sample = dataset[0]  # {', '.join(place.info.fields)}",
    ]
    if TOKENS in place.info.fields:
        sequences = f"shardkit.TokenDataset({str(path)!r}, {split!r}, seq_len=1024{which})"
        lines.append(f"# {sequences} makes sequences of them")
    return "\n".join(lines)


def _field_of(reader: ShardReader) -> str:
    """A field that the first sample has: a picture, text or ids rather than a number."""
    batch = reader.gather(np.zeros(1, np.int64))
    present = [name for name in reader.index.fields if reader.places(batch, name)[1][0] >= 0]
    return next((name for name in present if name != "cls"), "cls")


def _after(path: Path, to: str, then: str) -> str:
    """A comment: what to convert to, and what to do with that; ``{}`` stands for its folder."""
    command = f"shardkit convert {shlex.quote(show_path(path))} --to {to}"
    return f"# after `{command}`: {then.format(f'{show_path(path.resolve().name)}-{to}')}"


# --- Hugging Face -------------------------------------------------------------------------


def _with_huggingface(path: Path, place: Located, reader: ShardReader) -> str:
    has_card = CARD in place.info.signposts
    if place.info.container != TARS or not (has_card or _is_alike(reader)):
        return _after(path, "parquet", "datasets.load_dataset('{}')")
    name = reader.index.split.name
    found = _TOLD.get(name, name)
    lines = [
        "import datasets",
        f"dataset = datasets.load_dataset({str(path)!r}, split={found!r})",
    ]
    if place.info.classes and not has_card:
        lines += [
            "import json",
            f"with open({os.path.join(path, INDEX_NAME)!r}) as file:",
            "    names = json.load(file)['classes']",
            "dataset = dataset.cast_column('cls', datasets.ClassLabel(names=names))",
        ]
    return "\n".join(lines)


def _is_alike(reader: ShardReader) -> bool:
    """Whether the first samples have the same fields."""
    table = reader.index.table[:PEEKED_ROWS]
    sizes = [table[:, reader.index.column[f"{name}.size"]] for name in reader.index.fields]
    return all(bool((size < 0).all() or (size >= 0).all()) for size in sizes)


# --- tokens -------------------------------------------------------------------------------


def _with_nanogpt(path: Path, reader: ShardReader, shard: int) -> str:
    line = memmap_line(path, reader, shard)
    if line is None or len(reader.index.split.shards) > 1:
        return _after(path, "bin", f"{{}}/{reader.index.split.name}.bin")
    return f"import numpy\ndata = {line}"


def memmap_line(path: Path, reader: ShardReader, shard: int) -> str | None:
    """The line of Python that maps the ids of a shard, from where they begin behind the header of
    their file; None where they lie in no file of their own."""
    name, encoding = reader.file_of(shard, TOKENS), reader.encoding(shard, TOKENS)
    first, last = reader.index.row_starts[shard : shard + 2].tolist()
    column = reader.index.column[f"{TOKENS}.start"]
    places = reader.index.table[first:last, column : column + 2]
    present = np.flatnonzero(places[:, 1] >= 0)
    if not name.endswith(f".{TOKENS}.npy") or encoding.kind != "ragged" or not len(present):
        return None
    offset = int(places[present[0], 0])  # documents lie without a gap
    where = f"{os.path.join(path, name)!r}, dtype={encoding.dtype!r}, mode='r', offset={offset}"
    return f"numpy.memmap({where})"


# --- DALI ---------------------------------------------------------------------------------


def _with_dali(path: Path, place: Located, reader: ShardReader) -> str:
    """DALI's own reader, where its index lies beside the tars; else any dataset as a source."""
    split = reader.index.split
    pictures = ";".join(name for name in place.info.fields if name in IMAGE_FIELDS)
    size = min(DALI_BATCH, split.num_rows)
    lines = ["from nvidia.dali import fn", "from nvidia.dali.pipeline import Pipeline"]
    if all(f"{split.stem(i)}.idx" in shard.file_bytes for i, shard in enumerate(split.shards)):
        found, call = dali_reader(str(path), split.name, pictures)
        lines += found
    else:
        opened = f"shardkit.open({str(path)!r}, split={split.name!r})"
        lines += [
            "import shardkit",
            f"feed = shardkit.dali.source({opened}, {size}, fields=[{pictures!r}])",
        ]
        how = "num_outputs=1, batch=True, batch_info=True"
        call = f"fn.external_source(source=feed, {how})[0]"
    return "\n".join(
        [
            *lines,
            f"with Pipeline(batch_size={size}, num_threads=2, device_id=None) as pipeline:",
            f"    pictures = {call}",
            "    pipeline.set_outputs(pictures)",
            "outputs = pipeline.run()",
        ]
    )
