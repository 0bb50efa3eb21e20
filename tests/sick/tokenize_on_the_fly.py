"""Trains a small language model on text files, each tokenized whole to cut one window from it."""

import argparse
import random
import time
from pathlib import Path

import torch
from tokenizers import Tokenizer
from torch import nn
from torch.nn.functional import cross_entropy
from torch.utils.data import DataLoader, Dataset, RandomSampler

LENGTH = 64


class Texts(Dataset):
    def __init__(self, data, once):
        self.paths = sorted((data / "texts").iterdir())
        self.tokenizer = Tokenizer.from_file(str(data / "tokenizer.json"))
        self.tokens = [self.tokenize(path) for path in self.paths] if once else None

    def tokenize(self, path):
        return torch.tensor(self.tokenizer.encode(path.read_text()).ids)

    def __len__(self):
        return len(self.paths)

    def __getitem__(self, i):
        tokens = self.tokens[i] if self.tokens else self.tokenize(self.paths[i])
        start = random.randrange(len(tokens) - LENGTH)
        return tokens[start : start + LENGTH + 1]


class Model(nn.Module):
    def __init__(self, vocabulary=2000, width=64):
        super().__init__()
        self.embed = nn.Embedding(vocabulary, width)
        self.mix = nn.Conv1d(width, width, 4)
        self.head = nn.Linear(width, vocabulary)

    def forward(self, tokens):
        past = nn.functional.pad(self.embed(tokens).transpose(1, 2), (3, 0))
        return self.head(self.mix(past).relu().transpose(1, 2))


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--data", type=Path, required=True)
    parser.add_argument("--steps", type=int, default=200)
    parser.add_argument("--cure", action="store_true", help="tokenize all files once, before")
    args = parser.parse_args()
    torch.manual_seed(0)
    torch.set_num_threads(1)

    dataset = Texts(args.data, once=args.cure)
    sampler = RandomSampler(dataset, replacement=True, num_samples=args.steps * 8)
    loader = DataLoader(dataset, batch_size=8, sampler=sampler, num_workers=2)
    model = Model()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)

    for step, tokens in enumerate(loader, start=1):
        optimizer.zero_grad()
        logits = model(tokens[:, :-1])
        loss = cross_entropy(logits.flatten(0, 1), tokens[:, 1:].flatten())
        loss.backward()
        optimizer.step()
        if step == args.steps // 2:
            halfway = time.perf_counter()
    seconds = time.perf_counter() - halfway
    print(f"{8 * (step - args.steps // 2) / seconds:.1f} samples/s")


if __name__ == "__main__":
    main()
