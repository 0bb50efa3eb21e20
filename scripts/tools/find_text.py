"""Collect text that is on this machine: Python sources, licences, manual pages, documentation.

    python scripts/tools/find_text.py text --megabytes 70

Copies files of valid UTF-8, spread over all that are found, into folders of 500, under ``.txt``:
real text to try things on where no corpus is at hand. The same machine gives the same files.
"""

from __future__ import annotations

import argparse
import gzip
import os
import site
import sysconfig
import zlib
from collections.abc import Iterator
from pathlib import Path

ENDINGS = (".py", ".pyi", ".md", ".rst", ".txt", ".c", ".h")
NAMES = ("license", "licence", "copying", "copyright", "notice", "readme", "changelog")
MOST_BYTES = 400_000
"""Larger files are tables and dumps more often than text."""

FOLDER_FILES = 500


def places() -> list[Path]:
    """Where text is likely to be, most varied first."""
    here = [sysconfig.get_path("stdlib"), sysconfig.get_path("purelib"), *site.getsitepackages()]
    named = ["/usr/share/man", "/usr/share/common-licenses", "/usr/share/doc", "/usr/include"]
    found = dict.fromkeys(Path(place).resolve() for place in [*named, *here, "/usr/lib/python3"])
    return [place for place in found if place.is_dir()]


def files(place: Path) -> Iterator[Path]:
    """The files under a place that are named as text is, in order."""
    for folder, folders, names in os.walk(place):
        folders.sort()
        for name in sorted(names):
            plain = name.removesuffix(".gz").lower()
            is_page = "/man/" in folder and plain[-2:-1] == "."
            if is_page or plain.endswith(ENDINGS) or plain.startswith(NAMES):
                path = Path(folder, name)
                if not path.is_symlink() and path.is_file():
                    yield path


def text_of(path: Path) -> bytes | None:
    """Its bytes, unpacked; None if that is no text, or too much of it."""
    try:
        data = path.read_bytes()
        data = gzip.decompress(data) if path.suffix == ".gz" else data
        data.decode()
    except (OSError, EOFError, zlib.error, UnicodeDecodeError):
        return None
    return data if 0 < len(data) <= MOST_BYTES else None


def find(folder: Path, num_bytes: int) -> int:
    """Fill ``folder`` with about so many bytes, or all there is; how many files that made."""
    paths = list(dict.fromkeys(path for place in places() for path in files(place)))
    total = sum(min(path.stat().st_size, MOST_BYTES) for path in paths)
    step = max(total // num_bytes, 1)
    # Every step-th file, then those after them: spread evenly, whatever share turns out to be text.
    spread = (path for first in range(step) for path in paths[first::step])
    num_files, left = 0, num_bytes
    for data in filter(None, map(text_of, spread)):
        target = folder / f"text{num_files // FOLDER_FILES:03d}" / f"{num_files:06d}.txt"
        target.parent.mkdir(parents=True, exist_ok=True)
        target.write_bytes(data)
        num_files += 1
        left -= len(data)
        if left <= 0:
            break
    return num_files


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("folder", type=Path, help="folder to make")
    parser.add_argument("--megabytes", type=float, default=70.0, help="about so many (%(default)s)")
    args = parser.parse_args()
    if args.folder.exists():
        raise SystemExit(f"{args.folder} exists; choose another")
    num_files = find(args.folder, int(args.megabytes * 1e6))
    if not num_files:
        raise SystemExit("no text was found on this machine")
    print(f"{num_files} files in {args.folder}")


if __name__ == "__main__":
    main()
