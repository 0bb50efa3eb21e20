"""Pack, read and train with an installed shardkit, as someone does who has no compiler.

    python wheel_trial.py

It is run by ``make wheel``, in an environment and a folder of its own.
"""

from __future__ import annotations

import shutil
import subprocess
import sys
from importlib.metadata import files
from pathlib import Path

import numpy as np
import simplejpeg
import torch

import shardkit
from shardkit.images import kernel, restarts
from shardkit.memory import gather
from shardkit.order import permutation

SIZE = 32


def make_pictures(root: Path) -> None:
    """Two classes that a linear model tells apart: dark and bright."""
    rng = np.random.default_rng(0)
    for name, level in (("dark", 60), ("bright", 190)):
        (root / name).mkdir(parents=True)
        for i in range(48):
            noise = rng.integers(-40, 40, (48, 64, 3))
            pixels = np.ascontiguousarray(level + noise, np.uint8)
            (root / name / f"{i}.jpg").write_bytes(simplejpeg.encode_jpeg(pixels))


def train(dataset: Path) -> float:
    """The mean loss of the last epoch of three."""
    transform = shardkit.images.train(size=SIZE)
    loader = shardkit.Loader(
        shardkit.open(dataset),
        16,
        shuffle="full",
        transform=transform,
        device="cpu",
        device_transform=shardkit.normalize(),
    )
    model = torch.nn.Sequential(torch.nn.Flatten(), torch.nn.Linear(3 * SIZE * SIZE, 2))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    losses: list[float] = []
    for _ in range(3):
        losses = []
        for batch in loader:
            loss = torch.nn.functional.cross_entropy(model(batch["image"]), batch["cls"])
            optimizer.zero_grad()
            loss.backward()  # type: ignore[no-untyped-call]
            optimizer.step()
            losses.append(loss.item())
    return sum(losses) / len(losses)


def refuse(is_wrong: bool, what: str) -> None:
    if is_wrong:
        sys.exit(f"the wheel is not as it must be: {what}")


def main() -> None:
    for program in ("cc", "gcc", "clang"):
        refuse(shutil.which(program) is not None, f"{program} is here, so that this proves little")
    home = Path(shardkit.__file__)
    refuse(not home.is_relative_to(sys.prefix), f"shardkit was imported from {home}")
    refuse(not kernel.is_available(), kernel.why_not())
    refuse(bool(restarts.why_not()), restarts.why_not())
    refuse(not gather.is_available(), "shardkit.memory._gather is not in it")
    refuse(permutation.compiled() is None, "shardkit.order._permute is not in it")
    make_pictures(Path("pictures"))
    for command in ("pack pictures packed --to npy", "verify packed --against pictures"):
        subprocess.run(["shardkit", *command.split()], check=True)
    refuse(len(shardkit.open("packed")) != 96, "it does not read what it packed")
    loss = train(Path("packed"))
    refuse(not loss < 0.5, f"the loss is {loss:.3f} after three epochs")
    mapped = Path("/proc/self/maps").read_text()
    refuse("shardkit.libs/libjpeg" not in mapped, "libjpeg-turbo is not its own")
    named = [file.name for file in files("shardkit") or []]
    refuse("LICENSE.libjpeg-turbo" not in named, "the licence of libjpeg-turbo is not in it")
    print(f"shardkit {shardkit.__version__} packs, reads and trains here, with its kernel.")


if __name__ == "__main__":
    main()
