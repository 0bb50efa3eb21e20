"""Walking folders and reading many small files."""

from __future__ import annotations

import errno
import inspect
import os
import resource
import socket
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest
from conftest import nothing_left_open
from hypothesis import given
from hypothesis import strategies as st
from layouts import JPG, check_run
from tables import parquet
from tf_records import records

import shardkit
from shardkit.errors import CorpusError, SampleError, StorageError
from shardkit.inputs import files
from shardkit.inputs.corpus import Corpus
from shardkit.inputs.detection import CORPORA, open_corpus
from shardkit.inputs.files import encode, input_stamp, read_files, stems, walk
from shardkit.samples.encoding import npy_header
from shardkit.samples.sample import SampleBatch
from shardkit.system.stamps import UPPER


def tree(root: Path, contents: dict[str, bytes]) -> Path:
    """Make files, and folders (names that end in a slash); returns ``root``."""
    root.mkdir(parents=True, exist_ok=True)
    for name, data in contents.items():
        path = root / name
        (path if name.endswith("/") else path.parent).mkdir(parents=True, exist_ok=True)
        if not name.endswith("/"):
            path.write_bytes(data)
    return root


def read_all(corpus: Corpus, scratch: Path) -> dict[str, SampleBatch]:
    """Every split, read whole."""
    batches: dict[str, SampleBatch] = {}
    for run in corpus.runs(scratch):
        check_run(run)
        batch = corpus.read(run, scratch)
        assert len(batch) + len(batch.rejects) == len(run)
        assert all(len(column) == len(batch) for column in batch.columns.values())
        batches.setdefault(run.split, SampleBatch()).extend(batch)
    return batches


def names_of(source: Path, **options: object) -> list[tuple[str, list[str]]]:
    return [(f.base, f.names) for f in walk(source, **options)]  # type: ignore[arg-type]


