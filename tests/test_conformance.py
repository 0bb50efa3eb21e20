"""One contract over all formats: what goes in comes out, from every container alike."""

from __future__ import annotations

import pickle
import subprocess
from itertools import pairwise, permutations
from pathlib import Path

import numpy as np
import pytest
from conftest import (
    CONTAINERS,
    make_arrays,
    make_images,
    make_pairs,
    picture,
    thorough,
    tree,
    write,
)

import shardkit
from shardkit.errors import ChecksumError, CorpusError, DataError, UsageError
from shardkit.index.manifest import read_info

OPTIONS = {"shard_size": "3kB", "workers": 0, "progress": False}


def same(a: object, b: object) -> bool:
    if isinstance(a, dict) and isinstance(b, dict):
        return a.keys() == b.keys() and all(same(a[k], b[k]) for k in a)
    if isinstance(a, np.ndarray):
        return isinstance(b, np.ndarray) and a.dtype == b.dtype and np.array_equal(a, b)
    return bool(a == b)


@pytest.fixture(params=CONTAINERS)
def container(request: pytest.FixtureRequest) -> str:
    """Each format, for quick tests, too: this is the contract."""
    return str(request.param)


def test_pack_verify_unpack(corpus: Path, container: str, tmp_path: Path) -> None:
    packed = shardkit.pack(corpus, tmp_path / "packed", to=container, **OPTIONS)
    assert packed.num_samples > 0 and packed.num_rejects == 0
    result = shardkit.verify(tmp_path / "packed", against=corpus)
    assert result.ok, result.problems
    assert result.num_compared == result.num_samples == packed.num_samples
    shardkit.unpack(tmp_path / "packed", tmp_path / "back")
    assert tree(tmp_path / "back") == tree(corpus)


@pytest.fixture(scope="module")
def direct(tmp_path_factory: pytest.TempPathFactory) -> list[Path]:
    """Folders in which one input each is packed into every format."""
    root = tmp_path_factory.mktemp("direct")
    for make in (make_pairs, make_images, make_arrays):
        source = make(root / "sources" / make.__name__)
        for to in CONTAINERS:
            shardkit.pack(source, root / make.__name__ / to, to=to, **OPTIONS)
    return [root / make.__name__ for make in (make_pairs, make_images, make_arrays)]


@pytest.mark.parametrize("pair", list(permutations(CONTAINERS, 2)), ids="-".join)
def test_convert_there_and_back_is_the_identity(
    pair: tuple[str, str], direct: list[Path], tmp_path: Path
) -> None:
    a, b = pair
    for packed in direct:
        folder = tmp_path / packed.name
        shardkit.convert(packed / a, folder / "b", to=b, workers=0)
        shardkit.convert(folder / "b", folder / "c", to=a, workers=0)
        assert tree(folder / "c") == tree(packed / a)
        assert tree(folder / "b") == tree(packed / b)


def test_worker_count_and_destination_do_not_show(container: str, tmp_path: Path) -> None:
    source = make_images(tmp_path / "source", per_class=20)
    one = shardkit.pack(source, tmp_path / "one", to=container, shard_size="2kB", workers=0)
    two = shardkit.pack(source, tmp_path / "two" / "x", to=container, shard_size="2kB", workers=2)
    assert one.num_shards == two.num_shards > 5
    assert tree(tmp_path / "one") == tree(tmp_path / "two" / "x")


