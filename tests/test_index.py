"""shardkit.json and the row index: to the byte, there and back, and against a dictionary."""

from __future__ import annotations

import json
import os
import random
import shutil
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
import xxhash
from conftest import flip, make_images, make_pairs
from hypothesis import given
from hypothesis import strategies as st

import shardkit
from shardkit.errors import (
    DataError,
    DatasetMissingError,
    IndexFileError,
    ShardMissingError,
    StorageError,
)
from shardkit.index import making
from shardkit.index import rows as rows_module
from shardkit.index.assembling import assemble_split
from shardkit.index.file_names import is_field_name
from shardkit.index.journal import FinishedShard, Receipt, journal_path, write_finished
from shardkit.index.making import join_names, make_rows
from shardkit.index.manifest import (
    DatasetInfo,
    ShardInfo,
    SplitInfo,
    dump_info,
    is_sealed,
    parse_info,
    read_info,
)
from shardkit.index.provenance import Provenance
from shardkit.index.rows import RowIndex, row_columns, rows_header
from shardkit.memory.maps import map_file
from shardkit.samples.encoding import Encoding
from shardkit.storage.local_files import Folder

GOLDEN = DatasetInfo(
    "npy",
    ["cls", "jpg"],
    ["cat", "d\u00f6g"],
    Provenance({"kind": "images"}),
    {
        "train": SplitInfo(
            "train",
            3,
            "00112233445566778899aabbccddeeff",
            [{"cls": Encoding("int"), "jpg": Encoding()}],
            [
                ShardInfo(2, 0, {"train-00000.cls.npy": 144, "train-00000.jpg.npy": 999}),
                ShardInfo(1, 0, {"train-00001.cls.npy": 136, "train-00001.jpg.npy": 500}),
            ],
            {
                "train.rows": (584, 0x1122334455667788),
                "train.names": (30, 2),
                "train.sums": (32, 3),
                "train.find": (24, 0xFFFFFFFFFFFFFFFF),
            },
        )
    },
)


# --- shardkit.json ------------------------------------------------------------------------


names = st.from_regex(r"[A-Za-z0-9_][A-Za-z0-9_.-]{0,10}", fullmatch=True).filter(is_field_name)
counts = st.integers(0, 2**40)
sizes = st.tuples(counts, st.integers(0, 2**64 - 1))
encodings = st.one_of(
    st.just(Encoding()),
    st.just(Encoding("int")),
    st.builds(
        Encoding,
        st.just("array"),
        st.sampled_from(["<f4", "|b1", ">i8", "<c16"]),
        st.lists(st.integers(0, 50), max_size=3).map(tuple),
        st.sampled_from(["", "zlib"]),
    ),
    st.builds(Encoding, st.just("ragged"), st.just("<i2"), st.just((-1, 3))),
)


@st.composite
def splits(draw: st.DrawFn, name: str, fields: list[str]) -> SplitInfo:
    layouts = draw(
        st.lists(st.dictionaries(st.sampled_from(fields), encodings), min_size=1, max_size=3)
        if fields
        else st.just([{}])
    )
    shards = [
        ShardInfo(
            draw(counts),
            draw(st.integers(0, len(layouts) - 1)),
            {f"{name}-{i:05d}.{end}.npy": draw(counts) for end in draw(st.sets(names))},
        )
        for i in range(draw(st.integers(0, 4)))
    ]
    files = {f"{name}.{kind}": draw(sizes) for kind in ("rows", "names", "sums", "find")}
    total = sum(shard.num_rows for shard in shards)
    fingerprint = draw(st.from_regex("(scan:)?[0-9a-f]{32}", fullmatch=True))
    return SplitInfo(name, total, fingerprint, layouts, shards, files)


@st.composite
def infos(draw: st.DrawFn) -> DatasetInfo:
    fields = sorted(draw(st.sets(names, max_size=4)))
    corpus = st.fixed_dictionaries(
        {}, optional={"kind": st.text(), "limit": counts, "text_field": st.none() | st.text()}
    )
    info = DatasetInfo(
        draw(st.text()),
        fields,
        draw(st.none() | st.lists(st.text(st.characters(), max_size=9), max_size=5)),
        Provenance.from_json(draw(corpus)),
    )
    for name in draw(st.sets(names, min_size=1, max_size=3)):
        info.splits[name] = draw(splits(name, fields))
    return info


@given(infos())
def test_dump_and_parse_are_inverse(info: DatasetInfo) -> None:
    data = dump_info(info)
    assert data.isascii() and is_sealed(data)
    again = parse_info(data, "x")
    assert again == info
    assert list(again.splits) == list(info.splits)
    assert dump_info(again) == data


