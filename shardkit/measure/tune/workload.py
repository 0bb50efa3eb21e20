"""What is to be done: a dataset, a batch size and a loader's other options; timed with any
settings."""

from __future__ import annotations

import copy
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from shardkit.batches.source import Source
from shardkit.images.augment import Transform, kernel_or_why_not
from shardkit.images.decoders import installed
from shardkit.loading.loader import Loader
from shardkit.measure.timing import Work
from shardkit.measure.tune.space import WINDOWS, Candidate, Footprint
from shardkit.measure.tune.trial import batches_of, footprint, loads_per_s
from shardkit.system.page_cache import Cache, cache_state, evict


@dataclass(frozen=True)
class Workload:
    """A loader but for its settings.

    Attributes:
        options: of :class:`shardkit.Loader`. is_cold: drop ``files`` from memory before each
            timing.
    """

    source: Source
    batch_size: int
    options: dict[str, Any] = field(default_factory=dict)
    is_cold: bool = False

    def given(self, one: Candidate) -> dict[str, Any]:
        """All options of a loader with these settings."""
        options = dict(self.options)
        if one.backend is not None:
            options["transform"] = replace(options["transform"], backend=one.backend)
        if one.window_blocks is not None:
            options["window_blocks"] = one.window_blocks
        return options | one.settings.as_options()

    def loader(self, one: Candidate) -> Loader:
        """Raises UsageError where the work and the settings do not go together."""
        source = self.source
        if self.is_cold:
            source = copy.copy(source)  # pages that are still mapped cannot be dropped
        return Loader(source, self.batch_size, **self.given(one))

    def timed(self, one: Candidate, seconds: float) -> Work:
        """Load batches for about so many seconds."""
        cache: Cache = "warm"
        if self.is_cold:
            cache = cache_state(evict(self.files))
        batches = loads_per_s(self.loader(one), seconds, is_once=self.is_cold)
        return Work(self.batch_size, seconds=1 / batches, cache=cache)

    def first_batch(self, one: Candidate) -> Footprint:
        """Make one. Raises what a loader raises."""
        with batches_of(self.loader(one)) as batches:
            return footprint(next(batches))

    @property
    def files(self) -> list[Path]:
        """Of the dataset, as far as it says where it is."""
        path = getattr(self.source, "path", None)
        if not isinstance(path, Path):
            return []
        return (
            sorted(file for file in path.iterdir() if file.is_file()) if path.is_dir() else [path]
        )

    @property
    def backends(self) -> list[str | None]:
        """That the transform could use; None is what it takes by itself. Just that one where no
        picture is decoded, or the user has chosen."""
        transform = self.options.get("transform")
        if not isinstance(transform, Transform) or transform.backend is not None:
            return [None]
        names = [decoder.name for decoder in installed()]
        has_kernel = transform.antialias and kernel_or_why_not()[0] is not None
        return [None, *(names if has_kernel else names[1:])]

    @property
    def windows(self) -> list[int | None]:
        """Of block order, if that is the order and the user has not chosen."""
        is_open = self.options.get("shuffle") == "block" and "window_blocks" not in self.options
        return [*WINDOWS] if is_open else [None]
