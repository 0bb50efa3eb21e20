"""The figures of gpu_proof.py, which runs each in a process of its own, as

    python scripts/tools/gpu_figures.py wait --jpegs JPEGS --raw RAW --out figure.json

Both datasets are of pictures, packed: as JPEG files, and as pixels.
"""

from __future__ import annotations

import argparse
import json
import statistics
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import closing
from dataclasses import asdict, replace
from functools import partial
from itertools import repeat
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parents[2]))  # a clone that is not installed
sys.path.append(str(Path(__file__).parents[1] / "examples"))
import torch
from gpu_model import fixed_batch, training_step
from gpu_setting import (
    Batch,
    LackingError,
    Row,
    Setting,
    Step,
    copied_meanwhile,
    steps,
    steps_for,
    watched_steps,
)
from torch.nn import functional as F  # noqa: N812  everybody's name for it

import shardkit
from shardkit.images import nvjpeg
from shardkit.measure.timing import Case, Work

Rows = tuple[list[Row], dict[str, str]]
"""And what could not be had -> why."""

NUM_LAYERS = 400
"""Of a model that is nothing but launches: some 2,400 kernels a step, each of microseconds."""


def overlap(setting: Setting) -> Rows:
    """Copies that run beside kernels: ResNet-50, fed raw pictures through CudaPrefetcher"""
    step = training_step(setting)
    activity = torch.profiler.ProfilerActivity
    chosen = activity.CUDA if setting.is_cuda else activity.CPU
    stream: Any = iter(fed(setting, setting.raw))
    with closing(stream) as batches:
        steps_for(batches, step, setting.seconds)  # the first copies have no step beside them
        setting.wait()
        with torch.profiler.profile(activities=[chosen]) as profile:
            started = time.perf_counter()
            num = steps_for(batches, step, setting.seconds / 2)  # each is a thousand events
            setting.wait()
            seconds = time.perf_counter() - started
    note = f"a kernel ran in {copied_meanwhile(profile):.1%} of the time of copies to the device"
    rate = num * setting.batch_size / seconds
    return [Row("CudaPrefetcher, traced", rate, note=note)], {}


def wait(setting: Setting) -> Rows:
    """How long ResNet-50 at full rate waits for data, by the device's own clock"""
    step = training_step(setting)
    fixed = fixed_batch(setting)
    shares: dict[str, list[float]] = {}

    def watched(name: str, path: Path) -> Work:
        work, share = watched_steps(setting, fed(setting, path), step)
        shares.setdefault(name, []).append(share)
        return work

    sources = {"raw pictures": setting.raw, "JPEGs": setting.jpegs}
    cases = {name: partial(watched, name, path) for name, path in sources.items()}
    rows = setting.time({"the step alone": partial(alone, setting, fixed, step), **cases})
    dtype = str(setting.dtype).removeprefix("torch.")
    notes = {name: f"waits {statistics.median(shares[name][1:]):.2%} of the time" for name in cases}
    notes["the step alone"] = f"{dtype}, batches of {setting.batch_size}"
    return [replace(row, note=notes[row.name]) for row in rows], {}


def bus(setting: Setting) -> Rows:
    """Batches from pinned memory to the device: float32, uint8, and uint8 made float32 there"""
    shape = (setting.batch_size, setting.size, setting.size, 3)
    pixels = torch.randint(0, 256, shape, dtype=torch.uint8)
    sent = {"float32": setting.pinned(pixels.float()), "uint8": setting.pinned(pixels)}
    normalize = shardkit.normalize()

    def copies(tensor: torch.Tensor, *, is_cast: bool = False) -> Work:
        num = 2 if setting.is_quick else 200
        for _ in range(num):
            copy = tensor.to(setting.device, non_blocking=True, copy=True)
            if is_cast:
                normalize({"image": copy})
        setting.wait()
        return Work(num * len(tensor), num * tensor.nbytes)

    cases: dict[str, Case] = {name: partial(copies, tensor) for name, tensor in sent.items()}
    cases["uint8, normalised there"] = partial(copies, sent["uint8"], is_cast=True)
    return setting.time(cases), {}


def prefetcher(setting: Setting) -> Rows:
    """The same ResNet-50 on raw pictures, copied in three ways"""
    step = training_step(setting)
    normalize = shardkit.normalize(channels_last=True)

    def copied(non_blocking: bool) -> Step:
        def copy_and_step(batch: Batch) -> None:
            there = {
                name: batch[name].to(setting.device, non_blocking=non_blocking)
                for name in ("image", "cls")
            }
            step(normalize(there))

        return copy_and_step

    def plain() -> Work:
        return steps(setting, setting.loader(setting.raw), copied(non_blocking=False))

    def pinned() -> Work:
        batches = setting.loader(setting.raw, pin_memory=True)
        return steps(setting, batches, copied(non_blocking=True))

    def prefetched() -> Work:
        return steps(setting, fed(setting, setting.raw), step)

    cases = {"to(device)": plain, "pin_memory, non_blocking": pinned, "CudaPrefetcher": prefetched}
    return setting.time(cases), {}


