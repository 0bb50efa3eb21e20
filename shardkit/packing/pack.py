"""``pack`` and ``convert``: from a corpus to a whole dataset, resumably.

The destination holds a work folder while a pack is under way: a lock, the options it was started
with, the listing, and the files and a part of every finished shard. When all is whole it takes the
place of what was there, shardkit.json last; then the work folder goes. Killed at any moment, the
same call goes on and ends in the same bytes.
"""

from __future__ import annotations

import json
import time
from collections.abc import Iterator
from contextlib import ExitStack
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any

from shardkit.corpus import open_corpus
from shardkit.corpus.base import Corpus
from shardkit.corpus.dataset import DatasetCorpus
from shardkit.errors import CorpusError, SampleError, TooManyRejectsError, UsageError
from shardkit.formats import FORMATS, get_format
from shardkit.formats.hdf5 import MIN_CHUNK_BYTES
from shardkit.images.choice import ImageChoice
from shardkit.images.encode import require_encoder
from shardkit.images.naming import RAW_FIELD
from shardkit.index.assembling import assemble_split
from shardkit.index.count_tokens import num_tokens
from shardkit.index.manifest import REJECTED_NAME, DatasetInfo
from shardkit.index.parts import PartHead, part_path, read_head
from shardkit.index.rows import RowIndex
from shardkit.packing.again import Standing, listed, made_of, standing, standing_copy
from shardkit.packing.destination import Destination
from shardkit.packing.engine import Engine, InProcess, Processes
from shardkit.packing.job import Job, JobContext
from shardkit.packing.listing import Listing, list_jobs
from shardkit.packing.options import PackOptions
from shardkit.packing.tokenize import TEXT
from shardkit.packing.tokenizer import (
    Chosen,
    load_chosen,
    refuse_without_text,
    settle_tokenizer,
)
from shardkit.packing.transform import unequal_shapes
from shardkit.samples.encoding import TOKENS
from shardkit.system.progress import Progress
from shardkit.system.storage import (
    as_path,
    atomic_write,
    file_size,
    os_errors,
    parse_size,
    show_path,
)

SHARD_SIZES = 4_000_000, 256_000_000
"""Input bytes of the first shards, and of the largest. 50,000 files of 1 KB are 13 shards, enough
for as many cores; one of 256 MB keeps a single core busy, or a single worker of a loader."""

TOKENS_SHARD_SIZES = 1_000_000, 32_000_000
"""Tokenizing takes a hundred times as long as copying, so a worker's share of it is smaller: some 3
seconds, so that few workers are idle at the end, and little is done again after a kill."""

COMPLETE = "complete already, from an earlier run"
"""The note of a result that this call has not made."""

WITHOUT_PICTURES = frozenset({"text", "jsonl", "arrays", "parquet", "hf"})
"""Kinds of input that have none."""


@dataclass(frozen=True)
class PackResult:
    """What a pack made.

    Attributes:
        dest: the dataset's folder. container: its format. kind: kind of input.
        num_samples, num_shards, num_rejects: counts over all splits.
        input_bytes, dataset_bytes: sizes before and after, in bytes.
        resumed_shards: shards found finished from an earlier, interrupted call.
        num_tokens: of all documents, BOS and EOS included; 0 if text was not tokenized.
        seconds: from the first look at the source to the last sync; without starting workers.
        ignored: files passed over, by extension; hidden files and folders under ``hidden``.
        notes: what else there is to know, a line each.
        was_complete: whether an earlier call had made it all, and this one nothing.
    """

    dest: Path
    container: str
    kind: str
    splits: dict[str, int]
    num_samples: int
    num_shards: int
    num_rejects: int
    input_bytes: int
    dataset_bytes: int
    resumed_shards: int
    seconds: float
    num_tokens: int = 0
    ignored: dict[str, int] = field(default_factory=dict)
    notes: list[str] = field(default_factory=list)
    was_complete: bool = False


@dataclass(frozen=True)
class Origin:
    """Where samples came from: ``corpus`` of shardkit.json, and the lines of rejected.jsonl.

    ``inputs`` is file -> what changes when it does, where the corpus's runs do not say. ``files``
    are those of the dataset, name -> contents, that are none of a split's.
    """

    corpus: dict[str, Any]
    rejected: bytes = b""
    inputs: dict[str, list[int]] = field(default_factory=dict)
    files: dict[str, bytes] = field(default_factory=dict)


