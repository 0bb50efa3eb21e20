"""The finish of a pack: from finished shards to a dataset, and whether one is finished already.

Names, sizes and options are in ``packed``, a checksum in shardkit.json. Times may not be in a
dataset, since equal inputs give equal bytes: a checksum of them is in an extended attribute of
shardkit.json. If a copy or a file system has lost that, names and sizes decide.
"""

from __future__ import annotations

import json
import os
import time
from collections import Counter, deque
from contextlib import suppress
from dataclasses import asdict, dataclass, field, fields, replace
from itertools import groupby
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import xxhash

from shardkit.commit.durable_files import atomic_write
from shardkit.commit.work_folder import is_under_way
from shardkit.errors import CorpusError, DestinationError, ShardkitError, TooManyRejectsError
from shardkit.formats import get_format
from shardkit.images.choice import ImageChoice
from shardkit.images.naming import RAW_FIELD
from shardkit.index.assembling import assemble_split
from shardkit.index.file_names import INDEX_NAME, REJECTED_NAME
from shardkit.index.journal import Receipt
from shardkit.index.manifest import DatasetInfo, read_info, read_rejected
from shardkit.index.provenance import Provenance
from shardkit.inputs.corpus import NO_SAMPLE, Corpus
from shardkit.inputs.records.packed import DatasetCorpus
from shardkit.packing.destination import Destination
from shardkit.packing.job import told_of_others, unequal_shapes
from shardkit.packing.listing import ListedInput, Listing, list_jobs
from shardkit.packing.options import PackOptions
from shardkit.packing.result import COMPLETE, PackResult, result_of
from shardkit.packing.tokenize import TEXT, ChosenTokenizer
from shardkit.samples.encoding import TOKENS
from shardkit.system.paths import file_size, show_path, size_fault


class ShardTally:
    """Of one pack.

    Attributes:
        num_rejects: inputs left out so far.
    """

    def __init__(self, max_rejects: float, *, is_raw: bool) -> None:
        self.num_rejects = 0
        self._max_rejects = max_rejects
        self._is_raw = is_raw
        self._first_reject = ""
        self._shape: list[int] | None = None

    def count(self, receipt: Receipt) -> None:
        """Count a shard.

        Raises:
            SampleError: raw pictures have another shape than those of earlier shards.
        """
        shape = receipt.encodings.get(RAW_FIELD, {}).get("shape")
        if self._is_raw and shape is not None:
            self._shape = self._shape or shape
            if shape != self._shape:
                raise unequal_shapes(f"every picture of shard {receipt.stem}", shape, self._shape)
        if receipt.rejects:
            path, reason = receipt.rejects[0]
            self._first_reject = self._first_reject or f"{path}: {reason}"
            self.num_rejects += len(receipt.rejects)

    def refuse_many(self, num_entries: int) -> None:
        """Raise TooManyRejectsError if of so many inputs too many were left out."""
        if self.num_rejects > self._max_rejects * num_entries:
            raise TooManyRejectsError(
                f"{self.num_rejects} of {num_entries} inputs were rejected, more than the share of"
                f" {self._max_rejects:g} that --max-rejects allows; the first:"
                f" {self._first_reject}"
            )


def in_order(receipts: list[Receipt]) -> list[Receipt]:
    """Return them as the dataset has them: train first, then by split and shard."""
    return sorted(receipts, key=lambda own: (own.split != "train", own.split, own.shard))


@dataclass(frozen=True)
class Conclusion:
    """What is known of a dataset before its shards are.

    Attributes:
        recipe: what decides the result, as plain values.
        origin: what the dataset says of where its samples came from, if not what the input says.
    """

    destination: Destination
    options: PackOptions
    recipe: dict[str, Any]
    chosen: ChosenTokenizer | None
    origin: Origin | None = None

    def publish(
        self, receipts: list[Receipt], listed: ListedInput, num_resumed: int, started: float
    ) -> PackResult:
        """Write the index of every split and what comes with the dataset into the stage, and have
        it take its place.

        Args:
            receipts: of all shards, in order, those of a split together.
            started: when the clock of the result began.

        Raises:
            CorpusError: text was to be tokenized, and no sample has one.
            DataError: two samples of a split have one key, or would be restored as one file.
        """
        destination, options = self.destination, self.options
        origin = self.origin or own_origin(listed.spec, made_of(self.recipe, listed.contents))
        provenance = with_options(origin.provenance, options)
        fields = sorted({name for receipt in receipts for name in receipt.encodings})
        if self.chosen is not None:
            if TOKENS not in fields:
                raise CorpusError(f"nothing was tokenized: no sample has a text (a field {TEXT})")
            provenance = replace(provenance, tokens=self.chosen.spec)
        info = DatasetInfo(get_format(options.to).name, fields, listed.classes, provenance)
        info = with_signposts(destination.stage, info)
        for name, own in groupby(receipts, key=lambda receipt: receipt.split):
            info.splits[name] = assemble_split(
                destination.stage,
                destination.work,
                name,
                [*own],
                info,
                unique_keys=True,
                new_paths=options.images.writes_anew,
            )
        rejects = [reject for receipt in receipts for reject in receipt.rejects]
        lines = [json.dumps({"path": path, "reason": why}) + "\n" for path, why in rejects]
        if rejected := origin.rejected + "".join(lines).encode():
            atomic_write(destination.stage / REJECTED_NAME, [rejected])
        for name, data in origin.files.items():
            atomic_write(destination.stage / name, [data])
        result = result_of(
            destination.name,
            destination.stage,
            info,
            listed.kind,
            num_rejects=len(rejects),
            input_bytes=listed.num_bytes,
            resumed_shards=num_resumed,
            seconds=time.perf_counter() - started,
            ignored=dict(listed.ignored),
            notes=[
                *listed.notes,
                *(self.chosen.notes if self.chosen else []),
                *_notes_on(options, receipts),
            ],
        )
        destination.finish(info, self.recipe, {**asdict(result), "dest": ""})
        if destination.name == destination.dest:
            seen = _digest(self.recipe, listed.seen)
            with suppress(OSError, AttributeError):  # not every file system and system has them
                # Not of a link's target, which is not ours.
                os.setxattr(destination.dest / INDEX_NAME, SEEN, seen, follow_symlinks=False)
        return replace(result, seconds=time.perf_counter() - started)


