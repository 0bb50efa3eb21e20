"""A fault at each write of each command: a short write, a full disk, a quota, an I/O error.

Whatever call of the system fails, in Python or in a library, the command must either succeed with
a byte-identical result, or fail with exit code 1 and one clear line. It leaves nothing that opens
as complete, or what was there before; and the same command, run again, gives the byte-identical
result.

The commands run in processes that were started with ``writes.c`` preloaded, which lets the n-th
call fail. Each is forked from one that has imported everything, so that a fault costs some 50 ms.
"""

from __future__ import annotations

import contextlib
import errno
import importlib
import json
import mmap
import os
import random
import re
import resource
import shutil
import struct
import subprocess
import sys
import sysconfig
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from cases import Case, Kind, Outcome, Place
from compare import difference, tree

Random = random.Random
Tree = dict[str, bytes | str]

SOURCE = Path(__file__).with_suffix(".c")
WRITE, SYNC, SIZE, NAME = FAMILIES = (1, 2, 4, 8)
CONTROL = struct.Struct(f"={4 + NAME + 1}q")
FAULTS_A_CASE = 25
MOST_S = 60
SAID_BYTES = 500
"""The least limit of files: what a command prints goes into one, too."""


@dataclass(frozen=True)
class Job:
    """Commands that make ``dest``, one after another.

    Attributes:
        before: a dataset that is copied to ``dest`` first. commands: ``{dest}`` and ``{more}``, a
            folder beside it, are put in. is_dataset: else ``dest`` is files, or a folder of them.
    """

    name: str
    commands: tuple[str, ...]
    before: str = ""
    is_dataset: bool = True


def jobs(formats: tuple[str, ...] = ("lmdb", "hdf5", "webdataset", "npy")) -> Iterator[Job]:
    """All commands that write datasets, files or indexes."""
    small = "--shard-size 2kB --workers"
    for to in formats:
        yield Job(f"pack to {to}", (f"pack sources/pairs {{dest}} --to {to} {small} 0",))
        yield Job(f"convert to {to}", (f"convert packed/pairs-npy {{dest}} --to {to} --workers 0",))
    pack = "pack sources/{} {{dest}} --to {} " + small
    tokens = f"{pack.format('tokens', 'npy')} 0 --tokenizer tokenizer.json"
    yield Job("pack by a worker", (pack.format("pictures", "lmdb") + " 1",))
    yield Job("pack tokens", (tokens,))
    yield Job("pack jsonl", (pack.format("jsonl", "npy") + " 0",))
    yield Job("pack jsonl.gz", (pack.format("jsonl_gz", "npy") + " 0",))
    yield Job("pack parquet", (pack.format("parquet", "lmdb") + " 0",))
    yield Job("pack compressed arrays", (pack.format("arrays", "hdf5") + " 0 --compression 5",))
    shuffled = (
        pack.format("pictures", "webdataset") + " 0 --shuffle --val-fraction 0.2 --dali-index"
    )
    yield Job("pack shuffled", (shuffled,))
    part = pack.format("pictures", "npy").replace("{dest}", "{more}{}") + " 0 --part {}/2"
    parts = (part.replace("{}", "1"), part.replace("{}", "2"), "merge {more}1 {more}2 {dest}")
    yield Job("pack in parts and merge", parts)
    yield Job(
        "pack over another",
        (f"{pack.format('pictures', 'hdf5')} 0 --overwrite",),
        "packed/arrays-npy",
    )
    more = "append {dest} sources/more --workers 0"
    yield Job("append files", (more,), "packed/pictures-npy")
    yield Job("append a dataset", ("append {dest} packed/more-hdf5",), "packed/pictures-hdf5")
    edit = "edit {dest} --val-fraction 0.3"
    yield Job("edit", (edit,), "packed/pictures-lmdb")
    yield Job("prune", (edit, "prune {dest} --keep 1"), "packed/pictures-npy")
    yield Job("merge datasets", ("merge packed/pictures-hdf5 packed/more-hdf5 {dest}",))
    yield Job("unpack", ("unpack packed/pairs-hdf5 {dest}",), is_dataset=False)
    yield Job("unpack lines", ("unpack packed/jsonl-npy {dest}",), is_dataset=False)
    yield Job("stage", ("stage packed/pictures-webdataset {dest}",))
    yield Job("export ids", ("convert packed/tokens-npy {dest} --to bin",), is_dataset=False)
    megatron = "convert packed/tokens-npy {dest} --to megatron"
    yield Job("export documents", (megatron,), is_dataset=False)
    yield Job("export a table", ("convert packed/jsonl-npy {dest} --to parquet",), is_dataset=False)
    foreign = "convert foreign/ustar {dest} --to npy --workers 0"
    yield Job("index tars and convert", ("info foreign/ustar", foreign))