@pytest.mark.usefixtures("_gathering")
class TestReading:
    @pytest.fixture(params=["edited", *thorough("packed", "appended")])
    def ds(
        self, container: str, tmp_path: Path, request: pytest.FixtureRequest
    ) -> shardkit.Dataset:
        """The same samples, however they came there."""
        source, dataset = make_images(tmp_path / "source"), tmp_path / "packed"
        if request.param == "appended":
            (source / "class2").rename(tmp_path / "class2")
            shardkit.pack(source, dataset, to=container, **OPTIONS)
            for name in ("class0", "class1"):  # one folder alone is no class
                (tmp_path / "more" / name).mkdir(parents=True)
            (tmp_path / "class2").rename(tmp_path / "more" / "class2")
            shardkit.append(dataset, tmp_path / "more", **OPTIONS)
        else:
            if request.param == "edited":
                for number in (3, 30):
                    write(source / "class1" / f"more.{number}.jpg", picture(number))
                (source / "class2" / "img.005.jpg").rename(source / "class0" / "img.905.jpg")
                write(source / "class2" / "img.005.jpg", picture(205))
            shardkit.pack(source, dataset, to=container, **OPTIONS)
            if request.param == "edited":
                labels = {"class2/img.000": "class1"}
                drop = ["class1/more.3", "class1/more.30", "class0/img.905"]
                shardkit.edit(dataset, drop_keys=drop, labels=labels, progress=False)
                labels = {"class2/img.000": "class2"}
                shardkit.edit(dataset, labels=labels, progress=False)
        return shardkit.open(dataset)

    def test_batch_equals_single_reads(self, ds: shardkit.Dataset) -> None:
        rows = [5, 0, 35, 5, 17]
        batch = ds.read(rows)
        singles = [ds[row] for row in rows]
        assert [bytes(v) for v in batch["jpg"]] == [bytes(s["jpg"]) for s in singles]
        assert batch["cls"].tolist() == [s["cls"] for s in singles] == [0, 0, 2, 0, 1]
        assert batch["cls"].dtype == np.int64
        assert [s["__key__"] for s in ds.__getitems__(rows)] == ds.keys(rows)

    def test_read_into_one_buffer(self, ds: shardkit.Dataset) -> None:
        rows = [30, 2, 2]
        out = np.zeros(100_000, np.uint8)
        offsets = ds.read_into(rows, "jpg", out)
        for i, row in enumerate(rows):
            assert out[offsets[i] : offsets[i + 1]].tobytes() == bytes(ds[row]["jpg"])
        with pytest.raises(UsageError, match="out has 10 bytes"):
            ds.read_into(rows, "jpg", out[:10])

    @pytest.mark.parametrize("verify", [False, True])
    def test_values_end_to_end(self, ds: shardkit.Dataset, verify: bool) -> None:
        rows = [30, 2, 2, 0]
        checked = shardkit.open(ds.path, verify=verify)
        joined = checked.read_joined(rows, ["jpg", "cls"])
        data, offsets = joined["jpg"].data, joined["jpg"].offsets
        found = [data[a:b].tobytes() for a, b in pairwise(offsets.tolist())]
        assert found == [bytes(ds[row]["jpg"]) for row in rows]
        assert joined["cls"].tolist() == [2, 0, 0, 0], "what is decoded is not bytes"
        assert len(joined["jpg"]) == 4 and data.flags.writeable
        none = checked.read_joined([], ["jpg"])["jpg"]
        assert len(none) == 0 and none.data.size == 0

    def test_columns_select_find(self, ds: shardkit.Dataset) -> None:
        assert ds.column("cls").tolist() == [0] * 12 + [1] * 12 + [2] * 12
        part = ds.select(ds.column("cls") == 1)
        assert len(part) == 12 and part[0]["__key__"] == "class1/img.000"
        assert part.keys() == ds.keys(range(12, 24))
        assert part.select([3, 1]).keys() == ["class1/img.003", "class1/img.001"]
        assert ds.find("class2/img.004") == 28 and part.find("class1/img.004") == 4
        for missing in ("class2/img.04", ""):
            with pytest.raises(KeyError):
                ds.find(missing)
        with pytest.raises(KeyError):
            part.find("class2/img.004")

    def test_rows_outside(self, ds: shardkit.Dataset) -> None:
        assert ds[-1]["__key__"] == ds[35]["__key__"]
        for bad in (36, -37):
            with pytest.raises(IndexError):
                ds[bad]
        with pytest.raises(IndexError):
            ds.read([0, 36])
        with pytest.raises(IndexError):
            ds.read([-1])
        assert ds.read([])["jpg"] == []

    def test_a_selection_checks_its_own_bounds(self, ds: shardkit.Dataset) -> None:
        part = ds.select([3, 4])
        for bad in ([2], [-1]):
            with pytest.raises(IndexError):
                part.read(bad)

    def test_pickles_and_decodes(self, ds: shardkit.Dataset) -> None:
        again = pickle.loads(pickle.dumps(ds))
        assert bytes(again[7]["jpg"]) == bytes(ds[7]["jpg"])
        pil = shardkit.open(ds.path, decode="pil")
        assert pil[3]["jpg"].size == (16, 16)
        raw = shardkit.open(ds.path, decode=False, fields=["cls"])
        assert [bytes(v) for v in raw.read([0, 20])["cls"]] == [b"0", b"1"]

    def test_torch_loader(self, ds: shardkit.Dataset) -> None:
        from torch.utils.data import DataLoader

        small = shardkit.open(ds.path, fields=["cls"])
        for workers in (0, 2):
            loader = DataLoader(small, batch_size=5, num_workers=workers)
            assert torch_labels(loader) == ds.column("cls").tolist()

    def test_verify_on_read(self, ds: shardkit.Dataset) -> None:
        checked = shardkit.open(ds.path, verify=True)
        assert checked.read(range(len(checked)))["cls"].tolist() == ds.column("cls").tolist()
        damage_picture(ds, 3)
        with pytest.raises(ChecksumError, match=r"class0/img.003"):
            shardkit.open(ds.path, verify=True).read([3])


