"""WebDataset tars made by others: read as the webdataset library reads them, or refused."""

from __future__ import annotations

import fcntl
import gc
import gzip
import io
import os
import random
import shutil
import subprocess
import sys
import tarfile
import tempfile
import threading
import warnings
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from conftest import examples, tree
from hypothesis import given
from hypothesis import strategies as st

from shardkit.dali.tar_index import write_index as write_dali_index
from shardkit.errors import FormatError, IndexFileError, ShardkitError, UsageError
from shardkit.index.manifest import read_info
from shardkit.index.rows import NO_INT, RowIndex
from shardkit.operations.unpack import unpack
from shardkit.packing.conversion import convert
from shardkit.reading.dataset import Dataset
from shardkit.samples.encoding import BYTES
from shardkit.samples.sample import unpack_paths
from shardkit.shards.locate import locate
from shardkit.storage.local_files import Folder
from shardkit.tars import cached_index, members, write_index
from shardkit.tars.cached_index import index_tars
from shardkit.tars.find import is_tar_source
from shardkit.tars.grouping import MAX_FIELDS, TarSamples, read_tar, split_name
from shardkit.tars.write_index import tar_splits

Files = list[tuple[str, bytes]]
Sample = dict[str, Any]

PLAIN: Files = [
    ("0001.jpg", b"\xff\xd8one"),
    ("0001.cls", b"7\n"),
    ("0002.jpg", b""),
    ("0003.JPG", b"three" * 300),
    ("0003.seg.png", b"x"),
    ("0003.cls", b"none"),
]


# --- making tars, and reading them another way ------------------------------------------------


def make_tar(path: Path, files: Files, form: int = tarfile.GNU_FORMAT) -> Path:
    with tarfile.open(path, "w", format=form, encoding="utf-8", errors="surrogateescape") as tar:
        for name, value in files:
            member = tarfile.TarInfo(name)
            member.size = len(value)
            tar.addfile(member, io.BytesIO(value))
    return path


def by_library(*paths: Path) -> list[Sample]:
    """The samples as the webdataset library yields them, in the order of the tars."""
    import webdataset

    with warnings.catch_warnings():
        warnings.simplefilter("ignore", ResourceWarning)  # it leaves files to the collector
        urls = [str(path) for path in paths]
        found = [*webdataset.WebDataset(urls, shardshuffle=False, empty_check=False)]
        gc.collect()
    return [{k: v for k, v in s.items() if k not in ("__url__", "__local_path__")} for s in found]


def by_us(path: Path, split: str | None = None) -> list[Sample]:
    dataset = Dataset(path, split, decode=False)
    return [
        {name: value if name == "__key__" else bytes(value) for name, value in sample.items()}
        for sample in dataset.__getitems__(range(len(dataset)))
    ]


def number(value: int, width: int) -> bytes:
    """A tar number of any size: octal, else base-256."""
    if 0 <= value < 8 ** (width - 1):
        return b"%0*o\0" % (width - 1, value)
    lead = 0o377 if value < 0 else 0o200
    rest: int = value % 256 ** (width - 1)
    return bytes([lead]) + rest.to_bytes(width - 1, "big")


def header(name: bytes, size: int = 0, kind: bytes = b"0") -> bytes:
    """A ustar header, right in all but what it says."""
    row = bytearray(512)
    row[: len(name)] = name
    row[100:124] = b"0000644\0" + b"0000000\0" * 2
    row[124:136] = number(size, 12)
    row[136:148] = b"0" * 11 + b"\0"
    row[156:157] = kind
    row[257:265] = b"ustar\x0000"
    row[148:156] = b" " * 8
    row[148:156] = b"%06o\0 " % sum(row)
    return bytes(row)


def member(name: bytes, value: bytes = b"", kind: bytes = b"0") -> bytes:
    return header(name, len(value), kind) + value + bytes(-len(value) % 512)


def pax(*records: tuple[bytes, bytes], kind: bytes = b"x") -> bytes:
    body = b""
    for key, value in records:
        text = b" " + key + b"=" + value + b"\n"
        length = next(n for n in range(len(text), len(text) + 20) if n == len(text) + len(str(n)))
        body += b"%d%s" % (length, text)
    return member(b"pax", body, kind)


GOOD = member(b"a.txt", b"hello")
END = bytes(1024)


def write(folder: Path, data: bytes, name: str = "x.tar") -> Path:
    path = folder / name
    path.write_bytes(data)
    return path


# --- the same samples as the library ----------------------------------------------------------

ODD: Files = [
    ("a.b/c.d/IMG.1.jpg", b"first dot of the file name"),
    ("a.b/c.d/IMG.2.jpg", b"another sample? no, another field"),
    ("a.b/c.d/50%.txt", b"percent signs are percent signs"),
    ("a.b/c.d/%41.txt", b""),
    ("./dot/x.txt", b"./ stays in the key"),
    ("/absolute/x.txt", b"only a name"),
    ("../up/x.txt", b"only a name, too"),
    ("with space\tand tab.txt", b"3"),
    ("ünï.TXT", "é".encode()),
    ("\udcff\udcfe.txt", b"not UTF-8"),
    ("x" * 90 + "/" + "y" * 90 + ".txt", b"over 100 bytes"),
    ("q.txt", b"one"),
    ("r.txt", b"torn apart"),
    ("q.cls", b"-3"),
    ("._hidden.jpg", b"skipped"),
    (".DS_Store", b"skipped"),
    ("__meta__", b"skipped"),
    ("__meta__/a.txt", b"skipped"),
    ("folder.with.dots/README", b"skipped"),
    ("README", b"skipped"),
    ("__single.txt", b"kept"),
]


