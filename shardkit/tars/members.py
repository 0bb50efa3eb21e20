"""Members of a tar that somebody else made: their names, places and sizes, from headers alone.

Python's tarfile reads the headers; this bounds what it would do with hostile ones. Left alone it
reads an extended header of any size into memory, goes round for ever on a negative size
(CVE-2025-8194), searches some headers in quadratic time (CVE-2024-6232), and where a header is
damaged it stops as if the tar ended there.
"""

from __future__ import annotations

import os
import re
import tarfile
from collections.abc import Iterator
from typing import IO

from shardkit.errors import FormatError, UsageError
from shardkit.system.paths import show_path

MAX_EXTENDED_BYTES = 1 << 20
"""Extended headers of one member, all together. A path needs 4 KiB, extended attributes 64."""

MAX_DIGITS = 255
"""Longest run of digits in a pax header: a file name made of digits alone."""

_PAX_TYPES = (tarfile.XHDTYPE, tarfile.XGLTYPE, tarfile.SOLARIS_XHDTYPE)
_EXTENDED_TYPES = (*_PAX_TYPES, tarfile.GNUTYPE_LONGNAME, tarfile.GNUTYPE_LONGLINK)
_DIGITS = re.compile(b"[0-9]{%d}" % (MAX_DIGITS + 1))
_ROW = 512

_COMPRESSED = (b"\x1f\x8b", b"BZh", b"\xfd7zXZ\0", b"\x28\xb5\x2f\xfd", b"\x04\x22\x4d\x18")
"""How gzip, bzip2, xz, zstd and lz4 files begin."""

# What tarfile raises on damaged headers: its own errors, and whatever its arithmetic runs into.
_FAILURES = (tarfile.TarError, ValueError, ArithmeticError, LookupError, TypeError, RecursionError)


def tar_members(file: IO[bytes], where: str) -> Iterator[tarfile.TarInfo]:
    """Every member of an open tar, in order, of whatever type. Data is skipped, not read.

    Raises:
        FormatError: a header is damaged or hostile, or the file ends too early.
        UsageError: the file is compressed.
    """
    num_bytes = os.fstat(file.fileno()).st_size
    at = 0
    try:
        with tarfile.open(
            fileobj=file, mode="r:", tarinfo=_Header, encoding="utf-8", errors="surrogateescape"
        ) as tar:
            while (member := tar.next()) is not None:
                tar.members.clear()  # type: ignore[attr-defined]  # or it keeps them all
                _check_place(member, tar, num_bytes)
                at = tar.offset
                yield member
            _check_end(file, tar.offset)
    except _FAILURES as error:
        file.seek(0)
        # Asked only now: a tar begins with a name, and that may be BZh.jpg.
        if at == 0 and file.read(6).startswith(_COMPRESSED):
            raise UsageError(compressed_message(where)) from error
        raise FormatError(f"{where}: {error} (tar header at byte {at})") from error


def compressed_message(where: str) -> str:
    return (
        f"{where} is compressed, so its samples cannot be read by their place;"
        " decompress it (gunzip, unxz, unzstd ...) first"
    )


class _Header(tarfile.TarInfo):
    """Refuses headers before tarfile acts on them.

    ``_proc_member`` is the one hook that tarfile's own comments offer to subclasses. What it
    raises must not be a HeaderError: tarfile takes those for the end of the tar.
    """

    def _proc_member(self, tar: tarfile.TarFile) -> tarfile.TarInfo:
        if self.size < 0:
            raise tarfile.ReadError(f"member {show_path(self.name)} has the size {self.size}")
        if self.type == tarfile.GNUTYPE_SPARSE:
            raise tarfile.ReadError(_SPARSE.format(show_path(self.name)))
        if self.type in _EXTENDED_TYPES:
            self._check_extended(tar)
        member: tarfile.TarInfo = super()._proc_member(tar)  # type: ignore[misc]
        return member

    def _check_extended(self, tar: tarfile.TarFile) -> None:
        file = tar.fileobj
        start = file.tell()
        total = start + self.size - tar.offset
        if total > MAX_EXTENDED_BYTES:
            raise tarfile.ReadError(
                f"extended headers of {total} bytes, over the limit of {MAX_EXTENDED_BYTES}"
            )
        if self.type in _PAX_TYPES:
            _check_pax(file.read(self.size))
            file.seek(start)


_SPARSE = "member {} is stored sparse, with its holes left out; make the tar without --sparse"


def _check_pax(body: bytes) -> None:
    """Check that records ``length key=value\\n`` fill a pax header, as newest Pythons do."""
    at = 0
    while at < len(body) and body[at]:
        digits, space, _ = body[at : at + 21].partition(b" ")
        end = at + int(digits) if space and digits.isdigit() else 0
        record = body[at + len(digits) + 1 : end]
        if end > len(body) or not record.endswith(b"\n") or record.find(b"=") < 1:
            raise tarfile.ReadError("damaged pax header")
        if record.startswith(b"GNU.sparse."):
            raise tarfile.ReadError(_SPARSE.format("with this pax header"))
        at = end
    if _DIGITS.search(body):
        raise tarfile.ReadError(f"a pax header with a number of over {MAX_DIGITS} digits")


def _check_place(member: tarfile.TarInfo, tar: tarfile.TarFile, num_bytes: int) -> None:
    if member.size < 0:
        raise tarfile.ReadError(f"member {show_path(member.name)} has the size {member.size}")
    has_data = member.isreg() or member.type not in tarfile.SUPPORTED_TYPES
    end = max(member.offset_data + member.size, tar.offset)
    if has_data and end > num_bytes:
        raise tarfile.ReadError(
            f"truncated: member {show_path(member.name)} of {member.size} bytes ends at byte {end},"
            f" the file has {num_bytes}; fetch or make it again"
        )


def _check_end(file: IO[bytes], offset: int) -> None:
    """Check that what tarfile took for the end is one: a row of zeros."""
    file.seek(offset)
    row = file.read(_ROW)
    if len(row) < _ROW:
        raise tarfile.ReadError(
            "truncated: the rows of zeros that end a tar are missing; fetch or make it again (if"
            f" nothing else is missing, `truncate -s +{2 * _ROW}` adds them)"
        )
    if any(row):
        raise tarfile.ReadError("damaged header")