@dataclass(frozen=True)
class Origin:
    """Where samples came from, and what comes with them.

    Attributes:
        rejected: lines of rejected.jsonl from earlier.
        inputs: file -> what changes when it does, where the corpus's runs do not say.
        files: name -> contents of the dataset's files that are none of a split's.
    """

    provenance: Provenance
    rejected: bytes = b""
    inputs: dict[str, list[int]] = field(default_factory=dict)
    files: dict[str, bytes] = field(default_factory=dict)


def with_signposts(folder: Path, info: DatasetInfo) -> DatasetInfo:
    """Write a dataset's files for other tools into the folder, and return the dataset with them."""
    signposts = get_format(info.container).signposts(info.fields, info.classes)
    for name, data in signposts.items():
        atomic_write(folder / name, [data])
    sizes = {n: (len(data), xxhash.xxh3_64_intdigest(data)) for n, data in signposts.items()}
    return replace(info, signposts=sizes)


def own_origin(spec: dict[str, Any], packed: str | None = None) -> Origin:
    """Return enough of the input for ``verify --against`` to list it again, and to know it.
    ``spec``: as of :class:`shardkit.inputs.corpus.Corpus`."""
    kept = {name: value for name, value in spec.items() if name != "classes"}
    return Origin(Provenance(kept, packed))


def with_options(before: Provenance, options: PackOptions) -> Provenance:
    """Return the same, with the limit of this pack and its choice for pictures."""
    images = (options.images.to_json(),) if options.images else ()
    return replace(
        before,
        limit=before.limit if options.limit is None else options.limit,
        images=(*before.images, *images),
    )


def _notes_on(options: PackOptions, receipts: list[Receipt]) -> list[str]:
    """Return what became of pictures, and what there is to say of options that came to nothing, a
    line each."""
    counts = sum((Counter(receipt.counts) for receipt in receipts), Counter[str]())
    notes = []
    if options.images:
        from shardkit.images import losses, restarting

        if lost := losses.told(counts):
            notes.append(
                f"pictures written anew: {lost}; without {options.images} all stay as they are"
            )
        notes += [told_of_others(counts), restarting.told(restarting.counted(counts))]
    if empty := counts[NO_SAMPLE]:
        notes.append(f"{NO_SAMPLE}: {empty:,}")
    stored = (encoding for receipt in receipts for encoding in receipt.encodings.values())
    if options.compression is not None and not any("codec" in encoding for encoding in stored):
        notes.append(
            "compression had no effect: no field holds arrays of one shape with"
            f" {get_format(options.to).compresses_from} bytes or more each"
        )
    return [*filter(None, notes)]


# --- what a dataset was made of -----------------------------------------------------------

SEEN = "user.shardkit.seen"
"""The extended attribute of shardkit.json that tells with which inputs it was packed."""


_OF_DATASET = {"to", "compression", "dali_index", *(field.name for field in fields(ImageChoice))}
"""Told by the dataset itself, and not by ``packed``: converted, it is, to the byte, what packing
with these would have made."""


def made_of(recipe: dict[str, Any], contents: str) -> str:
    """Return ``packed`` for that checksum of the listing: 16 hexadecimal digits."""
    options = {name: v for name, v in recipe["options"].items() if name not in _OF_DATASET}
    text = json.dumps([recipe | {"options": options}, contents], sort_keys=True)
    return xxhash.xxh3_64_hexdigest(text.encode())


def is_of_inputs(dest: Path, recipe: dict[str, Any], seen: str) -> bool | None:
    """Return True if a dataset's inputs were these, times included; None if that is not known."""
    try:
        return os.getxattr(dest / INDEX_NAME, SEEN) == _digest(recipe, seen)
    except (OSError, AttributeError):
        return None


