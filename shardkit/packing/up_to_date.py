"""The same pack again: whether the dataset at the destination is up to date, so that packing would
make just that.

What it was asked for, the dataset says itself: in ``packed``, one checksum of the options that
decide the result and of names and sizes of all inputs, or, if it was converted, in all that it says
of its origin. Whether the inputs still hold what they held is found by reading them again, and
comparing every sample, since equal inputs give equal bytes and so no time may stand in a dataset.

That takes about as long as packing without writing. It is left out where the inputs are proved to
be untouched: beside ``shardkit.json`` an extended attribute keeps the stamps of all inputs, as they
were listed before any was read. Copies that lose it, and file systems that have none, only cost
time.
"""

from __future__ import annotations

import json
import os
import shutil
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass, fields, replace
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import xxhash

from shardkit.errors import DataError, DestinationError, ShardkitError
from shardkit.images.choice import ImageChoice
from shardkit.index.manifest import (
    INDEX_NAME,
    WORK_NAME,
    DatasetInfo,
    read_index,
    read_info,
    read_rejected,
)
from shardkit.index.provenance import Provenance
from shardkit.inputs.base import Corpus
from shardkit.inputs.records.packed import DatasetCorpus
from shardkit.packing.choose_tokenizer import ChosenTokenizer
from shardkit.packing.job import Job, Setup
from shardkit.packing.listing import Listing, list_jobs
from shardkit.packing.options import PackOptions
from shardkit.packing.publish import is_marked
from shardkit.packing.reread import first_difference
from shardkit.system.paths import show_path, size_fault
from shardkit.system.progress import Progress
from shardkit.tokens.load import BACKEND_OF

UNTOUCHED = "user.shardkit.inputs"
"""The extended attribute of ``shardkit.json`` that proves that no input was touched."""


@dataclass(frozen=True)
class UpToDate:
    """A dataset that is what a pack would make, and the listing of its input. ``num_rejects``:
    lines of rejected.jsonl."""

    info: DatasetInfo
    listing: Listing
    num_rejects: int


@dataclass(frozen=True)
class Asked:
    """What a call of pack or convert asks for.

    Attributes:
        source: the input. recipe: what decides the result, as plain values.
        provenance: what the dataset is to say, but for ``packed``.
        is_new: whether it is a pack, and no convert, so that ``packed`` is said.
        rejected: the lines of rejected.jsonl before the call's own.
    """

    source: Path
    corpus: Corpus
    options: PackOptions
    recipe: dict[str, Any]
    provenance: Provenance
    is_new: bool
    rejected: bytes


_OF_DATASET = {"to", "compression", "dali_index", *(field.name for field in fields(ImageChoice))}
"""Told by the dataset itself, and not by ``packed``: converted, it is, to the byte, what packing
with these would have made."""


def made_of(recipe: dict[str, Any], contents: str) -> str:
    """What ``packed`` says, of that checksum of the listing: 16 hexadecimal digits."""
    options = {name: v for name, v in recipe["options"].items() if name not in _OF_DATASET}
    text = json.dumps([recipe | {"options": options}, contents], sort_keys=True)
    return xxhash.xxh3_64_hexdigest(text.encode())


def prove_untouched(dest: Path, recipe: dict[str, Any], state: str) -> None:
    """Keep the proof that the inputs of a finished dataset are those that were listed, of which
    ``state`` is a checksum."""
    try:
        proof = _proof(dest, recipe, state)  # of a link's target it is not ours to keep
        os.setxattr(dest / INDEX_NAME, UNTOUCHED, proof, follow_symlinks=False)
    except (OSError, AttributeError):
        pass  # not every file system and not every system has them


def up_to_date(dest: Path, asked: Asked) -> UpToDate | None:
    """The dataset at ``dest``, if the call would make the same; None if it asks for another.

    Raises:
        DestinationError: it is of this input, but is not whole, or the input has changed.
    """
    info = _found(dest, asked.options)
    if info is None or not _is_as_asked(info, asked.options):
        return None
    with _listed(asked, info) as listed:
        listing = listed.listing
        if not _is_of(info, asked, listing):
            return None
        num_rejects = read_rejected(dest).count(b"\n") - asked.rejected.count(b"\n")
        num_rows = sum(split.num_rows for split in info.splits.values())
        if num_rejects > _most_rejects(asked.options, num_rows + num_rejects):
            return None
        _refuse_broken(dest, info)
        num_entries = num_rows + num_rejects
        if not (num_entries == listing.num_entries and _is_proved(dest, info, asked, listing)):
            _refuse_another(dest, info, asked, listed)
            if asked.corpus.is_stamped:
                prove_untouched(dest, asked.recipe, listing.state)
    return UpToDate(info, listing, num_rejects)


def _found(dest: Path, options: PackOptions) -> DatasetInfo | None:
    """The dataset there; None if it is to be replaced, or if a pack is under way."""
    is_under_way = (dest / WORK_NAME).exists() or is_marked(dest)
    if options.overwrite or is_under_way or not (dest / INDEX_NAME).is_file():
        return None
    try:
        found = read_info(dest)
    except ShardkitError:
        return None
    return None if found.history else found  # it is not what was packed any more


