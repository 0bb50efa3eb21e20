"""Folders of any layout: no file is lost or called something else without a word.

Each file is a part of one sample, or of one reject, or an annotation file that was read, or counted
as passed over by its ending; or the folder is refused, in one line. Nothing is a class that is not
a folder, and folders called ``images`` and ``masks`` are never two classes. Of folders that nobody
called classes, no class is called as a split, none is without a sample, and none stands alone above
several folders.
"""

from __future__ import annotations

import io
import json
import os
import re
import tarfile
import tempfile
from collections import Counter
from functools import cache
from pathlib import Path
from typing import Any

import h5py
import numpy as np
import pyarrow as pa
from conftest import examples, tree, write
from hypothesis import example, given
from hypothesis import strategies as st
from layouts import JPG, PNG, check_run, coco, csv_of
from pyarrow import parquet as pq

import shardkit
from shardkit.errors import ShardkitError
from shardkit.inputs.corpus import Corpus, Run
from shardkit.inputs.detection import CORPORA, from_spec, open_corpus
from shardkit.inputs.file_parts import PartsCorpus
from shardkit.inputs.files import extension, join
from shardkit.samples.sample import unpack_paths


def words(text: str) -> list[str]:
    return text.split()


FOLDERS = words(
    """
. images masks labels annotations depth cat dog data train val train/images train/masks train/labels
val/images val/masks images/train masks/train images/val labels/train cat/images cat/masks cat/a
images/a masks/a annotations/trimaps train2017 val2017 image_2 label_2 photos
train_masks train_images test training images/training masks/training
"""
)

CLASS_FOLDERS = words(
    """
cat dog cat/a cat/b cat/a/b train/cat train/dog val/cat val/dog Train/cat VAL/dog val_set/cat
train-2012/cat train_2012/dog training/cat TEST/cat test2017/dog data/cat data/dog data/train/cat
data/val/cat train/data/cat train/data/dog val/data/cat wrap/data/cat wrap/data/dog meta extra/cat
train test train/cat/a train/cat/b pos neg train/pos test/neg . Validation/dog dev/dog test/pos/x
"""
)

STEMS = words("0 1 2 00 a b a_mask b_mask a.mask a_seg_1 a_x b_x a_y b_y x.y README classes IMG.1")

ENDINGS = words(".jpg .JPEG .png .gif .txt .json .npy .xml .csv .cls .nii.gz")
ENDINGS += ["", ".x y", "."]

CONTAINERS = words(".jsonl .parquet .npz .h5 .tar .mp3 .MP4 .bin")
"""Endings of other kinds, which may be strays here."""

KINDS = {"images", "paired", "companions", "parallel", "metadata", "coco", "text"}
KINDS |= {"arrays", "media", "files"}
"""Kinds whose entries are whole files; of others, many entries may lie in one file."""

CLASS_KINDS = {"images", "media", "text", "companions", "metadata"}
"""Kinds whose classes are folders."""

LISTED = {"metadata", "coco"}
"""Kinds of values that an annotation file has."""

SPLIT = re.compile(
    r"(train(ing)?|val(id|idation)?|test(ing)?|dev)([-_ ]?(19|20)[0-9]{2}|[-_ ](set|split|data))?",
    re.IGNORECASE,
)

LISTS = ["metadata.csv", "metadata.jsonl", "instances_train.json", "data.yaml"]


def contents(path: str, seed: int) -> bytes:
    """Return what a file of this ending holds, different for each."""
    own = f" {seed}".encode()
    heads = {".jpg": JPG, ".jpeg": JPG, ".png": PNG, ".gif": b"GIF89a"}
    ending = extension(path.rpartition("/")[2])
    if ending == ".npy":
        np.save(out := io.BytesIO(), np.full(3, seed))
        return out.getvalue()
    if ending == ".json":
        return json.dumps({"n": seed}).encode()
    if ending in CONTAINERS:
        return container(ending)
    return own.strip() if ending == ".cls" else heads.get(ending, path.encode()) + own


@cache
def container(ending: str) -> bytes:
    """Return three rows, as a library writes them."""
    out, rows = io.BytesIO(), np.arange(3)
    if ending == ".tar":
        tarfile.open(fileobj=out, mode="w").close()
    elif ending == ".jsonl":
        out.write(b'{"text": "a"}\n' * 3)
    elif ending == ".parquet":
        pq.write_table(pa.table({"text": ["a", "b", "c"]}), out)
    elif ending == ".npz":
        np.savez(out, a=rows)
    elif ending == ".h5":
        with h5py.File(out, "w") as file:
            file["a"] = rows
    return out.getvalue() or f"whatever {ending} holds".encode()


