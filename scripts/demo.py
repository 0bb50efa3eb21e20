"""What `make demo` runs: pictures, packed into four formats, verified, read back and timed.

Everything it makes stays in one folder (demo/), to look at afterwards.
"""

from __future__ import annotations

import argparse
import os
import shutil
import subprocess
import sys
from pathlib import Path
from statistics import median

from make_pictures import Pictures
from plain_folder import PlainFolder

from shardkit.measure.machine import describe, machine
from shardkit.measure.timing import Case, Result, Work, interleave
from shardkit.reading.dataset import Dataset

FORMATS = ("lmdb", "hdf5", "webdataset", "npy")
BATCH = 64
MARKER = ".made-by-shardkit-demo"


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--folder", type=Path, default=Path("demo"), help="work in (%(default)s)")
    parser.add_argument("--count", type=int, default=4000, help="pictures (%(default)s)")
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
    command = [sys.executable, "-m", "shardkit", *words]
    done = subprocess.run(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
    print("".join(f"     {line}\n" for line in done.stdout.splitlines()))
    if done.returncode:
        raise SystemExit(f"the command above failed with exit code {done.returncode}")


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


if __name__ == "__main__":
    main()
