"""DALI itself, on the CPU, reads both ways: our external source, and its own reader of tars.

``make test-dali`` installs DALI in an environment of its own, and runs these there.
"""

from __future__ import annotations

import io
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from conftest import CONTAINERS, make_images, make_pairs, write
from PIL import Image
from test_readme import TEXTS, blocks, commands, needs_dali

import shardkit

pytest.importorskip("nvidia.dali", reason="DALI is not installed here; `make test-dali` does")

from nvidia.dali import fn
from nvidia.dali.pipeline import Pipeline

# DALI leaves the sockets of its worker processes to the garbage collector, whenever that comes.
pytestmark = pytest.mark.filterwarnings("ignore:unclosed <socket:ResourceWarning")

ROOT = Path(__file__).parent.parent
SIZE = 4


def jpeg(seed: int, size: tuple[int, int] = (40, 56)) -> bytes:
    """A picture that JPEG changes little: waves, in colour."""
    y, x = np.mgrid[0 : size[0], 0 : size[1]]
    waves = [np.sin((x * a + y * b + seed) / 9) for a, b in ((1, 0), (0, 1), (1, 1))]
    pixels = (np.stack(waves, axis=-1) * 100 + 128).astype(np.uint8)
    out = io.BytesIO()
    Image.fromarray(pixels).save(out, "JPEG", quality=90)
    return out.getvalue()


