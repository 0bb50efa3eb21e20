"""Sources of samples, in a module that workers import in no time: it needs no torch."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np

NUM = 600


def sample(row: int) -> dict[str, Any]:
    pixels = np.full(1000, row, np.int16)
    return {"npy": pixels, "label": row % 3, "text": f"row {row}", "meta": {"row": row}}


@dataclass
class Rows:
    """A map-style dataset, of which one row may be bad, or another's."""

    num: int = NUM
    bad: int = -1
    changed: int = -1
    classes: ClassVar = ["a", "b", "c"]

    def __len__(self) -> int:
        return self.num

    def __getitem__(self, row: int) -> dict[str, Any]:
        if row == self.bad:
            raise OSError("unplugged")
        return sample(row if row != self.changed else row + 1)

    def after_a_while(self, row: int) -> dict[str, Any]:
        """Fail when what came before had time to be packed."""
        if row == self.bad:
            time.sleep(1)
        return self[row]


def generated() -> Iterator[dict[str, Any]]:
    yield from map(sample, range(NUM))


def make_some(number: int) -> Iterator[dict[str, Any]]:
    if number == 13:
        raise ValueError("an unlucky number")
    for i in range(number % 3):
        yield {"txt": f"{number}.{i}"}


def slow(num: int) -> Callable[[], Iterator[dict[str, Any]]]:
    def rows() -> Iterator[dict[str, Any]]:
        for row in range(num):
            time.sleep(0.001)
            yield sample(row)

    return rows
