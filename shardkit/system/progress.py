"""Progress bars: tqdm in one place. On a terminal only; quiet everywhere else."""

from __future__ import annotations

import sys
import time
from collections.abc import Sequence
from typing import Any

from shardkit.system.byte_sizes import format_bytes


def _on_terminal() -> bool:
    return sys.stderr is not None and sys.stderr.isatty()  # a daemon has none


class Progress:
    """Counts samples and bytes; shows both rates and the time left."""

    def __init__(self, what: str, show: bool | None = None) -> None:
        self.num_samples = 0
        self.num_bytes = 0
        self._started = time.perf_counter()
        self._bar: Any = None
        if _on_terminal() if show is None else show:
            from tqdm import tqdm

            class Bar(tqdm):  # type: ignore[misc]
                monitor_interval = 0  # its thread would keep a command from forking workers

            options: dict[str, Any] = {"unit": " samples", "unit_scale": True, "miniters": 1}
            self._bar = Bar(desc=what, dynamic_ncols=True, **options)

    @property
    def is_shown(self) -> bool:
        """Return True if somebody looks on."""
        return self._bar is not None

    def say(self, lines: Sequence[str]) -> None:
        """Print lines above the bar."""
        if self._bar is not None:
            self._bar.write("\n".join(lines), file=sys.stderr)

    def expect(self, num_samples: int) -> None:
        """Set the total, once it is known."""
        if self._bar is not None:
            self._bar.total = num_samples

    def skip(self, num_samples: int) -> None:
        """Count samples done before; they are no part of the rate."""
        if self._bar is not None:
            self._bar.initial += num_samples
            self._bar.last_print_n += num_samples  # what the smoothed rate counts from
            self._bar.n += num_samples
            self._bar.refresh()

    def add(self, num_samples: int, num_bytes: int) -> None:
        self.num_samples += num_samples
        self.num_bytes += num_bytes
        if self._bar is not None:
            seconds = max(time.perf_counter() - self._started, 1e-9)
            self._bar.set_postfix_str(f"{format_bytes(self.num_bytes / seconds)}/s", refresh=False)
            self._bar.update(num_samples)

    def __enter__(self) -> Progress:
        return self

    def __exit__(self, *error: object) -> None:
        if self._bar is not None:
            self._bar.close()
