"""What a reader and the server of a cache say to each other over a socket of this machine.

A message is a JSON object, and maybe (B,) int64 numbers behind it.
"""

from __future__ import annotations

import json
import socket
import struct
from typing import Any

import numpy as np

from shardkit.arrays import Integers

SOCKET = "keeper.sock"
LOCK = "keeper.lock"
LOG = "keeper.log"
"""Files of the server in the folder of a cache. They keep the names that they had first, so that
servers of two versions lock each other out."""

CLAIM = "shardkit-claim.json"
"""The object behind a URL that says who is writing a dataset there."""

ORIGIN = "origin"
"""In the folder of a dataset: the URL that it was last opened by."""

HEAD = struct.Struct("<II")
"""Bytes of the JSON, and of the numbers."""

MOST_BYTES = 64 << 20
"""Of a message: 8 million blocks, which no batch has."""

NO_NUMBERS: Integers = np.empty(0, np.int64)

BEAT_S = 5.0
"""A server that works on an answer says so this often."""

BEAT = {"beat": True}

UNANSWERED = ("soon", "follow", "at")
"""Requests that nobody waits for."""


def pack(said: dict[str, Any], numbers: Integers = NO_NUMBERS) -> bytes:
    """Return one message as bytes."""
    text = json.dumps(said).encode()
    return HEAD.pack(len(text), 8 * len(numbers)) + text + numbers.tobytes()


def receive(sock: socket.socket) -> dict[str, Any]:
    """Wait for an answer, which has no numbers. Raises ConnectionError if the other side has
    ended."""
    size, _ = HEAD.unpack(_exactly(sock, HEAD.size))
    answer: dict[str, Any] = json.loads(_exactly(sock, size))
    return answer


def _exactly(sock: socket.socket, count: int) -> bytes:
    data = bytearray(count)
    view = memoryview(data)
    while len(view):
        got = sock.recv_into(view)
        if not got:
            raise ConnectionError("the server of the cache has ended")
        view = view[got:]
    return bytes(data)
