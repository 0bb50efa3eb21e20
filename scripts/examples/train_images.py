"""Train a ResNet on a packed picture dataset, in one process or many, and resume it exactly.

    python scripts/examples/train_images.py pictures-lmdb
    torchrun --nproc_per_node=4 scripts/examples/train_images.py pictures-lmdb \\
        --checkpoint run.pt --resume

Runs unchanged on CPUs (gloo) and GPUs (nccl). It is meant to be copied.

``--global-batch-size`` counts the pictures of all ranks together. A run that was stopped anywhere,
then resumed on any number of ranks that divides it, sees the same pictures, with the same crops, in
the same batches as one that never stopped. On CPUs its losses are the same to the last bit on as
many ranks as before, to rounding on another number; GPU kernels may add in another order each time.
"""

from __future__ import annotations

import argparse
from contextlib import closing
from pathlib import Path
from typing import Any

import torch
from meter import Meter
from resnet import resnet18
from torch import Tensor, nn
from torch.nn import functional as F  # noqa: N812  everybody's name for it
from training import Run, World, add_options, check_options, run_ranks

import shardkit
from shardkit import images
from shardkit.errors import UsageError

Batch = dict[str, Any]


def train_step(run: Run, net: nn.Module, batch: Batch) -> Tensor:
    for group in run.optimizer.param_groups:
        group["lr"] = run.learning_rate
    with run.autocast():
        loss = F.cross_entropy(net(batch["image"]), batch["cls"])
    run.scaler.scale(loss).backward()  # type: ignore[no-untyped-call]
    run.scaler.step(run.optimizer)
    run.scaler.update()
    run.optimizer.zero_grad()
    run.step += 1
    return loss.detach()


def train(run: Run, net: nn.Module, val: shardkit.Loader | None) -> None:
    for epoch in range(run.loader.epoch, run.args.epochs):
        run.loader.set_epoch(epoch)  # one that was begun before a resume goes on where it was
        meter = Meter(run.world.device)
        with closing(meter.watch(run.loader)) as batches:  # whatever happens, its workers end here
            for batch in batches:
                loss = train_step(run, net, batch)
                if run.step % run.args.log_every == 0:
                    report(run, loss, meter)
                if run.step % run.args.checkpoint_every == 0:
                    run.save()
                if run.step == run.args.steps:
                    return
        if val is not None:
            run.world.say(f"epoch {epoch}: {evaluate(run, val):.2%} of val are right")


def report(run: Run, loss: Tensor, meter: Meter) -> None:
    """Means over the ranks."""
    steps_per_s, wait = meter.read()
    numbers = torch.stack([loss.float(), loss.new_tensor(wait).float()])
    loss_mean, wait_mean = (run.world.sum(numbers) / run.world.size).tolist()
    run.world.say(
        f"epoch {run.loader.epoch} step {run.step}: loss {loss_mean:.9g},"
        f" {steps_per_s * run.args.global_batch_size:,.0f} pictures/s, waited {wait_mean:.1%}"
    )


@torch.inference_mode()
def evaluate(run: Run, val: shardkit.Loader) -> float:
    """Share of right answers. All ranks have equally many batches; padding is not counted."""
    run.model.eval()
    counts = torch.zeros(2, dtype=torch.int64, device=run.world.device)
    for batch in val:
        with run.autocast():
            right = run.model(batch["image"]).argmax(1) == batch["cls"]
        counts += torch.stack([(right & batch["valid"]).sum(), batch["valid"].sum()])
    run.model.train()
    num_right, num_valid = run.world.sum(counts).tolist()
    return float(num_right / num_valid)


def start(args: argparse.Namespace, world: World) -> None:
    dataset = shardkit.open(args.dataset)
    if len(dataset) < args.global_batch_size:
        raise UsageError(f"{len(dataset)} pictures: make --global-batch-size at most that")
    common: dict[str, Any] = {
        "batch_size": world.share(args.global_batch_size),
        "workers": args.workers,
        "worker_type": args.worker_type,
        "device": world.device,
        "device_transform": shardkit.normalize(),
    }
    crop, whole = images.train(args.size), images.eval(args.size)
    loader = shardkit.Loader(dataset, shuffle="full", seed=args.seed, transform=crop, **common)
    val = None
    if "val" in dataset.info.splits:
        held_out = shardkit.open(args.dataset, split="val")
        val = shardkit.Loader(held_out, last="pad", transform=whole, **common)
    num_classes = len(dataset.classes or ()) or int(max(dataset.column("cls"))) + 1
    run = make_run(args, world, loader, num_classes)
    if not run.is_done:
        empty = torch.zeros(1, 3, args.size, args.size, device=world.device)
        train(run, run.wrapped(empty), val)
        run.save()


def make_run(
    args: argparse.Namespace, world: World, loader: shardkit.Loader, num_classes: int
) -> Run:
    torch.manual_seed(args.seed)
    model = resnet18(num_classes, args.width).to(world.device)
    model.to(memory_format=torch.channels_last)  # type: ignore[call-overload]
    # Both CPU and CUDA have a fused SGD: one kernel for all parameters.
    optimizer = torch.optim.SGD(
        model.parameters(), args.lr, momentum=0.9, weight_decay=5e-5, nesterov=True, fused=True
    )
    scaler = torch.amp.GradScaler(world.device.type, enabled=args.precision == "fp16")
    run = Run(args, world, model, optimizer, scaler, loader)
    run.resume()
    return run


def parse(argv: list[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    add = parser.add_argument
    add("dataset", type=Path, help="a packed dataset; a split val is evaluated on")
    add("--epochs", type=int, default=90)
    add("--global-batch-size", type=int, default=256, help="of all ranks together")
    add("--lr", type=float, default=0.1)
    add("--size", type=int, default=224, help="width and height of the crops")
    add("--width", type=int, default=64, help="channels of the first stage, a multiple of 8")
    add("--workers", type=int, default=4, help="of each rank")
    add_options(parser)
    args = parser.parse_args(argv)
    check_options(parser, args)
    if args.width < 8 or args.width % 8:
        parser.error(f"--width is a multiple of 8, got {args.width}")
    return args


def main(argv: list[str] | None = None) -> None:
    run_ranks(start, parse(argv))


if __name__ == "__main__":
    main()
