"""webdataset: member names, tar headers, and what tar, tarfile and the webdataset library make of
them."""

from __future__ import annotations

import gc
import io
import os
import re
import shutil
import subprocess
import tarfile
import warnings
from pathlib import Path

import numpy as np
import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from shardkit.formats.format import Extents
from shardkit.formats.webdataset import (
    ROW,
    WebDatasetFormat,
    headers,
    key_of_member,
    member_key,
    pax_rows,
)
from shardkit.samples.sample import Value

STEM = "train-00000"


def write(
    folder: Path, keys: list[bytes], columns: dict[str, list[Value | None]]
) -> dict[str, Extents]:
    return WebDatasetFormat().write(folder, STEM, keys, dict(sorted(columns.items())), None)


# --- names --------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("key", "member"),
    [
        (b"class/IMG.1", b"class/IMG%2E1"),
        (b"v1.0/a.b/img", b"v1.0/a.b/img"),
        (b"50%", b"50%25"),
        (b"a b'c\"d\\e~", b"a b'c\"d\\e~"),
        (b"line\nbreak\x01\x1f\x7f", b"line%0Abreak%01%1F%7F"),
        ("caf\u00e9/\u732b.1".encode(), "caf\u00e9/\u732b%2E1".encode()),
        (b"latin\xe9", b"latin%E9"),
        (b"\xed\xa0\x80", b"%ED%A0%80"),
        (b"\xc3/\xa9", b"%C3/%A9"),
        (b"", b"%"),
        (b"..", b"%2E%2E"),
        (b".hidden", b"%2Ehidden"),
        (b"../up", b"%2E./up"),
        (b"a/../b", b"a/%2E./b"),
        (b"a/./b", b"a/%2E/b"),
        (b"/etc/passwd", b"%2Fetc/passwd"),
        (b"a//b", b"a/%2Fb"),
        (b"fold.er/", b"fold%2Eer%2F"),
        (b"__meta__/x", b"%5F_meta__/x"),
        (b"a/__meta__", b"a/__meta__"),
    ],
)
def test_names_of_members(key: bytes, member: bytes) -> None:
    assert member_key(key) == member
    assert key_of_member(member) == key


@given(st.binary(max_size=60).map(lambda b: b.replace(b"\0", b"/")))
@example(b"a//./../.b//")
@example(b"%%2E.%\xff")
def test_names_are_safe_and_can_be_undone(key: bytes) -> None:
    member = member_key(key)
    assert key_of_member(member) == key
    text = member.decode("utf-8")
    assert not re.search(r"[\x00-\x1f\x7f]", text)
    parts = text.split("/")
    assert all(part not in ("", ".", "..") for part in parts)
    assert "." not in parts[-1]
    assert not text.startswith("__")


@given(st.lists(st.binary(max_size=20).map(lambda b: b.replace(b"\0", b".")), max_size=8))
def test_neighbours_do_not_change_a_name(keys: list[bytes]) -> None:
    from shardkit.formats.member_names import member_keys

    assert member_keys(keys) == [member_key(key) for key in keys]


# --- headers ------------------------------------------------------------------------------


@given(
    st.lists(
        st.tuples(
            st.text("abc/.\u00e9", min_size=1, max_size=60).map(str.encode),
            st.integers(0, 8**11 - 1),
        ),
        max_size=5,
    )
)
@example([(b"n" * 100, 8**11 - 1), (b"a", 0)])
def test_headers_are_those_of_tarfile(members: list[tuple[bytes, int]]) -> None:
    """Byte for byte, an independent writer's."""
    made = headers([name[:100] for name, _ in members], np.array([n for _, n in members], np.int64))
    for (name, size), row in zip(members, made, strict=True):
        info = tarfile.TarInfo(os.fsdecode(name[:100]))
        info.size = size
        assert row.tobytes() == info.tobuf(tarfile.USTAR_FORMAT, "utf-8", "surrogateescape")


@pytest.mark.parametrize("length", [*range(101, 130), 255, 980, 981, 982, 983, 984, 999, 4000])
def test_long_names_are_read_by_tarfile(length: int) -> None:
    name = b"d/" + b"x" * (length - 2)
    rows = pax_rows(name, 3)
    assert len(rows) % ROW == 0
    data = rows + headers([name], np.array([3])).tobytes() + b"abc".ljust(ROW, b"\0") + bytes(1024)
    with tarfile.open(fileobj=io.BytesIO(data), mode="r:", errorlevel=2) as tar:
        (member,) = tar.getmembers()
        assert (os.fsencode(member.name), member.size) == (name, 3)
        assert member.pax_headers == {"path": name.decode()}


