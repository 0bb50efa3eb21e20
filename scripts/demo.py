"""What `make demo` runs: pictures and text are packed, verified, read back, timed and trained on.

Everything it makes stays in one folder (demo/), to look at afterwards.
"""

from __future__ import annotations

import argparse
import os
import shutil
import subprocess
import sys
import time
from pathlib import Path
from statistics import median

from shardkit.loading.loader import Loader
from shardkit.measure.machine import describe, machine
from shardkit.measure.timing import Case, Result, Work, interleave
from shardkit.reading.dataset import Dataset
from shardkit.sequences.token_dataset import TokenDataset

sys.path += [str(Path(__file__).with_name(name)) for name in ("tools", "benchmarks")]
import find_text
from make_pictures import Pictures
from plain_folder import PlainFolder

FORMATS = ("lmdb", "hdf5", "webdataset", "npy")
BATCH = 64
SEQ_LEN = 128
TRAINING = Path(__file__).with_name("examples") / "train_images.py"
MARKER = ".made-by-shardkit-demo"


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--folder", type=Path, default=Path("demo"), help="work in (%(default)s)")
    parser.add_argument("--count", type=int, default=4000, help="pictures (%(default)s)")
    parser.add_argument("--text", type=int, default=1_000_000, help="bytes (%(default)s)")
    args = parser.parse_args()
    start_afresh(args.folder)
    pictures = args.folder / "pictures"

    say(f"1. Make {args.count:,} small JPEG files in 10 class folders")
    num_bytes = Pictures(args.count).write(pictures)
    print(f"   {pictures}: {num_bytes / 1e6:.1f} MB of pictures\n")

    say("2. Pack them into each of the four formats")
    packed = {to: args.folder / f"pictures-{to}" for to in FORMATS}
    for to, dest in packed.items():
        shardkit_command("pack", str(pictures), str(dest), "--to", to)

    say("3. Verify: every checksum, and every byte against the original files")
    for dest in packed.values():
        shardkit_command("verify", str(dest), "--against", str(pictures))

    say("4. Look into one")
    shardkit_command("info", str(packed["lmdb"]))

    say("5. Read all of it back in random order, and compare with the folder")
    datasets = {to: Dataset(dest) for to, dest in packed.items()}
    files = PlainFolder.of(pictures)
    for to, dataset in datasets.items():
        files.check_same(to, dataset)
    print(f"   All five hold the same {len(files):,} pictures and labels. Now the clock:\n")
    print(table(time_reading(datasets, files), {"folder": pictures, **packed}))
    print(f"""
   samples/s: pictures and labels in shuffled batches of {BATCH}, copied into Python bytes, one
   thread, files in the page cache; median of rounds in turn. No decoding.
   On slow or cold disks, and with larger pictures, the numbers differ: see `make bench`.
   {describe(machine())}
""")

    say("6. Train a small ResNet on it, with crops and flips, on one core: watch the loss fall")
    train(packed["lmdb"], args.count)

    say("7. Pack some text of this machine as tokens, and read windows of them")
    pack_text(args.folder / "text", args.folder / "text-npy", args.text)
    read_windows(args.folder / "text-npy")

    print(f"""
Done. It is all in {args.folder}/. Next: .venv/bin/shardkit --help, and the README.""")


def say(line: str) -> None:
    print(line, flush=True)


def start_afresh(folder: Path) -> None:
    """An empty folder; of an earlier demo if it exists, never somebody else's."""
    if folder.exists():
        if not (folder / MARKER).exists():
            raise SystemExit(f"{folder} exists and was not made by this demo; move it, or --folder")
        shutil.rmtree(folder)
    folder.mkdir(parents=True)
    (folder / MARKER).touch()


def shardkit_command(*words: str) -> None:
    """Show a command as a person types it, and run it; its output goes below, indented."""
    print(f"   $ shardkit {' '.join(words)}", flush=True)
    run_indented([sys.executable, "-m", "shardkit", *words])


def run_indented(command: list[str], **env: str) -> None:
    """Print what a command prints as it comes, below it."""
    with subprocess.Popen(
        command,
        env={**os.environ, **env},
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    ) as process:
        for line in process.stdout or ():
            print(f"     {line}", end="", flush=True)
    print()
    if process.returncode:
        raise SystemExit(f"the command above failed with exit code {process.returncode}")


def time_reading(datasets: dict[str, Dataset], files: PlainFolder) -> Result:
    """One shuffled epoch a round, each way."""
    batches = files.batches(BATCH)

    def folder() -> Work:
        num_bytes = 0
        for rows in batches:
            pictures, _ = files.read(rows)
            num_bytes += sum(map(len, pictures))
        return Work(len(files), num_bytes, cache="warm")

    def packed(dataset: Dataset) -> Case:
        def epoch() -> Work:
            num_bytes = 0
            for rows in batches:
                batch = dataset.read(rows)
                num_bytes += sum(len(bytes(data)) for data in batch["jpg"])
            return Work(len(files), num_bytes, cache="warm")

        return epoch

    return interleave({"folder": folder} | {to: packed(ds) for to, ds in datasets.items()})


def table(result: Result, folders: dict[str, Path]) -> str:
    lines = [f"   {'':12}{'samples/s':>12}{'':10}{'files':>8}{'on disk':>12}"]
    for name, folder in folders.items():
        speed = median(result[name].rates("samples"))
        times = "" if name == "folder" else f"{result.ratio(name, 'folder'):.1f} x"
        paths = [path for path in folder.rglob("*") if path.is_file()]
        used = sum(os.stat(path).st_blocks for path in paths) * 512
        lines.append(f"   {name:12}{speed:>12,.0f}{times:>10}{len(paths):>8,}{used / 1e6:>9.1f} MB")
    return "\n".join(lines)


def train(dataset: Path, count: int) -> None:
    """Two epochs of the training script that is there to be copied, as a person starts it."""
    steps = 2 * (count // 32)
    options = "--epochs 2 --global-batch-size 32 --size 32 --width 16 --lr 0.02 --precision fp32"
    options += f" --workers 1 --device cpu --log-every {max(1, steps // 10)}"
    script = os.path.relpath(TRAINING)
    print(f"   $ OMP_NUM_THREADS=1 python {script} {dataset} {options}", flush=True)
    command = [sys.executable, str(TRAINING), str(dataset), *options.split()]
    run_indented(command, OMP_NUM_THREADS="1")
    print("   waited: share of the time in which the loop had no batch to train on\n")


def pack_text(folder: Path, packed: Path, num_bytes: int) -> None:
    num_files = find_text.find(folder, num_bytes)
    if not num_files:
        raise SystemExit("no text was found on this machine")
    print(f"   {folder}: {num_files:,} files of sources, manual pages and licences\n")
    shardkit_command("pack", str(folder), str(packed), "--train-tokenizer", "1000")
    shardkit_command("show", str(packed), "--num", "1")


def read_windows(packed: Path) -> None:
    """An epoch of shuffled windows through the Loader."""
    windows = TokenDataset(packed, seq_len=SEQ_LEN)
    loader = Loader(windows, BATCH, shuffle="full", workers=1, last="pad")
    first = next(iter(loader))
    started = time.perf_counter()
    num_tokens = sum(batch["inputs"].numel() for batch in loader)
    rate = num_tokens / (time.perf_counter() - started)
    print(f"   {len(windows):,} windows of {SEQ_LEN} tokens each; a batch of the Loader:")
    for name, values in first.items():
        print(f"     {name}: {tuple(values.shape)} {values.dtype}")
    print(f"   {rate:,.0f} tokens/s in random order, one thread.")


if __name__ == "__main__":
    main()
