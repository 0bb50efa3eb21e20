"""What DALI is fed: a Loader's batches, as arrays, by number. DALI itself is not needed here."""

from __future__ import annotations

import io
import pickle
import tarfile
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from conftest import (
    EACH_FORMAT,
    make_arrays,
    make_images,
    make_pairs,
    pack_all,
    picture,
    run_python,
    write,
)
from hypothesis import given
from hypothesis import strategies as st

import shardkit
from shardkit import Loader
from shardkit.dali.external_source import ExternalSource, source
from shardkit.errors import DestinationError, SampleError, UsageError

CASES = [
    {},
    {"shuffle": "full", "seed": 7},
    {"shuffle": True, "last": "pad", "readahead": 0},
    {"shuffle": "block", "block_rows": 4, "window_blocks": 2, "seed": -3},
]


@pytest.fixture(scope="module")
def folders(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """One corpus of 55 pictures, in all formats."""
    return pack_all(tmp_path_factory.mktemp("dali"))


@pytest.fixture
def dataset(folders: dict[str, Path]) -> shardkit.Dataset:
    return shardkit.open(folders["webdataset"])


def info(iteration: int, epoch: int = 0) -> Any:
    """DALI's BatchInfo."""
    return SimpleNamespace(iteration=iteration, epoch_idx=epoch)


def batches(feed: ExternalSource, epoch: int = 0, first: int = 0) -> Iterator[tuple[Any, ...]]:
    """An epoch, as a pipeline asks for it."""
    number = first
    while True:
        try:
            batch = feed(info(number, epoch))
        except StopIteration:
            return
        yield batch
        number += 1


def plain(batch: tuple[Any, ...]) -> list[Any]:
    """Outputs that can be compared: uint8 arrays as bytes."""
    return [
        out.tolist() if isinstance(out, np.ndarray) else [value.tobytes() for value in out]
        for out in batch
    ]


FIELDS = ["__key__", "jpg", "cls"]


def from_loader(batch: dict[str, Any]) -> list[Any]:
    keys = [key.encode() for key in batch["__key__"]]
    return [keys, batch["jpg"], batch["cls"].tolist()]


# --- the Loader's order -------------------------------------------------------------------


@pytest.mark.parametrize("container", EACH_FORMAT)
@pytest.mark.parametrize("options", CASES)
def test_the_same_batches_as_a_loader(
    container: str, options: dict[str, Any], folders: dict[str, Path]
) -> None:
    dataset = shardkit.open(folders[container])
    for rank, world_size in [(0, 1), (0, 3), (2, 3)]:
        ranks = {"rank": rank, "world_size": world_size}
        feed = source(dataset, 4, fields=FIELDS, **ranks, **options)
        loader = Loader(dataset, 4, with_keys=True, workers=0, **ranks, **options)
        for epoch in range(3):
            expected = [from_loader(batch) for batch in loader]
            assert [plain(batch) for batch in batches(feed, epoch)] == expected
            assert len(expected) == len(feed)


def test_padding_is_said(dataset: shardkit.Dataset) -> None:
    feed = source(dataset, 8, fields=["valid"], last="pad", rank=1, world_size=2)
    loader = Loader(dataset, 8, last="pad", rank=1, world_size=2, workers=0)
    expected = [batch["valid"].tolist() for batch in loader]
    assert [out.tolist() for (out,) in batches(feed)] == expected
    assert not all(expected[-1])


@given(st.data())
def test_any_batch_at_any_time(data: st.DataObject) -> None:
    """DALI fetches ahead, asks beyond the end, and asks several workers."""
    feed = source(Numbers(50), 4, fields=["row"], shuffle="full", rank=0, world_size=1)
    epoch = data.draw(st.integers(0, 5))
    in_order = [out.tolist() for (out,) in batches(feed, epoch)]
    asked = data.draw(st.lists(st.integers(0, 20)))
    copy = pickle.loads(pickle.dumps(feed))
    for number in asked:
        if number < len(in_order):
            assert feed(info(number, epoch))[0].tolist() == in_order[number]
            assert copy(info(number, epoch))[0].tolist() == in_order[number]
        else:
            with pytest.raises(StopIteration):
                feed(info(number, epoch))


class Numbers:
    """A source of one's own."""

    def __init__(self, num_rows: int) -> None:
        self.num_rows = num_rows

    def __len__(self) -> int:
        return self.num_rows

    def read(self, rows: Any) -> dict[str, Any]:
        return {"row": rows, "text": [f"é{row}" for row in rows], "odd": [object()] * len(rows)}


# --- states -------------------------------------------------------------------------------


@pytest.mark.parametrize("received", [0, 3, 6])
def test_a_loader_goes_on_where_dali_was_and_back(received: int, dataset: shardkit.Dataset) -> None:
    options = {"shuffle": "full", "seed": 3}
    feed = source(dataset, 8, fields=FIELDS, **options)
    state = feed.state_dict(1, received)
    loader = Loader(dataset, 4, with_keys=True, workers=0, rank=0, world_size=2, **options)
    loader.load_state_dict(state)
    left = [batch["__key__"] for batch in loader]
    assert (loader.epoch, len(left)) == (2, 6 - received)
    again = source(dataset, 8, fields=FIELDS, **options)
    again.load_state_dict(state)
    found = [plain(batch) for batch in batches(again)]
    assert found == [plain(batch) for batch in batches(feed, 1, received)]
    assert [[key.decode() for key in keys[:4]] for keys, *_ in found] == left
    # The pipeline's next epoch is a whole one, of the loop's epoch 2.
    assert [plain(b) for b in batches(again, 1)] == [plain(b) for b in batches(feed, 2)]
    assert again.epoch == 1
    assert again.state_dict(1, 0) == state
    if received < 6:
        assert again.state_dict(1, 1) == feed.state_dict(1, received + 1)


def test_its_states_are_those_of_a_loader(dataset: shardkit.Dataset) -> None:
    options = {"shuffle": "block", "seed": 3, "block_rows": 8}
    feed, loader = source(dataset, 8, **options), Loader(dataset, 8, workers=0, **options)
    for number, _ in enumerate(loader):
        # Of a transform a loader's state says that there is none; here the pipeline is one.
        assert feed.state_dict(0, number + 1) | {"made_by": None} == loader.state_dict()
    with pytest.raises(UsageError, match="epoch 0 has 6 batches here, not 7"):
        feed.state_dict(0, 7)
    with pytest.raises(UsageError, match="its seed is 3, here it is 4"):
        source(dataset, 8, **{**options, "seed": 4}).load_state_dict(loader.state_dict())


# --- values -------------------------------------------------------------------------------


def test_pictures_are_views_and_labels_one_array(folders: dict[str, Path]) -> None:
    dataset = shardkit.open(folders["npy"])
    jpegs, labels = source(dataset, 4)(info(0))
    assert isinstance(labels, np.ndarray) and labels.dtype == np.int64 and labels.shape == (4,)
    assert [jpeg.dtype for jpeg in jpegs] == 4 * [np.uint8]
    assert not any(jpeg.flags.owndata or jpeg.flags.writeable for jpeg in jpegs)
    assert [jpeg.tobytes() for jpeg in jpegs] == [dataset[i]["jpg"] for i in range(4)]


def test_all_kinds_of_pictures_are_the_first_output(tmp_path: Path) -> None:
    """ImageNet has a PNG that is called .JPEG, and shardkit calls its field png."""
    folder = make_images(tmp_path / "source", per_class=3)
    write(folder / "class0" / "img.001.jpg", picture(1, kind="PNG"))
    shardkit.pack(folder, tmp_path / "out", to="lmdb", workers=0, progress=False)
    dataset = shardkit.open(tmp_path / "out")
    pictures, labels = source(dataset, 9)(info(0))
    originals = [path.read_bytes() for path in sorted(folder.rglob("*.jpg"))]
    assert [value.tobytes() for value in pictures] == originals
    assert labels.tolist() == [0, 0, 0, 1, 1, 1, 2, 2, 2]
    with pytest.raises(SampleError, match=r"'class0/img.001'.*has no jpg; name what it has"):
        source(dataset, 9, fields=["jpg"])(info(0))
    (pictures,) = source(dataset, 9, fields=["jpg"], missing="empty")(info(0))
    assert [value.size == 0 for value in pictures] == [i == 1 for i in range(9)]
    (pictures,) = source(dataset, 9, fields=["png;jpg"])(info(0))
    assert [value.tobytes() for value in pictures] == originals


def test_absent_and_empty_values_text_and_arrays(tmp_path: Path) -> None:
    shardkit.pack(
        make_pairs(tmp_path / "source"), tmp_path / "out", to="hdf5", workers=0, progress=False
    )
    dataset = shardkit.open(tmp_path / "out")
    (texts,) = source(dataset, 13, fields=["txt"], missing="empty")(info(0))
    expected = [(dataset[i].get("txt") or "").encode() for i in range(13)]
    assert [value.tobytes() for value in texts] == expected
    assert "" in dataset.read([*range(13)])["txt"] and None in dataset.read([*range(13)])["txt"]
    for missing in ("empty", "fail"):
        with pytest.raises(SampleError, match=r"'dotted.dir/IMG 50%'.*has no cls"):
            source(dataset, 13, fields=["cls"], missing=missing)(info(0))
    with pytest.raises(UsageError, match="field json holds dict, and DALI takes bytes"):
        source(dataset.select([0]), 1, fields=["json"])(info(0))
    raw = shardkit.open(tmp_path / "out", decode=False).select([0])
    (values,) = source(raw, 1, fields=["json"])(info(0))
    assert values[0].tobytes() == (tmp_path / "source" / "0000.json").read_bytes()


@pytest.mark.parametrize("ragged", [False, True])
def test_arrays(ragged: bool, tmp_path: Path) -> None:
    shardkit.pack(
        make_arrays(tmp_path / "a", ragged), tmp_path / "x", to="npy", workers=0, progress=False
    )
    (arrays,) = source(shardkit.open(tmp_path / "x"), 10, fields=["npy"])(info(0))
    for i, array in enumerate(arrays):
        assert array.dtype == np.int16 and (array == i).all()
        assert array.shape == ((i if ragged else 4), 5)


def test_a_source_of_ones_own() -> None:
    rows, texts = source(Numbers(9), 2, fields=["row", "text"])(info(1))
    assert rows.tolist() == [2, 3]
    assert [text.tobytes().decode() for text in texts] == ["é2", "é3"]
    with pytest.raises(UsageError, match="field odd holds object"):
        source(Numbers(9), 2, fields=["odd"])(info(0))
    with pytest.raises(UsageError, match="no field 'jpg' here, only row, text, odd"):
        source(Numbers(9), 2, fields=["jpg"])(info(0))


def test_numbers_in_lists_and_other_byte_orders() -> None:
    class Odd(Numbers):
        def read(self, rows: Any) -> dict[str, Any]:
            return {"big": rows.astype(">i4"), "list": rows.tolist(), "wide": rows.astype("c16")}

    big, scalars = source(Odd(9), 2, fields=["big", "list"])(info(1))
    assert big.dtype == np.dtype("i4") and big.dtype.isnative and big.tolist() == [2, 3]
    assert scalars.tolist() == [2, 3]
    with pytest.raises(UsageError, match="field wide holds ndarray"):
        source(Odd(9), 2, fields=["wide"])(info(1))


# --- calls that make no sense -------------------------------------------------------------


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"batch_size": 0}, "batch_size must be at least 1, got 0"),
        ({"last": "some"}, "last must be 'drop', 'pad' or 'keep', got 'some'"),
        ({"missing": "skip"}, "missing must be 'fail' or 'empty', got 'skip'"),
        ({"fields": "jpg"}, "fields must be a list of names, one an output, got 'jpg'"),
        ({"fields": []}, "fields must be a list of names"),
        ({"fields": ["jpg;gif", "cls"]}, "no field 'gif' here, only cls, jpg"),
    ],
)
def test_options_that_make_no_sense(
    options: dict[str, Any], message: str, dataset: shardkit.Dataset
) -> None:
    with pytest.raises(UsageError, match=message):
        source(dataset, **{"batch_size": 4, **options})


