"""Trains a small network on class folders with Lightning."""

import argparse
import time
from pathlib import Path

import lightning
import numpy as np
import torch
from PIL import Image
from torch import nn
from torch.nn.functional import cross_entropy
from torch.utils.data import DataLoader, Dataset


class Pictures(Dataset):
    def __init__(self, root):
        self.paths = sorted(Path(root).glob("*/*"))
        names = sorted({path.parent.name for path in self.paths})
        self.labels = [names.index(path.parent.name) for path in self.paths]

    def __len__(self):
        return len(self.paths)

    def __getitem__(self, i):
        with Image.open(self.paths[i]) as image:
            small = image.convert("RGB").resize((112, 112))
        pixels = torch.from_numpy(np.array(small)).permute(2, 0, 1)
        return pixels.float() / 255, self.labels[i]


class Classifier(lightning.LightningModule):
    def __init__(self, num_classes):
        super().__init__()
        self.model = nn.Sequential(
            nn.Conv2d(3, 32, 5, stride=4),
            nn.ReLU(),
            nn.Conv2d(32, 64, 3, stride=2),
            nn.ReLU(),
            nn.AdaptiveAvgPool2d(4),
            nn.Flatten(),
            nn.Linear(64 * 16, num_classes),
        )

    def training_step(self, batch, _index):
        images, labels = batch
        loss = cross_entropy(self.model(images), labels)
        self.log("train_loss", loss, prog_bar=True)
        return loss

    def configure_optimizers(self):
        return torch.optim.AdamW(self.parameters(), lr=1e-3)


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("data", help="a folder of class folders")
    parser.add_argument("--workers", type=int, default=2)
    parser.add_argument("--epochs", type=int, default=10)
    args = parser.parse_args()

    lightning.seed_everything(0)
    dataset = Pictures(args.data)
    loader = DataLoader(dataset, batch_size=16, shuffle=True, num_workers=args.workers)
    trainer = lightning.Trainer(
        max_epochs=args.epochs,
        accelerator="auto",
        devices=1,
        logger=False,
        log_every_n_steps=10,
        enable_checkpointing=False,
        enable_model_summary=False,
    )
    start = time.perf_counter()
    trainer.fit(Classifier(max(dataset.labels) + 1), loader)
    seconds = time.perf_counter() - start
    print(f"{args.epochs * len(dataset) / seconds:.1f} samples/s")


if __name__ == "__main__":
    main()