@given(st.data())
def test_any_changed_byte_breaks_the_seal(data: st.DataObject) -> None:
    good = dump_info(GOLDEN)
    at = data.draw(st.integers(0, len(good) - 1))
    bad = bytearray(good)
    bad[at] ^= data.draw(st.integers(1, 255))
    assert not is_sealed(bytes(bad))
    assert not is_sealed(good[:at])
    assert not is_sealed(good + b"\n")


def test_edited_by_hand_it_still_opens() -> None:
    edited = json.dumps(json.loads(dump_info(GOLDEN)) | {"new": ["entry"]}).encode()
    assert not is_sealed(edited)
    assert parse_info(edited, "x") == GOLDEN


def test_edited_by_hand_it_is_not_verified(packed: Path, tmp_path: Path) -> None:
    """Names of classes are in no other checksum."""
    folder = shutil.copytree(packed, tmp_path / "edited")
    path = folder / "shardkit.json"
    path.write_bytes(path.read_bytes().replace(b'"classes": null', b'"classes": ["a"]'))
    assert shardkit.open(folder).classes == ["a"]
    with pytest.raises(IndexFileError, match="its bytes differ from those written; restore it"):
        shardkit.open(folder, verify=True)


def test_what_is_at_a_path(tmp_path: Path) -> None:
    for folder, said in [
        (tmp_path / "no", "no such folder"),
        (tmp_path, "pack one with"),
        (tmp_path / "a\0b", "no such folder"),
    ]:
        with pytest.raises(DatasetMissingError, match=said):
            read_info(folder)
    with pytest.raises(StorageError, match="File name too long"):
        read_info(tmp_path / ("x" * 300))
    (tmp_path / ".packing").mkdir()
    with pytest.raises(DatasetMissingError, match="packing has not finished"):
        read_info(tmp_path)
    (tmp_path / "shardkit.json").mkdir()
    with pytest.raises(DatasetMissingError, match="is not a shardkit dataset"):
        read_info(tmp_path)


# --- rows ---------------------------------------------------------------------------------


@given(st.sets(names, max_size=20), st.integers(0, 2**60))
def test_header_is_as_numpy_reads_it(fields: set[str], num_rows: int) -> None:
    header = rows_header(sorted(fields), num_rows)
    assert len(header) % 64 == 0
    with tempfile.TemporaryFile() as file:
        file.write(header)
        file.seek(0)
        assert np.lib.format.read_magic(file) == (2, 0)
        # numpy's limit is for headers it does not trust; 64 fields with long names pass 10,000
        shape, fortran, dtype = np.lib.format.read_array_header_2_0(file, max_header_size=99_999)
        assert file.tell() == len(header)
    assert shape == (num_rows,) and not fortran
    assert list(dtype.names or ()) == row_columns(sorted(fields))
    assert dtype.itemsize == 8 * len(row_columns(sorted(fields)))


# --- find ---------------------------------------------------------------------------------


def build(folder: Path, shards: list[list[bytes]]) -> RowIndex:
    """A row index of samples without fields, through the writer's own code."""
    work = folder / "work"
    work.mkdir()
    receipts = []
    for number, keys in enumerate(shards):
        blob, entries = join_names(keys, [b"=p"] * len(keys))
        table = make_rows(keys, entries, {}, np.zeros(len(keys), np.uint64), {})
        receipt = Receipt(
            split="train",
            shard=number,
            segment=0,
            seen=0,
            num_rows=len(keys),
            file_bytes={f"train-{number:05d}.lmdb": 0},
            encodings={},
            num_sums=0,
            names_bytes=len(blob),
        )
        shard = FinishedShard(receipt, table, blob, np.zeros(0, np.uint64))
        write_finished(journal_path(work, "train", number), shard)
        receipts.append(receipt)
    info = DatasetInfo("lmdb", [], None, Provenance())
    info.splits["train"] = assemble_split(folder, work, "train", receipts, info, unique_keys=False)
    return RowIndex(Folder(folder), info, info.splits["train"])


def weak(key: bytes, seed: int = 0) -> int:
    """A hash under which most keys collide."""
    return len(key) % 3 << 62


@contextmanager
def hashing(digest: object) -> Iterator[None]:
    """Keys hashed by another function."""
    with pytest.MonkeyPatch.context() as patch:
        for module in (rows_module, making):
            fake = SimpleNamespace(**{**vars(xxhash), "xxh3_64_intdigest": digest})
            patch.setattr(module, "xxhash", fake)
        yield


# Short keys over few letters: many are prefixes of others.
keys = st.binary(max_size=6).map(lambda b: bytes(b"ab/\xff"[c % 4] for c in b))