@pytest.mark.parametrize("form", [tarfile.USTAR_FORMAT, tarfile.GNU_FORMAT, tarfile.PAX_FORMAT])
def test_same_samples_as_the_webdataset_library(tmp_path: Path, form: int) -> None:
    path = make_tar(tmp_path / "train-000.tar", PLAIN + ODD, form)
    expected = by_library(path)
    assert len(expected) == 17
    torn = next(i for i, sample in enumerate(expected) if sample.get("cls") == b"-3")
    expected[torn - 2] |= expected.pop(torn)  # it makes a sample of each piece
    assert by_us(tmp_path) == expected
    assert by_us(path) == expected


def test_a_name_that_looks_like_a_compressed_file(tmp_path: Path) -> None:
    path = make_tar(tmp_path / "x.tar", [("BZh91AY.jpg", b"1")])
    assert by_us(path) == [{"__key__": "BZh91AY", "jpg": b"1"}] == by_library(path)


@pytest.mark.parametrize("form", ["v7", "ustar", "gnu", "posix"])
def test_tars_of_the_tar_command(tmp_path: Path, form: str) -> None:
    source = tmp_path / "source"
    for name, value in [("a/0001.jpg", b"1" * 700), ("a/0001.cls", b"4"), ("b.c/1.txt", b"")]:
        (source / name).parent.mkdir(parents=True, exist_ok=True)
        (source / name).write_bytes(value)
    os.mkfifo(source / "pipe.txt")  # not regular: left out, as the library does
    path = tmp_path / "x.tar"
    command = ["tar", "cf", str(path), "--sort=name", f"--format={form}", "-C", str(source), "."]
    if form == "v7":
        command.insert(3, "--exclude=pipe.txt")  # v7 has none
    subprocess.run(command, check=True)
    assert by_us(path) == by_library(path)
    assert [s["__key__"] for s in by_us(path)] == ["./a/0001", "./b.c/1"]


def test_tars_of_the_library_itself(tmp_path: Path) -> None:
    import webdataset

    pattern = str(tmp_path / "train-%06d.tar")
    samples = [{"__key__": f"k/{i:03d}", "txt": f"text {i}", "cls": i % 3} for i in range(25)]
    samples[4]["json"] = {"only": "here"}
    with webdataset.ShardWriter(pattern, maxcount=10, verbose=0) as writer:
        for sample in samples:
            writer.write(sample)
    tars = sorted(tmp_path.glob("*.tar"))
    assert len(tars) == 3
    assert by_us(tmp_path) == by_library(*tars)
    dataset = Dataset(tmp_path)
    assert list(dataset.column("cls")) == [i % 3 for i in range(25)]
    assert dataset[4]["json"] == {"only": "here"}
    assert dataset.find("k/017") == 17
    assert dataset.info.container == "webdataset"
    assert dataset.info.provenance.to_json() == {"kind": "tars"}


def test_hidden_files_in_folders_do_not_tear_samples_apart(tmp_path: Path) -> None:
    files = [("d/1.jpg", b"1"), ("d/._1.jpg", b"apple"), ("d/1.cls", b"0"), ("d/.x", b"")]
    path = make_tar(tmp_path / "x.tar", files)
    assert by_us(path) == [{"__key__": "d/1", "jpg": b"1", "cls": b"0"}]
    assert Dataset(path).info.provenance.passed == {"hidden": 2}


@given(st.text("ab._/%\nA", max_size=12))
def test_split_name_is_the_librarys(name: str) -> None:
    from webdataset.tariterators import base_plus_ext

    ours = split_name(name.encode())
    key, field = base_plus_ext(name)
    file = name.rpartition("/")[2]
    if file.startswith(".") or "." not in file or name.startswith("__") or "\n" in name:
        return  # what is hidden, meta or odd is among ODD
    assert ours == (key.encode(), field.lower())


# --- what the index says ----------------------------------------------------------------------


def test_index_of_rows(tmp_path: Path) -> None:
    path = make_tar(tmp_path / "any name at all.tar", PLAIN)
    folder = index_tars(path)
    info = read_info(folder)
    split = info.splits["train"]
    assert info.fields == ["cls", "jpg", "seg.png"]
    assert info.classes is None
    assert split.layouts == [dict.fromkeys(info.fields, BYTES)]
    assert split.shards[0].file_bytes == {"train-00000.tar": path.stat().st_size}
    assert split.fingerprint.startswith("scan:")
    index = RowIndex(Folder(folder), info, split)
    assert index.table[:, index.column["cls"]].tolist() == [7, NO_INT, NO_INT]
    assert index.table[:, index.column["xxh3"]].tolist() == [0, 0, 0]
    assert index.table[1, index.column["cls.size"]] == -1
    assert index.table[1, index.column["jpg.size"]] == 0
    assert index.name(2) == (b"0003", b"+.cls\0+.JPG\0+.seg.png")
    start, size = index.table[2, index.column["jpg.start"] :][:2].tolist()
    assert path.read_bytes()[start : start + size] == b"three" * 300


def test_paths_are_those_that_tar_would_give(tmp_path: Path) -> None:
    path = make_tar(tmp_path / "x.tar", [("./a.txt", b""), (".//./b.txt", b""), ("../c.txt", b"")])
    folder = index_tars(path)
    info = read_info(folder)
    index = RowIndex(Folder(folder), info, info.splits["train"])
    assert [index.name(row) for row in range(3)] == [
        (b"./a", b"=a.txt"),
        (b".//./b", b"=b.txt"),
        (b"../c", b"+.txt"),
    ]


