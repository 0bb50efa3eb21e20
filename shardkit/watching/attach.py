"""Attaching to a process: modules are patched once they are imported, by whoever imports them."""

from __future__ import annotations

import importlib.util
import json
import os
import sys
from collections.abc import Callable, Sequence
from importlib.abc import MetaPathFinder
from importlib.machinery import ModuleSpec
from types import ModuleType
from typing import Any

from shardkit.watching.event_log import Records
from shardkit.watching.fetching import Fetching
from shardkit.watching.loop import Watch
from shardkit.watching.session import Plan

ENVIRONMENT = "SHARDKIT_WATCH"
"""Names the folder that records go to; it holds the plan."""

PLAN_NAME = "plan.json"

_watch: Watch | None = None


def attach() -> Watch | None:
    """Watch this process, if the environment asks for it; once."""
    global _watch
    folder = os.environ.get(ENVIRONMENT, "")
    if _watch is not None or not folder:
        return _watch
    try:
        with open(os.path.join(folder, PLAN_NAME)) as file:
            plan = Plan(**json.load(file))
    except (OSError, ValueError, TypeError):
        return None  # whoever watched is gone
    from shardkit.watching.patches import patches

    _watch = Watch(folder, plan)
    if plan.profiles:
        # Where the kernel's Yama lets only a parent look into a process, let others, too: see
        # PR_SET_PTRACER in prctl(2).
        import ctypes

        ptracer, anybody = 0x59616D61, ctypes.c_ulong(-1)
        ctypes.CDLL(None).prctl(ptracer, anybody, 0, 0, 0)
    os.register_at_fork(after_in_child=_watch.after_fork)
    finder = Finder(patches(_watch, Fetching(_watch)), _watch.records)
    sys.meta_path.insert(0, finder)
    finder.patch_imported()
    _watch.records.write("process", python=sys.version.split()[0])
    return _watch


class Finder(MetaPathFinder):
    """Finds no module itself: it has those it knows patched after whoever finds them.

    What cannot be patched stays as it is: a release of a library that nobody knew here must not end
    a training run.

    Args:
        patches: module name -> what is done to it. records: where it is said that it failed.
    """

    def __init__(self, patches: dict[str, Callable[[Any], None]], records: Records) -> None:
        self._patches, self._records = patches, records
        self._looking: set[str] = set()

    def patch_imported(self) -> None:
        """Modules that are there already."""
        for name in list(self._patches):
            if name in sys.modules:
                self._patch(name, self._patches.pop(name), sys.modules[name])

    def _patch(self, name: str, patch: Callable[[Any], None], module: ModuleType) -> None:
        try:
            patch(module)
        except Exception as error:  # noqa: BLE001 - whatever it is
            self._records.write("unpatched", module=name, why=repr(error))

    def find_spec(
        self, name: str, path: Sequence[str] | None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        """Return the spec that others find, with a loader that patches."""
        if name not in self._patches or name in self._looking:
            return None
        self._looking.add(name)
        try:
            spec = importlib.util.find_spec(name)
        finally:
            self._looking.discard(name)
        if spec is None or spec.loader is None:
            return spec
        load = spec.loader.exec_module

        def exec_module(module: ModuleType) -> None:
            load(module)
            patch = self._patches.pop(name, None)  # it may only have been asked for at first
            if patch is not None:
                self._patch(name, patch, module)

        spec.loader.exec_module = exec_module  # type: ignore[method-assign]
        return spec