def listed(name: str, names: list[str]) -> str:
    """Return an annotation file of some images."""
    if name == "metadata.csv":
        rows = [{"file_name": n, "k": i, "text": f"t{i}"} for i, n in enumerate(names)]
        return csv_of(rows, ("file_name", "k", "text"))
    if name == "metadata.jsonl":
        lines = [{"file_name": n, "k": [i]} for i, n in enumerate(names)]
        return "".join(json.dumps(line) + "\n" for line in lines)
    if name == "data.yaml":
        return "names: [one, two]\n"
    return json.dumps(coco(names))


def grids_of(folders: list[str], endings: st.SearchStrategy[list[str]]) -> Any:
    """Return folders that hold files of the same stems."""
    return st.builds(
        lambda folders, stems, endings: [
            f"{folder}/{stem}{ending}".removeprefix("./")
            for folder, ending in zip(folders, endings, strict=False)
            for stem in stems
        ],
        st.lists(st.sampled_from(folders), min_size=1, max_size=4),
        st.lists(st.sampled_from(STEMS), min_size=1, max_size=5),
        endings,
    )


any_endings = st.lists(st.sampled_from([*ENDINGS, *CONTAINERS]), min_size=4, max_size=4)
one_ending = st.sampled_from([".jpg", ".jpg", ".txt", ".mp3", ".npy", ".md"]).map(lambda e: [e] * 4)
grids = grids_of(FOLDERS, any_endings) | grids_of(CLASS_FOLDERS, one_ending)

annotation_files = st.tuples(
    st.sampled_from([".", "annotations", "images", "train"]),
    st.sampled_from(LISTS),
    st.integers(0, 9),
)

layouts = st.tuples(
    st.lists(grids, max_size=4),
    st.lists(annotation_files, max_size=2),
    st.one_of(st.none(), st.sampled_from([kind for kind in CORPORA if kind != "hf"])),
)


def make(root: Path, parts: list[list[str]], lists: list[tuple[str, str, int]]) -> Path:
    """Write all files that can stand beside one another."""
    paths = dict.fromkeys(path for part in parts for path in part)
    for seed, path in enumerate(paths):
        if not (root / path).is_dir():
            write(root / path, contents(path, seed))
    for base, name, seed in lists:
        beside = [p for p in sorted(tree(root)) if extension(p) in (".jpg", ".png", ".gif")]
        own = [p.removeprefix(f"{base}/") for p in beside][seed % 3 :]
        if name == "instances_train.json":
            own = [p.rpartition("/")[2] for p in own]
        write(root / base / name, listed(name, own + ["gone.jpg"] * (seed == 9)))
    return root


def files_of(corpus: Corpus, run: Run) -> list[str]:
    """Return the files that the entries of a run are made of."""
    if corpus.kind not in KINDS:
        path = corpus.source / run.base
        if path.is_file():
            return [run.base]
        return [join(run.base, p.name) for p in path.glob("*.npy")]
    names = [os.fsdecode(locator) for locator in run.locators]
    if isinstance(corpus, PartsCorpus):
        names = [
            part.path for one in map(corpus.decode, run.locators, run.keys) for part in one.parts
        ]
    return [join(run.base, name) for name in names]


def check(source: Path, corpus: Corpus) -> None:
    """Check what the module says of a source that was opened."""
    are_whole = corpus.kind in KINDS
    before = tree(source)
    entered: Counter[str] = Counter()
    restored: Counter[str] = Counter()
    labelled: dict[str, list[str]] = {}
    spoilt: set[str] = set()
    for run in corpus.runs(source.parent / "scratch"):
        check_run(run)
        entered.update(files_of(corpus, run))
        again = from_spec(source, json.loads(json.dumps(corpus.spec())))
        batch = again.read(run, source.parent / "scratch")
        assert len(batch) + len(batch.rejects) == len(run)
        assert len({*batch.keys}) == len(batch)
        spoilt.update(part for path, _ in batch.rejects for part in path.split("/")[:2])
        for i in range(len(batch)):
            fields = batch.fields(i)
            assert fields, "a sample holds something"
            found = unpack_paths(batch.keys[i], batch.paths[i], [*fields])
            for name, path, offset in found if are_whole else ():
                text = path.decode()
                assert offset is None
                restored[text] += 1
                if text in entered:
                    assert bytes(fields[name]) == before[text], (text, name)
            if "cls" in fields and "cls" not in {name for name, _, _ in found}:
                assert corpus.classes is not None
                label = int(bytes(fields["cls"]))
                name = corpus.classes[label]
                labelled.setdefault(name, []).append(found[0][1].decode())
                assert name in found[0][1].decode().split("/")[:2]
    if are_whole:
        assert max(entered.values(), default=1) == 1, "no file is in two entries"
    assert max(restored.values(), default=1) == 1, "no file is restored twice"
    used = {*corpus.spec().get("annotations", {})}
    assert used <= before.keys() and used.isdisjoint(entered)
    rest = before.keys() - entered.keys() - used
    if not are_whole:  # a file of no lines has no entry
        rest = {path for path in rest if before[path] or extension(path) in corpus.ignored}
    counted = {ending: count for ending, count in corpus.ignored.items() if ending != "hidden"}
    assert counted == Counter(extension(path.rpartition("/")[2]) for path in rest)
    if corpus.kind in CLASS_KINDS and corpus.classes and not given_kind(corpus):
        if corpus.kind in LISTED:  # it may name pictures of some classes alone
            for path in sorted(before):
                if path.lower().endswith((".jpg", ".jpeg", ".png", ".gif")):
                    name = next((n for n in path.split("/")[:-1][:2] if n in corpus.classes), "")
                    labelled.setdefault(name, [path] if name else [])
            labelled.pop("", None)
        check_classes(corpus.classes, labelled, spoilt)
    if corpus.kind == "images" and corpus.classes:
        held = {path.partition("/")[0] for path in entered}
        assert not {"images", "masks"} <= held or given_kind(corpus) == "images"