@dataclass(frozen=True)
class _Listed:
    """The input as it is now."""

    listing: Listing
    jobs: Iterable[Job]
    setup: Setup


@contextmanager
def _listed(asked: Asked, info: DatasetInfo) -> Iterator[_Listed]:
    """The input listed into a folder of its own for as long as the block lasts, to be read as for a
    pack into it."""
    with TemporaryDirectory(prefix="shardkit-") as folder:
        setup = _setup(Path(folder), asked, info)
        setup.scratch.mkdir(parents=True)
        listing, runs = Listing(setup.work), asked.corpus.runs(setup.scratch)
        jobs: Iterable[Job] = list_jobs(asked.corpus, listing, asked.options, runs)
        if not asked.corpus.is_read_once:  # whose samples are not held until all is listed
            jobs = [*jobs]
        yield _Listed(listing, jobs, setup)


def _setup(folder: Path, asked: Asked, info: DatasetInfo) -> Setup:
    options, tokens = asked.options, None
    if options.makes_tokens and info.provenance.tokens:
        spec = info.provenance.tokens
        tokens = asdict(ChosenTokenizer(spec, BACKEND_OF.get(spec.get("kind"), ""), []))
    return Setup(
        source=str(asked.source.absolute()),
        dest=str(folder),
        corpus=asked.corpus.spec(),
        to=options.to,
        skip_bad=options.on_error == "skip",
        check_images=options.check_images,
        images=options.images.to_json(),
        tokens=tokens,
    )


def _is_as_asked(info: DatasetInfo, options: PackOptions) -> bool:
    """Whether the container is. Of compressed ones nothing says how much they are."""
    splits = info.splits.values()
    encodings = [e for split in splits for layout in split.layouts for e in layout.values()]
    if options.compression is not None or any(e.codec for e in encodings):
        return False
    has_dali = any(name.endswith(".idx") for name in info.file_bytes)
    return info.container == options.to and has_dali == options.dali_index


def _is_of(info: DatasetInfo, asked: Asked, listing: Listing) -> bool:
    """Whether it says that it was made of this input, in this way."""
    wanted, says = asked.provenance, info.provenance
    if asked.is_new:
        contents = "" if asked.corpus.is_read_once else listing.contents
        wanted = replace(wanted, packed=made_of(asked.recipe, contents))
    if asked.options.makes_tokens:
        says = replace(says, tokens=None)
    return says == wanted and info.classes == asked.corpus.classes


def _most_rejects(options: PackOptions, num_entries: int) -> float:
    return 0 if options.on_error == "fail" else options.max_rejects * num_entries


def _refuse_broken(dest: Path, info: DatasetInfo) -> None:
    for name, num_bytes in info.file_bytes.items():
        if fault := size_fault(dest / name, num_bytes):
            raise DestinationError(
                f"{show_path(dest)} already holds a dataset of this input, but {show_path(name)}"
                f" {fault}; pass --overwrite to pack again"
            )


def _is_proved(dest: Path, info: DatasetInfo, asked: Asked, listing: Listing) -> bool:
    """Whether nothing needs to be read to know that it is of these inputs as they are now."""
    source = None if asked.options.images else asked.corpus
    if isinstance(source, DatasetCorpus) and _is_a_copy(info, source.info):
        return True
    try:
        found = os.getxattr(dest / INDEX_NAME, UNTOUCHED)
    except (OSError, AttributeError):
        return False
    return found == _proof(dest, asked.recipe, listing.state)


def _is_a_copy(info: DatasetInfo, source: DatasetInfo) -> bool:
    """Whether checksums say that it has the same samples under the same names."""
    return _samples(info) == _samples(source) and all(
        split.has_checksums for split in source.splits.values()
    )


def _samples(info: DatasetInfo) -> dict[str, Any]:
    return {
        name: (
            split.fingerprint,
            split.files[split.index_file("names")],
            [shard.num_rows for shard in split.shards],
        )
        for name, split in info.splits.items()
    }


def _proof(dest: Path, recipe: dict[str, Any], state: str) -> bytes:
    text = json.dumps([recipe, state], sort_keys=True)
    return xxhash.xxh3_128_hexdigest(text.encode() + read_index(dest)).encode()


def _refuse_another(dest: Path, info: DatasetInfo, asked: Asked, listed: _Listed) -> None:
    """Raise DestinationError unless the inputs, packed as asked, give the samples there are."""
    jobs, setup = listed.jobs, listed.setup
    if (name := info.provenance.tokenizer_file) is not None and asked.options.makes_tokens:
        setup.stage.mkdir()
        shutil.copyfile(dest / name, setup.stage / name)
    try:
        with Progress("comparing", asked.options.progress) as progress:
            if isinstance(jobs, list):
                progress.expect(sum(job.num_entries for job in jobs))
            other = first_difference(
                dest, info, asked.corpus, jobs, setup, asked.rejected, progress
            )
    except DataError as error:
        other = str(error).partition(";")[0]  # what follows is advice to those who pack
    if other:
        raise DestinationError(
            f"{show_path(dest)} already holds a dataset of inputs of these names and sizes, but"
            f" their contents are others now: {other}; see what differs with `shardkit verify"
            " --against`, or pass --overwrite to replace it"
        )
