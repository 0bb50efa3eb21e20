"""What the keeper of a cache calls its own files, here and behind a URL."""

from __future__ import annotations

SOCKET = "keeper.sock"
LOCK = "keeper.lock"
LOG = "keeper.log"

CLAIM = "shardkit-claim.json"
"""The object that says who is writing a dataset there."""
