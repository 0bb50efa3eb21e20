"""What the keeper of a cache calls its own files."""

from __future__ import annotations

SOCKET = "keeper.sock"
LOCK = "keeper.lock"
LOG = "keeper.log"
