"""Train a ResNet on a packed picture dataset, in one process or many, and resume it exactly.

    python scripts/train_images.py pictures-lmdb
    torchrun --nproc_per_node=4 scripts/train_images.py pictures-lmdb --checkpoint run.pt --resume

Runs unchanged on CPUs (gloo) and GPUs (nccl). It is meant to be copied.

``--global-batch-size`` counts the pictures of all ranks together. A run that was stopped anywhere,
then resumed on any number of ranks that divides it, sees the same pictures, with the same crops, in
the same batches as one that never stopped. On CPUs its losses are the same to the last bit on as
many ranks as before, to rounding on another number; GPU kernels may add in another order each time.
"""

from __future__ import annotations

import argparse
import math
import os
import sys
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from meter import Meter
from resnet import resnet18
from torch import Tensor, nn
from torch.nn import functional as F  # noqa: N812  everybody's name for it

import shardkit
from shardkit import images
from shardkit.errors import UsageError

Batch = dict[str, Any]


@dataclass(frozen=True)
class World:
    """This process among all ranks."""

    rank: int
    size: int
    device: torch.device

    def say(self, line: str) -> None:
        if self.rank == 0:
            print(line, flush=True)

    def sum(self, values: Tensor) -> Tensor:
        if self.size > 1:
            dist.all_reduce(values)
        return values


def join_world(device: str | None) -> World:
    """The ranks that torchrun started, or this process alone."""
    rank, local, size = (
        int(os.environ.get(name, default))
        for name, default in (("RANK", "0"), ("LOCAL_RANK", "0"), ("WORLD_SIZE", "1"))
    )
    if device == "cpu" or (device is None and not torch.cuda.is_available()):
        if size > 1:
            dist.init_process_group("gloo")
        return World(rank, size, torch.device("cpu"))
    if not torch.cuda.is_available():
        raise UsageError("torch sees no CUDA device here: leave out --device cuda")
    if local >= torch.cuda.device_count():
        raise SystemExit(f"rank {rank} has no GPU of its own: start fewer ranks, or --device cpu")
    here = torch.device("cuda", local)
    torch.cuda.set_device(here)
    if size > 1:
        dist.init_process_group("nccl", device_id=here)
    return World(rank, size, here)


@dataclass
class Run:
    """What a checkpoint holds, and what it takes to go on."""

    args: argparse.Namespace
    world: World
    model: nn.Module
    optimizer: torch.optim.Optimizer
    scaler: torch.amp.GradScaler
    loader: shardkit.Loader
    step: int = 0

    def save(self) -> None:
        """By rank 0. The file is whole at any moment: the old one or the new.

        A model with dropout needs torch's random state in it, too.
        """
        if not self.args.checkpoint or self.world.rank:
            return
        state = {name: getattr(self, name).state_dict() for name in STATEFUL}
        new = Path(f"{self.args.checkpoint}.new")
        with open(new, "wb") as file:
            torch.save({**state, "step": self.step}, file)
            file.flush()
            os.fsync(file.fileno())
        os.replace(new, self.args.checkpoint)

    def load(self) -> None:
        """By every rank, however many there are now."""
        state = torch.load(self.args.checkpoint, map_location="cpu", weights_only=True)
        try:
            for name in STATEFUL:
                getattr(self, name).load_state_dict(state[name])
        except RuntimeError as error:
            raise UsageError(
                f"{self.args.checkpoint} holds another model: use its --width and dataset"
            ) from error
        self.step = state["step"]

    def autocast(self) -> torch.autocast:
        dtype = {"bf16": torch.bfloat16, "fp16": torch.float16}.get(self.args.precision)
        return torch.autocast(self.world.device.type, dtype, enabled=dtype is not None)


STATEFUL = ("loader", "model", "optimizer", "scaler")
"""The loader first: it says so if the checkpoint is of another dataset or seed."""


