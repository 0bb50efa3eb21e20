"""Python imports this at its start, where its folder is on PYTHONPATH: it attaches the watcher.

A ``sitecustomize`` of the user's own is imported, too. The watcher is found by its path, so that
it also watches a Python that has no shardkit installed.
"""

from __future__ import annotations

import importlib
import importlib.util
import os
import sys


def _import_the_users_own() -> None:
    here = os.path.dirname(os.path.abspath(__file__))
    sys.path[:] = [path for path in sys.path if os.path.abspath(path) != here]
    ours = sys.modules.pop("sitecustomize", None)
    try:
        importlib.import_module("sitecustomize")
    except ModuleNotFoundError as error:
        if error.name != "sitecustomize":
            raise
        if ours is not None:
            sys.modules["sitecustomize"] = ours


def _attach() -> None:
    name = "shardkit.watching"
    folder = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))
    if name not in sys.modules:
        path = os.path.join(folder, "__init__.py")
        spec = importlib.util.spec_from_file_location(
            name, path, submodule_search_locations=[folder]
        )
        if spec is None or spec.loader is None:
            return
        sys.modules[name] = module = importlib.util.module_from_spec(spec)
        spec.loader.exec_module(module)
    importlib.import_module(f"{name}.attach").attach()


_import_the_users_own()
_attach()