def launches(setting: Setting) -> Rows:
    """A step of many small kernels, alone and beside workers that decode JPEGs"""
    width = 16 if setting.is_quick else 256
    num_layers = 4 if setting.is_quick else NUM_LAYERS
    layers = [torch.nn.Linear(width, width) for _ in range(num_layers)]
    model = torch.nn.Sequential(*layers).to(setting.device)

    def step(batch: Batch) -> None:
        out = model(batch["image"].flatten(1)[:, :width].float() / 255)
        out.square().mean().backward()
        model.zero_grad()

    def beside(worker_type: str) -> Work:
        batches = setting.loader(setting.jpegs, worker_type=worker_type, device=setting.device)
        return steps(setting, batches, step)

    shape = (setting.batch_size, setting.size, setting.size, 3)
    fixed = {"image": torch.zeros(shape, dtype=torch.uint8, device=setting.device)}
    cases: dict[str, Case] = {
        "the step alone": partial(alone, setting, fixed, step),
        f"{setting.workers} threads": partial(beside, "thread"),
        f"{setting.workers} processes": partial(beside, "process"),
    }
    return setting.time(cases), {}


def decode(setting: Setting) -> Rows:
    """JPEGs to pixels on the device, with nothing else to do there"""
    cases: dict[str, Case] = {"shardkit decodes crops, then copies": partial(decode_here, setting)}
    lacking: dict[str, str] = {}
    others = {"nvJPEG, whole pictures, then resized": by_nvjpeg, "DALI, mixed": by_dali}
    for name, make in others.items():
        try:
            cases[name] = make(setting)
        except LackingError as why:
            lacking[name] = str(why)
    return setting.time(cases), lacking


FIGURES: dict[str, Callable[[Setting], Rows]] = {
    "overlap": overlap,
    "wait": wait,
    "bus": bus,
    "prefetcher": prefetcher,
    "decode": decode,
    "launches": launches,
}


# --- ways to feed -------------------------------------------------------------------------


def fed(setting: Setting, path: Path) -> shardkit.Loader:
    """Through CudaPrefetcher, normalised on the device."""
    normalize = shardkit.normalize(channels_last=True)
    return setting.loader(path, device=setting.device, device_transform=normalize)


def alone(setting: Setting, batch: Batch, step: Step) -> Work:
    """Steps on a batch that is there already."""
    return steps(setting, repeat(batch), step)


def decode_here(setting: Setting) -> Work:
    batches = setting.loader(setting.jpegs, device=setting.device)
    return steps(setting, batches, lambda batch: None)


def by_nvjpeg(setting: Setting) -> Case:
    if not (setting.is_cuda and nvjpeg.is_available()):
        raise LackingError("it needs torchvision and a CUDA device")

    def decode_there(batch: Batch) -> None:
        pictures = nvjpeg.decode_batch(batch["jpg"], setting.device)
        pixels = torch.stack(pictures).permute(0, 3, 1, 2).float()  # all are of one size
        size = (setting.size, setting.size)
        F.interpolate(pixels, size, mode="bilinear", antialias=True).byte()

    files = setting.loader(setting.jpegs, transform=None)
    return lambda: steps(setting, files, decode_there)


def by_dali(setting: Setting) -> Case:
    """The pipeline of examples/dali_pipeline.py, in shardkit's order."""
    try:
        import dali_pipeline
    except ImportError as error:
        raise LackingError(f"NVIDIA DALI is not installed: {error}") from error
    words = [str(setting.jpegs), "--threads", str(setting.workers), "--size", str(setting.size)]
    words += ["--batch-size", str(setting.batch_size)]
    options = dali_pipeline.parse_arguments(words)
    pipeline, num_batches = dali_pipeline.build(options)
    pipeline.build()

    def endless() -> Iterator[Batch]:
        while True:
            for pixels, labels in dali_pipeline.epoch(pipeline, num_batches, "shardkit"):
                yield {"image": pixels, "cls": labels}

    return lambda: steps(setting, endless(), lambda batch: None)


# --- the command --------------------------------------------------------------------------


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("figure", choices=FIGURES)
    parser.add_argument("--jpegs", type=Path, required=True, help="a packed dataset")
    parser.add_argument("--raw", type=Path, required=True, help="the same, as pixels")
    parser.add_argument("--out", type=Path, required=True, help="JSON to write")
    parser.add_argument("--device", type=torch.device, default="cuda", help="(%(default)s)")
    parser.add_argument("--quick", action="store_true", help="tiny sizes: does it run?")
    args = parser.parse_args()
    quick: dict[str, Any] = {"seconds": 0.01, "is_quick": True} if args.quick else {}
    setting = Setting(args.jpegs, args.raw, args.device, **quick)
    figure = FIGURES[args.figure]
    found: dict[str, Any] = {"title": figure.__doc__, "rows": [], "lacking": {}}
    try:
        rows, found["lacking"] = figure(setting)
    except LackingError as why:
        found["lacking"] = {"all of it": str(why)}
    else:
        found["rows"] = [asdict(row) for row in rows]
    args.out.write_text(json.dumps(found))


if __name__ == "__main__":
    main()
