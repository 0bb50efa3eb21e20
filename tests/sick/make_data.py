"""Makes the data that the scripts in this folder train on: `make_data.py FOLDER`, 34 MB.

The same folder comes out each time, but for the bytes that PIL and `tokenizers` choose.
"""

from __future__ import annotations

import argparse
from pathlib import Path

import numpy as np
from PIL import Image
from tokenizers import Tokenizer, models, pre_tokenizers, trainers


def photo(rng: np.random.Generator, width: int, height: int) -> Image.Image:
    """Smooth colours with some grain, which costs a decoder what a photograph does."""
    coarse = rng.integers(0, 256, (height // 40, width // 40, 3), dtype=np.uint8)
    smooth = Image.fromarray(coarse).resize((width, height), Image.Resampling.BICUBIC)
    grain = rng.integers(-12, 13, (height, width, 1), dtype=np.int16)
    return Image.fromarray((np.asarray(smooth) + grain).clip(0, 255).astype(np.uint8))


def write_jpegs(folder: Path, count: int, width: int, height: int) -> None:
    """Pictures in ten classes: ``3_0013.jpg`` is the fourteenth, of class 3."""
    folder.mkdir()
    rng = np.random.default_rng(width)
    for i in range(count):
        photo(rng, width, height).save(folder / f"{i % 10}_{i:04d}.jpg", quality=88)


def write_arrays(folder: Path, count: int) -> None:
    """Pictures as bare bytes: uint8, 3 x 96 x 96."""
    folder.mkdir()
    rng = np.random.default_rng(1)
    for i in range(count):
        pixels = rng.integers(0, 256, (3, 96, 96), dtype=np.uint8)
        (folder / f"{i % 10}_{i:04d}.bin").write_bytes(pixels.tobytes())


def write_texts(folder: Path, count: int, num_words: int) -> None:
    """Documents of made-up words, the frequent ones frequent as in a language (Zipf)."""
    folder.mkdir()
    rng = np.random.default_rng(2)
    syllables = [a + b for a in "bdfgklmnprstvz" for b in ("a", "e", "i", "o", "u", "an", "er")]
    words = ["".join(rng.choice(syllables, rng.integers(1, 5))) for _ in range(20_000)]
    for i in range(count):
        chosen = (rng.zipf(1.1, num_words) - 1) % len(words)
        (folder / f"{i:03d}.txt").write_text(" ".join(words[k] for k in chosen))


def train_tokenizer(texts: Path, path: Path) -> None:
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel()
    trainer = trainers.BpeTrainer(vocab_size=2000, show_progress=False)
    tokenizer.train([str(path) for path in sorted(texts.iterdir())[:8]], trainer)
    tokenizer.save(str(path))


def write_digits(path: Path, count: int) -> None:
    """Noisy blobs, 28 x 28, the place of each blob by its class."""
    rng = np.random.default_rng(3)
    labels = rng.integers(0, 10, count)
    images = rng.integers(0, 100, (count, 28, 28), dtype=np.uint8)
    for image, label in zip(images, labels, strict=True):
        row, column = divmod(int(label), 4)
        image[row * 9 : row * 9 + 7, column * 7 : column * 7 + 7] += 120
    np.savez(path, images=images, labels=labels)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("folder", type=Path)
    folder = parser.parse_args().folder
    folder.mkdir(parents=True, exist_ok=True)
    write_jpegs(folder / "photos", 24, 1920, 1280)
    write_jpegs(folder / "pictures", 120, 400, 300)
    write_arrays(folder / "arrays", 240)
    write_texts(folder / "texts", 60, 2500)
    train_tokenizer(folder / "texts", folder / "tokenizer.json")
    write_digits(folder / "digits.npz", 2048)


if __name__ == "__main__":
    main()
