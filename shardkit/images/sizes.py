"""How large a picture becomes: pure arithmetic."""

from __future__ import annotations

from typing import NamedTuple

Size = tuple[int, int]
"""(width, height) in pixels."""


class Geometry(NamedTuple):
    """What a picture becomes: its scale and its crop.

    Attributes:
        size: of the result. whole: what the whole picture is scaled to, before the crop.
        box: (left, top, right, bottom), the part of the original, in its pixels, that is kept.
    """

    size: Size
    whole: Size
    box: tuple[float, float, float, float]


def fit(size: Size, short: int | None = None, long: int | None = None) -> Size:
    """Scale to at most ``short`` on the short side and ``long`` on the long one.

    Never enlarges. The side that decides gets exactly its limit; the other one keeps the aspect,
    rounded to the nearest pixel, halves up, and is at least 1.
    """
    bounds = [(1, 1), (short or 0, min(size)), (long or 0, max(size))]
    limit, side = min(
        ((limit, side) for limit, side in bounds if 0 < limit <= side),
        key=lambda bound: bound[0] / bound[1],
    )
    return _scaled(size, limit, side)


def cover(size: Size, side: int) -> Size:
    """Enlarge to at least ``side`` on the short side; what is that large already stays."""
    return size if min(size) >= side else _scaled(size, side, min(size))


def _scaled(size: Size, limit: int, side: int) -> Size:
    width, height = (max(1, (2 * length * limit + side) // (2 * side)) for length in size)
    return width, height


def geometry(size: Size, resize: int | None, max_side: int | None, crop: int | None) -> Geometry:
    """What ``--resize``, ``--max-side`` and ``--crop``, in this order, make of a picture.

    A crop is exactly ``crop`` pixels square, from the centre: a smaller picture is enlarged until
    it covers it, though never made as a whole: one of 1x5000 would come to 50,000 times its pixels.
    """
    whole = fit(size, resize, max_side)
    if crop is None:
        return Geometry(whole, whole, (0.0, 0.0, float(size[0]), float(size[1])))
    whole = cover(whole, crop)
    left, top = (whole[0] - crop) // 2, (whole[1] - crop) // 2
    across, down = size[0] / whole[0], size[1] / whole[1]
    right, bottom = min((left + crop) * across, size[0]), min((top + crop) * down, size[1])
    return Geometry((crop, crop), whole, (left * across, top * down, right, bottom))
