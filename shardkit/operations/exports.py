"""``convert``: a dataset in another container format, or as the files of another tool.

Other tools do not know how ours tell that something is not whole: what has the name is taken for
all of it. So nothing has the name before everything is written and synced, and then all has it. A
killed export leaves a hidden folder beside the destination; the next one removes it.
"""

from __future__ import annotations

import json
import os
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

from shardkit.commit.durable_files import atomic_write, fsync_path
from shardkit.commit.own_files import read_own
from shardkit.commit.work_folder import WorkFolder
from shardkit.errors import DestinationError, UsageError
from shardkit.inputs.detection import CORPORA, container_at
from shardkit.operations.export_ids import BinExport, IdsExport, MegatronExport
from shardkit.operations.export_table import ParquetExport
from shardkit.operations.unpack import refuse_dataset
from shardkit.packing.conversion import OPTIONS, source_of
from shardkit.packing.conversion import convert as convert_dataset
from shardkit.packing.options import PackOptions
from shardkit.packing.result import PackResult
from shardkit.packing.spool import name_of
from shardkit.remote.urls import Url, refuse_overlap, show_place
from shardkit.shards.locate import locate, locate_place
from shardkit.system.paths import as_path, show_path
from shardkit.system.progress import Progress
from shardkit.system.refusals import os_errors
from shardkit.tars.find import count_beside
from shardkit.tokens.id_files import is_token_file

EXPORTS: dict[str, type[IdsExport] | type[ParquetExport]] = {
    "bin": BinExport,
    "megatron": MegatronExport,
    "parquet": ParquetExport,
}
"""Exports that ``convert`` writes besides datasets, by their names for ``--to``."""

_TAKEN = ("overwrite", "progress", "workers")
"""The options of ``convert`` that an export takes, too; one process writes it, however many workers
there may be."""


MARKER = ".export.json"
"""The file that says that a folder is an export, and which files are: no others may be lost."""

_FORMAT = "shardkit export"
_OLD_NAME = "old"


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
    _refuse(given, tars, to, eos, options)
    place = locate_place(given) if isinstance(given, Url) else locate(given, tars=tars)
    source = place.folder if isinstance(given, Url) else given
    made = EXPORTS[to](place)
    # As of a pack: pictures-lmdb/ to parquet -> pictures-lmdb-parquet, here.
    named = as_path(dest, "the destination") if dest else Path(f"{name_of(given)}-{to}")
    target, splits = named.resolve(), place.info.splits
    num_rows = place.info.num_rows
    with (
        os_errors(f"writing {show_path(named)}"),
        _new_folder(target, source, options.get("overwrite", False)) as new,
    ):
        with Progress("converting", options.get("progress")) as bar:
            bar.expect(sum(num_rows.values()))
            done = made.write(new, bar)
        record = {"to": to, "fingerprints": place.info.fingerprints}
        num_bytes = _publish(new, target, record)
    shards = [shard for split in splits.values() for shard in split.shards]
    result = PackResult(
        dest=target,
        container=to,
        kind="dataset",
        splits=num_rows,
        num_samples=sum(num_rows.values()),
        num_shards=done.num_files,
        input_bytes=sum(sum(shard.file_bytes.values()) for shard in shards),
        dataset_bytes=num_bytes,
        seconds=time.perf_counter() - started,
        num_tokens=done.num_tokens,
        ignored=place.info.provenance.passed,
        notes=done.notes,
    )
    if tars is None:
        count_beside(source, result.ignored)
    return result


def _refuse(
    source: Path | Url, tars: list[str] | None, to: str, eos: int | None, options: dict[str, Any]
) -> None:
    """Raise UsageError for what an export cannot be told, or be made of: of what is not yet a
    dataset, labels would be lost, or nothing can be read by its place."""
    for name, value in options.items():
        if name not in OPTIONS:
            raise UsageError(f"convert takes no option {name!r}")
        if name not in _TAKEN and value != getattr(PackOptions, name):
            raise UsageError(f"{name} is for datasets; {to} files are written as the dataset is")
    first = f"convert it to npy first, and that to {to}"
    if isinstance(source, Path) and is_token_file(source):
        raise UsageError(f"{show_path(source)} is a file of ids: {first}")
    if eos is not None:
        raise UsageError(f"eos is for files of token ids; {show_place(source)} is none")
    if isinstance(source, Path) and tars is None and (kind := container_at(source)) is not None:
        raise UsageError(f"{show_path(source)} holds {CORPORA[kind].noun}: {first}")


