"""One picture: decoded no larger than needed, cropped, resized, mirrored, into its slot."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

import numpy as np

from shardkit.arrays import Pixels
from shardkit.errors import UsageError
from shardkit.images import pillow
from shardkit.images.decode import Header, whole_image
from shardkit.images.decoders import JpegDecoder, Window, scaled
from shardkit.images.pillow import Region
from shardkit.samples.sample import Value

Box = tuple[float, float, float, float]
"""Left, top, width, height, in pixels of the whole picture."""


@dataclass(frozen=True)
class Crop:
    """How boxes become pixels.

    Attributes:
        sees_around: whether pixels at the edge of a box take from those around it, as when a
            picture is resized and then cropped; else as when it is cropped and then resized.
        antialias: average over all pixels that one of the result stands for. False takes the
            nearest four, with OpenCV.
    """

    sees_around: bool = False
    antialias: bool = True

    def check(self) -> None:
        """Raises UsageError if what resizes is not installed."""
        if self.antialias:
            pillow.image_module()
        else:
            _opencv()

    def into(
        self, out: Pixels, data: Value, head: Header, box: Box, flip: bool, decoder: JpegDecoder
    ) -> None:
        """Write a box of a picture into ``out``, (S, S, 3) uint8, C-contiguous.

        Raises:
            BadImageError: the picture does not decode.
        """
        if head.jpeg is None or not head.is_plain_jpeg:
            self.of_image(out, whole_image(data, head), box, flip)
            return
        shrink = shrink_for(box, len(out))
        region = self._region(box, len(out), (head.width, head.height), shrink)
        window = decoder.window(data, head.jpeg, shrink, region)
        self._resize(out, window, _within(box, shrink, region), flip)

    def of_image(self, out: Pixels, image: Any, box: Box, flip: bool) -> None:
        """The same of a loaded PIL image of mode RGB."""
        region = self._region(box, len(out), image.size)
        window = Window(pillow.crop(image, region), "RGB")
        self._resize(out, window, _within(box, 1, region), flip)

    def _region(self, box: Box, size: int, whole: tuple[int, int], shrink: int = 1) -> Region:
        """The pixels, of the picture at 1/``shrink``, that the result depends on."""
        left, top, right, bottom = (v / shrink for v in _corners(box))
        if self.sees_around:
            # The filter reaches a step between two pixels of the result to either side.
            around = 2 + max(right - left, bottom - top) / size
            left, top, right, bottom = left - around, top - around, right + around, bottom + around
        return (
            max(math.floor(left), 0),
            max(math.floor(top), 0),
            min(math.ceil(right), scaled(whole[0], shrink)),
            min(math.ceil(bottom), scaled(whole[1], shrink)),
        )

    def _resize(self, out: Pixels, window: Window, box: Box, flip: bool) -> None:
        if self.antialias:
            pillow.resize(window.image, box, flip, window.order, out)
        else:
            _resize_linear(window, box, flip, out)


def shrink_for(box: Box, size: int) -> int:
    """1, 2, 4 or 8: how much smaller a picture can be decoded so that a box still has as many
    pixels as the result. libjpeg has steps between, but only these are vectorised."""
    shrink = 1
    while shrink < 8 and min(box[2], box[3]) >= 2 * shrink * size:
        shrink *= 2
    return shrink


def _corners(box: Box) -> Box:
    """Left, top, right, bottom."""
    return box[0], box[1], box[0] + box[2], box[1] + box[3]


def _within(box: Box, shrink: int, region: Region) -> Box:
    """Corners of the box within the region, in pixels of the scaled picture; never beyond it, not
    even by a rounding."""
    left, top, right, bottom = (v / shrink for v in _corners(box))
    width, height = region[2] - region[0], region[3] - region[1]
    return (
        max(left - region[0], 0.0),
        max(top - region[1], 0.0),
        min(right - region[0], width),
        min(bottom - region[1], height),
    )


def _opencv() -> Any:
    try:
        import cv2
    except ImportError as error:
        raise UsageError(
            "antialias=False needs OpenCV: pip install opencv-python-headless; with antialiasing,"
            " resizing takes a tenth of the time of decoding"
        ) from error
    return cv2


def _resize_linear(window: Window, box: Box, flip: bool, out: Pixels) -> None:
    """Without antialiasing; in the same geometry."""
    cv2 = _opencv()
    left, top, right, bottom = box
    size = len(out)
    x, y = (right - left) / size, (bottom - top) / size
    # Pixel i of the result is centred at left + (i + 0.5) * x; warpAffine counts from centres.
    across = [-x, 0, right - x / 2 - 0.5] if flip else [x, 0, left + x / 2 - 0.5]
    places = np.array([across, [0, y, top + y / 2 - 0.5]])
    how = cv2.INTER_LINEAR | cv2.WARP_INVERSE_MAP
    resized: Any = cv2.warpAffine(
        np.asarray(window.image), places, (size, size), flags=how, borderMode=cv2.BORDER_REPLICATE
    )
    out[:] = resized if window.order == "RGB" else cv2.cvtColor(resized, cv2.COLOR_BGRA2RGB)