# --- in the process that has it preloaded ---------------------------------------------------


class Control:
    """What is shared with ``writes.c``."""

    def __init__(self, path: str) -> None:
        with open(path, "r+b") as file:
            self._shared = mmap.mmap(file.fileno(), 4096)

    def arm(self, at: int, code: int, lasts: bool, family: int) -> None:
        CONTROL.pack_into(self._shared, 0, at, code, lasts, family, *[0] * (NAME + 1))

    def count(self, family: int) -> int:
        return int(CONTROL.unpack_from(self._shared)[4 + family])


class Attempts:
    """Runs of one job."""

    def __init__(self, job: Job, work: Path, said: Path) -> None:
        self.job, self.work, self.said = job, work, said
        self.loaded = said.with_name("modules")
        self.control = Control(os.environ["WRITES_FILE"])
        self.old = self._fresh() if job.before else {}
        self.expected: Tree = {}
        self._fresh()
        if text := self._failed(self.run(-1, errno.EIO, False, 0), 0):
            raise RuntimeError(f"{job.name}: undisturbed, {text}")
        self.counts = {family: self.control.count(family) for family in FAMILIES}
        self.expected = self._tree()
        for name in self.loaded.read_text().split():  # so that no fork pays for it
            with contextlib.suppress(ImportError):
                importlib.import_module(name)

    @property
    def dest(self) -> Path:
        return self.work / "dest"

    def _fresh(self) -> Tree:
        shutil.rmtree(self.work, ignore_errors=True)
        for name in ("tmp", "cache"):
            (self.work / name).mkdir(parents=True)
        if self.job.before:
            shutil.copytree(self.job.before, self.dest)
        return self._tree()

    def _tree(self) -> Tree:
        if self.dest.is_file():
            return {"": self.dest.read_bytes()}
        return {name: timeless(name, data) for name, data in tree(self.dest).items()}

    def run(self, at: int, code: int, lasts: bool, family: int, most: int | None = None) -> int:
        """The exit status of the commands, or of the first that fails."""
        for command in self.job.commands:
            words = command.format(dest=self.dest, more=self.work / "more").split()
            if command == self.job.commands[0]:
                self.control.arm(at, code, lasts, family)
            pid = os.fork()
            if pid == 0:
                self._run_here(words, most)
            if status := os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]):
                return status
        return 0

    def _run_here(self, words: list[str], most: int | None) -> None:
        """Never returns."""
        from shardkit.cli import main

        code: Any = 99
        try:
            fd = os.open(self.said, os.O_WRONLY | os.O_CREAT | os.O_TRUNC)
            for stream in (1, 2):
                os.dup2(fd, stream)
            os.environ |= {"TMPDIR": f"{self.work}/tmp", "XDG_CACHE_HOME": f"{self.work}/cache"}
            sys.argv = ["shardkit", *words]
            if most is not None:
                resource.setrlimit(resource.RLIMIT_FSIZE, (most, most))
            main()
            code = 0
        except SystemExit as ended:
            code = ended.code or 0
        except BaseException:
            import traceback

            traceback.print_exc()
        finally:
            sys.stdout.flush()
            sys.stderr.flush()
            if not self.expected:
                with open(self.loaded, "a") as file:
                    file.write(" ".join([*sys.modules, ""]))
            os._exit(code)

    def _failed(self, code: int, *right: int) -> str:
        lines = self.said.read_text(errors="replace").strip().splitlines()
        if code not in right or "Traceback" in "\n".join(lines):
            return f"exit status {code}: {' / '.join(lines[-6:])[-700:]}"
        if code and not (lines and lines[-1].startswith("shardkit: error: ")):
            return f"exit status 1 without a line that says why: {lines[-3:]}"
        return ""

    def fault(self, at: int, code: int, lasts: bool, family: int, most: int | None = None) -> str:
        """What is wrong with what a fault does, in words."""
        self._fresh()
        status = self.run(at, code, lasts, family, most)
        if text := self._failed(status, 0, 1):
            return text
        said = self.said.read_text(errors="replace").strip()[-200:]
        got = self._tree()
        if status == 0:
            wrong = difference(got, self.expected)
            return f"exit status 0, and another result: {wrong}" if wrong else ""
        if wrong := self._half_done(got):
            return f"exit status 1 ({said}), and {wrong}"
        again = self.run(-1, 0, False, 0)
        # After its last step nothing is left to do, and some are refused then as they stand.
        is_done = again == 2 and not difference(self._tree(), self.expected)
        if text := "" if is_done else self._failed(again, 0):
            return f"after {said!r} the same command does not go on: {text}"
        wrong = difference(self._tree(), self.expected)
        return f"after {said!r} the same command gives another result: {wrong}" if wrong else ""

    def _half_done(self, got: Tree) -> str:
        """What is wrong with what a command that failed left."""
        own = {name: data for name, data in got.items() if not name.startswith(".packing")}
        if not self.job.is_dataset:  # a file has its name when it is whole
            files = {name: data for name, data in own.items() if not name.startswith(".")}
            wrong = [name for name, data in files.items() if self.expected.get(name) != data]
            return f"a file is there and not whole: {wrong}" if wrong else ""
        if "shardkit.json" not in own:
            stays = self.old and "--overwrite" not in self.job.commands[0]
            return f"the old dataset is gone: {sorted(own)}" if stays else ""
        is_old = own["shardkit.json"] == self.old.get("shardkit.json")
        whole = self.old if is_old else self.expected
        wrong = [name for name, data in whole.items() if own.get(name) != data]
        return f"shardkit.json is there, and not what it names: {wrong}" if wrong else ""