@pytest.mark.parametrize("digest", [xxhash.xxh3_64_intdigest, weak])
@given(wanted=st.lists(keys, max_size=30), held=st.lists(st.lists(keys, max_size=8), max_size=4))
def test_find_is_a_dictionary(digest: object, wanted: list[bytes], held: list[list[bytes]]) -> None:
    rows: dict[bytes, list[int]] = {}
    for row, key in enumerate(key for shard in held for key in shard):
        rows.setdefault(key, []).append(row)
    with tempfile.TemporaryDirectory() as folder, hashing(digest):
        table = build(Path(folder), held)
        for key in [*wanted, *rows]:
            found = table.find(key)
            assert found in rows.get(key, [None])
            assert found is None or table.name(found) == (key, b"=p")


def test_a_find_file_with_many_wrong_entries_hides_no_key(tmp_path: Path) -> None:
    shardkit.pack(make_images(tmp_path / "in"), tmp_path / "d", to="npy", workers=0)
    path = tmp_path / "d" / "train.find"
    order = np.fromfile(path, "<i8")
    order[[4, 5, 20, 21]] = order[[20, 21, 4, 5]]
    order.tofile(path)
    ds = shardkit.open(tmp_path / "d", verify=True)
    for key in [*ds.keys()]:
        with pytest.raises(IndexFileError, match=r"train\.find is not as it was written"):
            ds.find(key)


# --- damage -------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def packed(tmp_path_factory: pytest.TempPathFactory) -> Path:
    root = tmp_path_factory.mktemp("packed")
    shardkit.pack(make_pairs(root / "in"), root / "out", to="npy", shard_size="3kB", workers=0)
    return root / "out"


def rows_of(folder: Path) -> tuple[RowIndex, np.ndarray]:  # type: ignore[type-arg]
    info = read_info(folder)
    opened = RowIndex(Folder(folder), info, info.splits["train"])
    return opened, np.arange(opened.split.num_rows)


def test_any_flipped_bit_of_a_name_is_refused(packed: Path, tmp_path: Path) -> None:
    folder = shutil.copytree(packed, tmp_path / "bad")
    opened, rows = rows_of(folder)
    names = [opened.name(row) for row in rows.tolist()]
    ends = np.cumsum(opened.table[:, opened.column["name.size"]])
    for at in range(ends[-1]):
        flip(folder / "train.names", at, 1 << at % 8)
        opened, _ = rows_of(folder)
        owner = int(np.searchsorted(ends, at, "right"))
        for row in (owner - 1) % len(rows), (owner + 1) % len(rows):
            assert opened.name(row) == names[row]
        with pytest.raises(IndexFileError, match=f"^row {owner} of train: its key and paths"):
            opened.name(owner)
        flip(folder / "train.names", at, 1 << at % 8)


def everything(folder: Path) -> Iterator[Callable[[], object]]:
    """All that tells something of samples, one by one."""
    ds = shardkit.open(folder, verify=True, decode=False)
    with_cls = shardkit.open(folder, verify=True, fields=["cls"]).select(range(12))
    yield lambda: [{k: as_bytes(v) for k, v in ds[i].items() if k != "__key__"} for i in range(13)]
    yield lambda: [ds[i]["__key__"] for i in range(13)]
    yield lambda: {k: list(map(as_bytes, v)) for k, v in ds.read(range(13)).items()}
    yield lambda: with_cls.column("cls").tolist()  # type: ignore[union-attr]
    yield ds.keys
    yield lambda: [
        (batch["__key__"], batch["cls"].tolist())  # type: ignore[index, union-attr]
        for batch in shardkit.Loader(with_cls, 4, shuffle=False, with_keys=True, workers=0)
    ]


def test_what_is_verified_is_what_was_packed(packed: Path, tmp_path: Path) -> None:
    """Whatever bit of a row or a name is flipped: keys and labels too, or an error."""
    good = [step() for step in everything(packed)]
    folder = shutil.copytree(packed, tmp_path / "bad")
    width = 8 * rows_of(folder)[0].table.shape[1]
    last_row = (folder / "train.rows").stat().st_size - width
    rng, refused = random.Random(1), [0] * len(good)
    spots = [
        ("train.rows", last_row - width * 9 + at + rng.randrange(8)) for at in range(0, width, 8)
    ]
    spots += [("train.names", at) for at in rng.sample(range(150), 10)]
    for name, at in spots:
        bit = 1 << rng.randrange(8)
        flip(folder / name, at, bit)
        for i, (step, expected) in enumerate(zip(everything(folder), good, strict=True)):
            try:
                assert step() == expected, (name, at, i)
            except DataError:
                refused[i] += 1
        flip(folder / name, at, bit)
    rows = len(spots) - 10
    assert all(number >= rows for number in refused), refused


