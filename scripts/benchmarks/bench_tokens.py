"""The fourth program of `make bench`: text to tokens, and windows of tokens to a training loop.

Cases of a section run in turn, round after round; a ratio is taken within a round, and the median
over the rounds is printed. Before anything is timed, both sides are shown to give the same ids.

    make bench
    make bench BENCH="--text my-text"
    python scripts/benchmarks/bench_tokens.py --only read-windows --rounds 9
"""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import cached_property, partial
from pathlib import Path
from typing import Any

import numpy as np
from bench_corpora import FORMATS, make_once
from bench_run import Bench, Row, run_sections

from shardkit.loading.loader import Loader
from shardkit.measure.timing import Case, Work
from shardkit.packing.conversion import convert
from shardkit.packing.pack import pack
from shardkit.reading.dataset import Dataset
from shardkit.sequences.token_dataset import TokenDataset
from shardkit.tokens.train import train

sys.path.append(str(Path(__file__).parents[1] / "tools"))
import find_text

SEED = 5
THREADS = 2
VOCAB = 32_000
SEQ_LEN = 2048
BATCH = 16


@dataclass(frozen=True)
class Text:
    """A folder of text files, and a tokenizer trained on it."""

    folder: Path
    workdir: Path
    vocab: int

    @cached_property
    def paths(self) -> list[Path]:
        return sorted(path for path in self.folder.rglob("*") if path.is_file())

    @cached_property
    def texts(self) -> list[str]:
        return [path.read_bytes().decode() for path in self.paths]

    @cached_property
    def num_bytes(self) -> int:
        return sum(path.stat().st_size for path in self.paths)

    def tokenizer(self, name: str, change: Callable[[dict[str, Any]], None]) -> Path:
        """The trained tokenizer, changed, as a file."""
        trained = self.workdir / "tokenizer.json"
        if not trained.exists():
            print(f"training a tokenizer of {self.vocab} entries ...", flush=True)
            trained.write_bytes(train(self.texts, self.vocab))
        made = json.loads(trained.read_bytes())
        change(made)
        path = self.workdir / name
        path.write_text(json.dumps(made))
        return path


def text_of(bench: Bench) -> Text:
    """The user's text, or what is found on this machine."""
    num_bytes = 300_000 if bench.is_quick else 70_000_000
    folder = bench.text or bench.workdir / "text"
    if bench.text is None:
        make_once(folder, {"num_bytes": num_bytes}, lambda: find_text.find(folder, num_bytes))
    bench.workdir.mkdir(parents=True, exist_ok=True)
    return Text(folder, bench.workdir, 1000 if bench.is_quick else VOCAB)


# --- tokenizing ---------------------------------------------------------------------------


def pack_text(bench: Bench) -> list[Row]:
    """Text files to token shards, by the side of `tokenizers` on text in memory (files/s)"""
    text = text_of(bench)
    rows: list[Row] = []
    kinds: list[tuple[str, float, Callable[[dict[str, Any]], None]]] = [
        ("byte-level BPE", 3.0, lambda made: None),
        ("another tokenizer", 0.9, lambda made: made.update(normalizer={"type": "Lowercase"})),
    ]
    for kind, target, change in kinds:
        path = text.tokenizer(f"{kind.replace(' ', '-')}.json", change)
        rows += tokenize_and_pack(bench, text, path, kind, target)
    return rows


def tokenize_and_pack(bench: Bench, text: Text, path: Path, kind: str, target: float) -> list[Row]:
    from tokenizers import Tokenizer

    os.environ["RAYON_NUM_THREADS"] = str(THREADS)
    os.environ["TOKENIZERS_PARALLELISM"] = "true"
    library = Tokenizer.from_file(str(path))
    library.encode_special_tokens = True
    dest = bench.workdir / "packed" / "tokens"

    def run() -> Work:
        made = pack(
            text.folder,
            dest,
            to="npy",
            tokenizer=path,
            corpus="text",
            workers=THREADS,
            overwrite=True,
            progress=False,
        )
        return Work(made.num_samples, text.num_bytes, made.seconds, cache="warm")

    def bare() -> Work:
        for _ in encoded(library, text.texts):
            pass
        return Work(len(text.texts), text.num_bytes)

    run()
    check_same_ids(dest, text, library)
    name, reference = f"shardkit pack, {kind}, {THREADS} workers", f"encode_batch, {kind}"
    result = bench.time({reference: bare, name: run})
    row = bench.judge(result.row(name, reference), target, result.ratio(name, reference))
    return [result.row(reference), row]


def encoded(library: Any, texts: list[str]) -> Iterator[list[int]]:
    """What the library makes of the texts, some at once, as its users do."""
    for start in range(0, len(texts), 1000):
        for found in library.encode_batch(texts[start : start + 1000], add_special_tokens=False):
            yield found.ids