def test_sources_that_make_no_sense(dataset: shardkit.Dataset) -> None:
    with pytest.raises(UsageError, match="list cannot be fed from"):
        source([1, 2], 1, fields=["x"])  # type: ignore[arg-type]
    with pytest.raises(UsageError, match="name its fields: this dataset has no pictures"):
        source(Numbers(5), 1)
    with pytest.raises(UsageError, match="__key__: a Numbers has no keys"):
        source(Numbers(5), 1, fields=["__key__"])
    with pytest.raises(UsageError, match=r"no field 'valid' here.*it needs last='pad'"):
        source(dataset, 1, fields=["valid"])(info(0))


@pytest.mark.parametrize(
    "asked", [0, SimpleNamespace(idx_in_batch=0, iteration=0, epoch_idx=0), None]
)
def test_other_ways_to_be_asked(asked: Any, dataset: shardkit.Dataset) -> None:
    with pytest.raises(UsageError, match="batch=True, batch_info=True"):
        source(dataset, 4)(asked)


def test_torch_is_not_needed(folders: dict[str, Path]) -> None:
    code = (
        "import sys; sys.modules['torch'] = None; import shardkit, types;"
        f"feed = shardkit.dali.source(shardkit.open({str(folders['lmdb'])!r}), 4, last='pad');"
        "print(len(feed(types.SimpleNamespace(iteration=0, epoch_idx=0))[0]))"
    )
    assert run_python(code) == "4\n"


