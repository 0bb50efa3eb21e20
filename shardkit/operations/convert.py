"""``convert``: a dataset in another container format, or as the files of another tool."""

from __future__ import annotations

import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Protocol

from shardkit.errors import UsageError
from shardkit.inputs.open import CORPORA, container_at
from shardkit.operations.export_folder import ExportFolder
from shardkit.operations.export_ids import BinExport, Exported, MegatronExport
from shardkit.operations.export_table import ParquetExport
from shardkit.packing.conversion import OPTIONS, source_of
from shardkit.packing.conversion import convert as convert_dataset
from shardkit.packing.options import PackOptions
from shardkit.packing.result import PackResult
from shardkit.packing.spool import name_of
from shardkit.remote.urls import Url, show_place
from shardkit.shards.locate import Located, locate, locate_place
from shardkit.system.paths import as_path, show_path
from shardkit.system.progress import Progress
from shardkit.system.refusals import os_errors
from shardkit.tars.find import count_beside
from shardkit.tokens.id_files import is_token_file


class Export(Protocol):
    """One kind of files. Making one raises UsageError if the dataset holds nothing for them."""

    def __init__(self, place: Located) -> None: ...

    def write(self, folder: Path, bar: Progress) -> Exported:
        """Write the whole dataset into a new folder. Raises DataError."""


EXPORTS: dict[str, type[Export]] = {
    "bin": BinExport,
    "megatron": MegatronExport,
    "parquet": ParquetExport,
}
"""What ``convert`` writes besides datasets, by the name ``--to`` knows it by."""

_TAKEN = ("overwrite", "progress", "workers")
"""The options of ``convert`` that an export takes, too; one process writes it, however many workers
there may be."""


def export(
    dataset: str | Path | Sequence[str | Path],
    dest: str | Path | None,
    to: str,
    eos: int | None,
    **options: Any,
) -> PackResult:
    """Write a dataset as files of another tool; arguments and errors as of
    :func:`shardkit.convert`. What was written is checked against the dataset's checksums as it is
    read, and has its name only when all of it is whole."""
    started = time.perf_counter()
    given, tars = source_of(dataset)
    _refuse(given, to, eos, options)
    place = locate_place(given) if isinstance(given, Url) else _place(given, tars, to)
    source = place.folder if isinstance(given, Url) else given
    made = EXPORTS[to](place)
    target = as_path(dest, "the destination") if dest else Path(f"{name_of(given)}-{to}")
    refusals = os_errors(f"writing {show_path(target)}")
    with refusals, ExportFolder(target, source, options.get("overwrite", False)) as folder:
        with Progress("converting", options.get("progress")) as bar:
            bar.expect(sum(split.num_rows for split in place.info.splits.values()))
            done = made.write(folder.new, bar)
        fingerprints = {name: split.fingerprint for name, split in place.info.splits.items()}
        num_bytes = folder.publish({"to": to, "fingerprints": fingerprints})
    result = _result(folder.dest, to, place, done, num_bytes, time.perf_counter() - started)
    if tars is None:
        count_beside(source, result.ignored)
    return result


def _refuse(source: Path | Url, to: str, eos: int | None, options: dict[str, Any]) -> None:
    """Raises UsageError for what an export cannot be told, or be made of."""
    for name, value in options.items():
        if name not in OPTIONS:
            raise UsageError(f"convert takes no option {name!r}")
        if name not in _TAKEN and value != getattr(PackOptions, name):
            raise UsageError(f"{name} is for datasets; {to} files are written as the dataset is")
    if isinstance(source, Path) and is_token_file(source):
        raise UsageError(
            f"{show_path(source)} is a file of ids: convert it to npy first, and that to {to}"
        )
    if eos is not None:
        raise UsageError(f"eos is for files of token ids; {show_place(source)} is none")


def _place(source: Path, tars: list[str] | None, to: str) -> Located:
    """The dataset. Raises UsageError for what is not yet one: its labels would be lost, or nothing
    of it can be read by its place."""
    first = f"convert it to npy first, and that to {to}"
    if tars is None and (kind := container_at(source)) is not None:
        raise UsageError(f"{show_path(source)} holds {CORPORA[kind].noun}: {first}")
    return locate(source, tars=tars)


def _result(
    dest: Path, to: str, place: Located, done: Exported, num_bytes: int, seconds: float
) -> PackResult:
    splits = place.info.splits
    sizes = [sum(shard.file_bytes.values()) for split in splits.values() for shard in split.shards]
    return PackResult(
        dest=dest,
        container=to,
        kind="dataset",
        splits={name: split.num_rows for name, split in splits.items()},
        num_samples=sum(split.num_rows for split in splits.values()),
        num_shards=done.num_files,
        input_bytes=sum(sizes),
        dataset_bytes=num_bytes,
        seconds=seconds,
        num_tokens=done.num_tokens,
        ignored=place.info.provenance.passed,
        notes=done.notes,
    )


@os_errors("converting")
def convert(
    dataset: str | Path | Sequence[str | Path],
    dest: str | Path | None = None,
    *,
    to: str,
    eos: int | None = None,
    stored_dtype: str | None = None,
    **options: Any,
) -> PackResult:
    """Write a dataset, or WebDataset tars made by others, in another container format; or token ids
    of nanoGPT or Megatron as a dataset of tokens; or a dataset as the files of another tool.
    TFRecord, LMDB and HDF5 files of others, and files of arrays, are packed.

    Between container formats nothing is lost: keys, original paths, every byte of every value and
    the cut into shards are kept, so converting there and back gives identical files. Unless
    pictures are to be made smaller, or written in another format. Interrupted, the same call goes
    on where it was.

    Files of other tools are no dataset of ours. They appear under their name when all are whole; an
    interrupted call leaves nothing there, and begins anew. Its ``num_shards`` are files, and its
    ``notes`` say what they do not hold.

    Args:
        dataset: its folder, or the URL of that; or a file of ids; of tars a folder, one tar, a list
            of those in one folder, or a pattern like ``a-{000000..000002}.tar``; also ``.tar.gz``,
            ``.tar.zst``.
        dest: folder to make; default: the name and format, here.
        to: ``lmdb``, ``hdf5``, ``webdataset`` or ``npy``; or ``bin`` (nanoGPT's files of ids),
            ``megatron`` (``.bin`` and ``.idx``) or ``parquet`` (for Hugging Face ``datasets``).
        eos: of files of ids: the id that ends documents. nanoGPT's are cut into documents by it,
            else into pieces of :data:`shardkit.tokens.id_files.PIECE_TOKENS`.
        stored_dtype: of ids without a header: their dtype in the file, by default uint16.
        options: those of :class:`shardkit.packing.options.PackOptions` in
            :data:`shardkit.packing.conversion.OPTIONS`; of these, files of other tools take
            ``overwrite`` and ``progress``.

    Raises:
        UsageError: the call or the destination is wrong. DataError: the dataset is damaged.
    """
    if to in EXPORTS:
        if stored_dtype is not None:
            raise UsageError(f"{dataset} is a file of ids: convert it to npy first, that to {to}")
        return export(dataset, dest, to, eos, **options)
    return convert_dataset(dataset, dest, to=to, eos=eos, stored_dtype=stored_dtype, **options)