def damage_picture(ds: shardkit.Dataset, row: int) -> None:
    """Flip a bit of it in its shard."""
    jpg = bytes(ds[row]["jpg"])
    shard = next(p for p in sorted(ds.path.glob("train-*")) if jpg in p.read_bytes())
    data = bytearray(shard.read_bytes())
    data[data.index(jpg) + 40] ^= 1
    shard.write_bytes(data)


@pytest.mark.parametrize("decode", [True, False])
def test_a_sample_holds_plain_values(corpus: Path, decode: bool, tmp_path: Path) -> None:
    """One of ``ds[i]`` or of ``__getitems__``: no views that do not pickle, no NumPy scalars."""
    shardkit.pack(corpus, tmp_path / "out", to="hdf5", **OPTIONS)
    ds = shardkit.open(tmp_path / "out", decode=decode)
    plain = {bytes, str, int, dict, list} | ({np.ndarray} if decode else set())
    rows = [*range(len(ds))]
    samples = ds.__getitems__(rows)
    assert {type(value) for sample in samples for value in sample.values()} <= plain
    assert all(same(ds[row], samples[row]) for row in rows)
    assert all(
        same(a, b) for a, b in zip(samples, pickle.loads(pickle.dumps(samples)), strict=True)
    )
    arrays = [v for s in samples for v in s.values() if isinstance(v, np.ndarray)]
    assert all(array.flags.writeable for array in arrays)


def test_an_array_without_axes_stays_one(container: str, tmp_path: Path) -> None:
    for i in range(3):
        np.save(write(tmp_path / "in" / f"{i}.npy", b""), np.array(i, np.int16))
    shardkit.pack(tmp_path / "in", tmp_path / "out", to=container, workers=0)
    value = shardkit.open(tmp_path / "out")[2]["npy"]
    assert isinstance(value, np.ndarray) and value.shape == () and value == 2


def torch_labels(loader: object) -> list[int]:
    return [int(label) for batch in loader for label in batch["cls"]]  # type: ignore[attr-defined]


def test_reader_classes_insist_on_their_format(container: str, tmp_path: Path) -> None:
    source = make_images(tmp_path / "source", per_class=1)
    shardkit.pack(source, tmp_path / "packed", to=container, **OPTIONS)
    classes = {
        "lmdb": shardkit.readers.LMDBDataset,
        "hdf5": shardkit.readers.HDF5Dataset,
        "webdataset": shardkit.readers.WebDataset,
        "npy": shardkit.readers.NpyDataset,
    }
    for name, reader in classes.items():
        if name == container:
            assert len(reader(tmp_path / "packed")) == 3
        else:
            with pytest.raises(UsageError, match=f"holds {container}, not {name}"):
                reader(tmp_path / "packed")


