"""Make a folder of small real JPEG files in class folders: synthesised pictures, not noise.

    python scripts/tools/make_pictures.py pictures --count 3000 --classes 10 --size 64

Picture number i of a seed is always the same, on the same versions of NumPy, Pillow and libjpeg. A
class is a motif (discs, stripes, strokes like handwriting ...) on a gradient
under a little grain, so that pictures compress, and differ, as photographs do.
"""

from __future__ import annotations

import argparse
import io
import math
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from PIL import Image, ImageDraw

Random = np.random.Generator
Color = tuple[int, int, int]
Pixels = np.ndarray[Any, Any]


def picture(seed: int, number: int, kind: int, size: int, grain: float = 6.0) -> Image.Image:
    """One square picture, ``size`` pixels wide, of class ``kind``.

    ``grain`` is the strength of the texture, in levels of 255: detail, and so bytes.
    """
    random = np.random.default_rng((seed, number))
    image = Image.fromarray(_background(random, kind, size, grain))
    motif = MOTIFS[kind % len(MOTIFS)]
    motif(ImageDraw.Draw(image), random, size)
    return image


def jpeg(image: Image.Image, quality: int = 85) -> bytes:
    """The picture as a JPEG file."""
    file = io.BytesIO()
    image.save(file, "JPEG", quality=quality)
    return file.getvalue()


def _background(random: Random, kind: int, size: int, grain: float) -> Pixels:
    """A gradient between two colours in a random direction, under a grain of several octaves."""
    angle = random.uniform(0, 2 * math.pi)
    along = np.linspace(0, 1, size, dtype=np.float32)
    ramp = math.cos(angle) * along[:, None] + math.sin(angle) * along
    ramp = (ramp - ramp.min()) / np.ptp(ramp) + _grain(random, size) * np.float32(grain / 255)
    dark, light = (np.array(_color(random, kind, level), np.float32) for level in (90, 200))
    pixels: Pixels = np.clip(dark + ramp[..., None] * (light - dark), 0, 255)
    return pixels.astype(np.uint8)


def _grain(random: Random, size: int) -> Pixels:
    """Smooth noise: each octave has twice the frequency of the last, and less weight."""
    total = np.zeros((size, size), np.float32)
    cells, weight = 4, 1.0
    while cells <= size:
        coarse = Image.fromarray(random.standard_normal((cells, cells), np.float32))
        total += weight * np.asarray(coarse.resize((size, size), Image.Resampling.BICUBIC))
        cells, weight = cells * 4, weight * 0.7
    return total


def _color(random: Random, kind: int, level: int) -> Color:
    """A colour about as bright as ``level``, its hue near that of the class."""
    turn = 2 * math.pi * (kind * 0.618 + random.uniform(-0.08, 0.08))
    red, green, blue = (level + 55 * math.cos(turn + shift) for shift in (0.0, 2.1, 4.2))
    return int(red), int(green), int(blue)


def _any_color(random: Random) -> Color:
    red, green, blue = random.integers(0, 256, 3).tolist()
    return red, green, blue


# --- motifs: each draws a few shapes at random places -------------------------------------

_DISC = ((0, 1), (0, 1), (0.08, 0.3))
"""Ranges of x, y and radius, in widths of the picture."""
_SUN = ((0.1, 0.9), (0.05, 0.3), (0.05, 0.12))


def _discs(draw: ImageDraw.ImageDraw, random: Random, size: int) -> None:
    for _ in range(random.integers(2, 6)):
        x, y, r = (random.uniform(low, high) * size for low, high in _DISC)
        draw.ellipse((x - r, y - r, x + r, y + r), fill=_any_color(random))


