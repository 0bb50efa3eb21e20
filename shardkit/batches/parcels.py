"""What a worker process makes, on its way to the process that asked for it.

Large memory travels as a file of its own that lives in memory alone (``memfd_create``), and only
its descriptor is passed. It is no file of /dev/shm, whose 64 MB in a container are soon full, and
it is gone with the last process that knows of it, however that one ends. A full memory is an error
of ``write``, where a mapping would end the process with SIGBUS.
"""

from __future__ import annotations

import errno
import fcntl
import mmap
import os
import pickle  # noqa: TID251  between processes of one program, as multiprocessing does
import sys
from collections.abc import Callable, Iterable
from multiprocessing.reduction import ForkingPickler
from typing import Any

from shardkit.errors import ShardkitError, StorageError, UsageError
from shardkit.system.file_io import write_full

INLINE_BYTES = 64 << 10
"""Less memory than this is copied through the socket or pipe: passing a descriptor costs 0.1 ms."""


def wrap(value: Any) -> tuple[bytes, list[int]]:
    """Pickled, and the descriptors of its large memory, which the caller closes.

    The first is that of the pickle itself where there are no bytes. Tensors that are views of one
    storage stay so.

    Raises:
        UsageError: something in it cannot be pickled. StorageError: memory or descriptors ran out.
    """
    fds: list[int] = []
    out = _Pickle()
    try:
        _packer(out, fds).dump(value)
    except BaseException as error:
        close_all([*out.fds, *fds])
        if isinstance(error, OSError):
            raise _no_room(error) from error
        if isinstance(error, Exception):
            raise _unsendable(value, error) from error
        raise
    return bytes(out.start), out.fds + fds


def unwrap(data: bytes, fds: list[int]) -> Any:
    """What was packed. The descriptors are closed.

    Raises:
        UsageError: it cannot be made again here. StorageError: memory or descriptors ran out.
    """
    try:
        held = [_mapped(fd) for fd in fds]
        if data:
            return pickle.loads(data, buffers=held)
        with held.pop(0) as whole:
            return pickle.loads(whole, buffers=held)
    except OSError as error:
        raise _no_room(error) from error
    except Exception as error:
        raise UsageError(
            f"what a worker process sent cannot be read here: {_said(error)}; return tensors, or"
            " use worker_type='thread'"
        ) from error
    finally:
        close_all(fds)


def close_all(fds: Iterable[int]) -> None:
    for fd in fds:
        os.close(fd)


class Parcel(dict[str, Any]):
    """A batch that a worker of torch's DataLoader gives away; what arrives is a plain dict.

    Torch pickles it in a thread of the worker, and loses what cannot be pickled there. This one is
    always pickled: as the batch, or as the error that torch raises in the batch's turn.

    Args:
        give: what arrives, of the batch.
    """

    def __init__(self, batch: dict[str, Any], give: Callable[[dict[str, Any]], Any] = dict) -> None:
        super().__init__(batch)
        self._give = give

    def __copy__(self) -> Parcel:  # DataLoader's default_convert makes a copy
        return Parcel(self, self._give)

    def __reduce__(self) -> tuple[Any, ...]:
        _let_go()
        try:
            data, fds = wrap(self._give(dict(self)))
        except ShardkitError as error:
            return _failed, (type(error), str(error))
        _on_their_way.extend(fds)
        return _arrived, (data, os.getpid(), fds)


_on_their_way: list[int] = []
"""Descriptors that a worker holds until somebody has opened what they stand for.

Nobody waits for anybody: multiprocessing passes descriptors by a handshake, in which a worker that
may open no more files spins, and the other side waits for ever.
"""


def _let_go() -> None:
    """Of what has arrived: the other side seals it."""
    here = [(fd, fcntl.fcntl(fd, fcntl.F_GET_SEALS)) for fd in _on_their_way]
    close_all(fd for fd, seals in here if seals)
    _on_their_way[:] = [fd for fd, seals in here if not seals]


def _arrived(data: bytes, worker: int, numbers: list[int]) -> Any:
    fds: list[int] = []
    try:
        for number in numbers:
            fds.append(os.open(f"/proc/{worker}/fd/{number}", os.O_RDWR | os.O_CLOEXEC))
            fcntl.fcntl(fds[-1], fcntl.F_ADD_SEALS, fcntl.F_SEAL_GROW | fcntl.F_SEAL_SHRINK)
    except OSError as error:
        close_all(fds)
        return _failed(StorageError, str(_no_room(error)))
    try:
        return unwrap(data, fds)
    except ShardkitError as error:
        return _failed(type(error), str(error))


