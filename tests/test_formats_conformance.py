"""What every container format must do, whoever reads it back.

Each format subclasses :class:`Conformance` and says how its *own* library reads a shard; values
are compared both through the extents (as shardkit reads) and through that library.
"""

from __future__ import annotations

import os
import tarfile
import tempfile
from itertools import pairwise
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
import pytest
from conftest import examples, run_python
from hypothesis import given
from hypothesis import strategies as st
from token_data import npy

from shardkit.errors import StorageError, UsageError
from shardkit.formats import FORMATS, Extents, get_format
from shardkit.formats.webdataset import key_of_member
from shardkit.samples.sample import Value

STEM = "train-00000"
Columns = dict[str, list[Value | None]]

ODD_KEYS = [
    b"plain",
    b"class/IMG.1",
    b"class/IMG.2",
    b"a.b/c.d/e.f",
    b"50%/100%25",
    b"with space and 'quote'",
    b"line\nbreak\ttab\x7f",
    b"latin\xe9\xff",
    "caf\u00e9/\u732b/\U0001f408".encode(),
    b"/absolute",
    b"../../up",
    b"./here/../there/.",
    b"double//slash///",
    b"..",
    b".",
    b"/",
    b"",
    b"%",
    b"__meta__/x",
    b"__meta__",
    b"x" * 300,
    b"d" * 150 + b"/" + "\u00fc".encode() * 80,
    b"y" * 96,
    b"z" * 97,
]


def raw(array: np.ndarray[Any, Any], encoding_kind: str) -> bytes:
    """Canonical bytes of one value as a column format's own library hands it out."""
    if encoding_kind == "bytes":
        return array.tobytes()
    if encoding_kind == "int":
        return b"%d" % int(array)
    return npy(np.asarray(array))


def from_columns(
    get: Any, names: set[str], extents: dict[str, Extents]
) -> tuple[list[bytes], Columns]:
    """Read a shard of columns: ``get(name)`` gives an array-like."""

    def read(name: str, kind: str) -> list[Value | None]:
        values: Any = get(name)
        if f"{name}.offsets" in names:
            ends = get(f"{name}.offsets")[:].astype(int)
            rows = [values[a:b] for a, b in pairwise(ends)]
        else:
            table = values[:]
            rows = [table[i, ...] for i in range(len(table))]  # a scalar would lose its byte order
        present = get(f"{name}.present")[:] if f"{name}.present" in names else np.ones(len(rows))
        assert len(present) == len(rows)
        assert set(present.tolist()) <= {0, 1}
        return [raw(r, kind) if there else None for r, there in zip(rows, present, strict=True)]

    keys = [bytes(k or b"") for k in read("__key__", "bytes")]
    return keys, {name: read(name, e.encoding.kind) for name, e in extents.items()}


def write(
    name: str, folder: Path, keys: list[bytes], columns: Columns, compression: int | None = None
) -> dict[str, Extents]:
    columns = dict(sorted(columns.items()))
    return get_format(name).write(folder, STEM, keys, columns, compression)


def mixed(num: int = 40) -> tuple[list[bytes], Columns]:
    """A shard with every kind of column, absent and empty values, and sizes up to 20 kB."""
    rng = np.random.default_rng(7)
    jpg = [rng.bytes(int(n)) for n in rng.integers(0, 20_000, num)]
    columns: Columns = {
        "cls": [b"%d" % (i % 10) for i in range(num)],
        "jpg": list(jpg),
        "json": [None if i % 3 else b'{"a": %d}\n' % i for i in range(num)],
        "npy": [npy(rng.random((3, 4), np.float32)) for _ in range(num)],
        "rag.npy": [npy(np.arange(i, dtype=">i2")) if i % 4 else None for i in range(num)],
        "txt": [b"" if i % 2 else b"x" * i for i in range(num)],
    }
    return [b"class/%03d" % i for i in range(num)], columns