def _rings(draw: ImageDraw.ImageDraw, random: Random, size: int) -> None:
    x, y = random.uniform(0.2, 0.8, 2) * size
    for r in range(size // 12, size // 2, size // 8):
        draw.ellipse((x - r, y - r, x + r, y + r), outline=_any_color(random), width=1 + size // 40)


def _stripes(draw: ImageDraw.ImageDraw, random: Random, size: int) -> None:
    slope, color = random.uniform(-1, 1) * size, _any_color(random)
    for x in range(-size, 2 * size, int(random.integers(size // 10, size // 4)) + 1):
        draw.line((x, 0, x + slope, size), fill=color, width=1 + size // 20)


def _boxes(draw: ImageDraw.ImageDraw, random: Random, size: int) -> None:
    for _ in range(random.integers(2, 6)):
        x, y = random.uniform(-0.1, 0.8, 2) * size
        w, h = random.uniform(0.1, 0.5, 2) * size
        draw.rectangle((x, y, x + w, y + h), fill=_any_color(random), outline=_any_color(random))


def _triangles(draw: ImageDraw.ImageDraw, random: Random, size: int) -> None:
    for _ in range(random.integers(2, 6)):
        draw.polygon((random.uniform(0, 1, 6) * size).tolist(), fill=_any_color(random))


def _checks(draw: ImageDraw.ImageDraw, random: Random, size: int) -> None:
    step, color = int(random.integers(size // 10, size // 4)) + 2, _any_color(random)
    for y in range(0, size, step):
        for x in range(y // step % 2 * step, size, 2 * step):
            draw.rectangle((x, y, x + step - 1, y + step - 1), fill=color)


def _strokes(draw: ImageDraw.ImageDraw, random: Random, size: int) -> None:
    """Lines that look like handwriting from afar."""
    line_height = max(6, size // 8)
    ink = _any_color(random)
    for y in range(line_height, size, line_height):
        steps = random.integers(4, 14)
        xs = np.linspace(0.05, random.uniform(0.5, 0.95), steps) * size
        ys = y + random.uniform(-0.35, 0.35, steps) * line_height
        draw.line(np.stack([xs, ys], 1).ravel().tolist(), fill=ink, width=1 + size // 100)


def _waves(draw: ImageDraw.ImageDraw, random: Random, size: int) -> None:
    xs = np.linspace(0, size, 24)
    for y in range(0, size, max(4, size // 6)):
        ys = y + np.sin(xs / size * random.uniform(4, 16)) * size / 12
        points = np.stack([xs, ys], 1).ravel().tolist()
        draw.line(points, fill=_any_color(random), width=1 + size // 40)


def _stars(draw: ImageDraw.ImageDraw, random: Random, size: int) -> None:
    for _ in range(random.integers(1, 4)):
        turn = random.uniform(0, 6.28) + np.arange(10) * (math.pi / 5)
        radius = random.uniform(0.15, 0.4) * size * np.tile([1.0, 0.45], 5)
        x, y = random.uniform(0.2, 0.8, 2) * size
        points = np.stack([x + radius * np.cos(turn), y + radius * np.sin(turn)], 1)
        draw.polygon(points.ravel().tolist(), fill=_any_color(random))


def _landscape(draw: ImageDraw.ImageDraw, random: Random, size: int) -> None:
    """A sun over ridges, one before the other."""
    x, y, r = (random.uniform(low, high) * size for low, high in _SUN)
    draw.ellipse((x - r, y - r, x + r, y + r), fill=(250, 230, 150))
    xs = np.linspace(0, size, 12)
    for level in (0.45, 0.6, 0.78):
        ys = (level + random.uniform(-0.1, 0.1, len(xs))) * size
        ridge = np.stack([xs, ys], 1).ravel().tolist()
        draw.polygon([*ridge, size, size, 0, size], fill=_color(random, int(level * 100), 120))


MOTIFS: list[Callable[[ImageDraw.ImageDraw, Random, int], None]] = [
    _discs,
    _stripes,
    _strokes,
    _triangles,
    _rings,
    _boxes,
    _waves,
    _checks,
    _landscape,
    _stars,
]


# --- the folder ---------------------------------------------------------------------------


@dataclass(frozen=True)
class Pictures:
    """What to make: so many pictures of so many classes, so wide, and their JPEG quality."""

    count: int = 3000
    classes: int = 10
    size: int = 64
    quality: int = 85
    seed: int = 0
    grain: float = 6.0

    def files(self) -> Iterator[tuple[str, bytes]]:
        """(relative path, JPEG file) of each, class after class; classes are of equal size."""
        for number in range(self.count):
            kind = number * self.classes // self.count
            image = picture(self.seed, number, kind, self.size, self.grain)
            yield f"class{kind:02d}/picture{number:06d}.jpg", jpeg(image, self.quality)

    def write(self, dest: Path) -> int:
        """Write the files under ``dest``; return how many bytes they have."""
        if not 0 < self.classes <= self.count:
            raise SystemExit(f"cannot make {self.count} pictures of {self.classes} classes")
        for kind in range(self.classes):
            (dest / f"class{kind:02d}").mkdir(parents=True, exist_ok=True)
        return sum((dest / path).write_bytes(data) for path, data in self.files())


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("dest", type=Path, help="folder to make the class folders in")
    parser.add_argument("--count", type=int, default=3000, help="pictures (%(default)s)")
    parser.add_argument("--classes", type=int, default=10, help="class folders (%(default)s)")
    parser.add_argument("--size", type=int, default=64, help="width and height (%(default)s)")
    parser.add_argument("--quality", type=int, default=85, help="of the JPEGs (%(default)s)")
    parser.add_argument("--seed", type=int, default=0, help="other pictures (%(default)s)")
    args = parser.parse_args()

    started = time.perf_counter()
    made = Pictures(args.count, args.classes, args.size, args.quality, args.seed)
    num_bytes = made.write(args.dest)
    seconds = time.perf_counter() - started
    print(
        f"{args.dest}: {args.count:,} pictures in {args.classes} folders, "
        f"{num_bytes / 1e6:.1f} MB, made in {seconds:.1f} s"
    )


if __name__ == "__main__":
    main()
