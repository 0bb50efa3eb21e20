"""The usual ImageNet loop: class folders, random crops, a residual network, meters, checkpoints."""

import argparse
import random
import time
from pathlib import Path

import numpy as np
import torch
from PIL import Image
from torch import nn
from torch.utils.data import DataLoader, Dataset

MEAN = torch.tensor([0.485, 0.456, 0.406]).view(3, 1, 1)
STD = torch.tensor([0.229, 0.224, 0.225]).view(3, 1, 1)


class ImageFolder(Dataset):
    """Pictures in a folder for each class, as torchvision's."""

    def __init__(self, root, transform):
        self.classes = sorted(path.name for path in Path(root).iterdir() if path.is_dir())
        self.samples = [
            (path, label)
            for label, name in enumerate(self.classes)
            for path in sorted((Path(root) / name).iterdir())
        ]
        self.transform = transform

    def __len__(self):
        return len(self.samples)

    def __getitem__(self, index):
        path, label = self.samples[index]
        with Image.open(path) as image:
            return self.transform(image.convert("RGB")), label


def random_resized_crop(image, size=112):
    width, height = image.size
    side = min(width, height) * random.uniform(0.6, 1) ** 0.5
    left, top = random.uniform(0, width - side), random.uniform(0, height - side)
    box = (left, top, left + side, top + side)
    return image.resize((size, size), Image.Resampling.BILINEAR, box=box)


def to_normalized_tensor(image):
    pixels = torch.from_numpy(np.array(image)).permute(2, 0, 1)
    return (pixels.float() / 255 - MEAN) / STD


def train_transform(image):
    image = random_resized_crop(image)
    if random.random() < 0.5:
        image = image.transpose(Image.Transpose.FLIP_LEFT_RIGHT)
    return to_normalized_tensor(image)


class Block(nn.Module):
    def __init__(self, inputs, outputs, stride):
        super().__init__()
        self.conv1 = nn.Conv2d(inputs, outputs, 3, stride, 1, bias=False)
        self.bn1 = nn.BatchNorm2d(outputs)
        self.conv2 = nn.Conv2d(outputs, outputs, 3, 1, 1, bias=False)
        self.bn2 = nn.BatchNorm2d(outputs)
        self.shortcut = nn.Conv2d(inputs, outputs, 1, stride)

    def forward(self, x):
        out = self.bn1(self.conv1(x)).relu()
        return (self.bn2(self.conv2(out)) + self.shortcut(x)).relu()


def small_resnet(num_classes):
    return nn.Sequential(
        nn.Conv2d(3, 16, 7, 4, 3, bias=False),
        nn.BatchNorm2d(16),
        nn.ReLU(),
        Block(16, 32, 2),
        Block(32, 64, 2),
        nn.AdaptiveAvgPool2d(1),
        nn.Flatten(),
        nn.Linear(64, num_classes),
    )


class AverageMeter:
    def __init__(self, name):
        self.name, self.value, self.sum, self.count = name, 0.0, 0.0, 0

    def update(self, value, n=1):
        self.value = value
        self.sum += value * n
        self.count += n

    def __str__(self):
        return f"{self.name} {self.value:.3f} ({self.sum / self.count:.3f})"


def accuracy(output, target, topk):
    with torch.no_grad():
        _, pred = output.topk(max(topk), dim=1)
        correct = pred.eq(target.view(-1, 1))
        return [correct[:, :k].float().sum() * (100 / len(target)) for k in topk]


def train(loader, model, criterion, optimizer, epoch, device, args):
    batch_time, data_time = AverageMeter("Time"), AverageMeter("Data")
    losses, top1, top5 = AverageMeter("Loss"), AverageMeter("Acc@1"), AverageMeter("Acc@5")
    model.train()
    end = time.time()
    for i, (images, target) in enumerate(loader):
        data_time.update(time.time() - end)
        images = images.to(device, non_blocking=True)
        target = target.to(device, non_blocking=True)
        output = model(images)
        loss = criterion(output, target)
        acc1, acc5 = accuracy(output, target, topk=(1, 5))
        losses.update(loss.item(), len(images))
        top1.update(acc1.item(), len(images))
        top5.update(acc5.item(), len(images))
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        batch_time.update(time.time() - end)
        end = time.time()
        if i % args.print_freq == 0:
            print(f"Epoch [{epoch}][{i}/{len(loader)}]", batch_time, data_time, losses, top1, top5)


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("data", help="a folder of class folders")
    parser.add_argument("-j", "--workers", type=int, default=2)
    parser.add_argument("-b", "--batch-size", type=int, default=16)
    parser.add_argument("--epochs", type=int, default=10)
    parser.add_argument("--lr", type=float, default=0.1)
    parser.add_argument("-p", "--print-freq", type=int, default=10)
    parser.add_argument("--checkpoint", help="a file to save to after each epoch")
    args = parser.parse_args()

    device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
    dataset = ImageFolder(args.data, train_transform)
    loader = DataLoader(
        dataset,
        batch_size=args.batch_size,
        shuffle=True,
        num_workers=args.workers,
        pin_memory=device.type == "cuda",
    )
    model = small_resnet(len(dataset.classes)).to(device)
    criterion = nn.CrossEntropyLoss()
    optimizer = torch.optim.SGD(model.parameters(), args.lr, momentum=0.9, weight_decay=1e-4)
    scheduler = torch.optim.lr_scheduler.StepLR(optimizer, step_size=30, gamma=0.1)

    start = time.perf_counter()
    for epoch in range(args.epochs):
        train(loader, model, criterion, optimizer, epoch, device, args)
        scheduler.step()
        if args.checkpoint:
            state = {"epoch": epoch + 1, "state_dict": model.state_dict()}
            torch.save(state | {"optimizer": optimizer.state_dict()}, args.checkpoint)
    seconds = time.perf_counter() - start
    print(f"{args.epochs * len(dataset) / seconds:.1f} samples/s")


if __name__ == "__main__":
    main()
