"""Parts of charts: bars, lines and texts to a scale, in pixels. Pure."""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from typing import ClassVar

WIDTH = 340
LEFT = 78
"""Where bars begin; ``16 processes`` fits in before, in wide fonts."""

HEAD, BAR, GAP = 16, 14, 7
"""Heights: of a name, of a bar with the space below it, between targets."""

LONGEST = 40
"""Characters of a name that a line holds, in wide fonts."""


@dataclass(frozen=True)
class Scale:
    """A scale from values to pixels from the left; its lines begin at 0."""

    low: float
    high: float
    left: int = LEFT

    def __call__(self, value: float) -> float:
        share = (value - self.low) / (self.high - self.low)
        return self.left + (WIDTH - self.left) * min(max(share, 0.0), 1.0)

    @property
    def steps(self) -> list[tuple[float, str]]:
        """Positions of the axis' lines, and their labels."""
        return [(self(one), in_thousands(one)) for one in even_steps(self.high)]


Bar = tuple[float, float, float, float, str, str]
"""x, y, width, height, colour, and what a mouse over it shows."""

Line = tuple[float, float, float, float, str, float]
"""x, x, y, y, colour, width."""

Text = tuple[float, float, str, str, str]
"""x, y of its middle, the text, which end of it is at x, ``start`` or ``end``, and its class."""


@dataclass(frozen=True)
class Chart:
    """``unit``: of the values, below the axis."""

    unit: str
    scale: Scale
    height: float
    bars: list[Bar] = field(default_factory=list)
    lines: list[Line] = field(default_factory=list)
    texts: list[Text] = field(default_factory=list)
    width: ClassVar[int] = WIDTH

    def add_bar(self, x: float, x2: float, y: float, color: str, about: str) -> None:
        start, end = self.scale(x), self.scale(x2)
        self.bars.append((start, y, end - start, BAR - 3, color, about))

    def add_upright(self, x: float, y: float, color: str, width: float) -> None:
        """Draw a line across a bar."""
        self.lines.append((self.scale(x), self.scale(x), y - 1, y + BAR - 2, color, width))

    def add_end(self, x: float, y: float, text: str) -> None:
        """Write text to the right of a bar."""
        self.texts.append((self.scale(x) + 5, middle(y), text, "start", ""))


def middle(y: float) -> float:
    """Return the middle of a bar that begins at ``y``."""
    return y + (BAR - 3) / 2


def even_steps(top: float) -> list[float]:
    """Return 0 and multiples of 1, 2 or 5 times a power of ten up to ``top``, about five."""
    wanted = top / 4
    power = 10.0 ** math.floor(math.log10(wanted))
    pairs = ((1, 2), (2, 5), (5, 10), (10, math.inf))
    step = power * next(n for n, more in pairs if wanted < power * math.sqrt(n * more))
    return [number * step for number in range(math.floor(top / step) + 1)]


def in_thousands(value: float) -> str:
    """Return ``0.5``, ``200``, ``20k``, ``1.5M``."""
    for unit, size in (("G", 1e9), ("M", 1e6), ("k", 1e3)):
        if value >= size:
            return f"{value / size:g}{unit}"
    return f"{value:g}"
