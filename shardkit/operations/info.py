"""``info``: what is in a dataset, and how each tool opens it.

That is lines of Python that run as they stand, with the dataset's own paths. What a tool cannot
open is a comment that says how it gets what it can.
"""

from __future__ import annotations

import os
import shlex
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from shardkit.arrays import Integers
from shardkit.formats import TARS
from shardkit.formats.dali_index import dali_reader, open_with_dali
from shardkit.formats.huggingface_card import CARD
from shardkit.images.sniff import IMAGE_FIELDS
from shardkit.index.count_tokens import num_tokens
from shardkit.index.file_names import INDEX_NAME, SHARD_FILE
from shardkit.index.manifest import SplitInfo, read_info, versions_at
from shardkit.index.rows import NO_INT
from shardkit.index.version_line import VersionLine
from shardkit.operations.duplicates import Duplicates, find_duplicates
from shardkit.remote.urls import Url, as_place
from shardkit.samples.encoding import TOKENS
from shardkit.samples.sample import KEY
from shardkit.shards.locate import Located, locate, locate_remote, refuse_version
from shardkit.shards.stored import ShardReader, container_of
from shardkit.system.paths import show_path

ORDER_SAMPLES = 4096
"""Labels looked at to tell whether they lie in order."""

PEEKED_ROWS = 5
"""From so many samples ``datasets`` guesses features, and refuses tars if their fields differ."""

_TOLD = {
    **dict.fromkeys(["val", "valid", "validation", "dev"], "validation"),
    **dict.fromkeys(["eval", "evaluation"], "test"),
}
"""Names of splits that ``datasets`` gives to files that are named so."""

DALI_BATCH = 8


@dataclass(frozen=True)
class SplitSummary:
    """One split in numbers; sizes in bytes. ``labels_in_order``: whether it lies in class order;
    None where there are fewer than two labels. ``num_tokens``: of all its documents; None where
    there are no tokens. ``num_left_out``: samples that its shards hold and it has not."""

    num_samples: int
    num_shards: int
    shard_bytes: int
    index_bytes: int
    fingerprint: str
    encodings: dict[str, str]
    labels_in_order: bool | None
    num_tokens: int | None
    num_left_out: int = 0


@dataclass(frozen=True)
class Summary:
    """What ``shardkit info`` prints; ``recipes``, tool -> lines of Python, with ``--open``.
    ``duplicates``: if they were asked for. ``version``: its number; ``versions``: of all that are
    there; ``history``: a line for each there was, if it was changed since it was packed."""

    path: str
    container: str
    corpus: dict[str, Any]
    fields: list[str]
    classes: list[str] | None
    splits: dict[str, SplitSummary]
    open_with: list[str]
    recipes: dict[str, str]
    duplicates: Duplicates | None = None
    version: int = 1
    versions: list[int] = field(default_factory=list)
    history: list[VersionLine] = field(default_factory=list)


def info(dataset: str | Path, *, version: int | None = None, duplicates: bool = False) -> Summary:
    """Describe a dataset without reading its samples.

    Args:
        version: its number; default: the last.
        duplicates: find samples that are there more than once, too, by their checksums.

    Raises:
        UsageError: tars of others have no checksums to find duplicates by.
        DatasetMissingError: there is none. IndexFileError: its index is damaged.
    """
    path = as_place(dataset, "the dataset")
    if isinstance(path, Url):
        refuse_version(path, version)
        place = locate_remote(path)
    else:
        place = locate(path, version=version)
    splits = {name: _summarise(place, split) for name, split in place.info.splits.items()}
    return Summary(
        str(path),
        place.info.container,
        place.info.provenance.to_json(),
        place.info.fields,
        place.info.classes,
        splits,
        _how_to_open(path, place),
        _recipes(path, place),
        find_duplicates(place) if duplicates else None,
        place.info.version,
        [1] if isinstance(path, Url) else versions_at(place.folder, read_info(place.folder)),
        place.info.history,
    )