class Conformance:
    """Subclasses set ``name`` and read a shard with nothing of shardkit."""

    name: ClassVar[str]

    def read(self, folder: Path, extents: dict[str, Extents]) -> tuple[list[bytes], Columns]:
        raise NotImplementedError

    def check(self, keys: list[bytes], columns: Columns, compression: int | None = None) -> None:
        with tempfile.TemporaryDirectory() as name:
            folder = Path(name)
            extents = write(self.name, folder, keys, columns, compression)
            self.check_files(folder, columns, extents)
            self.check_extents(folder, keys, columns, extents)
            self.check_library(folder, keys, columns, extents)

    def check_files(self, folder: Path, columns: Columns, extents: dict[str, Extents]) -> None:
        files = [path.name for path in folder.iterdir()]
        assert {get_format(self.name).file_of(STEM, name) for name in extents} <= set(files)
        assert all(file.startswith(f"{STEM}.") for file in files)

    def check_extents(
        self, folder: Path, keys: list[bytes], columns: Columns, extents: dict[str, Extents]
    ) -> None:
        assert set(extents) == set(columns)
        for field, values in columns.items():
            found = extents[field]
            assert found.start.dtype == found.size.dtype == np.dtype(np.int64)
            assert found.start.shape == found.size.shape == (len(keys),)
            data = (folder / get_format(self.name).file_of(STEM, field)).read_bytes()
            for value, start, size in zip(values, found.start, found.size, strict=True):
                if value is None:
                    assert size == -1
                else:
                    assert 0 <= start <= start + size <= len(data)
                    assert found.encoding.canonical(data[start : start + size]) == value

    def check_library(
        self, folder: Path, keys: list[bytes], columns: Columns, extents: dict[str, Extents]
    ) -> None:
        found_keys, found = self.read(folder, extents)
        assert found_keys == keys
        assert found == columns

    def test_mixed(self) -> None:
        self.check(*mixed())

    def test_compression_changes_no_value(self) -> None:
        self.check(*mixed(), compression=6)

    def test_odd_keys(self) -> None:
        self.check(ODD_KEYS, {"cls": [b"%d" % i for i in range(len(ODD_KEYS))]})

    def test_no_samples(self, tmp_path: Path) -> None:
        extents = write(self.name, tmp_path, [], {"cls": [], "jpg": [], "npy": []})
        self.check_files(tmp_path, {}, extents)
        assert all(len(e.start) == len(e.size) == 0 for e in extents.values())
        assert self.read(tmp_path, extents) == ([], {"cls": [], "jpg": [], "npy": []})

    def test_a_field_absent_everywhere(self) -> None:
        self.check([b"a", b"b"], {"cls": [None, None], "jpg": [b"1", b"2"], "npy": [None, None]})

    def test_sizes_around_every_border(self) -> None:
        sizes = [0, 1, 511, 512, 513, 1023, 1024, 1025, 2020, 2030, 2040, 4079, 4080, 4081, 8177]
        sizes += range(2010, 2050)
        values: list[Value | None] = [bytes([65 + i % 26]) * n for i, n in enumerate(sizes)]
        self.check([b"%d" % i for i in range(len(sizes))], {"jpg": values})

    def test_more_samples_than_a_block(self) -> None:
        num = 5000
        values: list[Value | None] = [b"%d" % i * (i % 200) for i in range(num)]
        cls: list[Value | None] = [b"%d" % i if i % 7 else None for i in range(num)]
        self.check([b"k%d" % i for i in range(num)], {"cls": cls, "txt": values})

    def test_values_may_be_memoryviews(self) -> None:
        array = npy(np.arange(5))
        views: Columns = {
            "cls": [memoryview(b"12"), memoryview(b"-3")],
            "jpg": [memoryview(b"x" * 3000), memoryview(b"y")],
            "npy": [memoryview(array), memoryview(array)],
        }
        self.check([b"a", b"b"], views)

    @pytest.mark.parametrize(
        "cls", [b"7\n", b"+7", b"07", b"", b"1_0", b" 7", b"-0", b"99999999999999999999", b"\xb2"]
    )
    def test_an_odd_class_keeps_its_bytes(self, cls: bytes) -> None:
        self.check([b"a", b"b"], {"cls": [b"3", cls]})

    @pytest.mark.parametrize(
        "dtype", ["|b1", "|i1", "|u1", "<i2", ">i4", "<u8", ">f2", "<f4", ">f8", "<c8", ">c16"]
    )
    @pytest.mark.parametrize("shape", [(), (0,), (3,), (2, 0, 3), (100, 5)])
    def test_arrays(self, dtype: str, shape: tuple[int, ...]) -> None:
        rng = np.random.default_rng(1)
        arrays = [np.asarray(rng.random(shape) * 100).astype(dtype) for _ in range(3)]
        self.check([b"a", b"b", b"c"], {"npy": [npy(a) for a in arrays]})
        partial: Columns = {"cls": [b"0"] * 3, "npy": [npy(arrays[0]), None, npy(arrays[1])]}
        self.check([b"a", b"b", b"c"], partial, compression=9)

    def test_arrays_that_fit_no_column(self) -> None:
        fortran = npy(np.asfortranarray(np.ones((3, 4))))
        text = npy(np.array(["a", "bc"]))
        deep = npy(np.ones((1,) * 32, np.uint8))
        for odd in (fortran, text, deep, b"\x93NUMPY no array", b""):
            self.check([b"a", b"b"], {"npy": [odd, odd]})
        self.check([b"a", b"b"], {"npy": [npy(np.ones(3, "<i4")), npy(np.ones(3, "<i8"))]})

    def test_same_input_same_files(self, tmp_path: Path) -> None:
        """Also after other work, and with memory that does not start out as zeros."""
        first, second = tmp_path / "a", tmp_path / "b"
        first.mkdir()
        second.mkdir()
        write(self.name, first, *mixed(), compression=3)
        code = "import sys, pathlib; import test_formats_conformance as t;"
        code += "junk = [bytes([n % 251]) * (n * 37) for n in range(2000)]; del junk[::2];"
        code += f"t.write({self.name!r}, pathlib.Path(sys.argv[1]), *t.mixed(), compression=3)"
        run_python(code, second, MALLOC_PERTURB_="165", PYTHONHASHSEED="5")
        files = {p.name: p.read_bytes() for p in first.iterdir()}
        assert files == {p.name: p.read_bytes() for p in second.iterdir()}

    def test_writing_again_replaces(self, tmp_path: Path) -> None:
        """A killed packer leaves half a shard where the next one writes."""
        write(self.name, tmp_path, *mixed(60))
        extents = write(self.name, tmp_path, *mixed(40))
        keys, columns = mixed(40)
        self.check_extents(tmp_path, keys, columns, extents)
        self.check_library(tmp_path, keys, columns, extents)

    def test_a_folder_that_is_missing(self, tmp_path: Path) -> None:
        with pytest.raises(StorageError, match="No such file or directory"):
            write(self.name, tmp_path / "gone", [b"k"], {"jpg": [b"v"]})

    def test_no_library_on_import(self) -> None:
        """A worker pays only for the format it writes."""
        loaded = run_python("import sys, shardkit.formats; print(*sys.modules)").split()
        assert not {"h5py", "lmdb", "torch", "webdataset"} & set(loaded)

    def test_any_shard(self) -> None:
        @examples(0.4)
        @given(shards(), st.sampled_from([None, 1]))
        def run(shard: tuple[list[bytes], Columns], compression: int | None) -> None:
            self.check(*shard, compression)

        run()


