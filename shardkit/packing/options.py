"""What a pack can be told."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass, fields
from importlib.util import find_spec
from pathlib import Path
from typing import Any, Literal, NamedTuple

from shardkit.arguments import unknown_option
from shardkit.errors import UsageError
from shardkit.formats import FOR_TOKENS, FORMATS, get_format, names_of
from shardkit.images.choice import ImageChoice, ImageFormat
from shardkit.system.byte_sizes import parse_size
from shardkit.system.resources import allowance

_PART = re.compile(r"([0-9]{1,6})/([0-9]{1,6})")


class Part(NamedTuple):
    """The ``number``-th of ``total``, from 1."""

    number: int
    total: int

    @classmethod
    def parse(cls, text: str) -> Part:
        """Read ``3/64``. Raises UsageError."""
        found = _PART.fullmatch(str(text))
        part = cls(*map(int, found.groups())) if found else cls(0, 0)
        if not 1 <= part.number <= part.total:
            raise UsageError(f"part must be as 3/64, from 1/64 to 64/64, got {text!r}")
        return part

    def has(self, job: int) -> bool:
        """Return True if the job of this number, from 0 in the order of the listing, is its own."""
        return job % self.total == self.number - 1

    def __str__(self) -> str:
        return f"{self.number}/{self.total}"


#: Options that change neither which bytes are written nor where: a resumed pack may change them.
#: The tokenizer is compared by its contents, see :mod:`shardkit.packing.tokenize`.
_FREE = frozenset({"workers", "overwrite", "progress", "max_rejects", "on_error", "tokenizer"})
_FREE |= {"staging", "staging_bytes", "engine", "address", "dry_run"}

MIN_VOCABULARY = 256
"""Entries a trained tokenizer has at least: one a byte."""


def check_engine(engine: str, address: str | None, workers: int | None) -> None:
    """Raise UsageError for an engine that is none, or that is not there, or told nonsense."""
    if engine not in ("local", "ray"):
        raise UsageError(f"engine must be local or ray, got {engine!r}")
    if engine == "local":
        if address is not None:
            raise UsageError("address is of a Ray cluster: pass engine ray, too")
        return
    if workers == 0:
        raise UsageError("workers 0 packs in this process, and engine ray never does; leave it out")
    if address is not None and address.startswith("ray://"):
        raise UsageError(
            f"address {address} is for Ray Client, which forgets its tasks with the connection; run"
            " this on a machine of the cluster, with address auto, or give HOST:PORT of its head"
        )
    found = find_spec("ray")
    if found is None or found.origin is None:  # a folder of this name is a package of nothing
        raise UsageError(
            "engine ray needs Ray: pip install 'shardkit[ray]', on all machines of the cluster"
        )


@dataclass(frozen=True)
class PackOptions:
    """Options of :func:`shardkit.pack`; checked when made, raising UsageError.

    Attributes:
        to: container format.
        workers: processes that pack, beside this one, which lists; 0 does all in this one; None
            means one a core. With engine ``ray``: tasks at once; None: one a CPU of the cluster.
        engine: where jobs are done: ``local``, on this machine, or ``ray``, on a Ray cluster whose
            machines all see source and destination under the same paths.
        address: of the cluster: ``HOST:PORT``, or ``auto`` for one that this machine is part of;
            default: what ``RAY_ADDRESS`` says, or a cluster of this machine alone, for this call.
        shard_bytes: input bytes a shard holds at most (one larger entry gets its own shard); or how
            many the first ones hold, and at most those that grow with what came before them, see
            :func:`shardkit.packing.plan.cut`.
        shuffle, seed: pack in an order drawn from ``seed`` and the keys.
        on_error: ``fail`` at the first bad input, or ``skip`` it into ``rejected.jsonl``.
        max_rejects: share of rejects over which ``skip`` fails after all.
        check_images: decode each image before accepting it.
        resize, max_side, crop, quality, image_format, restarts: what to make of pictures, see
            :class:`shardkit.images.choice.ImageChoice`; by default they stay as they are.
        tokenizer: store text as the ids of this tokenizer: the path of a tokenizer.json or of a
            transformers folder, or the name of a tiktoken encoding.
        train_tokenizer: the same, by one of so many entries trained on the input's text.
        eos, bos: token that ends (``auto``: the one the tokenizer is known to end documents with)
            and that begins each document; ``none``: no such token.
        invalid_utf8: text to tokenize that is not UTF-8 is a bad input, or what is wrong in it
            becomes U+FFFD.
        compression: zlib level 1-9 for arrays of fixed shape in hdf5.
        dali_index: write DALI's own index beside each tar of webdataset.
        part: ``"3/64"``: make the third of 64 parts only, every so many-th shard;
            :func:`shardkit.merge` makes the dataset of all of them.
        limit: pack the first ``limit`` entries of each split.
        val_fraction: share of ``train`` to cut off as split ``val``, drawn by ``seed``; at least
            one entry goes there, and at least one stays.
        overwrite: forget a started pack at the destination; replace a dataset there, when the new
            one is whole (until then the disk holds both).
        progress: bars on or off; None: on where stderr is a terminal.
        staging: folder of this machine in which a dataset is packed that goes to a URL; default:
            ``shardkit/staging`` in the user's cache folder.
        staging_bytes: how many bytes of finished shards may wait there to be uploaded, as a number
            or ``"4GB"``; each worker has up to two more in hand. Default: 4 GiB.
        dry_run: write nothing, and say in ``notes`` what was found and what the first sample holds.
    """

    to: str
    workers: int | None = None
    engine: Literal["local", "ray"] = "local"
    address: str | None = None
    shard_bytes: int | tuple[int, int] = 256_000_000
    shuffle: bool = False
    seed: int = 0
    on_error: Literal["fail", "skip"] = "fail"
    max_rejects: float = 0.01
    check_images: bool = False
    resize: int | None = None
    max_side: int | None = None
    crop: int | None = None
    quality: int | None = None
    image_format: ImageFormat = "keep"
    restarts: bool = False
    tokenizer: str | Path | None = None
    train_tokenizer: int | None = None
    eos: str = "auto"
    bos: str = "none"
    invalid_utf8: Literal["reject", "replace"] = "reject"
    compression: int | None = None
    dali_index: bool = False
    part: str | None = None
    limit: int | None = None
    val_fraction: float = 0.0
    overwrite: bool = False
    progress: bool | None = None
    staging: str | Path | None = None
    staging_bytes: str | int | None = None
    dry_run: bool = False

    def __post_init__(self) -> None:
        object.__setattr__(self, "to", get_format(self.to).name)
        if self.workers is not None and self.workers < 0:
            raise UsageError(f"workers must be at least 0, got {self.workers}")
        if self.on_error not in ("fail", "skip"):
            raise UsageError(f"on_error must be fail or skip, got {self.on_error!r}")
        if not 0 <= self.max_rejects <= 1:
            raise UsageError(f"max_rejects is a share from 0 to 1, got {self.max_rejects}")
        if not 0 <= self.val_fraction < 1:
            raise UsageError(f"val_fraction is a share from 0 up to 1, got {self.val_fraction}")
        if self.limit is not None and self.limit < 1:
            raise UsageError(f"limit must be at least 1, got {self.limit}")
        if self.compression is not None and not 1 <= self.compression <= 9:
            raise UsageError(f"compression is a zlib level from 1 to 9, got {self.compression}")
        if self.part is not None:
            object.__setattr__(self, "part", str(Part.parse(self.part)))
        check_engine(self.engine, self.address, self.workers)
        self._check_tokens()
        made = get_format(self.to)
        if self.compression is not None and made.compresses_from is None:
            able = names_of(lambda other: other.compresses_from)
            raise UsageError(f"compression is for arrays in {able}; {self.to} has none")
        if self.dali_index and not made.has_dali_reader:
            able = names_of(lambda other: other.has_dali_reader)
            raise UsageError(f"dali_index is of the tars of {able}; {self.to} has none")
        if self.images.is_raw and self.crop is None and not made.has_typed_arrays:
            able = names_of(lambda other: other.has_typed_arrays)
            raise UsageError(
                f"raw pictures in {self.to} may differ in shape, which nobody would notice before"
                f" training: pass crop, or choose {able}"
            )

    def _check_tokens(self) -> None:
        if self.invalid_utf8 not in ("reject", "replace"):
            raise UsageError(f"invalid_utf8 must be reject or replace, got {self.invalid_utf8!r}")
        if not self.makes_tokens:
            for name in ("eos", "bos", "invalid_utf8"):
                if getattr(self, name) != getattr(type(self), name):
                    raise UsageError(f"{name} is of tokens: pass tokenizer or train_tokenizer, too")
            return
        if self.tokenizer is not None and self.train_tokenizer is not None:
            raise UsageError("pass either tokenizer or train_tokenizer, not both")
        if self.train_tokenizer is not None and self.train_tokenizer <= MIN_VOCABULARY:
            raise UsageError(
                f"train_tokenizer is a number of entries, over the {MIN_VOCABULARY} of single"
                f" bytes, got {self.train_tokenizer}"
            )
        if self.images:
            raise UsageError(f"{self.images} is for pictures, and text is to be tokenized")

    @property
    def images(self) -> ImageChoice:
        """Return what to make of pictures; raises UsageError if that makes no sense."""
        names = (f.name for f in fields(ImageChoice))
        return ImageChoice(**{name: getattr(self, name) for name in names})

    @property
    def own_part(self) -> Part | None:
        """Return which jobs to do; None for all."""
        return None if self.part is None else Part.parse(self.part)

    @property
    def makes_tokens(self) -> bool:
        """Return True if text is to be tokenized."""
        return self.tokenizer is not None or self.train_tokenizer is not None

    @property
    def num_workers(self) -> int:
        """Return how many processes to start."""
        return allowance().cpus if self.workers is None else self.workers

    def lasting(self) -> dict[str, Any]:
        """Return the options that decide the result: a resumed pack must have the same."""
        found = {f.name: getattr(self, f.name) for f in fields(self) if f.name not in _FREE}
        # Datasets were packed without this one before it was there: what those say stays.
        return {name: v for name, v in found.items() if v or name != "part"}


SHARD_SIZES = 4_000_000, 256_000_000
"""Input bytes of the first shards, and of the largest. 50,000 files of 1 KB are 13 shards, enough
for as many cores; one of 256 MB keeps a single core busy, or a single worker of a loader."""

TOKENS_SHARD_SIZES = 1_000_000, 32_000_000
"""Tokenizing takes a hundred times as long as copying, so a worker's share of it is smaller: some 3
seconds, so that few workers are idle at the end, and little is done again after a kill."""


def parse_fields(fields: str | Sequence[str] | None) -> list[str] | None:
    """Return ``"a,b"`` or a list of names as a list, each name once. Raises UsageError."""
    if fields is None:
        return None
    names = list(map(str.strip, fields.split(","))) if isinstance(fields, str) else [*fields]
    if not all(isinstance(name, str) for name in names):
        raise UsageError(f"fields must be names, got {fields!r}")
    return list(dict.fromkeys(filter(None, names)))


def parse_options(
    to: str | None, shard_size: str | int | None, options: dict[str, Any]
) -> PackOptions:
    """Return what the caller of ``pack`` gave. Raises UsageError."""
    if options.pop("drop_duplicates", False):
        raise UsageError(
            "pack drops no duplicates: leave drop_duplicates out, then run `shardkit edit DEST"
            " --drop-duplicates`, and `shardkit convert DEST NEW --to FORMAT` to make it compact"
        )
    makes_tokens = any(options.get(name) is not None for name in ("tokenizer", "train_tokenizer"))
    if unknown := options.keys() - PackOptions.__dataclass_fields__.keys():
        raise unknown_option("pack", unknown)
    if to is None and not makes_tokens:
        raise UsageError(f"to is missing: choose a format, one of {', '.join(FORMATS)}")
    sizes = TOKENS_SHARD_SIZES if makes_tokens else SHARD_SIZES
    given = sizes if shard_size is None else parse_size(shard_size)
    try:
        return PackOptions(to=to or FOR_TOKENS, shard_bytes=given, **options)
    except TypeError as error:
        raise UsageError(f"pack: {error}") from error