# --- write_index --------------------------------------------------------------------------


def test_an_index_for_a_dataset_packed_without(folders: dict[str, Path], tmp_path: Path) -> None:
    source_folder = folders["webdataset"].parent / "source"
    options = {"to": "webdataset", "shard_size": "8kB", "progress": False}
    shardkit.pack(source_folder, tmp_path / "with", dali_index=True, **options)
    shardkit.pack(source_folder, tmp_path / "without", **options)
    made = shardkit.dali.write_index(tmp_path / "without")
    assert [path.name for path in made] == sorted(p.name for p in tmp_path.glob("with/*.idx"))
    assert len(made) > 1
    for path in made:
        assert path.parent == tmp_path / "without"
        assert path.read_bytes() == (tmp_path / "with" / path.name).read_bytes()
    assert shardkit.verify(tmp_path / "without").ok
    (tmp_path / "with" / made[1].name).unlink()
    assert not shardkit.verify(tmp_path / "with").ok
    shardkit.dali.write_index(str(tmp_path / "with"))
    assert shardkit.verify(tmp_path / "with").ok


def test_an_index_in_another_folder(folders: dict[str, Path], tmp_path: Path) -> None:
    before = sorted(folders["webdataset"].iterdir())
    made = shardkit.dali.write_index(folders["webdataset"], tmp_path)
    assert sorted(tmp_path.iterdir()) == sorted(made)
    assert sorted(folders["webdataset"].iterdir()) == before