@st.composite
def shards(draw: st.DrawFn) -> tuple[list[bytes], Columns]:
    """Any keys, any fields, any values, each absent now and then."""
    key = st.binary(max_size=120).map(lambda b: b.replace(b"\0", b"."))
    keys = draw(st.lists(key, unique=True, max_size=12))
    dtypes = st.sampled_from(["|u1", ">i4", "<f4", "|b1", "<c8"])
    shapes = st.sampled_from([(), (0,), (2,), (3,), (2, 2), (5, 2), (1, 300)])
    arrays = st.builds(
        lambda d, s: npy(np.arange(int(np.prod(s))).reshape(s).astype(d)), dtypes, shapes
    )
    one_array = st.just(draw(arrays))
    sizes = st.sampled_from([0, 1, 500, 512, 513, 2030, 2038, 4080, 9000])
    values: dict[str, Any] = {
        "cls": st.integers(-(2**63), 2**63 - 1).map(lambda n: b"%d" % n)
        | st.sampled_from([b"7\n", b"007"]),
        "jpg": st.binary(max_size=20) | sizes.map(lambda n: b"j" * n),
        "npy": arrays | st.binary(max_size=8) if draw(st.booleans()) else one_array,
        "b.npy": arrays,
        "Seg.PNG": st.binary(max_size=700),
    }
    columns: Columns = {}
    for field in draw(st.sets(st.sampled_from(sorted(values)), min_size=1)):
        value = values[field]
        if draw(st.booleans()):
            value = st.none() | value
        columns[field] = draw(st.lists(value, min_size=len(keys), max_size=len(keys)))
    # A tar knows a sample by its members: one without any field has no place in it.
    lonely = [all(column[i] is None for column in columns.values()) for i in range(len(keys))]
    columns["txt"] = [b"" if alone else None for alone in lonely]
    return keys, columns


