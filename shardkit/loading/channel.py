"""What a loader and a worker process say to each other over a socket: requests there, answers back.

The socket keeps messages apart (SOCK_SEQPACKET). An answer is what
:mod:`shardkit.batches.parcels` wraps; descriptors beyond those that one message can carry go ahead
of it.
"""

from __future__ import annotations

import socket
import struct
from collections.abc import Callable
from typing import Any

from shardkit.batches.parcels import INLINE_BYTES, close_all, unwrap, wrap
from shardkit.batches.request import Request
from shardkit.errors import StorageError

_REQUEST = struct.Struct("<3q")

_WHOLE, _MORE = b".", b"+"
"""First byte of a message: a whole answer, or descriptors of one that follows."""

_MOST_FDS = 200
"""A message carries at most 253 (SCM_MAX_FD)."""


def socket_pair() -> tuple[socket.socket, socket.socket]:
    """The loader's end, and the worker's."""
    return socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)


def send_request(channel: socket.socket, request: Request) -> None:
    """Raises OSError where nobody is there."""
    channel.send(_REQUEST.pack(*request))


def receive_request(channel: socket.socket) -> Request | None:
    """The next; None when the loader has hung up."""
    try:
        data = channel.recv(_REQUEST.size)
    except ConnectionError:
        return None
    return Request(*_REQUEST.unpack(data)) if data else None


def send_answer(channel: socket.socket, value: Any) -> None:
    """A batch, or an error.

    Raises:
        ConnectionError: nobody waits for it any more. StorageError: it cannot pass. UsageError: it
            cannot be pickled.
    """
    data, fds = wrap(value)
    try:
        _send(channel, data, fds)
    except ConnectionError:
        raise
    except OSError as error:
        text = f"a batch cannot pass from a worker process: {error}; use worker_type='thread'"
        raise StorageError(text) from error
    finally:
        close_all(fds)


def _send(channel: socket.socket, data: bytes, fds: list[int]) -> None:
    rest = fds
    while len(rest) > _MOST_FDS:
        socket.send_fds(channel, [_MORE], rest[:_MOST_FDS])
        rest = rest[_MOST_FDS:]
    socket.send_fds(channel, [_WHOLE, data], rest)


def receive_answer(channel: socket.socket, is_ready: Callable[[], bool]) -> Any:
    """What :func:`send_answer` was given, waiting for it.

    Args:
        is_ready: waits for a message; False if none will come.

    Raises:
        EOFError: none will come. StorageError: too many files are open here. And what
            :func:`shardkit.batches.parcels.unwrap` raises.
    """
    fds: list[int] = []
    while is_ready():
        message, more, flags = _received(channel)
        fds += more
        if not message:
            break
        if flags & socket.MSG_CTRUNC:
            close_all(fds)
            raise StorageError(
                "a batch cannot pass from a worker process: too many files are open here; raise the"
                " limit (`ulimit -n`), keep fewer batches, or use worker_type='thread'"
            )
        if message[:1] == _WHOLE:
            return unwrap(message[1:], fds)
    close_all(fds)
    raise EOFError


def _received(channel: socket.socket) -> tuple[bytes, list[int], int]:
    try:
        message, fds, flags, _ = socket.recv_fds(channel, INLINE_BYTES + 1, _MOST_FDS)
    except ConnectionResetError:
        return b"", [], 0
    return message, fds, flags