def test_splits(container: str, tmp_path: Path) -> None:
    source = tmp_path / "source"
    make_images(source / "train")
    make_images(source / "val", per_class=2)
    shardkit.pack(source, tmp_path / "packed", to=container, **OPTIONS)
    assert len(shardkit.open(tmp_path / "packed")) == 36
    assert len(shardkit.open(tmp_path / "packed", split="val")) == 6
    with pytest.raises(UsageError, match="no split 'test', only train, val"):
        shardkit.open(tmp_path / "packed", split="test")
    shardkit.unpack(tmp_path / "packed", tmp_path / "back")
    assert tree(tmp_path / "back") == tree(source)


def test_shuffle_limit_and_val_fraction(container: str, tmp_path: Path) -> None:
    source = make_images(tmp_path / "source")
    options = {**OPTIONS, "shuffle": True, "val_fraction": 0.25}
    for name, seed in (("a", 1), ("b", 1), ("c", 2)):
        shardkit.pack(source, tmp_path / name, to=container, seed=seed, **options)
    assert tree(tmp_path / "a") == tree(tmp_path / "b")
    train, val = (shardkit.open(tmp_path / "a", split=s).keys() for s in ("train", "val"))
    everything = shardkit.open(tmp_path / "c").keys() + shardkit.open(tmp_path / "c", "val").keys()
    assert len(val) == 9 and sorted(train + val) == sorted(everything)
    assert train != sorted(train) and train + val != everything
    assert shardkit.verify(tmp_path / "a", against=source).ok
    shardkit.unpack(tmp_path / "a", tmp_path / "back")
    assert tree(tmp_path / "back") == tree(source)
    shardkit.pack(source, tmp_path / "few", to=container, limit=5, **OPTIONS)
    assert len(shardkit.open(tmp_path / "few")) == 5
    assert shardkit.verify(tmp_path / "few", against=source).ok


@pytest.mark.usefixtures("_gathering")
def test_fixed_arrays_come_as_one_array(container: str, tmp_path: Path) -> None:
    source = make_arrays(tmp_path / "source")
    compression = 5 if container == "hdf5" else None
    shardkit.pack(source, tmp_path / "p", to=container, compression=compression, **OPTIONS)
    batch = shardkit.open(tmp_path / "p").read([9, 0, 4])["npy"]
    assert batch.shape == (3, 4, 5) and batch.dtype == np.int16
    assert batch[:, 0, 0].tolist() == [9, 0, 4]
    assert shardkit.verify(tmp_path / "p", against=source).ok
    shardkit.unpack(tmp_path / "p", tmp_path / "back")
    assert tree(tmp_path / "back") == tree(source)


def test_text_field_of_jsonl(container: str, tmp_path: Path) -> None:
    source = write(tmp_path / "in.jsonl", '{"t": "a"}\n\n{"t": "\\u00e9"}\n').parent
    shardkit.pack(source / "in.jsonl", tmp_path / "p", to=container, text_field="t", **OPTIONS)
    assert shardkit.open(tmp_path / "p").read([0, 1])["txt"] == ["a", "\u00e9"]


