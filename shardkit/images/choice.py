"""What to make of pictures while packing: how large, in which format, and with restart markers."""

from __future__ import annotations

from dataclasses import dataclass, fields
from typing import Any, Literal, Self

from shardkit.errors import UsageError

ImageFormat = Literal["keep", "jpeg", "png", "webp", "raw"]

FORMATS = ("keep", "jpeg", "png", "webp", "raw")

QUALITY = 90
"""Where none is given."""

MAX_SIDE = 65_535
"""What a JPEG can have, and so what a limit may say (pixels)."""

KIND_OF = {"jpeg": "jpg", "png": "png", "webp": "webp", "raw": "npy"}
"""Format -> the ending of the field that holds it."""


@dataclass(frozen=True)
class ImageChoice:
    """Checked when made, raising UsageError; made with nothing, it leaves every picture as it is.

    Attributes:
        resize: the short side at most; larger pictures are scaled down, never up (pixels).
        max_side: the long side at most (pixels).
        crop: then cut this square from the centre (pixels). A picture that is smaller is scaled up.
        quality: of JPEG and WebP, 1 to 100; None is :data:`QUALITY`.
        image_format: ``keep`` leaves pictures that need no scaling as they are, and others in their
            format. ``jpeg`` (baseline), ``png`` and ``webp`` write others anew. ``raw`` makes
            arrays (H, W, 3) of uint8.
        restarts: rewrite JPEGs without loss, those that were written anew among them, so that parts
            of them can be decoded alone, see :mod:`shardkit.images.restarts`; ``unpack`` undoes it.
    """

    resize: int | None = None
    max_side: int | None = None
    crop: int | None = None
    quality: int | None = None
    image_format: ImageFormat = "keep"
    restarts: bool = False

    def __post_init__(self) -> None:
        for name in ("resize", "max_side", "crop"):
            side = getattr(self, name)
            if side is not None and not 1 <= side <= MAX_SIDE:
                raise UsageError(f"{name} is a number of pixels from 1 to {MAX_SIDE}, got {side}")
        if self.image_format not in FORMATS:
            raise UsageError(
                f"image_format must be one of {', '.join(FORMATS)}, got {self.image_format!r}"
            )
        if self.restarts and self.image_format not in ("keep", "jpeg"):
            raise UsageError(
                f"restarts is for JPEGs, and image_format {self.image_format} leaves none: pass one"
                " of the two"
            )
        if self.quality is None:
            return
        if not 1 <= self.quality <= 100:
            raise UsageError(f"quality is a number from 1 to 100, got {self.quality}")
        if self.image_format in ("png", "raw"):
            raise UsageError(f"quality is for jpeg and webp; {self.image_format} loses nothing")
        if not self._limits and self.image_format == "keep":
            raise UsageError(
                "quality is for pictures that are written anew: pass resize, max_side, crop, or"
                " image_format jpeg or webp, too"
            )

    @property
    def _limits(self) -> bool:
        return any(side is not None for side in (self.resize, self.max_side, self.crop))

    def __bool__(self) -> bool:
        """Whether anything is to be done."""
        return self.writes_anew or self.restarts

    @property
    def writes_anew(self) -> bool:
        """Whether pictures may be decoded and written anew. Markers alone lose nothing."""
        return self._limits or self.image_format != "keep"

    @property
    def is_raw(self) -> bool:
        return self.image_format == "raw"

    @property
    def rewrites_all(self) -> bool:
        """Whether pictures that are already as wanted are written anew, too: who names a format
        and a quality means every picture."""
        return self.is_raw or (self.image_format != "keep" and self.quality is not None)

    def to_json(self) -> dict[str, Any]:
        """What differs from the defaults."""
        return {f.name: v for f in fields(self) if (v := getattr(self, f.name)) != f.default}

    @classmethod
    def from_json(cls, raw: dict[str, Any]) -> Self:
        return cls(**raw)

    def __str__(self) -> str:
        return describe(self.to_json())


def describe(choice: dict[str, Any]) -> str:
    """A choice as JSON in the words of the command line; ``keep`` if it is none."""
    flags = [
        f"--{name.replace('_', '-')}" + ("" if value is True else f" {value}")
        for name, value in choice.items()
    ]
    return " ".join(flags) or "keep"


def is_lossless(choice: dict[str, Any]) -> bool:
    """Whether a choice as JSON adds restart markers and does nothing else."""
    return choice.keys() <= {"restarts"}