def pack(
    source: str | Path,
    dest: str | Path | None = None,
    *,
    to: str | None = None,
    corpus: str | None = None,
    labels: str | Path | None = None,
    text_field: str | None = None,
    shard_size: str | int | None = None,
    **options: Any,
) -> PackResult:
    """Pack small files into shards that any tool can open.

    Call it again after an interruption, even a kill -9, and it goes on; the result is the same to
    the byte. It does not depend on the number of workers. On a dataset that is what it would make,
    it does nothing but say so in ``notes``.

    Args:
        source: a folder of images, image-text pairs, text or arrays; .jsonl or .parquet files, or
            one; a folder that Hugging Face datasets saved.
        dest: folder to make; default: the source's name and format, in the current folder.
        to: ``lmdb``, ``hdf5``, ``webdataset`` or ``npy``; may be left out for tokens, which go
            to npy then.
        corpus: kind of input, where it should not be detected.
        labels: csv or json of path -> label, where folders do not say.
        text_field: pack this field of each .jsonl line as ``txt``, not the whole line; the column
            of tables that is their text.
        shard_size: input bytes a shard, as ``"256MB"`` or a number; default: 4 MB at first, then a
            32nd of what came before, up to 256 MB; 1 MB to 32 MB of text to tokenize. So shards are
            many if there is enough for many.
        options: the fields of :class:`shardkit.packing.options.PackOptions`.

    Raises:
        UsageError: the call or the destination is wrong; nothing was written.
        DataError: an input is bad, or the disk refused; the state is kept, call again to go on.
    """
    made = parse_options(to, shard_size, options)
    started = time.perf_counter()
    src = as_path(source, "the source")
    opened = open_corpus(src, corpus, labels and Path(labels), text_field)
    if opened.kind in WITHOUT_PICTURES:
        refuse_choice(made.images, f"{show_path(src)} is taken for {opened.kind}")
    if made.makes_tokens:
        refuse_without_text(opened, src)
    return run_pack(src, opened, choose_dest(src, dest, made.to), made, started)


def parse_options(
    to: str | None, shard_size: str | int | None, options: dict[str, Any]
) -> PackOptions:
    """What the caller of ``pack`` gave. Raises UsageError."""
    makes_tokens = any(options.get(name) is not None for name in ("tokenizer", "train_tokenizer"))
    if to is None and not makes_tokens:
        raise UsageError(f"to is missing: choose a format, one of {', '.join(FORMATS)}")
    sizes = TOKENS_SHARD_SIZES if makes_tokens else SHARD_SIZES
    given = sizes if shard_size is None else parse_size(shard_size)
    try:
        return PackOptions(to=to or "npy", shard_bytes=given, **options)
    except TypeError as error:
        raise UsageError(f"pack: {error}") from error


def refuse_choice(choice: ImageChoice, why: str) -> None:
    """Raise UsageError if anything was chosen for pictures, where there are none."""
    if choice:
        raise UsageError(f"{why}, and has no pictures: leave out {choice}")


def choose_dest(source: Path, dest: str | Path | None, to: str) -> Path:
    """``dest``, or for none, ``imagenet/`` to lmdb -> ``imagenet-lmdb`` in the current folder."""
    if dest:
        return Path(dest)
    resolved = source.resolve()
    name = resolved.name if resolved.is_dir() else resolved.name.partition(".")[0]
    return Path(f"{name or 'dataset'}-{get_format(to).name}")


def run_pack(
    source: Path,
    corpus: Corpus,
    dest: Path,
    options: PackOptions,
    started: float,
    origin: Origin | None = None,
) -> PackResult:
    """Pack a corpus into ``dest``.

    ``started`` is when the clock of the result began (``time.perf_counter``), and ``origin`` what
    the dataset says of where its samples came from, if not what the corpus says.
    """
    if options.images:
        require_encoder(options.images)
    loaded = load_chosen(options)
    inputs = origin.inputs if origin else {}
    if loaded is not None:
        inputs = {"the tokenizer": [int(loaded.spec.xxh3, 16)]}
    lasting = {"inputs": inputs, "corpus": corpus.spec(), "options": options.lasting()}
    with os_errors(f"packing into {dest}"), ExitStack() as stack:
        if dest.resolve() == source.resolve():
            found = None  # no copy of itself: refused below
        elif isinstance(corpus, DatasetCorpus):
            found = standing_copy(corpus, dest, options)
        else:
            found = None if origin else standing(source, corpus, dest, options, lasting)
        if found is not None:
            return _found_standing(dest.resolve(), corpus, found, time.perf_counter() - started)
        place = stack.enter_context(Destination(dest, source, options.overwrite))
        if finished := place.finished(lasting, lambda: listed(corpus, options).checksum):
            return _found_complete(place.dest, finished)
        if options.overwrite:
            place.clear()
        place.prepare(lasting)
        place.scratch.mkdir(exist_ok=True)
        chosen = settle_tokenizer(place, corpus, options, loaded)
        context = _context(place, options, chosen)
        before_workers = time.perf_counter()
        engine = stack.enter_context(_engine(source, corpus, context, options, place.lock_fd))
        started += time.perf_counter() - before_workers
        progress = stack.enter_context(Progress("packing", options.progress))
        jobs = _Jobs(corpus, place, options, progress)
        heads = jobs.run(engine)
        if not any(head.num_rows for head in heads):
            raise CorpusError(f"nothing could be packed from {source}: every input was rejected")
        if origin is None:
            origin = _own_origin(corpus, made_of(lasting, jobs.listing))
        info = _assemble(place, corpus, heads, options, origin, chosen)
        result = _result(
            place.dest,
            place.stage,
            corpus,
            info,
            jobs.listing,
            jobs.num_rejects,
            len(jobs.resumed),
            time.perf_counter() - started,
        )
        result.notes.extend([*(chosen.notes if chosen else []), *_notes(options, heads)])
        made = lasting | {"listed": jobs.listing.checksum}
        place.finish(info, made, {**asdict(result), "dest": ""})
        return replace(result, seconds=time.perf_counter() - started)


