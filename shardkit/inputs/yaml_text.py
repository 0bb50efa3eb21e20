"""YAML of other people, parsed within bounds."""

from __future__ import annotations

from typing import Any

MOST_NODES = 1_000_000
"""Entries of a document with each alias written out: a kilobyte of aliases may stand for 10^9."""


def load_yaml(text: str) -> Any:
    """Return what a YAML document holds.

    Raises:
        ImportError: PyYAML is not installed. ValueError: it is no YAML, or stands for too much.
    """
    import yaml

    loader = yaml.SafeLoader(text)
    try:
        node = loader.get_single_node()
        if node is not None and _num_nodes(node, {}) > MOST_NODES:
            raise ValueError(f"its aliases stand for over {MOST_NODES:,} entries")
        return None if node is None else loader.construct_document(node)
    except (yaml.YAMLError, RecursionError) as error:
        raise ValueError(" ".join(str(error).split())[:200]) from error
    finally:
        loader.dispose()


def _num_nodes(node: Any, known: dict[int, int]) -> int:
    """Count nodes, those behind an alias each time. Raises RecursionError for one in itself."""
    if id(node) not in known:
        parts = node.value if isinstance(node.value, list) else []
        parts = [part for each in parts for part in (each if isinstance(each, tuple) else (each,))]
        known[id(node)] = 1 + sum(_num_nodes(part, known) for part in parts)
    return known[id(node)]
