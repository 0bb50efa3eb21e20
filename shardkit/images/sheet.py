"""A contact sheet: many small pictures with captions on one."""

from __future__ import annotations

import io
import math
from dataclasses import dataclass
from typing import Any

import numpy as np

from shardkit.arrays import Bytes
from shardkit.errors import UsageError
from shardkit.images import pillow
from shardkit.images.decode import header
from shardkit.samples.sample import Value

SIDE = 192
"""Greatest width and height of a thumbnail, in pixels."""

MAX_TILES = 1000
"""A sheet of them has 50 million pixels; beyond that programs refuse to show it."""

_GAP, _LINE = 8, 14
_GROUND, _INK, _BROKEN = (255, 255, 255), (0, 0, 0), (200, 0, 0)


@dataclass(frozen=True)
class Tile:
    """A thumbnail, or None for a picture that does not decode, and two lines below it."""

    thumbnail: Any | None
    title: str
    note: str


def thumbnail(data: Value) -> Any:
    """A PIL image of mode RGB, :data:`SIDE` at most each way, not turned whatever EXIF says.

    Raises:
        BadImageError: it does not decode, or is too large. UsageError: no Pillow.
    """
    head = header(data)
    opened = pillow.open_image(data, head.field)
    opened.draft("RGB", (SIDE, SIDE))  # a JPEG is decoded at 1/8 if that is enough
    return _small(pillow.rgb(opened, head.field))


def thumbnail_of_pixels(pixels: Bytes) -> Any:
    """The same of (H, W, 3) uint8, RGB."""
    return _small(pillow.image_module().fromarray(np.ascontiguousarray(pixels)))


def _small(picture: Any) -> Any:
    """As large as it may be; one that is smaller grows by a whole number, each pixel a square."""
    image = pillow.image_module()
    scale = SIDE / max(picture.size)
    if scale >= 1:
        return picture.resize(
            [side * int(scale) for side in picture.size], image.Resampling.NEAREST
        )
    size = [max(1, round(side * scale)) for side in picture.size]
    return picture.resize(size, image.Resampling.BILINEAR)


def contact_sheet(tiles: list[Tile]) -> bytes:
    """A PNG, somewhat wider than high.

    Raises:
        UsageError: more than :data:`MAX_TILES`, or no Pillow.
    """
    if len(tiles) > MAX_TILES:
        raise UsageError(f"a sheet holds {MAX_TILES:,} pictures, got {len(tiles):,}: show fewer")
    image = pillow.image_module()
    columns = math.ceil(math.sqrt(len(tiles) * 1.4))
    width, height = SIDE + _GAP, SIDE + 2 * _LINE + _GAP
    rows = math.ceil(len(tiles) / columns)
    sheet = image.new("RGB", (columns * width + _GAP, rows * height + _GAP), _GROUND)
    for i, tile in enumerate(tiles):
        row, column = divmod(i, columns)
        _paste(sheet, tile, _GAP + column * width, _GAP + row * height)
    out = io.BytesIO()
    sheet.save(out, "PNG")
    return out.getvalue()


def _paste(sheet: Any, tile: Tile, left: int, top: int) -> None:
    from PIL import ImageDraw

    draw = ImageDraw.Draw(sheet)
    if tile.thumbnail is None:
        draw.rectangle((left, top, left + SIDE - 1, top + SIDE - 1), outline=_BROKEN)
        draw.text((left + 4, top + 4), "broken", fill=_BROKEN)
    else:
        width, height = tile.thumbnail.size
        sheet.paste(tile.thumbnail, (left + (SIDE - width) // 2, top + SIDE - height))
    for i, line in enumerate((tile.title, tile.note)):
        draw.text((left, top + SIDE + 2 + i * _LINE), _fit(draw, line), fill=_INK)


def _fit(draw: Any, line: str) -> str:
    """As much of the end of a line as is no wider than a thumbnail: keys differ there.

    Without FreeType, PIL's own font has Latin letters alone, with it few others.
    """
    line = "".join(c if c.isascii() and c.isprintable() else "?" for c in line)
    if draw.textlength(line) <= SIDE:
        return line
    line = line[-SIDE:]
    while draw.textlength(f"...{line}") > SIDE:
        line = line[1:]
    return f"...{line}"
