from __future__ import annotations

from bench_run import Bench

from shardkit.measure.timing import Row


def gpu(bench: Bench) -> list[Row]:
    """x"""
    return []
