"""Transforms from pictures' files to the slots of a batch; each takes a sample, or a whole batch.

The randomness of a sample is its key's alone (:mod:`shardkit.images.crop_boxes`): the same crop,
whatever decodes it, in whichever batch.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from shardkit.arguments import integer
from shardkit.arrays import Array, Hashes, Int32s, Mask, Pixels
from shardkit.errors import BadImageError, UsageError
from shardkit.images import crop_boxes, decoders, pillow
from shardkit.images import kernel as compiled
from shardkit.images.crop import Crop
from shardkit.images.decode import Header, header, orientation, too_large, whole_image
from shardkit.images.fields import pictures_of
from shardkit.images.limits import MAX_PIXELS
from shardkit.images.naming import IMAGE
from shardkit.memory import buffers
from shardkit.samples.sample import Value

KERNEL = "kernel"


@dataclass(frozen=True, kw_only=True)
class Transform:
    """What :class:`Train` and :class:`Eval` share: all but the choice of the boxes.

    Attributes:
        size: width and height of the result.
        field: the picture's; None finds it, see :func:`shardkit.images.fields.pictures_of`.
        backend: what decodes: ``"kernel"``, or a decoder of JPEGs, see
            :func:`shardkit.images.backends`; None takes the fastest there is.
        antialias: average over all pixels that one of the result stands for. False takes the
            nearest four, with OpenCV.
        exif: first turn pictures as their EXIF orientation says.
        max_pixels: refuse larger pictures.
        threads: that the kernel uses for a batch.
    """

    size: int
    field: str | None = None
    backend: str | None = None
    antialias: bool = True
    exif: bool = False
    max_pixels: int = MAX_PIXELS
    threads: int = 1

    def __post_init__(self) -> None:
        for name in ("size", "max_pixels", "threads"):
            integer(name, getattr(self, name), 1)
        if not self.antialias and self.backend == KERNEL:
            raise UsageError("the kernel always antialiases: give another backend")
        # What is not installed is said now, not in the first batch.
        self._engine()
        if self.backend is None and self.antialias:
            compiled.warn_if_absent()
        self._crop().check()

    @property
    def state(self) -> str:
        """What makes the pixels, with versions: with another, they may differ by a rounding."""
        kernel, decoder = self._engine()
        resizer = " ".join(pillow.version() or ()) if self.antialias else "opencv linear"
        titles = [*([KERNEL] if kernel else []), decoder.title, resizer]
        return " + ".join(dict.fromkeys(titles))

    @property
    def words(self) -> str:
        """What chooses the pixels, but for how they are made: a state is of a run with the same."""
        given = [f"{name}={value!r}" for name, value in self._chosen().items()]
        return f"{type(self).__name__}({', '.join(given)})"

    def _chosen(self) -> dict[str, Any]:
        names = ("size", "field", "antialias", "exif")
        return {name: getattr(self, name) for name in names}

    def __call__(self, sample: Mapping[str, Any], rng: np.random.Generator) -> dict[str, Any]:
        """One sample: its picture becomes ``image``, (S, S, 3) uint8; other fields stay.

        The key is the first 64 bits that ``rng`` gives. Raises as :meth:`batch`.
        """
        out = self.batch(
            {name: [value] for name, value in sample.items()}, crop_boxes.draw_key(rng)
        )
        return {name: values[0] for name, values in out.items()}

    def batch(self, columns: Mapping[str, Sequence[Any]], keys: Hashes) -> dict[str, Any]:
        """A whole batch: the pictures become ``image``, (B, S, S, 3) uint8; other fields stay.

        Args:
            columns: field name to B values. keys: (B,) uint64, one a sample.

        Raises:
            BadImageError: a picture does not decode; ``slot`` says which. UsageError: there are
                no pictures.
        """
        values, names = pictures_of(columns, self.field)
        out = buffers.empty((len(values), self.size, self.size, 3), np.uint8)
        kernel, decoder = self._engine()
        if kernel is None:
            self._fill(out, values, keys, decoder)
        else:
            self._fill_by_kernel(out, values, keys, decoder, kernel)
        return {name: c for name, c in columns.items() if name not in names} | {IMAGE: out}

    # --- for subclasses -------------------------------------------------------------------

    def _places(self, sizes: Int32s, keys: Hashes) -> tuple[Array, Mask]:
        """The box, (B, 4) as left, top, width, height, and the flip of each picture."""
        raise NotImplementedError

    def _crop(self) -> Crop:
        raise NotImplementedError

    # --- how ------------------------------------------------------------------------------

    def _engine(self) -> tuple[Any, decoders.JpegDecoder]:
        """The kernel, or None; and what decodes the JPEGs that are not for it."""
        name = self.backend
        if name not in (None, KERNEL):
            return None, decoders.decoder(name)
        kernel, why_not = kernel_or_why_not()
        if name == KERNEL and kernel is None:
            raise UsageError(f"backend 'kernel' is not available: {why_not}")
        return kernel if self.antialias else None, decoders.best()

    def _fill(
        self, out: Pixels, values: list[Value], keys: Hashes, decoder: decoders.JpegDecoder
    ) -> None:
        heads = [self._header(value, slot) for slot, value in enumerate(values)]
        sizes = [self._size(value, head) for value, head in zip(values, heads, strict=True)]
        places, flips = self._places(np.array(sizes, np.int32).reshape(-1, 2), keys)
        slots = enumerate(zip(values, heads, places.tolist(), flips.tolist(), strict=True))
        for slot, (value, head, box, flip) in slots:
            self._fill_one(out, slot, value, head, box, flip, decoder)

    def _fill_by_kernel(
        self,
        out: Pixels,
        values: list[Value],
        keys: Hashes,
        decoder: decoders.JpegDecoder,
        kernel: Any,
    ) -> None:
        """What the kernel leaves, or calls broken, is done, or refused, as without it."""
        sizes, status = kernel.headers(values)
        heads: dict[int, Header] = {}
        for slot in range(len(values)) if self.exif else np.flatnonzero(status).tolist():
            head = self._header(values[slot], slot)
            if status[slot] or orientation(values[slot], head) > 1:
                heads[slot] = head
                sizes[slot] = self._size(values[slot], head)
        too_many = np.flatnonzero(sizes.astype(np.int64).prod(axis=1) > self.max_pixels)
        if len(too_many):
            slot = int(too_many[0])
            width, height = sizes[slot].tolist()
            raise too_large(width, height, self.max_pixels, slot)
        places, flips = self._places(sizes, keys)
        status = kernel.crop_resize(
            [b"" if slot in heads else value for slot, value in enumerate(values)]
            if heads
            else values,
            places,
            flips,
            out,
            self.threads,
            self.max_pixels,
            is_cropped_first=not self._crop().sees_around,
        )
        for slot in np.flatnonzero(status).tolist():
            if status[slot] not in (compiled.Status.ELSEWHERE, compiled.Status.BROKEN):
                raise BadImageError(kernel.message(int(status[slot])), slot)
            head = heads.get(slot) or self._header(values[slot], slot)
            box, flip = tuple(places[slot].tolist()), bool(flips[slot])
            self._fill_one(out, slot, values[slot], head, box, flip, decoder)

    def _header(self, value: Value, slot: int) -> Header:
        try:
            return header(value, self.max_pixels)
        except BadImageError as error:
            error.slot = slot
            raise

    def _size(self, value: Value, head: Header) -> tuple[int, int]:
        """Width and height of the picture that is cropped."""
        is_turned = self.exif and orientation(value, head) >= 5
        return (head.height, head.width) if is_turned else (head.width, head.height)

    def _fill_one(
        self,
        out: Pixels,
        slot: int,
        value: Value,
        head: Header,
        box: Any,
        flip: bool,
        decoder: decoders.JpegDecoder,
    ) -> None:
        try:
            if self.exif and orientation(value, head) > 1:
                image = whole_image(value, head, exif=True)
                self._crop().of_image(out[slot], image, box, flip)
            else:
                self._crop().into(out[slot], value, head, box, flip, decoder)
        except BadImageError as error:
            error.slot = slot
            raise


@dataclass(frozen=True, kw_only=True)
class Train(Transform):
    """A crop of random area, ratio and place, resized, and mirrored with a probability of ``flip``.

    Attributes:
        scale: range of the crop's share of the picture's area. ratio: of its width over its
            height. Both as torchvision's RandomResizedCrop has them.
    """

    scale: tuple[float, float] = (0.08, 1.0)
    ratio: tuple[float, float] = (3 / 4, 4 / 3)
    flip: float = 0.5

    def __post_init__(self) -> None:
        super().__post_init__()
        if not _is_range(self.scale, 1):
            raise UsageError(f"scale must be a range between 0 and 1, got {self.scale!r}")
        if not _is_range(self.ratio, 1e9):
            raise UsageError(f"ratio must be a range above 0, got {self.ratio!r}")
        if not isinstance(self.flip, int | float) or not 0 <= self.flip <= 1:
            raise UsageError(f"flip is a probability, got {self.flip!r}")

    def _chosen(self) -> dict[str, Any]:
        ranges = {"scale": tuple(map(float, self.scale)), "ratio": tuple(map(float, self.ratio))}
        return super()._chosen() | ranges | {"flip": float(self.flip)}

    def _places(self, sizes: Int32s, keys: Hashes) -> tuple[Array, Mask]:
        draws = crop_boxes.uniforms(keys, crop_boxes.NUM_DRAWS)
        return (
            crop_boxes.random_boxes(sizes, draws, self.scale, self.ratio),
            crop_boxes.flips(draws, self.flip),
        )

    def _crop(self) -> Crop:
        return Crop(antialias=self.antialias)


@dataclass(frozen=True, kw_only=True)
class Eval(Transform):
    """The short side resized to ``resize``, and the centre cut: nothing is random.

    Attributes:
        resize: at least ``size``; None is 8/7 of it, as 256 is of 224.
    """

    resize: int | None = None

    def __post_init__(self) -> None:
        super().__post_init__()
        if self._short_side < self.size:
            raise UsageError(f"resize={self.resize} leaves less than size={self.size}")

    @property
    def _short_side(self) -> int:
        return (
            round(self.size * 8 / 7) if self.resize is None else integer("resize", self.resize, 1)
        )

    def __call__(
        self, sample: Mapping[str, Any], rng: np.random.Generator | None = None
    ) -> dict[str, Any]:
        """One sample: its picture becomes ``image``, (S, S, 3) uint8; other fields stay."""
        return super().__call__(sample, rng or np.random.default_rng(0))

    def _chosen(self) -> dict[str, Any]:
        return super()._chosen() | {"resize": self._short_side}

    def _places(self, sizes: Int32s, keys: Hashes) -> tuple[Array, Mask]:
        resized = crop_boxes.centre_boxes(sizes, self._short_side, self.size)
        return resized, np.zeros(len(sizes), np.bool_)

    def _crop(self) -> Crop:
        return Crop(sees_around=True, antialias=self.antialias)


def kernel_or_why_not() -> tuple[Any, str]:
    """The compiled kernel, or None and why it is not there."""
    return (compiled, "") if compiled.is_available() else (None, compiled.why_not())


def _is_range(value: Any, most: float) -> bool:
    try:
        low, high = value
        return bool(0 < low <= high <= most)
    except (TypeError, ValueError):
        return False
