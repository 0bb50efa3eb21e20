"""How large a picture may be: one number for packing and for training, with every decoder."""

from __future__ import annotations

MAX_PIXELS = 178_956_970
"""Larger pictures are refused before they are decoded: a file of kilobytes may hold gigapixels.
Pillow refuses what is larger, too; it is half a GB in 24 bits."""