def _failed(kind: type[ShardkitError], message: str) -> Any:
    """What DataLoader raises when the batch's turn comes.

    A private name of torch, the only one that worker processes need; test_workers says when it has
    moved.
    """
    from torch._utils import ExceptionWrapper

    return ExceptionWrapper((kind, kind(message), None), "on its way from a worker process")  # type: ignore[no-untyped-call]


# --- pickles ------------------------------------------------------------------------------


class _Pickle:
    """Where a pickle is written to: bytes, until they are many."""

    def __init__(self) -> None:
        self.start = bytearray()
        self.fds: list[int] = []

    def write(self, data: Any) -> None:
        if not self.fds:
            if len(self.start) + len(data) <= INLINE_BYTES:
                self.start += data
                return
            self.fds.append(_new_memory())
            write_full(self.fds[0], [memoryview(self.start)])
            self.start.clear()
        write_full(self.fds[0], [memoryview(data).cast("B")])


def _packer(out: _Pickle, fds: list[int]) -> Any:
    """Torch's pickler, but that the memory of tensors and arrays becomes descriptors."""
    import torch

    def is_inline(buffer: pickle.PickleBuffer) -> bool:
        with buffer.raw() as view:
            if view.nbytes <= INLINE_BYTES:
                return True
            fds.append(_filled(view))
            return False

    packer: Any = ForkingPickler(out, pickle.HIGHEST_PROTOCOL, True, is_inline)
    packer.dispatch_table[torch.UntypedStorage] = _reduced
    return packer


def _reduced(storage: Any) -> tuple[Any, ...]:
    import torch

    if storage.device.type != "cpu":
        from torch.multiprocessing.reductions import reduce_storage

        return reduce_storage(storage)  # type: ignore[no-any-return, no-untyped-call]
    view: Any = torch.empty(0, dtype=torch.uint8).set_(storage).numpy()
    return _storage, (pickle.PickleBuffer(view),)


def _storage(memory: Any) -> Any:
    import torch

    if not len(memory):
        return torch.UntypedStorage(0)  # type: ignore[no-untyped-call]
    return torch.frombuffer(memory, dtype=torch.uint8).untyped_storage()


# --- memory -------------------------------------------------------------------------------


def _filled(view: memoryview) -> int:
    fd = _new_memory()
    try:
        write_full(fd, [memoryview(view).cast("B")])
    except BaseException:
        os.close(fd)
        raise
    return fd


def _new_memory() -> int:
    return os.memfd_create("shardkit-batch", os.MFD_CLOEXEC | os.MFD_ALLOW_SEALING)


def _mapped(fd: int) -> mmap.mmap:
    size = os.fstat(fd).st_size
    if sys.version_info >= (3, 13):
        return mmap.mmap(fd, size, trackfd=False)
    return mmap.mmap(fd, size)  # which keeps a descriptor as long as the memory lives


# --- words --------------------------------------------------------------------------------


def _no_room(error: BaseException) -> StorageError:
    import resource

    what = "a batch cannot pass from a worker process"
    if getattr(error, "errno", None) in (errno.ENOSPC, errno.ENOMEM, errno.EFBIG):
        advice = "use fewer workers, a smaller prefetch or batch, or worker_type='thread'"
        return StorageError(f"{what}, memory ran out: {_said(error)}; {advice}")
    most = resource.getrlimit(resource.RLIMIT_NOFILE)[0]
    return StorageError(
        f"{what}: {_said(error)}; a process may open {most} files here and each large tensor of a"
        " batch is one: raise that (`ulimit -n`), keep fewer batches, use fewer workers or"
        " worker_type='thread'"
    )


def _unsendable(value: Any, error: Exception) -> UsageError:
    """Names the field that cannot be pickled."""
    batch = value if isinstance(value, dict) else getattr(value, "batch", {})
    for name, field in batch.items():
        out = _Pickle()
        fds: list[int] = []
        try:
            _packer(out, fds).dump(field)
        except Exception as of_field:  # noqa: BLE001  it is the one that is raised
            return UsageError(
                f"field {name!r} cannot be sent from a worker process: {_said(of_field)}; return"
                " tensors, or use worker_type='thread'"
            )
        finally:
            close_all([*out.fds, *fds])
    return UsageError(f"a batch cannot be sent from a worker process: {_said(error)}")


def _said(error: BaseException) -> str:
    """On one line."""
    text = " ".join(str(error).split())
    return f"{type(error).__name__}: {text}" if text else type(error).__name__
