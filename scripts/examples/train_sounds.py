"""Train on sound: class folders of .wav, packed, decoded in the loader's workers.

``python train_sounds.py`` makes tones of four classes, packs them and trains a small network. It
decodes by Python's own ``wave``. For .flac, .mp3 and film open the dataset with
``decode="torchcodec"``, and let the transform ask ``sample["mp3"].get_all_samples().data``.
"""

from __future__ import annotations

import argparse
import io
import wave
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import nn

import shardkit

RATE = 8000
SAMPLES = 2048
"""Of each sound that is trained on: a quarter of a second."""

PITCHES = {"low": 200, "middle": 500, "high": 900, "higher": 1600}


def make_sounds(folder: Path, count: int) -> None:
    """So many tones of each class, each of its own pitch, length and noise."""
    rng = np.random.default_rng(0)
    for name, pitch in PITCHES.items():
        (folder / name).mkdir(parents=True, exist_ok=True)
        for number in range(count):
            time = np.arange(SAMPLES + rng.integers(0, 2000)) / RATE
            tone = np.sin(2 * np.pi * pitch * rng.uniform(0.9, 1.1) * time)
            noisy = tone + rng.normal(0, 0.2, len(time))
            with wave.open(str(folder / name / f"{number:03d}.wav"), "wb") as file:
                file.setparams((1, 2, RATE, 0, "NONE", ""))
                file.writeframes((noisy * 8000).astype("<i2").tobytes())


class Clip:
    """From the bytes of a .wav to the first samples of it, float32 (SAMPLES,)."""

    def __call__(self, sample: dict[str, Any]) -> dict[str, Any]:
        with wave.open(io.BytesIO(sample["wav"])) as file:
            held = np.frombuffer(file.readframes(SAMPLES), "<i2").astype(np.float32) / 8000
        return {"sound": np.pad(held, (0, SAMPLES - len(held))), "cls": sample["cls"]}

    def __repr__(self) -> str:
        return f"Clip({SAMPLES})"


def train(dataset: Path, epochs: int) -> float:
    """The share of right answers in the last epoch, while training."""
    torch.manual_seed(0)
    ds = shardkit.open(dataset)
    classes = len(ds.info.classes or ())
    loader = shardkit.Loader(ds, 16, shuffle="full", transform=Clip(), workers=2)
    model = nn.Sequential(nn.Linear(SAMPLES // 2 + 1, 32), nn.ReLU(), nn.Linear(32, classes))
    optimizer = torch.optim.Adam(model.parameters(), 1e-3)
    right = 0.0
    for _ in range(epochs):
        hits = [_step(model, optimizer, batch) for batch in loader]
        right = sum(hits) / len(hits)
    return right


def _step(model: nn.Module, optimizer: torch.optim.Optimizer, batch: dict[str, Any]) -> float:
    scores = model(torch.fft.rfft(batch["sound"]).abs().log1p())
    loss = nn.functional.cross_entropy(scores, batch["cls"])
    optimizer.zero_grad()
    loss.backward()  # type: ignore[no-untyped-call]
    optimizer.step()
    return float((scores.argmax(1) == batch["cls"]).float().mean())


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--folder", type=Path, default=Path("sounds"))
    parser.add_argument("--count", type=int, default=64, help="sounds of each class")
    parser.add_argument("--epochs", type=int, default=4)
    options = parser.parse_args()
    make_sounds(options.folder, options.count)
    packed = shardkit.pack(options.folder, f"{options.folder}-lmdb", to="lmdb", overwrite=True)
    right = train(Path(packed.dest), options.epochs)
    print(f"{packed.num_samples} sounds, {right:.0%} right after {options.epochs} epochs")


if __name__ == "__main__":
    main()