def fingerprint(path: Path) -> str:
    return locate(path).info.splits["train"].fingerprint


def test_fingerprint(tmp_path: Path) -> None:
    """Of keys, sizes, places: whatever the tar is called, and whenever it was written."""
    same = [make_tar(tmp_path / name, PLAIN) for name in ("a.tar", "b.tar")]
    other = make_tar(tmp_path / "c.tar", [("0001.JPG", b"\xff\xd8on"), *PLAIN[1:]])
    assert fingerprint(same[0]) == fingerprint(same[1]) != fingerprint(other)


def test_keys_may_repeat_and_tars_may_be_empty(tmp_path: Path) -> None:
    write(tmp_path, END, "a.tar")
    make_tar(tmp_path / "b.tar", [("k.txt", b"b")])
    make_tar(tmp_path / "c.tar", [("README", b"no sample")])
    make_tar(tmp_path / "d.tar", [("k.txt", b"d"), ("k2.jpg", b"d2")])
    assert [s.get("txt") for s in by_us(tmp_path)] == [b"b", b"d", None]
    assert len(locate(tmp_path).info.splits["train"].shards) == 2


def test_values_are_not_read(tmp_path: Path) -> None:
    """A value of 30 GB, all hole: scanning must not take the minutes that reading it would."""
    path = tmp_path / "x.tar"
    size = 30 << 30
    with path.open("wb") as out:
        out.write(header(b"big.bin", size))
        out.seek(size, os.SEEK_CUR)
        out.write(member(b"small.txt", b"found") + END)
    assert bytes(Dataset(path, decode=False)[1]["txt"]) == b"found"
    folder = index_tars(path)
    info = read_info(folder)
    index = RowIndex(Folder(folder), info, info.splits["train"])
    assert index.table[0, index.column["bin.size"]] == size
    path.unlink()  # some tools that tidy up count holes as bytes


def test_long_cls_is_no_integer(tmp_path: Path) -> None:
    path = make_tar(
        tmp_path / "x.tar", [("a.cls", b" " * 1023 + b"7"), ("b.cls", b" " * 1024 + b"7")]
    )
    rows = Dataset(path).reader.index
    assert rows.table[:, rows.column["cls"]].tolist() == [7, NO_INT]


def test_convert_and_unpack(tmp_path: Path) -> None:
    """Tars of the tar command become a dataset of ours, and the same files again."""
    source = tmp_path / "source"
    for name, value in [("a/01.jpg", b"1" * 700), ("a/01.cls", b"4\n"), ("b.c/1.TXT", b"")]:
        (source / name).parent.mkdir(parents=True, exist_ok=True)
        (source / name).write_bytes(value)
    (tmp_path / "tars").mkdir()
    tar = tmp_path / "tars" / "x.tar"
    subprocess.run(["tar", "cf", tar, "--sort=name", "-C", source, "."], check=True)
    convert(tmp_path / "tars", tmp_path / "lmdb", to="lmdb")
    assert by_us(tmp_path / "lmdb") == by_library(tar)
    for dataset in ("tars", "lmdb"):
        unpack(tmp_path / dataset, tmp_path / f"from {dataset}")
        subprocess.run(["diff", "-r", source, tmp_path / f"from {dataset}"], check=True)


@pytest.mark.parametrize(
    ("names", "splits"),
    [
        (["train-000.tar", "train-001.tar", "val-0000.tar"], ["train", "train", "val"]),
        (["imagenet-train-000.tar", "imagenet-val-0.tar"], ["train", "val"]),
        (["imagenet1k-validation-00.tar"], ["validation"]),
        (["Train2017.tar", "val2017.tar"], ["train", "val"]),
        (["dev-clean-0.tar", "test-other-0.tar"], ["dev", "test"]),
        (["valid_1.tar"], ["valid"]),
        (["00000.tar", "00001.tar"], ["train", "train"]),
        (["train-0.tar", "extra-0.tar", "val-0.tar"], ["train"] * 3),
        (["train-val-0.tar"], ["train"]),
        (["training-0.tar"], ["train"]),
        ([], []),
    ],
)
def test_tar_splits(names: list[str], splits: list[str]) -> None:
    assert tar_splits(names) == splits


def test_splits_end_to_end(tmp_path: Path) -> None:
    make_tar(tmp_path / "x-val-7.tar", [("v.txt", b"v")])
    make_tar(tmp_path / "x-train-1.tar", [("b.txt", b"b")])
    make_tar(tmp_path / "x-train-0.tar", [("a.txt", b"a")])
    make_tar(tmp_path / "._x-train-9.tar", [("hidden.txt", b"")])
    assert [s["txt"] for s in by_us(tmp_path, "train")] == [b"a", b"b"]
    assert [s["txt"] for s in by_us(tmp_path, "val")] == [b"v"]


# --- where it lies, and for how long it holds -------------------------------------------------


def test_what_is_a_tar_source(tmp_path: Path) -> None:
    tar = make_tar(tmp_path / "x.tar", PLAIN)
    assert is_tar_source(tar)
    assert is_tar_source(tmp_path)
    assert is_tar_source(write(tmp_path, b"", "x.tar.gz"))
    assert not is_tar_source(write(tmp_path, b"", "x.txt"))
    assert not is_tar_source(tmp_path / "gone.tar")
    (tmp_path / "sub.tar").mkdir()
    assert not is_tar_source(tmp_path / "sub.tar")
    (tmp_path / ".packing").mkdir()
    assert not is_tar_source(tmp_path), "a pack of ours that has not finished"
    with pytest.raises(UsageError, match="no tar and no folder of tars"):
        index_tars(tmp_path / "sub.tar")


