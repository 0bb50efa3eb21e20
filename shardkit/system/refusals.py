"""What the system refuses, as an error of ours."""

from __future__ import annotations

import errno
from collections.abc import Iterator
from contextlib import contextmanager

from shardkit.errors import ShardkitError, StorageError
from shardkit.system.paths import show_path


@contextmanager
def os_errors(what: str) -> Iterator[None]:
    """Turn OSError, and RecursionError, into a StorageError that says what was being done and what
    to do."""
    try:
        yield
    except ShardkitError:
        raise
    except OSError as error:
        raise StorageError(f"{what}: {_explain(error)}") from error
    except RecursionError as error:
        raise StorageError(f"{what}: folders, or values, lie too deep in one another") from error


def _explain(error: OSError) -> str:
    where = f" ({show_path(error.filename)})" if error.filename else ""
    if error.errno in (errno.ENOSPC, errno.EDQUOT):
        return f"the disk is full{where}; free some space and run the same command again"
    if error.errno == errno.EFBIG:
        return f"a file may not be as large as that{where}: raise `ulimit -f` and run it again"
    return f"{error.strerror or error}{where}"