def test_short_names_have_no_pax_header() -> None:
    assert pax_rows(b"x" * 100, 8**11 - 1) == b""


@pytest.mark.parametrize("size", [8**11, 8**11 + 5, 2**40])
def test_sizes_of_8_gib_and_more(size: int, tmp_path: Path) -> None:
    """A sparse file stands for the value."""
    head = pax_rows(b"big.bin", size) + headers([b"big.bin"], np.array([size])).tobytes()
    behind = len(head) + -(-size // ROW) * ROW
    path = tmp_path / "big.tar"
    with path.open("wb") as out:
        out.write(head)
        out.truncate(behind)
        out.seek(behind)
        out.write(headers([b"next.txt"], np.array([2])).tobytes() + b"ok".ljust(3 * ROW, b"\0"))
    with tarfile.open(path, "r:", errorlevel=2) as tar:
        assert [(m.name, m.size) for m in tar] == [("big.bin", size), ("next.txt", 2)]
    if shutil.which("tar"):
        said = subprocess.check_output(["tar", "tvf", path], text=True, env={"TZ": "UTC"})
        assert f" {size} 1970-01-01 00:00 big.bin\n" in said
        assert said.endswith(" next.txt\n")


# --- other tools --------------------------------------------------------------------------

KEYS = [
    b"n01/IMG.1",
    b"n01/IMG.2",
    b"n01/with space",
    b"n.0.2/dots.in.folder",
    "\u732b/\u00fc%41".encode(),
    b"n01/line\nbreak",
    b"n01/latin\xe9",
    b"../../climbs",
    b"/absolute",
    b"__meta__/x",
    b"n01/" + b"l" * 200,
    b"n01/" + "\u00e9".encode() * 100,
    b"",
]
COLUMNS: dict[str, list[Value | None]] = {
    "cls": [b"%d" % i for i in range(len(KEYS))],
    "jpg": [bytes([65 + i]) * (i * 300) for i in range(len(KEYS))],
    "seg.png": [b"P" * i if i % 2 else None for i in range(len(KEYS))],
}


def expected_members() -> dict[str, bytes]:
    return {
        f"{member_key(key).decode()}.{field}": bytes(value)
        for i, key in enumerate(KEYS)
        for field, column in COLUMNS.items()
        if (value := column[i]) is not None
    }


@pytest.mark.skipif(not shutil.which("tar"), reason="needs tar")
def test_tar_lists_and_extracts_it(tmp_path: Path) -> None:
    write(tmp_path, KEYS, COLUMNS)
    path = str(tmp_path / f"{STEM}.tar")
    listed = subprocess.run(
        ["tar", "tf", path, "--quoting-style=literal"], capture_output=True, check=True
    )
    assert listed.stderr == b""
    assert listed.stdout.decode().splitlines() == list(expected_members())
    out = tmp_path / "out"
    out.mkdir()
    done = subprocess.run(["tar", "xf", path, "-C", out], capture_output=True, check=True)
    assert done.stderr == b""
    files = {str(p.relative_to(out)): p.read_bytes() for p in out.rglob("*") if p.is_file()}
    assert files == expected_members()
    assert all(p.stat().st_mode & 0o777 == 0o644 for p in out.rglob("*.cls"))


def test_python_extracts_it_with_its_safest_filter(tmp_path: Path) -> None:
    write(tmp_path, KEYS, COLUMNS)
    with tarfile.open(tmp_path / f"{STEM}.tar") as tar:
        tar.extractall(tmp_path / "out", filter="data")
    assert sum(p.is_file() for p in (tmp_path / "out").rglob("*")) == len(expected_members())


def test_the_webdataset_library_reads_every_sample(tmp_path: Path) -> None:
    """Its keys end at the first dot of the last component, and it skips ``__*__``."""
    webdataset = pytest.importorskip("webdataset")
    write(tmp_path, KEYS, COLUMNS)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", ResourceWarning)  # the library leaves the tar open
        url = str(tmp_path / f"{STEM}.tar")
        samples = list(webdataset.WebDataset(url, shardshuffle=False))
        gc.collect()
    assert [key_of_member(os.fsencode(s["__key__"])) for s in samples] == KEYS
    for i, sample in enumerate(samples):
        fields = {f: v for f, v in sample.items() if not f.startswith("__")}
        assert fields == {f: c[i] for f, c in COLUMNS.items() if c[i] is not None}