def rewrite(path: Path) -> None:
    make_tar(path, [("new.txt", b"new")])


def touch(path: Path) -> None:
    found = path.stat()
    os.utime(path, ns=(found.st_atime_ns, found.st_mtime_ns + 1))


def add(path: Path) -> None:
    make_tar(path.parent / "b.tar", PLAIN)


def rename(path: Path) -> None:
    path.rename(path.parent / "z.tar")


def swap(path: Path) -> None:
    """Two tars of one size and time, as reproducible builds make them."""
    other = path.parent / "b.tar"
    path.rename(path.parent / "c")
    other.rename(path)
    (path.parent / "c").rename(other)


@pytest.mark.parametrize("change", [rewrite, touch, add, rename])
def test_changed_tars_are_indexed_again(tmp_path: Path, change: Callable[[Path], None]) -> None:
    path = make_tar(tmp_path / "a.tar", PLAIN)
    before = Dataset(tmp_path, decode=False)
    change(path)
    after = by_us(tmp_path)
    assert index_tars(tmp_path) != before.located.folder
    assert after == by_library(*sorted(tmp_path.glob("*.tar")))
    if change in (touch, add):
        assert bytes(before[0]["jpg"]) == PLAIN[0][1], "one that is open goes on"


def test_swapped_tars_are_indexed_again(tmp_path: Path) -> None:
    path = make_tar(tmp_path / "a.tar", [("a0.txt", b"one"), ("a1.txt", b"two2")])
    make_tar(tmp_path / "b.tar", [("b0.txt", b"four"), ("b1.txt", b"six")])
    for tar in tmp_path.glob("*.tar"):
        os.utime(tar, (10**9, 10**9))
    assert path.stat().st_size == (tmp_path / "b.tar").stat().st_size
    by_us(tmp_path)
    swap(path)
    assert by_us(tmp_path) == by_library(*sorted(tmp_path.glob("*.tar")))


def test_a_moved_folder_needs_no_new_index(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "here").mkdir()
    make_tar(tmp_path / "here" / "a.tar", PLAIN)
    expected = by_us(tmp_path / "here")
    (tmp_path / "here").rename(tmp_path / "there")
    monkeypatch.setattr(cached_index, "write_tar_index", None)
    assert by_us(tmp_path / "there") == expected


def test_links_to_tars_and_folders(tmp_path: Path) -> None:
    """As in a model hub's cache: names are links to blobs."""
    blob = make_tar(tmp_path / "0f3a", PLAIN)
    (tmp_path / "snapshot").mkdir()
    link = tmp_path / "snapshot" / "x-val-0.tar"
    link.symlink_to("../0f3a")
    (tmp_path / "way").symlink_to("snapshot")
    expected = by_library(blob)
    assert by_us(link, "val") == expected
    assert by_us(tmp_path / "way") == expected


