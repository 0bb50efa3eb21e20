"""Imported before Streaming, where torchvision is missing, or was built for CUDA and fails beside a
torch that was not. Streaming imports two names of it, for classes that are not used here."""

from __future__ import annotations

import sys
from importlib.machinery import ModuleSpec
from importlib.util import module_from_spec

try:
    import torchvision  # noqa: F401
except (RuntimeError, ImportError):
    for module in ("", ".datasets", ".transforms", ".transforms.functional"):
        name = "torchvision" + module
        sys.modules[name] = module_from_spec(ModuleSpec(name, None))
    sys.modules["torchvision.datasets"].__dict__["VisionDataset"] = object
    sys.modules["torchvision.transforms.functional"].__dict__["to_tensor"] = None