def test_a_shard_of_rejects_only_is_empty(container: str, tmp_path: Path) -> None:
    source = make_images(tmp_path / "source")
    for i in range(6):
        write(source / "class1a" / f"{i}.jpg", b"x" * 2000)
    options = {**OPTIONS, "on_error": "skip", "max_rejects": 0.5}
    packed = shardkit.pack(source, tmp_path / "packed", to=container, **options)
    assert (packed.num_samples, packed.num_rejects) == (36, 6)
    index = read_info(tmp_path / "packed").splits["train"]
    assert 0 in [shard.num_rows for shard in index.shards]
    assert shardkit.verify(tmp_path / "packed", against=source).ok
    ds = shardkit.open(tmp_path / "packed")
    assert ds.column("cls").tolist() == [0] * 12 + [1] * 12 + [3] * 12
    shardkit.convert(tmp_path / "packed", tmp_path / "other", to="npy", workers=0)
    assert shardkit.open(tmp_path / "other").keys() == ds.keys()
    shardkit.convert(tmp_path / "other", tmp_path / "again", to=container, workers=0)
    assert tree(tmp_path / "again") == tree(tmp_path / "packed")
    rejected = (tmp_path / "packed" / "rejected.jsonl").read_text().splitlines()
    assert len(rejected) == 6 and "class1a/0.jpg" in rejected[0] and "not an image" in rejected[0]


def test_a_split_cut_off_must_not_meet_one_that_is_there(tmp_path: Path) -> None:
    source = tmp_path / "source"
    make_images(source / "train")
    make_images(source / "val", per_class=2)
    with pytest.raises(CorpusError, match="has a split 'val' already"):
        shardkit.pack(source, tmp_path / "packed", to="npy", val_fraction=0.2, workers=0)
    assert not (tmp_path / "packed").exists()  # it was seen before train was packed
    (source / "train").rename(source / "test")
    (source / "val").rename(source / "dev")
    with pytest.raises(CorpusError, match="no split 'train' to cut from, only dev, test"):
        shardkit.pack(source, tmp_path / "packed", to="npy", val_fraction=0.2, workers=0)


def test_what_a_failed_overwrite_spares(tmp_path: Path) -> None:
    shardkit.pack(make_images(tmp_path / "good"), tmp_path / "packed", to="npy", workers=0)
    before = tree(tmp_path / "packed")
    write(tmp_path / "docs" / "a.md", "no picture")
    with pytest.raises(CorpusError):
        shardkit.pack(
            tmp_path / "docs", tmp_path / "packed", to="npy", corpus="images", overwrite=True
        )
    assert tree(tmp_path / "packed") == before


def test_foreign_tars_with_repeated_keys_do_not_convert(tmp_path: Path) -> None:
    source = make_images(tmp_path / "source", per_class=2)
    (tmp_path / "tars").mkdir()
    for name in ("a.tar", "b.tar"):
        subprocess.run(["tar", "cf", tmp_path / "tars" / name, "-C", source, "."], check=True)
    assert len(shardkit.open(tmp_path / "tars")) == 6
    with pytest.raises(DataError, match="two samples have the key"):
        shardkit.convert(tmp_path / "tars", tmp_path / "out", to="npy", workers=0)


def test_damage_is_neither_converted_nor_unpacked(container: str, tmp_path: Path) -> None:
    shardkit.pack(make_images(tmp_path / "in", 2), tmp_path / "packed", to=container, workers=0)
    ds = shardkit.open(tmp_path / "packed")
    damage_picture(ds, 3)
    with pytest.raises(ChecksumError, match=r"class1/img\.001"):
        shardkit.convert(tmp_path / "packed", tmp_path / "other", to="npy", workers=0)
    with pytest.raises(ChecksumError):
        shardkit.unpack(tmp_path / "packed", tmp_path / "back")


def test_a_relative_path_outlives_a_change_of_folder(
    container: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    source = make_pairs(tmp_path / "in")
    shardkit.pack(source, tmp_path / "out", to=container, **OPTIONS)
    monkeypatch.chdir(tmp_path)
    ds = shardkit.open("out")
    assert ds.find(ds.keys()[2]) == 2
    unread = shardkit.open("out")
    (tmp_path / "elsewhere").mkdir()
    monkeypatch.chdir(tmp_path / "elsewhere")
    wanted = shardkit.open(tmp_path / "out")[3]
    for held in (ds, unread, pickle.loads(pickle.dumps(ds)), unread.select([0, 3])):
        assert same(held[min(3, len(held) - 1)], wanted)
        assert held.find("0000") == 0
