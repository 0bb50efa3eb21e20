"""What the keeper of a cache calls its own files, here and behind a URL."""

from __future__ import annotations

SOCKET = "keeper.sock"
LOCK = "keeper.lock"
LOG = "keeper.log"
ORIGIN = "origin"
"""In the folder of a dataset: the URL that it was last opened by."""

CLAIM = "shardkit-claim.json"
"""The object that says who is writing a dataset there."""