def learning_rate(step: int, steps: int, peak: float) -> float:
    """Warm-up over a twentieth of the steps, then a cosine. Of the step alone: nothing to save."""
    warm = max(1, steps // 20)
    if step < warm:
        return peak * (step + 1) / warm
    return peak * (1 + math.cos(math.pi * (step - warm) / max(1, steps - warm))) / 2


def train_step(run: Run, net: nn.Module, batch: Batch) -> Tensor:
    lr = learning_rate(run.step, run.args.epochs * len(run.loader), run.args.lr)
    for group in run.optimizer.param_groups:
        group["lr"] = lr
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
    if args.global_batch_size % world.size:
        raise UsageError(f"{world.size} ranks do not divide a batch of {args.global_batch_size}")
    dataset = shardkit.open(args.dataset)
    if len(dataset) < args.global_batch_size:
        raise UsageError(f"{len(dataset)} pictures: make --global-batch-size at most that")
    common: dict[str, Any] = {
        "batch_size": args.global_batch_size // world.size,
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
    if not is_done(run):
        train(run, wrapped(run), val)
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
    if args.resume and args.checkpoint.exists():
        run.load()
        world.say(
            f"{args.checkpoint}: {'done' if is_done(run) else 'going on'} after step {run.step}"
        )
    elif args.resume:
        world.say(f"{args.checkpoint} is not there yet: beginning at step 0")
    return run


def is_done(run: Run) -> bool:
    return bool(run.step == run.args.steps or run.loader.epoch >= run.args.epochs)


def wrapped(run: Run) -> nn.Module:
    """The model as it is trained; checkpoints hold the plain one, which fits any world."""
    net = run.model
    if run.world.size > 1:
        # DDP holds its group for ever, and with it gloo's threads; one that has not yet let go of a
        # tensor of ours when Python ends aborts (pytorch#179291; 5 of 10 runs on busy cores). The
        # default group, which World.sum uses, is free to end with destroy_process_group.
        group = dist.new_group()
        net = nn.parallel.DistributedDataParallel(
            net, process_group=group, gradient_as_bucket_view=True
        )
        # After its first step DDP regroups gradients, which all-reduce then adds in another order.
        # A step that changes nothing puts that before the first real one, resumed or not.
        empty = torch.zeros(1, 3, run.args.size, run.args.size, device=run.world.device)
        with run.autocast():
            loss = net(empty).float().sum()
        loss.backward()
        run.optimizer.zero_grad()
    if run.args.compile:
        net = torch.compile(net)  # type: ignore[assignment]
    return net


def parse(argv: list[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    add = parser.add_argument
    add("dataset", type=Path, help="a packed dataset; a split val is evaluated on")
    add("--epochs", type=int, default=90)
    add("--steps", type=int, help="stop after this many, counted from the very first")
    add("--global-batch-size", type=int, default=256, help="of all ranks together")
    add("--lr", type=float, default=0.1)
    add("--seed", type=int, default=0)
    add("--size", type=int, default=224, help="width and height of the crops")
    add("--width", type=int, default=64, help="channels of the first stage, a multiple of 8")
    add("--precision", choices=("fp32", "bf16", "fp16"), default="bf16")
    add("--checkpoint", type=Path, help="file to save to, every --checkpoint-every and at the end")
    add("--checkpoint-every", type=int, default=500, metavar="STEPS")
    add("--resume", action="store_true", help="go on from --checkpoint if it is there")
    add("--log-every", type=int, default=50, metavar="STEPS")
    add("--workers", type=int, default=4, help="of each rank")
    add("--worker-type", choices=("thread", "process"), default="thread")
    add("--device", choices=("cpu", "cuda"), help="default: cuda where there is one")
    add("--compile", action="store_true", help="torch.compile the model")
    args = parser.parse_args(argv)
    if args.resume and not args.checkpoint:
        parser.error("--resume needs --checkpoint")
    if args.checkpoint and not args.checkpoint.parent.is_dir():
        parser.error(f"--checkpoint: no folder {args.checkpoint.parent}")
    if min(args.log_every, args.checkpoint_every) < 1:
        parser.error("--log-every and --checkpoint-every are at least 1")
    if args.width < 8 or args.width % 8:
        parser.error(f"--width is a multiple of 8, got {args.width}")
    return args


def main(argv: list[str] | None = None) -> None:
    args = parse(argv)
    try:
        world = join_world(args.device)
        start(args, world)
    except shardkit.ShardkitError as error:
        print(f"{type(error).__name__}: {error}", file=sys.stderr)
        raise SystemExit(error.exit_code) from error
    except KeyboardInterrupt:
        raise SystemExit(130) from None
    # Not in a finally: after a failure this would wait for ranks that are gone. Then the process
    # ends, which ends its workers; torchrun ends the other ranks.
    if world.size > 1:
        dist.destroy_process_group()


if __name__ == "__main__":
    main()