@pytest.fixture(scope="module")
def folders(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """55 small pictures in classes, one with spaces in its name, in all formats."""
    root = tmp_path_factory.mktemp("dali")
    for c, name in enumerate(["class0", "golden retriever", "ümlaut"]):
        for i in range(11):
            write(root / "source" / name / f"img {i}.x.jpg", jpeg(100 * c + i, (30 + i, 40 + c)))
    for container in CONTAINERS:
        options = {"dali_index": container == "webdataset", "shard_size": "8kB"}
        shardkit.pack(root / "source", root / container, to=container, progress=False, **options)
    return {container: root / container for container in CONTAINERS}


def fed(feed: Any, num_outputs: int, **options: Any) -> Pipeline:
    """A pipeline that gives out what it is fed."""
    parallel = {name: options.pop(name) for name in [*options] if name.startswith("py_")}
    with Pipeline(batch_size=SIZE, num_threads=2, device_id=None, **parallel) as pipeline:
        kinds = {"batch": True, "batch_info": True, **options}
        pipeline.set_outputs(*fn.external_source(source=feed, num_outputs=num_outputs, **kinds))
    return pipeline


def tars(folder: Path, ext: list[str], **options: Any) -> Pipeline:
    """A pipeline that gives out what DALI's own reader finds, in the order of the tars."""
    paths = sorted(folder.glob("*.tar"))
    indexes = [str(path.with_suffix(".idx")) for path in paths]
    with Pipeline(batch_size=SIZE, num_threads=2, device_id=None) as pipeline:
        made = fn.readers.webdataset(
            paths=[*map(str, paths)], index_paths=indexes, ext=ext, name="reader", **options
        )
        pipeline.set_outputs(*(made if isinstance(made, list | tuple) else [made]))
    return pipeline


def samples(batch: Any) -> Iterator[tuple[Any, ...]]:
    """The samples of a batch: bytes as bytes, numbers as int."""
    for values in zip(*batch, strict=True):
        arrays = [np.array(value) for value in values]
        yield tuple(a.tobytes() if a.dtype == np.uint8 else a.tolist() for a in arrays)


def epoch(pipeline: Pipeline) -> list[tuple[Any, ...]]:
    """All samples up to the end of an epoch."""
    found = []
    try:
        while True:
            found += samples(pipeline.run())
    except StopIteration:
        pipeline.reset()
    return found


def in_order(dataset: shardkit.Dataset, number: int, **options: Any) -> list[tuple[Any, ...]]:
    """(key, jpg, cls) in the order of an epoch, less what fills no batch."""
    order = shardkit.Order(len(dataset), epoch=number, **options)
    rows = order.rows(np.arange(len(dataset) // SIZE * SIZE))
    found = dataset.read(rows)
    jpegs, labels = [bytes(value) for value in found["jpg"]], np.asarray(found["cls"]).tolist()
    return [*zip([key.encode() for key in dataset.keys(rows)], jpegs, labels, strict=True)]


FIELDS = ["__key__", "jpg", "cls"]


# --- external source ----------------------------------------------------------------------


@pytest.mark.parametrize("container", CONTAINERS)
@pytest.mark.parametrize("shuffle", [None, "full"])
def test_it_reads_any_format_in_shardkit_order(
    container: str, shuffle: Any, folders: dict[str, Path]
) -> None:
    dataset = shardkit.open(folders[container])
    options = {"shuffle": shuffle, "seed": 5}
    pipeline = fed(shardkit.dali.source(dataset, SIZE, fields=FIELDS, **options), 3)
    for number in range(3):
        assert epoch(pipeline) == in_order(dataset, number, **options)


@pytest.mark.parametrize("method", ["spawn", "fork"])
def test_worker_processes_read_the_same(method: str, folders: dict[str, Path]) -> None:
    dataset = shardkit.open(folders["lmdb"])
    feed = shardkit.dali.source(dataset, SIZE, fields=FIELDS, shuffle="full")
    processes = {"parallel": True, "py_num_workers": 2, "py_start_method": method}
    pipeline = fed(feed, 3, **processes)
    if method == "fork":
        pipeline.start_py_workers()
    pipeline.build()
    for number in range(2):
        assert epoch(pipeline) == in_order(dataset, number, shuffle="full")


@pytest.mark.parametrize("received", [0, 3, 8])
def test_a_pipeline_goes_on_where_another_was(received: int, folders: dict[str, Path]) -> None:
    dataset = shardkit.open(folders["npy"])
    feed = shardkit.dali.source(dataset, SIZE, fields=FIELDS, shuffle="full")
    state = feed.state_dict(1, received)
    again = shardkit.dali.source(dataset, SIZE, fields=FIELDS, shuffle="full")
    again.load_state_dict(state)
    pipeline = fed(again, 3)
    assert epoch(pipeline) == in_order(dataset, 1, shuffle="full")[received * SIZE :]
    assert epoch(pipeline) == in_order(dataset, 2, shuffle="full")


def test_dali_keeps_checkpoints_of_its_own(folders: dict[str, Path]) -> None:
    def pipeline(checkpoint: Any = None) -> Pipeline:
        feed = shardkit.dali.source(
            shardkit.open(folders["npy"]), SIZE, fields=["__key__"], shuffle="full"
        )
        options = {"enable_checkpointing": True, "checkpoint": checkpoint}
        with Pipeline(batch_size=SIZE, num_threads=2, device_id=None, **options) as made:
            (keys,) = fn.external_source(source=feed, num_outputs=1, batch=True, batch_info=True)
            made.set_outputs(keys)
        return made

    first = pipeline()
    epoch(first)
    for _ in range(3):
        first.run()
    assert epoch(pipeline(first.checkpoint())) == epoch(first)


# --- tars ---------------------------------------------------------------------------------


def test_its_own_reader_finds_the_same_by_our_index(folders: dict[str, Path]) -> None:
    dataset = shardkit.open(folders["webdataset"])
    pipeline = tars(folders["webdataset"], ["jpg", "cls"])
    pipeline.build()
    assert pipeline.epoch_size("reader") == len(dataset)
    found = [s for _ in range(len(dataset) // SIZE) for s in samples(pipeline.run())]
    assert [(data, int(digits)) for data, digits in found] == [
        (data, label) for _, data, label in in_order(dataset, 0, shuffle=None)
    ]


def test_absent_fields_are_empty_to_both(tmp_path: Path) -> None:
    options = {"to": "webdataset", "shard_size": "2kB", "progress": False, "dali_index": True}
    shardkit.pack(make_pairs(tmp_path / "source"), tmp_path / "out", **options)
    dataset = shardkit.open(tmp_path / "out")
    fields = ["jpg", "txt", "json"]
    theirs, whole = tars(tmp_path / "out", fields), len(dataset) // SIZE
    raw = shardkit.open(tmp_path / "out", decode=False)
    ours = fed(shardkit.dali.source(raw, SIZE, fields=fields, missing="empty"), 3)
    found = epoch(ours)
    assert found == [s for _ in range(whole) for s in samples(theirs.run())]
    assert any(text == b"" for _, text, _ in found) and all(data for data, _, _ in found)


def test_our_index_is_that_of_wds2idx(tmp_path: Path) -> None:
    from wds2idx import IndexCreator

    def theirs(tar: Path) -> bytes:
        with IndexCreator(str(tar), str(tmp_path / "theirs"), verbose=False) as creator:
            creator.create_index()
        return (tmp_path / "theirs").read_bytes()

    options = {"to": "webdataset", "shard_size": "2kB", "progress": False, "dali_index": True}
    make_pairs(tmp_path / "pairs")
    (tmp_path / "pairs" / "dotted.dir" / "IMG 50%.jpg").unlink()
    (tmp_path / "pairs" / "dotted.dir" / "IMG 50%.txt").unlink()
    write(tmp_path / "pairs" / ("long" * 40 + ".txt"), "a name that needs a pax header")
    for source in (tmp_path / "pairs", make_images(tmp_path / "images")):
        dest = tmp_path / f"{source.name}-tars"
        shardkit.pack(source, dest, **options)
        for tar in sorted(dest.glob("*.tar")):
            assert tar.with_suffix(".idx").read_bytes() == theirs(tar)


# --- pixels -------------------------------------------------------------------------------


def test_pixels_are_those_of_pillow(folders: dict[str, Path]) -> None:
    """Of DALI's CPU decoder, both ways. Both decode by libjpeg-turbo: what differs is rounding."""
    dataset = shardkit.open(folders["webdataset"])
    feed = shardkit.dali.source(dataset, SIZE)
    with Pipeline(batch_size=SIZE, num_threads=2, device_id=None) as ours:
        jpegs, labels = fn.external_source(source=feed, num_outputs=2, batch=True, batch_info=True)
        ours.set_outputs(fn.decoders.image(jpegs, device="cpu"), labels)
    paths = sorted(map(str, folders["webdataset"].glob("*.tar")))
    indexes = [path.replace(".tar", ".idx") for path in paths]
    with Pipeline(batch_size=SIZE, num_threads=2, device_id=None) as theirs:
        data = fn.readers.webdataset(paths=paths, index_paths=indexes, ext=["jpg"])
        theirs.set_outputs(fn.decoders.image(data, device="cpu"))
    for start in range(0, len(dataset) - SIZE, SIZE):
        (images, _), (same,) = ours.run(), theirs.run()
        for i in range(SIZE):
            with Image.open(io.BytesIO(dataset[start + i]["jpg"])) as opened:
                expected = np.asarray(opened.convert("RGB")).astype(int)
            pixels = np.array(images[i]).astype(int)
            assert pixels.shape == expected.shape
            assert np.abs(pixels - expected).max() <= 2
            assert (pixels == np.array(same[i])).all()


# --- what people run ----------------------------------------------------------------------


@pytest.mark.parametrize("reader", ["shardkit", "tar"])
@pytest.mark.parametrize("has_index", [True, False])
def test_the_example(
    reader: str, has_index: bool, folders: dict[str, Path], tmp_path: Path
) -> None:
    dataset = folders["webdataset"]
    if not has_index:
        dataset = tmp_path / "plain"
        shardkit.convert(folders["npy"], dataset, to="webdataset", progress=False)
    script = [sys.executable, str(ROOT / "scripts" / "examples" / "dali_pipeline.py"), str(dataset)]
    options = ["--reader", reader, "--batch-size", "5", "--size", "32", "--threads", "2"]
    env = {**os.environ, "PYTHONPATH": str(ROOT)}
    done = subprocess.run([*script, *options], capture_output=True, text=True, env=env)
    assert done.returncode == 0, done.stderr
    lines = done.stdout.splitlines()
    assert [line.partition(",")[0] for line in lines] == [f"epoch {i}: 30 images" for i in (0, 1)]


def test_the_page_about_dali(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for c in range(3):
        for i in range(12):
            write(tmp_path / "pictures" / f"class{c}" / f"img.{i:03d}.jpg", jpeg(i + 100 * c))
    monkeypatch.chdir(tmp_path)
    env = {**os.environ, "PYTHONPATH": str(ROOT)}
    page = TEXTS["docs/dali.md"]
    for words in commands(page, "shardkit"):
        subprocess.run([sys.executable, "-m", *words], check=True, env=env)
    namespace: dict[str, Any] = {"__name__": "page"}
    code = [block for block in blocks(page) if needs_dali(block)]
    for block in code:
        exec(compile("\n" * (block.line - 1) + block.text, "dali.md", "exec"), namespace)
    assert len(code) == 2
    state = namespace["checkpoint"]
    assert (state["epoch"], state["position"]) == (1, 32)


@pytest.mark.parametrize("container", CONTAINERS)
def test_what_info_says_runs(container: str, folders: dict[str, Path]) -> None:
    scope: dict[str, Any] = {}
    exec(compile(shardkit.info(folders[container]).recipes["DALI"], "info --open", "exec"), scope)
    (pictures,) = scope["outputs"]
    first = shardkit.open(folders[container], decode=False).read(range(8))["jpg"]
    assert [bytes(np.array(pictures[i])) for i in range(8)] == [bytes(data) for data in first]