def check_classes(classes: list[str], labelled: dict[str, list[str]], spoilt: set[str]) -> None:
    """Check folders that were taken for classes, where nobody had called them so."""
    assert set(classes) - spoilt <= labelled.keys() <= set(classes), "no class is without a sample"
    for name in labelled:
        inner = [below(path, name) for path in labelled[name]]
        if SPLIT.fullmatch(name):  # one alone may be a class of trains, with a folder among many
            others = [other for other in classes if not SPLIT.fullmatch(other)]
            assert len(others) == len(classes) - 1 > 0 and not any(inner)
        assert len(classes) > 1 or not forks(inner), "no class stands alone above several"


def below(path: str, name: str) -> list[str]:
    """Return the folders between that of a class and a file."""
    parts = path.split("/")[:-1]
    return parts[parts.index(name, 0, 2) + 1 :]


def forks(inner: list[list[str]]) -> bool:
    """Return True if files lie in several folders side by side, at the first depth that has any."""
    while inner:
        if len({parts[0] for parts in inner if parts}) > 1:
            return True
        inner = [parts[1:] for parts in inner if parts]
    return False


def check_refusal(error: ShardkitError) -> None:
    assert "\n" not in str(error) and len(str(error)) < 2000


def given_kind(corpus: Corpus) -> str:
    return str(getattr(corpus, "given", ""))


@examples(3)
@given(layouts)
@example(([["images/0.jpg", "masks/0.png"]], [], None))
@example(([["masks/0"], ["images/0.jpg", "labels/0.jpg"]], [], None))
@example(([["images/0.jpg", "masks/0.png"]], [], "images"))
@example(([["images/0.jpg", "images/1.jpg"]], [(".", "metadata.csv", 9)], None))
def test_no_file_is_lost_or_called_another(made: Any) -> None:
    parts, lists, kind = made
    with tempfile.TemporaryDirectory() as folder:
        source = make(Path(folder) / "in", parts, lists)
        source.mkdir(exist_ok=True)
        try:
            corpus = open_corpus(source, kind)
            if kind is not None:
                vars(corpus)["given"] = kind
            check(source, corpus)
        except ShardkitError as error:
            check_refusal(error)


@examples(0.6)
@given(layouts)
def test_packed_and_unpacked_nothing_is_lost(made: Any) -> None:
    """Check by the public calls that what is packed verifies, and comes back as it was."""
    parts, lists, kind = made
    with tempfile.TemporaryDirectory() as folder:
        root = Path(folder)
        source = make(root / "in", parts, lists)
        source.mkdir(exist_ok=True)
        options: dict[str, Any] = {"to": "npy", "workers": 0, "progress": False, "corpus": kind}
        options |= {"on_error": "skip", "max_rejects": 0.9, "shard_size": "1kB"}
        try:
            packed = shardkit.pack(source, root / "out", **options)
        except ShardkitError as error:
            check_refusal(error)
            return
        result = shardkit.verify(root / "out", against=source)
        assert result.ok, result.problems
        shardkit.unpack(root / "out", root / "back")
        before, after = tree(source), tree(root / "back")
        differ = {name for name in before.keys() & after.keys() if after[name] != before[name]}
        # Only the file of a value may be called as one that was passed over.
        assert not differ or packed.kind in LISTED
        assert {extension(name) for name in differ} <= {*packed.ignored}