def check_same_ids(dest: Path, text: Text, library: Any) -> None:
    """Stop the program unless the dataset holds, document for document, the library's ids."""
    documents = Dataset(dest)
    ids = encoded(library, text.texts)
    for start in range(0, len(documents), 1000):
        rows = np.arange(start, min(start + 1000, len(documents)))
        for row, tokens in zip(rows, documents.read(rows)["tokens"], strict=True):
            if tokens[:-1].tolist() != next(ids):  # the last is the end of the text
                raise SystemExit(f"{text.paths[row]}: packed ids are not those of the library")


# --- windows ------------------------------------------------------------------------------


def read_windows(bench: Bench) -> list[Row]:
    """Shuffled windows of 2,048 tokens in batches of 16, by the side of bare copies (tokens/s)"""
    made = token_file(bench)
    tokens = np.asarray(np.memmap(made, np.uint16, "r"))  # slices of a memmap are slow to make
    datasets = {to: TokenDataset(packed(bench, made, to), seq_len=SEQ_LEN) for to in FORMATS}
    starts = batches_of(datasets["npy"])
    for to, dataset in datasets.items():
        check_same_windows(to, dataset, tokens, starts)
    # One window goes on at the file's first token: the bare loop leaves out the batch it is in.
    inside = [batch for batch in starts if max(batch) + SEQ_LEN < len(tokens)]
    cases: dict[str, Case] = {"bare loop": partial(bare_loop, tokens, inside)}
    for to, dataset in datasets.items():
        cases[f"{to}, no worker"] = partial(load, dataset, 0)
    cases["npy, 2 threads"] = partial(load, datasets["npy"], 2)
    result = bench.time(cases)
    rows = []
    for row in result.rows("bare loop"):
        if row.name == "npy, no worker":
            row = bench.judge(row, 500e6, row.samples_per_s)
            row = bench.judge(row, 0.7, row.ratio or 0.0)
        rows.append(row)
    return rows


def token_file(bench: Bench) -> Path:
    """Random ids in nanoGPT's format; 0 ends a document, of some 800 tokens."""
    num_tokens = 300_000 if bench.is_quick else 100_000_000
    folder = bench.workdir / "ids"

    def write() -> None:
        folder.mkdir(parents=True)
        random = np.random.default_rng(0)
        ids = random.integers(1, VOCAB, num_tokens, np.uint16)
        ids[random.integers(0, num_tokens, num_tokens // 800)] = 0
        ids[-1] = 0
        ids.tofile(folder / "train.bin")

    make_once(folder, {"num_tokens": num_tokens}, write)
    return folder / "train.bin"


def packed(bench: Bench, made: Path, to: str) -> Path:
    dest = bench.workdir / "packed" / f"ids-{to}"
    if not dest.exists():
        workers = 0 if bench.is_quick else None
        convert(made, dest, to=to, eos=0, workers=workers, progress=False)
    return dest


def batches_of(dataset: TokenDataset) -> list[list[int]]:
    """Where the windows begin, of each whole batch of the first epoch, as Loader has them."""
    num = len(dataset) // BATCH * BATCH
    phases, windows = np.divmod(dataset.order("full", SEED, 0).rows(np.arange(num)), len(dataset))
    found: list[list[int]] = (windows * SEQ_LEN + phases).reshape(-1, BATCH).tolist()
    return found


def bare_copies(tokens: np.ndarray[Any, Any], starts: list[int]) -> np.ndarray[Any, Any]:
    """One batch, as int64: inputs and labels are all but its last, and all but its first column."""
    out = np.empty((len(starts), SEQ_LEN + 1), np.int64)
    for row, start in enumerate(starts):
        out[row] = tokens[start : start + SEQ_LEN + 1]
    return out


def bare_loop(tokens: np.ndarray[Any, Any], batches: list[list[int]]) -> Work:
    for starts in batches:
        bare_copies(tokens, starts)
    return Work(len(batches) * BATCH * SEQ_LEN, len(batches) * BATCH * SEQ_LEN * 8, cache="warm")


def load(dataset: TokenDataset, workers: int) -> Work:
    loader = Loader(dataset, BATCH, shuffle="full", seed=SEED, workers=workers)
    num = sum(1 for _ in loader) * BATCH * SEQ_LEN
    return Work(num, num * 8, cache="warm")


def check_same_windows(
    name: str, dataset: TokenDataset, tokens: np.ndarray[Any, Any], batches: list[list[int]]
) -> None:
    """Stop the program unless the first batches are those of the bare loop."""
    tokens = np.concatenate([tokens, tokens[: SEQ_LEN + 1]])  # they lie in a circle
    loader = Loader(dataset, BATCH, shuffle="full", seed=SEED)
    for batch, starts in zip(loader, batches[:64], strict=False):
        both = bare_copies(tokens, starts)
        if not (
            np.array_equal(batch["inputs"].numpy(), both[:, :-1])
            and np.array_equal(batch["labels"].numpy(), both[:, 1:])
        ):
            raise SystemExit(f"{name} does not give the windows of the file")


def main() -> None:
    run_sections(__doc__ or "", {"pack-text": pack_text, "read-windows": read_windows})


if __name__ == "__main__":
    main()