def _digest(recipe: dict[str, Any], seen: str) -> bytes:
    return xxhash.xxh3_128_hexdigest(json.dumps([recipe, seen], sort_keys=True).encode()).encode()


def up_to_date(
    dest: Path,
    corpus: Corpus,
    options: PackOptions,
    recipe: dict[str, Any],
    origin: Origin | None,
    started: float,
) -> PackResult | None:
    """Return what the call would make if the dataset at ``dest`` is that; None if it is another.

    Names, sizes and times of the inputs decide, as they do for make and rsync; no input is read.
    Not for a corpus that ``is_read_once``: it cannot be listed without being read. Arguments are
    as of :func:`shardkit.packing.run.run_pack`; ``recipe`` is what decides the result.

    Raises:
        DestinationError: it is of this input, but is not complete, or the input was touched since.
    """
    try:
        info = complete_dataset(dest, options)
    except ShardkitError:
        return None
    if info is None or info.history:  # it is not what was packed any more
        return None
    splits = info.splits.values()
    encodings = [e for split in splits for layout in split.layouts for e in layout.values()]
    if options.compression is not None or any(e.codec for e in encodings):
        return None  # nothing says how much they are compressed
    if options.dali_index != any(name.endswith(".idx") for name in info.file_bytes):
        return None
    with TemporaryDirectory(prefix="shardkit-") as folder:
        listing, scratch = Listing(Path(folder)), Path(folder, "scratch")
        scratch.mkdir()
        deque(list_jobs(corpus, listing, options, corpus.runs(scratch)), 0)
    before = origin or own_origin(corpus.spec(), made_of(recipe, listing.contents))
    num_rejects = read_rejected(dest).count(b"\n") - before.rejected.count(b"\n")
    num_inputs = sum(split.num_rows for split in splits) + num_rejects
    if num_rejects > (0 if options.on_error == "fail" else options.max_rejects * num_inputs):
        return None
    says = info.provenance if not options.makes_tokens else replace(info.provenance, tokens=None)
    if says != with_options(before.provenance, options) or info.classes != corpus.classes:
        return None
    is_same = is_of_inputs(dest, recipe, listing.seen)
    # A converted dataset does not say what it was converted from.
    if origin is not None and not is_same and not _is_a_copy(info, corpus, options):
        return None
    for name, num_bytes in info.file_bytes.items():
        if fault := size_fault(dest / name, num_bytes):
            raise DestinationError(
                f"{show_path(dest)} already holds a dataset of this input, but {show_path(name)}"
                f" {fault}; pass --overwrite to pack again"
            )
    if origin is None and is_same is False:
        raise DestinationError(
            f"{show_path(dest)} already holds a dataset of inputs of these names and sizes, but"
            " some of them were changed or touched since: `shardkit verify --against` says which"
            " contents differ, and --overwrite packs again"
        )
    return _complete_result(dest, info, ListedInput.of(corpus, listing), num_rejects, started)


def complete_dataset(dest: Path, options: PackOptions) -> DatasetInfo | None:
    """Return the dataset there, of this format; None if it is to be replaced, or if a pack is under
    way. Raises IndexFileError if it is damaged."""
    if options.overwrite or is_under_way(dest) or not (dest / INDEX_NAME).is_file():
        return None
    found = read_info(dest)
    return found if found.container == options.to else None


def merged_before(
    dest: Path,
    options: PackOptions,
    recipe: dict[str, Any],
    listed: ListedInput,
    num_rejects: int,
    started: float,
) -> PackResult | None:
    """Return the result if the dataset at ``dest`` is of the parts of this pack, else None."""
    info = complete_dataset(dest, options)
    if (
        info is None
        or info.provenance.packed != made_of(recipe, listed.contents)
        or any(file_size(dest / name) != size for name, size in info.file_bytes.items())
        or is_of_inputs(dest, recipe, listed.seen) is False
    ):
        return None
    return _complete_result(dest, info, listed, num_rejects, started)


def _complete_result(
    dest: Path, info: DatasetInfo, listed: ListedInput, num_rejects: int, started: float
) -> PackResult:
    """Return the result of a call that finds its dataset complete."""
    return result_of(
        dest,
        dest,
        info,
        listed.kind,
        num_rejects=num_rejects,
        input_bytes=listed.num_bytes,
        seconds=time.perf_counter() - started,
        ignored=dict(listed.ignored),
        notes=[COMPLETE],
        was_complete=True,
    )


def _is_a_copy(info: DatasetInfo, corpus: Corpus, options: PackOptions) -> bool:
    """Return True if checksums say that it has the samples of the dataset that was converted."""
    if options.images or not isinstance(corpus, DatasetCorpus):
        return False
    copies, sources = (
        {one.name: (one.fingerprint, one.files[one.index_file("names")]) for one in splits}
        for splits in (info.splits.values(), corpus.info.splits.values())
    )
    return copies == sources and all(one.has_checksums for one in corpus.info.splits.values())
