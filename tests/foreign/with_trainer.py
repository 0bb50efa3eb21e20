"""Trains a small vision transformer on class folders with the Trainer of transformers."""

import argparse
import tempfile
from pathlib import Path

import numpy as np
import torch
from PIL import Image
from torch.utils.data import Dataset
from transformers import Trainer, TrainingArguments, ViTConfig, ViTForImageClassification


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
        return {"pixel_values": pixels.float() / 127.5 - 1, "labels": self.labels[i]}


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("data", help="a folder of class folders")
    parser.add_argument("--workers", type=int, default=2)
    parser.add_argument("--epochs", type=int, default=10)
    args = parser.parse_args()

    dataset = Pictures(args.data)
    config = ViTConfig(
        hidden_size=64,
        num_hidden_layers=2,
        num_attention_heads=2,
        intermediate_size=128,
        image_size=112,
        num_labels=max(dataset.labels) + 1,
    )
    with tempfile.TemporaryDirectory() as folder:
        arguments = TrainingArguments(
            output_dir=folder,
            num_train_epochs=args.epochs,
            per_device_train_batch_size=16,
            dataloader_num_workers=args.workers,
            logging_steps=20,
            save_strategy="no",
            report_to="none",
        )
        trainer = Trainer(ViTForImageClassification(config), arguments, train_dataset=dataset)
        metrics = trainer.train().metrics
    print(f"{metrics['train_samples_per_second']:.1f} samples/s")


if __name__ == "__main__":
    main()