def test_an_index_of_tars_made_by_others(tmp_path: Path) -> None:
    for number, split in enumerate(["train", "val"]):
        with tarfile.open(tmp_path / f"set-{split}.tar", "w", format=tarfile.USTAR_FORMAT) as tar:
            for name in (f"a {number}.JPG", f"a {number}.cls", "no extension", "é.jpg"):
                member = tarfile.TarInfo(name)
                member.size = 3
                tar.addfile(member, io.BytesIO(b"abc"))
    made = shardkit.dali.write_index(tmp_path)
    assert made == [tmp_path / "set-train.idx", tmp_path / "set-val.idx"]
    assert made[1].read_text(encoding="utf-8") == (
        "v1.2 2\ncls 1536 3 a%201.cls jpg 512 3 a%201.jpg\njpg 3584 3 é.jpg\n"
    )
    made[0].unlink()
    assert shardkit.dali.write_index(tmp_path / "set-train.tar") == made[:1]
    made[0].write_bytes(b"my own notes")
    with pytest.raises(DestinationError, match=r"set-train\.idx is no index of DALI's"):
        shardkit.dali.write_index(tmp_path)
    assert made[0].read_bytes() == b"my own notes"


def test_only_tars_have_an_index(folders: dict[str, Path]) -> None:
    with pytest.raises(UsageError, match="holds lmdb, and DALI reads tars"):
        shardkit.dali.write_index(folders["lmdb"])