class TestWebDataset(Conformance):
    name = "webdataset"

    def test_a_field_absent_everywhere(self) -> None:
        self.check([b"a", b"b"], {"jpg": [b"1", b"2"], "npy": [None, None]})

    def read(self, folder: Path, extents: dict[str, Extents]) -> tuple[list[bytes], Columns]:
        keys: list[bytes] = []
        columns: Columns = {field: [] for field in extents}
        with tarfile.open(folder / f"{STEM}.tar", "r:", errorlevel=2) as tar:
            for member in tar:
                name = os.fsencode(member.name)
                folder_part, _, last = name.rpartition(b"/")
                stem, _, field = last.partition(b".")
                key = key_of_member(folder_part + b"/" + stem if b"/" in name else stem)
                if not keys or keys[-1] != key:
                    keys.append(key)
                    for column in columns.values():
                        column.append(None)
                file = tar.extractfile(member)
                assert file is not None
                assert columns[field.decode()][-1] is None
                columns[field.decode()][-1] = file.read()
        return keys, columns


class TestLmdb(Conformance):
    name = "lmdb"

    def read(self, folder: Path, extents: dict[str, Extents]) -> tuple[list[bytes], Columns]:
        import lmdb

        keys: list[bytes] = []
        columns: Columns = {field: [] for field in extents}
        path = str(folder / f"{STEM}.lmdb")
        with lmdb.open(path, subdir=False, readonly=True, lock=False) as env, env.begin() as txn:
            row = 0
            while (key := txn.get(b"%08d.__key__" % row)) is not None:
                keys.append(bytes(key))
                for field, column in columns.items():
                    column.append(txn.get(b"%08d.%s" % (row, field.encode())))
                row += 1
            present = sum(v is not None for column in columns.values() for v in column)
            assert txn.stat()["entries"] == present + len(keys)
        return keys, columns


class TestHdf5(Conformance):
    name = "hdf5"

    def read(self, folder: Path, extents: dict[str, Extents]) -> tuple[list[bytes], Columns]:
        import h5py

        with h5py.File(folder / f"{STEM}.h5", "r") as file:
            return from_columns(file.__getitem__, set(file), extents)


class TestNpy(Conformance):
    name = "npy"

    def read(self, folder: Path, extents: dict[str, Extents]) -> tuple[list[bytes], Columns]:
        names = {p.name[len(STEM) + 1 : -4] for p in folder.iterdir()}

        def get(name: str) -> Any:
            return np.load(folder / f"{STEM}.{name}.npy", allow_pickle=False)

        return from_columns(get, names, extents)


def test_every_format_is_here() -> None:
    tested = {cls.name for cls in Conformance.__subclasses__()}
    assert tested == set(FORMATS)
    assert all(name == made.name for name, made in FORMATS.items())


@pytest.mark.parametrize(
    ("alias", "name"),
    [
        ("h5", "hdf5"),
        ("wds", "webdataset"),
        ("tar", "webdataset"),
        ("LMDB", "lmdb"),
        ("npy", "npy"),
    ],
)
def test_aliases(alias: str, name: str) -> None:
    assert get_format(alias).name == name


def test_an_unknown_format_names_the_known() -> None:
    with pytest.raises(UsageError) as caught:
        get_format("zip")
    assert str(caught.value) == "'zip' is no format; choose one of lmdb, hdf5, webdataset, npy"
