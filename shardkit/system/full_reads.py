"""Reads that go on where one call of the system ended."""

from __future__ import annotations

import os
from typing import Any


def read_full(file: Any, buffer: memoryview) -> int:
    """Fill a buffer from an unbuffered file; bytes read, fewer only at its end."""
    done = 0
    while done < len(buffer) and (got := file.readinto(buffer[done:])):
        done += got
    return done


def pread_full(fd: int, buffer: memoryview, offset: int) -> int:
    """Fill a buffer from a place in an open file; bytes read, fewer only at its end.

    One call of the system reads at most 0x7ffff000 bytes of what was asked for, and fewer where a
    signal or a network cuts it short.
    """
    done = got = os.preadv(fd, [buffer], offset)
    while got and done < len(buffer):
        got = os.preadv(fd, [buffer[done:]], offset + done)
        done += got
    return done


def pread(fd: int, size: int, offset: int) -> bytes:
    """``size`` bytes from a place in an open file, fewer only at its end."""
    data = os.pread(fd, size, offset)
    while len(data) < size and (more := os.pread(fd, size - len(data), offset + len(data))):
        data += more
    return data
