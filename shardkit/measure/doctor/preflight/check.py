"""One thing looked at before training."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

State = Literal["ok", "warn", "fail"]
"""``warn``: training may be slow, or may stop in some settings. ``fail``: it will stop."""


@dataclass(frozen=True)
class Check:
    """A line of ``shardkit doctor DATASET``.

    Attributes:
        got: what was found, with its figures. why: what that means and what to do about it; where
            all is well it may be empty.
    """

    name: str
    state: State
    got: str
    why: str = ""
