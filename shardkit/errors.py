"""The exception tree.

::

    ShardkitError
    ├── UsageError (ValueError)            exit code 2: the call is wrong, no data was touched
    │   ├── DestinationError               the destination is taken, unsafe or another packer's
    │   ├── DatasetMissingError (FileNotFoundError)
    │   ├── CorpusError                    the input is empty, ambiguous or of no known kind
    │   ├── ResumeError                    a started pack was made from other options or files
    │   ├── PartError                      parts of a pack that do not make one dataset
    │   └── SamplerMissingError (AttributeError)  a Loader has none: skipping is done otherwise
    └── DataError (ValueError)             exit code 1: the data or the machine is wrong
        ├── SampleError                    one sample: names its key, shard and reason
        │   └── BadImageError              a picture does not decode
        ├── FormatError                    a file breaks the rules of its format
        │   ├── IndexFileError             shardkit.json or a row index
        │   └── UnsafePathError            a stored path that would leave its folder
        ├── ChecksumError                  bytes are not those that were packed
        ├── ShardMissingError (FileNotFoundError)
        ├── TooManyRejectsError            ``on_error="skip"`` rejected more than allowed
        └── StorageError (OSError)         the disk, the rights or the network said no

Every message says what, where, got, expected and what to do, on one line. Exceptions of
other libraries are mapped to these with ``from``.
"""

from __future__ import annotations


class ShardkitError(Exception):
    """Root of everything shardkit raises on purpose."""

    exit_code = 1


class UsageError(ShardkitError, ValueError):
    """The call itself is wrong; nothing was read or written."""

    exit_code = 2


class DestinationError(UsageError):
    """The destination exists, overlaps the source, or another packer holds it."""


class DatasetMissingError(UsageError, FileNotFoundError):
    """There is no dataset at the path, or one that is not packed to the end."""


class CorpusError(UsageError):
    """The input is empty, ambiguous, or of no kind that shardkit packs."""


class ResumeError(UsageError):
    """A pack was started here with other options or other input files."""


class PartError(UsageError):
    """Parts of a pack that are missing, not finished, or not of one pack."""


class SamplerMissingError(UsageError, AttributeError):
    """A loader has no sampler for others to take rows from; it is not there for ``getattr``."""


class DataError(ShardkitError, ValueError):
    """The data, or the machine under it, is not as it should be."""


class SampleError(DataError):
    """One sample cannot be packed or read."""


class BadImageError(SampleError):
    """A picture does not decode, or is larger than allowed.

    Attributes:
        slot: which sample of the batch it was, from 0.
    """

    def __init__(self, message: str, slot: int = 0) -> None:
        super().__init__(message)
        self.slot = slot


class FormatError(DataError):
    """A file breaks the rules of its format."""


class IndexFileError(FormatError):
    """``shardkit.json`` or a row index is damaged, hostile or of another version."""


class UnsafePathError(FormatError):
    """A stored path is absolute or climbs out of its folder."""


class ChecksumError(DataError):
    """Bytes differ from those that were packed."""


class ShardMissingError(DataError, FileNotFoundError):
    """A shard file named by the index is not there."""


class TooManyRejectsError(DataError):
    """More samples were rejected than ``max_rejects`` allows."""


class StorageError(DataError, OSError):
    """The operating system refused: disk full, no permission, input/output error."""