@pytest.fixture(params=["compiled", "plain"])
def each_way(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """Files are looked at and read by C, and, where that was not built, by Python."""
    if request.param == "plain":
        monkeypatch.setattr(files, "compiled", lambda: None)
    elif files.compiled() is None:
        pytest.skip("shardkit was installed without a C compiler")


# --- walking ------------------------------------------------------------------------------


def test_order_is_own_files_first_then_folders_depth_first(tmp_path: Path) -> None:
    contents = "b/x.txt b/a/y.txt b.txt B/z.txt a/10.txt a/9.txt é/é.txt A.txt"
    tree(tmp_path, dict.fromkeys(contents.split(), b"1"))
    assert names_of(tmp_path) == [
        ("", ["A.txt", "b.txt"]),
        ("B", ["z.txt"]),
        ("a", ["10.txt", "9.txt"]),
        ("b", ["x.txt"]),
        ("b/a", ["y.txt"]),
        ("é", ["é.txt"]),
    ]


def test_both_ways_of_listing_agree(tmp_path: Path) -> None:
    tree(tmp_path, {"b/x.txt": b"1", "b/a/y.jpg": b"12", "c/": b"", "z.txt": b""})
    (tmp_path / "linked").symlink_to("b/a")
    (tmp_path / "file.txt").symlink_to("z.txt")
    for extensions in (None, frozenset({".txt"})):
        slow, fast = {}, {}
        full = names_of(tmp_path, extensions=extensions, ignored=slow)
        assert full == names_of(tmp_path, extensions=extensions, ignored=fast, measure=False)
        assert slow == fast
    assert ("linked", []) in full


@pytest.mark.usefixtures("each_way")
def test_sizes_and_stamps(tmp_path: Path) -> None:
    tree(tmp_path, {"a.txt": b"123", "b.txt": b""})
    os.utime(tmp_path / "a.txt", ns=(5, 1_234_567_890_123_456_789))
    (folder,) = walk(tmp_path)
    assert folder.sizes == [3, 0]
    assert folder.stamps == [input_stamp(tmp_path / "a.txt"), input_stamp(tmp_path / "b.txt")]
    os.utime(tmp_path / "a.txt", ns=(5, 1_234_567_890_123_456_790))
    now = input_stamp(tmp_path / "a.txt")
    assert now >> UPPER != folder.stamps[0] >> UPPER
    (tmp_path / "a.txt").rename(tmp_path / "b.txt")
    assert input_stamp(tmp_path / "b.txt") >> UPPER == now >> UPPER


def test_other_extensions_are_counted(tmp_path: Path) -> None:
    contents = ["a.JPG", "b.jpg", "c.jpeg", "d.Txt", "e.txt", "jpg", "x.tar.gz", "f.", "g"]
    tree(tmp_path, dict.fromkeys(contents, b"1"))
    ignored: dict[str, int] = {}
    extensions = frozenset({".jpg"})
    assert names_of(tmp_path, extensions=extensions, ignored=ignored) == [("", ["a.JPG", "b.jpg"])]
    assert ignored == {".jpeg": 1, ".txt": 2, "": 2, ".gz": 1, ".": 1}


@pytest.mark.parametrize("extensions", [None, frozenset({".jpg"})])
def test_hidden_names_are_passed_over(tmp_path: Path, extensions: frozenset[str] | None) -> None:
    tree(tmp_path, {".a": b"1", ".git/x.txt": b"1", "b/.c.jpg": b"1", "b/d.jpg": b"1"})
    ignored: dict[str, int] = {}
    found = names_of(tmp_path, extensions=extensions, ignored=ignored)
    assert found == [("", []), ("b", ["d.jpg"])]
    assert ignored == {"hidden": 3}


LAID_OUT = {"parallel", "metadata", "coco"}
WALKED = [kind for kind in CORPORA if kind not in {"hf", "lmdb", *LAID_OUT}]
"""Kinds that are all files of any folder, however deep they lie."""


def one_of_each(folder: Path) -> Path:
    """A file of every kind that is all files of any folder, of one sample each."""
    array = npy_header("<i2", (1,)) + b"12"
    tree(folder, {"a.jpg": JPG, "a.txt": b"1", "a.npy": array, "a.jsonl": b"{}\n", "a.mp3": b"1"})
    tree(folder, {"a.parquet": parquet(["1"])})
    records(folder / "a.tfrecord", [{"text": [b"1"]}])
    return folder


@pytest.mark.parametrize("kind", WALKED)
def test_every_corpus_knows_its_splits(tmp_path: Path, kind: str) -> None:
    cases = [(["dev", "train"], ["dev", "train"])]
    if kind not in (
        "parquet",
        "jsonl",
        "tfrecord",
        "rows",
    ):  # which refuse files of no split beside others
        cases.append((["k", "dev"], ["train"]))
    for folders, splits in cases:
        source = tmp_path / folders[0]
        for folder in folders:
            one_of_each(source / folder / "k")
        corpus = open_corpus(source, kind)
        assert corpus.splits() == splits
        assert [*dict.fromkeys(run.split for run in corpus.runs(tmp_path))] == corpus.splits()


@pytest.mark.parametrize("kind", WALKED)
@pytest.mark.parametrize("root", ["", "train/"])
def test_every_corpus_counts_what_is_hidden(tmp_path: Path, kind: str, root: str) -> None:
    source = tmp_path / "in"
    one_of_each(source / root / "k")
    tree(source, {f"{root}k/.DS_Store": b"", f"{root}k/.hidden/x": b"", ".git/x": b"1"})
    corpus = open_corpus(source, kind)
    list(corpus.runs(tmp_path))
    assert corpus.ignored["hidden"] == 3


@pytest.mark.usefixtures("each_way")
def test_odd_names(tmp_path: Path) -> None:
    odd = [
        b"a b.txt",
        b"a%20b.txt",
        b"new\nline.txt",
        b"\xff\xfe.txt",
        b"x" * 251 + b".txt",
        b" ",
        b"'\"",
    ]
    for name in odd:
        with open(os.path.join(os.fsencode(tmp_path), name), "wb") as out:
            out.write(name)
    (folder,) = walk(tmp_path)
    raw = encode(folder.names)
    assert sorted(raw) == sorted(odd)
    assert folder.names == sorted(folder.names)
    assert read_files(tmp_path, raw, folder.sizes) == raw


def test_links_are_followed(tmp_path: Path) -> None:
    tree(tmp_path, {"src/": b"", "far/deep/x.txt": b"123"})
    (tmp_path / "src/folder").symlink_to("../far")
    (tmp_path / "src/again").symlink_to("../far")
    (tmp_path / "src/y.txt").symlink_to("../far/deep/x.txt")
    found = list(walk(tmp_path / "src"))
    assert [f.base for f in found] == ["", "again", "again/deep", "folder", "folder/deep"]
    assert found[0].sizes == [3]
    assert found[2].names == ["x.txt"]


@pytest.mark.parametrize(
    ("link", "target", "base"),
    [
        ("src/a/loop", "..", ""),
        ("src/a/loop", ".", ""),
        ("src/a/loop", "../..", ""),
        ("src/a/loop", "/", ""),
        ("src/a/loop", "..", "a"),
        ("src/a/b/loop", "../../../src/a", ""),
    ],
)
def test_a_looping_link_is_named(tmp_path: Path, link: str, target: str, base: str) -> None:
    tree(tmp_path, {"src/a/b/x.txt": b"1", "0/": b""})
    (tmp_path / "0/far").symlink_to("nowhere")  # an error if the walk leaves the source
    (tmp_path / link).symlink_to(target)
    with (
        nothing_left_open(),
        pytest.raises(StorageError, match=r"is a link to a folder that contains it") as info,
    ):
        list(walk(tmp_path / "src", base))
    assert str(tmp_path / link) in str(info.value)
    assert "\n" not in str(info.value)


@pytest.mark.usefixtures("each_way")
@pytest.mark.parametrize(
    "target",
    ["nowhere", "self"],
)
def test_a_link_to_nothing_is_an_entry_of_no_use(tmp_path: Path, target: str) -> None:
    tree(tmp_path, {"a/x": b"1"})
    (tmp_path / "a/self").symlink_to(target)
    with nothing_left_open():
        _, folder = walk(tmp_path, extensions=frozenset({".jpg"}))
        (reason,) = read_files(tmp_path / "a", [b"self"], [0])
        assert [f.names for f in walk(tmp_path, measure=False)] == [[], ["self", "x"]]
    assert (folder.names, folder.lost) == ([], ["self"])
    assert reason == f"a symbolic link to {target}, which leads nowhere; remove it"


def test_a_folder_that_vanishes_while_listing(tmp_path: Path) -> None:
    tree(tmp_path, {"a/b/x": b"1", "a/c/x": b"1", "d/x": b"1"})
    found = walk(tmp_path)
    folders = [next(found), next(found)]
    (tmp_path / "a/b/x").unlink()
    (tmp_path / "a/b").rmdir()
    with nothing_left_open():
        folders += found
    assert [(f.base, f.names, f.lost) for f in folders] == [
        ("", [], []),
        ("a", [], []),
        ("a", [], ["b"]),
        ("a/c", ["x"], []),
        ("d", ["x"], []),
    ]


def test_a_missing_source_and_a_file_as_source(tmp_path: Path) -> None:
    (tmp_path / "file").write_bytes(b"")
    for name in ("file", "missing"):
        with pytest.raises(StorageError, match=f"{name} cannot be listed"):
            list(walk(tmp_path / name))


def test_deeper_than_a_path_may_be(tmp_path: Path) -> None:
    here = os.getcwd()
    try:
        os.chdir(tmp_path)
        for _ in range(25):
            os.mkdir("d" * 200)
            os.chdir("d" * 200)
    finally:
        os.chdir(here)
    with nothing_left_open(), pytest.raises(StorageError, match="nested deeper"):
        list(walk(tmp_path))


def test_depth_costs_neither_recursion_nor_open_files(tmp_path: Path) -> None:
    (tmp_path / "/".join("d" * 150)).mkdir(parents=True)
    recursion, files_limit = sys.getrecursionlimit(), resource.getrlimit(resource.RLIMIT_NOFILE)
    open_now = max(map(int, os.listdir("/proc/self/fd")))
    try:
        sys.setrecursionlimit(len(inspect.stack(0)) + 50)
        resource.setrlimit(resource.RLIMIT_NOFILE, (open_now + 50, files_limit[1]))
        depth = sum(1 for _ in walk(tmp_path))
    finally:
        sys.setrecursionlimit(recursion)
        resource.setrlimit(resource.RLIMIT_NOFILE, files_limit)
    assert depth == 151


def run_without_rights(code: str, folder: Path, before: str = "") -> str:
    """Run code in a process that is not root; ``folder`` is its argument.

    ``before`` runs with all rights, and imports what may lie where nobody else can read.
    """
    drop = "import os, sys; os.geteuid() or (os.setgid(65534), os.setuid(65534))\n"
    loaded = "import shardkit.inputs.files, shardkit.inputs.detection\n"
    loaded += "[*shardkit.inputs.detection.CORPORA.values()]\n"
    script = loaded + before + drop + code
    env = {**os.environ, "PYTHONPATH": str(Path(files.__file__).parents[2])}
    done = subprocess.run(
        [sys.executable, "-c", script, str(folder)],
        env=env,
        capture_output=True,
        text=True,
        cwd="/",
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


@pytest.fixture
def open_folder() -> Iterator[Path]:
    """A folder that other users can reach: pytest's own cannot be."""
    with tempfile.TemporaryDirectory() as name:
        os.chmod(name, 0o755)
        yield Path(name)
        subprocess.run(["chmod", "-R", "u+rwX", name], check=True)


def test_an_unreadable_file_is_a_reject(open_folder: Path) -> None:
    tree(open_folder, {"a.jpg": JPG, "b.jpg": JPG, "c.jpg": JPG})
    (open_folder / "b.jpg").chmod(0)
    code = """
from pathlib import Path
corpus = shardkit.inputs.detection.open_corpus(sys.argv[1])
(run,) = corpus.runs(Path("/"))
batch = corpus.read(run, Path("/"))
print(batch.keys, batch.rejects)
"""
    out = run_without_rights(code, open_folder)
    assert out == "[b'a', b'c'] [('b.jpg', 'no permission to read it')]\n"


BEFORE = """
import sys
source, dest = sys.argv[1] + "/in/a", sys.argv[1] + "/out/first"
shardkit.pack(source, dest, to="npy", workers=0, progress=False)
"""
PACK = """
from pathlib import Path
source = Path(sys.argv[1]) / "in"
for name, options in (("fail", {}), ("skip", {"on_error": "skip", "max_rejects": 1})):
    dest = Path(sys.argv[1]) / "out" / name
    try:
        made = shardkit.pack(source, dest, to="npy", workers=0, progress=False, **options)
        print(made.num_samples, made.num_rejects, (dest / "rejected.jsonl").read_text().strip())
    except shardkit.errors.DataError as error:
        print(error)
"""


@pytest.mark.parametrize(
    ("mode", "kind", "name", "value"),
    [
        (0, "images", "1.jpg", JPG),
        (0o444, "images", "1.jpg", JPG),
        (0o111, "text", "1.txt", b"x"),
        (0, "jsonl", "1.jsonl", b"{}"),
        (0o444, "paired", "1.jpg", JPG),
    ],
)
def test_an_unlistable_folder_is_a_reject(
    open_folder: Path, mode: int, kind: str, name: str, value: bytes
) -> None:
    """Told to skip, a pack died of it; left out without a word, it would be worse."""
    files = {f"in/{folder}/{name}": value for folder in ("a", "locked", "z")}
    if kind == "paired":
        files |= {path.replace(".jpg", ".txt"): b"1" for path in files}
    tree(open_folder, files)
    (open_folder / "in" / "locked").chmod(mode)
    (open_folder / "out").mkdir()
    (open_folder / "out").chmod(0o777)
    failed, skipped = run_without_rights(PACK, open_folder, BEFORE).splitlines()
    why = "is a folder that cannot be listed: no permission to list it or look at its files"
    assert f"locked: {why}" in failed
    assert skipped.startswith("2 1 ") and f'"locked", "reason": "{why}"' in skipped


# --- naming -------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("names", "keys"),
    [
        (["a.jpg", "b.png"], ["a", "b"]),
        (["a.jpg", "a.png"], ["a.jpg", "a.png"]),
        (["a.jpg", "a.png", "b.jpg"], ["a.jpg", "a.png", "b"]),
        (["a.jpg", "a.jpg.jpg"], ["a", "a.jpg.jpg"]),
        (["a", "a.jpg"], ["a", "a.jpg"]),
        (["IMG.1.jpg", "IMG.2.jpg"], ["IMG.1", "IMG.2"]),
        (["a.", "a"], ["a.", "a"]),
        (["a..jpg", "a.jpg"], ["a.", "a"]),
        ([".x"], [".x"]),
        ([], []),
    ],
)
def test_stems(names: list[str], keys: list[str]) -> None:
    assert stems(names) == keys


letters = st.text(st.sampled_from("ab.é\udcff\n% "), min_size=1, max_size=6)


@given(st.sets(letters, max_size=12))
def test_keys_never_repeat_and_say_which_file(names: set[str]) -> None:
    ordered = sorted(names)
    keys = stems(ordered)
    assert len(set(keys)) == len(ordered)
    for name, key in zip(ordered, keys, strict=True):
        assert key
        assert key in (name, name.rpartition(".")[0])


@given(st.lists(letters, max_size=5), st.sampled_from(["", "a", "a/b", "\udcff\n"]))
def test_encode_is_fsencode_of_each(names: list[str], base: str) -> None:
    prefix = base + "/" if base else ""
    assert encode(names, base) == [os.fsencode(prefix + name) for name in names]


# --- reading ------------------------------------------------------------------------------


@pytest.mark.usefixtures("each_way")
def test_contents_come_back_in_order(tmp_path: Path) -> None:
    tree(tmp_path, {"a": b"1" * 5000, "b": b"", "c": bytes(range(256))})
    with nothing_left_open():
        values = read_files(tmp_path, [b"c", b"a", b"b"], [256, 5000, 0])
    assert values == [bytes(range(256)), b"1" * 5000, b""]


@pytest.mark.usefixtures("each_way")
@pytest.mark.parametrize(("size", "now"), [(3, 4), (5, 4), (0, 4), (4, 0)])
def test_another_size_than_listed(tmp_path: Path, size: int, now: int) -> None:
    tree(tmp_path, {"a": b"x" * now})
    with nothing_left_open():
        (reason,) = read_files(tmp_path, [b"a"], [size])
    assert reason == f"changed while packing: {size} bytes when listed, now {now}"


@pytest.mark.usefixtures("each_way")
@pytest.mark.parametrize("size", [0, 7])
def test_what_is_no_file_never_blocks(tmp_path: Path, size: int) -> None:
    os.mkfifo(tmp_path / "fifo")
    (tmp_path / "folder").mkdir()
    (tmp_path / "device").symlink_to("/dev/zero")
    with socket.socket(socket.AF_UNIX) as server:
        here = os.getcwd()
        os.chdir(tmp_path)  # a socket's path has at most 108 bytes
        server.bind("socket")
        os.chdir(here)
        with nothing_left_open():
            reasons = read_files(tmp_path, [b"fifo", b"folder", b"socket"], [size] * 3)
    assert len(reasons) == 3
    assert all(isinstance(reason, str) for reason in reasons)
    if size == 0:  # listed as what they are
        assert reasons == [
            "is no regular file; remove it",
            "is a folder, not a file",
            "is no regular file; remove it",
        ]
        assert read_files(tmp_path, [b"device"], [0]) == ["is no regular file; remove it"]


@pytest.mark.parametrize("measure", [True, False])
def test_what_is_no_file_is_listed_apart(tmp_path: Path, measure: bool) -> None:
    os.mkfifo(tmp_path / "fifo")
    (tmp_path / "device").symlink_to("/dev/null")
    tree(tmp_path, {"file": b"1"})
    (folder,) = walk(tmp_path, measure=measure)
    assert (folder.names, folder.lost) == (["file"], ["device", "fifo"])


@pytest.mark.parametrize("name", ["x.json", "labels.csv", "metadata.jsonl", "classes.txt", "x.pkl"])
def test_a_fifo_beside_samples_is_named(tmp_path: Path, name: str) -> None:
    """It may have been meant to say something of them: whoever opened it would wait for ever."""
    tree(tmp_path, {f"src/{one}/{i}.jpg": JPG for one in "ab" for i in range(2)})
    os.mkfifo(tmp_path / "src" / name)
    with pytest.raises(SampleError, match=f"^{name}: is no regular file; remove it"):
        shardkit.pack(tmp_path / "src", tmp_path / "out", to="lmdb", workers=0)


@pytest.mark.parametrize("name", ["x.npz", "x.h5", "x.npy", "x.parquet", "README.md"])
def test_a_fifo_alone_is_refused(tmp_path: Path, name: str) -> None:
    (tmp_path / "src").mkdir()
    os.mkfifo(tmp_path / "src" / name)
    with pytest.raises(CorpusError, match=f"nothing to pack in .*: no regular file, only {name}"):
        shardkit.pack(tmp_path / "src", tmp_path / "out", to="lmdb", workers=0)


def test_what_systems_put_into_folders_is_passed_over_and_named(tmp_path: Path) -> None:
    pictures = {f"{one}/{i}.jpg": JPG for one in ("cat", "dog") for i in range(3)}
    thumbs = {f"{one}/@eaDir/{i}.jpg/THUMB_M.jpg": JPG for one in ("cat", "dog") for i in range(3)}
    others = {"__MACOSX/cat/._0.jpg": b"1", "cat/Thumbs.db": b"1", "lost+found/1.jpg": JPG}
    corpus = open_corpus(tree(tmp_path, pictures | thumbs | others))
    assert corpus.classes == ["cat", "dog"]
    assert len(read_all(corpus, tmp_path)["train"]) == 6
    assert corpus.ignored == {"@eaDir": 2, "__MACOSX": 1, "Thumbs.db": 1, "lost+found": 1}


@pytest.mark.usefixtures("each_way")
def test_vanished_files_and_folders_are_rejects(tmp_path: Path) -> None:
    tree(tmp_path, {"a": b"1"})
    assert read_files(tmp_path, [b"gone", b"a"], [1, 1]) == ["vanished since it was listed", b"1"]
    gone = "its folder vanished since it was listed"
    assert read_files(tmp_path / "gone", [b"a", b"b"], [1, 0]) == [gone, gone]
    assert read_files(tmp_path / "a", [b"a"], [1]) == [gone]  # a file is in its place


def test_an_input_error_is_a_reject_and_closes_the_file(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    tree(tmp_path, {"a": b"1"})

    def broken(fd: int, size: int, offset: int = 0) -> bytes:
        raise OSError(errno.EIO, os.strerror(errno.EIO))

    with nothing_left_open(), monkeypatch.context() as patch:
        patch.setattr(files, "compiled", lambda: None)
        patch.setattr(os, "read", broken)
        patch.setattr(os, "pread", broken)
        assert read_files(tmp_path, [b"a"], [1]) == ["cannot be read: Input/output error"]
        assert read_files(tmp_path, [b"a"], [0]) == ["cannot be read: Input/output error"]


def test_short_reads_are_gone_on_with(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A read gives 2 GiB at most, and less on some network file systems."""
    tree(tmp_path, {"a": bytes(range(100))})
    whole = os.pread
    monkeypatch.setattr(files, "compiled", lambda: None)
    monkeypatch.setattr(os, "read", lambda fd, size: whole(fd, min(size, 7), 0))
    monkeypatch.setattr(os, "pread", lambda fd, size, at: whole(fd, min(size, 7), at))
    assert read_files(tmp_path, [b"a"], [100]) == [bytes(range(100))]


def test_no_file_descriptors_left_is_an_error_not_a_reject(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    tree(tmp_path, {"a": b"1"})
    whole = os.open

    def full(path: object, *rest: object, **options: object) -> int:
        if "dir_fd" in options:
            raise OSError(errno.EMFILE, os.strerror(errno.EMFILE))
        return whole(path, *rest)  # type: ignore[arg-type]

    with nothing_left_open(), monkeypatch.context() as patch:
        patch.setattr(files, "compiled", lambda: None)
        patch.setattr(os, "open", full)
        with pytest.raises(StorageError, match="Too many open files"):
            read_files(tmp_path, [b"a"], [1])