def test_relative_paths(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    make_tar(tmp_path / "a.tar", PLAIN)
    monkeypatch.chdir(tmp_path)
    dataset = Dataset("a.tar", decode=False)
    monkeypatch.chdir("/")
    assert bytes(dataset[0]["jpg"]) == PLAIN[0][1]


@pytest.fixture
def public_folder() -> Iterator[Path]:
    """A temporary folder below folders that every user may enter."""
    folder = Path(tempfile.mkdtemp(prefix="shardkit-foreign-"))
    folder.chmod(0o755)
    yield folder
    shutil.rmtree(folder)


AS_NOBODY = """
import os, sys
from pathlib import Path
from shardkit.tars.cached_index import index_tars
from shardkit.errors import StorageError
from shardkit.reading.dataset import Dataset
if os.geteuid() == 0:
    os.setgroups([])
    os.setgid(65534)
    os.setuid(65534)
try:
    print(index_tars(Path(sys.argv[1])))
    print(bytes(Dataset(sys.argv[1], decode=False)[0]["jpg"]))
except StorageError as error:
    print(error)
"""


def as_nobody(folder: Path, **environ: str) -> list[str]:
    """What a user without rights in ``folder`` gets to see."""
    folder.chmod(0o555)
    base = {k: v for k, v in os.environ.items() if k not in ("XDG_CACHE_HOME", "HOME")}
    path = os.pathsep.join(p for p in (str(Path(cached_index.__file__).parents[2]), *sys.path) if p)
    try:
        done = subprocess.run(
            [sys.executable, "-c", AS_NOBODY, folder],
            env={**base, "PYTHONPATH": path, **environ},
            capture_output=True,
            text=True,
            check=True,
        )
    finally:
        folder.chmod(0o755)
    return done.stdout.splitlines()


def test_read_only_folder_uses_the_cache_folder(public_folder: Path) -> None:
    tars, cache = public_folder / "tars", public_folder / "cache"
    tars.mkdir()
    cache.mkdir()
    cache.chmod(0o777)
    make_tar(tars / "a.tar", PLAIN)
    for _ in range(2):
        index, value = as_nobody(tars, XDG_CACHE_HOME=str(cache))
        assert Path(index).parent == cache / "shardkit"
        assert value == str(PLAIN[0][1])
    assert len(list((cache / "shardkit").iterdir())) == 1
    index, value = as_nobody(tars, HOME=str(cache), XDG_CACHE_HOME="not/absolute")
    assert Path(index).parent == cache / ".cache" / "shardkit"
    assert os.listdir(tars) == ["a.tar"]


def test_an_index_beside_the_tars_serves_those_who_may_only_read(public_folder: Path) -> None:
    make_tar(public_folder / "a.tar", PLAIN)
    folder = index_tars(public_folder)
    assert as_nobody(public_folder, HOME="/proc")[0] == str(folder)


def test_no_place_for_the_index(public_folder: Path) -> None:
    make_tar(public_folder / "a.tar", PLAIN)
    (line,) = as_nobody(public_folder, HOME="/proc")
    assert line.startswith(f"no folder to keep the index of {public_folder} in (")
    assert line.endswith("set XDG_CACHE_HOME to one that can be written")


def test_file_system_without_links(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """As on exFAT: the index goes to the cache, and nothing is left beside the tars."""
    (tmp_path / "tars").mkdir()
    make_tar(tmp_path / "tars" / "a.tar", PLAIN)
    real = Path.symlink_to

    def refuse(self: Path, target: str) -> None:
        if (tmp_path / "tars") in self.parents:
            raise PermissionError(1, "Operation not permitted")
        real(self, target)

    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    monkeypatch.setattr(Path, "symlink_to", refuse)
    assert index_tars(tmp_path / "tars").parent == tmp_path / "cache" / "shardkit"
    assert len(by_us(tmp_path / "tars")) == 3
    assert os.listdir(tmp_path / "tars" / ".shardkit") == []


def test_unused_indexes_are_removed(tmp_path: Path) -> None:
    path = make_tar(tmp_path / "a.tar", PLAIN)
    cache = tmp_path / ".shardkit"
    index_tars(path)
    (cache / "tmp-0123").mkdir()
    (cache / "not ours").mkdir()
    for entry in cache.iterdir():
        os.utime(entry, (0, 0))
    touch(path)
    fresh = index_tars(path)
    assert {p.name for p in cache.iterdir()} == {fresh.name, "not ours"}
    os.utime(fresh, (0, 0))
    index_tars(path)  # marks it as used
    touch(path)
    index_tars(path)
    assert fresh.exists()


# --- many at once, and interruptions ----------------------------------------------------------


def in_threads(path: Path, count: int = 4) -> list[Path]:
    found: list[Path] = []
    threads = [
        threading.Thread(target=lambda: found.append(index_tars(path))) for _ in range(count)
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    return found


def test_those_who_come_at_once_take_turns(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    make_tar(tmp_path / "a.tar", PLAIN)
    scans = []
    real = write_index.write_tar_index

    def counted(*args: Any) -> None:
        scans.append(args)
        real(*args)

    monkeypatch.setattr(cached_index, "write_tar_index", counted)
    assert len({*in_threads(tmp_path)}) == 1
    assert len(scans) == 1


def test_without_locks_all_end_well(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A file system without locks: all scan, all finish at the same moment, one index remains."""
    make_tar(tmp_path / "a.tar", PLAIN)
    together = threading.Barrier(4)
    real = write_index.write_tar_index

    def all_at_once(*args: Any) -> None:
        real(*args)
        together.wait(30)

    def no_locks(fd: int, operation: int) -> None:
        raise OSError(38, "Function not implemented")

    monkeypatch.setattr(cached_index, "write_tar_index", all_at_once)
    monkeypatch.setattr(fcntl, "flock", no_locks)
    found = in_threads(tmp_path)
    assert len(found) == 4
    assert len({*found}) == 1
    assert os.listdir(tmp_path / ".shardkit") == [found[0].name]
    assert len(by_us(tmp_path)) == 3


def test_a_tar_that_changes_meanwhile(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = make_tar(tmp_path / "a.tar", PLAIN)

    def growing(tar: Path) -> Any:
        samples = read_tar(tar)
        touch(tar)
        return samples

    monkeypatch.setattr(write_index, "read_tar", growing)
    with pytest.raises(FormatError, match=r"a\.tar changed while it was indexed"):
        index_tars(path)
    assert os.listdir(tmp_path / ".shardkit") == []


def test_an_interruption_leaves_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = make_tar(tmp_path / "a.tar", PLAIN)

    def interrupted(*args: Any) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(write_index, "atomic_write", interrupted)
    with pytest.raises(KeyboardInterrupt):
        index_tars(path)
    assert os.listdir(tmp_path / ".shardkit") == []


# --- hostile and broken tars ------------------------------------------------------------------

BAD_SUM = GOOD[:148] + b"0000000\0" + GOOD[156:]

HOSTILE: dict[str, tuple[bytes, str]] = {
    "nothing": (b"", "empty"),
    "garbage": (random.Random(1).randbytes(4096), r"(bad checksum|invalid header)"),
    "cut in a value": (GOOD[:514], r"truncated: member a\.txt of 5 bytes"),
    "cut between members": (GOOD, r"truncated: the rows of zeros .*truncate -s \+1024"),
    "cut in the second header": (GOOD + GOOD[:100], "truncated"),
    "cut in the end": (GOOD + END[:511], "truncated"),
    "second checksum wrong": (GOOD + BAD_SUM + GOOD + END, "damaged header .*byte 1024"),
    "first checksum wrong": (BAD_SUM + END, "bad checksum"),
    "size 2**80": (header(b"a.txt", 2**80) + END, "truncated"),
    "size -512": (GOOD + header(b"a.txt", -512) + END, "has the size -512"),
    "pax size negative": (GOOD + pax((b"size", b"-2048")) + GOOD + END, "has the size -2048"),
    "pax size of 5000 digits": (pax((b"size", b"9" * 5000)) + GOOD + END, "over 255 digits"),
    "global size negative": (pax((b"size", b"-1"), kind=b"g") + GOOD + END, "has the size -1"),
    "pax header of 1 GB": (
        header(b"p", 1 << 30, b"x") + END,
        "extended headers of 1073742336 bytes",
    ),
    "GNU name of 1 GB": (header(b"p", 1 << 30, b"L") + END, "extended headers of 1073742336 bytes"),
    "many large names": (member(b"p", b"n" * 300_000, b"L") * 4 + GOOD + END, "extended headers"),
    "endless pax headers": (pax((b"a", b"b")) * 900 + GOOD + END, "recursion|extended headers"),
    "pax without its member": (pax((b"path", b"a.txt")) + END, "end of file header"),
    "pax length 0": (member(b"p", b"0 a=b\n", b"x") + GOOD + END, "damaged pax header"),
    "pax without =": (member(b"p", b"6 ab\n", b"x") + GOOD + END, "damaged pax header"),
    "pax overlapping": (member(b"p", b"2 " * 200_000, b"x") + GOOD + END, "damaged pax header"),
    "a million digits": (pax((b"a", b"1" * 1_000_000)) + GOOD + END, "over 255 digits"),
    "pax path with NUL": (pax((b"path", b"a\0b.txt")) + GOOD + END, "holds a NUL"),
    "sparse, old GNU": (header(b"a.txt", 0, b"S") + END, "sparse"),
    "sparse, pax 0.0": (pax((b"GNU.sparse.size", b"9")) + GOOD + END, "sparse"),
    "sparse, pax 1.0": (
        pax((b"GNU.sparse.major", b"1"), (b"GNU.sparse.minor", b"0")) + GOOD + END,
        "sparse",
    ),
    "symbolic link": (header(b"a.txt", 0, b"2") + END, r"a\.txt is a link to .*--dereference"),
    "hard link": (GOOD + header(b"b.txt", 0, b"1") + END, r"b\.txt is a link"),
    "field twice": (GOOD + GOOD + END, r"member a\.txt: its sample has a field 'txt' already"),
    "no field name": (member(b"a.") + END, r"member a\.: .*''"),
    "bad field name": (member(b"a.b c") + END, "'b c', cannot be a field name"),
    "reserved field name": (member(b"a.__key__") + END, "cannot be a field name"),
    "endless field name": (member(b"a." + b"b" * 65) + END, "cannot be a field name"),
    "field name not UTF-8": (member(b"a.\xff") + END, "cannot be a field name"),
    "too many fields": (
        b"".join(member(b"frame.%04d.jpg" % i) for i in range(MAX_FIELDS + 1)) + END,
        r"member frame\.0256\.jpg: over 256 different fields",
    ),
    "garbage after the end": (GOOD + END + bytes(20 * 512) + b"stale" * 99, "is no tar"),
    "another tar with a wrong checksum": (GOOD + END + bytes(20 * 512) + BAD_SUM, "is no tar"),
    "no samples": (member(b"README", b"hello") + END, "no samples in its tars"),
    "only end": (END, "no samples in its tars"),
}


@pytest.mark.parametrize("case", HOSTILE)
def test_hostile_tar(tmp_path: Path, case: str) -> None:
    data, reason = HOSTILE[case]
    path = write(tmp_path, data)
    with pytest.raises(FormatError, match=reason) as caught:
        index_tars(path)
    text = str(caught.value)
    assert text.startswith((f"{path}: ", f"{tmp_path}: "))
    assert "\n" not in text
    assert len(text) < 700
    assert os.listdir(tmp_path / ".shardkit") == []


HARMLESS: dict[str, bytes] = {
    "one row of zeros": GOOD + bytes(512),
    "data after the end": GOOD + END + b"stale" * 99,
    "volume label": header(b"label.txt", 0, b"V") + GOOD + END,
    "unknown type with data": member(b"odd.txt", b"skip me", b"Z") + GOOD + END,
    "devices and a FIFO": b"".join(header(b"dev.txt", 0, kind) for kind in (b"3", b"4", b"6"))
    + GOOD
    + END,
    "hidden link": header(b".latest", 0, b"2") + header(b"plain", 0, b"1") + GOOD + END,
    "folder with a size": header(b"dir.d/", 4096, b"5") + GOOD + END,
    "global comment": pax((b"comment", b"git archive puts one"), kind=b"g") + GOOD + END,
    "pax size": pax((b"size", b"5")) + header(b"a.txt", 0) + GOOD[512:] + END,
    "pax padded with NULs": member(b"p", b"6 a=b\n\0\0", b"x") + GOOD + END,
    "old tar, type NUL": member(b"a.txt", b"hello", b"\0") + END,
    "type 7": member(b"a.txt", b"hello", b"7") + END,
    "GNU name": member(b"p", b"a.txt\0", b"L") + member(b"cut", b"hello") + END,
}


@pytest.mark.thorough
@pytest.mark.parametrize("case", HARMLESS)
def test_odd_but_harmless_tar(tmp_path: Path, case: str) -> None:
    path = write(tmp_path, HARMLESS[case])
    assert by_us(path) == [{"__key__": "a", "txt": b"hello"}] == by_library(path)


@pytest.mark.parametrize("zeros", [1, 2, 20, 4000])
def test_tars_end_to_end(tmp_path: Path, zeros: int) -> None:
    """As ``cat`` joins them."""
    between = bytes(512 * zeros)
    data = b"".join(member(b"%d.txt" % i, b"hello") + between for i in range(3))
    path = write(tmp_path, data)
    assert [sample["__key__"] for sample in by_us(path)] == ["0", "1", "2"]


def test_compressed_tars(tmp_path: Path) -> None:
    data = gzip.compress(GOOD + END)
    for name in ("x.tar.gz", "x.TGZ", "x.tar.zst", "really-gzip.tar"):
        (tmp_path / name).mkdir()
        path = write(tmp_path / name, data, name)
        for source in (path, tmp_path / name):
            with pytest.raises(UsageError, match=rf"{name} is compressed.*zcat"):
                locate(source)


def test_one_bad_tar_among_good_ones(tmp_path: Path) -> None:
    write(tmp_path, GOOD + END, "a.tar")
    write(tmp_path, GOOD + BAD_SUM + END, "b.tar")
    with pytest.raises(FormatError, match=r"b\.tar: damaged header"):
        index_tars(tmp_path)


def test_too_many_fields_over_all_tars(tmp_path: Path) -> None:
    for i in range(2):
        files = [(f"k.f{i}-{n}", b"") for n in range(MAX_FIELDS // 2 + 1)]
        make_tar(tmp_path / f"{i}.tar", files)
    with pytest.raises(FormatError, match="over 256 different fields"):
        index_tars(tmp_path)


def test_unreadable_tar_is_named(public_folder: Path) -> None:
    make_tar(public_folder / "a.tar", PLAIN).chmod(0)
    (line,) = as_nobody(public_folder, HOME="/proc")
    assert "a.tar" in line
    assert "ermission denied" in line


def members_of(path: Path) -> list[tuple[str, int, int]]:
    with path.open("rb") as file:
        return [(m.name, m.offset_data, m.size) for m in members.tar_members(file, "x.tar")]


SEED = (
    pax((b"path", b"long/" * 30 + b"a.txt"), (b"mtime", b"1.5"))
    + GOOD
    + member(b"p", b"g" * 150 + b".txt\0", b"L")
    + member(b"cut", b"data" * 200)
    + header(b"dir/", 0, b"5")
    + GOOD
    + END
)


@examples(3)
@given(
    st.lists(
        st.tuples(st.integers(0, len(SEED) - 1), st.binary(min_size=1, max_size=3)), max_size=4
    ),
    st.booleans(),
)
def test_damaged_tars_are_refused_or_read_as_tarfile_does(
    damage: list[tuple[int, bytes]], mend: bool
) -> None:
    data = bytearray(SEED)
    for at, value in damage:
        data[at : at + len(value)] = value[: len(data) - at]
    for at in range(0, len(data) if mend else 0, 512):
        row = data[at : at + 512]
        if row[257:262] == b"ustar":  # with the right sum, damage gets past the first check
            row[148:156] = b" " * 8
            data[at + 148 : at + 156] = b"%06o\0 " % sum(row)
    with tempfile.TemporaryDirectory() as folder:
        path = write(Path(folder), bytes(data))
        try:
            found = members_of(path)
        except (FormatError, UsageError):  # "compressed", if damage makes it begin so
            return
        with tarfile.open(path, "r:", encoding="utf-8", errors="surrogateescape") as tar:
            assert found == [(m.name, m.offset_data, m.size) for m in tar]
        try:
            read_tar(path)
        except ShardkitError:
            pass


# --- copies of an opened folder ---------------------------------------------------------------


def copied_by_cp_with_times(folder: Path, dest: Path) -> None:
    subprocess.run(["cp", "-aL", folder, dest], check=True, timeout=20, capture_output=True)


def copied_by_python(folder: Path, dest: Path) -> None:
    shutil.copytree(folder, dest)


@pytest.mark.parametrize(
    "copy", [copied_by_cp_with_times, copied_by_python], ids=lambda f: f.__name__
)
def test_copies_that_follow_links_end(copy: Callable[[Path, Path], None], tmp_path: Path) -> None:
    """The index was a way back to its own folder; and what is copied of it may be no link."""
    (tmp_path / "here").mkdir()
    make_tar(tmp_path / "here" / "a.tar", PLAIN)
    make_tar(tmp_path / "here" / "b.tar", [("k.txt", b"k")])
    expected = by_us(tmp_path / "here")
    copy(tmp_path / "here", tmp_path / "there")
    assert [p for p in (tmp_path / "there").rglob("*") if p.is_symlink()] == []
    shutil.rmtree(tmp_path / "here")
    assert by_us(tmp_path / "there") == expected
    convert(tmp_path / "there", tmp_path / "lmdb", to="lmdb", workers=0)
    assert by_us(tmp_path / "lmdb") == expected
    made = write_dali_index(tmp_path / "there")
    assert made == [tmp_path / "there" / "a.idx", tmp_path / "there" / "b.idx"]


def test_an_old_index_that_leads_in_circles_is_removed(tmp_path: Path) -> None:
    make_tar(tmp_path / "a.tar", PLAIN)
    old = tmp_path / ".shardkit" / ("0" * 32)
    old.mkdir(parents=True)
    (old / "tars").symlink_to("../..")
    made = index_tars(tmp_path)
    assert os.listdir(tmp_path / ".shardkit") == [made.name]
    assert (tmp_path / "a.tar").exists()


@pytest.mark.parametrize("names", ["[]", "{", '{"train-00000.tar": "../a.tar"}', '{"x": 1}', None])
def test_a_damaged_list_of_tars(names: str | None, tmp_path: Path) -> None:
    make_tar(tmp_path / "a.tar", PLAIN)
    path = index_tars(tmp_path) / "tars.json"
    path.unlink() if names is None else path.write_text(names)
    with pytest.raises(IndexFileError, match=r"tars\.json is (damaged; remove|missing)"):
        locate(tmp_path)


# --- members of a sample that do not lie together -----------------------------------------------


def in_tars(folder: Path, *tars: str) -> Path:
    """Tars of empty-valued members; ``"a.jpg b.jpg a.cls"`` is one of three."""
    folder.mkdir(exist_ok=True)
    for number, names in enumerate(tars):
        make_tar(folder / f"{number}.tar", [(n, n.encode()) for n in names.split()])
    return folder


def test_a_tar_of_all_pictures_and_then_all_labels(tmp_path: Path) -> None:
    """It gave 200 samples for 100, each with half of its fields."""
    pictures = [(f"d/{i:03d}.jpg", b"picture %d" % i) for i in range(100)]
    labels = [(f"d/{i:03d}.cls", b"%d" % i) for i in range(100)]
    random.Random(1).shuffle(labels)
    tidy = [each for pair in zip(pictures, sorted(labels), strict=True) for each in pair]
    for name, files in (("unsorted", pictures + labels), ("tidy", tidy)):
        make_tar(tmp_path / f"{name}.tar", files)
    dataset = Dataset(tmp_path / "unsorted.tar")
    assert len(dataset) == 100
    assert dataset.column("cls").tolist() == [*range(100)]
    assert by_us(tmp_path / "unsorted.tar") == by_us(tmp_path / "tidy.tar")
    for name in ("unsorted", "tidy"):
        convert(tmp_path / f"{name}.tar", tmp_path / name, to="webdataset", workers=0)
        unpack(tmp_path / f"{name}.tar", tmp_path / f"{name} files")
    assert tree(tmp_path / "unsorted files") == tree(tmp_path / "tidy files") == dict(tidy)
    assert (tmp_path / "unsorted" / "train-00000.tar").read_bytes() == (
        tmp_path / "tidy" / "train-00000.tar"
    ).read_bytes()


@pytest.mark.parametrize(
    ("tar", "samples"),
    [
        ("a.jpg b.jpg a.cls", ["a cls jpg", "b jpg"]),
        ("a.z a.y b.x a.w b.v a.u", ["a u w y z", "b v x"]),
        ("b.jpg a.jpg a.cls b.txt", ["b jpg txt", "a cls jpg"]),
        ("a.jpg b.jpg a.jpg", ["a jpg", "b jpg", "a jpg"]),
        ("a.jpg a.cls b.jpg a.cls a.jpg", ["a cls jpg", "b jpg", "a cls jpg"]),
        ("a.jpg x/a.cls", ["a jpg", "x/a cls"]),
        ("f.0001.jpg g.txt f.0002.jpg", ["f 0001.jpg 0002.jpg", "g txt"]),
    ],
)
def test_which_members_are_one_sample(tar: str, samples: list[str], tmp_path: Path) -> None:
    found = by_us(in_tars(tmp_path / "tars", tar) / "0.tar")
    assert [" ".join([s["__key__"], *sorted({*s} - {"__key__"})]) for s in found] == samples
    for sample in found:
        key = sample.pop("__key__")
        assert sample == {field: f"{key}.{field}".encode() for field in sample}


@pytest.mark.parametrize(
    "tar",
    [
        "a.jpg a.cls b.jpg a.jpg",
        "a.jpg b.jpg a.cls a.jpg",
        "a.jpg b.jpg a.cls b.cls a.jpg",
        "a.jpg b.jpg a.jpg b.cls a.cls",
        "a.jpg b.jpg a.JPG c.jpg a.cls",
    ],
)
def test_pieces_that_fit_in_no_one_way_are_refused(tar: str, tmp_path: Path) -> None:
    folder = in_tars(tmp_path / "tars", tar)
    with pytest.raises(FormatError, match=r"0\.tar: the members of a lie in .*'jpg' is there twic"):
        locate(folder)
    assert os.listdir(folder / ".shardkit") == []


@pytest.mark.parametrize("tars", [("a.jpg b.jpg", "a.cls b.cls"), ("a.jpg", "c.x", "a.jpg a.cls")])
def test_a_sample_in_two_tars_is_refused(tars: tuple[str, ...], tmp_path: Path) -> None:
    folder = in_tars(tmp_path / "tars", *tars)
    with pytest.raises(
        FormatError,
        match=r"the sample [ab] is spread over 0\.tar \(jpg\) and \d\.tar \(.*cls.*in one",
    ):
        locate(folder)
    assert len(Dataset(folder / "0.tar")) == len(tars[0].split())


@given(st.data())
@examples(0.6)
def test_regrouping_is_by_key_whatever_the_order(data: st.DataObject) -> None:
    """Against a model: samples with random fields, their members in any order."""
    samples = data.draw(
        st.dictionaries(
            st.sampled_from("abcdefgh"), st.sets(st.integers(0, 90), min_size=1, max_size=9)
        )
    )
    members = [(key, f"f{i}") for key, fields in samples.items() for i in fields]
    members = data.draw(st.permutations(members))
    found = TarSamples()
    for i, (key, field) in enumerate(members):
        name = f"{key}.{field}".encode()
        found.add(key.encode(), field, name, 512 * i, i)
    found.close()
    extents = found.extents()
    expected = list(dict.fromkeys(key.encode() for key, _ in members))
    assert found.keys == expected
    for row, key in enumerate(expected):
        own = {field: i for i, (k, field) in enumerate(members) if k.encode() == key}
        assert {f: e.size[row] for f, e in extents.items() if e.size[row] >= 0} == own
        paths = unpack_paths(key, found.paths[row], [*own])
        assert paths == [(f, key + b"." + f.encode(), None) for f in sorted(own)]