def test_swapped_rows_are_not_verified(packed: Path, tmp_path: Path) -> None:
    """Each is whole, and another's: only the order has changed."""
    folder = shutil.copytree(packed, tmp_path / "bad")
    data = (folder / "train.rows").read_bytes()
    width = 8 * rows_of(folder)[0].table.shape[1]
    three, four = (slice(len(data) - width * n, len(data) - width * (n - 1)) for n in (10, 9))
    swapped = data[: three.start] + data[four] + data[three] + data[four.stop :]
    (folder / "train.rows").write_bytes(swapped)
    for step in everything(folder):
        with pytest.raises(IndexFileError, match="row 3 of train: its entries"):
            step()


def test_one_wrong_entry_hides_no_key(packed: Path, tmp_path: Path) -> None:
    """Of .find, or a hash of a key in .rows: a key is found where it is, or something is said."""
    folder = shutil.copytree(packed, tmp_path / "bad")
    opened, rows = rows_of(folder)
    names = [opened.name(row)[0] for row in rows.tolist()]
    width = 8 * opened.table.shape[1]
    table_at = (folder / "train.rows").stat().st_size - width * len(rows)
    refused = 0
    for row in range(len(rows)):
        for file, at, bits in [
            ("train.find", 8 * row, 4),
            ("train.rows", table_at + width * row + 8, 64),
        ]:
            for bit in range(0, bits, bits // 4):
                flip(folder / file, at + bit // 8, 1 << bit % 8)
                opened, _ = rows_of(folder)
                for number, key in enumerate(names):
                    try:
                        assert opened.find(key) == number
                    except IndexFileError:
                        refused += 1
                flip(folder / file, at + bit // 8, 1 << bit % 8)
    assert refused > len(rows)


@pytest.mark.parametrize("names", ["rows", "rows names", "rows names find sums"])
def test_the_index_of_another_dataset(tmp_path: Path, names: str) -> None:
    """Of as many samples, of the same pictures under other labels."""
    ours, theirs = (make_images(tmp_path / name) for name in ("ours", "theirs"))
    (theirs / "class0").rename(theirs / "class9")
    for source in (ours, theirs):
        shardkit.pack(source, tmp_path / f"{source.name}-d", to="npy", workers=0, progress=False)
    for kind in names.split():
        shutil.copy(tmp_path / "theirs-d" / f"train.{kind}", tmp_path / "ours-d")
    ds = shardkit.open(tmp_path / "ours-d", verify=True)
    for use in (lambda: ds.column("cls"), ds.keys, lambda: ds.read([3]), lambda: ds[3]):
        with pytest.raises(IndexFileError, match=r"row [03] of train: its "):
            use()


def test_an_index_cut_short_while_it_is_open(tmp_path: Path) -> None:
    shardkit.pack(make_images(tmp_path / "in"), tmp_path / "d", to="npy", workers=0, progress=False)
    ds = shardkit.open(tmp_path / "d", verify=True)
    keys = ds.keys()
    for kind in ("rows", "names"):
        os.truncate(tmp_path / "d" / f"train.{kind}", 100)
    assert ds.keys() == keys and len(ds.read([5])["cls"]) == 1


# --- files --------------------------------------------------------------------------------


def test_map_file_takes_regular_files_of_the_right_size(tmp_path: Path) -> None:
    path = tmp_path / "f"
    with pytest.raises(ShardMissingError, match="is missing"):
        map_file(path, 0)
    path.write_bytes(b"abc")
    assert map_file(path, 3)[:] == b"abc"
    for size in (0, 2, 4):
        with pytest.raises(IndexFileError, match=f"has 3 bytes, expected {size}"):
            map_file(path, size)
    with pytest.raises(StorageError, match="Not a directory"):
        map_file(path / "x", 4)
    with pytest.raises(IndexFileError, match="no regular file"):
        map_file(tmp_path, 4)
    os.mkfifo(tmp_path / "fifo")  # would block for ever
    with pytest.raises(IndexFileError, match="no regular file"):
        map_file(tmp_path / "fifo", 0)


def test_few_maps_stay_open(
    container: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    source = make_pairs(tmp_path / "in")
    shardkit.pack(source, tmp_path / "out", to=container, shard_size="1kB", workers=0)
    whole = shardkit.open(tmp_path / "out", decode=False)
    rows = np.random.default_rng(0).integers(0, len(whole), 50)
    expected = whole.read(rows)
    del whole
    before = num_maps(tmp_path)
    monkeypatch.setattr("shardkit.storage.local_files.MOST_MAPS", 2)
    few = shardkit.open(tmp_path / "out", decode=False)
    few.read(rows)
    assert num_maps(tmp_path) - before <= 2 < num_maps(tmp_path)
    kept = few.read(rows)
    for name, values in expected.items():
        assert list(map(as_bytes, kept[name])) == list(map(as_bytes, values))


def num_maps(folder: Path) -> int:
    """Of shards."""
    return Path("/proc/self/maps").read_text().count(f"{folder}/out/train-0")


def as_bytes(value: bytes | memoryview | None) -> bytes | None:
    return None if value is None else bytes(value)