def timeless(name: str, data: bytes | str) -> bytes | str:
    """A file without the times of versions, and the seal over them."""
    if not re.fullmatch(r"shardkit(~\d+)?\.json", name) or isinstance(data, str):
        return data
    data, changed = re.subn(rb'"when": "[^"]*"', b'"when": null', data)
    return re.sub(rb'"xxh3": "[0-9a-f]{16}"\n}\n$', b"", data) if changed else data


CODES = (0, errno.ENOSPC, errno.EIO, errno.EDQUOT, errno.EFBIG)


def every(attempts: Attempts) -> Iterator[tuple[int, int, bool, int]]:
    """All faults: at each write each kind, at each other call one."""
    for code in CODES:
        for at in range(attempts.counts[WRITE]):
            yield at, code, code == errno.ENOSPC, WRITE
    for family in (SYNC, SIZE, NAME):
        for at in range(attempts.counts[family]):
            yield at, errno.EIO if family == SYNC else errno.ENOSPC, False, family


def serve(job: Job, work: Path, seed: str, most: int, first: str) -> dict[str, Any]:
    """Findings of a sample of the faults of one job, and how many there were. ``first``: Python
    that is run before, so that short writes are not gone on with: that must be found."""
    exec(first)
    rng = Random(seed)
    attempts = Attempts(job, work / "job", work / "said")
    faults = (
        [*every(attempts)]
        if not first
        else [(at, 0, False, WRITE) for at in range(attempts.counts[WRITE])]
    )
    chosen = rng.sample(faults, min(most, len(faults)))
    findings = []
    for at, code, lasts, family in chosen:
        if text := attempts.fault(at, code, lasts, family):
            what = errno.errorcode.get(code, "short")
            findings.append(f"{job.name}, {what} at {at} of family {family}: {text}")
    sizes = [len(data) for data in attempts.expected.values()]
    largest = max(SAID_BYTES + 1, *sizes, 0)
    limits = [rng.randrange(SAID_BYTES, most) for most in (largest, 2000)] if sizes else []
    for limit in limits:
        if text := attempts.fault(-1, 0, False, 0, limit):
            findings.append(f"{job.name}, files of at most {limit} bytes: {text}")
    return {"findings": findings, "faults": len(chosen) + len(limits), "of": len(faults)}