def _found_standing(dest: Path, corpus: Corpus, found: Standing, seconds: float) -> PackResult:
    result = _result(dest, dest, corpus, found.info, found.listing, found.num_rejects, 0, seconds)
    return replace(result, notes=[COMPLETE], was_complete=True)


def _found_complete(dest: Path, finished: dict[str, Any]) -> PackResult:
    notes = [*finished["notes"], COMPLETE]
    return PackResult(**{**finished, "dest": dest, "notes": notes, "was_complete": True})


def _context(place: Destination, options: PackOptions, chosen: Chosen | None) -> JobContext:
    return JobContext(
        work=str(place.work),
        stage=str(place.stage),
        to=options.to,
        compression=options.compression,
        skip_bad=options.on_error == "skip",
        check_images=options.check_images,
        dali_index=options.dali_index,
        images=options.images.to_json(),
        tokens=None if chosen is None else asdict(chosen),
    )


def _engine(
    source: Path, corpus: Corpus, context: JobContext, options: PackOptions, lock_fd: int
) -> Engine:
    if not options.num_workers:
        return InProcess(corpus, context)
    return Processes(options.num_workers, source, corpus, context, lock_fd)


class _Jobs:
    """All jobs of a pack: listed, minus those done before, run, and their rejects counted."""

    def __init__(
        self, corpus: Corpus, place: Destination, options: PackOptions, progress: Progress
    ) -> None:
        self._work = place.work
        self._stage = place.stage
        self._options = options
        self._progress = progress
        self._first_reject = ""
        self.listing = Listing(place.work)
        self._raw: list[int] | None = None
        self.num_rejects = 0
        self.resumed: list[PartHead] = []
        self._jobs = list_jobs(corpus, self.listing, options, place.scratch)

    def run(self, engine: Engine) -> list[PartHead]:
        """Run what is open; all parts' heads, train first, then by split and shard."""
        # Resumed, a changed input is refused before any work, and the bar begins where it was.
        # Without workers listing comes first in any case; workers pack while it goes on.
        jobs = self._open()
        if self.listing.is_resumed or not self._options.num_workers:
            jobs = iter(list(jobs))
        heads = []
        for head in engine.run(jobs, self._progress):
            heads.append(head)
            self._count(head)
        heads += self.resumed
        return sorted(heads, key=lambda head: (head.split != "train", head.split, head.shard))

    def _open(self) -> Iterator[Job]:
        for job in self._jobs:
            head = self._finished(job)
            if head is None:
                yield job
            else:
                if head.rejects and self._options.on_error == "fail":
                    raise SampleError(": ".join(head.rejects[0]))
                self.resumed.append(head)
                self._progress.skip(job.num_entries)
                self._count(head)
        self._progress.expect(self.listing.num_entries)
        self._refuse_many()

    def _finished(self, job: Job) -> PartHead | None:
        """What an earlier call made of a job, if all of it is there; else it is made again."""
        head = read_head(part_path(self._work, job.split, job.shard))
        if head is None or head.stem != job.stem:
            return None
        if head.segment != job.digest:
            raise self.listing.changed(f"those of shard {job.stem}")
        sizes = {name: file_size(self._stage / name) for name in head.file_bytes}
        return head if sizes == head.file_bytes else None

    def _count(self, head: PartHead) -> None:
        self._compare_raw(head)
        if head.rejects:
            path, reason = head.rejects[0]
            self._first_reject = self._first_reject or f"{path}: {reason}"
            self.num_rejects += len(head.rejects)
            self._refuse_many()

    def _compare_raw(self, head: PartHead) -> None:
        """Raw pictures must have one shape in all shards, too."""
        shape = head.encodings.get(RAW_FIELD, {}).get("shape")
        if not self._options.images.is_raw or shape is None:
            return
        self._raw = self._raw or shape
        if shape != self._raw:
            raise unequal_shapes(f"every picture of shard {head.stem}", shape, self._raw)

    def _refuse_many(self) -> None:
        total, most = self.listing.num_entries, self._options.max_rejects
        if self.listing.is_complete and self.num_rejects > most * total:
            raise TooManyRejectsError(
                f"{self.num_rejects} of {total} inputs were rejected, more than the share of"
                f" {most:g} that --max-rejects allows; the first: {self._first_reject}"
            )


