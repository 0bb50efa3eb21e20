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
ROW = 512

_RECORD = 20 * ROW
"""Bytes that tar writes at a time. POSIX leaves undefined what follows zeros in the last one."""

GZIP, ZSTD = UNPACKED = (b"\x1f\x8b", b"\x28\xb5\x2f\xfd")
"""The first bytes of files that ``convert`` decompresses."""

_COMPRESSED = (*UNPACKED, b"BZh", b"\xfd7zXZ\0", b"\x04\x22\x4d\x18")
"""These, and how bzip2, xz and lz4 files begin."""

# What tarfile raises on damaged headers: its own errors, and whatever its arithmetic runs into.
_FAILURES = (tarfile.TarError, ValueError, ArithmeticError, LookupError, TypeError, RecursionError)


def tar_members(file: IO[bytes], where: str) -> Iterator[tarfile.TarInfo]:
    """Every member of an open tar, in order, of whatever type. Data is skipped, not read.

    Several tars may follow one another, as ``cat a.tar b.tar`` puts them.

    Raises:
        FormatError: a header is damaged or hostile, or the file ends too early.
        UsageError: the file is compressed.
    """
    num_bytes = os.fstat(file.fileno()).st_size
    at = 0
    start: int | None = 0
    try:
        while start is not None:
            file.seek(start)
            with tarfile.open(
                fileobj=file, mode="r:", tarinfo=_Header, encoding="utf-8", errors="surrogateescape"
            ) as tar:
                while (member := tar.next()) is not None:
                    tar.members.clear()  # type: ignore[attr-defined]  # or it keeps them all
                    _check_place(member, tar, num_bytes)
                    at = tar.offset
                    yield member
                start = _next_tar(file, tar.offset)
    except _FAILURES as error:
        file.seek(0)
        # Asked only now: a tar begins with a name, and that may be BZh.jpg.
        head = file.read(6)
        if at == 0 and head.startswith(_COMPRESSED):
            raise UsageError(compressed_message(where)) from error
        raise FormatError(f"{where}: {error} (tar header at byte {at})") from error


def compressed_message(where: str) -> str:
    """Return why a compressed tar is refused."""
    return (
        f"{where} is compressed, as .tar.gz files are, so its samples cannot be read by their"
        " place; decompress it first, as zcat x.tar.gz > x.tar does (bzcat, xzcat, zstdcat)"
    )


def is_header(row: bytes) -> bool:
    """Return True if a row is the header of a member, by its checksum."""
    try:
        tarfile.TarInfo.frombuf(row, "utf-8", "surrogateescape")
    except tarfile.HeaderError:
        return False
    return True


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


def _next_tar(file: IO[bytes], offset: int) -> int | None:
    """Return where another tar begins, None if the last one ends at ``offset``; and check that what
    tarfile took for the end is one: a row of zeros."""
    file.seek(offset)
    row = file.read(ROW)
    if len(row) < ROW:
        raise tarfile.ReadError(
            "truncated: the rows of zeros that end a tar are missing; fetch or make it again (if"
            f" nothing else is missing, `truncate -s +{2 * ROW}` adds them)"
        )
    if any(row):
        raise tarfile.ReadError("damaged header")
    at = offset
    while row and not any(row):
        at += len(row)
        row = file.read(ROW)
    if is_header(row):
        return at
    if row and at >= offset + _RECORD:
        raise tarfile.ReadError(f"what follows the end of the tar at byte {at} is no tar")
    return None