# --- a case -------------------------------------------------------------------------------


def built(folder: Path) -> Path | None:
    """The library of ``writes.c``; None without a compiler."""
    made = folder / "writes.so"
    cc = shutil.which((sysconfig.get_config_var("CC") or "cc").split()[0]) or shutil.which("cc")
    if cc is None or not sys.platform.startswith("linux"):
        return None
    if not made.exists():
        new = folder / f"writes-{os.getpid()}.so"
        subprocess.run([cc, "-shared", "-fPIC", "-o", new, SOURCE, "-ldl"], check=True)
        new.replace(made)
    return made


def more_data(corpora: Path) -> None:
    """What jobs need besides the data of all kinds: pictures of other keys, packed lines."""
    if (corpora / "packed" / "more-hdf5").exists():
        return
    from corpora import jpeg, pack_options, put

    import shardkit

    rng = Random("more")
    for number in range(6):
        put(corpora / "sources" / "more" / f"class{number % 4}" / f"x{number}.jpg", jpeg(rng))
    for kind, to in (("jsonl", "npy"), ("more", "hdf5")):
        source, dest = corpora / "sources" / kind, corpora / "packed" / f"{kind}-{to}"
        shardkit.pack(source, dest, **pack_options(corpora, kind, to))


def run_job(
    job: Job,
    corpora: Path,
    work: Path,
    library: Path,
    seed: str,
    most: int = FAULTS_A_CASE,
    first: str = "",
) -> dict[str, Any]:
    """What :func:`serve` says, in a process that has the library preloaded."""
    job_dir = work / "job"
    job_dir.mkdir(parents=True)
    control = work / "control"
    control.write_bytes(bytes(4096))
    os.truncate(control, 4096)
    paths = [str(SOURCE.parent), *sys.path]
    env = {**os.environ, "LD_PRELOAD": str(library), "PYTHONPATH": os.pathsep.join(paths)}
    env |= {"WRITES_FILE": str(control), "WRITES_DIR": str(job_dir)}
    given = {"job": vars(job), "work": str(work), "seed": seed, "most": most, "first": first}
    asked = json.dumps(given)
    done = subprocess.run(
        [sys.executable, __file__, asked], cwd=corpora, env=env, capture_output=True, text=True
    )
    if done.returncode:
        raise RuntimeError(f"{job.name}: {done.stderr[-2000:]}")
    found: dict[str, Any] = json.loads(done.stdout)
    return found


def writes(case: Case, place: Place) -> Outcome:
    library = built(place.corpora)
    if library is None:
        return Outcome(counts=Counter({"skipped: no C compiler": 1}))
    all_jobs = [*jobs()]
    job = all_jobs[case.number % len(all_jobs)]
    found = run_job(job, place.corpora, place.work / "writes", library, str(case))
    return Outcome(found["findings"], Counter({"faults": found["faults"]}))


KIND = Kind(
    "writes",
    "a resource fault at each write of each command",
    writes,
    default=30,
    batch=1,
    deadline_s=600,
)

if __name__ == "__main__":
    given = json.loads(sys.argv[1])
    answer = serve(
        Job(**given["job"] | {"commands": tuple(given["job"]["commands"])}),
        Path(given["work"]),
        given["seed"],
        given["most"],
        given["first"],
    )
    print(json.dumps(answer))