@contextmanager
def _new_folder(dest: Path, source: Path, overwrite: bool) -> Iterator[Path]:
    """Give the folder to write into; what is there at the end, and was not published, goes.

    Raises:
        DestinationError: the destination is taken, overlaps the dataset, or another process writes
            there.
    """
    refuse_overlap(dest, source.resolve())
    refuse_dataset(dest)
    _refuse_taken(dest, overwrite)
    with WorkFolder(dest, dest.with_name(f".{dest.name}.exporting")) as folder:
        _settle(folder)
        _refuse_taken(dest, overwrite)  # another call may have finished meanwhile
        folder.stage.mkdir()
        try:
            yield folder.stage
        except BaseException:
            with suppress(OSError):  # the error under way says more
                _settle(folder)
            raise
        _settle(folder)


def _settle(folder: WorkFolder) -> None:
    """End what this call, or one that was killed, had begun: what stood at the destination is there
    again if nothing took its place, and else goes; what is not whole goes."""
    old = folder.path / _OLD_NAME
    if old.exists() and not folder.dest.exists():
        old.rename(folder.dest)
    folder.clear()


def _publish(new: Path, dest: Path, record: dict[str, Any]) -> int:
    """Give a folder its name. Return the bytes of all files in it, but for its marker.

    ``record`` is what else the marker says, as JSON.
    """
    sizes = {name: (new / name).stat().st_size for name in _files_in(new)}
    marker = {"format": _FORMAT, **record, "files": sizes}
    atomic_write(new / MARKER, [json.dumps(marker, indent=1).encode() + b"\n"])
    for folder, _, names in os.walk(new):
        for name in names:
            fsync_path(Path(folder, name))
        fsync_path(Path(folder))
    if dest.exists():
        dest.rename(new.with_name(_OLD_NAME))
    new.rename(dest)
    fsync_path(dest.parent)
    return sum(sizes.values())


def _refuse_taken(dest: Path, overwrite: bool) -> None:
    name = show_path(dest)
    if not dest.exists():
        return
    if not dest.is_dir():
        raise DestinationError(f"{name} exists and is no folder; choose another destination")
    if dest == Path.cwd() or dest.is_mount():
        raise DestinationError(
            f"{name} is in use, and an export takes the place of its destination as a whole;"
            " name a folder in it"
        )
    found = _files_in(dest)
    if not found and not any(dest.iterdir()):
        return
    listed = _listed(dest)
    if listed is None:
        raise DestinationError(
            f"{name} exists and is no export, so nothing in it will be replaced; choose another"
            " destination"
        )
    if not overwrite:
        raise DestinationError(
            f"{name} already exists; pass --overwrite to replace it, or choose another destination"
        )
    if others := [file for file in found if file not in listed]:
        raise DestinationError(
            f"{show_path(dest / others[0])} was written by no export, and would be lost;"
            " move it away, or choose another destination"
        )


def _files_in(folder: Path) -> list[str]:
    """Return the relative paths, sorted, of all that is no folder."""
    found = [path for path in folder.rglob("*") if path.is_symlink() or not path.is_dir()]
    return sorted(path.relative_to(folder).as_posix() for path in found)


def _listed(folder: Path) -> set[str] | None:
    """Return the files that an export wrote, and its marker; None if the folder is none."""
    try:
        raw = json.loads(read_own(folder / MARKER) or b"")
    except (OSError, ValueError, RecursionError):
        return None
    if not isinstance(raw, dict) or raw.get("format") != _FORMAT:
        return None
    files = raw.get("files")
    return {*files, MARKER} if isinstance(files, dict) else None


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
    pictures are to be made smaller, or written in another format, or rewritten with restart
    markers. Interrupted, the same call goes on where it was.

    Files of other tools are no dataset of ours. They appear under their name when all are whole; an
    interrupted call leaves nothing there, and begins anew. Its ``num_shards`` are files, and its
    ``notes`` say what they do not hold.

    Args:
        dataset: its folder, or the URL of that; or a file of ids; of tars a folder, one tar, a list
            of those in one folder, or a pattern like ``a-{000000..000002}.tar``; also ``.tar.gz``,
            ``.tar.zst``.
        dest: folder to make, or the URL of a dataset in a bucket; default: the name and format,
            here.
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
