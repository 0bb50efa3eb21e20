"""Pages: their templates, and values as a page can hold them."""

from __future__ import annotations

import math
from typing import Any


def render(name: str, **values: Any) -> str:
    """Return a page of the template at this path in ``shardkit/measure``."""
    from jinja2 import Environment, PackageLoader, StrictUndefined

    template = Environment(
        loader=PackageLoader("shardkit.measure", ""),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    ).get_template(name)
    return template.render(**values)


def showable(value: Any) -> Any:
    """Return the same plain values with every name in characters that a page can hold, and None
    for what is no finite number. A file name may hold any bytes, which Python reads as lone
    surrogates. A set becomes a sorted list, as JSON has none.
    """
    if isinstance(value, dict):
        return {showable(key): showable(one) for key, one in value.items()}
    if isinstance(value, list | tuple):
        return [showable(one) for one in value]
    if isinstance(value, frozenset):
        return [showable(one) for one in sorted(value)]
    if isinstance(value, float):
        return value if math.isfinite(value) else None
    if isinstance(value, str):
        return "".join(c if c.isprintable() else ascii(c)[1:-1] for c in value)
    return value