def _summarise(place: Located, split: SplitInfo) -> SplitSummary:
    fields, spec, tokens = place.info.fields, place.info.tokenizer, None
    if spec is not None and TOKENS in fields:
        tokens = num_tokens(place.row_index(split.name), spec.dtype)
    in_order = None
    if "cls" in fields and split.num_rows >= 2:  # by rows spread over the split
        index, step = place.row_index(split.name), max(1, split.num_rows // ORDER_SAMPLES)
        labels = index.table[::step, index.column["cls"]]
        in_order = in_class_order(labels[labels != NO_INT])
    return SplitSummary(
        num_samples=split.num_rows,
        num_shards=len(split.shards),
        shard_bytes=sum(sum(shard.file_bytes.values()) for shard in split.shards),
        index_bytes=sum(num_bytes for num_bytes, _ in split.files.values()),
        fingerprint=split.fingerprint,
        encodings={name: _encoding(split, name) for name in fields},
        labels_in_order=in_order,
        num_tokens=tokens,
        num_left_out=split.num_left_out,
    )


def _encoding(split: SplitInfo, name: str) -> str:
    found = set()
    for encoding in filter(None, (layout.get(name) for layout in split.layouts)):
        shape = list(encoding.shape) if encoding.dtype else ""
        found.add(f"{encoding.kind} {encoding.dtype}{shape} {encoding.codec}".strip())
    return " or ".join(sorted(found)) or "absent"


def in_class_order(labels: Integers) -> bool | None:
    """Return True if equal labels lie together, in any order of classes; None if all are equal.

    Labels of which each occurs once lie together in any order: those must be sorted.
    """
    num_labels = len(np.unique(labels))
    if num_labels < 2:
        return None
    steps = np.diff(labels)
    if num_labels == len(labels):
        return bool((steps > 0).all() or (steps < 0).all())
    return bool(np.count_nonzero(steps) == num_labels - 1)


def _lie_apart(place: Located, split: SplitInfo) -> bool:
    """Return True if the first tar of others has members of one sample between those of another."""
    if not place.tars:
        return False
    index = place.row_index(split.name)
    table = index.table[: split.shards[0].num_rows]
    starts = np.stack([table[:, index.column[f"{name}.start"]] for name in index.fields], 1)
    sizes = np.stack([table[:, index.column[f"{name}.size"]] for name in index.fields], 1)
    first = np.where(sizes < 0, np.iinfo(np.int64).max, starts).min(1)
    last = np.where(sizes < 0, -1, starts).max(1)
    order = np.argsort(first)
    return bool((first[order][1:] < last[order][:-1]).any())


def _how_to_open(path: Path | Url, place: Located) -> list[str]:
    """Return a line of Python for shardkit, and one or two for the first shard alone; behind a URL
    other tools have ways of their own."""
    name, split = next(iter(place.info.splits.items()))
    which = "" if place.index == INDEX_NAME else f", version={place.info.version}"
    lines = [f"shardkit.open({str(path)!r}, split={name!r}{which})"]
    if place.info.provenance.tokens is not None:
        lines = [f"shardkit.TokenDataset({str(path)!r}, {name!r}, seq_len=2048{which})"]
    if isinstance(path, Url):
        return lines
    first = next(iter(place.info.fields), KEY)
    container = container_of(place.info)
    if split.is_view:
        why = f"shards hold samples or labels of other splits or versions; {container.library} too"
        return [*lines, f"shardkit.convert({str(path)!r}, to={container.name!r})  # {why}"]
    shard = path / container.file_of(split.stem(0), first)
    if place.folder != path.absolute():  # others' tars: what we call a shard is a link
        shard = Path(os.path.realpath(place.folder / shard.name))
    if _lie_apart(place, split):
        why = f"members of a sample lie apart: {container.library} would make several of it"
        lines.append(f"shardkit.convert({str(path)!r}, to={container.name!r})  # {why}")
    else:
        lines.append(container.open_with(str(shard)))
    if TOKENS in place.info.fields and split.num_rows:
        lines += filter(None, [_memmap_line(path, place.reader(name), 0)])
    if (index := shard.with_suffix(".idx")).name in split.shards[0].file_bytes:
        lines.append(open_with_dali(str(shard), str(index), place.info.fields))
    return lines


# --- how each tool opens it ---------------------------------------------------------------


def _recipes(path: Path | Url, place: Located) -> dict[str, str]:
    """Return tool -> lines of Python, for the first split. For tars made by others, and behind a
    URL, that is shardkit alone: what else opens them is known to those who made them."""
    split = next(iter(place.info.splits.values()))
    reader = place.reader(split.name)
    made = {"shardkit": _with_shardkit(path, place, split.name)}
    if isinstance(path, Url) or place.tars or not split.num_rows:
        return made
    # Shards in the folder may have samples, or labels, that this version has not.
    names = filter(SHARD_FILE.fullmatch, os.listdir(path))
    if any(s.is_view for s in place.info.splits.values()) or {*names} - {*place.info.file_bytes}:
        made["other tools"] = _after(path, place.info.container, "`shardkit info {} --open`")
        return made
    first = int(np.flatnonzero(np.diff(reader.index.row_starts))[0])
    container, batch = container_of(place.info), reader.gather(np.zeros(1, np.int64))
    # A field that the first sample has: a picture, text or ids rather than a number.
    present = [name for name in reader.index.fields if reader.places(batch, name)[1][0] >= 0]
    field = next((name for name in present if name != "cls"), "cls")
    stems = [split.stem(shard) for shard in range(first, len(split.shards))]
    encoding = reader.encoding(first, field)
    made[container.library] = container.example(str(path), stems, field, encoding)
    made["Hugging Face datasets"] = _with_huggingface(path, place, reader)
    if TOKENS in place.info.fields:
        line = _memmap_line(path, reader, first)
        made["nanoGPT"] = f"import numpy\ndata = {line}"
        if line is None or len(split.shards) > 1:
            made["nanoGPT"] = _after(path, "bin", f"{{}}/{split.name}.bin")
        made["Megatron"] = _after(path, "megatron", f"--data-path {{}}/{split.name}")
    if not IMAGE_FIELDS.isdisjoint(place.info.fields):
        made["DALI"] = _with_dali(path, place, reader)
    return made


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


def _after(path: Path, to: str, then: str) -> str:
    """Return a comment: what to convert to, and what to do with that; ``{}`` is its folder."""
    command = f"shardkit convert {shlex.quote(show_path(path))} --to {to}"
    return f"# after `{command}`: {then.format(f'{show_path(path.resolve().name)}-{to}')}"


def _with_huggingface(path: Path, place: Located, reader: ShardReader) -> str:
    has_card, table = CARD in place.info.signposts, reader.index.table[:PEEKED_ROWS]
    sizes = [table[:, reader.index.column[f"{name}.size"]] for name in reader.index.fields]
    is_alike = all(bool((size < 0).all() or (size >= 0).all()) for size in sizes)
    if place.info.container != TARS or not (has_card or is_alike):
        return _after(path, "parquet", "datasets.load_dataset('{}')")
    name = reader.index.split.name
    lines = [
        "import datasets",
        f"dataset = datasets.load_dataset({str(path)!r}, split={_TOLD.get(name, name)!r})",
    ]
    if place.info.classes and not has_card:
        lines += [
            "import json",
            f"with open({os.path.join(path, INDEX_NAME)!r}) as file:",
            "    names = json.load(file)['classes']",
            "dataset = dataset.cast_column('cls', datasets.ClassLabel(names=names))",
        ]
    return "\n".join(lines)


def _memmap_line(path: Path, reader: ShardReader, shard: int) -> str | None:
    """Return the line of Python that maps the ids of a shard, from where they begin behind the
    header of their file; None where they lie in no file of their own."""
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


def _with_dali(path: Path, place: Located, reader: ShardReader) -> str:
    """Use DALI's own reader, where its index lies beside the tars; else any dataset as a source."""
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
    lines += [
        f"with Pipeline(batch_size={size}, num_threads=2, device_id=None) as pipeline:",
        f"    pictures = {call}",
        "    pipeline.set_outputs(pictures)",
        "outputs = pipeline.run()",
    ]
    return "\n".join(lines)