def _assemble(
    place: Destination,
    corpus: Corpus,
    heads: list[PartHead],
    options: PackOptions,
    origin: Origin,
    chosen: Chosen | None,
) -> DatasetInfo:
    origin = _origin(corpus, heads, options, origin)
    fields = sorted({name for head in heads for name in head.encodings})
    if chosen is not None:
        if TOKENS not in fields:
            raise CorpusError(f"nothing was tokenized: no sample has a text (a field {TEXT})")
        origin.corpus["tokens"] = chosen.spec
    info = DatasetInfo(
        container=get_format(options.to).name,
        fields=fields,
        classes=corpus.classes,
        corpus=origin.corpus,
    )
    for name in dict.fromkeys(head.split for head in heads):
        own = [head for head in heads if head.split == name]
        split = assemble_split(
            place.stage,
            place.work,
            name,
            own,
            info,
            unique_keys=True,
            new_paths=bool(options.images),
        )
        info.splits[name] = split
    if origin.rejected:
        atomic_write(place.stage / REJECTED_NAME, [origin.rejected])
    for name, data in origin.files.items():
        atomic_write(place.stage / name, [data])
    return info


def _own_origin(corpus: Corpus, packed: str) -> Origin:
    """Enough of the input for ``verify --against`` to list it again, and to know it again."""
    kept = {name: value for name, value in corpus.spec().items() if name != "classes"}
    return Origin({**kept, "packed": packed})


def _origin(corpus: Corpus, heads: list[PartHead], options: PackOptions, before: Origin) -> Origin:
    """The same, with what became of it."""
    kept = {**before.corpus}
    if options.limit is not None:
        kept["limit"] = options.limit
    if options.images:
        kept["images"] = [*kept.get("images", []), options.images.to_json()]
    rejects = [{"path": path, "reason": why} for head in heads for path, why in head.rejects]
    own = "".join(json.dumps(reject) + "\n" for reject in rejects).encode()
    return replace(before, corpus=kept, rejected=before.rejected + own)


def _result(
    dest: Path,
    folder: Path,
    corpus: Corpus,
    info: DatasetInfo,
    listing: Listing,
    num_rejects: int,
    num_resumed: int,
    seconds: float,
) -> PackResult:
    """What to say of a dataset whose files are in ``folder``, for now or for good."""
    splits = info.splits.values()
    shards = [shard for split in splits for shard in split.shards]
    return PackResult(
        dest=dest,
        container=info.container,
        kind=corpus.kind,
        splits={split.name: split.num_rows for split in splits},
        num_samples=sum(split.num_rows for split in splits),
        num_shards=len(shards),
        num_rejects=num_rejects,
        input_bytes=listing.num_bytes,
        dataset_bytes=sum(sum(shard.file_bytes.values()) for shard in shards)
        + sum(num_bytes for split in splits for num_bytes, _ in split.files.values())
        + info.corpus.get("tokens", {}).get("bytes", 0),
        resumed_shards=num_resumed,
        seconds=seconds,
        num_tokens=_num_tokens(folder, info),
        ignored=dict(corpus.ignored),
    )


def _num_tokens(folder: Path, info: DatasetInfo) -> int:
    tokens = info.corpus.get("tokens")
    if tokens is None:
        return 0
    indexes = (RowIndex(folder, info, split) for split in info.splits.values())
    return sum(num_tokens(index, tokens["dtype"]) for index in indexes)


def _notes(options: PackOptions, heads: list[PartHead]) -> list[str]:
    stored = (encoding for head in heads for encoding in head.encodings.values())
    if options.compression is None or any("codec" in encoding for encoding in stored):
        return []
    return [
        "compression had no effect: no field holds arrays of one shape with"
        f" {MIN_CHUNK_BYTES} bytes or more each"
    ]
