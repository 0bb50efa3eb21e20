"""Tars that others made, as a corpus: read where they lie, or decompressed first."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from shardkit.index.manifest import INDEX_NAME
from shardkit.inputs.containers.dataset import DatasetCorpus
from shardkit.inputs.containers.packed_tars import PackedTarCorpus
from shardkit.inputs.containers.tar_classes import find_classes
from shardkit.inputs.containers.tar_folders import TarFolderCorpus
from shardkit.shards.locate import Located, locate
from shardkit.system.paths import show_path
from shardkit.system.refusals import os_errors
from shardkit.tars.find import find_tar_names, is_compressed, is_packed, is_tar_source

TARS_KIND = "tars"
"""What the provenance of a dataset says that was made of tars of others."""


def packed_tars(source: Path, tars: Sequence[str] | None = None) -> PackedTarCorpus | None:
    """The corpus of tars of which some are compressed; None if none is.

    ``tars``: names of several, in the folder of ``source``, which is one of them.
    """
    if (source / INDEX_NAME).exists() or not (tars or is_tar_source(source)):
        return None
    folder, names = find_tar_names(source, tars)
    with os_errors(f"reading the tars of {show_path(folder)}"):
        has_packed = any(is_compressed(name) or is_packed(folder / name) for name in names)
    return PackedTarCorpus(folder, names) if has_packed else None


def dataset_corpus(located: Located, tars: list[str] | None = None) -> DatasetCorpus:
    """The corpus of a dataset, or of tars made by others where they lie.

    Raises:
        CorpusError: the tars hold nothing but tars.
    """
    found, why = find_classes(located)
    if found is not None:
        return TarFolderCorpus(located, tars, found)
    corpus = DatasetCorpus(located, tars)
    corpus.notes = [why] if why else []
    return corpus


def tar_corpus(source: Path) -> DatasetCorpus | PackedTarCorpus:
    """The corpus of a tar, a folder of tars, or a pattern, as ``convert`` takes them.

    Raises:
        DatasetMissingError: there are none.
    """
    return packed_tars(source) or dataset_corpus(locate(source))
